"""A job whose restart waits for slots of Spark can be asked and stopped, and resumes exactly, on real processes."""

import re
import signal
import sys
import time
from ast import literal_eval
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.cluster.processes import Process, Run, spark_environment, wait_until
from tests.results import check_equal
from tests.spark.standalone import Standalone
from tests.spark.test_several_queries import add_file
from tests.spark.test_standalone import FedOnExecutors, lose_a_machine
from tests.spark.test_stateful import written
from tests.spark.test_workers_on_executors import WAIT_SECONDS
from tests.words import says

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LACK = "3 queued: no free slot: 3 worker processes and Spark's own source need 4 slots, but Spark has 2"
PROGRAM = """
import os, sys, time
from pyspark.sql import SparkSession
import megaflow.spark

def count(key, row, total):
    total = (total or 0) + 1
    return total, [(key, total)]

def dataflow(flow):
    return flow.rows().map(lambda row: (row[0], row)).stateful_state_machine(count)

if __name__ == "__main__":
    master, host = sys.argv[1:]
    builder = SparkSession.builder.master(master).config("spark.driver.host", host).config("spark.ui.enabled", "false")
    spark = builder.config("spark.executor.memory", "900m").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    frame = spark.readStream.schema("k STRING").option("maxFilesPerTrigger", 1).json("in")
    options = {"processes": 3, "state": "kept", "checkpoint_every": 0.3}
    with megaflow.spark.run(frame, dataflow, "k STRING, n LONG", **options) as run:
        writer = run.results.writeStream.option("checkpointLocation", "checkpoint")
        query = run.start_query(lambda: writer.start("out"))
        while not os.path.exists("stop") and run.job.status().state != "recovering":
            time.sleep(0.1)
        print(run.job.status().restart, flush=True)
        run.job.stop()
    assert run.job.wait().stopped_at
    query.stop()
    print(*(tuple(row) for row in spark.read.parquet("out").collect()), sep="\\n", flush=True)
    spark.stop()
"""
COMMAND_SECONDS = 200.0  # less than the timeout of the commands in `Run`, for which a stop waited in vain


def queued(fed: FedOnExecutors, cluster: Standalone) -> Run:
    """Start the job, and make it lose a machine. Return when it waits for slots."""
    cluster.mend()
    run, before = fed.run(), fed.newest()
    try:
        with fed.arriving():
            wait_until(lambda: fed.newest() > before or run.process.poll() is not None, WAIT_SECONDS)
            assert run.process.poll() is None, run.end()
            lose_a_machine(cluster)
            status = run.status_when(lambda record: LACK in (record.get("restart") or ""))
        assert status["state"] == "recovering", status
        assert "remove-workers" not in status["restart"], "this job has no workers to remove"
    except BaseException:
        run.process.finish()
        raise
    return run


def test_a_restart_that_waits_for_slots_can_be_stopped(tmp_path: Path, cluster: Standalone) -> None:
    fed = FedOnExecutors(tmp_path, Random(1))
    fed.master, fed.processes = cluster.url, "3"
    run = queued(fed, cluster)
    try:
        refused = run.control("add-workers", "1", "--timeout", "1")
        assert refused.returncode == 1 and says(refused.stderr, LACK, "the request was not sent"), refused
        began = time.monotonic()
        stopped = run.control("stop")
        assert stopped.returncode == 0, stopped
        at = re.search(r"stopped (at checkpoint \d+); run the same command again to resume", stopped.stdout)
        assert at is not None, stopped
        code, _, said = run.end()
        assert time.monotonic() < began + COMMAND_SECONDS
        assert code == 0 and says(said[-1], f"stopped {at[1]}", "run the same command again to resume"), said
    finally:
        run.process.finish()
    run = queued(fed, cluster)
    try:
        run.process.send_signal(signal.SIGTERM)
        run.process.send_signal(signal.SIGTERM)
        code, _, said = run.end()
        assert code == 128 + signal.SIGTERM and says(said[-2], "is kept in", "run the same command to resume"), said
    finally:
        run.process.finish()
    cluster.mend()
    run = fed.run()
    try:
        fed.finish(run)
    finally:
        run.process.finish()
    fed.check()


def test_a_program_stops_a_restart_that_waits_for_slots(tmp_path: Path, cluster: Standalone) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = spark_environment(tmp_path, SPARK_LOCAL_IP=cluster.here.address)
    rows, out, wanted = tmp_path / "in", tmp_path / "out", Counter[str]()

    def start() -> Process:
        """Add files, start the program, and wait until it has read one of them."""
        cluster.mend()
        before = written(out)
        for _ in range(5):
            keys = [f"k{number % 7}" for number in range(20)]
            add_file(rows, wanted.total(), [{"k": key} for key in keys])
            wanted.update(keys)
        words = [sys.executable, "program.py", cluster.url, cluster.here.address]
        program = Process(words, env=environment, cwd=tmp_path)
        until(lambda: written(out) > before, program)
        return program

    def until(condition: Callable[[], bool], program: Process) -> None:
        wait_until(lambda: condition() or program.poll() is not None, WAIT_SECONDS)
        assert program.poll() is None, [*program.output, *program.errors]

    first = start()
    try:
        lose_a_machine(cluster)
        ended = first.end(WAIT_SECONDS)
    finally:
        first.finish()
    assert ended.code == 0 and says(ended.output, "restart 1 of 3", "3 queued: no free slot"), ended.errors
    second = start()
    try:
        until(lambda: written(out) == wanted.total(), second)
        (tmp_path / "stop").touch()
        ended = second.end(WAIT_SECONDS)
    finally:
        second.finish()
    assert ended.code == 0, ended.errors
    found = Counter(map(literal_eval, ended.output.splitlines()[1:]))
    check_equal(found, Counter((key, n) for key, last in wanted.items() for n in range(1, last + 1)))
