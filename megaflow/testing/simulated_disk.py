"""A disk in memory that loses unsynced writes, fails on request, and outlasts the processes that use it.

    disk = SimulatedDisk(random.Random(seed))
    store = Store(disk.open())
    disk.happenings[17] = "EIO"     # the 17th operation fails
    disk.lose_power()               # ends every process and loses what a disk may lose

Each operation on the folder is a *step*. A test can choose for each step:
 - "crash": the process ends before the step. The step raises `Crashed`, and so do all later operations of that process.
   Nothing is lost, because the system continues.
 - "EIO", "ENOSPC": the step fails without effect, except that a write happens in part. A failed sync loses the writes
   that it should have saved, and the next sync succeeds: the system forgets that it had something to save. As on Linux,
   a failed sync of the folder is reported once to each process that has the folder open.
 - "done-EIO": the step takes effect, and fails.
 - a function: it is called before the step, so another process can act there.

A loss of power leaves any part of the bytes that were not synced, or zeros in their place. It also leaves any of the
changes of names since the last sync of the folder. The generator decides.
"""

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Happening: TypeAlias = str | Callable[[], None]


class Crashed(Exception):
    """The process that made this request has ended."""


class DiskFile:
    """Content of a file, independent of its names."""

    def __init__(self) -> None:
        self.content = b""  # as processes see it
        self.synced = b""  # as the disk has it
        self.stays = 0  # bytes at its beginning that were synced and not cut off since
        self.dirty = False  # whether the system knows of unsaved bytes
        self.spoiled = False  # whether a sync has failed: the disk's content is never certain again


@dataclass(slots=True)
class _NameChange:
    """Name given to a file, or removed."""

    name: str
    file: DiskFile | None
    synced: bool = False
    spoiled: bool = False  # a sync has failed: never certain again


class SimulatedDisk:
    """One folder on one disk; `open` returns a process's view of it."""

    def __init__(
        self, rng: random.Random, capacity: int | None = None, beside: "SimulatedDisk | None" = None
    ) -> None:
        """`capacity` is the disk's size in bytes; None: no limit. `beside`: another disk, whose steps also count."""
        self.rng = rng
        self.capacity = capacity
        self.steps: list[str] = [] if beside is None else beside.steps  # description of each step
        self.happenings: dict[int, Happening] = {} if beside is None else beside.happenings  # by step number, from 1 on
        self.failing = 0.0  # share of steps that fail, in addition to `happenings`
        self.names: dict[str, DiskFile] = {}  # as processes see them
        self.failures = 0  # failed syncs of the folder
        self.forgets_names = True  # whether a failed sync forgets names, so no later one saves them
        self._durable: dict[str, DiskFile] = {}  # names that the disk certainly has, without `_changes`
        self._changes: list[_NameChange] = []  # in order
        self._views: list[SimulatedFolder] = []

    def open(self, ended: Callable[[], None] = lambda: None) -> "SimulatedFolder":
        """Return the view of a separate process; "crash" calls `ended`."""
        view = SimulatedFolder(self, ended)
        self._views.append(view)
        return view

    def lose_power(self) -> None:
        """End all processes, and lose the writes that a disk may lose."""
        for view in self._views:
            view.crashed = True
        self._views.clear()
        names = dict(self._durable)
        for change in self._changes:
            if change.synced or self.rng.random() < 0.5:
                _apply(change, names)
        for file in {id(file): file for file in names.values()}.values():
            if file.dirty or file.spoiled:
                file.content = self._torn(file)
            file.synced, file.stays, file.dirty, file.spoiled = file.content, len(file.content), False, False
        self.names, self._durable, self._changes = names, dict(names), []

    def _torn(self, file: DiskFile) -> bytes:
        """Return a possible remainder of a file: at least its synced beginning, if that was not cut off."""
        kept = self.rng.randrange(file.stays, len(file.content) + 1)
        zeros = self.rng.choice([0, len(file.content) - kept])
        return self.rng.choice([file.synced, file.content[:kept] + bytes(zeros)])

    def close(self, view: "SimulatedFolder") -> None:
        """Forget a view."""
        if view in self._views:
            self._views.remove(view)

    def rename(self, name: str, file: DiskFile | None) -> None:
        """Give a name to a file, or remove the name."""
        change = _NameChange(name, file)
        _apply(change, self.names)
        self._changes.append(change)

    def sync_names(self, fails: bool) -> None:
        """Make the changes of names durable. If this fails, they stay uncertain."""
        self.failures += fails
        for change in self._changes:
            if not change.synced:
                change.spoiled |= fails and self.forgets_names
                change.synced = not (fails or change.spoiled)
        while self._changes and self._changes[0].synced:
            _apply(self._changes.pop(0), self._durable)

    def used(self) -> int:
        """Return the number of bytes in files."""
        files = {id(file): file for file in self.names.values()}
        return sum(len(file.content) for file in files.values())


def _apply(change: _NameChange, names: dict[str, DiskFile]) -> None:
    if change.file is not None:
        names[change.name] = change.file
    else:
        names.pop(change.name, None)


