"""What a run came to, put together from what each of its workers says at its end."""

from collections import Counter
from dataclasses import field

from megaflow.control.launcher_messages import Ended, LatencyWindow
from megaflow.quick_dataclass import dataclass

LATENCY_SECONDS = 120.0  # as long as the log of a busy worker


@dataclass(slots=True)
class RunSummary:
    """What a run came to; however many workers have come and gone, it holds as many latencies as one of them."""

    lines: int = 0
    records: int = 0
    seconds: float = 0.0
    interrupted: bool = False  # by Ctrl-C
    since: int | None = None  # the checkpoint of the last restart, if there was one: lines and records count from there
    skipped: Counter[str] = field(default_factory=Counter)  # input -> lines that were left out
    replaced: Counter[str] = field(default_factory=Counter)  # input -> sequences of bytes that are not text
    stopped_at: int | None = None  # the checkpoint that a stop has left; the counts are then not known
    latency: list[LatencyWindow] = field(default_factory=list)  # of all workers together, oldest first; the newest
    flows: list[tuple[float, float]] = field(default_factory=list)  # when lines flowed, on any worker: one, if they did

    @property
    def flow_seconds(self) -> float:
        """From the first line read to the last epoch closed, on one machine; without the processes' start."""
        return sum(end - begin for begin, end in self.flows)

    def add(self, ended: Ended) -> None:
        """Take in the account of a worker that is done, perhaps long before the others."""
        self.lines += ended.lines
        self.records += ended.records
        self.skipped.update(ended.skipped)
        self.replaced.update(ended.replaced)
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
