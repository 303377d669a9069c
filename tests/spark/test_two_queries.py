"""Two queries of Spark feed one job: neither waits for the other, and a fork continues both, on a real Spark."""

import sys
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from megaflow.job.kept_states import read_state
from tests.cluster.processes import Process, Run, records_of, spark_environment, wait_until
from tests.results import check_equal, comparing
from tests.spark.test_several_queries import WAIT_SECONDS, add_file
from tests.spark.test_stateful import written

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 20  # of a file
KEYS = 7
GOES_ON = 6  # files of one query that are read while the other query is held up


APP = """
import time

def count(key, row, total):
    time.sleep(0.002)
    total = (total or 0) + 1
    return total, [(key, total)]

def dataflow(flow):
    left, right = (flow.rows(name).map(lambda row: (row[0], row)) for name in ("left", "right"))
    return left.concat(right).stateful_state_machine(count, name="count")
"""


class Arriving:
    """Files of both inputs in a folder, and what a job must count in them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, Counter[str]()
        self.wanted = Counter[str]()
        (folder / "app.py").write_text(APP)
        for name in ("left", "right"):
            (folder / name).mkdir()

    def add(self, name: str, files: int = 1) -> None:
        for _ in range(files):
            number = self.files[name]
            keys = [f"{name}{(number + place) % KEYS}" for place in range(ROWS)]
            add_file(self.folder / name, number, [{"k": key} for key in keys])
            self.files[name] += 1
            self.wanted.update(keys)

    def check(self, found: Iterable[Any], before: Mapping[str, int] = {}) -> None:
        """Compare the outputs with a plain count, which continues from `before`."""
        wanted = {key: range(before.get(key, 0) + 1, last + 1) for key, last in self.wanted.items()}
        check_equal(Counter(found), Counter((key, total) for key, totals in wanted.items() for total in totals))


PROGRAM = """
import os, sys, time
from pyspark.sql import SparkSession
import megaflow.spark
from app import dataflow

def held(batches):
    open(HELD, "w").close()
    while not os.path.exists(GO):
        time.sleep(0.1)
    yield from batches

GO, HELD = os.path.abspath("go"), os.path.abspath("held")

if __name__ == "__main__":
    builder = SparkSession.builder.master("local[4]").config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.driver.memory", "800m").config("spark.ui.enabled", "false").getOrCreate()

    def stream(name):
        frame = spark.readStream.schema("k STRING").option("maxFilesPerTrigger", 1).json(name)
        return frame.mapInPandas(held, "k STRING") if name == sys.argv[1] else frame

    frames = {name: stream(name) for name in ("left", "right")}
    with megaflow.spark.run(frames, dataflow, "k STRING, n LONG", state="kept", checkpoint_every=0.3) as run:
        writer = run.results.writeStream.option("checkpointLocation", "checkpoint")
        query = run.start_query(lambda: writer.start("out"))
        while query.isActive and run.job.is_running and not os.path.exists("stop"):
            time.sleep(0.2)
        if not query.isActive:
            print(query.exception(), file=sys.stderr)
    query.stop()
    print(*(tuple(row) for row in spark.read.parquet("out").collect()), sep="\\n", flush=True)
    spark.stop()
