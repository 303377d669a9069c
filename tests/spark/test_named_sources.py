"""Data sources that a session finds by name, on a real Spark: the states of a store."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow.errors import UsageError
from tests.durable.kept_histories import words
from tests.results import check_equal
from tests.spark.test_stateful import ORDERS, TOTALS, WAIT_SECONDS, add, make_orders

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(2700),  # Java starts, on a busy machine
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no java on PATH, and Spark needs one"),
]


def states_of(spark: Any, path: Path, **options: str) -> Any:
    return spark.read.format("megaflow-state").options(**options).load(str(path))


def test_spark_reads_the_states_of_a_store(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    history = words(tmp_path)
    megaflow.spark.register(spark)
    frame = states_of(spark, tmp_path)
    history.checkpoint({"a": 9})
    assert frame.columns == ["key", "value", "partition_id"]
    for _ in range(2):  # each action reads the checkpoint that was the newest at first
        check_equal(
            sorted(map(tuple, frame.collect())),
            sorted(
                (text, value, history.bin_of_key(key))
                for text, key, value in [
                    ('"a"', "a", "2"), ('"rose"', "rose", "3"), ("7", 7, '"seven"'), ('["a", 1]', ("a", 1), "2"),
                ]
            ),
        )  # fmt: skip
    counts = frame.selectExpr("sum(try_variant_get(parse_json(value), '$', 'int')) AS n")
    check_equal(counts.first().n, 7)
    check_equal(states_of(spark, tmp_path, checkpoint="2").where("key = '\"rose\"'").first().value, "2")
    for options, why in [
        ({"operator": "cuont"}, "did you mean 'count'"),
        ({"checkpoint": "17"}, "has no checkpoint 17; it has 2, 3, 4"),
        ({"operatorid": "0"}, "There is no option 'operatorid'. The options are path, operator"),
    ]:
        with pytest.raises(Exception, match=why):
            states_of(spark, tmp_path, **options)
    for _ in range(4):
        history.checkpoint({"a": 1}, whole=range(4))
    with pytest.raises(Exception, match="A job has removed the chosen checkpoint"):
        frame.collect()
    history.close()


def test_the_rows_in_states_of_a_stateful_query_are_read(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    make_orders(tmp_path / "in", 0)
    orders = spark.readStream.schema(ORDERS).json(str(tmp_path / "in"))
    totals = megaflow.spark.stateful(orders.groupBy("customer", "shop"), add, TOTALS)
    writer = totals.writeStream.option("checkpointLocation", f"{tmp_path}/ck").trigger(availableNow=True)
    query = totals.megaflow.start_query(lambda: writer.start(str(tmp_path / "out")))
    assert query.awaitTermination(WAIT_SECONDS)
    megaflow.spark.register(spark)
    states = states_of(spark, tmp_path / "ck").selectExpr(
        "from_json(key, 'ARRAY<STRING>') AS key", "parse_json(value) AS state"
    )
    found = states.selectExpr(
        "key[0] AS customer", "CAST(key[1] AS INT) AS shop", "variant_get(state, '$[1]', 'long') AS total",
        "variant_get(state, '$[2].item.name', 'string') AS item",
    )  # fmt: skip
    own = spark.read.schema(ORDERS).json(str(tmp_path / "in")).groupBy("customer", "shop")
    wanted = own.agg({"amount": "sum", "at": "max"}).selectExpr("customer", "shop", "`sum(amount)` AS total")
    rows = found.select("customer", "shop", "total")
    check_equal(sorted(rows.collect(), key=repr), sorted(wanted.collect(), key=repr))
    check_equal(found.where("item LIKE 'item %'").count(), found.count())


def test_what_is_no_session_is_refused() -> None:
    with pytest.raises(UsageError, match="register: session must be a SparkSession, not 'spark'"):
        megaflow.spark.register("spark")
