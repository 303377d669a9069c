"""The folder of a store on this machine's file system, for one user, and one launcher at a time.

1. The folder has mode 0700, its files 0600. If it is not empty, it must be a store, or contain only the remains of a
   store that never began: a lock, and, if another store was being copied there, segments.
2. The folder stays open while it is used: the system reports a failed sync only to processes that had it open then.
3. The lock is the operating system's, on the file LOCK, which is never removed. The lock ends with the process that
   holds it, however that ends; the file names that process. It also has a random word of each of the last holders, by
   which a launcher in another container recognizes ended launchers.
4. The lock keeps two launchers on one machine apart, so the second is refused before it changes anything. On file
   systems where it does not work (some network file systems), the fence does: see `store`, rule 1.
5. A launcher that takes the store over from one that does not answer locks NEXT_LOCK, which keeps a second one out.
   LOCK is left alone while the newer launcher may still be refused: the older one may be healthy. Once the commit that
   fences the older launcher is durable, `take_lock_over` gives NEXT_LOCK the name LOCK. If the older launcher wakes up,
   it holds a lock without a name. If the newer launcher is killed in between, the older one keeps LOCK until it ends.
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
from uuid import uuid4

from megaflow.durable.commits import COMMIT_NAME
from megaflow.durable.incarnation import COMMIT_FILE, SEGMENT_FILE
from megaflow.durable.segments import SEGMENT_NAME
from megaflow.errors import StoreError, naming
from megaflow.own_files import close_own, open_own
from megaflow.quick_dataclass import dataclass

LOCK: Final = "lock"
NEXT_LOCK: Final = "lock.next"  # while a store is taken over
SPARK: Final = "spark"  # the folder with the records of Spark's queries
_LOCK_BYTES_MAX: Final = 4096
_WORDS_KEPT: Final = 30  # of launchers, including ones that ended before they had published their jobs; 36 bytes each
_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True, slots=True)
class Holder:
    """Holder of a lock, as its file names it."""

    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host!r}"


class LocalFolder:
    """A folder of this machine. Not for a forked process, which does not get the lock (`megaflow.own_files`)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open an existing folder. Raises OSError."""
        self.path = os.fspath(path)
        self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock: int | None = None  # open while it is held
        self._is_next = False  # whether it is NEXT_LOCK
        self.word = ""  # this launcher's word in the lock, while it holds it
        self.words_before: tuple[str, ...] = ()  # of earlier holders
        self.taken_from: Holder | None = None  # holder of LOCK before a take-over, if known; None: no other launcher
        self._open: dict[str, int] = {}  # file -> descriptor, of files that are kept open

    def close_folder(self) -> None:
        """Close the folder and the files that are kept open, and release the lock if it is held."""
        if self._is_next:
            with contextlib.suppress(OSError):
                self.remove(NEXT_LOCK)
        os.close(self._folder)
        self._let_go()
        if self._lock is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # even if another process has got the open file
            close_own(self._lock)
            self._lock = None

    def hold(self, take_over: bool = False) -> None:
        """Take the lock, until `close_folder`.

        `take_over`: if another launcher has the lock, keep others from a take-over; `take_lock_over` completes it.
        Raises StoreError naming the holder.
        """
        try:
            self._lock, holder = self._locked(LOCK)
            if self._lock is None and take_over:
                self.taken_from = holder
                self._lock, holder = self._locked(NEXT_LOCK)
                self._is_next = self._lock is not None
            if self._lock is not None:
                self._sign(self._lock)
                return
        except OSError as error:
            remedy = "" if error.errno in _DISK else "; keep the store on a local file system"
            raise StoreError(f"the store {self.path} cannot be locked: {error.strerror}{remedy}") from error
        by = "" if holder is None else f" by {holder}"
        raise StoreError(
            f"the store {self.path} is in use{by}: wait until that job ends, or name another folder; if that job no "
            "longer responds, --take-over continues it here"
        )

    def _sign(self, lock: int) -> None:
        """Read the words of earlier holders, and add this launcher's. Raises OSError."""
        words = _words(lock)
        if self._is_next:
            former = self._open_to_read(LOCK)
            words += _words(former)
            os.close(former)
        self.word, self.words_before = uuid4().hex, words
        signed = {"pid": os.getpid(), "host": socket.gethostname(), "words": [*words[-_WORDS_KEPT:], self.word]}
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(signed).encode(), 0)

    def take_lock_over(self) -> None:
        """Take the lock that `hold` has left to another launcher, once that cannot commit. Raises OSError."""
        if self._is_next:
            os.rename(NEXT_LOCK, LOCK, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            self._is_next = False
            self._let_go()  # from now on no other launcher removes files

    def _locked(self, name: str) -> tuple[int | None, Holder | None]:
        """Open a file, creating it if needed, and lock it. If it is locked, return None and the holder."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = open_own(name, flags, 0o600, self._folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(name, dir_fd=self._folder)):
                return lock, None
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.ENOENT):
                close_own(lock)
                raise
        holder = _holder(lock)  # or the file has been replaced
        close_own(lock)
        return None, holder

    def keep_open(self, names: Iterable[str]) -> None:
        """Open these files, and no others, until `close_folder`, so that they can be read even if they are removed.

        If a file is missing, raises FileNotFoundError with its name and keeps none open.
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
        """Keep these files open, which another process has opened."""
        self._open.update(opened)

    def _let_go(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _open_to_read(self, name: str) -> int:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._folder)

    def create(self, name: str) -> int:
        """Create a file and return its descriptor. Raises FileExistsError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(name, flags, 0o600, dir_fd=self._folder)

    def write(self, file: int, data: bytes) -> None:
        """Append bytes to an open file."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]

    def sync(self, file: int) -> None:
        """Block until an open file is on the disk."""
        os.fsync(file)

    def close(self, file: int) -> None:
        """Close a file."""
        os.close(file)

    def link(self, name: str, new: str) -> None:
        """Give a file another name. Raises FileExistsError."""
        try:
            os.link(name, new, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise OSError(error.errno, "its file system has no hard links; choose another one", new) from error
            raise

    def remove(self, name: str) -> None:
        """Remove a name."""
        os.unlink(name, dir_fd=self._folder)

    def sync_names(self) -> None:
        """Block until added and removed names are on the disk."""
        os.fsync(self._folder)

    def length(self, name: str) -> int | None:
        """Return the length of a file; None if there is none."""
        try:
            return os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_size
        except FileNotFoundError:
            return None

    def lengths(self) -> dict[str, int]:
        """Return the files and their lengths, except the locks."""
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
    """Open the folder of a store and take its lock; create the folder if needed.

    `take_over`: if another launcher has the lock, it keeps the lock until `take_lock_over`.

    `for_a_copy`: the folder may also contain the remains of an interrupted copy.

    Raises StoreError if the store is in use, or if the folder cannot be opened or contains something else. Nothing has
    changed then.
    """
    with naming(StoreError, f"the store {os.fspath(path)} cannot be opened", ""):
        _make(Path(path))
        folder = LocalFolder(path)
    try:
        _check_is_store(folder, (COMMIT_FILE, SEGMENT_FILE) if for_a_copy else (COMMIT_FILE,))
        folder.hold(take_over)
    except BaseException:
        folder.close_folder()
        raise
    return folder


def open_in_a_job(path: str | os.PathLike[str]) -> LocalFolder:
    """Open the folder of a store that the job's launcher has locked. Raises StoreError."""
    with naming(StoreError, f"the store {os.fspath(path)} cannot be opened", ""):
        return LocalFolder(path)


def open_to_look(path: str | os.PathLike[str]) -> LocalFolder:
    """Open the folder of a store to read it; a job may be using it. Raises StoreError if it is no store."""
    with naming(StoreError, f"cannot read {os.fspath(path)} as a store", ""):
        folder = LocalFolder(path)
    try:
        _check_is_store(folder)
    except BaseException:
        folder.close_folder()
        raise
    return folder


def _make(path: Path) -> None:
    """Create the folder durably unless it exists."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not any(path.iterdir()):
            path.chmod(0o700)
        return
    sync_path(path.parent)


def sync_path(path: str | Path) -> None:
    """Block until a file, or the names in a folder, are on the disk. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _check_is_store(folder: LocalFolder, left: Sequence[re.Pattern[str]] = ()) -> None:
    """Raise StoreError unless the folder is a store, or has only locks and files that match `left`, if given."""
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
    """Return the holder of a lock; None if its file does not name one."""
    try:
        told = json.loads(os.pread(lock, _LOCK_BYTES_MAX, 0))
        return Holder(int(told["pid"]), str(told["host"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _words(lock: int) -> tuple[str, ...]:
    """Return the words of earlier holders, the oldest first."""
    try:
        return tuple(map(str, json.loads(os.pread(lock, _LOCK_BYTES_MAX, 0)).get("words", ())))
    except (OSError, ValueError, TypeError, AttributeError):
        return ()


def lock_holder(path: str | os.PathLike[str]) -> int | None:
    """Return the pid of the last holder of a store's lock; None if it is on another machine or not known."""
    try:
        lock = os.open(os.path.join(path, LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        holder = _holder(lock)
        return holder.pid if holder is not None and holder.host == socket.gethostname() else None
    finally:
        os.close(lock)
