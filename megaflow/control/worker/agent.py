"""What each worker of a job tells its coordinator. All runs on the worker's thread.

The engine brings the reports to the worker that coordinates, in order, also while that changes: see `Member.report`.
"""

import os
from collections.abc import Callable
from typing import Any

from megaflow.control.coordinator.driver import TOPIC
from megaflow.control.load_records import operator_load
from megaflow.control.messages import (
    Coordinates,
    LedgerEntry,
    RoutingReady,
    StatusAsk,
    WorkerStatus,
)
from megaflow.control.worker.latency import Lateness, RateMeter
from megaflow.errors import ProtocolError
from megaflow.program import Worker


class Agent:
    """What a worker says of itself, and its way to the coordinator."""

    def __init__(
        self,
        worker: Worker,
        address: str,
        lines: Callable[[], int],
        lateness: Lateness,
        waiting: Callable[[float], int | None] = lambda now: 0,
        moved: Callable[[Coordinates], None] = lambda word: None,
    ) -> None:
        """`address` is the process's port; `lines` tells how many lines were read, `lateness` how late they were.

        `waiting` tells how many are due now and not read, None if nobody knows; `moved` is called when another
        coordinator says that it serves.
        """
        self._worker = worker
        self._moved = moved
        self._address = address
        self._lines = lines
        self._lateness = lateness
        self._waiting = waiting
        self._began = worker.now()
        self._rate = RateMeter()
        self._learning = False  # this worker has joined, and its operators do not all know their tables
        worker.on_mail(TOPIC, self._read)

    def joined(self) -> None:
        """Tell the coordinator when the stateful operators know their tables; for a worker that has just joined."""
        self._learning = True

    def report(self, body: object) -> None:
        """Tell the coordinator."""
        self._worker.rescaling.report(body)

    def turn(self, now: float, open_epoch: int | None) -> None:
        """Do the books between two steps; `open_epoch` is the first that may still have output, None if none has."""
        self._lateness.settle(open_epoch, now)
        self._rate.observe(now, self._records())
        views = self._worker.stateful
        if self._learning and all(view.ready for view in views):
            self._learning = False
            seconds = max((view.bootstrap_seconds for view in views), default=0.0)
            self.report(RoutingReady(self._worker.index, seconds))

    def _read(self, source: int, body: Any) -> None:
        match body:
            case StatusAsk(id, loads):
                self.report(self.status(id, loads))
            case Coordinates():
                self._moved(body)
            case _:
                raise ProtocolError(f"worker {source} mailed {body!r:.100} to worker {self._worker.index}")

    def _records(self) -> int:
        return sum(view.records for view in self._worker.stateful)

    def status(self, id: int, loads: bool = False) -> WorkerStatus:
        """The answer to the question `id`; the ledger's new rows go with it, once. `loads` take their time."""
        views = self._worker.stateful
        now = self._worker.now()
        self._rate.observe(now, self._records())
        recent = self._lateness.log.recent()
        return WorkerStatus(
            id=id,
            worker=self._worker.index,
            pid=os.getpid(),
            address=self._address,
            lines=self._lines(),
            records=self._records(),
            records_per_second=self._rate.per_second(),
            latency_ms_p50=recent.quantile(0.5),
            latency_ms_p99=recent.quantile(0.99),
            latency_ms_max=recent.max_ms,
            bins={view.name: len(view.owned()) for view in views},
            keys={view.name: view.keys() for view in views},
            ledger=tuple(
                LedgerEntry(view.name, row.bin, row.time, row.source, row.target, row.bytes, row.keys, row.seconds)
                for view in views
                for row in view.take_ledger()
            ),
            loads=tuple(
                operator_load(view.name, view.load(), view.keys_by_bin(), view.bytes_by_bin(), view.bin_of_key)
                for view in views
            ) if loads else (),
            now=now,
            busy_seconds=now - self._began - self._worker.parked_seconds,
            done=self._lateness.done,
            waiting=self._waiting(now),
            useful={view.name: (view.records, view.meter.busy_seconds) for view in views},
        )
