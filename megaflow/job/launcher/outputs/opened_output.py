"""The open file of an output, its copy at a take-over, and its fingerprints at each length that was made durable.

Before the file is cut back to a length, its bytes before that length are compared with their fingerprint. One thread
writes the file and notes fingerprints. Another thread commits and forgets fingerprints.
"""

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable
from typing import Any, Final, Literal, TextIO, TypeAlias

from megaflow.durable.local_folder import sync_path
from megaflow.own_files import close_own, keep, open_own

STDOUT = 1
STDOUT_NAMES = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")

Mode: TypeAlias = Literal["new", "overwrite", "append", "resume"]
"""How existing content is treated. `new`: it must be empty. `resume`: the store says how many bytes to keep."""

FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC  # at the end, even if another program truncates it
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
TAIL_BYTES: Final = 4096  # covered by a fingerprint
COPY_BYTES: Final = 1 << 20  # copied at a time


class CountedFile(io.FileIO):
    """Raw file that counts the bytes written to it."""

    written = 0

    def write(self, data: Any, /) -> int:
        """Write some of these bytes; return how many, or None if the file would block."""
        count = super().write(data)
        self.written += count or 0
        return count


class OutputFile:
    """An open file, or standard output under one of its names. Each method raises OSError.

    All writes go to the file's end, even if another program truncates it. Otherwise the system would fill the gap
    before the next write with NULs.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_new = not os.path.exists(path)  # created here
        if path in STDOUT_NAMES:
            self.number = keep(os.dup(STDOUT))
        elif self.is_new or os.path.isfile(path):
            self.number = open_own(path, FLAGS, 0o666)
        else:  # a named pipe may wait long for its reader
            self.number = keep(os.open(path, FLAGS, 0o666))
        self._counted = CountedFile(self.number, "w", closefd=False)
        self.stream: TextIO = io.TextIOWrapper(io.BufferedWriter(self._counted), encoding="utf-8", newline="\n")
        self._before = 0  # size before the bytes that are counted
        self.is_regular = path not in STDOUT_NAMES and stat.S_ISREG(os.fstat(self.number).st_mode)
        self._place = os.path.realpath(path)

    def hold(self) -> None:
        """Lock the file until `let_go`. Raises BlockingIOError if another process has it, or had it and removed it.

        On a file system without locks this does nothing; a store, if there is one, has its own lock.
        """
        try:
            fcntl.flock(self.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        if not self.has_its_name():
            raise BlockingIOError(errno.EWOULDBLOCK, "it was removed or replaced a moment ago")
        self._count_from(self.size())

    def close(self) -> None:
        """Unlock and close the file, even if what waits in the stream cannot be written."""
        with contextlib.suppress(OSError):
            fcntl.flock(self.number, fcntl.LOCK_UN)  # even if another process has got the open file
        with contextlib.ExitStack() as stack:
            stack.callback(close_own, self.number)
            self.stream.close()

    def size(self) -> int:
        """Return the size in bytes."""
        return os.fstat(self.number).st_size

    def lost(self) -> int:
        """Return how many bytes other programs have cut off since the last call, by at least one truncation.

        Call it after a flush, while the file is locked.
        """
        size = self.size()
        lost = self._before + self._counted.written - size
        self._count_from(size)
        return max(0, lost)

    @property
    def is_emptied(self) -> bool:
        """Whether another program has cut off all that was written. Costs a system call."""
        return self._before + self._counted.written > 0 and not self.size()

    def _count_from(self, size: int) -> None:
        self._before, self._counted.written = size, 0

    def tail(self, length: int) -> bytes:
        """Return the last bytes before this length, at most TAIL_BYTES."""
        start = max(0, length - TAIL_BYTES)
        with open(f"/proc/self/fd/{self.number}", "rb") as file:  # the same file, even if another now has its name
            return os.pread(file.fileno(), length - start, start)

    def cut(self, length: int) -> None:
        """Shorten the file, and continue at its end. Call it after a flush."""
        os.ftruncate(self.number, length)
        self._count_from(length)

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        os.fsync(self.number)

    def sync_name(self) -> None:
        """Wait until the file's name is on the disk."""
        sync_path(os.path.dirname(os.path.realpath(self.path)))

    def ends_line(self) -> bool:
        """Return whether the file is empty or ends with a newline."""
        with open(self.path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            return file.read(1) in (b"", b"\n")

    def remove(self) -> None:
        """Remove the file's name, unless another file has it now."""
        if self.has_its_name():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.realpath(self.path))

    def has_its_name(self) -> bool:
        """Return whether the file still has the name under which it was opened."""
        try:
            return os.path.samestat(os.stat(self._place), os.fstat(self.number))
        except FileNotFoundError:
            return False

    def is_taken_over(self) -> bool:
        """Return whether another job has locked the file that has the name now."""
        try:
            file = open_own(self._place, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        finally:
            close_own(file)
        return False

    def has_a_name(self) -> bool:
        """Return whether it has any name; without one, all that was written to it is lost."""
        return os.fstat(self.number).st_nlink > 0


class OutputCopy:
    """A copy beside the output file, which takes its name. Each method raises OSError.

    An old launcher may wake up and write its queue to the file that it has open:

    1. The copy has the committed part, and is synced before it takes the name. From then on the old launcher writes to,
       or truncates, a file without a name. The copy takes the name only when the old launcher can no longer commit,
       because its commits refer to the file of that name.
    2. The new launcher may also fall asleep and be replaced by a third one. Its copy must not take the name from the
       third launcher's file. So a launcher makes its copy, empty, before it takes over the store. A launcher that has
       taken over the store first removes all copies but its own. An older launcher then finds no file to rename. (If it
       removes a newer launcher's copy, that launcher stops and nothing else changes.)
    3. All files that have had the name have the same committed content.
    """

    def __init__(self, path: str) -> None:
        """Create the copy, empty and locked."""
        self._path = os.path.realpath(path)
        self._folder, name = os.path.split(self._path)
        self._begin, self._end = f".{name}.", ".next"  # of the names of all copies
        number, self._aside = tempfile.mkstemp(self._end, self._begin, self._folder)
        os.close(number)
        self._number = open_own(self._aside, os.O_RDWR | os.O_APPEND)
        fcntl.flock(self._number, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def take_place(self, number: int, length: int) -> None:
        """Take the file's name, with its first `length` bytes. The descriptor `number` then refers to this copy.

        Costs a copy of the file.
        """
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            if name.startswith(self._begin) and name.endswith(self._end) and path != self._aside:
                os.unlink(path)
        with open(self._path, "rb") as source, open(self._number, "wb", closefd=False) as target:
            shutil.copyfileobj(source, target, COPY_BYTES)
            status = os.fstat(source.fileno())
        os.ftruncate(self._number, length)
        with contextlib.suppress(PermissionError):
            os.fchown(self._number, status.st_uid, status.st_gid)
        os.fchmod(self._number, status.st_mode & 0o777)
        os.fsync(self._number)
        os.rename(self._aside, self._path)
        os.dup2(self._number, number, inheritable=False)
        sync_path(self._folder)

    def close(self) -> None:
        """Close the copy. Remove it, unless it has taken the file's name."""
        close_own(self._number)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._aside)


class WrittenEnds:
    """Fingerprints by length of the file, from the newest commit on."""

    def __init__(self, tail: Callable[[int], bytes]) -> None:
        """`tail` returns the last bytes before a length, at most TAIL_BYTES, or raises OSError."""
        self._tail = tail
        self._lock = threading.Lock()
        self._found: dict[int, str] = {}

    def note(self, length: int) -> int:
        """Note the fingerprint of the bytes before this length; return the length. Costs a read of TAIL_BYTES."""
        self.learn(length, self._now(length))
        return length

    def learn(self, length: int, fingerprint: str) -> None:
        """Note the fingerprint that a store records for a length."""
        with self._lock:
            self._found[length] = fingerprint

    def fingerprint(self, length: int) -> str:
        """Return the fingerprint for a length; "" if there is none."""
        with self._lock:
            return self._found.get(length, "")

    def is_as_noted(self, length: int) -> bool:
        """Return whether the bytes before this length still have the noted fingerprint. True if none was noted."""
        noted = self.fingerprint(length)
        return not noted or self._now(length) == noted

    def forget_before(self, length: int) -> None:
        """Forget all shorter lengths."""
        with self._lock:
            self._found = {each: found for each, found in self._found.items() if each >= length}

    def _now(self, length: int) -> str:
        tail = self._tail(length)
        return hashlib.blake2b(tail, digest_size=12).hexdigest() if tail else ""
