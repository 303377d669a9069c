"""Recognition of the files that a store has read, whatever their names are now.

`recognized` gives the records of a store the present names of their files, and leaves other names of the same files out
of the input. After that, path and input identify a file, as in `input_positions`. Each input is handled separately.

1. A file under another name is the same if it has the same device and inode, the bytes that were read, and either the
   same time of modification or more bytes. All are needed, because a new file may receive the inode of a deleted one,
   and may begin with the same bytes. Equal content alone means a new file, because daily files may repeat. If several
   records have the same inode, only the newest counts, because the other files are gone.
2. A name that still belongs to the file keeps the record. So an added name changes nothing, and two files that exchange
   their names exchange their records. A name may still lead to the file although it is not found, because its folder
   has two names and is searched under the other one. Such a name also keeps the record, if the inode has its number. If
   a name now belongs to another file, rule 1 comes first: a renamed file takes its record along, and the file that has
   its old name is new. If nothing was read of a file, there are no bytes to compare, and its inode decides before its
   name.
3. Several names of one file that are found together, such as links, are read once. Otherwise the result would depend on
   whether a link existed at the first run. A job without a store also reads them once (`read_once`).
4. A file that is gone continues in a compressed copy whose text begins with the bytes that were read. The copy must
   also have the file's name plus a suffix, or the file's time of modification in seconds, which compressing programs
   keep. Or it is in the same folder under the name of a rotated log: `log.1.gz`, `log-20260307.gz`. That name is
   enough, because the store does not have the last time of a log that was written until its rotation. A compressed file
   is read from the beginning of its text. So everything that was read of the file must lie before everything that was
   not; otherwise the run is refused.
5. The launcher reads device, inode and time when it plans a run. They are not needed to continue a file under its old
   name, because a device may have another number after the machine restarts.
6. `--same-file OLD=NEW` declares a file to be a copy of one that was read, and the bytes that were read must confirm
   it. If the old file is still there, the copy counts as read to its end, so it must have no more than that. If the old
   file is gone, or its name now belongs to another file, the copy takes its place. The first commit of the run contains
   the result, so the flag is needed only once and does no harm later.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import Final, TypeAlias

from megaflow.control.messages import Split
from megaflow.control.wording import quantity
from megaflow.durable.commits import SplitRemainder
from megaflow.errors import SourceError, StoreUnfit
from megaflow.job.formats.compression import CompressedText
from megaflow.job.formats.raw_file import TextPrint, print_of, print_of_file, reading
from megaflow.job.formats.text_lines import LINE_END
from megaflow.quick_dataclass import dataclass
from megaflow.timely.order import grouped

File: TypeAlias = tuple[str, str]  # input and path
Stamp: TypeAlias = tuple[int, ...]  # device, inode, nanoseconds of the last modification; empty: unknown
Inode: TypeAlias = tuple[str, tuple[int, ...]]  # input, device and inode
NAMES_SHOWN: Final = 3
SECOND: Final = 1_000_000_000  # nanoseconds
ROTATED: Final = re.compile(r"(.+?[^./])[-._]\d[\d._-]*\.\w+", re.DOTALL)  # log.1.gz, log-20260307.gz


@dataclass(slots=True)
class Matching:
    """The files of a store, the files that are found, and the matches between them so far."""

    said: dict[File, list[SplitRemainder]]
    found: dict[File, list[Split]]
    stamps: dict[File, Stamp]  # of the files that are found
    names: dict[File, File] = field(default_factory=dict)  # recorded file -> the same file as found
    texts: dict[File, SplitRemainder] = field(default_factory=dict)  # recorded file -> its record in a compressed copy
    copies: dict[File, File] = field(default_factory=dict)  # copy that the user names -> the recorded file

    @property
    def unknown(self) -> list[File]:
        """The files that are found but not recognized."""
        known = {*self.names.values(), *self.copies}
        return [file for file in self.found if file not in known]

    @property
    def inodes(self) -> set[Inode]:
        """The inodes of the files that are recognized."""
        return {self.inode(file) for file in self.names.values()}

    def inode(self, file: File) -> Inode:
        """Return the input, device and inode of a found file."""
        return file[0], self.stamps[file][:2]

    def size(self, file: File) -> int:
        """Return the size of a found file in bytes."""
        return self.found[file][-1].end


def stamp_of(path: str) -> Stamp:
    """Return what distinguishes a file from others on this machine; nothing if it does not exist.

    >>> stamp_of("/no/such/file")
    ()
    """
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns


def is_elsewhere(said: SplitRemainder) -> bool:
    """Return whether a file is gone, or another file has its name, as far as its record shows."""
    now = stamp_of(said.path)
    return not now or (bool(said.stamp) and now[:2] != said.stamp[:2])


def recognized(
    said: Iterable[SplitRemainder], found: Iterable[Split], copies: Iterable[tuple[str, str]] = (),
    forget: bool = False, report: Callable[[str], None] = lambda text: None,
) -> tuple[tuple[SplitRemainder, ...], tuple[Split, ...]]:  # fmt: skip
    """Return the records of a store and the splits that are found, with names that agree.

    `copies` are the pairs of `--same-file`. With `forget`, files that were not read to their ends may be gone. `report`
    reports changed names to the user. Raises StoreUnfit if a file is not the copy that the user says, and for a
    compressed copy that cannot be continued. Cost: one `stat` of each file, and of each record without one; samples of
    renamed files; decompresses copies as far as they were read.
    """
    seen = grouped(((split.input, split.path), split) for split in found)
    match = Matching(grouped(((each.input, each.path), each) for each in said), seen, {})
    match.stamps = {file: stamp_of(file[1]) for file in seen}
    _find_copies(match, copies)
    _find_by_inode(match, _is_renamed)
    _find_by_name(match, lambda parts, path: is_begun(parts) and is_same(parts, path))
    _find_by_lost_name(match)
    _find_compressed(match)
    _find_by_inode(match, lambda match, file, place: not is_begun(match.said[file]))
    _find_by_name(match, lambda parts, path: True)  # it has changed: `input_positions` refuses it
    links = dict(_links(match))
    _tell(report, "continues {0} under {1}", [(old, new) for old, new in match.names.items() if old != new])
    _tell(report, "reads {1} once, and not again as {0}", [*links.items(), *match.copies.items()])
    places = {*match.names.values()}
    renamed = [
        each for file, parts in match.said.items() if not (file in places and _is_replaced(match, file, forget))
        for each in _renamed(match, file, parts)
    ]  # fmt: skip
    return (
        (*renamed, *_records_of_copies(match, 1 + max((each.number for each in renamed), default=-1))),
        tuple(split for file, splits in match.found.items() if file not in links for split in splits),
    )


def read_once(found: Iterable[Split], report: Callable[[str], None]) -> tuple[Split, ...]:
    """Return the splits of a job without a store, numbered anew, without second names of files; see rule 3."""
    _, splits = recognized((), found, report=report)
    return tuple(replace(split, number=number) for number, split in enumerate(splits))


def is_begun(parts: Sequence[SplitRemainder]) -> bool:
    """Return whether anything of a file was read."""
    return any(each.start for each in parts)


def is_same(parts: Sequence[SplitRemainder], path: str) -> bool:
    """Return whether a file has the bytes that were read. Raises StoreUnfit if it cannot be read."""
    with reading(path, StoreUnfit):
        return all(print_of(path, each.start) == each.fingerprint for each in parts)


def _find_copies(match: Matching, pairs: Iterable[tuple[str, str]]) -> None:
    """Apply `--same-file`. If the old file is still there, its copy is recorded as read; else the copy replaces it."""
    for old, new in pairs:
        copies = [file for file in match.found if file[1] == new and file not in match.said]
        for input, _ in copies:  # none: the store already has it, or it is gone
            parts = match.said.get((input, old))
            if parts is None:
                raise StoreUnfit(
                    f"--same-file {old}={new}: No file {old!r} was read as this input. Name the file as the store does."
                )
            file, copy = (input, old), (input, new)
            is_there = file in match.found and is_same(parts, old)
            if not is_there and _continue_compressed(match, file, copy):
                continue
            is_text = copy_of_text(parts, match.found[copy][0]) is not None
            has_all = match.size(copy) >= max(each.end for each in parts) and is_same(parts, new)
            if not (is_text or has_all):
                raise StoreUnfit(
                    f"--same-file {old}={new}: {new!r} does not have the bytes that were read of {old!r}, so it is no "
                    "copy. Leave it out."
                )
            if is_there and not is_text and not _is_beginning(match, copy, file):
                raise StoreUnfit(
                    f"--same-file {old}={new}: {old!r} is still there, and {new!r} has lines that it lacks, which "
                    f"would never be read. Remove {old!r}, and {new!r} takes its place; or leave out the flag, and all "
                    f"lines of {new!r} are read."
                )
            if is_there:
                match.copies[copy] = file
            else:
                match.names[file] = copy


def _is_beginning(match: Matching, copy: File, file: File) -> bool:
    """Return whether another file, which is found, begins with all bytes of this copy. Raises StoreUnfit."""
    size = match.size(copy)
    with reading(copy[1], StoreUnfit):
        return size <= match.size(file) and print_of(copy[1], size) == print_of(file[1], size)


def _find_by_name(match: Matching, is_it: Callable[[Sequence[SplitRemainder], str], bool]) -> None:
    """Match files of the same name, unless the name is a second name of a file that is already matched."""
    taken = match.inodes
    for file in match.unknown:
        if file in match.said and file not in match.names and is_it(match.said[file], file[1]):
            if not match.said[file][0].stamp or match.inode(file) not in taken:
                match.names[file] = file


def _find_by_lost_name(match: Matching) -> None:
    """Match files whose recorded names are not found, but still lead to files that are; see rule 2."""
    places = {match.inode(file): file for file in match.unknown[::-1] if match.stamps[file] and file not in match.said}
    for file, parts in match.said.items() if places else ():
        if file in match.found or file in match.names or not is_begun(parts):
            continue
        now = stamp_of(file[1])
        place = places.get((file[0], now[:2]))
        if place is not None and parts[0].stamp[1:2] in ((), now[1:2]) and is_same(parts, place[1]):
            match.names[file] = places.pop((file[0], now[:2]))


def _find_by_inode(match: Matching, is_it: Callable[[Matching, File, File], bool]) -> None:
    """Match files of the same inode by rules 1 and 2. `is_it` compares a recorded file and a found file.

    Any file could be the same as one that was not read at all. So `recognized` compares unread files last.
    """
    places: dict[Inode, list[File]] = {}
    for file in match.unknown:
        if match.stamps[file]:
            places.setdefault(match.inode(file), []).append(file)
    renamed = []
    for file, parts in match.said.items():
        here = places.get((file[0], parts[0].stamp[:2]), []) if parts[0].stamp and file not in match.names else []
        if file in here:
            if match.stamps[file] == parts[0].stamp or is_same(parts, file[1]):  # else a new file on the same inode
                match.names[file] = file
        elif here:
            renamed.append((file, here))
    taken = match.inodes
    for file, here in sorted(renamed, key=lambda each: -match.said[each[0]][0].stamp[2]):
        if match.inode(here[0]) not in taken:
            taken.add(match.inode(here[0]))  # older files that had the inode are gone
            if is_it(match, file, here[0]):
                match.names[file] = here[0]


def _is_renamed(match: Matching, file: File, place: File) -> bool:
    """Return whether a found file with the inode of a recorded file is that file."""
    parts, size = match.said[file], match.size(place)
    end = max(each.end for each in parts)
    is_untouched = size == end and match.stamps[place] == parts[0].stamp
    has_grown = size > end and is_begun(parts)
    return (is_untouched or has_grown) and is_same(parts, place[1])


def _find_compressed(match: Matching) -> None:
    """Match files that are gone with their compressed copies, by rule 4."""
    gone = [file for file in match.said if file not in match.names]
    copies: dict[tuple[str, object], list[File]] = {}  # input, and name without a suffix, path or time -> files
    for input, path in match.unknown if gone else ():
        if match.found[input, path][0].compression:
            stem, nanos = os.path.splitext(os.path.basename(path))[0], match.stamps[input, path][2:]
            for key in (stem, *rotated_from(path), *(each // SECOND for each in nanos)):
                copies.setdefault((input, key), []).append((input, path))
    taken = {*match.names.values()}
    for file in gone:
        folder, name = os.path.split(file[1])
        part = match.said[file][0]
        here = [*copies.get((file[0], name), ())]
        if part.start:
            here += [each for nanos in part.stamp[2:] for each in copies.get((file[0], nanos // SECOND), ())]
        rotated = sorted(copies.get(file, ())) if part.start else []
        for copy in (*sorted(here, key=lambda each: (os.path.dirname(each[1]) != folder, each[1])), *rotated):
            if copy not in taken and _continue_compressed(match, file, copy):
                taken.add(copy)
                break


def rotated_from(path: str) -> list[str]:
    """Return the paths that a compressed log may have had, by the naming of programs that rotate logs.

    >>> rotated_from("logs/web.log.1.gz"), rotated_from("logs/web.log-20260307.gz"), rotated_from("logs/web.log.gz")
    (['logs/web.log'], ['logs/web.log'], [])
    """
    found = ROTATED.fullmatch(path)
    return [found[1]] if found else []


def _continue_compressed(match: Matching, file: File, copy: File) -> bool:
    """Continue a file in its compressed copy, if `copy` is one; return whether. Raises StoreUnfit by rule 4."""
    parts = match.said[file]
    record = copy_of_text(parts, match.found[copy][0])
    if record is None:
        return False
    if not _is_read_in_order(parts):
        raise StoreUnfit(
            f"{file[1]!r} was read in several parts and not to its end, and is compressed now, as {copy[1]!r}. "
            "Decompress it, then run the same command."
        )
    match.names[file], match.texts[file] = copy, record
    return True


def _is_read_in_order(parts: Iterable[SplitRemainder]) -> bool:
    """Return whether everything that was read of a file lies before everything that was not."""
    by_end = sorted(parts, key=lambda each: (each.end, each.start))
    left = [each for each in by_end if each.start < each.end]
    is_whole = all(one.end == other.start for one, other in pairwise(left))
    return is_whole and all(each.end <= left[0].start for each in by_end if left and each not in left)


def copy_of_text(parts: Sequence[SplitRemainder], split: Split) -> SplitRemainder | None:
    """Return how far a compressed file counts as read; None if its text does not begin with the bytes read."""
    if not split.compression:
        return None
    said = min((each for each in parts if each.start < each.end), key=lambda each: each.start, default=parts[-1])
    text, last, after = TextPrint(said.start), b"", b""
    try:
        with reading(split.path, StoreUnfit), open(split.path, "rb", buffering=0) as file:
            pieces = CompressedText(split.path, file.fileno(), split.end, split.compression)
            while text.length <= said.start + 1 and (piece := pieces.next_piece()):
                place = max(0, said.start - text.length)
                last, after = piece[:place] or last, (after + piece[place:])[:2]
                text.add(piece)
            if text.digest() != said.fingerprint:
                return None
            has_more, is_read, late_end = text.length > said.start, said.start == said.end, 0
            if is_read and has_more and not last.endswith((b"\n", b"\r")):
                late_end = found.end() if (found := LINE_END.match(after)) else 0
            if is_read and has_more and not (said.is_left_out or late_end or last.endswith((b"\n", b"\r"))):
                raise StoreUnfit(
                    f"{said.path!r} was read to its end at byte {said.end}, and its last line had grown before it was "
                    f"compressed as {split.path!r}. Decompress the file, and name it as a new one."
                )
            end = split.end if is_read and not has_more else min(pieces.bytes_read, split.end - 1)
            start = end if said.start else 0
            print = print_of_file(file.fileno(), start)
    except SourceError:  # damaged, or still being written: its reader reports that
        return None
    skip = (said.skip or said.start) + late_end
    return replace(said, path=split.path, start=start, end=split.end, fingerprint=print, skip=skip, stamp=())


def _links(match: Matching) -> Iterator[tuple[File, File]]:
    """Yield each further name of a file in the same input, with its first name; see rule 3."""
    first: dict[Inode, File] = {}
    unknown = dict.fromkeys(match.unknown)
    for file in (*match.names.values(), *unknown):
        if match.stamps[file]:
            known = first.setdefault(match.inode(file), file)
            if known != file and file in unknown:
                yield file, known


def _is_replaced(match: Matching, file: File, forget: bool) -> bool:
    """Return whether to drop the record of a file whose name another file has now.

    The file itself must be gone. It must also have been read to its end, unless `forget` allows the loss.
    """
    return file not in match.names and (
        forget or all(each.start == each.end or each.is_open for each in match.said[file])
    )


def _renamed(match: Matching, file: File, parts: Iterable[SplitRemainder]) -> Iterator[SplitRemainder]:
    """Yield the records of a file with its present name and stamp."""
    now = match.names.get(file)
    stamp = match.stamps.get(now, ()) if now is not None else ()
    for each in [match.texts[file]] if file in match.texts else parts:
        yield replace(each, path=file[1] if now is None else now[1], stamp=stamp or each.stamp)


def _records_of_copies(match: Matching, number: int) -> Iterator[SplitRemainder]:
    """Yield a record for each copy whose original still exists: the copy counts as read to its end."""
    for index, (input, path) in enumerate(match.copies):
        size = match.size((input, path))
        with reading(path, StoreUnfit):
            print = print_of(path, size)
        yield SplitRemainder(number + index, path, size, size, print, input, stamp=match.stamps[input, path])


def _tell(report: Callable[[str], None], text: str, pairs: Sequence[tuple[File, File]]) -> None:
    """Report files that have other names to the user, at most NAMES_SHOWN by name."""
    for (_, one), (_, other) in pairs[:NAMES_SHOWN]:
        report(text.format(repr(one), repr(other)))
    if len(pairs) > NAMES_SHOWN:
        report(f"likewise {quantity(len(pairs) - NAMES_SHOWN, 'other file')}")
