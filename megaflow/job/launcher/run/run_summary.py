"""Summary of a run, from the final reports of its workers, and the text that reports the end of the run."""

from collections import Counter
from collections.abc import Callable
from dataclasses import field

from megaflow.control.checkpoint_messages import LeftOut
from megaflow.control.latency import merged
from megaflow.control.launcher_messages import Ended, LatencyWindow, OutputClosed, Unfinished
from megaflow.control.reports import LatencyQuantiles, MissingPartition
from megaflow.control.wording import Notice, add_counts, dropped_texts, missing_text, quantity, summed_texts
from megaflow.errors import SourceError
from megaflow.quick_dataclass import dataclass

LATENCY_SECONDS = 120.0  # as much as a busy worker's log covers


@dataclass(slots=True, repr=False)
class RunSummary:
    """Summary of a run. However many workers come and go, it holds as many latencies as one worker.

    If there was a restart, the counts are those since the last one: `since` is its checkpoint.
    """

    lines: int = 0
    records: int = 0
    seconds: float = 0.0
    interrupted: bool = False  # by Ctrl-C
    since: int | None = None  # checkpoint of the last restart, if there was one
    restarts: int = 0  # after the loss of processes
    open: Unfinished = Unfinished()  # at the end
    early: Unfinished = Unfinished()  # closed or fired because the job ended
    skipped: Counter[str] = field(default_factory=Counter)  # input -> faults skipped
    replaced: Counter[str] = field(default_factory=Counter)  # input -> byte sequences that are not text
    read_counts: dict[str, Counter[str]] = field(default_factory=dict)  # kind -> input: see `wording.READ_COUNTS`
    late: Counter[str] = field(default_factory=Counter)  # operator with windows -> late records left out
    windowed: Counter[str] = field(default_factory=Counter)  # operator with windows -> records received
    missing: tuple[MissingPartition, ...] = ()  # that no process could open
    stopped_at: int | None = None  # checkpoint of a stop: lines and records count up to there
    latency: list[LatencyWindow] = field(default_factory=list)  # of all workers together, oldest first; only the newest
    flows: list[tuple[float, float]] = field(default_factory=list)  # when lines flowed on any worker: one span, or none

    def __repr__(self) -> str:
        return f"<RunSummary: {ended_text(self)}>"

    @property
    def flow_seconds(self) -> float:
        """Seconds from the first line read to the last epoch closed, on one machine, without the start of processes."""
        return sum(end - begin for begin, end in self.flows)

    def latency_between(self, start: float, end: float) -> LatencyQuantiles:
        """Return p50, p99 and maximum, in milliseconds, of the lines finished in [start, end).

        A line's latency is the time from when it was read, or was due, until its epoch closed. `start` and `end` are
        readings of `time.monotonic()` on the machine of the workers. The summary keeps latencies of the last two busy
        minutes, in tenths of a second.
        """
        late = merged(window for window in self.latency if start <= window.start < end)
        return LatencyQuantiles(late.quantile(0.5), late.quantile(0.99), late.max_ms)

    def add(self, ended: Ended) -> None:
        """Add the final report of a worker, which may have ended long before the others."""
        self.lines += ended.lines
        self.records += ended.records
        self.leave_out(ended.left_out)
        self.missing += ended.missing
        self.open += ended.open
        self.early += ended.early
        if ended.latency:
            windows = {window.start: window for window in self.latency}
            for window in ended.latency:
                if (other := windows.get(window.start)) is not None:
                    both = Counter(other.buckets) + Counter(window.buckets)
                    window = LatencyWindow(window.start, dict(both), max(other.max_ms, window.max_ms))
                windows[window.start] = window
            kept_from = max(windows) - LATENCY_SECONDS
            self.latency = [window for start, window in sorted(windows.items()) if start > kept_from]
        if ended.flow is not None:
            begins, ends = zip(ended.flow, *self.flows)
            self.flows = [(min(begins), max(ends))]

    def leave_out(self, what: LeftOut) -> None:
        """Add what workers have left out."""
        self.skipped.update(what.skipped)
        self.replaced.update(what.replaced)
        add_counts(self.read_counts, what.read_counts)
        self.late.update(what.late)
        self.windowed.update(what.windowed)


