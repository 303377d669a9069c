"""The rows of a profile, and the clock that charges them: operators, and parts of the engine.

Exactly one row is on the clock at any moment. A switch reads the clock once and charges the time since the last switch
to the row that was on it. So the rows add up to the worker's wall time, and no time is counted twice.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from megaflow.quick_dataclass import dataclass

BUILDING = "building"
PROGRESS = "progress and scheduling"
TRANSPORT = "transport"
STEERING = "steering"
PARKED = "parked"
ENGINE = {  # row -> what it is, for people
    BUILDING: "loading the program and building its dataflow",
    PROGRESS: "what the worker does between its operators, including keeping this profile",
    TRANSPORT: "encoding, sending, receiving and decoding data between workers, for all operators",
    STEERING: "commands, statistics, reports to the coordinator",
    PARKED: "waiting for work, and reading the event that ends the wait",
}

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
    ended: bool  # else it was written on the way, by a worker that was killed later
    rows: tuple[Tally, ...]


class Ledger:
    """Charges each row with the time that it is on the clock.

    >>> seconds = iter([0.0, 1.0, 3.0, 6.0])
    >>> idle, busy = Tally("engine", "idle"), Tally("operator", "Map")
    >>> ledger = Ledger(idle, lambda: next(seconds))
    >>> ledger.enter(busy); ledger.leave(); ledger.settle()
    >>> idle.seconds, busy.seconds, ledger.seconds
    (4.0, 2.0, 6.0)
    """

    __slots__ = ("_below", "_now", "_row", "_since", "began")

    def __init__(self, row: Tally, now: Callable[[], float] = time.perf_counter) -> None:
        """`row` is charged whenever no other is."""
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
        """Take off the clock the row that entered last."""
        self.settle()
        self._row = self._below.pop()

    def settle(self) -> None:
        """Charge what has passed."""
        now = self._now()
        self._row.seconds += now - self._since
        self._since = now

    @contextlib.contextmanager
    def on(self, row: Tally) -> Iterator[None]:
        """Put a row on the clock, in the block."""
        self.enter(row)
        try:
            yield
        finally:
            self.leave()
