"""What bins cost while none of them moves: jobs with few and with many of them beside one whose state is pinned.

The same job of key-count on two processes, at the same rate, each time with another operator: a `state_machine`, which
has no bins, no routing table and no control input, or a `stateful_state_machine` with so many bins. Jobs take turns,
so that all see the same machine; medians are shown, and of ratios the medians of those within a turn. Epochs are 10 ms
apart, which hides small costs from latencies; so what the processes compute is shown beside them.
"""

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.bench.experiment import COLOURS, Experiment, Record, plain_axes, size, verdict
from apps.bench.job import write_numbers
from apps.bench.migration_job import Load, before, calm_job, processor_seconds, rate_for
from apps.bench.migration_load import PINNED, plain_rate
from megaflow.control.screen import table_text

WARM_UP_SECONDS = 40.0  # that there are lines for
PLAIN_LINES = 500_000
COMPARED = 1 << 12  # bins that are compared with none
MANY = 1 << 16
RATIO_MAX = 1.5  # of p99 with these bins to p99 without
KNEE_MAX = 1.1  # of p99 with many to p99 with those: none, but for what two runs differ by
FIGURES = ("p50", "p99", "max", "processor_us")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of what is measured."""

    keys: int = size(1_000_000, "Keys that have a count.")
    log2_bins: str = size("8,12,16", "Numbers of bins, as powers of two.")
    rate: float = size(0.0, "Records per second; 0: a share of what the processes can do, found in a short trial.")
    seconds: float = size(5.0, "How long latencies are measured in each job.")
    repeat: int = size(3, "Repetitions.")


def measure(sizes: Sizes) -> Record:
    """Run everything; return the figures of each repetition."""
    bins = [1 << int(power) for power in sizes.log2_bins.split(",")]
    found: dict[str, list[Record]] = {PINNED: [], **{str(count): [] for count in bins}}
    with tempfile.TemporaryDirectory(prefix="megaflow-bench-") as folder:
        path = Path(folder, "lines.txt")
        rate = rate_for(sizes.rate, 0, Path(folder))
        write_numbers(path, round(rate * (WARM_UP_SECONDS + sizes.seconds)))
        for _ in range(sizes.repeat):
            for name, runs in found.items():
                runs.append(measure_job(Load(name, sizes.keys, 0, rate), path, sizes.seconds))
    plain = plain_rate(sizes.keys, 0, min(PLAIN_LINES, round(rate * WARM_UP_SECONDS)))
    exact = all(run["exact"] for runs in found.values() for run in runs)
    return {"keys": sizes.keys, "rate": rate, "plain": plain, "runs": found, "exact": exact}


def measure_job(load: Load, path: Path, seconds: float) -> Record:
    """Run one job; return how late its lines were, and what a record took of processors."""
    with calm_job(load, path) as job:
        began, computed = time.monotonic(), processor_seconds(job.pids)
        job.running.rest(seconds)
        ended, computed = time.monotonic(), processor_seconds(job.pids) - computed
    late = job.figures(began, before(ended))
    return {**late, "processor_us": 1e6 * computed / (load.rate * seconds), "exact": job.is_exact()}


def text(record: Record) -> str:
    """Return the table and whether many bins go unnoticed."""
    rows = []
    for name, runs in record["runs"].items():
        middle = [statistics.median(run[figure] for run in runs) for figure in FIGURES]
        label = name if name == PINNED else f"{int(name):,} bins"
        rows.append([label, *(f"{each:.1f}" for each in middle), f"{ratio(record, name, PINNED):.2f}"])
    head = ["", "p50 ms", "p99 ms", "max ms", "µs of processors a record", "p99 to pinned"]
    return "\n".join((
        f"{record['keys']:,} keys on two processes, {record['rate']:,.0f} records/s, median of "
        f"{len(record['runs'][PINNED])}; the plain Python loop does {record['plain']:,.0f} records/s",
        table_text(head, rows),
        *goals(record),
        f"counts {'equal to Counters' if record['exact'] else 'WRONG'}",
    ))  # fmt: skip


def ratio(record: Record, name: str, base: str, figure: str = "p99") -> float:
    """Return a figure of some jobs in those of others, as the median of the ratios within a turn."""
    pairs = zip(record["runs"][name], record["runs"][base])
    return float(statistics.median(run[figure] / other[figure] for run, other in pairs))


def goals(record: Record) -> list[str]:
    """Return a line for each goal that these numbers of bins speak of."""
    lines, compared, many = [], str(COMPARED), str(MANY)
    if compared in record["runs"]:
        found = ratio(record, compared, PINNED)
        good = verdict(found <= RATIO_MAX)
        lines.append(f"{COMPARED:,} bins: {found:.2f} times the p99 of pinned state, {RATIO_MAX:g} allowed: {good}")
        if many in record["runs"]:
            knee = ratio(record, many, compared)
            lines.append(f"{MANY:,} bins: {knee:.2f} times that, {KNEE_MAX:g} allowed: {verdict(knee <= KNEE_MAX)}")
    return lines


def draw(record: Record, figure: Any) -> None:
    """Draw each figure of each job, every repetition as a point."""
    names = list(record["runs"])
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    shown = (("max", "maximum", COLOURS[1]), ("p99", "p99", COLOURS[0]), ("p50", "p50", COLOURS[2]))
    for figure_name, label, colour in shown:
        found = [[run[figure_name] for run in runs] for runs in record["runs"].values()]
        draw_points(left, found, label, colour)
    found = [[run["processor_us"] for run in runs] for runs in record["runs"].values()]
    draw_points(right, found, None, COLOURS[0])
    for axes in (left, right):
        axes.set_xticks(range(len(names)), [name if name == PINNED else f"{int(name):,}" for name in names])
        axes.set_ylim(0)
    left.legend(frameon=False, fontsize=8)
    plain_axes(left, "latency at a fixed rate", "bins", "ms")
    plain_axes(right, "computed for a record", "bins", "µs")


def draw_points(axes: Any, found: list[list[float]], label: str | None, colour: str) -> None:
    """Draw a line through the medians, and all points."""
    axes.plot(range(len(found)), [statistics.median(each) for each in found], "-", color=colour, label=label)
    for place, each in enumerate(found):
        axes.plot([place] * len(each), each, "o", color=colour, markersize=3)


BINS = Experiment(
    "bins",
    "What bins cost while none of them moves.",
    Sizes,
    Sizes(keys=1_000, log2_bins="4", rate=2_000.0, seconds=0.3, repeat=1),
    measure,
    text,
    draw,
)
