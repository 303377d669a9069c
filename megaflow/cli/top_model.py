"""What `megaflow top` shows, as styled text: a model of the job that knows no terminal.

1. A cell of the grid is one bin or, if there are more bins than cells, a run of neighbours: then it shows the owner of
   most of them. Its letter and colour show the owner, its brightness the load of its busiest bin. The letters are
   enough where there are no colours.
2. The model keeps RATES_MAX rates of each worker. The screen keeps what happened.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import field, replace
from datetime import date
from functools import cache
from typing import Final

from rich.style import Style
from rich.text import Text

from megaflow.cli.event_text import event_line
from megaflow.cli.text import bytes_text
from megaflow.control import job_events
from megaflow.control.client.rate_sample import busy_share, work_text
from megaflow.control.job_events import JobEvent
from megaflow.control.reports import JobStatus, OperatorLoad, OperatorStatus, WorkerStatus
from megaflow.control.wording import busy_text, quantity
from megaflow.quick_dataclass import dataclass

RATES_MAX: Final = 60
BARS: Final = " ▁▂▃▄▅▆▇█"
LEVELS: Final = 4  # of load, besides none
MOVES: Final = "»"  # a bin between two owners
NAMES: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
"""The palette of Okabe and Ito, which people with any common kind of colour blindness can tell apart."""
HEADINGS: Final = ("worker", "state", "lines", "rec/s", "", "busy", "p99 ms", "bins", "keys", "memory", "doing")


@dataclass(eq=False)
class TopModel:
    """The state of a job, from the news that have come so far."""

    status: JobStatus | None = None
    operator: int = 0  # whose bins are shown
    last_line: str = ""  # what happened last
    _before: dict[int, WorkerStatus] = field(default_factory=dict)  # of the last status but one
    _rates: dict[int, deque[float]] = field(default_factory=dict)  # worker -> records per second, oldest first
    _moving: dict[int, int] = field(default_factory=dict)  # bin -> epoch of its step, until that is complete
    _placed: tuple[OperatorLoad | None, dict[int, int]] = (None, {})  # the place of each bin in a load

    def take(self, news: JobEvent | JobStatus) -> None:
        """Take in what a watcher has seen."""
        if isinstance(news, JobStatus):
            self._take_status(news)
            return
        self.last_line = event_line(news, date.today())
        match news.body:
            case job_events.StepBegun(epoch, moves):
                self._moving.update((bin, epoch) for bin, _, _ in moves)
            case job_events.StepDone(report):
                self._moving = {bin: epoch for bin, epoch in self._moving.items() if epoch != report.epoch}
            case job_events.CoordinatorStarted():
                self._moving.clear()

    def _take_status(self, status: JobStatus) -> None:
        if not status.workers and self.status is not None:  # busy or recovering: keep the bins on the screen
            more = {name: getattr(status, name) for name in ("state", "restart", "busy", "silent", "launcher")}
            self.status = replace(self.status, **more)
            return
        self._before = {} if self.status is None else {worker.id: worker for worker in self.status.workers}
        self.status = status
        for worker in status.workers:
            rates = self._rates.setdefault(worker.id, deque(maxlen=RATES_MAX))
            rates.append(worker.records_per_second)
        self._rates = {worker.id: self._rates[worker.id] for worker in status.workers}

    def head(self) -> str:
        """Return the state of the job, in a line or two."""
        status = self.status
        if status is None:
            return "waiting for the job"
        rate = sum(worker.records_per_second for worker in status.workers)
        facts = [f"job {status.job}: {status.restart or status.state}", quantity(len(status.workers), "worker")]
        facts += [f"{rate:,.0f} records/s", f"epoch {'N/A' if status.epoch is None else status.epoch}"]
        if (checkpoint := status.checkpoint) is not None and checkpoint.number is not None:
            facts.append(f"checkpoint {checkpoint.number}, {checkpoint.age_seconds:.0f} s old")
        if (plan := status.plan) is not None:
            facts.append(f"moving: {plan.left} of {quantity(plan.bins, 'bin')} left")
        return ", ".join(facts) + (f"\n{status.output}" if status.output else "")

    def next_operator(self) -> None:
        """Show the bins of the next operator."""
        if self.status is not None and self.status.operators:
            self.operator = (self.operator + 1) % len(self.status.operators)

    def grid(self, width: int, height: int) -> Text:
        """Return the bins of an operator as lines of `width` cells, at most `height` of them."""
        status = self.status
        if status is None or not status.operators:
            return Text("no stateful operator" if status is not None else "")
        shown = status.operators[self.operator % len(status.operators)]
        title = f"operator {shown.name}: {quantity(shown.bins, 'bin')}"
        cells = max(1, width * max(1, height - 1))
        each = -(-shown.bins // cells)
        text = Text(f"{title}, {each} in a cell\n" if each > 1 else f"{title}\n")
        for start in range(0, shown.bins, each):
            cell = start // each
            if cell and cell % width == 0:
                text.append("\n")
            text.append(*self._cell(shown, range(start, min(shown.bins, start + each))))
        return text

    def _cell(self, operator: OperatorStatus, bins: range) -> tuple[str, Style]:
        table, load = operator.table or (), operator.load
        [(owner, _)] = Counter(table[bin] for bin in bins).most_common(1) if table else [(0, 0)]
        share = 0.0
        if load is not None and load.bins:
            places, busy = self._places(load), load.busy_ms_per_second
            busiest = max((busy[places[bin]] for bin in bins if bin in places), default=0.0)
            share = math.sqrt(busiest / busy[0]) if busy[0] else 0.0  # the first one is the busiest of all
        is_moving = any(bin in self._moving for bin in bins)
        return MOVES if is_moving else NAMES[owner % len(NAMES)], style_of(owner, round(share * LEVELS), is_moving)

    def _places(self, load: OperatorLoad) -> dict[int, int]:
        if self._placed[0] is not load:
            self._placed = load, {bin: place for place, bin in enumerate(load.bins)}
        return self._placed[1]

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row for each worker, in the order of HEADINGS."""
        status = self.status
        if status is None:
            return []
        doing = {id: busy_text(each) for each in status.busy for id in each.workers}
        silent = [(str(id), "silent", *[""] * 8, doing.get(id, "")) for id in status.silent]
        return [self._row(worker, doing.get(worker.id, "")) for worker in status.workers] + silent

    def _row(self, worker: WorkerStatus, doing: str) -> tuple[str, ...]:
        before = self._before.get(worker.id)
        share = busy_share(before, worker)
        memory = "N/A" if worker.memory_bytes is None else bytes_text(worker.memory_bytes)
        return (
            f"{worker.id} {NAMES[worker.id % len(NAMES)]}", worker.state, f"{worker.lines:,}",
            f"{worker.records_per_second:,.0f}", sparkline(self._rates.get(worker.id, ())),
            "N/A" if share is None else f"{share:.0%}", f"{worker.latency_ms.p99:.1f}", str(worker.bins),
            f"{worker.keys:,}", memory, doing or work_text(before, worker),
        )  # fmt: skip


@cache
def style_of(owner: int, level: int, is_moving: bool) -> Style:
    """Return the style of a cell; `level` is its load, from 0 to LEVELS."""
    background = dimmed(COLOURS[owner % len(COLOURS)], (1 + level) / (1 + LEVELS))
    return Style(color="white" if level < LEVELS else "black", bgcolor=background, bold=is_moving)


def sparkline(values: Sequence[float], length: int = 20) -> str:
    """Return the newest values as bars.

    >>> sparkline((0.0, 50.0, 100.0))
    ' ▄█'
    """
    newest = [*values][-length:]
    top = max(newest, default=0.0)
    return "".join(BARS[round(value / top * (len(BARS) - 1))] if top else BARS[0] for value in newest)


def dimmed(colour: str, share: float) -> str:
    """Return a colour between black and itself.

    >>> dimmed("#ff8000", 0.5)
    '#7f4000'
    """
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{int(part * share):02x}" for part in parts)
