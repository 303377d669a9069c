"""Cost of being able to rescale while nothing is rescaled: a job whose bins can move, compared with a fixed one.

Both count words with the same fold, in two processes of `megaflow run`. The pinned job exchanges words among the
workers of its start and keeps their counts there. It has no bins and no routing table. (The engine's own work for
membership is in both and cannot be removed.) Repetitions take turns, and the table has medians.
"""

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.bench.experiment import COLOURS, Experiment, Record, plain_axes, size
from apps.bench.job import between
from apps.bench.rescaling_load import pinned_words
from apps.bench.wordcount import run_plain, write_text
from apps.bench.workload import PLAIN
from apps.wordcount import dataflow
from megaflow.cli.text import table_text
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.launch import LaunchOptions, launch
from megaflow.job.launcher.run.run_summary import RunSummary
from megaflow.job.spec import JobSpec

PROCESSES = 2
WARM_UP_SECONDS = 1.0  # of an open loop, left out
LOOP, PINNED, MOVABLE = PLAIN, "pinned", "rescalable"
JOBS: dict[str, Callable[[Any], Any]] = {PINNED: pinned_words, MOVABLE: dataflow}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurement."""

    copies: int = size(6, "How many times Python's standard library is read, for throughput.")
    repeat: int = size(3, "Repetitions.")
    rate: float = size(4000.0, "Lines per second, for latency.")
    seconds: float = size(4.0, "How long lines come at that rate.")


def measure(sizes: Sizes) -> Record:
    """Run everything; return the seconds and latencies of each repetition."""
    seconds: dict[str, list[float]] = {LOOP: [], **{name: [] for name in JOBS}}
    p99: dict[str, list[float]] = {name: [] for name in JOBS}
    with tempfile.TemporaryDirectory(prefix="megaflow-bench-") as folder:
        text, steady = Path(folder, "text.txt"), Path(folder, "steady.txt")
        words = write_text(None, sizes.copies, text)
        write_lines(text, steady, round(sizes.rate * (sizes.seconds + WARM_UP_SECONDS)))
        for _ in range(sizes.repeat):
            seconds[LOOP].append(run_plain(text)["seconds"])
            for name, job in JOBS.items():
                seconds[name].append(run(job, text, None).flow_seconds)
            for name, job in JOBS.items():
                p99[name].append(steady_p99(run(job, steady, sizes.rate)))
    return {"words": words, "seconds": seconds, "p99_ms": p99}


def write_lines(source: Path, target: Path, lines: int) -> None:
    """Write `lines` lines of the source, from its start again if it has fewer."""
    content = source.read_text(encoding="utf-8").splitlines(keepends=True)
    with target.open("w", encoding="utf-8") as text:
        text.writelines(content[number % len(content)] for number in range(lines))


def run(job: Callable[[Any], Any], path: Path, rate: float | None) -> RunSummary:
    """Run the job to the end of the text."""
    return launch(LaunchOptions(JobSpec(pickle_app(job), processes=PROCESSES, rate=rate), f"{path}?unordered"))


def steady_p99(account: RunSummary) -> float:
    """Return the p99 in ms without the warm-up."""
    began = min(begin for begin, _ in account.flows)
    return between(account.latency, began + WARM_UP_SECONDS, float("inf")).quantile(0.99)


def text(record: Record) -> str:
    """Return the table, and the ratios of the rescalable job to the pinned one."""
    base = statistics.median(record["seconds"][LOOP])
    rows = []
    for name, seconds in record["seconds"].items():
        median = statistics.median(seconds)
        p99 = f"{statistics.median(record['p99_ms'][name]):.1f}" if name in JOBS else "-"
        spread = (max(seconds) - min(seconds)) / median
        rows.append([name, f"{record['words'] / median / 1e6:.2f}", f"{spread:.0%}", f"{base / median:.2f}", p99])
    throughput, p99_ratio = ratios(record)
    return "\n".join((
        f"{record['words']:,} words, {PROCESSES} processes, median of {len(record['seconds'][LOOP])}",
        table_text(["", "M words/s", "spread", "of plain", "p99 ms at a fixed rate"], rows),
        f"rescalable to pinned: {throughput:.2f} of its throughput, {p99_ratio:.2f} times its p99",
    ))  # fmt: skip


def ratios(record: Record) -> tuple[float, float]:
    """Return the medians of the ratios of throughput and p99, rescalable to pinned."""
    pairs = zip(record["seconds"][PINNED], record["seconds"][MOVABLE])
    lates = zip(record["p99_ms"][PINNED], record["p99_ms"][MOVABLE])
    return statistics.median(a / b for a, b in pairs), statistics.median(b / a for a, b in lates)


def draw(record: Record, figure: Any) -> None:
    """Draw bars, with every repetition as a point."""
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    rates = {name: [record["words"] / each / 1e6 for each in seconds] for name, seconds in record["seconds"].items()}
    for axes, values in ((left, rates), (right, record["p99_ms"])):
        for place, (name, found) in enumerate(values.items()):
            colour = {LOOP: COLOURS[2], PINNED: COLOURS[1], MOVABLE: COLOURS[0]}[name]
            axes.bar(place, statistics.median(found), width=0.6, color=colour, alpha=0.75)
            axes.plot([place] * len(found), found, "o", color="black", markersize=3)
        axes.set_xticks(range(len(values)), list(values))
    plain_axes(left, "word count, two processes", "", "million words a second")
    plain_axes(right, "latency at a fixed rate", "", "p99, ms")


OVERHEAD = Experiment(
    "overhead",
    "What being able to rescale costs while nothing is rescaled.",
    Sizes,
    Sizes(copies=1, repeat=1, rate=1000.0, seconds=1.0),
    measure,
    text,
    draw,
)
