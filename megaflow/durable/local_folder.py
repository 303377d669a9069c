"""The folder of a store on this machine's file system: one user's only, and one launcher's at a time.

1. The folder has mode 0700, its files 0600. One that is not empty must be a store already, or what is left of one that
   had not begun: a lock, and, where another store was being copied there, segments.
2. It stays open while it is used: the system tells a failed sync to those who had the folder open when it happened.
3. The lock is the operating system's, on the file LOCK, which is never removed. It goes with the process that holds it,
   however that ends; the file says which one that was.
4. The lock keeps two launchers of one machine apart, so that the second is told before anything happens. Where it does
   not reach (some network file systems), the fence does: see `store`, rule 1.
5. A launcher that takes the store over from one that does not answer locks NEXT_LOCK, which keeps a second one out.
   LOCK is left alone while the newer launcher may still be refused: the older one may be healthy. Once the commit that
   fences the older launcher is durable, `take_lock_over` gives NEXT_LOCK the name LOCK. If the older launcher wakes up
   it holds a lock without a name. A launcher that is killed in between leaves LOCK to the older one, until that ends.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from megaflow.durable.commits import COMMIT_NAME
from megaflow.durable.incarnation import COMMIT_FILE, SEGMENT_FILE
from megaflow.durable.segments import SEGMENT_NAME
from megaflow.errors import StoreError
from megaflow.quick_dataclass import dataclass

LOCK: Final = "lock"
NEXT_LOCK: Final = "lock.next"  # while a store is taken over
SPARK: Final = "spark"  # the folder with the records of Spark's queries
_LOCK_BYTES_MAX: Final = 4096
_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, as its file says."""

    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host!r}"


