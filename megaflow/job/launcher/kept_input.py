"""A store's record of the input files: how far each was read, and whether it has changed since.

1. A commit names each unfinished split, and for every other file how far it was read. The part that was read is known
   by a fingerprint of samples, since it may be large. A change is noticed if it shifts the rest or touches a sample.
2. A file is refused if it has changed before the place up to which it was read, or if it has shrunk: its rest would no
   longer continue what was read. The unread part may change, but must not become shorter.
3. New files are read, and so is the growth of old ones. A file is still read in order: its growth belongs to its last
   split, or becomes a new split if that one is finished. Its last line must not grow once it was read.
4. A file that was read to its end may be removed, or leave the input. Commits keep its place and fingerprint without
   reading it, so if it comes back it is not read again. A file that is gone before it was read to its end is refused.
   If a finished file is gone at its first commit, its fingerprint is GONE. A file of that name is then refused, because
   nothing tells whether it is the same.
5. A followed file may have been rotated. Bytes that the job saw but did not read must still exist, in the file or in
   its compressed copy, unless the user allows the loss. Likewise a log must not have been written, rotated and
   compressed since the last checkpoint without the job having seen it.
6. A file is identified by its path and its input, and may belong to two inputs. If its input has changed it is refused,
   as it would be read again from its start.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, TypeAlias

from megaflow.control.messages import Split
from megaflow.durable.commits import Commit, SplitRemainder
from megaflow.errors import StoreError
from megaflow.job.file_position import FilePosition
from megaflow.job.followed_files import ONLY_FOLLOWED, FollowedFiles
from megaflow.job.rotated_copy import unseen_copies
from megaflow.job.text_form import TextForm
from megaflow.timely.communication.codec.decode import decode

SAMPLES: Final = 8  # of a file, evenly over what is read of it
SAMPLE_BYTES: Final = 4096
File: TypeAlias = tuple[str, str]  # input and path
GONE: Final = ""  # in place of a fingerprint
ABSENT: Final = (FileNotFoundError, NotADirectoryError)  # raised for a file that is not there
OVER: Final = "start over with a new --state folder"
AGAIN: Final = f"put back the file that was read, rename a new file that took its name, or {OVER}"


def fingerprint(path: str, length: int) -> str:
    """Return what tells the first bytes of a file from others. Costs SAMPLES reads at most. Raises OSError."""
    found = hashlib.blake2b(digest_size=12)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for number in range(SAMPLES):  # the last one ends where they end
            start = max(0, length - SAMPLE_BYTES) * number // (SAMPLES - 1)
            found.update(os.pread(file, min(SAMPLE_BYTES, length - start), start))
    finally:
        os.close(file)
    return found.hexdigest()


def print_of(path: str, length: int, may_be_gone: bool) -> str:
    """Return the fingerprint of a file; GONE if it is not there but may be gone. Raises OSError."""
    try:
        return fingerprint(path, length)
    except ABSENT:
        if not may_be_gone:
            raise
        return GONE


class KeptInput:
    """The splits of a job that has a store; used by the launcher's start, and then by the thread that commits."""

    def __init__(self, splits: Iterable[Split], said: Iterable[SplitRemainder] = ()) -> None:
        """`splits`: all that the job has to read, and what it has read already; `said`: what the last commit says."""
        self._splits = {split.number: split for split in splits}
        # (path, length) -> fingerprint, of what was said last
        self._prints = {(each.path, each.start): each.fingerprint for each in said}

    def remainders(self, left: Iterable[Split]) -> tuple[SplitRemainder, ...]:
        """Return what a commit is to say, by number, when this is left to be read.

        Raises OSError for a file that cannot be read; it may be gone if it was read to its end.
        Cost: linear in the splits that are left, and a few reads for each that has moved.
        """
        rest = {split.number: split for split in left}
        done: dict[File, Split] = {}  # the last split of the file, if that is read
        for split in self._splits.values():
            file = split.input, split.path
            if split.number not in rest and (file not in done or split.end > done[file].end):
                done[file] = replace(split, start=split.end)
        said = sorted([*rest.values(), *done.values()], key=lambda split: split.number)
        prints, unread = {(split.path, split.start) for split in said}, {split.path for split in rest.values()}
        self._prints = {
            each: self._prints[each] if each in self._prints else print_of(*each, may_be_gone=each[0] not in unread)
            for each in prints
        }
        return tuple(
            SplitRemainder(
                each.number, each.path, each.start, each.end, self._prints[each.path, each.start],
                each.input, each.skip, each.maxima,
            )
            for each in said
        )

    @property
    def splits(self) -> tuple[Split, ...]:
        """All splits, by number, each with what is to be read of it."""
        return tuple(split for _, split in sorted(self._splits.items()))

    @property
    def to_read(self) -> tuple[Split, ...]:
        """What is still to be read, by number."""
        return tuple(split for _, split in sorted(self._splits.items()) if split.start < split.end)


