"""S19: running counts of words in processes of this machine and on Spark's executors, which take turns.

The executors are those of a local cluster, so both use the same cores. A job's time is from the first line read to the
last epoch closed. The start of Spark is shown separately and does not count in the rate.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark

from apps.bench.report import Found, Goal
from apps.bench.wordcount import COPIES, COPIES_QUICK, MEGA, RATE, write_text
from apps.bench.workload import Absent, Setting, Step, Workload, check_count, one
from apps.wordcount import dataflow
from megaflow.errors import SourceError
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.launch import LaunchOptions, launch
from megaflow.job.spec import JobSpec
from megaflow.spark.preflight import find_java

HERE, ON_SPARK = "two processes", "two processes on executors"
START = "start s"
MASTER = "local-cluster[2,1,1024]"
SETTINGS = (("spark.executor.memory", "900m"),)


@contextlib.contextmanager
def home_of_its_own(folder: Path) -> Iterator[None]:
    """Set SPARK_HOME to a lookalike folder, because executors of a local cluster work in a folder below it."""
    home = folder / "spark"
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (home / path.name).symlink_to(path)
    before = os.environ.get("SPARK_HOME")
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        os.environ.pop("SPARK_HOME")
        if before is not None:
            os.environ["SPARK_HOME"] = before


def open_executors(setting: Setting) -> Sequence[Step]:
    """Write the text; return the contenders. Raises Absent without a Java that can run Spark."""
    try:
        find_java()
    except SourceError as error:
        raise Absent(str(error)) from error
    path = setting.folder / "text.txt"
    words = write_text(setting.text, setting.size(COPIES, COPIES_QUICK), path)
    setting.stack.enter_context(home_of_its_own(setting.folder))

    def step(name: str, on: str | None) -> Step:
        return Step(name, lambda: run(name, on))

    def run(name: str, on: str | None) -> Found:
        began = time.monotonic()
        spec = JobSpec(pickle_app(dataflow), processes=2, on=on, conf=() if on is None else SETTINGS)
        account = launch(LaunchOptions(spec, f"{path}?unordered"))
        check_count(name, account.records, words)
        start = min(flow for flow, _ in account.flows) - began
        return one(name, {RATE: words / account.flow_seconds / MEGA, START: start})

    return step(HERE, None), step(ON_SPARK, MASTER)


S19 = Workload(
    "S19",
    "word count on Spark's executors, beside processes of the same machine",
    open_executors,
    (Goal(ON_SPARK, RATE, 0.9, at_least=True, of=(HERE,)),),
    base=HERE,
    notes=(f"on Spark: {MASTER}", "each reads pieces of the file (?unordered)"),
)
