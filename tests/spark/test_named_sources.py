"""Data sources that a session finds by name, on a real Spark: the states of a store, the results of a job."""

import json
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow.errors import OutputError
from megaflow.timely.communication.secret import private_folder
from tests.cluster.processes import wait_until
from tests.durable.kept_histories import words
from tests.results import check_equal
from tests.spark.test_stateful import ORDERS, TOTALS, WAIT_SECONDS, add, make_orders, written

pytestmark = [pytest.mark.spark, pytest.mark.slow]


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


def doubled(flow: Any) -> Any:
    return flow.rows().map(lambda row: (row[0], 2 * row[0]))


def test_another_program_reads_the_results_of_a_job_once(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows = spark.range(1000).coalesce(1)
    (tmp_path / "in").mkdir()
    rows.write.mode("append").parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
    megaflow.spark.register(spark)
    with megaflow.spark.run(frame, doubled, schema="n LONG, m LONG", name="doubling") as run:
        results = spark.readStream.format("megaflow").option("job", "doubling").option("consumer", "daily").load()
        assert results.columns == ["n", "m"]
        secret = json.loads((private_folder() / "doubling.json").read_text())["secret"]

        def start(path: str = "out") -> Any:
            writer = results.writeStream.option("checkpointLocation", f"{tmp_path}/{path}.checkpoint")
            return run.start_query(lambda: writer.start(f"{tmp_path}/{path}"))

        query = start()
        wait_until(lambda: written(tmp_path / "out") == 1000 or not query.isActive, WAIT_SECONDS)
        assert query.isActive, query.exception()
        assert secret not in query._jsq.streamingQuery().explainInternal(True)
        hourly = spark.readStream.format("megaflow").option("job", "doubling").option("consumer", "hourly").load()
        other = hourly.writeStream.format("noop").start()
        wait_until(lambda: not other.isActive, WAIT_SECONDS)
        assert "The consumer 'daily' (" in str(other.exception())
        query.stop()
        rows.selectExpr("id + 1000 AS id").write.mode("append").parquet(str(tmp_path / "in"))
        query = start()
        wait_until(lambda: written(tmp_path / "out") >= 1500 or not query.isActive, WAIT_SECONDS)
        assert query.isActive, query.exception()
        rows.selectExpr("id + 2000 AS id").write.mode("append").parquet(str(tmp_path / "in"))
        wait_until(lambda: sum(each.lines for each in run.job.status().workers) == 3000, WAIT_SECONDS)
        run.job.stop()  # waits for the query
    query.stop()
    found = spark.read.parquet(str(tmp_path / "out"))
    check_equal(sorted(map(tuple, found.collect())), [(n, 2 * n) for n in range(3000)])
    with pytest.raises(Exception, match="the job 'doubling' has ended"):
        spark.readStream.format("megaflow").option("job", "doubling").load()
    with pytest.raises(Exception, match="option 'job' is missing"):
        spark.readStream.format("megaflow").load()


def test_a_stopped_job_says_that_its_consumer_has_left(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = spark.readStream.format("rate").option("rowsPerSecond", 20).load().select("value")
    megaflow.spark.register(spark)
    with pytest.raises(OutputError, match="have no reader: their consumer 'default' is not connected"):  # noqa: SIM117
        with megaflow.spark.run(frame, doubled, schema="n LONG, m LONG", name="left") as run:
            results = spark.readStream.format("megaflow").option("job", "left").load()
            writer = results.writeStream.option("checkpointLocation", f"{tmp_path}/checkpoint")
            query = run.start_query(lambda: writer.start(f"{tmp_path}/out"))
            wait_until(lambda: written(tmp_path / "out") > 0 or not query.isActive, WAIT_SECONDS)
            query.stop()
            seen = run.job.status().workers[0].lines
            wait_until(lambda: run.job.status().workers[0].lines > seen, WAIT_SECONDS)
            run.job.stop()
