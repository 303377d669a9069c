"""Latency of records while processes join: a job with too few processes, and one with enough.

*Saturated*: one process is offered more than it can do, in an open loop. Two processes are added, one after the other,
each with its share of the bins. The fold spends some time on a record. By default it sleeps, as if it waited for a
service, because a machine with two cores has none for a third process that computes; `--fold cpu` computes instead.
*Steady*: two processes can do what they are offered, and one is added. The maximum while it joins, from the command
until it may own bins, must stay under ten times the p99 before. Its moves are shown apart. Counts are compared with
`collections.Counter`.

A latency is the time from the moment a line was due until its epoch was closed everywhere.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from apps.bench.experiment import COLOURS, Experiment, Record, plain_axes, size, verdict
from apps.bench.job import Running, between, latency, timeline, write_numbers
from apps.bench.rescaling_job import Growth, Tally, grow
from apps.bench.rescaling_load import LIGHT, numbered
from megaflow.cli.text import table_text
from megaflow.control.latency import Histogram
from megaflow.job.launcher.run.run_summary import RunSummary

SECONDS_MAX = 90.0  # of lines
LINE_BYTES = 200  # of the saturated job: a batch of 6 KB takes some milliseconds of its time
SETTLE_SECONDS = 1.0  # at the beginning, left out
TIMES_STEADY_MAX = 10  # limit of the latency during a join, in times the p99 before


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurement."""

    fold: str = size("wait", "What a record of the saturated job costs: wait or cpu.")
    fold_us: float = size(400.0, "How much of it, in microseconds.")
    offered: float = size(1.25, "What is offered, in what one process could do if it did nothing else.")
    bins: int = size(16, "Bins of the saturated job: each is a step of the moves, which wait for what is late.")
    alone: float = size(3.0, "Seconds before the first process is added, and between the two.")
    after: float = size(6.0, "Seconds after the last, and after the one of the steady job.")
    rate: float = size(20_000.0, "Records per second of the steady job.")
    steady_bins: int = size(256, "Bins of the steady job.")
    steady: float = size(5.0, "Seconds before its process is added.")


def measure(sizes: Sizes) -> Record:
    """Run both jobs."""
    with tempfile.TemporaryDirectory(prefix="megaflow-bench-") as folder:
        saturated = measure_saturated(sizes, Path(folder, "saturated.txt"))
        steady = measure_steady(sizes, Path(folder, "steady.txt"))
    return {"saturated": saturated, "steady": steady, "exact": saturated["exact"] and steady["exact"]}


def measure_saturated(sizes: Sizes, path: Path) -> Record:
    """Add two processes to one that cannot keep up."""
    rate = sizes.offered * 1e6 / sizes.fold_us
    lines = round(rate * SECONDS_MAX)
    write_numbers(path, lines, LINE_BYTES)
    tally, growths = Tally(lines), []
    args = (str(sizes.bins), sizes.fold, str(sizes.fold_us / 1e6))
    with Running(numbered, str(path), tally, rate=rate, args=args) as running:
        talk = running.converse()
        for _ in range(2):
            running.rest(sizes.alone)
            growths.append(grow(talk))
        running.rest(sizes.after)
        over = time.monotonic()
        running.stop()
    account = running.account()
    origin = min(begin for begin, _ in account.flows)
    moments = [origin, *(moment for each in growths for moment in (each.began, each.ended)), over]
    names = ("one process", "the first joins", "two processes", "the second joins", "three processes")
    record = {"phases": phases(account, names, moments), **course(account, growths, over)}
    return {"rate": rate, **record, "exact": tally.is_exact(account.lines)}


def measure_steady(sizes: Sizes, path: Path) -> Record:
    """Add a process to two that keep up."""
    lines = round(sizes.rate * SECONDS_MAX)
    write_numbers(path, lines)
    tally = Tally(lines)
    args = (str(sizes.steady_bins), *LIGHT)
    with Running(numbered, f"{path}?unordered", tally, processes=2, rate=sizes.rate, args=args) as running:
        talk = running.converse()
        running.rest(sizes.steady)
        growth = grow(talk)
        running.rest(sizes.after)
        over = time.monotonic()
        running.stop()
    account = running.account()
    origin = min(begin for begin, _ in account.flows)
    moments = [origin + SETTLE_SECONDS, growth.began, growth.joined, growth.ended, over]
    names = ("before", "the join", "its moves", "after")
    record = {"phases": phases(account, names, moments), **course(account, [growth], over)}
    return {"rate": sizes.rate, "seconds": growth.seconds, **record, "exact": tally.is_exact(account.lines)}


