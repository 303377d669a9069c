"""A store's record of the input files: how far each was read, and whether it has changed since.

1. A commit records each unfinished split, and how far all other files were read. The print of the part that was read
   identifies that part (`megaflow.job.formats.raw_file`). Readers send the prints, and a commit opens no file. So a
   checkpoint does not fail if a file is renamed, replaced or removed while it is read.
2. A file is refused if it has changed before the place up to which it was read, or if it has shrunk. Its rest would not
   continue the part that was read. The unread part may change, but must not become shorter.
3. New files are read, and so is the growth of old files. A file is still read in order: its growth belongs to its last
   split, or becomes a new split if that one is finished. The last line must not grow once it was read. Only its line
   end may come later. A file may grow after it was planned, so the last line may end after the planned end. Its reader
   reads the whole line, and commits keep the end that it has reached. They also keep the time of modification that the
   reader has found, because `known_files` recognizes a renamed file by it.
4. A file that was read to its end may be removed, or leave the input. Commits keep its place and print, so it is not
   read again if it comes back. The job refuses to run without a file that was not read to its end, unless the user
   forgets it. Commits also keep the place of a forgotten file, so its rest is read if it comes back. Earlier versions
   wrote GONE as the print of a finished file that was gone. A file of that name is refused, because the job cannot tell
   whether it is the same file.
5. If a job skips faults and a file ends in the middle of a record, commits keep the place where the record begins. The
   next run reads it again, with what the file has gained. If the file is gone, the record counts as skipped. If a
   fault has ended a file, as in JSON that is no text of lines, commits keep that. What the file gains is not read, but
   reported in each run.
6. A followed file may have been rotated. Bytes that the job saw but did not read must still exist, in the file or in
   its compressed copy, unless the user allows the loss. For the same reason, no log may have been written, rotated and
   compressed since the last look for files before the last checkpoint began. Looks are FIND_SECONDS apart, so a margin
   of DELETED_SECONDS suffices. A checkpoint has all files that were read so shortly before it: their copies are known.
7. A path and an input identify a file, and a file may belong to two inputs. If its input has changed, the file is
   refused, because it would be read again from its start. `known_files` finds files whose paths have changed.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from megaflow.control.messages import Split, SplitEnd
from megaflow.durable.commits import Commit, SplitRemainder
from megaflow.errors import ClusterError, StoreError, StoreUnfit
from megaflow.job.files.file_position import FilePosition
from megaflow.job.files.followed_files import ONLY_FOLLOWED, FollowedFiles
from megaflow.job.files.growing_file import DELETED_SECONDS
from megaflow.job.files.rotated_copy import unseen_copies
from megaflow.job.formats.raw_file import NOTHING_READ, print_of, reading
from megaflow.job.formats.text_encoding import TextForm
from megaflow.job.formats.text_lines import LINE_END
from megaflow.job.launcher.inputs.launcher_input import JobInput
from megaflow.job.launcher.inputs.line_options import NATURAL
from megaflow.job.launcher.store.known_files import File, Stamp, is_elsewhere, recognized, stamp_of
from megaflow.job.launcher.store.moved_logs import copies, moved_partitions
from megaflow.job.spec import JobSpec
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.order import grouped

GONE: Final = ""  # in place of a print
OVER: Final = "start over with a new --state folder"
FORGET: Final = "or add --forget-missing to continue without the rest"
AGAIN: Final = (
    "put back the file that was read, name the path that it has now by --same-file OLD=NEW, rename a new file that "
    f"took its name, or {OVER}"
)


class InputPositions:
    """The splits of a job with a store. Used by the launcher while it starts, then by the thread that commits."""

    def __init__(
        self, splits: Iterable[Split], stamps: Mapping[File, Stamp] = MappingProxyType({}),
        absent: Iterable[SplitRemainder] = (), left_out: Iterable[File] = (),
    ) -> None:  # fmt: skip
        """Take all splits of the input, read or not.

        `stamps` are those of the files in the store; `absent` has the records of forgotten files. `left_out` has the
        files that a fault has ended. Raises StoreError for a file that cannot be read. Cost: one `stat` of each new
        file, and samples of files in several splits.
        """
        self._splits = {split.number: _printed(split) for split in splits}
        new = {(split.input, split.path) for split in self._splits.values()} - stamps.keys()
        self._stamps = {**stamps, **{file: stamp_of(file[1]) for file in new}}
        self.absent = tuple(absent)  # as commits record it
        self.skipped = Counter[str]()  # input -> unfinished records of files that are gone since the last run
        self._left_out = frozenset(left_out)
        self._read: dict[int, SplitEnd] = {}  # number of a split that was read to its end

    def remainders(
        self, left: Iterable[Split], read: Mapping[int, SplitEnd] = MappingProxyType({})
    ) -> tuple[SplitRemainder, ...]:
        """Return the records for a commit, by number, when the splits in `left` are still to be read.

        `read` has the splits that were read to their ends since the last call. Cost: linear in the splits.
        """
        self._read.update(read)
        for number, end in read.items():
            if end.end is not None:
                self._grow(number, end.end, end.changed_ns)
        rest = {split.number: split for split in left}
        done: dict[File, Split] = {}  # the last split of each file, if it is read
        left_out = {*self._left_out}
        for split in self._splits.values():
            file = split.input, split.path
            if split.number not in rest and (file not in done or split.end > done[file].end):
                end = self._read.get(split.number, SplitEnd(split.print if split.start == split.end else GONE))
                start = split.end if end.open_from is None else end.open_from
                done[file] = replace(split, start=start, print=end.print)
                if end.is_left_out:
                    left_out.add(file)
        said = [
            SplitRemainder(
                each.number, each.path, each.start, each.end, each.print, each.input, each.skip, each.maxima,
                self._stamps.get((each.input, each.path), ()), is_open=is_open and each.start < each.end,
                natural=each.natural, is_left_out=is_open and (each.input, each.path) in left_out,
            )
            for some, is_open in ((rest, False), (done, True)) for each in some.values()
        ]  # fmt: skip
        return tuple(sorted((*said, *self.absent), key=lambda each: each.number))

    def _grow(self, number: int, end: int, changed_ns: int) -> None:
        """Note that a split was read up to `end`, after the end that was planned; see rule 3."""
        split = self._splits[number] = replace(self._splits[number], end=end)
        stamp = self._stamps[split.input, split.path]
        if stamp:
            self._stamps[split.input, split.path] = *stamp[:2], changed_ns

    def noted(self, said: Iterable[SplitRemainder]) -> tuple[SplitRemainder, ...]:
        """Return records, in which those of forgotten files are marked as such."""
        forgotten = {each.number: each for each in self.absent}
        return tuple(forgotten.get(each.number, each) for each in said)

    @property
    def splits(self) -> tuple[Split, ...]:
        """All splits, by number, each with the range that is still to be read."""
        return tuple(split for _, split in sorted(self._splits.items()))

    @property
    def to_read(self) -> tuple[Split, ...]:
        """The splits that are not read to their ends, by number."""
        return tuple(split for _, split in sorted(self._splits.items()) if split.start < split.end)


def _printed(split: Split) -> Split:
    """Return a split with the print of the file's bytes before it, even if those belong to another split."""
    if split.print:
        return split
    with reading(split.path, StoreError):
        return replace(split, print=print_of(split.path, split.start) if split.start else NOTHING_READ)


