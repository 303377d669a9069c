"""S3: counts of a million random integers in one process: no key is in the CPU cache, and memory matters.

Memory is the peak of the worker's process, compared with that of a process that runs the plain loop. The launcher is
not included, because it has no part in the counting.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apps.bench.processes import Peaks
from apps.bench.report import Found, Goal
from apps.bench.workload import PLAIN, Setting, Step, Workload, check_count, one, peer, plain
from apps.wordcount import count
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.launch import LaunchOptions, launch
from megaflow.job.spec import JobSpec
from megaflow.job.worker.process.flow import Flow
from megaflow.stream import Stream

RATE, MEMORY = "k records/s", "RSS MB"
MEGAFLOW = "megaflow, one process"
BYTEWAX = "Bytewax, one worker"
KEYS, KEYS_QUICK = 1_000_000, 100_000
RECORDS_PER_KEY = 5
SEED = 3
KILO = 1e3


def dataflow(flow: Flow) -> Stream[Any]:
    """Count lines that are numbers."""
    return flow.lines().map(lambda line: (int(line), 1)).stateful_state_machine(count)


def write_numbers(path: Path, keys: int, records: int) -> None:
    """Write `count` random numbers below `keys`, one a line."""
    draw = random.Random(SEED).randrange
    with path.open("w", encoding="ascii") as lines:
        lines.writelines(f"{draw(keys)}\n" for _ in range(records))


def figures(records: int, seconds: float, peak_mb: float) -> dict[str, float]:
    """Return the row's figures. Memory is included only where it is known."""
    found = {RATE: records / seconds / KILO}
    return {**found, MEMORY: peak_mb} if peak_mb else found


def run_plain(path: Path, records: int) -> Found:
    """Run the plain loop."""
    record = plain("numbers", path)
    check_count(PLAIN, record["records"], records)
    return one(PLAIN, figures(records, record["seconds"], record["peak_mb"]))


def run_job(path: Path, records: int) -> Found:
    """Run a job, and measure the memory of its worker."""
    with Peaks() as peaks:
        account = launch(LaunchOptions(JobSpec(pickle_app(dataflow)), str(path)))
    check_count(MEGAFLOW, account.records, records)
    return one(MEGAFLOW, figures(records, account.flow_seconds, max(peaks.by_pid.values(), default=0.0)))


def run_peer(setting: Setting, script: str, name: str, path: Path, *sizes: str) -> Found:
    """Run Bytewax or Pathway."""
    record = peer(setting.peers, script, name, path, "numbers", *sizes)
    return one(name, figures(record["records"], record["seconds"], record["peak_mb"]))


def steps(setting: Setting, keys: int) -> Sequence[Step]:
    """Write the numbers; return the contenders."""
    path, records = setting.folder / "numbers.txt", keys * RECORDS_PER_KEY
    write_numbers(path, keys, records)
    pathway = "Pathway, one process"
    return (
        Step(PLAIN, lambda: run_plain(path, records)),
        Step(MEGAFLOW, lambda: run_job(path, records)),
        Step(BYTEWAX, lambda: run_peer(setting, "bytewax_wordcount.py", BYTEWAX, path, "1", "1")),
        Step(pathway, lambda: run_peer(setting, "pathway_wordcount.py", pathway, path, "1")),
    )


S3 = Workload(
    "S3",
    "a million random integer keys, five records each, one process",
    lambda setting: steps(setting, setting.size(KEYS, KEYS_QUICK)),
    (
        Goal(MEGAFLOW, RATE, 0.7, at_least=True, of=(PLAIN,)),
        Goal(MEGAFLOW, MEMORY, 2.5, of=(PLAIN,)),
        Goal(MEGAFLOW, RATE, 8.0, at_least=True, of=(BYTEWAX,)),
    ),
    notes=("Pathway coalesces: it emits a count only for some of the records", "Bytewax has the numbers as text"),
)
