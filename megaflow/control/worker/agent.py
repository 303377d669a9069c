"""What each worker of a job tells its coordinator. All runs on the worker's thread.

The engine brings the reports to the worker that coordinates, in order, also while that changes: see `Member.report`.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, field
from typing import Any, Protocol

from megaflow.control import reports
from megaflow.control.checkpoint_messages import Committed, UnderWayAtJoin
from megaflow.control.coordinator.driver import TOPIC
from megaflow.control.latency import Lateness, RateMeter
from megaflow.control.launcher_messages import Coordinates
from megaflow.control.messages import (
    BinsInstalled,
    CommitBatch,
    RoutingReady,
    StatesShown,
    StatusAnswer,
    StatusAsk,
    TrialAnswer,
    TrialAsk,
)
from megaflow.control.staging_messages import StagedAnswer, StagedAsk
from megaflow.control.watermark_messages import ClockWanted
from megaflow.control.wording import quantity
from megaflow.errors import CannotTravel, ProtocolError
from megaflow.megaphone.bin_trial import trial
from megaflow.megaphone.load_meter import Load, bin_sizes
from megaflow.megaphone.stateful_core import Core
from megaflow.program import Worker
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.class_names import ClassName, check_known

BINS_REPORTED_MAX = 1 << 16  # of one operator on one worker, the heaviest
TRIAL_SECONDS = 0.004  # of a slice; with the piece that is begun in it less than 5 ms, but for a single large state
KEY_LENGTH_MAX = 60  # characters that are shown


class Sinks(Protocol):
    """What the worker's program writes to by itself."""

    def hear(self, word: Committed | UnderWayAtJoin) -> None:
        """Do what follows from a word of the coordinator's."""

    def statuses(self) -> tuple[reports.SinkStatus, ...]:
        """Say how far they are."""


@dataclass(eq=False, repr=False)
class Agent:
    """What a worker says of itself, and its way to the coordinator."""

    _worker: Worker
    _address: str  # the process's port
    _lines: Callable[[], int]  # how many were read
    _lateness: Lateness  # of those lines
    _waiting: Callable[[float], int | None] = lambda now: 0  # lines that are due now and not read; None: unknown
    _staging_lacks: Callable[[CommitBatch], str | None] = lambda commit: None  # which of its lines are not here
    _moved: Callable[[Coordinates], None] = lambda word: None  # called when another coordinator says that it serves
    _inputs: Mapping[str, int] = field(default_factory=dict)  # those that have names: how many lines were read of it
    _partitions: Callable[[], tuple[reports.PartitionLag, ...]] = tuple  # of sources, that are open here
    _skipped: Mapping[str, int] = field(default_factory=dict)  # input -> lines that were left out
    _replaced: Mapping[str, int] = field(default_factory=dict)  # input -> sequences of bytes that are not text
    _tell_once: Callable[[str, str], None] = lambda about, text: None  # has the user told of something

    def __post_init__(self) -> None:
        self.sinks: Sinks | None = None  # once the dataflow is built
        self._report = self._worker.rescaling.report  # tells the coordinator
        self._wants_clock = False  # as was reported last
        self._began = self._worker.now()
        self._late: set[str] = set()  # operators with late records
        self._dropping: set[str] = set()  # operators whose timers were dropped
        self._rate = RateMeter()
        self._ready: Callable[[], None] | None = None  # told when this worker, which has joined, knows its tables
        self._trials: deque[Iterator[None]] = deque()  # of bins that are to move; the first is under way
        self._worker.on_mail(TOPIC, self._read)

    def joined(self, ready: Callable[[], None]) -> None:
        """Tell the coordinator, and `ready`, when the stateful operators know their tables; for one that has joined."""
        self._ready = ready

    def turn(self, now: float, open_epoch: int | None) -> None:
        """Do the books between two steps; `open_epoch` is the first that may still have output, None if none has."""
        self._report_installed()
        self._report_shown()
        self._tell_of_late()
        self._tell_of_dropped()
        if self._trials:
            self._try_on()
        self._lateness.settle(open_epoch, now)
        self._rate.observe(now, self._records())
        views = self._worker.stateful
        if self._wants_clock is not (wanted := any(view.wants_clock for view in views)):
            self._wants_clock = wanted
            self._report(ClockWanted(wanted))
        ready = self._ready
        if ready is not None and all(view.ready for view in views):
            self._ready = None
            seconds = max((view.bootstrap_seconds for view in views), default=0.0)
            self._report(RoutingReady(self._worker.index, seconds))
            ready()

    def _read(self, source: int, body: Any) -> None:
        match body:
            case StatusAsk(id, loads):
                self._report_installed()  # first, for what is asked may be the account of a move
                self._report(self.status(id, loads))
            case StagedAsk(asker, id, commit):
                self._report(StagedAnswer(asker, id, self._staging_lacks(commit)))
            case TrialAsk():
                self._trials.append(self._trial(body))
            case Coordinates():
                self._moved(body)
            case Committed(number):
                for view in self._worker.stateful:
                    if view.journal is not None:
                        view.journal.committed(number)
                if self.sinks is not None:
                    self.sinks.hear(body)
            case UnderWayAtJoin() if self.sinks is not None:
                self.sinks.hear(body)
            case _:
                raise ProtocolError(f"worker {source} sent worker {self._worker.index} an unexpected {body!r:.100}")

    @property
    def is_trying(self) -> bool:
        """Whether `turn` has more to do at once."""
        return bool(self._trials)

    def _try_on(self) -> None:
        """Go on with the trials, for a slice of time: records must not wait longer."""
        end = self._worker.now() + TRIAL_SECONDS
        while self._trials and self._worker.now() < end:
            if next(self._trials[0], self) is self:
                self._trials.popleft()

    def _trial(self, asked: TrialAsk) -> Iterator[None]:
        """Try what is in bins and report what came of it; bit by bit."""
        met: set[ClassName] = set()
        fault = None
        try:
            check_known(asked.classes)
            for view in self._worker.stateful:
                yield from trial(view.name, view.store, asked.bins, self._worker.now, met)
        except (CannotTravel, ProtocolError) as error:
            fault = str(error)
        self._report(TrialAnswer(asked.by, asked.id, fault, tuple(sorted(met))))

    def _report_installed(self) -> None:
        """Tell the coordinator which bins have come since the last time."""
        entries = tuple(
            reports.LedgerEntry(view.name, row.bin, row.time, row.source, row.target, row.bytes, row.keys, row.seconds)
            for view in self._worker.stateful
            for row in view.take_ledger()
        )
        if entries:
            self._report(BinsInstalled(entries))

    def _report_shown(self) -> None:
        """Tell the coordinator the states that were asked for since the last time."""
        for view in self._worker.stateful:
            if view.moments is not None and view.moments.answers:
                self._report(StatesShown(tuple(map(astuple, view.moments.take_answers()))))

    def _tell_of_late(self) -> None:
        """Have the user told, once, that an operator has late records, of which the program knows nothing."""
        for view in self._worker.stateful:
            if view.late and not view.late_is_taken and view.name not in self._late:
                self._late.add(view.name)
                self._tell_once(
                    f"late records of {view.name!r}",
                    f"{view.name!r} drops records that arrive after their windows have closed. `megaflow control "
                    "status` counts them; .late() returns them as a stream. To wait longer for late records, raise "
                    "out_of_order or allowed_lateness.",
                )

    def _tell_of_dropped(self) -> None:
        """Have the user told, once, that a fold has set timers that will never fire."""
        for view in self._worker.stateful:
            if (dropped := view.timers_dropped) and view.name not in self._dropping:
                self._dropping.add(view.name)
                self._tell_once(
                    f"dropped timers of {view.name!r}",
                    f"{view.name!r} set {quantity(dropped, 'timer')} on one worker while its last timers fired, for "
                    "times after the end of the input. These timers never fire; otherwise a fold that sets a timer "
                    "whenever one fires would never end.",
                )

    def _records(self) -> int:
        return sum(view.records for view in self._worker.stateful)

    def status(self, id: int, loads: bool = False) -> StatusAnswer:
        """The answer to the question `id`. `loads` take their time."""
        views = self._worker.stateful
        now = self._worker.now()
        self._rate.observe(now, self._records())
        recent = self._lateness.log.recent()
        status = reports.WorkerStatus(
            id=self._worker.index,
            state="",
            pid=os.getpid(),
            address=self._address,
            lines=self._lines(),
            records=self._records(),
            records_per_second=self._rate.per_second(),
            latency_ms=reports.LatencyQuantiles(recent.quantile(0.5), recent.quantile(0.99), recent.max_ms),
            bins=max((len(view.owned()) for view in views), default=0),
            keys=sum(view.keys() for view in views),
            done=self._lateness.done,
            waiting=self._waiting(now),
            now=now,
            busy_seconds=now - self._began - self._worker.parked_seconds,
            timers=sum(view.store.timers.count() for view in views) if loads else None,
            inputs=dict(self._inputs),
            partitions=self._partitions(),
            skipped=dict(self._skipped),
            replaced=dict(self._replaced),
            useful={
                view.name: reports.UsefulTime(view.records, view.meter.busy_seconds, view.late, view.overtaken)
                for view in views
            },
            sinks=() if self.sinks is None else self.sinks.statuses(),
        )
        return StatusAnswer(id, status, tuple(_measured(view) for view in (views if loads else ())))


