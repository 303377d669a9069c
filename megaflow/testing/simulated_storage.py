"""The storage of a simulated job, which outlasts it: the disks with store and output, and the commits acknowledged.

The store, the launcher's `StoreKeeper`, the output's writer and the workers' `CutKeeper` are real. The simulation steps
the work of their threads. Their folder and file are on `SimulatedDisk`s, whose steps are counted as one sequence; at
each step, anything may happen to the process that takes it.

After a recovery the store must have the newest checkpoint that was acknowledged, or the one that was being committed. A
launcher that has a successor must acknowledge nothing. Otherwise this module raises `Violation`.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Collection, Iterable
from random import Random
from typing import Any

from megaflow.control.checkpoint_messages import CommitFailed, Committed, CutFailed, CutWritten
from megaflow.durable.blocks import Block
from megaflow.durable.commits import Commit, OutputLength
from megaflow.durable.incarnation import DurablePart, read_commit
from megaflow.durable.recovery import Recovery
from megaflow.durable.restored import Restored, StateDescriptor
from megaflow.durable.store import Store
from megaflow.job.launcher.outputs.opened_output import TAIL_BYTES, Mode, OutputFile
from megaflow.job.launcher.outputs.output_file import FileWriter
from megaflow.job.launcher.store.commit_draft import ToCommit
from megaflow.job.launcher.store.store_keeper import DOUBT_SECONDS, StoreKeeper
from megaflow.job.worker.snapshots.cut_keeper import CutKeeper, Kept
from megaflow.job.worker.snapshots.local_recovery import LocalRecovery
from megaflow.job.worker.snapshots.state_backend import StateBackend
from megaflow.megaphone.snapshot.retained_bins import RetainedBins
from megaflow.program import Worker
from megaflow.testing.monitor import Violation
from megaflow.testing.simulated_disk import SimulatedDisk, SimulatedFolder

STORE, OUTPUT = "/simulated/store", "/simulated/output"
CUT_SECONDS = 0.02  # at most, until a worker's thread has written its blocks


class JobStorage:
    """A store and an output, before, between and after the jobs that use them."""

    def __init__(self, random: Random, every_seconds: float = 0.01, kept: int = 2) -> None:
        self.every_seconds, self.kept = every_seconds, kept
        self.seconds = random.choice([0.0, 0.01, 0.05])  # at most, for a commit
        self.store = SimulatedDisk(random)
        self.output = SimulatedDisk(random, beside=self.store)
        self.output.forgets_names = False  # the output must keep its name, and no sync could restore that
        self.live: SteppedStore | None = None  # of the newest launcher
        self.begun: Commit | None = None  # with this commit the newest attempt of its job began
        self.run = 0  # first incarnation of the newest launcher
        self.acknowledged: object = None  # identity of the newest acknowledged commit; None: there is none
        self.tried: object = None  # identity of the commit in progress

    @property
    def steps(self) -> int:
        """Number of steps taken on the disks."""
        return len(self.store.steps)

    def happen(self, step: int, what: str | Callable[[], None]) -> None:
        """Plan an event for a step, counted from now on."""
        self.store.happenings[self.steps + step] = what

    def fill(self, room: int | None) -> None:
        """Leave this many free bytes on the disks; None: no limit."""
        for disk in (self.store, self.output):
            disk.capacity = None if room is None else disk.used() + room

    def lose_power(self) -> None:
        """Lose what a disk may lose. All processes have ended."""
        self.store.lose_power()
        self.output.lose_power()

    def copy_output(self) -> None:
        """Replace the output by a copy for later writers; nothing in it waits for a sync."""
        before, self.output = self.output, SimulatedDisk(self.output.rng, beside=self.store)
        self.output.forgets_names = False
        if OUTPUT in before.names:
            view = self.output.open()
            file = view.create(OUTPUT)
            view.write(file, before.names[OUTPUT].content)
            view.sync(file)
            view.sync_names()

    @property
    def lines(self) -> str:
        """Content of the output."""
        file = self.output.names.get(OUTPUT)
        return "" if file is None else file.content.decode()

    def writer(self, view: SimulatedFolder, mode: Mode) -> FileWriter:
        """Open the output."""
        return FileWriter(OUTPUT, mode, lambda path: SimulatedOutput(view, path))

    def keep(self, view: SimulatedFolder, begin: Callable[[Callable[[], None], float], None]) -> Any:
        """Return the factory of a worker's part of the store; `begin` calls a function after a while."""

        def state_backend(worker: Worker, part: DurablePart, memory: LocalRecovery | None = None) -> StateBackend:
            keeper = type("Keeper", (SteppedCuts,), {"begin": staticmethod(begin)})
            state = type("State", (CheckedState,), {"disk": self.store})
            made: StateBackend = state(worker, part, lambda folder: Store(view), keeper, memory)
            return made

        return state_backend


