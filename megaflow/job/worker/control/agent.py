"""Reports of each worker of a job to its coordinator. All of this runs on the worker's thread.

The engine delivers the reports in order to the coordinating worker, even while that changes: see `Member.report`.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, field
from pathlib import Path
from typing import Any, Protocol

from megaflow.control import messages, reports
from megaflow.control.checkpoint_messages import Committed, UnderWayAtJoin
from megaflow.control.coordinator.controller.driver import TOPIC
from megaflow.control.latency import DurationLog, LatencyMeter, RateMeter
from megaflow.control.launcher_messages import Coordinates
from megaflow.control.staging_messages import StagedAnswer, StagedAsk
from megaflow.control.watermark_messages import ClockWanted
from megaflow.control.wording import quantity
from megaflow.errors import CannotTravel, ProtocolError
from megaflow.megaphone.base.bin_trial import trial
from megaflow.megaphone.folds.load_meter import Load
from megaflow.megaphone.folds.stateful_core import Core
from megaflow.program import Worker
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.class_names import ClassName, check_known

BINS_REPORTED_MAX = 1 << 16  # reported bins of one operator on one worker: the heaviest
TRIAL_SECONDS = 0.004  # of a slice; less than 5 ms with the piece that it begins last, except for a single large state
KEY_LENGTH_MAX = 60  # characters of a key in a report
STATM = Path("/proc/self/statm")  # of Linux


class Sinks(Protocol):
    """Sinks of the worker's program."""

    def hear(self, word: Committed | UnderWayAtJoin) -> None:
        """React to a message of the coordinator."""

    def statuses(self) -> tuple[reports.SinkStatus, ...]:
        """Return the status of each sink."""


