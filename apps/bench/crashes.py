"""Crash test: kills processes of a job with a store again and again, and checks all committed output.

    python -m apps.bench.crashes [words|sessions] [--minutes N] [--seed N] [--lines FILE …]

A job reads real text and keeps its state. Every few seconds the test kills a random part of the job by SIGKILL: a
worker, an added worker, a worker that joined by hand, the launcher, or all processes. Occasionally it stops the job or
sends a Ctrl-C. Meanwhile it moves bins, adds and removes workers, and requests checkpoints. When the launcher has
ended, the test gives the same command again, often with another number of processes. Each time, it verifies the whole
store and compares the committed output with a plain loop. After the given time, the job runs to its end.

Exit code 1 means that a line was wrong or that something forbidden happened: an unexplained exit code, a traceback, a
process that outlives its job, a command that does not end, or a job that makes no progress. In this case the folder is
kept. The seed repeats the actions, but not their exact moments.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO

from apps.bench.crashes_aftermath import Unexpected
from apps.bench.crashes_draws import CRASHES, Pace
from apps.bench.crashes_job import UsersJob
from apps.bench.crashes_storm import Storm
from apps.bench.crashes_text import PROGRAMS, Checker, default_text, write_documents

Watch = Callable[[float, UsersJob, Checker], None]  # receives the second, the job and the checked output


def endure(
    program_name: str,
    seconds: float,
    seed: int,
    options: argparse.Namespace,
    pace: Pace = CRASHES,
    watch: Watch | None = None,
    shown_in: TextIO | None = None,
) -> bool:
    """Run one program for the given time; return whether everything was right."""
    say = partial(print, file=shown_in, flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"crashes-{program_name}-"))
    program = PROGRAMS[program_name]()
    lines = int(options.rate * (seconds + 20))
    documents = write_documents(program, options.lines or default_text(), folder / "text", lines)
    job = UsersJob(folder, program.app, documents, options.checkpoint_every)
    checker = Checker(program, documents, job.output)
    storm = Storm(job, checker, random.Random(seed), options.rate, pace)
    say(f"{program_name}: seed {seed}, {lines} lines, in {folder}")
    began = shown = time.monotonic()
    problem = ""
    try:
        storm.start()
        while (now := time.monotonic()) < began + seconds and not storm.turn(now):
            if watch is not None:
                watch(now - began, job, checker)
            if now - shown > pace.show_seconds:
                shown = now
                say(f"{program_name}: {now - began:4.0f} s, {storm.text()}")
        storm.calm_down()
    except Unexpected as error:
        problem = str(error)
    finally:
        job.finish()
    say(f"{program_name}: {time.monotonic() - began:4.0f} s, {storm.text()}")
    if not problem and not checker.wrong_count:
        say(f"{program_name}: all {checker.lines} lines are right")
        shutil.rmtree(folder)
        return True
    for wrong in (*checker.wrong, *([problem] if problem else ())):
        say(f"{program_name}: {wrong}")
    say(f"{program_name}: WRONG; {folder}/log.txt says what was done, seed {seed}")
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}; by default all")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each program (10)")
    parser.add_argument("--seconds", type=float, help="instead of minutes")
    parser.add_argument("--seed", type=int, help="what to draw by; by default another one each time")
    parser.add_argument(
        "--lines", type=Path, nargs="+", metavar="FILE", help="text to read instead of Python's library"
    )
    parser.add_argument("--rate", type=float, default=400.0, help="lines a second (400)")
    parser.add_argument("--checkpoint-every", type=float, default=0.5, help="seconds (0.5)")
    options = parser.parse_args()
    if unknown := set(options.programs) - PROGRAMS.keys():
        parser.error(f"no program: {', '.join(sorted(unknown))}")
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    seconds = options.minutes * 60 if options.seconds is None else options.seconds
    right = [endure(name, seconds, seed, options) for name in options.programs or PROGRAMS]
    sys.exit(not all(right))


if __name__ == "__main__":
    main()
