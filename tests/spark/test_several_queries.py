"""Two streams beside a batch DataFrame in one job with a store, on a real Spark: exact after kills, and in order."""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow.errors import StoreError
from megaflow.spark.query_spec import RowFrames
from tests.cluster.processes import Process, spark_environment, wait_until
from tests.results import check_equal, comparing
from tests.spark.test_stateful import written

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WAIT_SECONDS = 800.0
ROWS = 300  # of a file
CUSTOMERS = 17
ORDERS = "id LONG, customer STRING, amount LONG"
PAYMENTS = "id LONG, paid LONG"
REGIONS = "customer STRING, region STRING"
JOINED = "id LONG, region STRING, amount LONG, paid LONG"


def pair(key: Any, time: int, left: list[Any], right: list[Any], state: Any, timers: Any) -> Any:
    """Join the values of both sides by key: each pair once."""
    lefts, rights = state or ([], [])
    outputs = [(one, other) for one in left for other in [*rights, *right]]
    outputs += [(one, other) for one in lefts for other in right]
    return (lefts + left, rights + right), outputs


def joined(flow: Any) -> Any:
    """Join orders with their payments, and these with the regions of customers."""
    orders = flow.rows("orders").map(lambda row: (row[0], row))
    payments = flow.rows("payments")
    bought = orders.stateful_binary(payments, pair, name="paid").map(lambda both: (both[0][1], (*both[0], both[1])))
    with_region = bought.stateful_binary(flow.rows("regions"), pair, name="region")
    return with_region.map(lambda both: (both[0][0], both[1], both[0][2], both[0][3]))


