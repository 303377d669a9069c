"""S17: does a job with a store stay constant for hours? It is watched, steered, and a process is killed now and then.

    python -m apps.bench.soak [words|sessions] [--minutes N | --seconds N] [--rate N] [--seed N] [--json] [--plots DIR]

The job of the crash test reads the same lines again and again at a steady rate, so its state stops growing once all
keys have come. It takes checkpoints. Meanwhile bins move, workers are added, removed and join by hand. Every two
minutes one worker, never the launcher, is killed by SIGKILL. All committed output is compared with a plain loop.

Every other second the soak notes the memory, open files and threads of each process, and the bytes and files of the
store. It compares each process that lives for five minutes or longer with itself, and also the store: the median of
the last quarter of its life with that of the second (see `soak_lives`). Memory may differ by a twentieth, counts by a
quarter. A process that joined by hand is killed only while the launcher has processes of its own. Otherwise the job
would have to end, and no launcher would live long.

Exit code 1 means that something was wrong or grew, or that no launcher lived for five minutes.
"""

import argparse
import contextlib
import json
import os
import random
import sys
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
from apps.bench.soak_lives import LIFE_SECONDS_MIN, Held, Sample, is_steady, lives, series
from megaflow.errors import StoreError

SAMPLE_SECONDS = 2.0
SHOW_SECONDS = 60.0
CHECK_SECONDS = 20.0  # between two checks of the output
TEXT_FILES = 10  # of Python's standard library: about ten thousand words
STRIKES = {"worker": 4, "added": 2, "by hand": 1}
STEERING = {"status": 2, "balance": 3, "move": 4, "add": 3, "remove": 3, "join": 2, "checkpoint": 2}


def calm(kill_every: float) -> Pace:
    """Return the frequencies of actions, with `kill_every` seconds between two kills."""
    return Pace(((2, 1),), (3,), STRIKES, STEERING, (1.0, 5.0), kill_every, 0.25, SHOW_SECONDS)


@dataclass(slots=True)
class Soak:
    """Samples of the job. One thread."""

    samples: list[Sample] = field(default_factory=list)
    checked_at: float = 0.0
    shown_at: float = 0.0

    def watch(self, second: float, job: UsersJob, checker: Checker) -> None:
        """Take a sample from time to time, and check the output."""
        if not self.samples or second >= self.samples[-1].second + SAMPLE_SECONDS:
            self.samples.append(look(second, job))
        if second >= self.checked_at + CHECK_SECONDS:
            self.checked_at = second
            with contextlib.suppress(StoreError):  # only errors of the store after the job's end count
                if (commit := job.newest()) is not None and commit.outputs:
                    checker.look(commit.outputs[0].length)

        if second >= self.shown_at + SHOW_SECONDS:
            self.shown_at = second
            print(shown(self.samples[-1]), file=sys.stderr, flush=True)


def shown(sample: Sample) -> str:
    """Return a line about a sample, with the process that holds the most memory of each kind."""
    most = {held.kind: held for held in sorted(sample.processes, key=lambda held: held.mb)}
    held = [f"{kind} {most[kind].mb:.1f} MB {most[kind].files} files {most[kind].threads} threads" for kind in most]
    return ", ".join([*held, f"store {sample.store_mb:.2f} MB {sample.store_files} files"])


def look(second: float, job: UsersJob) -> Sample:
    """Take a sample."""
    processes = []
    for kind, pid in job.processes():
        with contextlib.suppress(OSError):  # the process has just ended
            proc = Path(f"/proc/{pid}")
            files, threads = len(os.listdir(proc / "fd")), len(os.listdir(proc / "task"))
            processes.append(Held(kind, pid, resident(proc / "statm") / MEBIBYTE, files, threads))
    sizes = []
    with contextlib.suppress(FileNotFoundError):
        for path in job.store.iterdir():
            with contextlib.suppress(FileNotFoundError):  # the file was removed
                sizes.append(path.stat().st_size)
    output_mb = job.output_bytes() / MEBIBYTE
    return Sample(round(second, 1), tuple(processes), sum(sizes) / MEBIBYTE, len(sizes), output_mb)


def draw(samples: list[Sample], figure: Any) -> None:
    """Draw the samples of each process, a line for each of its lives, and those of the store."""
    panels = (("mb", "memory", "RSS, MiB"), ("files", "open files", ""), ("threads", "threads", ""))
    *above, below = figure.subplots(2, 2, sharex=True).flat
    for axes, (what, title, unit) in zip(above, panels):
        for (kind, _), points in series(samples).items():
            colour = COLOURS[0] if kind == "launcher" else COLOURS[1]
            values = [getattr(held, what) for _, held in points]
            axes.plot([sample.second / 60 for sample, _ in points], values, color=colour, linewidth=0.9)
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
    found = lives(soak.samples)
    for life in found:
        if life.is_judged:
            print(life, file=sys.stderr)
    short = sum(not life.is_judged for life in found)
    print(f"not judged: {short} that were shorter than {LIFE_SECONDS_MIN / 60:g} minutes", file=sys.stderr)
    if options.json:
        noted = [asdict(sample) for sample in soak.samples]
        told = [life.as_json() for life in found]
        print(json.dumps({"exact": is_right, "lives": told, "seed": seed, "samples": noted}))
    if figure_of is not None:
        options.plots.mkdir(parents=True, exist_ok=True)
        figure = figure_of()
        draw(soak.samples, figure)
        figure.savefig(options.plots / f"soak-{options.program}.png")
    sys.exit(not (is_right and is_steady(found)))


if __name__ == "__main__":
    main()
