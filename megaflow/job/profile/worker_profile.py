"""What a worker measures of itself under `--profile`: where its time went, operator by operator.

1. At each moment exactly one row is on the clock: an operator, or a part of the engine. A switch reads the clock once
   and charges what has passed to the row that was on it; so the rows sum to the worker's wall time, nothing is
   counted twice, and what an operator makes the transport do is the transport's.
2. It is told when an operator begins and stops, and of each batch, by the worker's log; when the transport works, by
   an allocator around the worker's own. A run without `--profile` has neither: it pays nothing. With it a run pays
   for each batch, never for a record.
3. The worker's file is written whole or not at all: once in a while, so that something is left of a worker that is
   killed, and at the end, however that comes. A file that cannot be written costs the profile, not the job.
4. All of it belongs to the worker's thread.
"""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast

from megaflow.job.profile.call_profile import Calls
from megaflow.job.spec import ProfileSpec
from megaflow.program import Worker
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.communication.channel import Channel, Envelope
from megaflow.timely.log import (
    ChannelBuilt,
    Event,
    MessageReceived,
    MessageSent,
    OperatorBuilt,
    OperatorsFused,
    ScheduleStarted,
    ScheduleStopped,
)

R = TypeVar("R")

NO_PROGRAM = ("<", threading.__file__)  # where the engine's own operators are declared: what started the worker
SAVE_SECONDS = 2.0  # between two files of a worker that goes on: what a killed one's profile lacks at most

BUILDING = "building"
PROGRESS = "progress and scheduling"
TRANSPORT = "transport"
STEERING = "steering"
PARKED = "parked"
ENGINE = {  # row -> what it is, for people
    BUILDING: "loading the program and building its dataflow",
    PROGRESS: "what the worker does between its operators, and the profile's own account of it",
    TRANSPORT: "encoding, sending, receiving and decoding what goes between workers, for whichever operator",
    STEERING: "commands, statistics, reports to the coordinator",
    PARKED: "nothing to do; what ends the wait is taken in here, too",
}

_log = logging.getLogger("megaflow.profile")

Call: TypeAlias = tuple[str, str, int, float, float]
"""A function under `--profile-calls`: name, file:line, calls, seconds of its own, seconds with what it called."""


@dataclass(slots=True)
class Tally:
    """One row: an operator, or a part of the engine."""

    kind: Literal["operator", "engine"]
    name: str  # with the scopes around it: loop/Map; of fused operators all names, in order: Map + Filter
    where: str = ""  # file:line of the user's declaration; "" for an operator that the engine adds
    dataflow: int = -1
    operator: int = -1  # within the dataflow, equal on all workers
    activations: int = 0
    batches_in: int = 0
    records_in: int = 0
    batches_out: int = 0  # for each channel and each worker that got some
    records_out: int = 0
    seconds: float = 0.0
    calls: tuple[Call, ...] = ()  # most time of its own first


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What a worker's file says."""

    worker: int
    pid: int
    seconds: float  # wall time; what the rows sum to
    processor_seconds: float  # of its thread
    ended: bool  # else it is a look at a worker that went on, and was killed later
    rows: tuple[Tally, ...]


class Ledger:
    """Who is on the clock.

    >>> seconds = iter([0.0, 1.0, 3.0, 6.0])
    >>> idle, busy = Tally("engine", "idle"), Tally("operator", "Map")
    >>> ledger = Ledger(idle, lambda: next(seconds))
    >>> ledger.enter(busy); ledger.leave(); ledger.settle()
    >>> idle.seconds, busy.seconds, ledger.seconds
    (4.0, 2.0, 6.0)
    """

    __slots__ = ("_below", "_now", "_row", "_since", "began")

    def __init__(self, row: Tally, now: Callable[[], float] = time.perf_counter) -> None:
        """`row` is charged whenever nobody else is."""
        self._now = now
        self._row = row
        self._below: list[Tally] = []  # interrupted ones, the latest last
        self.began = self._since = now()

    @property
    def seconds(self) -> float:
        """From the beginning to the last switch."""
        return self._since - self.began

    def enter(self, row: Tally) -> None:
        """Put a row on the clock; the one before waits until it has left."""
        self.settle()
        row.activations += 1
        self._below.append(self._row)
        self._row = row

    def leave(self) -> None:
        """Take the row off the clock that entered last."""
        self.settle()
        self._row = self._below.pop()

    def settle(self) -> None:
        """Charge what has passed."""
        now = self._now()
        self._row.seconds += now - self._since
        self._since = now

    @contextlib.contextmanager
    def on(self, row: Tally) -> Iterator[None]:
        """Have a row on the clock in the block."""
        self.enter(row)
        try:
            yield
        finally:
            self.leave()


class TimedAllocator:
    """An allocator whose work is on the clock; all else goes to the one that it is around."""

    def __init__(self, inner: Allocator, ledger: Ledger, transport: Tally, parked: Tally) -> None:
        self._inner = inner
        self._ledger = ledger
        self._transport = transport
        self._parked = parked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, target: int, channel: Channel, body: object) -> None:
        with self._ledger.on(self._transport):
            self._inner.send(target, channel, body)

    def send_all(self, targets: Iterable[int], channel: Channel, body: object) -> None:
        with self._ledger.on(self._transport):
            self._inner.send_all(targets, channel, body)

    def flush(self) -> None:
        with self._ledger.on(self._transport):
            self._inner.flush()

    def receive(self, busy: bool = False) -> list[Envelope]:
        with self._ledger.on(self._transport):
            return self._inner.receive(busy)

    def park(self, seconds: float | None) -> None:
        with self._ledger.on(self._parked):
            self._inner.park(seconds)