def known_input(
    found: Commit | None, job_input: JobInput, spec: JobSpec, report: Callable[[str], None]
) -> tuple[InputPositions, Commit | None]:
    """Return the input files and what is left of them, and the newest commit with the present names of its files.

    Raises as `recognized`, `resumed_input` and `moved_partitions`.
    """
    said, forget = () if found is None else found.splits, spec.forget_missing
    said, splits = recognized(said, job_input.splits, spec.same_files, forget, report)
    kept = resumed_input(said, splits, forget)
    report_gone(kept, said, report)
    report_left_out(kept, splits, report)
    if found is None:
        return kept, None
    followed = {name or ONLY_FOLLOWED for name, *_ in job_input.names.followed}
    partitions = moved_partitions(found.partitions, followed, spec.relocated)
    for text in copies(partitions, followed):
        report(text)
    return kept, replace(found, splits=kept.noted(said), partitions=partitions)


def report_gone(kept: InputPositions, said: Iterable[SplitRemainder], report: Callable[[str], None]) -> None:
    """Report the files that are gone for the first time, and were not read to their ends."""
    for each in set(kept.absent).difference(said):
        what = f"{each.end - each.start} bytes of"
        if each.is_open:
            kept.skipped[each.input] += 1
            what = "the unfinished record at the end of"
        report(f"continues without {what} {each.path!r}, which is gone")


def report_left_out(kept: InputPositions, found: Iterable[Split], report: Callable[[str], None]) -> None:
    """Report the files that have grown after a fault has ended them. `found` has the files as they are."""
    sizes = {(split.input, split.path): split.end for split in found}
    for each in kept.remainders(kept.to_read):
        gained = sizes.get((each.input, each.path), 0) - each.end
        if each.is_left_out and gained > 0:
            report(
                f"leaves out {gained} bytes that {each.path!r} has gained after byte {each.end}, as on_error='skip' "
                "left out its rest after a fault in an earlier run"
            )


