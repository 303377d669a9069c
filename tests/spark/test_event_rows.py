"""Rows of Spark with timestamps: a query is one partition, and a batch counts once it is completely taken in."""

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow import tumbling
from megaflow.cli.text import watermark_text
from megaflow.errors import PeerFailed
from tests.results import check_equal
from tests.spark.test_spark_source import wait_until, write

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:Cannot infer the eval type:UserWarning")]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SCHEMA = "key STRING, at TIMESTAMP, n LONG"
MINUTE = 60_000_000  # microseconds
BEHIND = 20  # seconds that a click may be out of order

Click = tuple[str, int, int]  # key, seconds since noon, number


def write_clicks(folder: Path, name: str, clicks: list[Click]) -> None:
    """Write a file of JSON lines, which Spark turns into a batch."""
    rows = ({"key": key, "at": (NOON + timedelta(seconds=at)).isoformat(), "n": n} for key, at, n in clicks)
    write(folder, name, [json.dumps(row) for row in rows])


def batches(count: int, clicks: int) -> list[list[Click]]:
    """Give each batch ten minutes, in no order: only clicks behind a whole earlier batch are late."""
    dice = random.Random(7)
    return [
        [(dice.choice("abc"), 600 * batch + dice.randrange(600), batch * clicks + n) for n in range(clicks)]
        for batch in range(count)
    ]


def per_minute(clicks: list[Click]) -> "Counter[tuple[str, int, int]]":
    """Return (key, minute's begin in microseconds, clicks), as windows have them."""
    noon = int(NOON.timestamp()) * 1_000_000
    counts = Counter((key, noon + at // 60 * MINUTE) for key, at, _ in clicks)
    return Counter((key, start, count) for (key, start), count in counts.items())


def counted(flow: Any) -> Any:
    """Return (key, start, clicks) of each minute, and ("late", number) of each late click."""
    clicks = flow.rows("clicks").event_time(lambda row: row[1], out_of_order=float(flow.args[0]), unit="us")
    minutes = clicks.map(lambda row: (row[0], row[2])).window(tumbling(60))
    closed = minutes.count().plain().map(lambda result: (result[0], result[1].start, result[2]))
    return closed.concat(minutes.late().plain().map(lambda click: ("late", click[1])))


def watermark(job: Any) -> Any:
    return job.status().watermark


def await_watermark(job: Any, seconds: int) -> None:
    """Wait until the watermark has reached a time since noon."""
    wait_until(lambda: watermark(job).micros == at(seconds))


def at(seconds: int) -> int:
    """Return the microseconds of a time since noon."""
    return (int(NOON.timestamp()) + seconds) * 1_000_000


def await_rows(job: Any, count: int) -> None:
    """Wait until the only worker has read `lines` lines."""
    wait_until(lambda: job.status().workers[0].inputs.get("clicks") == count)


def await_lines(path: Path, count: int) -> None:
    """Wait until a file has `count` lines."""
    wait_until(lambda: len(path.read_text().splitlines()) >= count)


@pytest.mark.slow
def test_a_batch_counts_when_it_is_wholly_taken_in(spark: Any, tmp_path: Path) -> None:
    """Each batch is in no order and takes half a second. If the watermark rose meanwhile, much of it would be late."""
    given = batches(4, 500)
    for number, clicks in enumerate(given):
        write_clicks(tmp_path / "in", f"{number}.json", clicks)
    spec = f"spark:json:{tmp_path}/in?schema={SCHEMA}&maxFilesPerTrigger=1&trigger=availableNow"
    found = megaflow.run(counted, rows={"clicks": spec}, args=["0"], processes=2, rate=1000.0)
    check_equal(Counter(found), per_minute([click for clicks in given for click in clicks]))


@pytest.mark.slow
def test_windows_of_a_streaming_frame_close_batch_by_batch_and_what_is_behind_is_late(
    spark: Any, tmp_path: Path
) -> None:
    """Each batch comes once the watermark is that of the one before, so plain Python knows the late records."""
    folder, out = tmp_path / "in", tmp_path / "out.jsonl"
    folder.mkdir()
    frame = spark.readStream.schema(SCHEMA).json(str(folder))
    options = {"output": f"jsonl:{out}", "processes": 2, "args": [str(BEHIND)], "idle_timeout": 3600.0}
    with megaflow.start(counted, rows={"clicks": frame}, **options) as job:
        wait_until(lambda: watermark(job).held_by is not None)
        told = watermark_text(watermark(job))
        assert "event_time waits for the query of 'clicks', which has no record yet" in told, told
        right, open, reached = Counter[Any](), list[Click](), -(10**6)
        for number, clicks in enumerate(batches(3, 200)):
            old = [("a", 600 * number - each, 1000 * number + each) for each in (1, 79, 300)]
            late = [click for click in old if (click[1] // 60 + 1) * 60 <= reached]
            assert len(late) == (2 if number else 0)
            write_clicks(folder, f"{number}.json", clicks + old)
            right.update(("late", n) for _, _, n in late)
            open += [click for click in clicks + old if click not in late]
            reached = max(each for _, each, _ in open) - BEHIND
            await_watermark(job, reached)
            closed = [click for click in open if (click[1] // 60 + 1) * 60 <= reached]
            right += per_minute(closed)
            open = [click for click in open if click not in closed]
            await_lines(out, right.total())
    right += per_minute(open)  # the stop closes these
    check_equal(Counter(tuple(json.loads(line)["record"]) for line in out.read_text().splitlines()), right)


@pytest.mark.slow
def test_a_query_that_was_idle_counts_with_its_next_batch(spark: Any, tmp_path: Path) -> None:
    """A query is never idle before its first batch, because Spark may take long to start."""
    folder = tmp_path / "in"
    folder.mkdir()
    frame = spark.readStream.schema(SCHEMA).json(str(folder))
    with megaflow.start(counted, rows={"clicks": frame}, args=["0"], output="none", idle_timeout=0.3) as job:
        wait_until(lambda: watermark(job).held_by is not None and watermark(job).age_seconds > 1.0)
        assert watermark(job).held_by is not None and watermark(job).idle == ()
        for number, seconds in enumerate((100, 50, 200)):
            write_clicks(folder, f"{number}.json", [("a", seconds, number)])
            await_rows(job, number + 1)
            await_watermark(job, max(100, seconds))
            wait_until(lambda: watermark(job).idle == ("the query",) and watermark(job).held_by is None)


def stamped(flow: Any) -> Any:
    """Emit (timestamp, number) of each click, with timestamps as rows have them and without a unit."""
    rows = flow.rows("clicks", timestamps=flow.args[0]).event_time(lambda row: row[1])
    return rows.map(lambda row: row[2]).stamped()


@pytest.mark.slow
def test_timestamps_of_rows_are_microseconds_or_datetimes_and_one_taken_for_the_other_is_told(spark: Any) -> None:
    frame = spark.sql("SELECT 'a' AS key, TIMESTAMP '2026-03-01 12:00:00 UTC' AS at, 1L AS n")
    check_equal(megaflow.run(stamped, rows={"clicks": frame}, args=["datetime"]), [(NOON, 1)])
    with pytest.raises(PeerFailed, match=r"event_time \(.*test_event_rows.py:\d+\): .* check the unit"):
        megaflow.run(stamped, rows={"clicks": frame}, args=["micros"])