@dataclass(eq=False, repr=False)
class Agent:
    """Status of a worker, and its connection to the coordinator."""

    _worker: Worker
    _address: str  # of the process's port
    _lines: Callable[[], int]  # lines read so far
    _lateness: LatencyMeter  # of these lines
    _waiting: Callable[[float], int | None] = lambda now: 0  # lines due at this time and not read; None: unknown
    _staging_lacks: Callable[[messages.CommitBatch], str | None] = lambda commit: None  # the part that is not here
    _moved: Callable[[Coordinates], None] = lambda word: None  # called when a new coordinator announces itself
    _inputs: Mapping[str, int] = field(default_factory=dict)  # named input -> lines read so far
    _partitions: Callable[[], tuple[reports.PartitionLag, ...]] = tuple  # of sources, the ones open here
    _skipped: Mapping[str, int] = field(default_factory=dict)  # input -> skipped faults
    _replaced: Mapping[str, int] = field(default_factory=dict)  # input -> sequences of bytes that are not text
    _read_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # kind -> input -> count
    _tell_once: Callable[[str, str], None] = lambda about, text: None  # gives the user a notice, once for each `about`
    _blocked: Callable[[float], dict[str, float]] = lambda now: {}  # seconds until now, by what held the source back
    _resident: Callable[[], int | None] = lambda: None  # bytes of memory that the process uses; None: not known

    def __post_init__(self) -> None:
        self.sinks: Sinks | None = None  # set when the dataflow is built
        self.outputs: Callable[[], dict[str, int]] = dict  # records of each output so far; set likewise
        self._arrived = Counter[str]()  # operator -> bins that have moved here
        self._pauses = DurationLog()  # of these bins
        self._report = self._worker.rescaling.report  # sends a report to the coordinator
        self._wants_clock = False  # as last reported
        self._began = self._worker.now()
        self._late: set[str] = set()  # operators with late records
        self._dropping: set[str] = set()  # operators whose timers were dropped
        self._rate = RateMeter()
        self._ready: Callable[[], None] | None = None  # called when this worker has joined and knows its tables
        self.trials: deque[Iterator[None]] = deque()  # of bins that are to move, for `turn`; the first is in progress
        self._worker.on_mail(TOPIC, self._read)

    def joined(self, ready: Callable[[], None]) -> None:
        """Call `ready` and tell the coordinator when the stateful operators know their tables; only after a join."""
        self._ready = ready

    def turn(self, now: float, open_epoch: int | None) -> None:
        """Send all due reports and continue trials, between two steps.

        `open_epoch` is the first epoch that may still have output, None if none has.
        """
        self._report_installed()
        views = self._worker.stateful
        for view in views:
            if view.barrier_actions is not None and view.barrier_actions.answers:
                self._report(messages.StatesShown(tuple(map(astuple, view.barrier_actions.take_answers()))))
            self._warn(view)
        if self.trials:
            self._try_on()
        self._lateness.settle(open_epoch, now)
        self._rate.observe(now, self._records())
        if self._wants_clock is not (wanted := any(view.wants_clock for view in views)):
            self._wants_clock = wanted
            self._report(ClockWanted(wanted))
        ready = self._ready
        if ready is not None and all(view.ready for view in views):
            self._ready = None
            seconds = max((view.bootstrap_seconds for view in views), default=0.0)
            self._report(messages.RoutingReady(self._worker.index, seconds))
            ready()

    def _read(self, source: int, body: Any) -> None:
        match body:
            case messages.StatusAsk(id, loads):
                self._report_installed()  # first, because the question may concern the account of a move
                self._report(self.status(id, loads))
            case StagedAsk(asker, id, commit):
                self._report(StagedAnswer(asker, id, self._staging_lacks(commit)))
            case messages.TrialAsk():
                self.trials.append(self._trial(body))
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

    def _try_on(self) -> None:
        """Continue the trials for one slice of time, because records must not wait longer."""
        end = self._worker.now() + TRIAL_SECONDS
        while self.trials and self._worker.now() < end:
            if next(self.trials[0], self) is self:
                self.trials.popleft()

    def _trial(self, asked: messages.TrialAsk) -> Iterator[None]:
        """Try the contents of bins, piece by piece, and report the result."""
        met: set[ClassName] = set()
        fault = None
        try:
            check_known(asked.classes)
            for view in self._worker.stateful:
                yield from trial(view.name, view.store, asked.bins, self._worker.now, met)
        except (CannotTravel, ProtocolError) as error:
            fault = str(error)
        self._report(messages.TrialAnswer(asked.by, asked.id, fault, tuple(sorted(met))))

    def _report_installed(self) -> None:
        """Tell the coordinator which bins have arrived since the last call."""
        entries = tuple(
            reports.LedgerEntry(view.name, row.bin, row.time, row.source, row.target, row.bytes, row.keys, row.seconds)
            for view in self._worker.stateful
            for row in view.take_ledger()
        )
        if entries:
            self._arrived.update(entry.operator for entry in entries)
            for entry in entries:
                self._pauses.add(entry.seconds)
            self._report(messages.BinsInstalled(entries))

    def _warn(self, view: Core) -> None:
        """Tell the user, once, that an operator drops late records, or that its fold has set timers that never fire."""
        is_told = view.late and not view.late_is_taken and view.open_windows is not None
        if is_told and (name := view.name) not in self._late:
            self._late.add(name)
            self._tell_once(
                f"late records of {name!r}",
                f"{name!r} drops records that arrive after their windows have closed. `megaflow control status` counts "
                "them; .late() returns them as a stream. To wait longer for late records, raise out_of_order or "
                "allowed_lateness.",
            )
        if view.timers_dropped and (name := view.name) not in self._dropping:
            self._dropping.add(name)
            self._tell_once(
                f"dropped timers of {name!r}",
                f"{name!r} set {quantity(view.timers_dropped, 'timer')} on one worker while its last timers fired, for "
                "times after the end of the input. These timers never fire; otherwise a fold that sets a timer "
                "whenever one fires would never end.",
            )

    def _records(self) -> int:
        return sum(view.records for view in self._worker.stateful)

    def status(self, id: int, loads: bool = False) -> messages.StatusAnswer:
        """Return the answer to the question `id`. Measuring `loads` may take long, see `_measured`."""
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
            read_counts={kind: dict(counts) for kind, counts in self._read_counts.items()},
            useful={
                view.name: reports.UsefulTime(view.records, view.meter.busy_seconds, view.late, view.overtaken)
                for view in views
            },
            sinks=() if self.sinks is None else self.sinks.statuses(),
            memory_bytes=self._resident(),
            blocked_seconds=self._blocked(now),
            outputs=self.outputs(),
            arrived=dict(self._arrived),
            pauses=self._pauses.durations(),
            latencies=self._lateness.log.durations(),
        )
        return messages.StatusAnswer(id, status, tuple(_measured(view) for view in (views if loads else ())))


def resident_bytes() -> int | None:
    """Return how much memory this process uses; None if the system does not report it. Cost: 10 µs."""
    try:
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return None


def state_bytes(view: Core) -> int:
    """Return about how many bytes the states of an operator take here. Cost: as `_measured`."""
    return sum(view.meter.sizes(view.store.bins, view.store.states).values())


def _measured(view: Core) -> reports.OperatorLoad:
    """Return the load of an operator. Cost: about ten milliseconds if its states are large and were not measured."""
    store = view.store
    keys = {bin: len(held) for bin, held in store.bins.items()}
    sizes = view.meter.sizes(store.bins, store.states)
    return operator_load(view.name, view.meter.load(), keys, sizes, store.bin_of_key)


def operator_load(
    name: str, load: Load, keys: Mapping[int, int], sizes: Mapping[int, int], bin_of_key: Callable[[Any], int]
) -> reports.OperatorLoad:
    """Return a worker's report on an operator: its bins with records or keys, the busiest first.

    `keys` and `sizes` cover the bins on this worker; `bin_of_key` returns the bin of a key.
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
    """Return a key as text, shortened to KEY_LENGTH_MAX characters.

    >>> shown("word"), len(shown("x" * 100))
    ("'word'", 60)
    """
    text = repr(key)
    return text if len(text) <= KEY_LENGTH_MAX else text[: KEY_LENGTH_MAX - 1] + "…"
