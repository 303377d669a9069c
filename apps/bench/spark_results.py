"""S20: rate at which results leave a job for Spark, which writes them as Parquet: running counts of words.

The time is from the first line read until Spark has marked the last batch as done and the job has ended, in a warm
session. With `--state`, results go to Spark only once they are in a checkpoint.
"""

import importlib.util
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from apps.bench.report import Found, Goal
from apps.bench.workload import Absent, Setting, Step, Workload, check_count, one
from apps.wordcount import dataflow
from megaflow.errors import SourceError
from megaflow.job.launcher.outputs.spark_results import open_results
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.launch import LaunchOptions, launch
from megaflow.job.spec import JobSpec
from megaflow.spark.preflight import find_java
from megaflow.spark.results_spec import ARROW
from megaflow.spark.spark_session import spark_session

RATE = "k rows/s"
PARQUET, KEPT = "into Parquet", "into Parquet, --state"
ROWS, ROWS_QUICK = 2_000_000, 20_000
FEW = 100_000  # words for the warm-up
WORDS_A_LINE = 10
KEYS = 10_000
COLUMNS = "word STRING, n LONG"
KILO = 1e3


def write_words(path: Path, words: int) -> str:
    """Write `words` words; return the file's name."""
    with path.open("w", encoding="ascii") as text:
        for first in range(0, words, WORDS_A_LINE):
            text.write(" ".join(f"word{number % KEYS}" for number in range(first, first + WORDS_A_LINE)) + "\n")
    return str(path)


def run(name: str, path: str, rows: int, folder: Path, is_kept: bool) -> Found:
    """Run the job; return the rate."""
    where = folder / str(time.monotonic_ns())
    state = f"{where}-store" if is_kept else None
    output = f"spark:parquet:{where}?schema={COLUMNS}"
    spec = JobSpec(pickle_app(dataflow), state=state)
    account = launch(LaunchOptions(spec, path, lambda: open_results(output, state)))
    ended = time.monotonic()
    check_count(name, account.records, rows)
    return one(name, {RATE: rows / (ended - account.flows[0][0]) / KILO})


def open_parquet(setting: Setting) -> Sequence[Step]:
    """Start Spark, write the words, warm up. Raises Absent without a Java that can run Spark, or without Arrow."""
    try:
        find_java()
    except SourceError as error:
        raise Absent(str(error)) from error
    if None in map(importlib.util.find_spec, ARROW):
        raise Absent("pandas and pyarrow are not installed (pip install 'megaflow[arrow]')")
    rows = setting.size(ROWS, ROWS_QUICK)
    few, many = write_words(setting.folder / "few", FEW), write_words(setting.folder / "many", rows)
    setting.stack.enter_context(spark_session(setting.folder))
    run(PARQUET, few, FEW, setting.folder, False)
    return [
        Step(name, partial(run, name, many, rows, setting.folder, is_kept))
        for name, is_kept in ((PARQUET, False), (KEPT, True))
    ]


S20 = Workload(
    "S20",
    "running counts of words that Spark writes as Parquet, one process",
    open_parquet,
    (Goal(PARQUET, RATE, 100, at_least=True), Goal(KEPT, RATE, 100, at_least=True)),
    base=None,
    notes=("from the first line read until Spark has noted the last batch as done",),
)