class LocalFolder:
    """A folder of this machine. Not for a forked process: it would have the same lock."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a folder that is there; raises OSError."""
        self.path = os.fspath(path)
        self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock: int | None = None  # open while it is held
        self._is_next = False  # whether that is NEXT_LOCK
        self.taken_from: Holder | None = None  # who has LOCK, or had it, if that is known; None: nobody
        self._open: dict[str, int] = {}  # file -> descriptor, of those that are kept open

    def close_folder(self) -> None:
        """Let go of the folder, of the files that are kept open, and of the lock if it is held."""
        if self._is_next:
            with contextlib.suppress(OSError):
                self.remove(NEXT_LOCK)
        os.close(self._folder)
        self._let_go()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def hold(self, take_over: bool = False) -> None:
        """Take the lock, until `close_folder`.

        `take_over`: if another launcher has it, keep others from taking it over until `take_lock_over`, which does.
        Raises StoreError naming who has it.
        """
        try:
            self._lock, holder = self._locked(LOCK)
            if self._lock is None and take_over:
                self.taken_from = holder
                self._lock, holder = self._locked(NEXT_LOCK)
                self._is_next = self._lock is not None
            if self._lock is not None:
                os.ftruncate(self._lock, 0)
                os.pwrite(self._lock, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
                return
        except OSError as error:
            remedy = "" if error.errno in _DISK else "; keep the store on a local file system"
            raise StoreError(f"the store {self.path} cannot be locked: {error.strerror}{remedy}") from error
        by = "" if holder is None else f" by {holder}"
        raise StoreError(
            f"the store {self.path} is in use{by}: wait until that job ends, or name another folder; if that job no "
            "longer responds, --take-over continues it here"
        )

    def take_lock_over(self) -> None:
        """Have the lock, if `hold` has left it to another launcher, which cannot commit any more. Raises OSError."""
        if self._is_next:
            os.rename(NEXT_LOCK, LOCK, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            self._is_next = False
            self._let_go()  # from now on nobody else removes anything

    def _locked(self, name: str) -> tuple[int | None, Holder | None]:
        """Open a file, which is made if there is none, and lock it; return None and who has it if it is locked."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(name, flags, 0o600, dir_fd=self._folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(name, dir_fd=self._folder)):
                return lock, None
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.ENOENT):
                os.close(lock)
                raise
        holder = _holder(lock)  # or it has been replaced
        os.close(lock)
        return None, holder

    def keep_open(self, names: Iterable[str]) -> None:
        """Open these files, and no others, until `close_folder`: they can be read though they are removed.

        Raises FileNotFoundError with the name of one that is not there, and then none is kept open.
        """
        self._let_go()
        try:
            for name in names:
                self._open[name] = self._open_to_read(name)
        except OSError:
            self._let_go()
            raise

    @property
    def opened(self) -> tuple[tuple[str, int], ...]:
        """The files that are kept open, by name, and their descriptors."""
        return tuple(self._open.items())

    def adopt(self, opened: Iterable[tuple[str, int]]) -> None:
        """Keep these open, which another process has opened."""
        self._open.update(opened)

    def _let_go(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _open_to_read(self, name: str) -> int:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._folder)

    def create(self, name: str) -> int:
        """Make a new file and return its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(name, flags, 0o600, dir_fd=self._folder)

    def write(self, file: int, data: bytes) -> None:
        """Add bytes to an open file."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]

    def sync(self, file: int) -> None:
        """Wait until an open file is on the disk."""
        os.fsync(file)

    def close(self, file: int) -> None:
        """Close a file."""
        os.close(file)

    def link(self, name: str, new: str) -> None:
        """Give a file another name; raises FileExistsError."""
        try:
            os.link(name, new, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise OSError(error.errno, "its file system has no hard links; choose another one", new) from error
            raise

    def remove(self, name: str) -> None:
        """Take a name away."""
        os.unlink(name, dir_fd=self._folder)

    def sync_names(self) -> None:
        """Wait until names are on the disk."""
        os.fsync(self._folder)

    def lengths(self) -> dict[str, int]:
        """Return the files and their lengths, but the lock's."""
        found = {}
        for name in os.listdir(self._folder):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                status = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and name not in (LOCK, NEXT_LOCK):
                    found[name] = status.st_size
        return found

    def read(self, name: str, start: int, length: int | None) -> bytes:
        """Return bytes of a file."""
        kept = self._open.get(name)
        file = self._open_to_read(name) if kept is None else kept
        try:
            wanted = os.fstat(file).st_size - start if length is None else length
            parts = []
            while wanted > 0 and (part := os.pread(file, wanted, start)):
                parts.append(part)
                start += len(part)
                wanted -= len(part)
            return b"".join(parts)
        finally:
            if kept is None:
                os.close(file)


def open_for_a_job(path: str | os.PathLike[str], take_over: bool = False, for_a_copy: bool = False) -> LocalFolder:
    """Open the folder of a store and take its lock; make it if there is none.

    `take_over`: if another launcher has the lock it keeps that until `take_lock_over`.

    `for_a_copy`: if it is no store, it may have what is left of a copy that was broken off.

    Raises StoreError if the store is in use, or the folder is another one's or holds something else. Nothing has
    changed then.
    """
    try:
        _make(Path(path))
        folder = LocalFolder(path)
    except OSError as error:
        raise StoreError(f"the store {os.fspath(path)} cannot be opened: {error.strerror}") from error
    try:
        _check_is_store(folder, (COMMIT_FILE, SEGMENT_FILE) if for_a_copy else (COMMIT_FILE,))
        folder.hold(take_over)
    except BaseException:
        folder.close_folder()
        raise
    return folder


def open_in_a_job(path: str | os.PathLike[str]) -> LocalFolder:
    """Open the folder of a store that the job's launcher has locked. Raises StoreError."""
    try:
        return LocalFolder(path)
    except OSError as error:
        raise StoreError(f"the store {os.fspath(path)} cannot be opened: {error.strerror}") from error


def open_to_look(path: str | os.PathLike[str]) -> LocalFolder:
    """Open the folder of a store, which a job may be using, to read it. Raises StoreError if it is none."""
    try:
        folder = LocalFolder(path)
    except OSError as error:
        raise StoreError(f"cannot read {os.fspath(path)} as a store: {error.strerror}") from error
    try:
        _check_is_store(folder)
    except BaseException:
        folder.close_folder()
        raise
    return folder


def _make(path: Path) -> None:
    """Make the folder, durably, unless it is there."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not any(path.iterdir()):
            path.chmod(0o700)
        return
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _check_is_store(folder: LocalFolder, left: Sequence[re.Pattern[str]] = ()) -> None:
    """Raise StoreError unless it is one, or has but a lock and what may be `left`; nothing: it is to be one."""
    names = os.listdir(folder.path)
    if any(map(COMMIT_NAME.fullmatch, names)):
        return
    others = [name for name in names if name not in (LOCK, NEXT_LOCK)]
    if left and all(any(each.fullmatch(name) for each in left) for name in others):
        return
    what = "holds segments" if any(map(SEGMENT_NAME.fullmatch, names)) else "holds other files"
    what = f"{what} but no commit" if others else "is empty"
    raise StoreError(f"{folder.path} is not a store, it {what}: name the folder that was given to a job with --state")


def _holder(lock: int) -> Holder | None:
    """Return who holds a lock; None if its file does not tell."""
    try:
        told = json.loads(os.pread(lock, _LOCK_BYTES_MAX, 0))
        return Holder(int(told["pid"]), str(told["host"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def lock_holder(path: str | os.PathLike[str]) -> int | None:
    """Return the process on this machine that took the lock of a store last; None if it is another's, or not known."""
    try:
        lock = os.open(os.path.join(path, LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        holder = _holder(lock)
        return holder.pid if holder is not None and holder.host == socket.gethostname() else None
    finally:
        os.close(lock)
