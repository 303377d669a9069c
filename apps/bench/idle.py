"""S6: cost of doing nothing: an idle job, a job with a single line, and the import.

A job of two worker processes waits for standard input. The CPU time of its workers over some seconds is given as a
share of a core, and that of the launcher separately. The whole time of `megaflow run` is that of the command with a
one-line file, from its start to its end.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from apps.bench.processes import megaflow_run, processor_seconds
from apps.bench.report import Found, Goal
from apps.bench.workload import ROOT, Setting, Step, Workload, one, run_json, usual_environment

SHARE, SECONDS, FOREIGN = "% of a core", "seconds", "pyspark or pyarrow imported"
WORKERS, LAUNCHER = "megaflow, two idle processes", "megaflow, their launcher"
LINE, IMPORT, PYTHON = "megaflow run of one line", "import megaflow", "python -c pass"
IDLE_SECONDS, IDLE_SECONDS_QUICK = 10, 2
SETTLE_SECONDS = 2.0
APP = "apps/wordcount.py"
IMPORTING = """
import json, sys, time
began = time.perf_counter()
import megaflow
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "foreign": len({"pyspark", "pyarrow"} & sys.modules.keys())}))
"""


def run_idle(seconds: float) -> Found:
    """Measure a job that has nothing to do."""
    with megaflow_run([APP, "--lines", "-"], 2, subprocess.PIPE) as job:
        launcher, workers = job.launcher.pid, job.workers
        time.sleep(SETTLE_SECONDS)
        began, before = time.perf_counter(), (processor_seconds(workers), processor_seconds([launcher]))
        time.sleep(seconds)
        job.check()
        after, took = (processor_seconds(workers), processor_seconds([launcher])), time.perf_counter() - began
    shares = [100 * (late - soon) / took for late, soon in zip(after, before)]
    return {**one(WORKERS, {SHARE: shares[0]}), **one(LAUNCHER, {SHARE: shares[1]})}


def timed(name: str, *command: str) -> Found:
    """Run a command to its end. Raises CalledProcessError."""
    began = time.perf_counter()
    words = [sys.executable, *command]
    subprocess.run(words, cwd=ROOT, env=usual_environment(), check=True, capture_output=True)
    return one(name, {SECONDS: time.perf_counter() - began})


def run_import() -> Found:
    """Import megaflow in a fresh process."""
    record = run_json([sys.executable, "-c", IMPORTING], IMPORT)
    return one(IMPORT, {SECONDS: record["seconds"], FOREIGN: record["foreign"]})


def steps(folder: Path, seconds: float) -> Sequence[Step]:
    """Return the contenders."""
    path = folder / "line.txt"
    path.write_text("one line\n", encoding="ascii")
    return (
        Step(PYTHON, lambda: timed(PYTHON, "-c", "pass")),
        Step(IMPORT, run_import),
        Step(LINE, lambda: timed(LINE, "-m", "megaflow", "run", APP, "--lines", str(path), "--output", "none")),
        Step(WORKERS, lambda: run_idle(seconds)),
    )


def open_idle(setting: Setting) -> Sequence[Step]:
    """Write the one line."""
    return steps(setting.folder, setting.size(IDLE_SECONDS, IDLE_SECONDS_QUICK))


S6 = Workload(
    "S6",
    "idle",
    open_idle,
    (
        Goal(WORKERS, SHARE, 2.0),
        Goal(LINE, SECONDS, 0.45),
        Goal(IMPORT, SECONDS, 0.15),
        Goal(IMPORT, FOREIGN, 0.0),
    ),
    base=PYTHON,
)
