"""What outlives a simulated job: the disk with its store and its output, what was promised, and who writes there.

The store, the launcher's `StoreKeeper`, the writer of the output and the workers' `CutKeeper` are the real ones. What
their threads do is done step by step; the folder and the file are those of `SimulatedDisk`s whose steps are counted as
one sequence, in whose course anything may happen to whoever takes them.
What is recovered is the newest checkpoint that was acknowledged, or the one that was being committed; and a launcher
that has a successor acknowledges nothing. `Violation` otherwise.
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
from megaflow.durable.restored import Heir, Restored
from megaflow.durable.store import FolderStore
from megaflow.job.launcher.output_file import FileWriter, Mode, OutputFile
from megaflow.job.launcher.store_keeper import DOUBT_SECONDS, StoreKeeper, ToCommit
from megaflow.job.worker.cut_keeper import CutKeeper, Kept
from megaflow.job.worker.kept_state import KeptState
from megaflow.job.worker.memory import Memory
from megaflow.megaphone.remains import Remains
from megaflow.program import Worker
from megaflow.testing.monitor import Violation
from megaflow.testing.simulated_disk import SimulatedDisk, SimulatedFolder

STORE, OUTPUT = "/simulated/store", "/simulated/output"
CUT_SECONDS = 0.02  # at most, until a worker's thread has written what there is


class JobStorage:
    """A store and an output, before, between and after the jobs that use them."""

    def __init__(self, random: Random, every_seconds: float = 0.01, kept: int = 2) -> None:
        self.every_seconds, self.kept = every_seconds, kept
        self.seconds = random.choice([0.0, 0.01, 0.05])  # that a commit takes at most
        self.store = SimulatedDisk(random)
        self.output = SimulatedDisk(random, beside=self.store)
        self.output.forgets_names = False  # a file that is to keep its name could not be saved from that
        self.live: SteppedStore | None = None  # of the newest launcher
        self.begun: Commit | None = None  # that the newest life of its job has begun with
        self.acknowledged: object = None  # what tells the newest commit that was; None: there is none
        self.tried: object = None  # the one that is being committed

    @property
    def steps(self) -> int:
        """How many steps were taken on the disk."""
        return len(self.store.steps)

    def happen(self, step: int, what: str | Callable[[], None]) -> None:
        """Have something happen at a step, counted from now on."""
        self.store.happenings[self.steps + step] = what

    def fill(self, room: int | None) -> None:
        """Let the disk have room for so many bytes more; None: without end."""
        for disk in (self.store, self.output):
            disk.capacity = None if room is None else disk.used() + room

    def lose_power(self) -> None:
        """Lose what a disk may lose. All processes have ended."""
        self.store.lose_power()
        self.output.lose_power()

    def copy_output(self) -> None:
        """Give who writes there from now on a copy; nothing of the output waits for a sync then."""
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
        """What the output has."""
        file = self.output.names.get(OUTPUT)
        return "" if file is None else file.content.decode()

    def writer(self, view: SimulatedFolder, mode: Mode) -> FileWriter:
        """Open the output."""
        return FileWriter(OUTPUT, mode, lambda path, mode: SimulatedOutput(view, path))

    def keep(self, view: SimulatedFolder, begin: Callable[[Callable[[], None], float], None]) -> Any:
        """Return what makes a worker's part of the store; `begin` has something done in a while."""

        def kept_state(worker: Worker, part: DurablePart, memory: Memory | None = None) -> KeptState:
            keeper = type("Keeper", (SteppedCuts,), {"begin": staticmethod(begin)})
            state = type("State", (CheckedState,), {"disk": self.store})
            made: KeptState = state(worker, part, lambda folder: FolderStore(view), keeper, memory)
            return made

        return kept_state


class PlainReader:
    """Reads the files of a store, without a step."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a file."""
        content = self._disk.names[name].content[start:]
        return content if length is None else content[:length]


def check_remembered(disk: SimulatedDisk, number: int | None, remains: Iterable[tuple[Heir, Remains]]) -> None:
    """Raise `Violation` unless what is remembered, of any bins, is what a commit has."""
    if number is None:
        return
    store: Any = PlainReader(disk)
    recovery = Recovery(store, read_commit(store, number), {})
    for heir, each in remains:
        found = {bin: {key: each.states[key] for key in keys} for bin, keys in each.bins.items()}
        right = recovery.restore(heir, each.bins.keys()).states
        if (found, len(each.states)) != (right, sum(map(len, found.values()))):
            raise Violation(f"of {heir.name} {found} is remembered in place of {right}")


class CheckedState(KeptState):
    """What a worker keeps. `Violation` unless what its operators begin with is what a new process would read."""

    disk: SimulatedDisk

    def _restore(self, heir: Heir, bins: Collection[int]) -> Restored:
        begun = super()._restore(heir, bins)
        if begun.kept is not None:
            states, owned = begun.kept
            found = begun.states | {bin: {key: states[key] for key in keys} for bin, keys in owned.items()}
            store: Any = PlainReader(self.disk)
            right = Recovery(store, self._read(), {}).restore(heir, bins)
            if (found, begun.timers, len(states)) != (right.states, right.timers, sum(map(len, owned.values()))):
                raise Violation(f"{heir.name} goes on with {found} and {begun.timers} in place of {right}")
        return begun