def add_file(folder: Path, number: int, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    aside = folder / f"_{number}"
    aside.write_text("".join(json.dumps(each) + "\n" for each in rows))
    aside.rename(folder / f"{number}.json")


def add_orders(folder: Path, number: int) -> None:
    """Add a file of orders, and one of their payments, in another order."""
    ids = range(number * ROWS, (number + 1) * ROWS)
    orders = [{"id": id, "customer": f"c{id % CUSTOMERS}", "amount": id + 1} for id in ids]
    add_file(folder / "orders", number, orders)
    add_file(folder / "payments", number, [{"id": id, "paid": id % 7} for id in reversed(ids)])


PROGRAM = """
import sys, time
from collections import Counter
from pathlib import Path
from pyspark.sql import SparkSession
import megaflow.spark
sys.path.append({root!r})
from tests.results import check_equal
from tests.spark import test_several_queries as test
from tests.spark.test_stateful import written

def dataflow(flow):
    def slowly(record):
        time.sleep(0.002)
        return record
    return test.joined(flow).map(slowly)

if __name__ == "__main__":
    rows = int(sys.argv[1]) * test.ROWS
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.driver.memory", "800m").config("spark.ui.enabled", "false").getOrCreate()
    stream = lambda name, schema: spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(name)
    frames = {{"orders": stream("orders", test.ORDERS), "payments": stream("payments", test.PAYMENTS),
              "regions": spark.read.schema(test.REGIONS).json("regions")}}
    with megaflow.spark.run(frames, dataflow, schema=test.JOINED, state="kept") as run:
        print(run.job.status().workers[0].pid, flush=True)
        writer = run.results.writeStream.option("checkpointLocation", "checkpoint")
        query = run.start_query(lambda: writer.start("out"))
        while query.isActive and run.job.is_running and written(Path("out")) < rows:
            time.sleep(0.5)
        if not query.isActive or not run.job.is_running:
            print(query.exception(), file=sys.stderr)
            run.job.wait()
    query.stop()
    found = Counter(map(tuple, spark.read.parquet("out").collect()))
    orders = spark.read.schema(test.ORDERS).json("orders").join(spark.read.schema(test.PAYMENTS).json("payments"), "id")
    own = orders.join(spark.read.schema(test.REGIONS).json("regions/0.json"), "customer")
    check_equal(found, Counter(map(tuple, own.select("id", "region", "amount", "paid").collect())))
    print("exact", flush=True)
    spark.stop()
"""


def test_a_join_is_exact_though_a_worker_and_the_driver_are_killed(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "program.py").write_text(PROGRAM.format(root=str(Path(__file__).parents[2])))
    environment = spark_environment(tmp_path)
    regions = [{"customer": f"c{number}", "region": f"r{number % 4}"} for number in range(CUSTOMERS)]
    add_file(tmp_path / "regions", 0, regions)
    for number in range(2):
        add_orders(tmp_path, number)

    def start() -> Process:
        return Process([sys.executable, "program.py", "6"], env=environment, cwd=tmp_path)

    def until(condition: Callable[[], bool], program: Process) -> None:
        wait_until(lambda: condition() or program.poll() is not None, WAIT_SECONDS)
        assert program.poll() is None, [*program.output, *program.errors]

    out, first = tmp_path / "out", start()
    try:
        until(lambda: bool(first.output) and written(out) > 0, first)
        os.kill(int(first.output[0]), signal.SIGKILL)
        until(lambda: any("restart 1 of 3" in line for line in first.errors), first)
        until(lambda: written(out) == 2 * ROWS, first)
        for number in range(2, 4):
            add_orders(tmp_path, number)
        until(lambda: written(out) > 2 * ROWS, first)
        first.kill()
    finally:
        first.finish()
    add_file(tmp_path / "regions", 1, [{"customer": "c1", "region": "not read: the batch is in the store"}])
    for number in range(4, 6):
        add_orders(tmp_path, number)
    second = start()
    try:
        ended = second.end(WAIT_SECONDS)
    finally:
        second.finish()
    with comparing():  # the program compares its rows
        assert "WrongResult" not in ended.errors, ended.errors
    assert ended.code == 0, ended.errors
    assert ended.output.splitlines()[-1] == "exact"


def in_order(flow: Any) -> Any:
    """Return for each row of the streams how many rows of the first frame its key had before."""
    def count(key: int, value: str, state: Any) -> Any:
        known, late = state or (0, 0)
        if value == "initial":
            return (known + 1, late), []
        return (known, late + 1), [(key, value, known)]

    initial, *others = (flow.rows(name).map(lambda row: (row[0], row[1])) for name in ("zero", "a", "b"))
    return initial.concat(*others).stateful_state_machine(count, name="count")


def test_rows_of_the_first_frame_come_first_and_once(spark: Any, tmp_path: Path) -> None:
    keys, each = 50, 40
    initial = spark.range(keys * each).selectExpr(f"id % {keys} AS k", "'initial' AS v").repartition(4)
    for _ in range(2):
        for name in ("a", "b"):
            new = spark.range(keys).selectExpr("id AS k", f"'{name}' AS v").repartition(2)
            new.write.mode("append").json(str(tmp_path / name))
        specs = {name: f"spark:json:{tmp_path / name}?schema=k LONG, v STRING&trigger=availableNow" for name in "ab"}
        rows = RowFrames({"zero": initial, **specs}, first="zero")
        found = megaflow.run(in_order, rows=rows, state=tmp_path / "state", processes=2)
        check_equal(Counter(found), Counter((key, name, each) for key in range(keys) for name in "ab"))
    with pytest.raises(StoreError, match="read the rows 'a' from a streaming DataFrame, but now it is a batch"):
        megaflow.run(in_order, rows={**specs, "zero": initial, "a": initial}, state=tmp_path / "state")
    with pytest.raises(StoreError, match="read the rows 'zero' from a batch DataFrame, but now it is a streaming"):
        megaflow.run(in_order, rows={**specs, "zero": specs["a"]}, state=tmp_path / "state")
    with pytest.raises(StoreError, match="belongs to the rows 'zero'"):
        megaflow.run(in_order, rows=specs, state=tmp_path / "state")
