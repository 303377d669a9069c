"""What a Python program sees of a loss: one warning and exact counts, or one sentence if it stopped its session."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.cluster.processes import Process, spark_environment
from tests.results import comparing

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECONDS = 600.0
PROGRAM = """
import json, os, signal, sys, time
from pyspark.sql import SparkSession
import megaflow
from megaflow.errors import MegaflowError


def dataflow(flow):
    return flow.rows().stateful_state_machine(lambda key, n, total: ((total or 0) + n, [(key, (total or 0) + n)]))


def wait_for(run, records, killed=None):  # by two workers, none of them in the process that was killed
    while True:
        try:
            status = run.job.status()
        except MegaflowError:  # it recovers
            status = None
        workers = [] if status is None else [each for each in status.workers if each.pid != killed]
        if len(workers) == 2 and sum(each.records for each in workers) >= records:
            return status
        time.sleep(0.2)


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
    rates = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
    frame = rates.selectExpr("value % 97 AS word", "1L AS n")
    with megaflow.spark.run(frame, dataflow, "word LONG, n LONG", processes=2, state="kept") as run:
        totals = run.results.writeStream.option("checkpointLocation", "checkpoint")
        query = run.start_query(lambda: totals.trigger(availableNow=True).start("totals"))
        status = wait_for(run, 200)
        killed = status.workers[1].pid
        os.kill(killed, signal.SIGKILL)
        wait_for(run, 200, killed)
        run.job.stop()
        query.awaitTermination()
        summary = run.job.wait()
    print(json.dumps([summary.lines, summary.records, spark.read.parquet("totals").count()]))
    spark.stop()
"""


def test_a_program_sees_one_warning_of_a_loss_and_exact_counts(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = spark_environment(tmp_path)
    process = Process([sys.executable, "program.py"], env=environment, cwd=tmp_path)
    try:
        ended = process.end(SECONDS)
    finally:
        process.finish()
    assert ended.code == 0, ended.errors
    lines, records, written = json.loads(ended.output)
    with comparing():
        assert 0 < records == lines <= written, "since the restart"
    # Hadoop may be starting a command when Spark stops the query. It then prints that it was interrupted.
    interrupted = r".* WARN Shell: Interrupted while joining on: .*\njava\.lang\.InterruptedException\n(\tat .*\n)+"
    said = re.sub(interrupted, "", ended.errors).splitlines()
    warnings = [line for line in said if "was killed by SIGKILL" in line and "restart 1 of 3" in line]
    assert len(warnings) == 1, ended.errors
    assert not [line for line in said if re.search(r"^\tat |Traceback|Exception| ERROR ", line)], ended.errors


STOPPING = """
import time
from pyspark.sql import SparkSession
import megaflow
from megaflow.errors import MegaflowError


def dataflow(flow):
    return flow.rows().map(lambda row: row[0])


def rate():
    session = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
    return session.readStream.format("rate").option("rowsPerSecond", 100).load().selectExpr("value")


def failure(start, ask=lambda job: job.wait()):
    frame = rate()
    job = start(frame)
    while not sum(each.lines for each in job.status().workers):
        time.sleep(0.1)
    frame.sparkSession.stop()
    try:
        ask(job)
    except MegaflowError as error:
        print(type(error).__name__, error, flush=True)
    return frame


def refused(start):
    try:
        start()
    except MegaflowError as error:
        print(type(error).__name__, error, flush=True)


if __name__ == "__main__":
    failure(lambda frame: megaflow.spark.run(frame, dataflow).job)
    failure(lambda frame: megaflow.spark.run(frame, dataflow, state="asked").job, lambda job: job.status())
    here = lambda frame, **more: megaflow.start(dataflow, rows={"rows": frame}, **more)
    failure(lambda frame: here(frame, output="spark:noop?schema=n LONG"))
    stopped = failure(lambda frame: here(frame, output="none", state="kept"))
    rate()
    refused(lambda: megaflow.run(dataflow, rows={"rows": stopped}))
    refused(lambda: megaflow.run(lambda flow: flow.lines(), lines=stopped))
    refused(lambda: megaflow.spark.run(stopped, dataflow))
"""


def test_a_program_that_stops_its_session_is_told_so_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STOPPING)
    process = Process([sys.executable, "program.py"], env=spark_environment(tmp_path), cwd=tmp_path)
    try:
        ended = process.end(SECONDS)
    finally:
        process.finish()
    assert ended.code == 0, ended.errors
    on_executors, asked, here, kept, *refused = ended.output.splitlines()
    why = "the Spark session was stopped while the job used it"
    assert re.fullmatch(rf"ClusterError worker 0 \(.*\) was lost: {why}", on_executors), ended.output
    ends = rf"StateKept worker 0 \(.*\) was lost: {why}; no other process can be started; its state is kept in [^;]*"
    assert re.fullmatch(ends, asked), ended.output
    what = r"(the DataFrame of rows 'rows'|--output spark:noop:)"
    assert re.fullmatch(rf"(Outage|OutputError) {what}: {why}(\. Create a new session.*)?", here), ended.output
    assert kept.startswith(f"StateKept the DataFrame of rows 'rows': {why}. Create a new session"), ended.output
    again = "UsageError The Spark session has been stopped. Create a new one, and create its DataFrames again."
    assert refused == [again] * 3, ended.output
