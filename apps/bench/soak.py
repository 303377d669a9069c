"""S17: does a job with a store stay as it is for hours? It is watched while it is steered, and killed now and then.

    python -m apps.bench.soak [words|sessions] [--minutes N | --seconds N] [--rate N] [--seed N] [--json] [--plots DIR]

The job of the crash test reads the same lines again and again at a steady rate, so what it keeps does not grow once all
keys have come. It takes checkpoints; bins move, workers are added, removed and join by hand; every two minutes one of
them, never the launcher, is killed by SIGKILL. All that is committed is compared with a plain loop.

Every other second is noted what each process holds, in memory, open files and threads, and what the store has, in bytes
and files. Compared are medians: those of the last quarter of the time with those of the second; of workers counts the
one that holds most. Memory may differ by a tenth, counts by a quarter. Exit code 1 says that something was wrong, or
grew; a run below ten minutes does not judge that, as everything is still warming up.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from apps.bench.crashes import endure
from apps.bench.crashes_draws import Pace
from apps.bench.crashes_job import UsersJob
from apps.bench.crashes_text import PROGRAMS, Checker, default_text
from apps.bench.experiment import COLOURS, plain_axes, plotter
from apps.bench.processes import MEBIBYTE, resident
from megaflow.errors import StoreError

SAMPLE_SECONDS = 2.0
SHOW_SECONDS = 60.0
CHECK_SECONDS = 20.0  # from one look at the output to the next
JUDGED_SECONDS_MIN = 600.0
MEMORY_GROWTH_MAX = 0.1
COUNT_GROWTH_MAX = 0.25
TEXT_FILES = 10  # of Python's library: about ten thousand words
STRIKES = {"worker": 4, "added": 2, "by hand": 1}
STEERING = {"status": 2, "balance": 3, "move": 4, "add": 3, "remove": 4, "join": 2, "checkpoint": 2}


def calm(kill_every: float) -> Pace:
    """Return what happens to the job, with so many seconds from one kill to the next."""
    return Pace(((2, 1),), (3,), STRIKES, STEERING, (1.0, 5.0), kill_every, 0.25, SHOW_SECONDS)


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds."""

    kind: str  # launcher, worker, added or by hand
    pid: int
    mb: float
    files: int
    threads: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What there is at one moment."""

    second: float
    processes: tuple[Held, ...]
    store_mb: float
    store_files: int
    output_mb: float


FIGURES: dict[str, Callable[[Sample], float | None]] = {
    "launcher MB": lambda sample: most(sample, "mb", is_launcher=True),
    "launcher files": lambda sample: most(sample, "files", is_launcher=True),
    "launcher threads": lambda sample: most(sample, "threads", is_launcher=True),
    "worker MB": lambda sample: most(sample, "mb", is_launcher=False),
    "worker files": lambda sample: most(sample, "files", is_launcher=False),
    "worker threads": lambda sample: most(sample, "threads", is_launcher=False),
    "store MB": lambda sample: sample.store_mb,
    "store files": lambda sample: sample.store_files,
}


def most(sample: Sample, what: str, is_launcher: bool) -> float | None:
    """Return the most of something that a process holds; None if there is none."""
    found = [getattr(each, what) for each in sample.processes if (each.kind == "launcher") == is_launcher]
    return max(found, default=None)


@dataclass(slots=True)
class Soak:
    """What was seen of the job. One thread."""

    samples: list[Sample] = field(default_factory=list)
    checked_at: float = 0.0
    shown_at: float = 0.0

    def watch(self, second: float, job: UsersJob, checker: Checker) -> None:
        """Note what there is, now and then, and look at what was put out."""
        if not self.samples or second >= self.samples[-1].second + SAMPLE_SECONDS:
            self.samples.append(look(second, job))
        if second >= self.checked_at + CHECK_SECONDS:
            self.checked_at = second
            with contextlib.suppress(StoreError):  # what is said of the store when the job has ended counts
                if (commit := job.newest()) is not None and commit.outputs:
                    checker.look(commit.outputs[0].length)

        if second >= self.shown_at + SHOW_SECONDS:
            self.shown_at = second
            last = {name: value for name, figure in FIGURES.items() if (value := figure(self.samples[-1])) is not None}
            print(", ".join(f"{name} {value:.4g}" for name, value in last.items()), file=sys.stderr)

    def changes(self) -> dict[str, tuple[float, float]]:
        """Return the medians of the second and of the last quarter for each figure."""
        found = {}
        for name, figure in FIGURES.items():
            values = [value for sample in self.samples if (value := figure(sample)) is not None]
            quarter = len(values) // 4
            if quarter:
                found[name] = statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])
        return found


def has_grown(name: str, early: float, late: float) -> bool:
    """Tell whether a figure has grown more than it may.

    >>> has_grown("worker MB", 50.0, 54.9), has_grown("worker MB", 50.0, 55.1), has_grown("store files", 12, 14)
    (False, True, False)
    """
    allowed = MEMORY_GROWTH_MAX if name in ("launcher MB", "worker MB") else COUNT_GROWTH_MAX
    return late > early * (1 + allowed)


def look(second: float, job: UsersJob) -> Sample:
    """Return what there is now."""
    processes = []
    for kind, pid in job.processes():
        with contextlib.suppress(OSError):  # it has just ended
            proc = Path(f"/proc/{pid}")
            files, threads = len(os.listdir(proc / "fd")), len(os.listdir(proc / "task"))
            processes.append(Held(kind, pid, resident(proc / "statm") / MEBIBYTE, files, threads))
    sizes = []
    with contextlib.suppress(FileNotFoundError):
        for path in job.store.iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was removed
                sizes.append(path.stat().st_size)
    output_mb = job.output_bytes() / MEBIBYTE
    return Sample(round(second, 1), tuple(processes), sum(sizes) / MEBIBYTE, len(sizes), output_mb)


def draw(samples: list[Sample], figure: Any) -> None:
    """Draw what each process held, and what the store had."""
    seen: dict[tuple[str, int], list[tuple[float, Held]]] = {}
    for sample in samples:
        for held in sample.processes:
            seen.setdefault((held.kind, held.pid), []).append((sample.second / 60, held))
    panels = (("mb", "memory", "RSS, MiB"), ("files", "open files", ""), ("threads", "threads", ""))
    *above, below = figure.subplots(2, 2, sharex=True).flat
    for axes, (what, title, unit) in zip(above, panels):
        for (kind, _), points in seen.items():
            colour = COLOURS[0] if kind == "launcher" else COLOURS[1]
            values = [getattr(held, what) for _, held in points]
            axes.plot([minute for minute, _ in points], values, color=colour, linewidth=0.9)
        axes.set_ylim(0)
        plain_axes(axes, f"{title}: launcher (blue), workers", "minutes", unit)
    minutes = [sample.second / 60 for sample in samples]
    below.plot(minutes, [sample.store_files for sample in samples], color=COLOURS[2], linewidth=0.9, label="files")
    below.plot(minutes, [sample.store_mb for sample in samples], color=COLOURS[0], linewidth=0.9, label="MiB")
    below.set_ylim(0)
    below.legend(frameon=False, fontsize=9)
    plain_axes(below, "store", "minutes", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", choices=PROGRAMS, default="words")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seconds", type=float, help="instead of minutes")
    parser.add_argument("--rate", type=float, default=1000.0, help="lines a second (1000)")
    parser.add_argument("--seed", type=int, help="what to draw by; by default another one each time")
    parser.add_argument("--lines", type=Path, nargs="+", metavar="FILE", help="text to read, again and again")
    parser.add_argument("--checkpoint-every", type=float, default=1.0, help="seconds (1)")
    parser.add_argument("--kill-every", type=float, default=120.0, help="seconds (120)")
    parser.add_argument("--json", action="store_true", help="print all that was noted as JSON")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="also draw a PNG there; needs matplotlib")
    options = parser.parse_args()
    options.lines = options.lines or default_text()[:TEXT_FILES]
    try:
        figure_of = plotter() if options.plots is not None else None
    except click.ClickException as error:
        parser.error(error.message)
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    seconds = options.minutes * 60 if options.seconds is None else options.seconds
    soak = Soak()
    is_right = endure(options.program, seconds, seed, options, calm(options.kill_every), soak.watch, sys.stderr)
    changes = soak.changes()
    grown = [name for name, (early, late) in changes.items() if has_grown(name, early, late)]
    is_judged = seconds >= JUDGED_SECONDS_MIN
    for name, (early, late) in changes.items():
        print(f"{name:16} {early:9.1f} {late:9.1f}{' GROWN' * (name in grown)}", file=sys.stderr)
    if options.json:
        noted = [asdict(sample) for sample in soak.samples]
        print(json.dumps({"exact": is_right, "grown": grown, "changes": changes, "seed": seed, "samples": noted}))
    if figure_of is not None:
        options.plots.mkdir(parents=True, exist_ok=True)
        figure = figure_of()
        draw(soak.samples, figure)
        figure.savefig(options.plots / f"soak-{options.program}.png")
    sys.exit(not is_right or (is_judged and bool(grown)))


if __name__ == "__main__":
    main()