def ended_text(summary: RunSummary, noun: str = "line") -> str:
    """Return the text about the end of a run: a warning if records or faults were left out, otherwise a Notice.

    >>> ended_text(RunSummary(3, 2, 0.4, stopped_at=7))
    '3 lines, 2 records, 0.40 seconds; stopped at checkpoint 7; run the same command again to resume'
    >>> ended_text(RunSummary(3, 2, 0.4, skipped=Counter({"": 1})))
    '3 lines, 2 records, 0.40 seconds; 1 fault skipped'
    """
    since = "" if summary.since is None else f" since checkpoint {summary.since}"
    counts = f"{quantity(summary.lines, noun)}, {quantity(summary.records, 'record')}{since}"
    lost = summed_texts(summary.skipped, summary.replaced, summary.read_counts)
    lost += dropped_texts(summary.late, summary.windowed)
    parts = [f"{counts}, {summary.seconds:.2f} seconds", *lost]
    if summary.stopped_at is not None:
        parts += [f"stopped at checkpoint {summary.stopped_at}", "run the same command again to resume"]
    return "; ".join(parts) if lost else Notice("; ".join(parts))


def report_end(summary: RunSummary, noun: str, is_kept: bool, report: Callable[[str], None]) -> None:
    """Report the end of a run. `is_kept`: the job keeps its positions, so the next run reads what this one did not.

    Raises SourceError if bytes were not read that no other run will read.
    """
    report(ended_text(summary, noun))
    if summary.missing and not is_kept:
        what = "; ".join(map(missing_text, summary.missing))
        raise SourceError(
            f"The job has ended without all of its input: {what}. Run it again when it can be read. As it has no "
            "--state, it then reads all input from the beginning."
        )


class RecordsBefore:
    """Number of records before the epoch of the newest checkpoint, of workers that have not ended.

    >>> records = RecordsBefore()
    >>> records.begin(5)
    >>> records.add(OutputClosed(0, 7, ((4, 10), (5, 2), (6, 1))))
    >>> records.total
    10
    """

    def __init__(self) -> None:
        self._epoch = 0  # of the checkpoint
        self._before = Counter[int]()  # worker -> records
        self._later = Counter[tuple[int, int]]()  # (epoch, worker) -> records

    @property
    def total(self) -> int:
        """Number for all workers together."""
        return self._before.total()

    def begin(self, epoch: int) -> None:
        """Note that a checkpoint has begun. Costs O(epochs that have closed since the previous one)."""
        self._epoch = epoch
        for each, worker in [key for key in self._later if key[0] < epoch]:
            self._before[worker] += self._later.pop((each, worker))

    def add(self, closed: OutputClosed) -> None:
        """Count the records that a worker has put out."""
        for epoch, records in closed.counts:
            if epoch < self._epoch:
                self._before[closed.worker] += records
            else:
                self._later[epoch, closed.worker] += records

    def ended(self, worker: int) -> None:
        """Forget a worker, which has reported all of its records."""
        del self._before[worker]
        self._later = Counter({key: records for key, records in self._later.items() if key[1] != worker})


def unfinished_texts(summary: RunSummary, is_kept: bool, stopped: bool) -> list[str]:
    """Return what a run reports at its end about windows and timers. `is_kept`: the job keeps its state.

    >>> unfinished_texts(RunSummary(early=Unfinished(2, 0, 1)), is_kept=False, stopped=True)
    ['the stop closed early: 2 windows, 1 clock timer']
    """
    texts: list[str] = []
    if (early := unfinished_text(summary.early)) and (is_kept or stopped):
        texts.append(Notice(f"{'the stop' if stopped else '--close-windows'} closed early: {early}"))
    if (left := unfinished_text(summary.open)) and is_kept:
        texts.append(Notice(f"still open: {left}; the next run continues them, or closes them with --close-windows"))
    elif left:
        texts.append(Notice(f"discarded by the stop: {left}"))
    return texts


def unfinished_text(what: Unfinished) -> str:
    """Return the text about open windows and timers; "" if there are none.

    >>> unfinished_text(Unfinished(2, 1, 0)), unfinished_text(Unfinished())
    ('2 windows, 1 event timer', '')
    """
    counts = (what.windows, "window"), (what.timers, "event timer"), (what.clock_timers, "clock timer")
    return ", ".join(quantity(count, noun) for count, noun in counts if count)