def phases(account: RunSummary, names: Sequence[str], moments: Sequence[float]) -> list[Record]:
    """Return the latencies of the lines completed between each two successive moments."""
    return [{"phase": name, **figures(account, *part)} for name, part in zip(names, pairwise(moments))]


def course(account: RunSummary, growths: Sequence[Growth], over: float) -> Record:
    """Return the data of the picture: latencies over time, and the moments of joins."""
    origin = min(begin for begin, _ in account.flows)
    joins = [[each.began - origin, each.joined - origin, each.ended - origin] for each in growths]
    points = [point for point in timeline(account.latency, origin) if point["second"] <= over - origin]
    return {"joins": joins, "timeline": points}


def figures(account: RunSummary, start: float, end: float) -> Record:
    """Return the latencies of the lines completed between two moments."""
    late: Histogram = between(account.latency, start, end)
    return {"seconds": end - start, "lines": late.lines, **latency(late)}


def limit(record: Record) -> tuple[float, float]:
    """Return the allowed and the measured maximum latency while a process joins, in ms."""
    before, join = record["steady"]["phases"][:2]
    return TIMES_STEADY_MAX * before["p99"], join["max"]


def text(record: Record) -> str:
    """Return the two tables, and whether the join kept its limit."""
    head = ["", "seconds", "lines", "p50 ms", "p99 ms", "max ms"]
    allowed, found = limit(record)
    exact = "equal to Counter's" if record["exact"] else "WRONG"
    return "\n".join((
        f"saturated: {record['saturated']['rate']:,.0f} lines/s offered to one process, then two, then three",
        table_text(head, rows(record["saturated"])),
        f"steady: {record['steady']['rate']:,.0f} records/s on two processes, one joins",
        table_text(head, rows(record["steady"])),
        f"maximum during the join {found:.1f} ms, ten times the steady p99 {allowed:.1f} ms: "
        f"{verdict(found < allowed)}; counts {exact}",
    ))  # fmt: skip


def rows(part: Record) -> list[list[str]]:
    """Return a table's rows."""
    return [
        [phase["phase"], f"{phase['seconds']:.1f}", f"{phase['lines']:,}"]
        + [f"{phase[name]:.1f}" for name in ("p50", "p99", "max")]
        for phase in part["phases"]
    ]  # fmt: skip


def draw(record: Record, figure: Any) -> None:
    """Draw p50 and maximum over time, with the joins."""
    above, below = figure.subplots(2, 1)
    draw_timeline(above, record["saturated"], f"saturated: {record['saturated']['rate']:,.0f} lines/s")
    draw_timeline(below, record["steady"], f"steady: {record['steady']['rate']:,.0f} records/s on two processes")
    allowed, _ = limit(record)
    below.axhline(allowed, color="black", linewidth=0.8, linestyle=":")
    below.annotate("10 × steady p99", (0.0, allowed), fontsize=8, va="bottom")
    below.set_xlabel("seconds")
    figure.legend(*above.get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=8, ncols=4)


def draw_timeline(axes: Any, part: Record, title: str) -> None:
    """Draw one job."""
    seconds = [point["second"] for point in part["timeline"]]
    for name, label, colour in (("p50", "p50", COLOURS[0]), ("max", "maximum", COLOURS[1])):
        late = [point[name] for point in part["timeline"]]
        axes.plot(seconds, late, ".-", color=colour, linewidth=1.2, markersize=2.5, label=label)
    for number, (began, joined, ended) in enumerate(part["joins"]):
        labels = ("a process joins", "is given bins") if number == 0 else (None, None)
        axes.axvspan(began, joined, color=COLOURS[2], alpha=0.35, linewidth=0, label=labels[0])
        axes.axvspan(joined, ended, color=COLOURS[2], alpha=0.15, linewidth=0, label=labels[1])
    axes.set_yscale("log")
    axes.margins(x=0.01)
    plain_axes(axes, title, "", "latency, ms")


LATENCY = Experiment(
    "latency",
    "How late records are over time while processes join.",
    Sizes,
    Sizes(fold_us=200.0, bins=8, alone=0.5, after=0.5, rate=1_000.0, steady_bins=16, steady=1.5),
    measure,
    text,
    draw,
)
