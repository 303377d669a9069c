"""Processors on Spark's own `transformWithState` and on megaflow's, with the same batches: equal rows."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow.errors import UsageError
from tests.cluster.processes import Process, spark_environment, wait_until
from tests.results import check_equal, comparing
from tests.spark.test_processors_on_spark import (
    EVENTS,
    INITIAL,
    INITIAL_SCHEMA,
    PROVIDER,
    ROCKSDB,
    WAIT_SECONDS,
    ZONE,
    lines,
)
from tests.spark.test_stateful import written
from tests.words import says

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# Timers of Restless. The watermark rises with each batch, so a timer that a timer sets too late fires in the next one.
DUE = [[("a", 10, 5000), ("b", 15, 4000)], [("a", 5000, 6000)], [("b", 1, 7000)], [("c", 3, 9000)], [("d", 9, 60_000)]]


@pytest.fixture
def session(spark: Any) -> Iterator[Any]:
    """Spark with the settings that its own transformWithState needs, and a time zone with an offset."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("google.protobuf", reason="Spark needs protobuf for transformWithState")
    from pyspark import cloudpickle

    from tests.spark import processors

    cloudpickle.register_pickle_by_value(sys.modules[processors.__name__])  # type: ignore[no-untyped-call]
    before = spark.conf.get(ZONE)
    spark.conf.set(PROVIDER, ROCKSDB)
    spark.conf.set(ZONE, "America/New_York")
    yield spark
    spark.conf.unset(PROVIDER)
    spark.conf.set(ZONE, before)


def write_file(folder: Path, number: int, rows: list[Any]) -> None:
    """Add a file, which is a batch."""
    folder.mkdir(exist_ok=True)
    aside = folder / f"_{number}"
    aside.write_text("".join(json.dumps(line) + "\n" for line in lines(rows)))
    os.utime(aside, (1000 + number, 1000 + number))  # Spark reads them in this order
    aside.rename(folder / f"{number}.json")


