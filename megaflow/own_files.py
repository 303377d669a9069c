"""Open files of this process alone: locks, outputs, pipes and sockets. A fork gets the null device in their place.

A fork shares each open file of its parent. A lock or a port is then in use until both have closed the file, and an
unlock in the fork takes the lock from both. The reader of a pipe or connection finds no end before both have closed it.
Text in a buffer is written twice.

1. In a fork the null device takes the place of these files before the fork goes on. Their numbers stay taken. So code
   of the fork that still knows a number, such as a stream with text in its buffer, reaches no other file.
2. A thread may fork at any moment. So a file is opened and noted, or forgotten and closed, while no thread can fork.
   To open a named pipe may take long: open that first, and `keep` it then.
3. A process that another thread starts by `subprocess` closes all files when its program begins. If it is given a
   `preexec_fn`, it counts as a fork before that. `handing_on` lets such a process have the files that it is to inherit.
4. The null device is opened in the fork, which may have no room for another file, so one of the files makes room.
5. A socket knows whether it is closed, so it need not be forgotten.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Final
from weakref import WeakSet

_numbers: Final[set[int]] = set()
_sockets: Final[WeakSet[socket.socket]] = WeakSet()
_no_fork: Final = threading.RLock()  # held by a thread that forks, and by one that changes `_numbers`
_handed: Final = threading.local()  # its `files` are those that processes started by this thread inherit


def open_own(path: str | os.PathLike[str], flags: int, mode: int = 0o777, folder: int | None = None) -> int:
    """Open a file as `os.open` does, for this process alone. Close it by `close_own`. Raises OSError."""
    with _no_fork:
        return keep(os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=folder))


def keep(file: int) -> int:
    """Keep an open file from forks; return its number."""
    with _no_fork:
        _numbers.add(file)
    return file


def own_pipe() -> tuple[int, int]:
    """Open a pipe as `os.pipe` does, for this process alone. Close both ends by `close_own`. Raises OSError."""
    with _no_fork:
        reading, writing = os.pipe()
        return keep(reading), keep(writing)


def keep_socket(file: socket.socket) -> socket.socket:
    """Keep a socket from forks; return it."""
    with _no_fork:
        _sockets.add(file)
    return file


def forget(file: int) -> None:
    """Let forks have a file again, which its owner is about to close."""
    with _no_fork:
        _numbers.discard(file)


def close_own(file: int) -> None:
    """Close a file of this process. Raises OSError."""
    with _no_fork:
        forget(file)
        os.close(file)


@contextlib.contextmanager
def handing_on(*files: int) -> Iterator[None]:
    """Let the processes that this thread starts during the block inherit these files."""
    _handed.files = files
    try:
        yield
    finally:
        _handed.files = ()


def _give_up() -> None:
    """Put the null device in place of this process's files in a fork."""
    try:
        files = _numbers.difference(getattr(_handed, "files", ()))
        files |= {file.fileno() for file in _sockets} - {-1}
        _numbers.clear()
        _sockets.clear()
        if files:
            os.close(first := files.pop())
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            for file in (files | {first}) - {null}:
                os.dup2(null, file, inheritable=False)
            if null != first:
                os.close(null)
    finally:
        _no_fork.release()


os.register_at_fork(before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_give_up)
