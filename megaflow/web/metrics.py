"""Metrics of a job in the format of Prometheus, made from statuses and events.

1. Nearly all values come from the last status: workers count for themselves, since they began. So a scrape has exact
   values also if nothing watched the job before it, and the job does nothing for metrics between two scrapes.
2. A counter never falls, except at a restart. A worker that has left keeps its part in the sums that have no label
   `worker`, as last reported; its own series end. After a restart all workers begin at zero, and so do the sums:
   Prometheus takes a smaller value as a new beginning. A count of a worker that falls also shows a restart.
3. A silent worker keeps its last values, and so does a job whose coordinator is busy. While a job recovers, it has no
   workers, and series with a label `worker` end.
4. No label contains a key or a value of the program. Labels are names of operators, inputs, outputs and sinks, and the
   ids of workers. A name may be any text, so it is made valid and cut. If two names become the same, their values are
   added, because Prometheus refuses a scrape with two samples of a series.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from megaflow.control.job_events import JobEvent, StepDone
from megaflow.control.latency import BOUNDS_SECONDS
from megaflow.control.reports import BLOCKING_LIMITS, JobStatus, WorkerStatus

WORKER_STATES: Final = ("running", "joined", "leaving", "silent")
LABEL_CHARACTERS_MAX: Final = 200

Sums: TypeAlias = dict[tuple[str, str | int], float]
"""(sum, what it is about: a name, or the number of a bucket) -> value."""

Values: TypeAlias = Iterable[tuple[tuple[str | int, ...], float]]
"""(value of each label, value of the series)."""


class Metrics(Collector):
    """The metrics of one job. One thread at a time may use it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds; it never goes back."""
        self._clock = clock
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._workers: dict[int, WorkerStatus] = {}  # members, as each reported last
        self._left: Sums = {}  # sums of workers that have left since the last restart
        self._status: JobStatus | None = None  # the last one with workers
        self._took = 0.0  # seconds, when it came
        self._began: float | None = None  # seconds, of the first status of all
        self._silent: tuple[int, ...] = ()  # workers that did not answer
        self._is_recovering = False
        self._has_resumed = False  # the next status is the first of an attempt, or one of the first
        self._attempts: tuple[int, int] | None = None  # of the first and the last event
        self._move_seconds: float | None = None  # of the last step

    def take(self, news: JobEvent | JobStatus) -> None:
        """Take what has happened: the statuses in their order, and the events in theirs."""
        if isinstance(news, JobEvent):
            self._take_event(news)
            return
        self._silent = news.silent
        if news.state == "recovering":
            self._is_recovering = True
        elif news.epoch is not None:
            self._take_workers(news)

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics in the format that a request accepts best, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _take_event(self, event: JobEvent) -> None:
        if event.number:
            self._take_attempt(event.attempt)
        if isinstance(event.body, StepDone):
            self._move_seconds = event.body.report.seconds

    def _take_attempt(self, attempt: int) -> None:
        if self._attempts is None or attempt > self._attempts[1]:
            self._has_resumed = self._attempts is not None
            self._attempts = attempt if self._attempts is None else self._attempts[0], attempt

    def _take_workers(self, status: JobStatus) -> None:
        now = self._clock()
        self._take_attempt(status.attempt)
        reported = {worker.id: worker for worker in status.workers}
        known = [(worker, reported[id]) for id, worker in self._workers.items() if id in reported]
        if self._is_recovering or self._has_resumed or any(has_fallen(before, after) for before, after in known):
            self._forget()
        for id in self._workers.keys() - reported.keys() - set(status.silent):
            add(self._left, sums_of(self._workers.pop(id)))
        self._workers |= reported
        self._status, self._took = status, now
        self._began = now if self._began is None else self._began

    def _forget(self) -> None:
        """Begin at zero, because the job has resumed from a checkpoint."""
        self._workers.clear()
        self._left.clear()
        self._began, self._is_recovering, self._has_resumed = None, False, False

    # Families

    def collect(self) -> Iterator[Metric]:
        """Yield all families; only the registry calls it."""
        yield from self._of_workers()
        yield from self._of_job()
        yield from self._of_checkpoints()

    def _of_workers(self) -> Iterator[Metric]:
        """Yield what each worker has by itself."""
        workers = [] if self._is_recovering else list(self._workers.values())
        yield counter(
            "records_total", "Records that stateful operators have applied.", ("operator", "worker"),
            (((name, each.id), applied.records) for each in workers for name, applied in each.useful.items()),
        )  # fmt: skip
        yield counter(
            "backpressure_seconds_total",
            "Seconds for which a source had something to read and was held back, by the limit that held it back.",
            ("worker", "limit"),
            (((each.id, limit), each.blocked_seconds.get(limit, 0.0)) for each in workers for limit in BLOCKING_LIMITS),
        )
        yield gauge("bins", "Bins that a worker owns.", ("worker",), (((each.id,), each.bins) for each in workers))
        first = {each.address: each for each in sorted(workers, key=lambda each: -each.id)}  # of each process
        yield gauge(
            "memory_bytes", "Memory of a process, under the lowest of its workers.", ("worker",),
            (((each.id,), each.memory_bytes) for each in first.values() if each.memory_bytes is not None),
        )  # fmt: skip
        silent = 0 if self._is_recovering else len(self._silent)
        states = Counter(each.state for each in workers if each.id not in self._silent) + Counter(silent=silent)
        yield gauge(
            "workers", "Workers of the job, by state.", ("state",), (((each,), states[each]) for each in WORKER_STATES)
        )
        yield gauge(
            "source_lag_records", "Records that exist in a source and are not read.", ("input",),
            (
                ((part.input,), part.lag) for each in workers for part in each.partitions if part.lag is not None
            ),
        )  # fmt: skip

    def _of_job(self) -> Iterator[Metric]:
        """Yield the sums over all workers."""
        sums = dict(self._left)
        for worker in self._workers.values():
            add(sums, sums_of(worker))
        for name, about, text in (
            ("late_records", "operator", "Records that came too late for all their windows."),
            ("output_records", "output", "Records of outputs and of sinks; the output without a name is the returned."),
            ("dead_letters", "input", "Faulty records that were left out, because of on_error='skip'."),
            ("bin_moves", "operator", "Bins that have arrived at a new owner."),
        ):
            values = (((each,), value) for (sum, each), value in sums.items() if sum == name)
            yield counter(f"{name}_total", text, (about,), values)
        yield histogram("latency_seconds", "Latency of lines, from read until their epoch was complete.", sums)
        yield histogram("bin_pause_seconds", "Seconds for which the records of a bin waited while it moved.", sums)
        yield gauge(
            "bin_move_duration_seconds", "Duration of the last step of a move, from its command until it was complete.",
            (), single(self._move_seconds),
        )  # fmt: skip
        restarts = 0 if self._attempts is None else self._attempts[1] - self._attempts[0]
        yield counter("restarts_total", "Times that the job has resumed after it lost a process.", (), single(restarts))
        mark = None if self._status is None else self._status.watermark
        lag = None if mark is None or mark.is_infinite else mark.lag_seconds
        text = "Seconds of event time from the watermark to the newest timestamp."
        yield gauge("watermark_lag_seconds", text, (), single(lag))

    def _of_checkpoints(self) -> Iterator[Metric]:
        last = None if self._status is None else self._status.checkpoint
        age = seconds = size = None
        if last is not None:
            now = self._clock()
            since = self._began if last.number is None else self._took - last.age_seconds
            age = now - (now if since is None else since)
            seconds, size = last.seconds if last.seconds else None, last.total_bytes
        text = "Seconds since the last checkpoint was complete or, if there is none, since the metrics began."
        yield gauge("checkpoint_age_seconds", text, (), single(age))
        yield gauge("checkpoint_duration_seconds", "Duration of the last checkpoint.", (), single(seconds))
        yield counter("checkpoint_bytes_total", "Bytes written for checkpoints.", (), single(size))


# Sums ---------------------------------------------------------------------------------


def sums_of(worker: WorkerStatus) -> Sums:
    """Return a worker's part of the sums over all workers."""
    sums: Sums = {}
    for name, durations in (("latency_seconds", worker.latencies), ("bin_pause_seconds", worker.pauses)):
        sums[name, "sum"] = durations.seconds
        sums |= {(name, bucket): count for bucket, count in enumerate(durations.counts)}
    for name, applied in worker.useful.items():
        sums["late_records", name] = applied.late
        sums["bin_moves", name] = worker.arrived.get(name, 0)
    sums |= {("output_records", name): records for name, records in worker.outputs.items()}
    add(sums, {("output_records", each.sink): each.written for each in worker.sinks})
    sums |= {("dead_letters", name): 0 for name in ("", *worker.inputs)}  # so that the first fault is an increase
    return sums | {("dead_letters", name): faults for name, faults in worker.skipped.items()}


