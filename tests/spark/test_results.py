"""Results for Spark, on real processes and a real Spark: its Parquet files contain the counts of plain Python."""

import json
import os
import shutil
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryListener

import megaflow
from megaflow.errors import OutputError, PeerFailed, UsageError
from megaflow.job.launcher.run import spark_run
from megaflow.spark import results_query
from megaflow.spark.push import VARIABLE
from megaflow.spark.results_query import OwnQueries
from tests.cluster.processes import WORDCOUNT, Ended, Process, Run, spark_environment, wait_until
from tests.results import check_equal
from tests.spark.test_spark_crashes import victims
from tests.words import says

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WAIT_SECONDS = 500.0
LINES = 3000
WORDS = [f"w{number % 97}" for number in range(LINES)]


def running_counts() -> Counter[tuple[str, int]]:
    """Return the outputs of a plain loop."""
    total, found = Counter[str](), Counter[tuple[str, int]]()
    for word in WORDS:
        total[word] += 1
        found[word, total[word]] += 1
    return found


def written(out: Path) -> Counter[tuple[str, int]]:
    """Return what Spark has committed, according to its own list of files."""
    from pyarrow import parquet

    log, found = out / "_spark_metadata", Counter[tuple[str, int]]()
    entries = [entry for entry in log.iterdir() if not entry.name.startswith(".")] if log.is_dir() else []
    lines = [line for entry in entries for line in entry.read_text().splitlines()[1:]]
    paths = {out / Path(json.loads(line)["path"]).name for line in lines}
    for done in out.glob("from_row=*/_SUCCESS"):  # without Arrow
        paths.update(done.parent.glob("*.parquet"))
    for path in paths:
        table = parquet.ParquetFile(path).read().to_pydict()
        found.update(zip(table["word"], table["n"], strict=True))
    return found


@contextmanager
def running(folder: Path, output: str, *more: str) -> Iterator[Run]:
    lines = folder / "lines.txt"
    lines.write_text("".join(f"{word}\n" for word in WORDS))
    run = Run(folder, WORDCOUNT, "--lines", str(lines), "--output", output, "--processes", "2", *more)
    try:
        yield run
    finally:
        run.process.finish()


def finished(run: Run) -> Ended:
    return run.process.end(WAIT_SECONDS)


@pytest.mark.parametrize("arrow", [True, False])
def test_what_spark_has_written_is_what_was_counted(
    tmp_path: Path, arrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "" if arrow else "rows")
    with running(tmp_path, f"spark:parquet:{tmp_path}/out?schema=word string, n long") as run:
        ended = finished(run)
    assert ended.code == 0, ended.errors
    said = ended.errors.splitlines()
    assert said.index("megaflow: waiting for Spark to start") < [" on 2 workers" in line for line in said].index(True)
    check_equal(written(tmp_path / "out"), running_counts())


FIRST = [(True, "launcher"), (True, "java")]
KILLS = [(arrow, each) for arrow in (True, False) for each in ("launcher", "worker", "java", "executor")]
MORE = [pytest.param(*each, marks=pytest.mark.faults) for each in KILLS if each not in FIRST]


@pytest.mark.parametrize(("arrow", "killed"), [*FIRST, *MORE])
def test_each_row_is_written_once_whatever_is_killed(
    tmp_path: Path, arrow: bool, killed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "" if arrow else "rows")
    out = tmp_path / "out"
    output = f"spark:parquet:{out}?schema=word string, n long"
    kept = ("--state", str(tmp_path / "kept"), "--checkpoint-every", "0.2")
    with running(tmp_path, output, *kept, "--rate", "30") as run:
        wait_until(lambda: bool(written(out)) or run.process.poll() is not None, WAIT_SECONDS)
        assert run.process.poll() is None, run.said
        before = written(out)
        victim = victims(run, killed)[-1]
        os.kill(victim, signal.SIGKILL)
        if killed == "worker":
            wait_until(lambda: any("restart 1 of 3" in line for line in run.said), WAIT_SECONDS)
        if killed in ("worker", "executor"):  # after the loss of an executor Spark repeats its tasks, or gives up
            count = written(out).total()
            wait_until(lambda: written(out).total() > count or run.process.poll() is not None, WAIT_SECONDS)
            assert killed == "executor" or run.process.poll() is None, run.said
            run.control("stop")
        code = finished(run).code
        assert killed in ("worker", "executor") or code, run.said
        assert killed != "java" or says(run.said[-1], f"{out}: Spark's Java process has ended unexpectedly;"), run.said
    assert 0 < before.total() < LINES
    with running(tmp_path, output, *kept) as run:
        ended = finished(run)
    assert ended.code == 0, ended.errors
    check_equal(written(out), running_counts())