class SimulatedFolder:
    """A process's view of the disk: a `megaflow.durable.store.Folder`."""

    taken_from = None  # there are no locks
    word, words_before = "", ()
    opened = ()  # no file is kept open

    def __init__(self, disk: SimulatedDisk, ended: Callable[[], None] = lambda: None) -> None:
        self.crashed = False
        self._ended = ended
        self._disk = disk
        self._files: dict[int, DiskFile] = {}  # descriptor -> open file
        self._opened = 0
        self._failures_seen = disk.failures

    def take_lock_over(self) -> None:
        """Do nothing: there are no locks."""

    def create(self, name: str) -> int:
        """Create a file and return its descriptor."""
        fails_after = self._step(f"create {name}")
        if name in self._disk.names:
            raise _error(errno.EEXIST, name)
        file = DiskFile()
        self._disk.rename(name, file)
        if fails_after:
            raise _error(errno.EIO, name)
        self._opened += 1
        self._files[self._opened] = file
        return self._opened

    def reopen(self, name: str) -> int:
        """Open an existing file for writing at its end; return its descriptor."""
        self._opened += 1
        self._files[self._opened] = self._disk.names[name]
        return self._opened

    def has(self, name: str) -> bool:
        """Return whether a file of this name exists."""
        return name in self._disk.names

    def size(self, file: int) -> int:
        """Return the size of an open file in bytes."""
        return len(self._files[file].content)

    def truncate(self, file: int, length: int) -> None:
        """Shorten an open file."""
        fails_after = self._step(f"truncate to {length} bytes")
        opened = self._files[file]
        opened.content = opened.content[:length]
        opened.spoiled = opened.spoiled and length > opened.stays  # otherwise the uncertain bytes are cut off
        opened.stays = min(opened.stays, length)
        opened.dirty = True
        if fails_after:
            raise _error(errno.EIO, "a file")

    def close_folder(self) -> None:
        """Close this view."""
        self._disk.close(self)

    def write(self, file: int, data: bytes) -> None:
        """Append bytes to an open file."""
        disk = self._disk
        written = data if disk.capacity is None else data[: max(0, disk.capacity - disk.used())]
        try:
            fails_after = self._step(f"write {len(data)} bytes")
        except OSError:
            written = data[: disk.rng.randrange(len(data) + 1)]
            raise
        finally:
            if not self.crashed and written:
                self._files[file].content += written
                self._files[file].dirty = True
        if fails_after or len(written) < len(data):
            raise _error(errno.EIO if fails_after else errno.ENOSPC, "a file")

    def sync(self, file: int) -> None:
        """Make an open file's content durable."""
        opened = self._files[file]
        try:
            fails_after = self._step("sync a file")
        except OSError:
            opened.dirty, opened.spoiled = False, True
            raise
        if opened.dirty and not opened.spoiled:
            opened.synced, opened.stays = opened.content, len(opened.content)
        opened.dirty = False
        if fails_after:
            raise _error(errno.EIO, "a file")

    def close(self, file: int) -> None:
        """Close a file."""
        self._step("close a file")
        del self._files[file]

    def link(self, name: str, new: str) -> None:
        """Give a file another name."""
        fails_after = self._step(f"link {new}")
        if name not in self._disk.names:
            raise _error(errno.ENOENT, name)
        if new in self._disk.names:
            raise _error(errno.EEXIST, new)
        self._disk.rename(new, self._disk.names[name])
        if fails_after:
            raise _error(errno.EIO, new)

    def remove(self, name: str) -> None:
        """Remove a name."""
        fails_after = self._step(f"remove {name}")
        if name not in self._disk.names:
            raise _error(errno.ENOENT, name)
        self._disk.rename(name, None)
        if fails_after:
            raise _error(errno.EIO, name)

    def sync_names(self) -> None:
        """Make the names durable."""
        try:
            fails_after = self._step("sync the folder")
        except OSError:
            self._disk.sync_names(fails=True)
            self._failures_seen = self._disk.failures
            raise
        self._disk.sync_names(fails=False)
        if fails_after or self._failures_seen < self._disk.failures:
            self._failures_seen = self._disk.failures
            raise _error(errno.EIO, "the folder")

    def lengths(self) -> dict[str, int]:
        """Return the lengths of all files, by name."""
        if self._step("list"):
            raise _error(errno.EIO, "the folder")
        return {name: len(file.content) for name, file in self._disk.names.items()}

    def length(self, name: str) -> int | None:
        """Return the length of a file; None if there is none. This is no step: it cannot fail."""
        return len(self._disk.names[name].content) if name in self._disk.names else None

    def read(self, name: str, start: int, length: int | None) -> bytes:
        """Return bytes of a file."""
        if self._step(f"read {name}"):
            raise _error(errno.EIO, name)
        if name not in self._disk.names:
            raise _error(errno.ENOENT, name)
        content = self._disk.names[name].content[start:]
        return content if length is None else content[:length]

    def _step(self, what: str) -> bool:
        """Count a step; return whether it must take effect and then fail."""
        if self.crashed:
            raise Crashed(what)
        disk = self._disk
        disk.steps.append(what)
        happening = disk.happenings.get(len(disk.steps))
        if callable(happening):
            happening()
            if self.crashed:
                raise Crashed(what)
        elif happening == "crash":
            self.crashed = True
            self._ended()
            raise Crashed(what)
        elif happening in ("EIO", "ENOSPC"):
            raise _error(getattr(errno, happening), what)
        if disk.failing and disk.rng.random() < disk.failing:
            raise _error(errno.EIO, what)
        return happening == "done-EIO"


def _error(number: int, name: str) -> OSError:
    return OSError(number, os.strerror(number), name)
