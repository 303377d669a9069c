"""Processors on Spark's own `transformWithState`, and in a fold with the batches of its record: equal rows."""

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from megaflow.rows.ddl import parse_ddl, schema_json
from tests.cluster.processes import wait_until
from tests.results import check_equal

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WAIT_SECONDS = 400.0
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
ZONE = "spark.sql.session.timeZone"

# Rows of each file: key, id, event time in ms (None: null).
EVENTS = [
    [("a", 0, 3000), ("b", 1, 2000), ("a", 2, 0), (None, 3, 1000), ("c", 40, None)],
    [("a", 10, 2000), ("a", 11, 2001), ("b", 12, 6000), ("c", 13, 1)],
    [("b", 20, 2000), ("b", 21, 2001), ("a", 22, 9000), ("c", 23, None)],
    [("a", 30, 5000), ("c", 31, 5001), ("d", 32, 8000)],
    [("e", 50, 30_000)],
    [("a", 60, 31_000), ("d", 61, 29_000)],
    [("f", 70, 90_000)],
]
INITIAL, INITIAL_SCHEMA = [("a", 7), ("a", 8), ("z", 9)], "k STRING, w INT"
DUE = [[("a", 10, 5000), ("b", 15, 4000)], [("a", 5000, 6000)], [("b", 1, 7000)], [("c", 3, 9000)], [("d", 9, 60_000)]]
"""Each batch of one of these files has a later watermark than the one before. Only then a timer that another timer sets
too late fires in the same batch here and in Spark: see `registerTimer`."""


def lines(rows: list[Any]) -> list[dict[str, Any]]:
    """Return rows as records of a JSON file."""
    def iso(ms: int) -> str:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")

    return [
        {"k": k, "id": id, "at": None if ms is None else iso(ms), "s": {"x": id} if id % 2 else None, "m": {"i": id}}
        for k, id, ms in rows
    ]  # fmt: skip


def values(rows: list[Any]) -> list[tuple[Any, ...]]:
    """Return the same rows as they travel."""
    return [(k, id, None if ms is None else ms * 1000, (id,) if id % 2 else None, {"i": id}) for k, id, ms in rows]


class OnSpark:
    """A query of Spark with a processor, and its batches."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, dict[int, list[Any]]()
        self.query: Any = None
        (folder / "in").mkdir()

    def start(self, spark: Any, processor: Any, mode: str) -> None:
        from tests.spark.processors import OUTPUT, SCHEMA

        folder = self.folder
        frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
        keyed = frame.withWatermark("at", "1 second").groupBy("k")
        if type(processor).__name__ == "Frames":
            initial = spark.createDataFrame(INITIAL, INITIAL_SCHEMA).groupBy("k")
            made = keyed.transformWithStateInPandas(processor, OUTPUT, "Update", mode, initial)
        else:
            made = keyed.transformWithState(processor, OUTPUT, "Update", mode)

        def note(batch: Any, number: int) -> None:
            self.rows[number] = [tuple(row) for row in batch.collect()]

        trigger = "0 seconds" if mode == "None" else "1 second"
        writer = made.writeStream.foreachBatch(note).outputMode("update").trigger(processingTime=trigger)
        self.query = writer.option("checkpointLocation", str(folder / "ck")).start()

    def add(self, number: int, rows: list[Any]) -> None:
        aside = self.folder / "in" / f"_{number}"
        aside.write_text("".join(json.dumps(line) + "\n" for line in lines(rows)))
        os.utime(aside, (1000 + number, 1000 + number))  # Spark reads them in this order
        aside.rename(self.folder / "in" / f"{number}.json")

    def until(self, batches: int) -> None:
        wait_until(lambda: len(self.rows) >= batches or not self.query.isActive, WAIT_SECONDS)
        assert self.query.isActive, self.query.exception()

    def batches(self, files: list[list[Any]]) -> list[Any]:
        """Return the batches with their rows, as Spark has recorded them."""
        from tests.spark.processors import Batch

        found, late, taken = [], 0, 0
        for number in sorted(self.rows):
            text = (self.folder / "ck" / "offsets" / str(number)).read_text().splitlines()
            meta, offset = json.loads(text[1]), json.loads(text[2])["logOffset"] + 1
            watermark, at = meta["batchWatermarkMs"], meta["batchTimestampMs"]
            rows = [row for file in files[taken:offset] for row in values(file)]
            found.append((Batch(number, watermark, late, rows), at))
            late, taken = watermark, offset
        return found


@pytest.mark.parametrize(
    ("name", "mode", "files", "at_once"),
    [
        ("Counts", "None", EVENTS, True),
        ("Pages", "None", EVENTS, True),
        ("Sessions", "EventTime", EVENTS, True),
        ("Sessions", "EventTime", EVENTS, False),
        ("Restless", "EventTime", DUE, True),
        ("Frames", "EventTime", EVENTS, True),
        ("Expiring", "ProcessingTime", EVENTS, False),
    ],
)
def test_a_fold_gives_the_rows_of_spark(
    spark: Any, tmp_path: Path, name: str, mode: str, files: list[list[Any]], at_once: bool
) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("google.protobuf", reason="Spark needs protobuf for transformWithState")
    from pyspark import cloudpickle

    from megaflow.rows.result_rows import zone_of
    from megaflow.spark.processor_fold import ProcessorPlan
    from tests.spark import processors

    cloudpickle.register_pickle_by_value(sys.modules[processors.__name__])  # type: ignore[no-untyped-call]
    before = spark.conf.get(ZONE)
    for setting, value in ((PROVIDER, ROCKSDB), ("spark.sql.shuffle.partitions", "1"), (ZONE, "America/New_York")):
        spark.conf.set(setting, value)
    run = OnSpark(tmp_path)
    try:
        if not at_once:
            run.start(spark, getattr(processors, name)(), mode)
        for number, rows in enumerate(files):
            run.add(number, rows)
            if mode == "ProcessingTime":  # each trigger has a batch
                run.until(len(run.rows) + 2 if number else 1)
            elif not at_once:
                run.query.processAllAvailable()
        if at_once:
            run.start(spark, getattr(processors, name)(), mode)
        run.until(len(files) + (mode != "None"))
        run.query.stop()
    finally:
        spark.conf.unset(PROVIDER)
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        spark.conf.set(ZONE, before)
    plan = ProcessorPlan(
        mode, schema_json(parse_ddl(processors.SCHEMA)), [0], schema_json(parse_ddl(processors.OUTPUT)),
        zone_of("America/New_York"), pandas=name == "Frames",
        initial=schema_json(parse_ddl(INITIAL_SCHEMA)), event_path=(2,) if mode == "EventTime" else (),
    )  # fmt: skip
    driver = processors.Driver(getattr(processors, name)(), plan)
    if plan.pandas:
        assert driver.run(processors.Batch(-1, 0, 0, INITIAL)) == []
    for batch, at in run.batches(files):
        now = batch._replace(now_ms=at) if mode == "ProcessingTime" else batch
        found = [tuple(map(str, row)) for row in driver.run(now)]
        expected = [tuple(map(str, row)) for row in run.rows[batch.number]]
        check_equal(sorted(found), sorted(expected), name, batch, driver.states)
