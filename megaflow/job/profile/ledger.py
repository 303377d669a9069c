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
"""A function under `--profile-calls`: name, file:line, calls, seconds in it alone, seconds with all that it called."""


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
    """Content of a worker's file."""

    worker: int
    pid: int
    seconds: float  # wall time, the sum of the rows
    processor_seconds: float  # of its thread
    ended: bool  # False: the worker was killed before it could write its last file
    rows: tuple[Tally, ...]


class Ledger:
    """Charges each row with the time for which it is on the clock.

    >>> seconds = iter([0.0, 1.0, 3.0, 6.0])
    >>> idle, busy = Tally("engine", "idle"), Tally("operator", "Map")
    >>> ledger = Ledger(idle, lambda: next(seconds))
    >>> ledger.enter(busy); ledger.leave(); ledger.settle()
    >>> idle.seconds, busy.seconds, ledger.seconds
    (4.0, 2.0, 6.0)
    """

    __slots__ = ("_below", "_now", "_row", "_since", "began")

    def __init__(self, row: Tally, now: Callable[[], float] = time.perf_counter) -> None:
        """`row` is charged whenever no other row is."""
        self._now = now
        self._row = row
        self._below: list[Tally] = []  # interrupted rows, the latest last
        self.began = self._since = now()

    @property
    def seconds(self) -> float:
        """Seconds from the beginning to the last switch."""
        return self._since - self.began

    def enter(self, row: Tally) -> None:
        """Put a row on the clock. The row before it is off the clock until `leave`."""
        self.settle()
        row.activations += 1
        self._below.append(self._row)
        self._row = row

    def leave(self) -> None:
        """Take the row that entered last off the clock, and put the row before it back."""
        self.settle()
        self._row = self._below.pop()

    def settle(self) -> None:
        """Charge the time since the last switch to the row on the clock."""
        now = self._now()
        self._row.seconds += now - self._since
        self._since = now

    @contextlib.contextmanager
    def on(self, row: Tally) -> Iterator[None]:
        """Put a row on the clock for the block."""
        self.enter(row)
        try:
            yield
        finally:
            self.leave()