@pytest.mark.faults
def test_a_store_and_files_of_spark_that_were_restored_apart_are_refused(tmp_path: Path) -> None:
    out, state = tmp_path / "out", tmp_path / "kept"
    output = f"spark:parquet:{out}?schema=word string, n long"
    kept = ("--state", str(state), "--checkpoint-every", "0.2")
    with running(tmp_path, output, *kept, "--rate", "30") as run:
        wait_until(lambda: bool(written(out)) or run.process.poll() is not None, WAIT_SECONDS)
        assert run.control("stop").returncode == 0, run.said
        assert finished(run).code == 0, run.said
    shutil.copytree(state, tmp_path / "early")
    shutil.copytree(out, tmp_path / "early-out")
    with running(tmp_path, output, *kept) as run:
        assert finished(run).code == 0, run.said
    check_equal(written(out), running_counts())
    shutil.copytree(state, tmp_path / "late")
    for older, which in (("early", "the store"), ("early-out", "the output")):
        shutil.rmtree(state)
        shutil.copytree(tmp_path / ("early" if older == "early" else "late"), state)
        if older == "early-out":
            shutil.rmtree(out)
            shutil.copytree(tmp_path / older, out)
        with running(tmp_path, output, *kept) as run:
            ended = finished(run)
        assert ended.code == 1 and f"{which} is an older copy" in ended.errors, ended.errors
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "early", state)
    with running(tmp_path, output, *kept) as run:
        assert finished(run).code == 0, run.said
    check_equal(written(out), running_counts())


def test_a_record_that_does_not_fit_ends_the_job_and_is_named(tmp_path: Path) -> None:
    with running(tmp_path, "spark:noop?schema=word string, n string") as run:
        ended = finished(run)
    assert ended.code == 1
    assert "1) does not fit the schema of the results: column 'n' is 1 (int), but must be string" in ended.errors