def transformed(session: Any, folder: Path, name: str, mode: str, on_megaflow: bool, delay: str = "1 second") -> Any:
    """Return the outputs of a processor, as a streaming DataFrame of one of the two engines."""
    from tests.spark import processors

    frame = session.readStream.schema(processors.SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
    grouped = frame.withWatermark("at", delay).groupBy("k")
    verb = "transformWithStateInPandas" if name == "Frames" else "transformWithState"
    has_initial = name in ("Counts", "Frames")
    initial = session.createDataFrame(INITIAL, INITIAL_SCHEMA).groupBy("k") if has_initial else None
    rest = getattr(processors, name)(), processors.OUTPUT, "Update", mode, initial
    return getattr(megaflow.spark, verb)(grouped, *rest) if on_megaflow else getattr(grouped, verb)(*rest)


def started(made: Any, on_megaflow: bool, found: list[Any], checkpoint: Path | None = None, **trigger: Any) -> Any:
    """Start a query that adds the rows to `found`."""

    def note(batch: Any, number: int) -> None:
        found.extend(tuple(row) for row in batch.collect())

    writer = made.writeStream.foreachBatch(note).outputMode("append" if on_megaflow else "update").trigger(**trigger)
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", str(checkpoint))
    return made.megaflow.start_query(writer.start) if on_megaflow else writer.start()


@pytest.mark.parametrize(
    ("name", "mode", "files"),
    [
        ("Counts", "None", EVENTS),
        ("Pages", "None", EVENTS),
        ("Sessions", "EventTime", EVENTS),
        ("Restless", "EventTime", DUE),
        ("Frames", "EventTime", EVENTS),
    ],
)
def test_both_engines_give_the_same_rows(
    session: Any, tmp_path: Path, name: str, mode: str, files: list[list[Any]]
) -> None:
    for number, rows in enumerate(files):
        write_file(tmp_path / "in", number, rows)
    found = dict[bool, list[Any]]()
    for on_megaflow in (False, True):
        made = transformed(session, tmp_path / "in", name, mode, on_megaflow)
        query = started(made, on_megaflow, found.setdefault(on_megaflow, []), availableNow=True)
        assert query.awaitTermination(WAIT_SECONDS), f"{on_megaflow=}: {query.exception()}"
    assert found[False]
    check_equal(sorted(found[True], key=repr), sorted(found[False], key=repr), name)


def test_values_and_timers_expire_by_processing_time(session: Any, tmp_path: Path) -> None:
    files = [[("a", 0, 0), ("b", 1, 0), ("a", 3, 0)], [("a", 2, 0), ("c", 6, 0)]]
    found = list[Any]()
    for on_megaflow in (False, True):
        rows, folder = list[Any](), tmp_path / str(on_megaflow)
        write_file(folder, 0, files[0])
        made = transformed(session, folder, "Expiring", "ProcessingTime", on_megaflow)
        query = started(made, on_megaflow, rows, processingTime="500 milliseconds")

        def until(timers: int, rows: list[Any] = rows, query: Any = query) -> float:
            wait_until(lambda: sum("timer" in what for _, what in rows) >= timers or not query.isActive, WAIT_SECONDS)
            assert query.isActive, query.exception()
            return time.monotonic()

        began = until(4)  # those at once, and those after a second, of two keys
        wait_until(lambda began=began: time.monotonic() > began + 2, WAIT_SECONDS)  # all values are past their time
        write_file(folder, 1, files[1])
        until(8)
        query.stop()
        # The state in a timer's row depends on when its batch runs.
        found.append(sorted((key, what.split()[0] if "timer" in what else what) for key, what in rows))
    check_equal(found[1], found[0])


def test_timers_fire_while_no_rows_come(session: Any, tmp_path: Path) -> None:
    for number, rows in enumerate([[("a", 1, 10_000)], [("b", 2, 20_000)]]):
        write_file(tmp_path / "in", number, rows)
    found = list[Any]()
    made = transformed(session, tmp_path / "in", "Sessions", "EventTime", on_megaflow=True)
    query = started(made, True, found, processingTime="500 milliseconds")
    wait_until(lambda: len(found) == 3 or not query.isActive, WAIT_SECONDS)
    assert query.isActive, query.exception()
    query.stop()
    with comparing():
        assert found[-1] == ("a", "closed a 13000 19000 [13000] [(1, 10000)]"), found


def test_a_checkpoint_refuses_another_time_mode(session: Any, tmp_path: Path) -> None:
    why = ""
    for number, mode in enumerate(("EventTime", "ProcessingTime", "EventTime")):
        write_file(tmp_path / "in", number, [("a", number, 1000)])
        made, found = transformed(session, tmp_path / "in", "Restless", mode, on_megaflow=True), list[Any]()
        query = started(made, True, found, checkpoint=tmp_path / "ck", availableNow=True)
        wait_until(lambda query=query: not query.isActive, WAIT_SECONDS)
        why += str(query.exception() or "")
    assert says(why, "has the states of a processor with timeMode EventTime", "give the query a new checkpointLocation")
    assert len(found) >= 2, found


class Visits:
    """Mixed into a processor: a key's visit has rows in three files, and ends 25 s after its last one.

    The watermark reaches the end of a visit only after its rows, whether batches without data come between or not.
    """

    handle: Any
    ids: Any
    last: Any

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.ids = handle.getListState("ids", "id INT")
        self.last = handle.getValueState("last", "ms LONG")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.ids.appendValue((initialState.w,))
        self.prolong(10_000 if key[0] == "z" else 0)

    def prolong(self, ms: int) -> None:
        if self.last.exists():
            self.handle.deleteTimer(self.last.get()[0] + GAP_MS)
        self.last.update((ms,))
        self.handle.registerTimer(ms + GAP_MS)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        from pyspark.sql import Row

        rows = list(rows)
        self.ids.appendList([(row.id,) for row in rows])
        self.prolong(max(int(row.at.timestamp() * 1000) for row in rows))
        all_rows, timers = list(self.ids.get()), list(self.handle.listTimers())
        yield Row(k=key[0], what=f"{len(rows)} of {len(all_rows)}, {timers}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        from pyspark.sql import Row

        ids = sorted(id for (id,) in self.ids.get())
        yield Row(k=key.k, what=f"ended at {expiredTimerInfo.getExpiryTimeInMs()}: {ids}")
        self.ids.clear()
        self.last.clear()


GAP_MS = 25_000
FILE_MS = 10_000  # between the first rows of two files
FILES, USERS, ROWS_EACH = 9, 20, 5


def visits(number: int) -> list[tuple[str, int, int]]:
    """Return the rows of a file: those of users who came with it or one of the two files before."""
    if number == FILES:
        return [("last", 0, 10_000_000)]  # ends all other visits
    return [
        (f"u{first}-{user}", number * 1000 + user * ROWS_EACH + each, number * FILE_MS + user * 100 + each * 1700)
        for first in range(max(0, number - 2), number + 1) for user in range(USERS) for each in range(ROWS_EACH)
    ]  # fmt: skip


PROGRAM = """
import os, sys, time
from pathlib import Path
sys.path.append({root!r})
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor
import megaflow
import tests.spark.test_processor_frame as test
from tests.results import check_equal
from tests.spark.processors import OUTPUT, SCHEMA
from tests.spark.test_processors_on_spark import PROVIDER, ROCKSDB

class Visits(test.Visits, StatefulProcessor):
    def close(self):
        pass

def transformed(spark, on_megaflow):
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json("in").withWatermark("at", "1 second")
    initial = spark.createDataFrame([("u0-1", 7), ("u0-1", 8), ("z", 9), ("u1-3", 10)], "k STRING, w INT").groupBy("k")
    rest = Visits(), OUTPUT, "Append", "EventTime", initial
    if on_megaflow:
        return megaflow.spark.transformWithState(frame.groupBy("k"), *rest, processes=2)
    return frame.groupBy("k").transformWithState(*rest)

if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(test)
    builder = SparkSession.builder.master("local[4]").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config(PROVIDER, ROCKSDB).config("spark.sql.session.timeZone", "Asia/Kolkata")
    spark = builder.config("spark.driver.memory", "900m").config("spark.ui.enabled", "false").getOrCreate()
    made = transformed(spark, True)
    writer = made.writeStream.option("checkpointLocation", "checkpoint")
    is_last = sys.argv[1] == "last"
    if is_last:
        writer = writer.trigger(availableNow=True)
    query = made.megaflow.start_query(lambda: writer.start("out"))
    job = made.megaflow
    print(job.status().workers[0].pid, flush=True)
    if not is_last:
        while query.isActive and not Path("grow").exists():
            time.sleep(0.2)
        job.add_workers(1, balance=True)
        print("grown", flush=True)
        while query.isActive and not Path("move").exists():
            time.sleep(0.2)
        job.move_bins(bins="0-100", to=1)
        print("moved", flush=True)
    query.awaitTermination()
    assert query.exception() is None, query.exception()
    own = transformed(spark, False).writeStream.option("checkpointLocation", "own-checkpoint")
    own.trigger(availableNow=True).start("own").awaitTermination()
    found, expected = (sorted(map(tuple, spark.read.parquet(each).collect())) for each in ("out", "own"))
    check_equal(found, expected)
    print("exact", len(found), flush=True)
    spark.stop()
"""


def test_rows_are_exact_through_kills_growth_and_moves(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("google.protobuf", reason="Spark needs protobuf for transformWithState")
    root, out = str(Path(__file__).parents[2]), tmp_path / "out"
    (tmp_path / "program.py").write_text(PROGRAM.format(root=root))
    environment = spark_environment(tmp_path)

    def start(which: str) -> Process:
        return Process([sys.executable, "program.py", which], env=environment, cwd=tmp_path)

    def add(*numbers: int) -> int:
        for number in numbers:
            write_file(tmp_path / "in", number, visits(number))
        return sum(USERS * min(each + 1, 3) for each in range(numbers[-1] + 1))  # a row for each key of a file

    def until(condition: Callable[[], bool]) -> None:
        wait_until(lambda: condition() or first.poll() is not None, WAIT_SECONDS)
        assert first.poll() is None, "".join([*first.output, *first.errors])

    rows = add(0, 1, 2)
    first = start("first")
    try:
        until(lambda: bool(first.output) and written(out) > 0)
        os.kill(int(first.output[0]), signal.SIGKILL)
        until(lambda: any("restart 1 of 3" in line for line in first.errors))
        until(lambda: written(out) == rows)
        for number, (file, lines_printed) in enumerate([("grow", 2), ("move", 3)], 3):
            (tmp_path / file).touch()
            add(number)
            until(lambda count=lines_printed: len(first.output) == count)
        rows = add(5)
        until(lambda: written(out) > rows - 2 * USERS)
        first.kill()
    finally:
        first.finish()
    add(6, 7, 8, 9)
    second = start("last")
    try:
        ended = second.end(WAIT_SECONDS)
    finally:
        second.finish()
    with comparing():  # the program compares its rows
        assert "WrongResult" not in ended.errors, ended.errors
    assert ended.code == 0, ended.errors
    assert ended.output.splitlines()[-1].startswith("exact"), ended.output


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"statefulProcessor": "Sessions"}, "must be a StatefulProcessor of Spark, not 'Sessions'"),
        ({"statefulProcessor": type(None)}, "must be a StatefulProcessor of Spark"),
        ({"outputMode": "complete"}, "outputMode must be 'append' or 'update', not 'complete'"),
        ({"outputMode": None}, "outputMode must be 'append' or 'update', not None"),
        ({"timeMode": "Event"}, "timeMode must be one of None, ProcessingTime, EventTime, not 'Event'"),
        ({"timeMode": None}, "timeMode must be one of .* not None"),
        ({"close_windows": True}, "close_windows: Leave it out. The timers of a processor wait for the next run"),
        ({"eventTimeColumnName": "at"}, "eventTimeColumnName: Leave it out, and call withWatermark"),
        ({"outputStructType": "k STRING, what TEXT"}, "outputStructType: .*no type 'text'"),
        ({"outputStructType": 3}, "outputStructType must be a StructType, or name columns in SQL.* not 3"),
        ({"initialState": [("a", 1)]}, "initialState: grouped must be frame.groupBy"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(session: Any, change: dict[str, Any], why: str) -> None:
    from tests.spark import processors

    frame = session.readStream.format("rate").load().selectExpr("timestamp AS at", "CAST(value AS STRING) AS k")
    arguments = {
        "grouped": frame.withWatermark("at", "1 second").groupBy("k"), "statefulProcessor": processors.Sessions(),
        "outputStructType": processors.OUTPUT, "outputMode": "Append", "timeMode": "EventTime", **change,
    }  # fmt: skip
    with pytest.raises(UsageError, match=why):
        megaflow.spark.transformWithState(**arguments)


def test_frames_that_do_not_fit_a_processor_are_refused(session: Any) -> None:
    from pyspark.sql.types import DayTimeIntervalType, StructType

    from tests.spark import processors

    rates = session.readStream.format("rate").load().selectExpr("timestamp AS at", "CAST(value AS STRING) AS k")
    timed = rates.withWatermark("at", "1 second")

    def refused(why: str, frame: Any, processor: Any, output: Any, *rest: Any) -> None:
        with pytest.raises(UsageError, match=why):
            megaflow.spark.transformWithState(frame.groupBy("k"), processor, output, "Append", *rest)

    counts, output = processors.Counts(), processors.OUTPUT
    refused("must be an object of the class Counts: write Counts()", timed, processors.Counts, output, "None")
    refused("needs a watermark. Call withWatermark", rates, counts, output, "EventTime")
    refused("timeMode must be 'ProcessingTime'", timed, processors.Expiring(), output, "EventTime")
    numbers = session.range(3).withColumnRenamed("id", "k")
    refused("keys have the types bigint, and those of the stream have string", timed, counts, output, "None",
            numbers.groupBy("k"))  # fmt: skip
    refused("a batch DataFrame, not of a stream", timed, counts, output, "None", rates.groupBy("k"))
    refused("interval", timed, counts, StructType().add("k", DayTimeIntervalType()), "None")
    with pytest.raises(UsageError, match=r"grouped must be frame\.groupBy"):
        megaflow.spark.transformWithState(timed, counts, output, "Append", "None")


def test_an_output_that_does_not_fit_ends_the_query_with_its_line(session: Any, tmp_path: Path) -> None:
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    from tests.spark.processors import OUTPUT, SCHEMA

    class Broken(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            for row in rows:
                if row.id == 1:
                    yield Row(k=key[0], amount=3)
                if row.id == 40:
                    yield Row(k=key[0], what=f"{1 // (row.id - 40)}")

    found = list[Any]()
    for number, why in ((0, "amount"), (1, "ZeroDivisionError")):
        write_file(tmp_path / str(number), 0, [EVENTS[0][4 if number else 1]])
        frame = session.readStream.schema(SCHEMA).json(str(tmp_path / str(number)))
        made = megaflow.spark.transformWithState(frame.groupBy("k"), Broken(), OUTPUT, "Append", "None")
        query = started(made, True, found, processingTime="1 second")
        wait_until(lambda running=query: not running.isActive, WAIT_SECONDS)
        text = str(query.exception())
        assert why in text, text
        assert ("1 // (row.id - 40)" in text) == bool(number), text
    assert not found