class PlainReader:
    """Reader of a store's files that counts no step."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a file."""
        content = self._disk.names[name].content[start:]
        return content if length is None else content[:length]


def check_remembered(
    disk: SimulatedDisk, number: int | None, remains: Iterable[tuple[StateDescriptor, RetainedBins]]
) -> None:
    """Raise `Violation` unless the remembered states of all these bins are those of the commit."""
    if number is None:
        return
    store: Any = PlainReader(disk)
    recovery = Recovery(store, read_commit(store, number), {})
    for descriptor, each in remains:
        found = {bin: {key: each.states[key] for key in keys} for bin, keys in each.bins.items()}
        right = recovery.restore(descriptor, each.bins.keys()).states
        if (found, len(each.states)) != (right, sum(map(len, found.values()))):
            raise Violation(f"of {descriptor.name} {found} is remembered in place of {right}")


class CheckedState(StateBackend):
    """A worker's state in the store, checked.

    Raises `Violation` unless its operators begin with what a new process would read.
    """

    disk: SimulatedDisk

    def _restore(self, descriptor: StateDescriptor, bins: Collection[int]) -> Restored:
        begun = super()._restore(descriptor, bins)
        if begun.kept is not None:
            states, owned = begun.kept
            found = begun.states | {bin: {key: states[key] for key in keys} for bin, keys in owned.items()}
            store: Any = PlainReader(self.disk)
            assert self._commit is not None, "the states are of a commit"
            right = Recovery(store, self._commit, {}).restore(descriptor, bins)
            if (found, begun.timers, len(states)) != (right.states, right.timers, sum(map(len, owned.values()))):
                raise Violation(f"{descriptor.name} goes on with {found} and {begun.timers} in place of {right}")
        return begun


class SteppedStore(StoreKeeper):
    """The launcher's keeper of the store; the simulation steps the work of its thread."""

    def __init__(
        self, storage: JobStorage, app: str, view: SimulatedFolder, clock: Callable[[], float], random: Random
    ) -> None:
        folder: Any = view
        self._storage = storage
        self._clock = clock
        self._random = random
        self.due: float | None = None  # clock seconds when it continues
        super().__init__(STORE, app, storage.kept, lambda path: folder)

    def begin(self, outputs: tuple[OutputLength, ...], renews: bool = False, settled: Collection[str] = ()) -> Commit:
        """Take over the store, and check that it has every acknowledged commit."""
        begun = super().begin(outputs, renews, settled)
        self._storage.run = begun.incarnation
        self._check_promise()
        return begun

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._check_promise()

    def _check_promise(self) -> None:
        storage, found = self._storage, told(self.latest)
        if found not in (storage.acknowledged, storage.tried):
            wanted = f"{storage.acknowledged} was acknowledged, {storage.tried} tried"
            raise Violation(f"the store has {found}, but {wanted}")
        storage.live, storage.acknowledged, storage.tried = self, found, None
        storage.begun = self.latest

    def start(self, wake: Callable[[], object]) -> None:
        """Begin, without a thread."""
        self._wake = wake

    def can_go_on(self, now: float) -> bool:
        """Return whether there is something to do."""
        return bool(self._tasks) and (self.due is None or self.due <= now)

    def commit(self, task: ToCommit) -> None:
        """Commit a checkpoint after a while."""
        super().commit(task)
        self.due = self._clock() + self._random.random() * self._storage.seconds

    def step(self) -> None:
        """Commit, or find the outcome of a commit in doubt."""
        storage = self._storage
        task = self._tasks[0]
        if storage.live is self and isinstance(task, ToCommit):
            storage.tried = told(task.commit)
        self.work()
        self.due = None if self._doubtful is None else self._clock() + DOUBT_SECONDS
        result = self._results[-1] if self._results and self._doubtful is None else None
        if task == "collect":
            return  # its result was reported before
        if isinstance(result, Committed):
            if storage.live is not self:
                raise Violation(f"a launcher that has a successor acknowledges {result}")
            storage.acknowledged, storage.tried = told(self.latest), None
        elif isinstance(result, CommitFailed) and storage.live is self:
            storage.tried = None


