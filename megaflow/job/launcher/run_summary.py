"""Summary of a run, from the reports of its workers at their end."""

from collections import Counter
from dataclasses import field

from megaflow.control.latency import merged
from megaflow.control.launcher_messages import Ended, LatencyWindow, Unfinished
from megaflow.control.reports import LatencyQuantiles
from megaflow.control.wording import quantity
from megaflow.quick_dataclass import dataclass

LATENCY_SECONDS = 120.0  # as long as the log of a busy worker


@dataclass(slots=True)
class RunSummary:
    """Summary of a run. However many workers come and go, it holds as many latencies as one worker."""

    lines: int = 0
    records: int = 0
    seconds: float = 0.0
    interrupted: bool = False  # by Ctrl-C
    since: int | None = None  # the checkpoint of the last restart, if there was one: lines and records count from there
    open: Unfinished = Unfinished()  # at the end
    early: Unfinished = Unfinished()  # what was closed, or fired, because the job has ended
    skipped: Counter[str] = field(default_factory=Counter)  # input -> lines that were left out
    replaced: Counter[str] = field(default_factory=Counter)  # input -> sequences of bytes that are not text
    stopped_at: int | None = None  # the checkpoint that a stop has left; the counts are then not known
    latency: list[LatencyWindow] = field(default_factory=list)  # of all workers together, oldest first; the newest
    flows: list[tuple[float, float]] = field(default_factory=list)  # when lines flowed, on any worker: one, if they did

    @property
    def flow_seconds(self) -> float:
        """Seconds from the first line read to the last epoch closed, on one machine, without the start of processes."""
        return sum(end - begin for begin, end in self.flows)

    def latency_between(self, start: float, end: float) -> LatencyQuantiles:
        """Return p50, p99 and maximum, in milliseconds, of the lines that were done in [start, end).

        A line's latency is the time from when it was read, or was due, until its epoch closed. `start` and `end` are
        readings of `time.monotonic()` on the machine of the workers. Latencies of the last two busy minutes are kept,
        in tenths of a second.
        """
        late = merged(window for window in self.latency if start <= window.start < end)
        return LatencyQuantiles(late.quantile(0.5), late.quantile(0.99), late.max_ms)

    def add(self, ended: Ended) -> None:
        """Add the report of a worker that has ended, perhaps long before the others."""
        self.lines += ended.lines
        self.records += ended.records
        self.skipped.update(ended.skipped)
        self.replaced.update(ended.replaced)
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


def unfinished_texts(summary: RunSummary, is_kept: bool, stopped: bool) -> list[str]:
    """Return what a run reports at its end of windows and timers. `is_kept`: the job keeps its state.

    >>> unfinished_texts(RunSummary(early=Unfinished(2, 0, 1)), is_kept=False, stopped=True)
    ['the stop closed early: 2 windows, 1 clock timer']
    """
    texts = []
    if (early := unfinished_text(summary.early)) and (is_kept or stopped):
        texts.append(f"{'the stop' if stopped else '--close-windows'} closed early: {early}")
    if (left := unfinished_text(summary.open)) and is_kept:
        texts.append(f"still open: {left}; the next run continues them, or closes them with --close-windows")
    elif left:
        texts.append(f"discarded by the stop: {left}")
    return texts


def unfinished_text(what: Unfinished) -> str:
    """Return what was waiting; "" if nothing was.

    >>> unfinished_text(Unfinished(2, 1, 0)), unfinished_text(Unfinished())
    ('2 windows, 1 event timer', '')
    """
    counts = (what.windows, "window"), (what.timers, "event timer"), (what.clock_timers, "clock timer")
    return ", ".join(quantity(count, noun) for count, noun in counts if count)