def resumed_input(said: Iterable[SplitRemainder], found: Iterable[Split]) -> KeptInput:
    """Return what a job reads that goes on from a commit, by what that says and the splits of the files as they are.

    Raises StoreError for files that are not what was read, or that are gone or no input any more though they were not
    read to their end.
    """
    said = tuple(said)
    fresh: dict[File, list[Split]] = {}
    for split in found:
        fresh.setdefault((split.input, split.path), []).append(split)
    kept: dict[File, list[Split]] = {}
    for each in said:
        file = each.input, each.path
        size = fresh[file][-1].end if file in fresh else None
        if size is None:
            check_same_input(each, fresh)
        if size is not None or each.start < each.end:
            check_unchanged(each, size)
        split = Split(each.number, each.path, each.start, each.end, each.input, each.skip, maxima=each.maxima)
        if file in fresh:
            split = replace(split, encoding=fresh[file][0].encoding, compression=fresh[file][0].compression)
        kept.setdefault(file, []).append(split)
    number = max((split.number for splits in kept.values() for split in splits), default=-1) + 1
    result = [split for splits in kept.values() for split in splits]
    for file, splits in fresh.items():
        more = splits if file not in kept else []
        if file in kept:
            last, size = max(kept[file], key=lambda split: split.end), splits[-1].end
            if size > last.end and last.start < last.end:
                result[result.index(last)] = replace(last, end=size)
            elif size > last.end:
                check_ends_line(last)
                more = [replace(last, start=last.end, end=size)]
        for split in more:
            result.append(replace(split, number=number))
            number += 1
    return KeptInput(result, said)


def check_same_input(said: SplitRemainder, fresh: Iterable[File]) -> None:
    """Raise StoreError if a file that is not read as the input that it was is read as another one."""
    if (other := next((name for name, path in fresh if path == said.path), None)) is not None:
        raise StoreError(
            f"{said.path!r} was read as {input_text(said.input)} before, and now as {input_text(other)}. Name it "
            f"as before, or {OVER}."
        )


def input_text(name: str) -> str:
    """Return an input as a sentence has it.

    >>> input_text("orders"), input_text("")
    ("the lines 'orders'", 'lines without a name')
    """
    return f"the lines {name!r}" if name else "lines without a name"


def check_there(unread: Iterable[Split | SplitRemainder]) -> None:
    """Raise StoreError if a file that was not read to its end is gone."""
    for each in unread:
        if not os.path.exists(each.path):
            raise StoreError(f"{place_text(each)}, and is gone. Put the file back, or {OVER}.")


def place_text(unread: Split | SplitRemainder) -> str:
    """Say how far a file was read that has more."""
    return f"{unread.path!r} was read up to byte {unread.start} of {unread.end} at the last checkpoint"