def _measured(view: Core) -> reports.OperatorLoad:
    """The load of an operator. Cost: some ten milliseconds if its states are large."""
    store = view.store
    keys = {bin: len(held) for bin, held in store.bins.items()}
    return operator_load(view.name, view.meter.load(), keys, bin_sizes(store.bins, store.states), store.bin_of_key)


def operator_load(
    name: str, load: Load, keys: Mapping[int, int], sizes: Mapping[int, int], bin_of_key: Callable[[Any], int]
) -> reports.OperatorLoad:
    """Return what a worker says of an operator: bins with records or keys, the busiest first.

    `keys` and `sizes` are those of the bins that are here, `bin_of_key` gives the bin of a key.
    """
    nothing = (0.0, 0.0)
    named = [bin for bin in load.bins.keys() | keys.keys() if bin in load.bins or keys[bin]]
    named.sort(key=lambda bin: (*(-figure for figure in reversed(load.bins.get(bin, nothing))), bin))
    bins = named[:BINS_REPORTED_MAX]
    return reports.OperatorLoad(
        name,
        tuple(bins),
        tuple(load.bins.get(bin, nothing)[0] for bin in bins),
        tuple(load.bins.get(bin, nothing)[1] * 1000 for bin in bins),
        tuple(keys.get(bin, 0) for bin in bins),
        tuple(sizes.get(bin, 0) for bin in bins),
        tuple(
            (shown(key), bin_of_key(key), count, error) for key, count, error in load.keys[: reports.KEYS_REPORTED_MAX]
        ),
    )


def shown(key: object) -> str:
    """Return what a key looks like.

    >>> shown("word"), len(shown("x" * 100))
    ("'word'", 60)
    """
    text = repr(key)
    return text if len(text) <= KEY_LENGTH_MAX else text[: KEY_LENGTH_MAX - 1] + "…"