class SteppedStore(StoreKeeper):
    """The launcher's keeper of the store, whose thread's work is done step by step."""

    def __init__(
        self, storage: JobStorage, app: str, view: SimulatedFolder, clock: Callable[[], float], random: Random
    ) -> None:
        folder: Any = view
        self._storage = storage
        self._clock = clock
        self._random = random
        self.due: float | None = None  # seconds of the clock: when it goes on
        super().__init__(STORE, app, storage.kept, lambda path: folder)

    def begin(self, outputs: tuple[OutputLength, ...]) -> Commit:
        """Take the store over, which has what was promised."""
        begun = super().begin(outputs)
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

    def start(self, wake: Callable[[], None]) -> None:
        """Begin; there is no thread."""
        self._wake = wake

    def can_go_on(self, now: float) -> bool:
        """Tell whether there is something to do."""
        return self.has_work and (self.due is None or self.due <= now)

    def commit(self, commit: Commit, *rest: Any) -> None:
        """Have a checkpoint committed, in a while."""
        super().commit(commit, *rest)
        self.due = self._clock() + self._random.random() * self._storage.seconds

    def step(self) -> None:
        """Commit, or find out about a commit in doubt."""
        storage = self._storage
        task = self._tasks[0]
        if storage.live is self and isinstance(task, ToCommit):
            storage.tried = told(task.commit)
        self.work()
        self.due = None if self._doubtful is None else self._clock() + DOUBT_SECONDS
        result = self._results[-1] if self._results and self._doubtful is None else None
        if task == "collect":
            return  # what was told has been told before
        if isinstance(result, Committed):
            if storage.live is not self:
                raise Violation(f"a launcher that has a successor acknowledges {result}")
            storage.acknowledged, storage.tried = told(self.latest), None
        elif isinstance(result, CommitFailed) and storage.live is self:
            storage.tried = None


def told(commit: Commit | None) -> object:
    """What tells a commit from others, whoever repeats it; None: it has no checkpoint."""
    if commit is None or commit.checkpoint == 0:
        return None
    return commit.checkpoint, commit.time, tuple(segment.name for segment in commit.segments)


class SimulatedStream(io.StringIO):
    """What is written to an open file; it has it when it is flushed."""

    def __init__(self, view: SimulatedFolder, file: int) -> None:
        super().__init__()
        self._view = view
        self._open_file = file
        self._unwritten = b""

    def write(self, text: str) -> int:
        """Keep it until it is flushed."""
        self._unwritten += text.encode()
        return len(text)

    def flush(self) -> None:
        """Give the system what was written. Raises OSError; what it has not taken stays."""
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
    """The output on a simulated disk."""

    def __init__(self, view: SimulatedFolder, path: str) -> None:
        self.path = path
        self.number = -1
        self.is_regular = True
        self._view = view
        self.is_new = not view.has(path)
        self._open_file = view.create(path) if self.is_new else view.reopen(path)
        self.stream = SimulatedStream(view, self._open_file)

    def hold(self) -> None:
        """Nobody else writes there."""

    def let_go(self) -> None:
        """There is no lock."""

    def size(self) -> int:
        """Return how many bytes it has."""
        return self._view.size(self._open_file)

    def cut(self, length: int) -> None:
        """Shorten it."""
        self._view.truncate(self._open_file, length)

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        self._view.sync(self._open_file)

    def sync_name(self) -> None:
        """Wait until its name is on the disk."""
        self._view.sync_names()

    def ends_line(self) -> bool:
        """Tell whether it ends where a line ends."""
        return self._view.read(self.path, 0, None)[-1:] in (b"", b"\n")

    def remove(self) -> None:
        """Take its name away."""
        self._view.remove(self.path)


class SteppedCuts(CutKeeper):
    """A worker's keeper of its cuts, whose thread's work is done when the dice say so."""

    begin: Callable[[Callable[[], None], float], None]
    clock = staticmethod(lambda: 0.0)
    _pending: deque[tuple[Kept, Block | None]] | None = None

    def write(self, cut: Kept, block: Block | None) -> None:
        """Take a block, or the end of a piece."""
        if self._pending is None:
            self._pending = deque()
        if not self._pending:
            self.begin(self._work_off, CUT_SECONDS)
        self._pending.append((cut, block))

    def finish(self) -> CutWritten | CutFailed | None:
        """Write all; return what came of the checkpoint at the end."""
        self._work_off()
        return self._final

    def stop(self) -> None:
        """Write no more."""
        if self._pending is not None:
            self._pending.clear()

    def _work_off(self) -> None:
        while self._pending:
            self._pack(*self._pending.popleft())
