"""Positions in files that grow: enough to find a file again, and to notice bytes that are gone.

Also the names that such files have now, by inode.

A position stands in checkpoints and travels between workers as a tuple of plain values. The first positions had three:
a path, a byte and a digest. Their other fields are not known.
"""

import hashlib
import os
from collections.abc import Sequence
from typing import Any, Final, Self, TypeAlias

from megaflow.errors import SourceError
from megaflow.job.compression import has_suffix
from megaflow.job.splits import find_files
from megaflow.quick_dataclass import dataclass

SAMPLE_BYTES: Final = 256

Position: TypeAlias = tuple[Any, ...]
"""The fields of a FilePosition."""


@dataclass(frozen=True, slots=True)
class FilePosition:
    """A place in a file."""

    path: str = ""  # when it was read
    offset: int = 0  # bytes that were read: the next line begins there
    tail: str = ""  # digest of the last SAMPLE_BYTES of these
    size: int | None = None  # bytes that the file had when it was looked at last; None: not known
    head: str = ""  # digest of the first SAMPLE_BYTES of the file

    @classmethod
    def of(cls, position: Sequence[Any] | None) -> Self:
        """Return what a position says; None: the beginning of a file that was not opened yet."""
        return cls(*(position or ()))

    def as_tuple(self) -> tuple[Any, ...]:
        """Return the position as it is kept."""
        return self.path, self.offset, self.tail, self.size, self.head


def text_of(position: Position) -> str:
    """Return how a position is shown.

    >>> text_of(("/logs/a", 12, "c2fb4af6b2df2325"))
    'byte 12 of /logs/a'
    """
    place = FilePosition.of(position)
    return f"byte {place.offset} of {place.path}"


def digest(data: bytes) -> str:
    """Return what tells some bytes from others."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def tail_of(path: str, offset: int) -> str | None:
    """Return the digest of what precedes a place in a file; None if it cannot be read, or is shorter."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, offset - SAMPLE_BYTES))
            data = file.read(min(offset, SAMPLE_BYTES))
    except OSError:
        return None
    return digest(data) if len(data) == min(offset, SAMPLE_BYTES) else None


def beside(path: str, inode: int, offset: int, tail: str) -> str | None:
    """Return the path of a file that was renamed within its folder, with the same bytes before the offset."""
    try:
        entries = [*os.scandir(os.path.dirname(path))]
    except OSError:
        return None
    paths = (entry.path for entry in entries if entry.inode() == inode and entry.is_file())
    return next((each for each in paths if tail_of(each, offset) == tail), None)


def inodes(pattern: str) -> dict[int, str]:
    """Return the files that there are now, by inode. Raises SourceError if two file systems give them the same ones."""
    found: dict[int, str] = {}
    devices: dict[int, int] = {}
    for path in matching(pattern):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SourceError(f"Cannot read {path!r}: {error.strerror}.") from error
        if devices.setdefault(status.st_ino, status.st_dev) != status.st_dev:
            raise SourceError(
                f"{found[status.st_ino]!r} and {path!r} have the same inode number on two file systems. Follow "
                "them as two named inputs."
            )
        found.setdefault(status.st_ino, path)
    return found


def matching(pattern: str) -> list[str]:
    """Return the files that a pattern stands for, sorted; compressed ones, which do not grow, are left out."""
    return [path for path in _files(pattern) if not has_suffix(path)]


def compressed(pattern: str) -> list[str]:
    """Return the files that `matching` leaves out, sorted."""
    return [path for path in _files(pattern) if has_suffix(path)]


def _files(pattern: str) -> list[str]:
    try:
        return find_files(pattern)
    except SourceError:  # there is none yet
        return []