def resumed_input(said: Iterable[SplitRemainder], found: Iterable[Split], forget: bool = False) -> InputPositions:
    """Return the input of a job that resumes from a commit with the records `said`; `found` has the files as they are.

    With `forget`, files that were not read to their end may be gone. Otherwise raises StoreUnfit for such files. Also
    raises StoreUnfit for files that differ from what was read, and for files that left the input before they were read
    to their end.
    """
    said = tuple(said)
    absent: list[SplitRemainder] = []
    fresh = grouped(((split.input, split.path), split) for split in found)
    sizes = {file: max(split.end for split in splits) for file, splits in fresh.items()}
    inputs = {path: name for name, path in fresh}
    left_out = {(each.input, each.path) for each in said if each.is_left_out}
    kept: dict[File, list[Split]] = {}
    for each in said:
        file = each.input, each.path
        size = sizes.get(file)
        if size is None:
            check_same_input(each, inputs.get(each.path))
        if size is None and each.start < each.end and (forget or each.forgotten or each.is_open):
            absent.append(replace(each, forgotten=True))
            continue
        if size is not None or each.start < each.end:
            check_unchanged(each, size)
        end = each.start if each.is_left_out else each.end  # these differ in a compressed copy that has gained text
        split = Split(
            each.number, each.path, each.start, end, each.input, each.skip, maxima=each.maxima, print=each.fingerprint,
        )  # fmt: skip
        if file in fresh:
            again = fresh[file][0]
            check_same_order(each, again)
            split = replace(split, encoding=again.encoding, compression=again.compression, natural=again.natural)
        kept.setdefault(file, []).append(split)
    number = max((each.number for each in said), default=-1) + 1
    result = [split for splits in kept.values() for split in splits]
    for file, splits in fresh.items():
        more = splits if file not in kept else []
        if file in kept:
            last, size = max(kept[file], key=lambda split: split.end), sizes[file]
            if size > last.end and last.start < last.end:
                result[result.index(last)] = replace(last, end=size)
            elif size > last.end and file not in left_out:
                check_ends_line(last)
                more = [replace(last, start=last.end, end=size, print="")]
        for split in more:
            result.append(replace(split, number=number))
            number += 1
    return InputPositions(result, {(each.input, each.path): each.stamp for each in said}, absent, left_out)


def input_again(before: InputPositions, said: Sequence[SplitRemainder] | None) -> InputPositions:
    """Return the input of the next attempt of a job; files that were read to their end are not opened again.

    `said` has the records of a commit of the last attempt; None: there was no commit, so the same input is to be read.
    Raises StoreUnfit as `resumed_input` does. If a file is not where it was, raises ClusterError instead, because the
    same command may find the file.
    """
    unread = before.remainders(before.to_read) if said is None else said
    unread = [each for each in unread if each.start < each.end and not each.forgotten]
    try:
        kept = before
        if said is not None:
            read = {each.path for each in said} - {each.path for each in unread}
            found = (each for each in before.splits if each.path not in read and os.path.exists(each.path))
            kept = resumed_input(said, found)
            kept.skipped = before.skipped
        check_there(kept.to_read)
    except StoreUnfit as error:
        for each in unread:
            if is_elsewhere(each):
                why = f"{each.path!r} was renamed, replaced or removed before it was read to its end"
                raise ClusterError(f"the job does not restart by itself, as {why}") from error
        raise
    return kept


def check_same_input(said: SplitRemainder, other: str | None) -> None:
    """Raise StoreUnfit if a file is now read as another input, `other`, than before."""
    if other is not None:
        raise StoreUnfit(
            f"{said.path!r} was read as {input_text(said.input)} before, and now as {input_text(other)}. Name it "
            f"as before, or {OVER}."
        )


def check_same_order(said: SplitRemainder, again: Split) -> None:
    """Raise StoreUnfit if digits in names count as numbers now, and did not before, or the reverse."""
    if said.natural != again.natural:
        before, now = (NATURAL, "another order") if said.natural else ("another order", NATURAL)
        raise StoreUnfit(
            f"The files of {input_text(said.input)} were read in {before} before, and now in {now}. Files that were "
            f"not begun may have records before the present watermark. Give the same option as before, or {OVER}."
        )


def input_text(name: str) -> str:
    """Return the name of an input for a sentence.

    >>> input_text("orders"), input_text("")
    ("the lines 'orders'", 'lines without a name')
    """
    return f"the lines {name!r}" if name else "lines without a name"


