"""A worker's measurements under `--profile`: where its time went, by operator.

1. The worker's log reports when an operator starts and stops, and each batch. A wrapper around the worker's allocator
   reports when the transport works: time that an operator spends in the transport belongs to the transport. A run
   without `--profile` has neither and pays nothing. With it, the cost is per batch, never per record.
2. With `--profile-calls` each operator, and the engine, has its own cProfile, which is on while it runs. So functions
   are listed under the operator for which they ran, even if several operators share them. A switch costs about a
   microsecond per run of an operator. The cost of cProfile itself, for each call of a Python function, distorts times.
3. The worker writes its file at the end and about every SAVE_SECONDS, so that a killed worker leaves one. It writes the
   file as a whole or not at all. If it cannot write the file, it logs a warning, and the job goes on.
4. All of this belongs to the worker's thread.
"""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from megaflow.job.profile import ledger
from megaflow.job.profile.ledger import Call, Ledger, Tally, WorkerRecord
from megaflow.job.spec import ProfileSpec
from megaflow.program import Worker
from megaflow.timely import log
from megaflow.timely.communication.allocator import Allocator

R = TypeVar("R")

NO_PROGRAM = ("<", threading.__file__)  # where the engine's own operators are declared: what started the worker
SAVE_SECONDS = 2.0  # between two writes of a worker's file; the profile of a killed worker lacks at most so much
FUNCTIONS_MAX = 25  # of each operator, in the worker's JSON file; the pstats file has all

Key: TypeAlias = tuple[int, int] | None  # (dataflow, operator); None: everything else

_log = logging.getLogger("megaflow.job.profile")


class TimedAllocator:
    """Wrapper of an allocator. It passes every call on, and puts the transport and the waiting on the clock."""

    def __init__(self, inner: Allocator, clock: Ledger, transport: Tally, parked: Tally) -> None:
        self._inner = inner
        self.send = clock.on(transport)(inner.send)
        self.send_all = clock.on(transport)(inner.send_all)
        self.flush = clock.on(transport)(inner.flush)
        self.receive = clock.on(transport)(inner.receive)
        self.park = clock.on(parked)(inner.park)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Calls:
    """A cProfile of each operator of a worker, and one of everything else."""

    def __init__(self) -> None:
        self._new = import_module("cProfile").Profile  # imported here, because most jobs do not need it
        self._profiles: dict[Key, Any] = {None: self._new()}
        self._on = self._profiles[None]
        self._stats = import_module("pstats").Stats()

    def begin(self) -> None:
        """Begin to profile, outside any operator."""
        self._on.enable()

    def enter(self, key: tuple[int, int]) -> None:
        """Profile an operator, until it stops."""
        if key not in self._profiles:
            self._profiles[key] = self._new()
        self._switch(self._profiles[key])

    def leave(self) -> None:
        """Profile what follows outside any operator."""
        self._switch(self._profiles[None])

    def end(self) -> dict[Key, tuple[Call, ...]]:
        """Stop; return for each operator its functions, most time of its own first."""
        self._on.disable()
        for profile in self._profiles.values():
            profile.create_stats()
        ran = {key: profile for key, profile in self._profiles.items() if profile.stats}
        found = {key: _functions(profile.stats) for key, profile in ran.items()}
        self._stats = type(self._stats)(*ran.values())  # after `found`, because this empties their `stats`
        return found

    def dump(self, path: Path) -> None:
        """Write all figures to a file for `python -m pstats`. Raises OSError."""
        self._stats.dump_stats(path)

    def _switch(self, profile: Any) -> None:
        self._on.disable()
        self._on = profile
        profile.enable()


def _functions(stats: dict[Any, Any]) -> tuple[Call, ...]:
    """Return the functions of a profiler's `stats`.

    >>> _functions({("a.py", 3, "f"): (1, 2, 0.5, 1.5, {}), ("~", 0, "<len>"): (1, 1, 0.7, 0.7, {})})
    (('<len>', '', 1, 0.7, 0.7), ('f', 'a.py:3', 2, 0.5, 1.5))
    """
    functions = [
        (name, f"{file}:{line}" if line else "", calls, own, total)
        for (file, line, name), (_, calls, own, total, _) in stats.items()
    ]
    return tuple(sorted(functions, key=lambda each: -each[3])[:FUNCTIONS_MAX])


