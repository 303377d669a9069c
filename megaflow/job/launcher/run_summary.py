"""What a run came to, put together from what each of its workers says at its end."""

from dataclasses import dataclass, field

from megaflow.control.launcher_messages import Ended, LatencyWindow

LATENCY_SECONDS = 600.0  # as long as the log of a busy worker


@dataclass(slots=True)
class RunSummary:
    """What a run came to; however many workers have come and gone, it holds the latencies of ten minutes at most."""

    lines: int = 0
    records: int = 0
    seconds: float = 0.0
    interrupted: bool = False  # by Ctrl-C
    since: int | None = None  # the checkpoint of the last restart, if there was one: lines and records count from there
    stopped_at: int | None = None  # the checkpoint that a stop has left; the counts are then not known
    latency: list[LatencyWindow] = field(default_factory=list)  # of all workers; the newest ten minutes
    flows: list[tuple[float, float]] = field(default_factory=list)  # when each worker's lines flowed

    @property
    def flow_seconds(self) -> float:
        """From the first line read to the last epoch closed, on one machine; without the processes' start."""
        return max(end for _, end in self.flows) - min(begin for begin, _ in self.flows) if self.flows else 0.0

    def add(self, ended: Ended) -> None:
        """Take in the account of a worker that is done, perhaps long before the others."""
        self.lines += ended.lines
        self.records += ended.records
        self.latency += ended.latency
        kept_from = max((window.start for window in self.latency), default=0.0) - LATENCY_SECONDS
        self.latency = [window for window in self.latency if window.start >= kept_from]
        if ended.flow is not None:
            self.flows.append(ended.flow)