class Profile:
    """One worker's."""

    def __init__(self, worker: int, spec: ProfileSpec) -> None:
        self._worker = worker
        self._folder = Path(spec.folder)
        self._engine = {name: Tally("engine", name) for name in ENGINE}
        self._operators: dict[tuple[int, int], Tally] = {}  # (dataflow, operator) -> its row; fused ones share one
        self._channels: dict[tuple[int, int], tuple[Tally, Tally]] = {}  # (dataflow, channel) -> sender, receiver
        self._ledger = Ledger(self._engine[PROGRESS])
        self._calls = Calls() if spec.calls else None
        self._save_at = self._ledger.began  # soon: the worker may not come back from its first step
        self._thread_began = 0.0  # seconds of time.thread_time()
        self._actions: dict[type[Event], Callable[[Any], None]] = {
            OperatorBuilt: self._on_operator,
            OperatorsFused: self._on_fused,
            ChannelBuilt: self._on_channel,
            ScheduleStarted: self._on_start,
            ScheduleStopped: self._on_stop,
            MessageSent: self._on_sent,
            MessageReceived: self._on_received,
        }

    def around(self, allocator: Allocator) -> Allocator:
        """Return what the worker is to use in place of its allocator."""
        timed = TimedAllocator(allocator, self._ledger, self._engine[TRANSPORT], self._engine[PARKED])
        return cast(Allocator, timed)

    @contextlib.contextmanager
    def measuring(self, worker: Worker) -> Iterator[None]:
        """Measure the block, on the worker's thread; the worker's file is written however the block is left."""
        self._thread_began = time.thread_time()
        unsubscribe = worker.log.subscribe(self._hear)
        if self._calls is not None:
            self._calls.begin()
        try:
            yield
        finally:
            unsubscribe()
            self._ledger.settle()
            if self._calls is not None:
                self._end_calls(self._calls)
            self.save(ended=True)

    def building(self) -> contextlib.AbstractContextManager[None]:
        """Have the building of the dataflow on the clock."""
        return self._ledger.on(self._engine[BUILDING])

    def steering(self, turn: Callable[[], R]) -> Callable[[], R]:
        """Return a `turn` that is on the clock; the worker's file is written in it when that is due."""

        def timed() -> R:
            with self._ledger.on(self._engine[STEERING]):
                now = self._ledger.began + self._ledger.seconds
                if now >= self._save_at:
                    self._save_at = now + SAVE_SECONDS
                    self.save(ended=False)
                return turn()

        return timed

    def record(self, ended: bool) -> WorkerRecord:
        """Return what was measured up to the last switch."""
        rows = (*self._own_rows(), *self._engine.values())
        processor = time.thread_time() - self._thread_began
        return WorkerRecord(self._worker, os.getpid(), self._ledger.seconds, processor, ended, rows)

    def save(self, ended: bool) -> None:
        """Write the worker's file."""
        path = self._folder / f"worker-{self._worker}.json"
        aside = path.with_suffix(".new")
        try:
            aside.write_text(json.dumps(asdict(self.record(ended))), encoding="utf-8")
            os.replace(aside, path)
        except OSError as error:
            _log.warning("worker %s cannot write its profile: %s", self._worker, error)

    def _end_calls(self, calls: Calls) -> None:
        """Give the rows their functions, and write the worker's pstats file."""
        functions = calls.end()
        for row in self._own_rows():
            key = row.dataflow, row.operator
            row.calls = functions.get(key, ())
        self._engine[PROGRESS].calls = functions.get(None, ())
        try:
            calls.dump(self._folder / f"worker-{self._worker}.pstats")
        except OSError as error:
            _log.warning("worker %s cannot write its profile: %s", self._worker, error)

    # Events

    def _hear(self, event: Event) -> None:
        action = self._actions.get(type(event))
        if action is not None:
            action(event)

    def _on_operator(self, event: OperatorBuilt) -> None:
        key = event.dataflow, event.operator
        where = "" if event.where.startswith(NO_PROGRAM) else event.where
        self._operators[key] = Tally("operator", event.name, where, *key)

    def _on_fused(self, event: OperatorsFused) -> None:
        row = self._operators[event.dataflow, event.operator]
        row.name = " + ".join(self._operators[event.dataflow, member].name for member in event.members)
        for member in event.members:
            self._operators[event.dataflow, member] = row

    def _own_rows(self) -> list[Tally]:
        """The rows of operators, each once."""
        return [row for key, row in self._operators.items() if key == (row.dataflow, row.operator)]

    def _on_channel(self, event: ChannelBuilt) -> None:
        source, target = (self._operators[event.dataflow, end[0]] for end in (event.source, event.target))
        self._channels[event.dataflow, event.channel] = source, target

    def _on_start(self, event: ScheduleStarted) -> None:
        key = event.dataflow, event.operator
        self._ledger.enter(self._operators[key])
        if self._calls is not None:
            self._calls.enter(key)

    def _on_stop(self, event: ScheduleStopped) -> None:
        if self._calls is not None:
            self._calls.leave()
        self._ledger.leave()

    def _on_sent(self, event: MessageSent) -> None:
        source = self._channels[event.dataflow, event.channel][0]
        source.batches_out += 1
        source.records_out += event.records

    def _on_received(self, event: MessageReceived) -> None:
        target = self._channels[event.dataflow, event.channel][1]
        target.batches_in += 1
        target.records_in += event.records
