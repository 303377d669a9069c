"""The bytes of one growing file, and the place up to which a reader has read them.

The rules are those of `followed_files`, which makes records of the bytes.
"""

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from megaflow.errors import SourceError
from megaflow.job.files.file_descriptors import FileDescriptors, OwnDescriptor, is_any_free
from megaflow.job.files.file_position import (
    SAMPLE_BYTES,
    FilePosition,
    FirstSight,
    Names,
    Position,
    beside,
    device_of,
    digest,
)
from megaflow.job.files.rotated_copy import RotatedCopy, find_copy
from megaflow.job.formats.raw_file import WrittenPart, reading

POLL_SECONDS: Final = 0.25  # between checks of a file that had nothing new
FIND_SECONDS: Final = 1.0  # between searches for new files
DELETED_SECONDS: Final = 5.0  # for which a program may still write to a removed file


class Source(Protocol):
    """What all files of a pattern share."""

    pattern: str
    names: Names
    descriptors: FileDescriptors
    tell: Callable[[str, str], None]  # reports to the user
    lose: Callable[[str, int], None]  # reports unread bytes of a path that are gone
    decides: Callable[[], bool]  # whether this process looks for files, so that what it finds is right
    now: Callable[[], float]  # seconds of a monotonic clock


class GrowingFile:
    """A file by its inode, or its compressed copy; open if it was found and may not be closed meanwhile."""

    def __init__(self, files: Source, inode: int, position: Position | None) -> None:
        """`position` may have been noted by another process. No file is opened."""
        self.inode, self._files = inode, files
        seen = FilePosition.of(position)
        self.path, self.target = seen.path, seen.target
        self.lives = 0  # times that it has begun again
        self._offset, self._digest = seen.offset, seen.tail
        self._tail = b""  # the bytes before `_offset`
        self._size = seen.size  # when it was last looked at, without the NULs at the end
        self._written = WrittenPart(seen.offset)  # of the open file
        self._head = seen.head
        self._is_removed = seen.is_removed
        self._held = OwnDescriptor(files.descriptors)
        self._copy: RotatedCopy | None = None  # read in place of the file
        self._is_first_look = position is not None  # of this reader
        self._moved = position is not None  # it may have been renamed since
        self._is_compressed = False  # if so, it is not read
        self._gone = 0  # unread bytes that no process finds
        self._is_let_go = False  # it was removed and let go: see rule 4
        self._compares = False  # it must compare what it finds, as another file may have its inode here: see rule 12
        self._sight: FirstSight | None = None  # to compare it with if nothing was read
        self._unlike = ""  # why what it has found is another file
        self._folder: tuple[str, int | None] = "", None  # of the file when it was opened, without links, and its device
        self._folder_due = float("-inf")  # seconds of the clock: when to look at the folder again
        self._let_go_at: float | None = None  # seconds of the clock; None: no need to, or it has something new

    @property
    def _is_open(self) -> bool:
        return self._held.file >= 0 or self._copy is not None

    def _is_ready(self) -> bool:
        """Return whether the file or its copy is open, or can be opened."""
        if self._is_open:
            return True
        if not self._held.is_quiet:
            return self._find()
        if not self._held.take():
            self._digest, self._moved = digest(self._tail), True
            if not (self._held.has_changed(self.path) and self._find()):
                return False
        self._held.state = ()
        return True

    def close(self) -> None:
        """Close the file, or its copy."""
        self._held.close()
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def look(self) -> None:
        """Check whether the file or its copy exists. Calls `lose` if unread bytes are gone. Raises SourceError."""
        if not self._find():
            if self._held.refusal and (self._offset or self._head):
                raise SourceError(f"{self._held.refusal}.")
            if not self._held.refusal:
                self._lose()
        self.close()

    def bytes_at(self, start: int, size: int) -> bytes:
        """Return some bytes of the open file. Raises SourceError."""
        if self._copy is not None:
            return self._copy.bytes_at(start, size)
        with reading(self.path):
            return os.pread(self._held.file, size, start)

    def written_at(self, start: int, size: int) -> bytes:
        """Return some bytes, without NULs at the end of the file, which a program may still fill. Raises SourceError.
        """
        return self.bytes_at(start, size if self._copy is not None else max(0, min(size, (self._size or 0) - start)))

    def _find(self) -> bool:
        """Open the file under its current name. Return whether it exists and can be opened."""
        self._held.refusal = self._unlike = ""
        renamed = None
        if self._moved and not self._is_removed:
            renamed = beside(self.path, self.inode, self._offset, self._digest, self.target)
        named = self._files.names.of(self.inode, self.path, self._files.now(), FIND_SECONDS, POLL_SECONDS)
        for path in filter(None, (named, renamed)):
            with reading(path):
                try:
                    if not self._held.open(path, self._files.now(), self._files.tell):
                        return False
                except FileNotFoundError:
                    continue
                status = os.fstat(self._held.file)
            is_it = status.st_ino == self.inode and stat.S_ISREG(status.st_mode)
            if is_it and not self._is_unlike(path, status.st_size):
                self._moved, self._let_go_at = False, None
                self._tail = self._tail_at(self._offset)
                if self._is_removed or self._is_other(status.st_size):
                    if self._open_copy():
                        return True
                    self._begin_anew()
                self.path, self._is_first_look, self._gone, self._compares = path, False, 0, False
                self.target = "" if (target := os.path.realpath(path)) == path else target
                folder = os.path.dirname(target)
                self._folder = folder, device_of(folder)
                self._written = WrittenPart(self._offset)
                self._note_size(status.st_size)
                return True
            self.close()
        self._held.waits_since = None
        if self._held.is_quiet:
            self._miss()
        return self._open_copy()

    def expect_sight(self, sight: Sequence[Any] | None) -> None:
        """Compare what is found first with the position, or with a FirstSight if nothing was read; see rule 12."""
        self._compares, self._sight = True, None if sight is None else FirstSight(*sight)

    def _is_unlike(self, path: str, size: int) -> bool:
        """Return whether the open file, of this size, is to be compared and is another one. Raises SourceError."""
        if not self._compares or self._files.decides():
            return False
        if self._offset or (self._size and self._head):
            self._tail = self._tail_at(self._offset)
            is_same = not self._is_other(size)
        else:
            with reading(path):
                is_same = self._sight is None or self._sight.is_of(self._held.file, path)
        self._unlike = "" if is_same else f"{path!r} is another file than the job has found with inode {self.inode}"
        return not is_same

    def _miss(self) -> None:
        """Forget the position of a closed file that is not found, after a while: its inode may get a new file."""
        if not is_any_free():
            return
        now = self._files.now()
        self._let_go_at = now + DELETED_SECONDS if self._let_go_at is None else self._let_go_at
        if now >= self._let_go_at:
            self._size = max(self._size or 0, self._held.known)
            self._begin_anew()
            self._moved, self._is_let_go = False, True

    def _is_other(self, size: int) -> bool:
        """Return whether the open file, of this size, has other bytes than those read or seen."""
        if self._offset and (size < self._offset or digest(self._tail) != self._digest):
            return True
        head = self.bytes_at(0, min(self._size or 0, SAMPLE_BYTES))
        if self._offset and head and not head.strip(b"\0"):
            return False  # a hole is punched into what was read, as some rotations do
        return bool(self._head) and digest(head) != self._head

    def _open_copy(self) -> bool:
        """Open the file's compressed copy, if this is the reader's first look. Return whether there is a copy.

        A copy of a removed file has no more than was seen of the file.
        """
        is_first, self._is_first_look = self._is_first_look, False
        if not is_first or (self._is_removed and (self._size or 0) <= self._offset):
            return False
        copy = find_copy(FilePosition(self.path, self._offset, self._digest, self._size, self._head, self.target))
        if copy is not None:
            self.close()
            self._copy, self.path, self.target, self._compares = copy, copy.path, "", False
            self._tail = self._tail_at(self._offset)
        return copy is not None

    def _lose(self) -> None:
        """Report the bytes of the file that were seen, not read, and are gone."""
        if self._size is not None and self._size > self._offset and not self._is_compressed:
            self._files.lose(self.path, self._size - self._offset)
            self._size = self._offset

    def _tail_at(self, offset: int) -> bytes:
        return self.bytes_at(max(0, offset - SAMPLE_BYTES), min(offset, SAMPLE_BYTES))

    def _note_size(self, size: int) -> None:
        """Note up to where the open file, of this size, is written; see rule 7."""
        size = self._written.find_end(self.bytes_at, size)
        if not self._head or (size != self._size and (self._size or 0) < SAMPLE_BYTES):
            self._head = digest(self.bytes_at(0, min(size, SAMPLE_BYTES)))
        self._size = size

    def _is_replaced(self, device: int) -> bool:
        """Return whether a file on another volume has the open file's inode number now, see rule 11. If so, report it.

        `device`: that of the open file.
        """
        if self._let_go_at is None and self._files.now() < self._folder_due:
            return False
        self._folder_due = self._files.now() + FIND_SECONDS
        folder, before = self._folder
        if device_of(folder) == before:
            return False
        with suppress(OSError, SourceError):  # it is removed meanwhile, or cannot be searched for
            path = self._files.names.of(self.inode, self.path, self._files.now(), FIND_SECONDS, POLL_SECONDS)
            if path is None or (now := os.stat(path).st_dev) == device:
                return False
            self._files.tell(
                f"volume {now} of {path}",
                f"{path!r} is on another volume than the file that was read with the same inode number, {self.path!r}. "
                f"It is read once the old file has had nothing new for {DELETED_SECONDS:.0f} seconds: from its "
                "beginning, unless it has the bytes that were read.",
            )
            return True
        return False

    def _let_go(self, has_unread: bool, is_removed: bool) -> bool:
        """Close a file that is removed or replaced, after a while. Return whether its last line must be read first."""
        now = self._files.now()
        if self._let_go_at is None:
            self._let_go_at = now + DELETED_SECONDS
            self._held.goes_on()  # it will release its descriptor
        if now < self._let_go_at:
            return False
        if has_unread:
            return True
        self._digest = digest(self._tail)
        self.close()
        if is_removed:
            self._begin_anew()
        self._is_let_go = is_removed
        self._moved = not is_removed  # no file in its folder is a removed one
        return False

    def _begin_anew(self) -> None:
        """Forget the position: the file has other bytes, or its inode another file."""
        self._lose()
        self._offset, self._tail, self._digest, self._size, self._head = 0, b"", "", None, ""
        self._written = WrittenPart(0)
        self._held.state, self._is_compressed, self._is_removed, self.lives = (), False, False, self.lives + 1