def test_the_results_of_a_batch_frame_are_a_streaming_dataframe_that_ends(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""
from pyspark.sql import SparkSession
import megaflow.spark

def dataflow(flow):
    def count(word, n, total):
        total = (total or 0) + n
        return total, [{{"word": word, "n": total}}]
    return flow.rows("words").stateful_state_machine(count)

spark = SparkSession.builder.master("local[4,4]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.createDataFrame([(f"w{{number % 97}}", 1) for number in range({LINES})], "word STRING, n LONG")
run = megaflow.spark.run({{"words": frame}}, dataflow, "word STRING, n LONG", processes=2)
results = run.results.writeStream.format("parquet").option("checkpointLocation", "{tmp_path}/checkpoint")
query = run.start_query(lambda: results.trigger(availableNow=True).start("{tmp_path}/out"))
query.awaitTermination()
print(run.job.wait().records)
spark.stop()
""")
    environment = spark_environment(tmp_path)
    process = Process([sys.executable, str(program)], env=environment)
    try:
        ended = process.end(WAIT_SECONDS)
    finally:
        process.finish()
    assert ended.code == 0, ended.errors
    check_equal(ended.output, f"{LINES}\n", ended.errors)
    check_equal(written(tmp_path / "out"), running_counts())


def test_a_function_in_python_writes_results_by_a_specification(spark: Any, tmp_path: Path) -> None:
    def dataflow(flow: Any) -> Any:
        return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(
            lambda word, n, total: ((total or 0) + n, [(word, (total or 0) + n)])
        )

    output = f"spark:parquet:{tmp_path}/out?schema=word string, n long"
    (tmp_path / "lines.txt").write_text("".join(f"{word}\n" for word in WORDS))
    for _ in range(2):  # the second finds that everything is done
        lines = str(tmp_path / "lines.txt")
        assert megaflow.run(dataflow, lines=lines, output=output, state=tmp_path / "kept") == []
    check_equal(written(tmp_path / "out"), running_counts())
    check_equal(spark.read.parquet(f"{tmp_path}/out").count(), LINES)


def test_results_of_a_session_with_a_bare_python_are_refused_before_anything_starts(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare))
    why = f"schema: .* {bare} on this machine, which has no pandas and no pyarrow. Set PYSPARK_PYTHON={sys.executable} "
    with pytest.raises(UsageError, match=why):
        megaflow.spark.run(spark.range(3), lambda flow: flow.rows(), "n LONG")


@pytest.mark.parametrize("ends", ["fails", "is stopped", "is not started"])
def test_a_job_that_waits_for_a_reader_in_vain_says_why_instead_of_waiting(
    spark: Any, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = threading.Event()

    class Seen(OwnQueries):
        def trouble(self) -> str | None:
            reason = super().trouble()
            if self.have_begun:
                seen.set()
            return reason

    def write(batch: Any, number: int) -> None:
        assert seen.wait(WAIT_SECONDS)
        raise RuntimeError("no room")

    monkeypatch.setattr(spark_run, "OwnQueries", Seen)
    monkeypatch.setattr(results_query, "ALONE_SECONDS", 0.5)
    run = megaflow.spark.run(spark.range(3000), lambda flow: flow.rows(), "n LONG")
    results = run.results.writeStream.foreachBatch(write)
    why = "no query reads them"
    if ends == "fails":
        query = run.start_query(results.start)
        wait_until(lambda: not query.isActive, WAIT_SECONDS)
        why = "their query failed: .*no room"
    elif ends == "is stopped":
        query = run.start_query(run.results.writeStream.format("noop").trigger(processingTime="1 day").start)
        assert seen.wait(WAIT_SECONDS)
        query.stop()
        why = "their query was stopped"
    output = run._output
    assert output is not None
    wait_until(lambda: output.unread > 0, WAIT_SECONDS)
    run.job.stop()
    with pytest.raises(OutputError, match=f"^[1-9][0-9,]* rows of the results have no reader: {why}"):
        run.job.wait()


def test_a_query_of_the_default_trigger_idles_after_its_job(spark: Any) -> None:
    run = megaflow.spark.run(spark.range(3000), lambda flow: flow.rows(), "n LONG")
    counts: list[int] = []
    results = run.results.writeStream.foreachBatch(lambda batch, number: counts.append(batch.count()))
    query = run.start_query(results.start)
    check_equal(run.job.wait().records, 3000)
    query.processAllAvailable()  # raises the error that has ended the query
    assert query.isActive
    check_equal(sum(counts), 3000)
    query.stop()


def test_a_job_whose_results_nobody_has_asked_for_ends_when_it_is_stopped(spark: Any) -> None:
    run = megaflow.spark.run(spark.range(3000), lambda flow: flow.rows(), "n LONG")
    run.job.stop()
    run.job.wait()
    with pytest.raises(UsageError, match="The job ended before any query asked for them"):
        assert run.results
    without = megaflow.spark.run(spark.range(3), lambda flow: flow.rows())
    with pytest.raises(UsageError, match=r"start_query: The job has no results\. Name"):
        without.start_query(lambda: pytest.fail("there is nothing to read"))
    without.job.wait()


def test_a_query_that_comes_when_the_job_has_failed_says_what_made_it_fail(spark: Any, tmp_path: Path) -> None:
    may_fail = tmp_path / "may fail"

    def fail(row: Any) -> None:
        while not may_fail.exists():
            time.sleep(0.01)
        raise ValueError("a bad order")

    run = megaflow.spark.run(spark.range(3), lambda flow: flow.rows().map(fail), "n LONG")
    results = run.results
    may_fail.touch()
    with pytest.raises(PeerFailed, match="a bad order"):
        run.job.wait()
    with pytest.raises(PeerFailed, match="a bad order"):
        assert spark_run.Run(run.job, spark, run._output).results
    query = run.start_query(results.writeStream.format("noop").start)
    with pytest.raises(Exception, match=r"(?s)the job has failed: .*a bad order"):
        query.awaitTermination(WAIT_SECONDS)


class Heard(StreamingQueryListener):
    """A listener that keeps what it hears, and raises once."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.ended = threading.Event()

    def onQueryStarted(self, event: Any) -> None:
        self.events.append(event)

    def onQueryProgress(self, event: Any) -> None:
        self.events.append(event)
        if len(self.events) == 2:
            raise LookupError("not the job's fault")

    def onQueryIdle(self, event: Any) -> None:
        self.events.append(event)

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(event)
        self.ended.set()


def test_a_listener_of_spark_s_queries_hears_of_a_job(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text("".join(f'{{"word": "{word}"}}\n' for word in WORDS))
    frame = spark.readStream.schema("word STRING").json(str(folder))
    heard = Heard()

    def dataflow(flow: Any) -> Any:
        return flow.rows().map(lambda row: (row[0], 1)).stateful_state_machine(
            lambda word, n, total: ((total or 0) + n, [])
        )

    with megaflow.spark.run(frame, dataflow, name="heard") as run:
        run.add_listener(heard)
        wait_until(
            lambda: any(of_all(each) == LINES for each in heard.events) or not run.job.is_running, WAIT_SECONDS
        )
        assert run.job.is_running, run.job.failure_text()
        jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
        titles = [str(jobs.apply(place).description()) for place in range(jobs.size())]
        assert any("megaflow: job 'heard', worker process 0" in title for title in titles), titles
    assert heard.ended.wait(WAIT_SECONDS)
    first, *middle, last = heard.events
    assert first.name == "heard" and first.id == last.id and first.runId == last.runId and last.exception is None
    progress = middle[-1].progress
    assert (progress.name, progress.runId) == ("heard", first.runId)
    [operator] = progress.stateOperators
    check_equal((operator.numRowsUpdated, operator.numRowsTotal), (LINES, len(set(WORDS))))
    check_equal((json.loads(progress.json)["sources"][0]["numInputRows"], progress.numInputRows), (LINES, LINES))


def of_all(event: Any) -> int:
    """Return how many records the operators of a progress have applied."""
    return sum(each.numRowsUpdated for each in event.progress.stateOperators) if hasattr(event, "progress") else 0


@pytest.mark.parametrize("name", ["shop", "{os.getpid()}"])
def test_executors_that_write_to_two_databases_end_the_job(tmp_path: Path, name: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""
from pyspark.sql import SparkSession
import megaflow.spark
from megaflow.connect import DatabaseSink

def connect():
    import os, sqlite3
    return sqlite3.connect(f"{tmp_path}/{name}.db", timeout=60)

def dataflow(flow):
    sink = DatabaseSink(connect, "rows", ["n"], create="CREATE TABLE IF NOT EXISTS rows (n INTEGER)")
    return flow.rows().map(lambda row: (row[0],)).write(sink, "rows")

spark = SparkSession.builder.master("local[4,4]").config("spark.ui.enabled", "false").getOrCreate()
print(megaflow.spark.run(spark.range({LINES}), dataflow, processes=2).job.wait().records)
spark.stop()
""")
    environment = spark_environment(tmp_path)
    process = Process([sys.executable, str(program)], env=environment)
    try:
        ended = process.end(WAIT_SECONDS)
    finally:
        process.finish()
    if name != "shop":
        assert ended.code and says(ended.errors, "does not see what this process writes", "'rows'"), ended.errors
        return
    check_equal(ended.output, f"{LINES}\n", ended.errors)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        check_equal(sorted(database.execute("SELECT n FROM rows")), [(n,) for n in range(LINES)], ended.errors)
        assert database.execute("SELECT * FROM megaflow_marks WHERE token LIKE 'probe%'").fetchall() == []
