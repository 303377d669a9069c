"""A fold as an operation on a DataFrame, on a real Spark: as exact as Spark's own aggregation, also after kills."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow.errors import UsageError
from tests.cluster.processes import Process, spark_environment, wait_until
from tests.results import check_equal, comparing
from tests.words import says

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WAIT_SECONDS = 800.0
ITEM = "item STRUCT<name: STRING, sizes: ARRAY<INT>>"
ORDERS = f"customer STRING, shop INT, at TIMESTAMP, amount LONG, {ITEM}"
TOTALS = f"customer STRING, shop INT, orders LONG, total LONG, at TIMESTAMP, {ITEM}"
LATEST = "customer", "shop", "max(orders) AS orders", "max(total) AS total", "max(at) AS at", "max_by(item, at) AS item"
OWN = "customer", "shop", "count(*) AS orders", "sum(amount) AS total", "max(at) AS at", "max_by(item, at) AS item"
ROWS = 400  # of a file


def add(key: Any, order: Any, state: Any) -> Any:
    """Keep how many orders a key has, their total, and the latest order, which is a Row."""
    assert (key.customer, key.shop) == (order.customer, order["shop"]), key
    orders, total, last = state or (0, 0, order)
    last = max(last, order, key=lambda each: each.at)
    state = orders + 1, total + order.amount, last
    return state, [(*key, *state[:2], last.at, last.item)]


def make_orders(folder: Path, number: int) -> None:
    """Add file number so-and-so of orders; some orders have no customer."""
    folder.mkdir(exist_ok=True)
    lines = [
        {
            "customer": f"c{each % 17}" if each % 17 else None, "shop": each % 3, "amount": each + 1,
            "at": f"2026-01-01T00:{each // 60 % 60:02}:{each % 60:02}.{number:06}",
            "item": {"name": f"item {each}", "sizes": [each, None]},
        }
        for each in range(number * ROWS, (number + 1) * ROWS)
    ]  # fmt: skip
    aside = folder / f"_{number}"
    aside.write_text("".join(json.dumps(each) + "\n" for each in lines))
    aside.rename(folder / f"{number}.json")


def by_key(frame: Any, columns: tuple[str, ...]) -> list[Any]:
    """Return one row for each key, by Spark's aggregation."""
    from pyspark.sql.functions import expr

    totals = frame.groupBy(*columns[:2]).agg(*map(expr, columns[2:]))
    return sorted(totals.collect(), key=repr)


def written(out: Path) -> int:
    """Return how many rows Spark has committed, according to its own list of files."""
    from pyarrow import parquet

    log = out / "_spark_metadata"
    entries = [entry for entry in log.iterdir() if not entry.name.startswith(".")] if log.is_dir() else []
    lines = [line for entry in entries for line in entry.read_text().splitlines()[1:]]
    names = {Path(json.loads(line)["path"]).name for line in lines}
    return sum(int(parquet.ParquetFile(out / name).metadata.num_rows) for name in names)


PROGRAM = """
import os, sys, time
from pyspark.sql import SparkSession
import megaflow.spark
sys.path.append({root!r})
from tests.results import check_equal
from tests.spark.test_stateful import ORDERS, TOTALS, LATEST, OWN, ROWS, add, by_key, written
from pathlib import Path

def slowly(key, order, state):
    time.sleep(0.002)
    return add(key, order, state)

if __name__ == "__main__":
    files = int(sys.argv[1])
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.driver.memory", "800m").config("spark.ui.enabled", "false").getOrCreate()
    orders = spark.readStream.schema(ORDERS).option("maxFilesPerTrigger", 1).json("in")
    totals = megaflow.spark.stateful(orders.groupBy("customer", "shop"), slowly, TOTALS)
    writer = totals.writeStream.option("checkpointLocation", "checkpoint")
    query = totals.megaflow.start_query(lambda: writer.start("out"))
    print(totals.megaflow.status().workers[0].pid, flush=True)
    while query.isActive and written(Path("out")) < files * ROWS:
        time.sleep(0.5)
    assert query.exception() is None, query.exception()
    query.stop()
    found = spark.read.parquet("out")
    check_equal(found.count(), files * ROWS)
    check_equal(found.select("customer", "shop", "orders").distinct().count(), files * ROWS)
    check_equal(by_key(found, LATEST), by_key(spark.read.schema(ORDERS).json("in"), OWN))
    print("exact", flush=True)
    spark.stop()
"""


