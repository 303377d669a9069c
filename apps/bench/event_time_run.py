"""Exactness of windows at size: out-of-order and late clicks, while bins move, a worker joins and one is killed.

    python -m apps.bench.event_time_run [click_sessions|top_ten …] [--clicks N] [--rate N] [--seed N]

Two processes with a store read the clicks of `clicks`, five million of them. Meanwhile one process gives its half of
all bins to the other, and a process is added and gets its share. Then one of the three is killed by SIGKILL, and the
launcher recovers the job. At the end, the results and the late records are compared with a plain loop.

Exit code 1 means that something was wrong. In this case the folder is kept.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import megaflow
from apps import click_sessions, top_ten
from apps.bench.clicks import faults, read_clicks, write_clicks

DATAFLOWS = {"click_sessions": click_sessions.dataflow, "top_ten": top_ten.dataflow}
CLICKS = 5_000_000
CHECKPOINT_SECONDS = 1.0
LOOK_SECONDS = 0.1
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run."""

    results: int
    late: int  # clicks reported as late
    seconds: float
    wrong: list[str]


def steer(job: megaflow.JobHandle, clicks: int, seed: int) -> None:
    """Move bins, add a worker and kill one while the job reads."""
    while lines_read(job) < clicks // 10:
        time.sleep(LOOK_SECONDS)
    moved = job.control.move_bins(drain=0, strategy="batched", batch=8)
    say(f"{moved.bins} bins have moved, {lines_read(job)} lines were read")
    [joined] = job.control.add_workers(1).joins
    moved = job.control.move_bins(balance=True, strategy="batched", batch=8)
    say(f"worker {joined.workers[0]} has joined and {moved.bins} bins have moved, {lines_read(job)} lines were read")
    status = job.status()
    victim = Random(seed).choice(status.workers)
    os.kill(victim.pid, signal.SIGKILL)
    say(f"worker {victim.id} was killed, {sum(worker.lines for worker in status.workers)} lines were read")


def lines_read(job: megaflow.JobHandle) -> int:
    """Return how many lines have been read since the job started or resumed."""
    return sum(worker.lines for worker in job.status().workers)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(app: str, paths: Sequence[Path], folder: Path, clicks: int, rate: float | None, seed: int) -> Outcome:
    """Run an app in a new folder, on files with `clicks` clicks that are in time; return its outcome.

    Raises MegaflowError if the job ends before all planned events have happened.
    """
    folder.mkdir()
    results, late = folder / "results.jsonl", folder / "late.jsonl"
    began = time.monotonic()
    with megaflow.start(
        DATAFLOWS[app], lines=f"{paths[0].parent}/*", output=f"jsonl:{results}", outputs={"late": f"jsonl:{late}"},
        processes=PROCESSES, rate=rate, state=folder / "store", close_windows=True,
        checkpoint_every=CHECKPOINT_SECONDS,
    ) as job:  # fmt: skip
        steer(job, clicks, seed)
        summary = job.wait()
    seconds = time.monotonic() - began
    called_late = [click["id"] for click in records(late)]
    wrong = faults(paths, app, clicks, records(results), called_late)
    if summary.since is None:
        wrong.append("nobody noticed that a worker was killed")
    return Outcome(sum(1 for _ in records(results)), len(called_late), seconds, wrong)


def records(path: Path) -> Iterator[Any]:
    """Yield the records of an output."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["record"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("apps", nargs="*", metavar="APP", help=f"of {', '.join(DATAFLOWS)}; by default both")
    parser.add_argument("--clicks", type=int, default=CLICKS, help=f"how many ({CLICKS})")
    parser.add_argument("--rate", type=float, help="lines a second; by default as fast as it goes")
    parser.add_argument("--seed", type=int, default=0, help="what to draw by (0)")
    options = parser.parse_args()
    if unknown := set(options.apps) - DATAFLOWS.keys():
        parser.error(f"no app: {', '.join(sorted(unknown))}")
    folder = Path(tempfile.mkdtemp(prefix="event-time-"))
    paths = write_clicks(folder / "clicks", options.clicks, options.seed)
    late = sum(click.id >= options.clicks for click in read_clicks(paths))
    say(f"{options.clicks} clicks and {late} late ones, in {folder}")
    is_right = True
    for app in options.apps or DATAFLOWS:
        found = run(app, paths, folder / app, options.clicks, options.rate, options.seed)
        is_right &= not found.wrong
        said = "; ".join(found.wrong) or "all right"
        say(f"{app}: {found.seconds:.0f} s, {found.results} results, {found.late} clicks came too late: {said}")
    if is_right:
        shutil.rmtree(folder)
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