def check_unchanged(said: SplitRemainder, size: int | None) -> None:
    """Raise StoreError unless a file is what was read of it; `size` is None if it is not to be read any more."""
    if size is None:
        check_there([said])
        raise StoreError(
            f"{place_text(said)}, and is not an input now, or is empty. Name it by --lines again, or {OVER}."
        )
    if said.fingerprint == GONE:
        raise StoreError(
            f"{said.path!r} was read to its end and was gone at the checkpoint after that, so the job cannot tell "
            f"whether this is the same file. Remove it if it is, rename it if it is a new file, or {OVER}."
        )
    if size < said.end:
        raise StoreError(f"{said.path!r} has shrunk from at least {said.end} bytes to {size}; {AGAIN}.")
    try:
        found = fingerprint(said.path, said.start)
    except OSError as error:
        raise StoreError(f"Cannot read {said.path!r}: {error.strerror}.") from error
    if found != said.fingerprint:
        raise StoreError(
            f"{said.path!r} has changed in its first {said.start} bytes, which were already read; {AGAIN}."
        )


def check_followed(
    found: Commit, followed: Iterable[tuple[str, str, str]], allow_loss: bool, report: Callable[[str], None]
) -> None:
    """Raise StoreError if bytes of files that are followed were seen, not read, and are gone; `allow_loss`: report it.

    Costs decompressing the copies of files that are not where they were.
    """
    patterns = {name or ONLY_FOLLOWED: pattern for name, pattern, _ in followed}
    lost: list[str] = []
    for portion in found.portions:
        if portion.input in patterns and portion.position is not None:
            source = FollowedFiles(patterns[portion.input], lose=lambda path, size: lost.append(f"{size} of {path!r}"))
            source.open(decode(portion.partition), decode(portion.position)).look()
    if lost and not allow_loss:
        raise StoreError(
            f"Followed files lost bytes that the job had not read: {', '.join(lost)}. Put the files back, or "
            "compressed copies into their folders. --allow-loss continues without these bytes."
        )
    if lost:
        report(f"followed files lost bytes that the job had not read: {', '.join(lost)}")


def check_rotated(
    found: Commit, followed: Iterable[tuple[str, str, str]], allow_loss: bool, report: Callable[[str], None]
) -> None:
    """Check followed files for what happened to them while no job ran: `check_followed` and `check_compressed`."""
    followed = tuple(followed)
    check_followed(found, followed, allow_loss, report)
    check_compressed(found, followed, allow_loss, report)


def check_compressed(
    found: Commit, followed: Iterable[tuple[str, str, str]], allow_loss: bool, report: Callable[[str], None]
) -> None:
    """Raise StoreError if followed files were written and compressed while no job ran; `allow_loss`: report them."""
    if not (found.checkpoint and found.written_at):
        return  # nothing was read, or nobody knows when
    unseen: list[str] = []
    for name, pattern, _ in followed:
        input = name or ONLY_FOLLOWED
        portions = [each.position for each in found.portions if each.input == input and each.position is not None]
        seen = [FilePosition.of(decode(position)) for position in portions]
        unseen += map(repr, unseen_copies(pattern, seen, found.written_at))
    if unseen and not allow_loss:
        raise StoreError(
            "Files were written after the last checkpoint and compressed before the job read them: "
            f"{', '.join(unseen)}. Decompress them in place, then run the same command. --allow-loss continues "
            "without them."
        )
    if unseen:
        report(f"skipping files that were compressed before the job read them: {', '.join(unseen)}")


def check_ends_line(read: Split) -> None:
    """Raise StoreError unless a split that is read ends where a line ends, in a file that is not read as a stream."""
    if TextForm(read.encoding, read.compression).is_streamed:
        raise StoreError(
            f"{read.path!r} was read to its end at byte {read.end} and has grown since, but it can only be "
            "decoded as a whole. Put the new lines into a separate file."
        )
    with open(read.path, "rb") as file:
        file.seek(read.end - 1)
        if file.read(1) not in (b"\n", b"\r"):
            raise StoreError(
                f"{read.path!r} was read to its end at byte {read.end}, and its last line has grown since; {AGAIN}."
            )
