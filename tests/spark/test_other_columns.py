"""A job with a store refuses rows of other columns, wherever they come from, and changes nothing, on a real Spark."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import megaflow
import megaflow.spark
from megaflow.durable.local_folder import LOCK
from megaflow.errors import StoreUnfit
from megaflow.spark.query_spec import RowFrames
from tests.cluster.processes import wait_until
from tests.results import check_equal

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WAIT_SECONDS = 300.0
FIRST = "k LONG, v STRING"
OTHERS = {"v STRING, k LONG": "'v' of type string", "k STRING, v STRING": "type is string", "key LONG": "it is 'key'"}


def count(key: Any, row: Any, total: int | None) -> tuple[int, list[Any]]:
    total = (total or 0) + 1
    return total, [(key, total)]


def counted(flow: Any) -> Any:
    """Count the rows of all inputs by their first column, in states of a version."""
    version, *names = flow.args
    first, *others = (flow.rows(name).map(lambda row: (row[0], row)) for name in names)
    upgrade = {} if version == "1" else {"version": int(version), "upgrade": lambda key, state, version: state}
    return first.concat(*others).stateful_state_machine(count, name="count", **upgrade)


def add(folder: Path, number: int, *rows: tuple[int, str]) -> None:
    folder.mkdir(exist_ok=True)
    aside = folder.parent / f"{folder.name}-{number}"
    aside.write_text("".join(json.dumps({"k": k, "v": v}) + "\n" for k, v in rows))
    aside.rename(folder / f"{number}.json")


def stream(spark: Any, folder: Path, schema: str) -> Any:
    return spark.readStream.schema(schema).json(str(folder))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != LOCK}


def run(rows: Mapping[str, Any], state: Path, version: int = 1) -> list[Any]:
    args = [str(version), *sorted(rows)]
    return list(megaflow.run(counted, rows=RowFrames(rows, None), state=state, args=args))


def test_frames_of_other_columns_are_refused_before_anything_changes(spark: Any, tmp_path: Path) -> None:
    orders, kept = tmp_path / "in", tmp_path / "kept"
    regions = spark.createDataFrame([(7, "batch")], FIRST)
    add(orders, 0, (1, "x"), (2, "y"))
    rows = {"orders": stream(spark, orders, FIRST), "regions": regions}
    check_equal(sorted(run(rows, kept)), [(1, 1), (2, 1), (7, 1)])
    add(orders, 1, (1, "z"))
    before = contents(kept)
    for schema, why in OTHERS.items():
        with pytest.raises(StoreUnfit, match=f"rows 'orders', whose column 1 was 'k' of type long, .*{why}"):
            run({**rows, "orders": stream(spark, orders, schema)}, kept)
    assert contents(kept) == before
    other = spark.createDataFrame([("7", 8)], "v STRING, k LONG")  # not read again, as a checkpoint has the batch
    wider = {"orders": stream(spark, orders, f"{FIRST}, new LONG"), "regions": other}
    check_equal(run(wider, kept), [(1, 2)])
    with pytest.raises(StoreUnfit, match="column 3 was 'new' of type long, and now there is none"):
        run(rows, kept)


@pytest.mark.slow
def test_sources_of_other_columns_are_refused_before_the_query(spark: Any, tmp_path: Path) -> None:
    orders, kept = tmp_path / "in", tmp_path / "kept"

    def rows(schema: str) -> dict[str, str]:
        return {"orders": f"spark:json:{orders}?schema={schema}&trigger=availableNow"}

    add(orders, 0, (1, "x"), (2, "y"))
    check_equal(sorted(run(rows(FIRST), kept)), [(1, 1), (2, 1)])
    add(orders, 1, (1, "z"))
    for schema, why in OTHERS.items():
        with pytest.raises(StoreUnfit, match=why):
            run(rows(schema), kept)
    check_equal(run(rows(FIRST), kept), [(1, 2)])
    add(orders, 2, (3, "z"))
    check_equal(run(rows("v STRING, k LONG"), kept, 2), [("z", 1)])
    with pytest.raises(StoreUnfit, match="column 1 was 'v' of type string"):
        run(rows(FIRST), kept, 2)


@pytest.mark.slow
def test_a_query_of_a_fold_fails_if_its_frame_has_other_columns(spark: Any, tmp_path: Path) -> None:
    orders = tmp_path / "in"

    def start(schema: str) -> Any:
        frame = stream(spark, orders, schema)
        folded = megaflow.spark.stateful(frame.groupBy(frame.columns[0]), count, "k STRING, n LONG", tuples=True)
        writer = folded.writeStream.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True)
        query = folded.megaflow.start_query(lambda: writer.start(str(tmp_path / "out")))
        wait_until(lambda: not query.isActive, WAIT_SECONDS)
        return query

    pytest.importorskip("pyarrow")
    add(orders, 0, (1, "x"), (2, "y"))
    start("k STRING, v STRING")
    add(orders, 1, (1, "z"))
    refused = str(start(FIRST).exception()).partition("JVM stacktrace")[0]
    assert "from a DataFrame, whose column 1 was 'k' of type string" in refused, refused
    assert "new checkpointLocation" in refused and "version=" not in refused and "'rows'" not in refused, refused
    assert start("k STRING, v STRING").exception() is None
    found = [tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    check_equal(sorted(found), [("1", 1), ("1", 2), ("2", 1)])
