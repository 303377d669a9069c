"""S9: memory of a job whose source could be far faster than the operator behind it. Does it stay constant?

Each line becomes a hundred records, and each record costs the fold a tenth of a millisecond. So a worker processes
less than a hundred lines a second of a file that it could read at once. Memory is the sum over all workers, sampled
for some time from their start. The first fifth counts as warm-up. The result is the largest deviation from the memory
just after the warm-up, in means of one second. A job that has grown by a gigabyte is ended at once.
"""

import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from apps.bench.experiment import COLOURS, plain_axes
from apps.bench.job import write_numbers
from apps.bench.processes import megaflow_run, resident_mb
from apps.bench.report import Found, Goal
from apps.bench.workload import Setting, Step, Workload, one
from megaflow.job.worker.process.flow import Flow
from megaflow.stream import Stream

DRIFT, HELD = "RSS drift %", "RSS MB"
ROWS = {1: "megaflow, one process", 2: "megaflow, two processes"}
SECONDS, SECONDS_QUICK = 60, 6
WARM_UP_SHARE = 0.2
SAMPLE_SECONDS = 0.1
MEAN_SECONDS = 1.0
RECORDS_PER_LINE = 100
FOLD_SECONDS = 0.0001
KEYS = 1_000
LINES = 100_000  # ten million records: a gigabyte or more without backpressure
LINE_BYTES = 200  # makes a batch of lines half a second of work
RUNAWAY_MB = 1024.0

Samples = list[tuple[float, float]]  # (second, MiB)


def dataflow(flow: Flow) -> Stream[Any]:
    """Make many records from each line, and count their keys slowly."""

    def count(key: int, number: int, total: int | None) -> tuple[int, list[tuple[int, int]]]:
        time.sleep(FOLD_SECONDS)
        total = (total or 0) + 1
        return total, [(key, total)]

    return flow.lines().flat_map(records).stateful_state_machine(count)


def records(line: str) -> list[tuple[int, int]]:
    """Return the records of a line. The line begins with its number."""
    first = int(line.partition(" ")[0]) * RECORDS_PER_LINE
    return [(number % KEYS, number) for number in range(first, first + RECORDS_PER_LINE)]


def watch(path: Path, processes: int, seconds: float) -> Samples:
    """Run the job for `seconds`; return samples of its workers' total memory."""
    samples: Samples = []
    with megaflow_run([f"{Path(__file__)}", "--lines", str(path)], processes) as job:
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            samples.append((now, resident_mb(job.workers)))
            job.check()
            if samples[-1][1] > samples[0][1] + RUNAWAY_MB:
                break
            time.sleep(SAMPLE_SECONDS)
    return samples


def drift(samples: Samples) -> tuple[float, float]:
    """Return the largest deviation of one-second means, in percent of the first mean after the warm-up, and that mean.

    >>> drift([(0.0, 20.0), (4.0, 100.0), (4.5, 100.0), (5.5, 125.0), (8.0, 95.0), (20.0, 101.0)])
    (25.0, 100.0)
    """
    over = samples[-1][0]
    means: dict[int, list[float]] = {}
    for second, held in samples:
        if second >= WARM_UP_SHARE * over:
            means.setdefault(int((second - WARM_UP_SHARE * over) / MEAN_SECONDS), []).append(held)
    levels = [statistics.mean(each) for _, each in sorted(means.items())]
    return max(abs(level / levels[0] - 1) * 100 for level in levels) if levels[0] else 0.0, levels[0]


def run(path: Path, processes: int, seconds: float, seen: dict[str, Samples]) -> Found:
    """Watch a job, and keep the samples for the picture."""
    samples = watch(path, processes, seconds)
    seen[ROWS[processes]] = samples
    far, level = drift(samples)
    return one(ROWS[processes], {DRIFT: far, HELD: level})


def steps(setting: Setting, seconds: float, lines: int) -> Sequence[Step]:
    """Write the lines; return both jobs."""
    path = setting.folder / "lines.txt"
    write_numbers(path, lines, LINE_BYTES)
    seen: dict[str, Samples] = {}
    setting.picture("memory", partial(draw, seen))
    return [Step(name, partial(run, path, processes, seconds, seen)) for processes, name in ROWS.items()]


def draw(seen: dict[str, Samples], figure: Any) -> None:
    """Draw memory over time."""
    axes = figure.subplots()
    for (name, samples), colour in zip(seen.items(), COLOURS):
        axes.plot(*zip(*samples), color=colour, linewidth=1.2, label=name)
    axes.set_ylim(0)
    axes.legend(frameon=False, fontsize=9)
    plain_axes(axes, "a fast source before a slow operator", "seconds", "RSS of the workers, MiB")


def open_backpressure(setting: Setting) -> Sequence[Step]:
    """Return both jobs."""
    return steps(setting, setting.size(SECONDS, SECONDS_QUICK), LINES)


S9 = Workload(
    "S9",
    "a fast source before a slow operator",
    open_backpressure,
    tuple(Goal(name, DRIFT, 10.0) for name in ROWS.values()),
    base=None,
    repeat_max=1,
    notes=("RSS is at 'warm-up over'; drift is the farthest that the mean of a second went from there",),
)