def test_rows_are_exact_though_a_worker_and_the_driver_are_killed(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "program.py").write_text(PROGRAM.format(root=str(Path(__file__).parents[2])))
    environment = spark_environment(tmp_path)
    for number in range(2):
        make_orders(tmp_path / "in", number)

    def start() -> Process:
        return Process([sys.executable, "program.py", "6"], env=environment, cwd=tmp_path)

    def until(condition: Callable[[], bool], program: Process) -> None:
        wait_until(lambda: condition() or program.poll() is not None, WAIT_SECONDS)
        assert program.poll() is None, [*program.output, *program.errors]

    first = start()
    try:
        until(lambda: bool(first.output) and written(tmp_path / "out") > 0, first)
        os.kill(int(first.output[0]), signal.SIGKILL)
        until(lambda: any("restart 1 of 3" in line for line in first.errors), first)
        until(lambda: written(tmp_path / "out") == 2 * ROWS, first)
        for number in range(2, 4):
            make_orders(tmp_path / "in", number)
        until(lambda: written(tmp_path / "out") > 2 * ROWS, first)
        first.kill()
    finally:
        first.finish()
    assert written(tmp_path / "out") > 2 * ROWS
    for number in range(4, 6):
        make_orders(tmp_path / "in", number)
    second = start()
    try:
        ended = second.end(WAIT_SECONDS)
    finally:
        second.finish()
    with comparing():  # the program compares its rows
        assert "WrongResult" not in ended.errors, ended.errors
    assert ended.code == 0, ended.errors
    assert ended.output.splitlines()[-1] == "exact"