def told(commit: Commit | None) -> object:
    """Return what identifies a commit, also if it is repeated; None if it has no checkpoint."""
    if commit is None or commit.checkpoint == 0:
        return None
    return commit.checkpoint, commit.time, tuple(segment.name for segment in commit.segments)


class SimulatedStream(io.StringIO):
    """Stream to an open file, which receives the text at a flush."""

    def __init__(self, view: SimulatedFolder, file: int) -> None:
        super().__init__()
        self._view = view
        self._open_file = file
        self._unwritten = b""

    def write(self, text: str) -> int:
        """Keep the text until it is flushed."""
        self._unwritten += text.encode()
        return len(text)

    def flush(self) -> None:
        """Give the system what was written. Raises OSError; bytes that the system did not accept are kept."""
        if self._unwritten:
            before = self._view.size(self._open_file)
            try:
                self._view.write(self._open_file, self._unwritten)
            finally:
                self._unwritten = self._unwritten[self._view.size(self._open_file) - before :]

    def close(self) -> None:
        """Flush, and close the file."""
        if not self.closed:
            super().close()
            if self._unwritten:
                self.flush()


class SimulatedOutput(OutputFile):
    """Output file on a simulated disk."""

    def __init__(self, view: SimulatedFolder, path: str) -> None:
        self.path = path
        self.number = -1
        self.is_regular = True
        self._view = view
        self.is_new = not view.has(path)
        self._open_file = view.create(path) if self.is_new else view.reopen(path)
        self.stream = SimulatedStream(view, self._open_file)

    def hold(self) -> None:
        """Do nothing: no other process writes to the file."""

    def close(self) -> None:
        """Close the file; there is no lock."""
        self.stream.close()

    def size(self) -> int:
        """Return the size in bytes."""
        return self._view.size(self._open_file)

    def lost(self) -> int:
        """Return 0: no other program truncates the file."""
        return 0

    @property
    def is_emptied(self) -> bool:
        """Whether another program has emptied the file: never."""
        return False

    def tail(self, length: int) -> bytes:
        """Return the last bytes before this length."""
        return self._view.read(self.path, 0, None)[:length][-TAIL_BYTES:]

    def cut(self, length: int) -> None:
        """Shorten the file."""
        self._view.truncate(self._open_file, length)

    def sync(self) -> None:
        """Make the content durable."""
        self._view.sync(self._open_file)

    def sync_name(self) -> None:
        """Make the name durable."""
        self._view.sync_names()

    def ends_line(self) -> bool:
        """Return whether the file is empty or ends with a newline."""
        return self._view.read(self.path, 0, None)[-1:] in (b"", b"\n")

    def remove(self) -> None:
        """Remove the file's name."""
        self._view.remove(self.path)

    def has_its_name(self) -> bool:
        """Return True: no other process renames or removes the file."""
        return True

    has_a_name = has_its_name


class SteppedCuts(CutKeeper):
    """A worker's keeper of its cuts; the dice decide when its thread's work is done."""

    begin: Callable[[Callable[[], None], float], None]
    clock = staticmethod(lambda: 0.0)
    _pending: deque[tuple[Kept, Block | None]] | None = None

    def write(self, cut: Kept, block: Block | None = None) -> None:
        """Take a block, or the end of a piece."""
        if self._pending is None:
            self._pending = deque()
        if not self._pending:
            self.begin(self._work_off, CUT_SECONDS)
        self._pending.append((cut, block))

    def finish(self) -> CutWritten | CutFailed | None:
        """Write everything; return the outcome of the checkpoint at the end."""
        self._work_off()
        return self._final

    def stop(self) -> None:
        """Write nothing more."""
        if self._pending is not None:
            self._pending.clear()

    def _work_off(self) -> None:
        while self._pending:
            self._pack(*self._pending.popleft())
