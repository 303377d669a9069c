"""Positions in growing files: enough to find a file again, and to notice missing bytes.

This module also finds the current names of such files, by inode.

A position is stored in checkpoints and travels between workers as a tuple of plain values. Positions of old versions
have three fields: a path, a byte and a digest. Their other fields are unknown. The last field is left out if it is
False, so older versions read such positions.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Self, TypeAlias

from megaflow.errors import SourceError
from megaflow.job.files.file_descriptors import FEW, FLAGS, is_any_free
from megaflow.job.files.splits import find_files
from megaflow.job.formats.compression import has_suffix
from megaflow.job.formats.raw_file import reading
from megaflow.quick_dataclass import dataclass

SAMPLE_BYTES: Final = 256

Position: TypeAlias = tuple[Any, ...]
"""The fields of a FilePosition."""


@dataclass(frozen=True, slots=True)
class FilePosition:
    """A place in a file."""

    path: str = ""  # when the file was read
    offset: int = 0  # bytes read so far; the next line begins there
    tail: str = ""  # digest of the last SAMPLE_BYTES of these
    size: int | None = None  # of the file when it was last looked at, without NULs at its end; None: unknown
    head: str = ""  # digest of the first SAMPLE_BYTES of the file; "": unknown
    target: str = ""  # the path without links when the file was opened; "": the same, or unknown
    is_removed: bool = False  # it had no name any more when it was last looked at, so no name will lead to it again

    @classmethod
    def of(cls, position: Sequence[Any] | None) -> Self:
        """Return the position of a tuple. None: the beginning of a file that was not opened yet."""
        return cls(*(position or ()))

    def as_tuple(self) -> tuple[Any, ...]:
        """Return the position as it is stored."""
        fields = self.path, self.offset, self.tail, self.size, self.head
        if self.is_removed:
            return *fields, self.target, True
        return (*fields, self.target) if self.target else fields


@dataclass(frozen=True, slots=True)
class FirstSight:
    """A new file, as the process that looks for files has seen it. It travels as a tuple of its fields."""

    path: str
    size: int
    changed_ns: int  # time of its last modification
    samples: str  # digest of its first and its last SAMPLE_BYTES; "": they could not be read

    def is_of(self, file: int, path: str) -> bool:
        """Return whether an open file is this one, or has grown from it, as far as that shows. Raises OSError.

        An empty file has only its time: it must still be empty.
        """
        status = os.fstat(file)
        if path != self.path or status.st_size < self.size:
            return False
        if self.samples and not self.size:
            return (status.st_size, status.st_mtime_ns) == (0, self.changed_ns)
        return not self.samples or _samples(file, self.size) == self.samples


def first_sight(path: str, inode: int) -> tuple[Any, ...] | None:
    """Return the FirstSight of a file. None if the path is not that of the inode any longer."""
    try:
        status = os.stat(path)
        if status.st_ino != inode:
            return None
    except OSError:
        return None
    samples = ""
    with suppress(OSError):
        file = os.open(path, FLAGS)
        try:
            status = os.fstat(file)
            samples = _samples(file, status.st_size)
        finally:
            os.close(file)
    return (path, status.st_size, status.st_mtime_ns, samples) if status.st_ino == inode else None


def _samples(file: int, size: int) -> str:
    starts = 0, max(0, size - SAMPLE_BYTES)
    return digest(b"".join(os.pread(file, min(SAMPLE_BYTES, size), start) for start in starts))


def text_of(position: Position) -> str:
    """Return a position as text.

    >>> text_of(("/logs/a", 12, "c2fb4af6b2df2325"))
    'byte 12 of /logs/a'
    """
    place = FilePosition.of(position)
    return f"byte {place.offset} of {place.path}"


def digest(data: bytes) -> str:
    """Return a digest that distinguishes these bytes from others."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def tail_of(path: str, offset: int) -> str | None:
    """Return the digest of the bytes before a place in a file. None if it cannot be read, or is shorter."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, offset - SAMPLE_BYTES))
            data = file.read(min(offset, SAMPLE_BYTES))
    except OSError:
        return None
    return digest(data) if len(data) == min(offset, SAMPLE_BYTES) else None


def targets(path: str, before: str = "") -> list[str]:
    """Return a path with what its links lead to, now and `before`: in each of these folders a rotation may rename it.

    `before` is as `FilePosition.target`. A folder is named once.
    """
    folders = {os.path.realpath(os.path.dirname(each)): each for each in (before, os.path.realpath(path)) if each}
    folders[os.path.realpath(os.path.dirname(path))] = path
    return [path, *(each for each in folders.values() if each != path)] if path else [path]


def device_of(folder: str) -> int | None:
    """Return the device of a folder, None if there is no such folder. A link has the device that it is on."""
    try:
        return os.lstat(folder).st_dev
    except OSError:
        return None


def beside(path: str, inode: int, offset: int, tail: str, before: str = "") -> str | None:
    """Return the path of a file that was renamed within its folder and has the same bytes before the offset, if any.

    If the path is a link, the file may also be in the folder of the link's target, now or `before`: see `targets`.
    """
    entries: list[os.DirEntry[str]] = []
    for each in targets(path, before):
        with suppress(OSError):
            entries += os.scandir(os.path.dirname(each))
    paths = (entry.path for entry in entries if entry.inode() == inode and entry.is_file())
    return next((each for each in paths if not offset or tail_of(each, offset) == tail), None)


class Names:
    """The paths of a pattern's files, by inode, as they were when they were last looked for."""

    def __init__(self, pattern: str, tell: Callable[[str, str], None] = lambda about, text: None) -> None:
        """`tell` reports folders that cannot be searched, from any thread."""
        self._pattern = pattern
        self._tell = tell
        self._told: set[str] = set()  # folders that were reported
        self._paths: dict[int, str] = {}
        self._closed: dict[str, OSError] = {}  # folders that could not be searched, with reasons
        self._due_again = self._due_missing = float("-inf")  # seconds of a clock: the next look, if it finds the inode

    def present(self) -> list[int]:
        """Look for the files now; return their inodes, in the order of their paths."""
        self._paths = found = inodes(self._pattern, self._note_closed)
        return [*found]

    def _note_closed(self, folder: str, error: OSError) -> None:
        if error.errno not in FEW and folder not in self._told:
            self._told.add(folder)
            why = f"{folder!r} cannot be searched: {error.strerror}"
            self._tell(f"files of {folder}", f"{why}. Files in it are not read until this process can search it.")

    def of(self, inode: int, path: str, now: float, found_seconds: float, missing_seconds: float) -> str | None:
        """Return the path of an inode, None if there is none. It is at most so many seconds old.

        If no descriptor is free, the paths are those of the last look: no folder can be searched. Raises SourceError,
        also if a folder cannot be searched in which the file may be. `path`: where it was, "" if that is unknown.
        """
        due = self._due_again if inode in self._paths else self._due_missing
        if now >= due and is_any_free():
            with reading(self._pattern):
                closed: dict[str, OSError] = {}
                self._paths = inodes(self._pattern, closed.__setitem__)
                self._closed = {folder: error for folder, error in closed.items() if error.errno not in FEW}
            self._due_again, self._due_missing = now + found_seconds, now + missing_seconds
        found = self._paths.get(inode)
        for folder, error in self._closed.items() if found is None else ():
            if os.path.join(path or self._pattern, "").startswith(os.path.join(folder, "")):
                raise SourceError(f"{folder!r} cannot be searched: {error.strerror}.") from error
        return found

    def absence(self, inode: int, path: str) -> str:
        """Return in words that no file with this inode was found. `path`: where it was, "" if that is unknown."""
        if path:
            return f"{path!r} is not found"
        return f"No file of {self._pattern!r} has inode {inode}, so it was removed or moved before it was opened"

    def first_sights(self, inodes: Iterable[int]) -> dict[int, tuple[Any, ...]]:
        """Return the FirstSight of each of these files that was there at the last look, and still is."""
        paths = self._paths  # another thread may look
        seen = {inode: first_sight(paths[inode], inode) for inode in inodes if inode in paths}
        return {inode: sight for inode, sight in seen.items() if sight is not None}

    def last(self, inode: int) -> str:
        """Return the path of an inode at the last look, and the inode if there was none."""
        return self._paths.get(inode, f"inode {inode}")


def inodes(pattern: str, closed: Callable[[str, OSError], object] = lambda folder, error: None) -> dict[int, str]:
    """Return the existing files, by inode. `closed` is called as by `find_files`.

    Raises SourceError if two file systems use the same inode number.
    """
    found: dict[int, str] = {}
    devices: dict[int, int] = {}
    for path in matching(pattern, closed=closed):
        with reading(path):
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
        if devices.setdefault(status.st_ino, status.st_dev) != status.st_dev:
            raise SourceError(
                f"{found[status.st_ino]!r} and {path!r} have the same inode number on two file systems, so an input "
                "cannot have both. Narrow the pattern to one file system, and follow the files of the other in an "
                "input or a job of its own."
            )
        found.setdefault(status.st_ino, path)
    return found


def matching(
    pattern: str, compressed: bool = False, closed: Callable[[str, OSError], object] = lambda folder, error: None
) -> list[str]:
    """Return the files that match a pattern, sorted, without those whose suffix says that they are compressed.

    Compressed files do not grow. With `compressed`, return only these. `closed` is called as by `find_files`.
    """
    try:
        return [path for path in find_files(pattern, closed) if has_suffix(path) == compressed]
    except SourceError:  # no file exists yet
        return []
