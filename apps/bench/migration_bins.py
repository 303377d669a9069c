"""Cost of bins while none of them moves: few and many of them, each compared with state that cannot move.

A job of key-count on two processes has two operators: a `stateful_state_machine` with a given number of bins, and a
`state_machine`, which has no bins and no routing table. They take turns: for some seconds all lines go to one, then to
the other, so both see the same machine. (The work of the idle operator at each tick of the control stream is in both.)
The table has medians over turns; a ratio is the median of the ratios of neighbouring turns. Epochs are 10 ms apart,
which hides small costs from latencies. Therefore the table also has the CPU time of the processes.
"""

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.bench.experiment import COLOURS, Experiment, Record, plain_axes, size, verdict
from apps.bench.job import write_numbers
from apps.bench.migration_job import KeyCount, Load, before, calm_job, rate_for
from apps.bench.migration_load import MOVABLE, PINNED, plain_rate, side_at
from apps.bench.processes import processor_seconds
from megaflow.cli.text import table_text

WARM_UP_SECONDS = 60.0  # of lines for the warm-up
PLAIN_LINES = 500_000
SETTLE_SHARE = 0.2  # of a turn, at its beginning: left out
COMPARED = 1 << 12  # number of bins that is compared with pinned state
MANY = 1 << 16
RATIO_MAX = 1.5  # of p99 with these bins to p99 without
KNEE_MAX = 1.1  # of the p99 ratio with many bins to this one: allows only for the noise between two runs
FIGURES = ("p50", "p99", "max", "processor_us")
NAMES = {MOVABLE: "movable", PINNED: "pinned"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurement."""

    keys: int = size(1_000_000, "Keys that have a count.")
    log2_bins: str = size("8,12,16", "Numbers of bins, as powers of two.")
    rate: float = size(100_000.0, "Records per second; 0: a share of what the processes can do, found in a trial.")
    turn: float = size(2.0, "Seconds of a turn.")
    turns: int = size(7, "Turns of each operator in a job.")


def measure(sizes: Sizes) -> Record:
    """Run all jobs; return the figures of each turn."""
    jobs = []
    with tempfile.TemporaryDirectory(prefix="megaflow-bench-") as folder:
        path = Path(folder, "lines.txt")
        rate = rate_for(sizes.rate, 0, Path(folder))
        write_numbers(path, round(rate * (WARM_UP_SECONDS + 2 * (sizes.turns + 1) * sizes.turn)))
        for power in sizes.log2_bins.split(","):
            load = Load(1 << int(power), sizes.keys, 0, rate, sizes.turn)
            jobs.append(measure_job(load, path, sizes.turns))
    plain = plain_rate(sizes.keys, 0, min(PLAIN_LINES, round(rate * WARM_UP_SECONDS)))
    exact = all(job["exact"] for job in jobs)
    return {"keys": sizes.keys, "rate": rate, "plain": plain, "jobs": jobs, "exact": exact}


def measure_job(load: Load, path: Path, turns: int) -> Record:
    """Run one job; return the latencies and the CPU time per record of each turn."""
    seen: list[tuple[int, float, float, float]] = []
    with calm_job(load, f"{path}?unordered") as job:
        for _ in range(2 * turns):
            seen.append(watch_turn(job))
    found: dict[str, list[Record]] = {name: [] for name in NAMES.values()}
    for side, began, ended, computed in seen:
        cost = {"processor_us": 1e6 * computed / (load.rate * (ended - began))}
        found[NAMES[side]].append({**job.figures(began, before(ended)), **cost})
    return {"bins": load.bins, **found, "exact": job.is_exact()}


def watch_turn(job: KeyCount) -> tuple[int, float, float, float]:
    """Wait for the next turn and its end; return its side, the start and end of the measured part, and its cost.

    The cost is CPU time in seconds.
    """
    seconds = job.load.turn_seconds
    start = (time.monotonic() // seconds + 1) * seconds
    job.running.rest(start + SETTLE_SHARE * seconds - time.monotonic())
    began, computed = time.monotonic(), processor_seconds(job.pids.values())
    job.running.rest(max(0.0, before(start + seconds) - began))
    return side_at(began, seconds), began, time.monotonic(), processor_seconds(job.pids.values()) - computed


def text(record: Record) -> str:
    """Return the table, and whether many bins add a noticeable cost."""
    rows = []
    for job in record["jobs"]:
        for name, label in (("pinned", "pinned"), ("movable", f"{job['bins']:,} bins")):
            middle = [statistics.median(turn[figure] for turn in job[name]) for figure in FIGURES]
            rows.append([label, *(f"{each:.1f}" for each in middle), f"{ratio(job):.2f}" if name == "movable" else ""])
    head = ["", "p50 ms", "p99 ms", "max ms", "µs of processors a record", "p99 to pinned"]
    return "\n".join((
        f"{record['keys']:,} keys on two processes, {record['rate']:,.0f} records/s, medians of "
        f"{len(record['jobs'][0]['movable'])} turns; the plain Python loop does {record['plain']:,.0f} records/s",
        table_text(head, rows),
        *goals(record),
        f"counts {'equal to Counters' if record['exact'] else 'WRONG'}",
    ))  # fmt: skip


def ratio(job: Record) -> float:
    """Return the median ratio of the p99 of turns with bins to that of the neighbouring pinned turns."""
    return float(statistics.median(one["p99"] / other["p99"] for one, other in zip(job["movable"], job["pinned"])))


def goals(record: Record) -> list[str]:
    """Return a line for each goal that applies to these numbers of bins."""
    ratios, lines = {job["bins"]: ratio(job) for job in record["jobs"]}, []
    if COMPARED in ratios:
        found = ratios[COMPARED]
        good = verdict(found <= RATIO_MAX)
        lines.append(f"{COMPARED:,} bins: {found:.2f} times the p99 of pinned state, {RATIO_MAX:g} allowed: {good}")
        if MANY in ratios:
            knee = ratios[MANY] / found
            lines.append(f"{MANY:,} bins: {knee:.2f} times that, {KNEE_MAX:g} allowed: {verdict(knee <= KNEE_MAX)}")
    return lines


def draw(record: Record, figure: Any) -> None:
    """Draw the figures of each job, with every turn as a point."""
    late, cost = figure.subplots(1, 2, width_ratios=(2, 1))
    jobs = record["jobs"]
    shown = (("max", "maximum", COLOURS[1]), ("p99", "p99", COLOURS[0]))
    for name, style in (("movable", "-"), ("pinned", ":")):
        end = "" if name == "movable" else ", pinned state beside"
        for figure_name, label, colour in shown:
            found = [[turn[figure_name] for turn in job[name]] for job in jobs]
            draw_points(late, found, label + end, colour, style)
        draw_points(cost, [[turn["processor_us"] for turn in job[name]] for job in jobs], None, COLOURS[0], style)
    for axes in (late, cost):
        axes.set_xticks(range(len(jobs)), [f"{job['bins']:,}" for job in jobs])
        axes.margins(x=0.1)
        axes.set_ylim(0)
    plain_axes(late, "latency at a fixed rate", "bins", "ms")
    plain_axes(cost, "computed for a record", "bins", "µs")
    late.legend(frameon=False, fontsize=8)


def draw_points(axes: Any, found: list[list[float]], label: str | None, colour: str, style: str) -> None:
    """Draw a line through the medians, and all points."""
    medians = [statistics.median(each) for each in found]
    axes.plot(range(len(found)), medians, style, color=colour, label=label)
    for place, each in enumerate(found):
        axes.plot([place] * len(each), each, "." if style == "-" else "x", color=colour, markersize=3, alpha=0.6)


BINS = Experiment(
    "bins",
    "What bins cost while none of them moves.",
    Sizes,
    Sizes(keys=1_000, log2_bins="4", rate=2_000.0, turn=0.4, turns=1),
    measure,
    text,
    draw,
)