def test_a_frame_serves_one_query_at_a_time_and_the_next_resumes(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    make_orders(tmp_path / "in", 0)
    checkpoint = f"{tmp_path}/ck ü+#%20?"  # Spark neither encodes nor decodes a path
    orders = spark.readStream.schema(ORDERS).json(str(tmp_path / "in"))
    totals = megaflow.spark.stateful(orders.groupBy("customer", "shop"), add, TOTALS)
    with pytest.raises(UsageError, match="none has started one yet"):
        totals.megaflow.status()

    def start() -> Any:
        return totals.writeStream.option("checkpointLocation", checkpoint).start(str(tmp_path / "out"))

    query = totals.megaflow.start_query(start)
    other = totals.megaflow.start_query(totals.writeStream.format("noop").start)
    assert "One query at a time" in str(other.exception())
    wait_until(lambda: written(tmp_path / "out") == ROWS or not query.isActive, WAIT_SECONDS)
    assert query.isActive, query.exception()
    feed = f"megaflow: job {totals.megaflow.name!r}, rows 'rows'"
    assert feed in [each.name for each in spark.streams.active]
    with comparing():
        assert totals.megaflow.control.get("stateful(customer, shop)", ("c1", 1))[0] > 0
    query.stop()
    wait_until(lambda: not totals.megaflow.is_running, WAIT_SECONDS)

    twice = totals.megaflow.start_query(totals.union(totals).writeStream.format("noop").start)
    assert "reads a stateful frame twice" in str(twice.exception())

    make_orders(tmp_path / "in", 1)
    writer = totals.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = totals.megaflow.start_query(lambda: writer.start(str(tmp_path / "out")))
    assert query.awaitTermination(WAIT_SECONDS)
    found = spark.read.parquet(str(tmp_path / "out"))
    check_equal(found.count(), 2 * ROWS)
    check_equal(found.select("customer", "shop", "orders").distinct().count(), 2 * ROWS)
    read = spark.read.schema(ORDERS).json(str(tmp_path / "in"))
    own = by_key(read, OWN)
    check_equal(by_key(found, LATEST), own)
    figures = [each.observedMetrics["megaflow"] for each in query.recentProgress if each.numInputRows][-1]
    counts = figures.rows_in, figures.rows_out, figures.state_rows, figures.late_rows, figures.restarts, figures.workers
    check_equal(counts, (ROWS, 2 * ROWS, len(own), 0, 0, 1))
    assert figures.state_bytes > 0 and figures.watermark is None

    batch = megaflow.spark.stateful(read.groupBy("customer", "shop"), add, TOTALS)
    assert not batch.isStreaming
    check_equal(by_key(batch, LATEST), own)


def test_two_frames_of_one_query_need_a_folder_each(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    make_orders(tmp_path / "in", 0)
    orders = spark.readStream.schema(ORDERS).json(str(tmp_path / "in"))

    def ended(checkpoint: str, has_folders: bool) -> Any:
        one, two = (
            megaflow.spark.stateful(
                orders.groupBy("customer", "shop"), add, TOTALS, observe=name,
                state=str(tmp_path / name) if has_folders else None,
            )
            for name in ("one", "two")
        )  # fmt: skip
        writer = one.union(two).writeStream.option("checkpointLocation", f"{tmp_path}/{checkpoint}")
        writer = writer.trigger(availableNow=True)
        query = one.megaflow.start_query(lambda: writer.start(str(tmp_path / "out")))
        wait_until(lambda: not query.isActive, WAIT_SECONDS)
        return query

    assert "Name a different one for each by state=" in str(ended("refused", False).exception())
    query = ended("ck", True)
    assert query.exception() is None, query.exception()
    check_equal(written(tmp_path / "out"), 2 * ROWS)
    last = [each.observedMetrics for each in query.recentProgress if each.numInputRows][-1]
    check_equal([last[name].rows_out for name in ("one", "two")], [ROWS, ROWS])


def test_an_error_of_the_fold_fails_the_query_with_its_line(spark: Any) -> None:
    def broken(key: Any, row: Any, state: Any) -> Any:
        raise LookupError(f"a bad row {row.value}")

    frame = spark.readStream.format("rate").load()
    broke = megaflow.spark.stateful(frame.groupBy("value"), broken, "n LONG")
    query = broke.megaflow.start_query(broke.writeStream.format("noop").start)
    wait_until(lambda: not query.isActive, WAIT_SECONDS)
    said = str(query.exception()).partition("=== Streaming Query ===")[0]
    assert "LookupError: a bad row 0" in said and "results_source" not in said


def test_an_error_of_a_udf_fails_the_query_in_one_line(spark: Any) -> None:
    from pyspark.sql.functions import udf

    def third(value: int) -> int:
        raise ArithmeticError(f"no third of {value}")

    frame = spark.readStream.format("rate").load().withColumn("value", udf(third, "long")("value"))
    broke = megaflow.spark.stateful(frame.groupBy("value"), add, "n LONG", observe=None)
    query = broke.megaflow.start_query(broke.writeStream.format("noop").start)
    wait_until(lambda: not query.isActive, WAIT_SECONDS)
    said, *more = str(query.exception()).partition("=== Streaming Query ===")[0].strip().splitlines()
    assert says(said, "the DataFrame of rows 'rows'", "ArithmeticError: no third of 0 (", "in third)"), said
    assert [each.strip() for each in more] in ([], ["SQLSTATE: 38000"])


def test_the_status_says_that_the_job_starts(spark: Any) -> None:
    frame = spark.readStream.format("rate").load()
    counts = megaflow.spark.stateful(frame.groupBy("value"), add, "n LONG")
    query = counts.writeStream.format("noop").queryName("starts").start()
    seen = list[str]()

    def has_started() -> bool:
        if counts.megaflow._door.starting is not None:
            seen.append(repr(counts.megaflow.status()))
        return counts.megaflow.is_running or not query.isActive

    wait_until(has_started, WAIT_SECONDS)
    query.stop()
    assert seen and says(seen[0], "'starts' is starting"), seen


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (lambda frame: frame, "grouped must be"),
        (lambda frame: frame.groupBy(), "at least one key"),
        (lambda frame: frame.rollup("id"), "not a rollup"),
        (lambda frame: frame.groupBy(frame.id + 1), "not the expression"),
        (lambda frame: frame.groupBy("id", "id"), "named twice"),
        (lambda frame: frame.selectExpr("array(id) AS ids").groupBy("ids"), "simple type"),
        (lambda frame: frame.selectExpr("collate('a', 'UTF8_LCASE') AS k").groupBy("k"), "compared by their bytes"),
    ],
)
def test_a_grouping_that_gives_no_keys_is_refused(spark: Any, group: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        megaflow.spark.stateful(group(spark.range(3)), add, "n LONG")


def test_a_fold_of_other_arguments_is_refused(spark: Any) -> None:
    with pytest.raises(UsageError, match="fold must be a function"):
        megaflow.spark.stateful(spark.range(3).groupBy("ID"), lambda row: row, "n LONG")  # type: ignore[arg-type]