class Profile:
    """The profile of one worker."""

    def __init__(self, worker: int, spec: ProfileSpec) -> None:
        self._worker = worker
        self._folder = Path(spec.folder)
        self._engine = {name: Tally("engine", name) for name in ledger.ENGINE}
        self._operators: dict[tuple[int, int], Tally] = {}  # (dataflow, operator) -> its row; fused ones share one
        self._channels: dict[tuple[int, int], tuple[Tally, Tally]] = {}  # (dataflow, channel) -> sender, receiver
        self._ledger = Ledger(self._engine[ledger.PROGRESS])
        self._calls = Calls() if spec.calls else None
        self._save_at = self._ledger.began  # at once, because the worker may never come back from its first step
        self._thread_began = 0.0  # seconds of time.thread_time()
        self._actions: dict[type[log.Event], Callable[[Any], None]] = {
            log.OperatorBuilt: self._on_operator,
            log.OperatorsFused: self._on_fused,
            log.ChannelBuilt: self._on_channel,
            log.ScheduleStarted: self._on_start,
            log.ScheduleStopped: self._on_stop,
            log.MessageSent: self._on_sent,
            log.MessageReceived: self._on_received,
        }

    def around(self, allocator: Allocator) -> Allocator:
        """Return the allocator that the worker must use in place of this one."""
        timed = TimedAllocator(allocator, self._ledger, self._engine[ledger.TRANSPORT], self._engine[ledger.PARKED])
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
        """Put the building of the dataflow on the clock for the block."""
        return self._ledger.on(self._engine[ledger.BUILDING])

    def steering(self, turn: Callable[[], R]) -> Callable[[], R]:
        """Return `turn` with its time charged to STEERING. It also writes the worker's file when that is due."""

        @self._ledger.on(self._engine[ledger.STEERING])
        def timed() -> R:
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
        """Write the worker's file and, at the end, its pstats file."""
        path = self._folder / f"worker-{self._worker}.json"
        aside = path.with_suffix(".new")
        try:
            aside.write_text(json.dumps(asdict(self.record(ended))), encoding="utf-8")
            os.replace(aside, path)
            if ended and self._calls is not None:
                self._calls.dump(path.with_suffix(".pstats"))
        except OSError as error:
            _log.warning("worker %s cannot write its profile: %s", self._worker, error)

    def _end_calls(self, calls: Calls) -> None:
        """Give each row its functions."""
        functions = calls.end()
        for row in self._own_rows():
            row.calls = functions.get((row.dataflow, row.operator), ())
        self._engine[ledger.PROGRESS].calls = functions.get(None, ())

    # Events

    def _hear(self, event: log.Event) -> None:
        action = self._actions.get(type(event))
        if action is not None:
            action(event)

    def _on_operator(self, event: log.OperatorBuilt) -> None:
        key = event.dataflow, event.operator
        where = "" if event.where.startswith(NO_PROGRAM) else event.where
        self._operators[key] = Tally("operator", event.name, where, *key)

    def _on_fused(self, event: log.OperatorsFused) -> None:
        row = self._operators[event.dataflow, event.operator]
        row.name = " + ".join(self._operators[event.dataflow, member].name for member in event.members)
        for member in event.members:
            self._operators[event.dataflow, member] = row

    def _own_rows(self) -> list[Tally]:
        """Return the rows of operators, each once."""
        return [row for key, row in self._operators.items() if key == (row.dataflow, row.operator)]

    def _on_channel(self, event: log.ChannelBuilt) -> None:
        source, target = (self._operators[event.dataflow, end[0]] for end in (event.source, event.target))
        self._channels[event.dataflow, event.channel] = source, target

    def _on_start(self, event: log.ScheduleStarted) -> None:
        key = event.dataflow, event.operator
        self._ledger.enter(self._operators[key])
        if self._calls is not None:
            self._calls.enter(key)

    def _on_stop(self, event: log.ScheduleStopped) -> None:
        if self._calls is not None:
            self._calls.leave()
        self._ledger.leave()

    def _on_sent(self, event: log.MessageSent) -> None:
        source = self._channels[event.dataflow, event.channel][0]
        source.batches_out += 1
        source.records_out += event.records

    def _on_received(self, event: log.MessageReceived) -> None:
        target = self._channels[event.dataflow, event.channel][1]
        target.batches_in += 1
        target.records_in += event.records
