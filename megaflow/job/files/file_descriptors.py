"""File descriptors of the followed files of one process, for jobs that follow more files than a process may open.

1. The first files take descriptors below the soft limit, and leave a reserve to everything else in the process. The
   others lie above it, up to the hard limit. The soft limit is raised only while such a descriptor is made: the system
   compares it with new descriptors only. So processes that the program starts get the old limit, no matter how they are
   started, and its own files stay small enough for `select`. There is one exception: a process that another thread
   starts within these microseconds gets the hard limit as its soft limit.
2. If both regions are full, the file that has been quiet for longest is closed. A file is quiet if everything in it was
   read: no reader uses its descriptor, which lies here until the reader takes it back. The other files stay open.
3. If no file is quiet, a reader waits until one is. If all open files wait for the ends of their lines, waiting does
   not help. Then files also get the reserve, except its last LAST descriptors: without these, no folder can be listed,
   and its files would seem to be removed. After that, the limit is reported.

Workers of one process share this object. Each method may be called by any of them.
"""

import errno
import fcntl
import os
import resource
from collections.abc import Callable
from threading import Lock
from typing import Final

from megaflow.errors import LimitReached, SourceError
from megaflow.job.formats.raw_file import may_be_open_elsewhere
from megaflow.job.limits import limit_text

RESERVE: Final = 256  # descriptors below the soft limit for everything else; at most half of them
LAST: Final = 8
WAIT_SECONDS: Final = 10.0  # for a descriptor, before the user learns of it
FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
FEW: Final = (errno.EMFILE, errno.ENFILE)