def add(sums: Sums, more: Sums) -> None:
    """Add sums to others.

    >>> sums: Sums = {("late_records", "count"): 1}
    >>> add(sums, {("late_records", "count"): 2, ("late_records", "join"): 3})
    >>> sums
    {('late_records', 'count'): 3, ('late_records', 'join'): 3}
    """
    for each, value in more.items():
        sums[each] = sums.get(each, 0) + value


def has_fallen(before: WorkerStatus, after: WorkerStatus) -> bool:
    """Return whether a count of a worker is lower than before: then it is another one with the same id."""
    sums = sums_of(after)
    return before.records > after.records or any(sums.get(each, 0) < value for each, value in sums_of(before).items())


# Samples ------------------------------------------------------------------------------


def counter(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    """Return the family of a counter, whose name ends in _total."""
    return filled(CounterMetricFamily(f"megaflow_{name}", text, labels=labels), values)


def gauge(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    """Return the family of a gauge."""
    return filled(GaugeMetricFamily(f"megaflow_{name}", text, labels=labels), values)


def histogram(name: str, text: str, sums: Sums) -> Metric:
    """Return the family of a histogram without labels; `sums` has its buckets and its sum."""
    family = HistogramMetricFamily(f"megaflow_{name}", text)
    counts = accumulate(sums.get((name, bucket), 0) for bucket in range(len(BOUNDS_SECONDS) + 1))
    bounds = (*map(str, BOUNDS_SECONDS), "+Inf")
    family.add_metric([], list(zip(bounds, counts)), sums.get((name, "sum"), 0.0))
    return family


def single(value: float | None) -> Values:
    """Return the one series of a family without labels; None: there is no value now."""
    return () if value is None else (((), value),)


def filled(family: CounterMetricFamily | GaugeMetricFamily, values: Values) -> Metric:
    """Return the family with its series."""
    series: dict[tuple[str, ...], float] = {}
    for labels, value in values:
        shown = tuple(map(label, labels))
        series[shown] = series.get(shown, 0) + value
    for shown, value in series.items():
        family.add_metric(shown, value)
    return family


def label(value: str | int) -> str:
    r"""Return a name as the value of a label: valid UTF-8 of bounded length. The library escapes the rest.

    >>> label("count"), label(7), label("\udc80"), len(label("x" * 1000))
    ('count', '7', '\\udc80', 200)
    """
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")[:LABEL_CHARACTERS_MAX]