def check_there(unread: Iterable[Split | SplitRemainder]) -> None:
    """Raise StoreUnfit if a file that was not read to its end is gone."""
    for each in unread:
        if not os.path.exists(each.path):
            raise StoreUnfit(f"{place_text(each)}, and is gone. Put the file back, {FORGET}.")


def place_text(unread: Split | SplitRemainder) -> str:
    """Return as text how far an unfinished file was read."""
    return f"{unread.path!r} was read up to byte {unread.start} of {unread.end} at the last checkpoint"


def check_unchanged(said: SplitRemainder, size: int | None) -> None:
    """Raise StoreUnfit unless a file still has the bytes that were read; `size` is None if it is not an input now."""
    if size is None:
        check_there([said])
        raise StoreUnfit(
            f"{place_text(said)}, and is not an input now, or is empty. Name it by --lines again, {FORGET}."
        )
    if said.fingerprint == GONE:
        raise StoreUnfit(
            f"{said.path!r} was read to its end and was gone at the checkpoint after that, so the job cannot tell "
            f"whether this is the same file. Remove it if it is, rename it if it is a new file, or {OVER}."
        )
    if size < said.end:
        raise StoreUnfit(f"{said.path!r} has shrunk from at least {said.end} bytes to {size}; {AGAIN}.")
    with reading(said.path, StoreError):
        found = print_of(said.path, said.start)
    if found != said.fingerprint:
        raise StoreUnfit(
            f"{said.path!r} has changed in its first {said.start} bytes, which were already read; {AGAIN}."
        )


def check_followed(
    found: Commit, followed: Iterable[tuple[str, str, str]], allow_loss: bool, report: Callable[[str], None]
) -> None:
    """Raise StoreUnfit if bytes of followed files were seen but not read, and are gone; with `allow_loss`, report them.

    Cost: decompresses the copies of files that are not where they were.
    """
    patterns = {name or ONLY_FOLLOWED: pattern for name, pattern, _ in followed}
    lost: list[str] = []
    for partition in found.partitions:
        if partition.input in patterns and partition.position is not None:
            pattern = patterns[partition.input]
            source = FollowedFiles(pattern, lose=lambda path, size: lost.append(f"{size} of {path!r}"))
            source.open(decode(partition.partition), decode(partition.position)).look()
    if lost and not allow_loss:
        raise StoreUnfit(
            f"Followed files lost bytes that the job had not read: {', '.join(lost)}. Put the files back, or "
            "compressed copies into their folders. --allow-loss continues without these bytes."
        )
    if lost:
        report(f"followed files lost bytes that the job had not read: {', '.join(lost)}")


def check_compressed(
    found: Commit, followed: Iterable[tuple[str, str, str]], allow_loss: bool, report: Callable[[str], None]
) -> None:
    """Raise StoreUnfit if followed files were written and compressed while no job ran; `allow_loss` reports them.

    A copy of a file that the job has read and forgotten also counts if its time of modification was changed.
    """
    if not (found.checkpoint and found.written_at):
        return  # nothing was read, or it is unknown when
    since = (found.begun_at or found.written_at) - DELETED_SECONDS
    unseen: list[str] = []
    for name, pattern, _ in followed:
        input = name or ONLY_FOLLOWED
        partitions = [each.position for each in found.partitions if each.input == input and each.position is not None]
        seen = [FilePosition.of(decode(position)) for position in partitions]
        unseen += map(repr, unseen_copies(pattern, seen, since))
    if unseen and not allow_loss:
        raise StoreUnfit(
            "The job cannot tell whether it has read files that are compressed and were changed at the last checkpoint "
            f"or later: {', '.join(unseen)}. If it has not read them, decompress them in place: the same command reads "
            "all of their lines. If it has read them, this would read them again: add --allow-loss, which leaves them "
            "out."
        )
    if unseen:
        report(f"skipping compressed files that were changed at the last checkpoint or later: {', '.join(unseen)}")


def check_ends_line(read: Split) -> None:
    """Raise StoreUnfit if the last line of a finished split has grown, or its file is decoded as a stream.

    A line end after the split belongs to that line: it makes no line of its own (`text_lines.line_start`).
    """
    if TextForm(read.encoding, read.compression).is_streamed:
        raise StoreUnfit(
            f"{read.path!r} was read to its end at byte {read.end} and has grown since, but it can only be "
            "decoded as a whole. Put the new lines into a separate file."
        )
    with open(read.path, "rb") as file:
        file.seek(read.end - 1)
        if not LINE_END.search(file.read(2)):
            raise StoreUnfit(
                f"{read.path!r} was read to its end at byte {read.end}, and its last line has grown since; {AGAIN}."
            )