class FileDescriptors:
    """Descriptors by the reader that has opened them."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the others
        self._used: set[object] = set()  # readers that read, or will read more
        self._stuck: set[object] = set()  # readers that wait for the end of a line
        self._quiet: dict[object, tuple[float, int]] = {}  # reader -> seconds since when, descriptor

    def open(self, reader: object, path: str) -> int | None:
        """Open a file. Return None if no descriptor is free now; then the reader must try again later.

        Raises OSError if the file cannot be opened, and LimitReached if no descriptor will become free.
        """
        with self._lock:
            file, error = _opened(path)
            if self._quiet and not _is_spare(file, RESERVE):
                if file >= 0:
                    os.close(file)
                quietest = min(self._quiet, key=lambda each: self._quiet[each][0])
                os.close(self._quiet.pop(quietest)[1])
                file, error = _opened(path)
            elif not _is_spare(file, RESERVE if self._used else LAST):
                if file >= 0:
                    os.close(file)
                file = -1
            if file >= 0:
                self._used.add(reader)
                return file
            if not self._used:
                raise LimitReached(_limit_text(path, error)) from error
            return None

    def take(self, reader: object) -> int:
        """Return the descriptor of a quiet reader, which uses it from now on. -1 if it was closed."""
        with self._lock:
            _, file = self._quiet.pop(reader, (0.0, -1))
            if file >= 0:
                self._used.add(reader)
            return file

    def rest(self, reader: object, file: int, since: float) -> None:
        """Take over the descriptor of a reader that has been quiet since then, in seconds; it may be closed."""
        with self._lock:
            self._used.discard(reader)
            self._stuck.discard(reader)
            self._quiet[reader] = since, file

    def stick(self, reader: object, is_stuck: bool) -> None:
        """Note whether the end of a line is missing before the reader can read more. It keeps its descriptor."""
        with self._lock:
            (self._used.discard if is_stuck else self._used.add)(reader)
            (self._stuck.add if is_stuck else self._stuck.discard)(reader)

    def close(self, reader: object, file: int) -> None:
        """Close the descriptor of a reader, -1 if it is quiet or has none."""
        with self._lock:
            self._used.discard(reader)
            self._stuck.discard(reader)
            for each in (file, self._quiet.pop(reader, (0.0, -1))[1]):
                if each >= 0:
                    os.close(each)


class OwnDescriptor:
    """The descriptor of one reader. One writer: the reader."""

    def __init__(self, shared: FileDescriptors) -> None:
        self.file = -1  # -1: it has none, or the file is quiet
        self.state: tuple[int, ...] = ()  # of the file when it became quiet; empty: it is not quiet
        self.known = 0  # size of the quiet file when it was last looked at
        self.waits_since: float | None = None  # seconds of the clock; None: it does not wait for a descriptor
        self.refusal = ""  # why this process cannot open the file, which is there; "": it has not tried, or can
        self.refused_path = ""
        self.refused_size: int | None = None  # of that file, in bytes, if known
        self._shared = shared
        self._quiet_since: float | None = None  # seconds of the clock; None: it had something new

    @property
    def is_quiet(self) -> bool:
        """Whether everything in the file was read when it was last open, so that it may be closed."""
        return bool(self.state)

    def open(self, path: str, now: float, tell: Callable[[str, str], None]) -> bool:
        """Open a file. Return False if it must wait for a descriptor, or is not to be opened here: see `refusal`.

        `tell` reports a long wait. Raises the other errors of `FileDescriptors.open`.
        """
        try:
            file = self._shared.open(self, path)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or not may_be_open_elsewhere(error):
                raise
            self.waits_since = None
            self._note_refusal(path, f"{path!r} cannot be opened: {error.strerror}")
            return False
        if file is not None:
            self.file, self.waits_since = file, None
            return True
        self.wait(now, tell, f"{path!r} waits to be opened: as many files are open as the limit allows, and all have "
                             "unread lines")  # fmt: skip
        return False

    def refuse(self, path: str, error: SourceError) -> bool:
        """Note that reading the open file has failed. Return whether another process may be able to read it."""
        self._note_refusal(path, str(error).rstrip("."))
        return may_be_open_elsewhere(error.__cause__)

    def _note_refusal(self, path: str, why: str) -> None:
        self.refusal, self.refused_path, self.refused_size = why, path, next(iter(_state_of(path)[2:]), None)

    def has_to_wait(self, pattern: str, now: float, tell: Callable[[str, str], None]) -> bool:
        """Return whether a file was not found or opened because no descriptor is free; report a long wait."""
        if not (self.is_quiet or is_any_free()):  # the state of a quiet file is known without a descriptor
            self.wait(now, tell, f"The files of {pattern!r} cannot be looked for: no descriptor is free")
        return self.waits_since is not None

    def wait(self, now: float, tell: Callable[[str, str], None], why: str) -> None:
        """Wait for a descriptor; report the reason if that takes long."""
        self.waits_since = now if self.waits_since is None else self.waits_since
        if now - self.waits_since >= WAIT_SECONDS:
            tell("descriptors of followed files", f"{why}. Raise the limit, as with ulimit -n.")

    def take(self) -> bool:
        """Take the descriptor of a quiet file back. Return False if the file was closed."""
        self.file = self._shared.take(self)
        return self.file >= 0

    def has_changed(self, path: str) -> bool:
        """Return whether a quiet file that was closed differs from its last state, or has another path."""
        state = _state_of(path)
        if state[:2] == self.state[:2]:
            self.known = state[2]
        return state != self.state

    def rest(self, offset: int, has_unfinished: bool, is_unread: bool, now: float) -> None:
        """Let the file be closed if it has no more bytes than those before `offset`, and no unfinished line.

        `is_unread`: the file is not to be read at all, so it may be closed in any case.
        """
        self._quiet_since = now if self._quiet_since is None else self._quiet_since
        state = _state_of(self.file)
        if has_unfinished and not is_unread:
            self._shared.stick(self, True)
        elif is_unread or state[2] <= offset:
            self._shared.rest(self, self.file, self._quiet_since)
            self.file, self.state, self.known = -1, state, state[2]

    def goes_on(self) -> None:
        """Note that the file has something new."""
        self._quiet_since = None
        self._shared.stick(self, False)

    def close(self) -> None:
        """Close the file."""
        self._shared.close(self, self.file)
        self.file = -1


def is_any_free() -> bool:
    """Return whether a descriptor is free. If none is, no folder can be searched, and its files seem to be missing."""
    try:
        os.close(os.open(os.devnull, FLAGS))
    except OSError as error:
        if error.errno not in FEW:
            raise
        return False
    return True


def _state_of(file: int | str) -> tuple[int, ...]:
    """Return the device, the inode, the size and the times of change of a file, by descriptor or path. () if none."""
    try:
        status = os.stat(file)
    except OSError:  # opening it reports why
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _opened(path: str) -> tuple[int, OSError | None]:
    """Open a file, above the soft limit if few descriptors below it are free. Return -1 and the error if none is free.

    Raises other errors.
    """
    try:
        file = os.open(path, FLAGS)
    except OSError as error:
        if error.errno not in FEW:
            raise
        above = _above(lambda soft: os.open(path, FLAGS))
        return (-1, error) if above is None else (above, None)
    if _is_spare(file, RESERVE):
        return file, None
    above = _above(lambda soft: fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, soft))
    if above is not None:
        os.close(file)
    return file if above is None else above, None


def _above(make: Callable[[int], int]) -> int | None:
    """Return a descriptor that is made while the soft limit, which is passed, is as high as the hard one.

    None if there is no room above the soft limit. Raises other errors.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return make(soft)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in (*FEW, errno.EINVAL, errno.EPERM):
            raise
        return None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _is_spare(file: int, reserve: int) -> bool:
    """Return whether a descriptor is not one of so many below the soft limit, at most half of all. -1 is none."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return file >= 0 and (soft == resource.RLIM_INFINITY or not soft - min(reserve, soft // 2) <= file < soft)


def _limit_text(path: str, error: OSError | None) -> str:
    """Return why a followed file cannot be opened, and what to do."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if error is not None and (error.errno == errno.ENFILE or hard == resource.RLIM_INFINITY):
        return f"Cannot follow {path!r}: {limit_text(error)}"
    return (
        f"Cannot follow {path!r}: a process may have {hard} files open. As many are in use, and each followed file "
        "among them ends in an unfinished line or reserved space, so none is closed. Raise the limit, as with ulimit "
        f"-n {2 * hard}."
    )