"""


def test_a_query_does_not_wait_for_a_batch_of_another_one(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "program.py").write_text(PROGRAM)
    arriving, out, environment = Arriving(tmp_path), tmp_path / "out", spark_environment(tmp_path)
    go, held, stop = (tmp_path / name for name in ("go", "held", "stop"))

    def start(name: str) -> Process:
        """Start the program. The tasks that read the input `name` wait until the file `go` exists."""
        held.unlink(missing_ok=True)
        return Process([sys.executable, "program.py", name], env=environment, cwd=tmp_path)

    def until(condition: Callable[[], bool], program: Process) -> None:
        wait_until(lambda: condition() or program.poll() is not None, WAIT_SECONDS)
        assert program.poll() is None, [*program.output, *program.errors]

    def goes_on(name: str, program: Process) -> None:
        """Check that results of an input come, file by file, while the other one is held up."""
        for wanted in range(written(out) + ROWS, written(out) + GOES_ON * ROWS + 1, ROWS):
            arriving.add(name)
            until(lambda wanted=wanted: written(out) == wanted, program)

    arriving.add("right", 2)
    first = start("right")
    try:
        until(held.exists, first)
        goes_on("left", first)
        stop.touch()
        ended = first.end(WAIT_SECONDS)  # a task of the other query still hangs
    finally:
        first.finish()
    assert ended.code == 0, ended.errors
    stop.unlink()
    second = start("right")
    try:
        until(held.exists, second)
        goes_on("left", second)
        second.kill()
    finally:
        second.finish()
    arriving.add("left", 2)
    third, before = start("left"), written(out)
    try:
        until(lambda: held.exists() and written(out) == before + 2 * ROWS, third)
        goes_on("right", third)
        go.touch()
        until(lambda: written(out) == arriving.wanted.total(), third)
        stop.touch()
        ended = third.end(WAIT_SECONDS)
    finally:
        third.finish()
    assert ended.code == 0, ended.errors
    arriving.check(map(literal_eval, ended.output.splitlines()))


def test_a_fork_continues_both_queries_from_a_named_checkpoint(tmp_path: Path) -> None:
    arriving = Arriving(tmp_path)

    def start(name: str, *more: str) -> Run:
        folders = {each: tmp_path / each for each in ("left", "right")}
        rows = [f"{each}=spark:json:{at}?schema=k STRING&maxFilesPerTrigger=1" for each, at in folders.items()]
        return Run(
            tmp_path, str(tmp_path / "app.py"), *(word for each in rows for word in ("--rows", each)),
            "--output", f"jsonl:{tmp_path / name}.jsonl", "--state", str(tmp_path / name), "--processes", "2",
            "--checkpoint-every", "0.3", "--name", name, *more,
        )  # fmt: skip

    def wrote(name: str) -> int:
        return len(records_of(tmp_path / f"{name}.jsonl"))

    def await_records(name: str, run: Run, records: int) -> None:
        wait_until(lambda: wrote(name) >= records or run.process.poll() is not None, WAIT_SECONDS)
        assert run.process.poll() is None, run.end()

    def finish(name: str, run: Run, before: Mapping[str, int] = {}) -> None:
        """Stop the job once it has counted everything, and check its output."""
        await_records(name, run, arriving.wanted.total() - sum(before.values()))
        stopped = run.control("stop", "--job", name)
        assert stopped.returncode == 0, stopped
        arriving.check(map(tuple, records_of(tmp_path / f"{name}.jsonl")), before)

    def keep(run: Run, name: str) -> None:
        named = run.control("checkpoint", "--job", "kept", "--name", name)
        assert named.returncode == 0, named

    arriving.add("left", 2)
    run = start("kept")
    try:
        await_records("kept", run, 1)
        keep(run, "early")  # the right input has had no batch
        for _ in range(2):
            arriving.add("left", 2)
            arriving.add("right", 4)
            await_records("kept", run, wrote("kept") + 2 * ROWS)
        keep(run, "nightly")
        finish("kept", run)
    finally:
        run.process.finish()
    for name in "early", "nightly":
        counted = dict(read_state(tmp_path / "kept", "count", name))
        with comparing():
            assert 0 < sum(counted.values()) < arriving.wanted.total()
            assert any(key.startswith("right") for key in counted) == (name == "nightly"), counted
        run = start(f"fork-{name}", "--from-checkpoint", f"{tmp_path / 'kept'}:{name}")
        try:
            await_records(f"fork-{name}", run, 1)
            arriving.add("left")
            arriving.add("right")
            finish(f"fork-{name}", run, counted)
        finally:
            run.process.finish()
