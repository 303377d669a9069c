"""Folds with timers on a real Spark: sessions as exact as Spark's own, also if a worker is killed while timers wait."""

import json
import os
import signal
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow.errors import UsageError
from tests.cluster.processes import wait_until
from tests.results import check_equal, comparing
from tests.spark.test_stateful import WAIT_SECONDS, written
from tests.spark.test_stateful_timers import DELAY, GAP, Sessions, clicks_of, in_batch, in_micros

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CLICKS = "user STRING, at TIMESTAMP"
SESSIONS = "user STRING, first TIMESTAMP, last TIMESTAMP, clicks LONG"
FILES = 4


def add_file(folder: Path, number: int) -> None:
    """Add a file of clicks, out of order by less than DELAY in all of them together."""
    folder.mkdir(exist_ok=True)
    all_clicks = clicks_of(5, 100 * FILES)
    lines = [
        json.dumps({"user": user, "at": f"{at // 1_000_000}.{at % 1_000_000:06}"})
        for user, at in all_clicks[number * 100 : (number + 1) * 100]
        if at is not None
    ]
    aside = folder / f"_{number}"
    aside.write_text("\n".join(lines) + "\n")
    aside.rename(folder / f"{number}.json")


def in_seconds(frame: Any) -> Any:
    return frame.selectExpr("user", "CAST(CAST(at AS DECIMAL(20, 6)) AS TIMESTAMP) AS at")


def collected(frame: Any) -> list[Any]:
    """Return the rows of a frame; Spark's datetimes are in the time zone of the machine."""
    return [
        tuple(each.astimezone() if isinstance(each, datetime) else each for each in row) for row in frame.collect()
    ]


def spark_sessions(clicks: Any) -> list[Any]:
    """Return the sessions by Spark's own operator."""
    from pyspark.sql.functions import expr, session_window

    window = session_window("at", f"{GAP // timedelta(minutes=1)} minutes")
    spans = clicks.groupBy("user", window).agg(*map(expr, ("min(at) AS a", "max(at) AS b", "count(*) AS n")))
    return in_micros(collected(spans.select("user", "a", "b", "n")))


def test_sessions_are_exact_though_a_worker_is_killed_with_timers(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for number in range(2):
        add_file(tmp_path / "in", number)
    clicks = in_seconds(spark.readStream.schema("user STRING, at STRING").json(str(tmp_path / "in")))
    timed = clicks.withWatermark("at", f"{DELAY // timedelta(minutes=1)} minutes").where("user < 'y'")

    def query_of(**options: Any) -> tuple[Any, Any]:
        sessions = megaflow.spark.stateful(timed.groupBy("user"), Sessions(GAP), SESSIONS, **options)
        writer = sessions.writeStream.queryName("visits of März").option("checkpointLocation", f"{tmp_path}/checkpoint")
        return sessions.megaflow, writer

    job, writer = query_of()
    query = job.start_query(lambda: writer.trigger(processingTime="1 second").start(str(tmp_path / "out")))
    assert job.name == "visits_of_M_rz"
    wait_until(lambda: written(tmp_path / "out") > 0 or not query.isActive, WAIT_SECONDS)
    reached = job.status().watermark.micros
    assert reached is not None
    os.kill(job.status().workers[0].pid, signal.SIGKILL)
    for number in range(2, FILES):
        add_file(tmp_path / "in", number)
    before = written(tmp_path / "out")
    wait_until(lambda: written(tmp_path / "out") > before or not query.isActive, WAIT_SECONDS)
    assert query.isActive, query.exception()
    query.stop()

    job, writer = query_of()
    query = job.start_query(lambda: writer.trigger(availableNow=True).start(str(tmp_path / "out")))
    assert query.awaitTermination(WAIT_SECONDS)
    own = spark_sessions(in_seconds(spark.read.schema("user STRING, at STRING").json(str(tmp_path / "in"))))
    with comparing():  # the last sessions of users wait for a watermark
        assert written(tmp_path / "out") < len(own)

    job, writer = query_of(close_windows=True)
    query = job.start_query(lambda: writer.trigger(availableNow=True).start(str(tmp_path / "out")))
    assert query.awaitTermination(WAIT_SECONDS)
    check_equal(in_micros(collected(spark.read.parquet(str(tmp_path / "out")))), own)


@pytest.mark.parametrize("tuples", [False, True])
def test_a_batch_frame_has_the_sessions_of_spark(spark: Any, tmp_path: Path, tuples: bool) -> None:
    for number in range(FILES):
        add_file(tmp_path / "in", number)
    clicks = in_seconds(spark.read.schema("user STRING, at STRING").json(str(tmp_path / "in")))
    fold = Sessions(GAP // timedelta(microseconds=1) if tuples else GAP)
    schema = "user STRING, first LONG, last LONG, clicks LONG" if tuples else SESSIONS
    sessions = megaflow.spark.stateful(clicks.groupBy("user"), fold, schema, event_time="AT", tuples=tuples)
    check_equal(in_micros(collected(sessions)), spark_sessions(clicks))
    check_equal(in_micros(collected(sessions)), in_micros(in_batch(Sessions(GAP), clicks_of(5, 100 * FILES), False)))


def test_the_column_of_event_time_is_checked(spark: Any) -> None:
    stream = spark.readStream.format("rate").load()
    timed = stream.withWatermark("timestamp", "10 minutes")
    twice = timed.withColumn("copy", timed.timestamp)
    windows = spark.range(3).selectExpr("id", "window(timestamp_seconds(id), '5 minutes') AS span")

    def refused(why: str, frame: Any, fold: Any = None, **options: Any) -> None:
        with pytest.raises(UsageError, match=why):
            megaflow.spark.stateful(frame.groupBy(frame.columns[0]), fold or Sessions(GAP), SESSIONS, **options)

    refused("'timestamp' and 'copy' have a watermark. Choose", twice)
    refused("'value' has no watermark", timed, event_time="value")
    for union in (timed.union(stream), timed.unionByName(stream.withWatermark("timestamp", "5 minutes"))):
        refused("Call withWatermark after the union", union)
    megaflow.spark.stateful(
        stream.union(stream).withWatermark("timestamp", "1 second").groupBy("value"), Sessions(GAP), SESSIONS
    )
    refused("must be one of the columns", timed, event_time="at")
    refused("must be a TIMESTAMP or a window, not bigint", spark.range(3), event_time="id")
    refused("for a fold with timers. Leave out", timed, lambda key, row, state: (None, []), event_time="timestamp")
    megaflow.spark.stateful(twice.groupBy("value"), Sessions(GAP), SESSIONS, event_time="copy")

    class Ends:
        def on_row(self, key: Any, row: Any, state: Any, timers: Any) -> Any:
            timers.at_event(row.span.end, row.span.end)
            return None, []

        def on_timer(self, key: Any, payload: Any, state: Any, timers: Any) -> Any:
            return None, [(key, payload)]

    ends = megaflow.spark.stateful(windows.groupBy("id"), Ends(), "id LONG, at TIMESTAMP", event_time="span")
    check_equal(sorted(ends.collect()), sorted(windows.selectExpr("id", "span.end").collect()))
