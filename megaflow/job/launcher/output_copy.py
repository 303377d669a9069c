"""A copy of the output file that takes the file's name, because an old launcher may wake up and write its queue.

1. The copy has the committed part, and is synced before it takes the name. Whatever the old launcher writes or cuts off
   from then on is in a file without a name. At that time it can no longer commit. Until then the file stays, since the
   old launcher's commits refer to it.
2. The new launcher may also fall asleep and be replaced by a third one. Its copy must not take the name from the third
   launcher's file. So a launcher makes its copy, empty, before it takes over the store. A launcher that has taken over
   the store first removes all copies but its own. An older launcher then finds no file to rename. (If it removes a
   newer launcher's copy, that launcher stops and nothing else changes.)
3. All files that have had the name have the same committed content.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from typing import Final

COPY_BYTES: Final = 1 << 20  # at a time


class OutputCopy:
    """A file beside the output's. Each method raises OSError."""

    def __init__(self, path: str) -> None:
        """Make it, empty and locked."""
        self._path = os.path.realpath(path)
        self._folder, name = os.path.split(self._path)
        self._begin, self._end = f".{name}.", ".next"  # of the names of all copies
        self._number, self._aside = tempfile.mkstemp(self._end, self._begin, self._folder)
        fcntl.flock(self._number, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def take_place(self, number: int, length: int) -> None:
        """Take the file's name, with so many of its bytes; the descriptor of the file is this one's then.

        Costs a copy of these bytes.
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
        fcntl.fcntl(self._number, fcntl.F_SETFL, os.O_APPEND)
        os.dup2(self._number, number, inheritable=False)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Let go of it; it is removed unless it has taken the file's place."""
        os.close(self._number)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._aside)
