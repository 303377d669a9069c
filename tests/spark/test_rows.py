"""Rows of any DataFrame reach a program with the values that Spark's own Row has, with and without Arrow."""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow.spark.push import VARIABLE

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),  # one session for all
    pytest.mark.filterwarnings("ignore:Cannot infer the eval type:UserWarning"),
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no java on PATH, and Spark needs one"),
]

SCHEMA = (
    "id LONG, small SHORT, ratio DOUBLE, half FLOAT, ok BOOLEAN, name STRING, raw BINARY, amount DECIMAL(10,2), "
    "at TIMESTAMP, wall TIMESTAMP_NTZ, day DATE, tags ARRAY<STRING>, days ARRAY<DATE>, counts MAP<STRING, LONG>, "
    "place STRUCT<city: STRING, seen: TIMESTAMP, inner: STRUCT<x: INT>>, nothing VOID"
)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from megaflow.spark.spark_session import spark_session

    with ExitStack() as stack:
        session = stack.enter_context(spark_session(tmp_path_factory.mktemp("spark")))
        session.conf.set("spark.sql.execution.pythonUDF.arrow.enabled", "false")
        yield session


@pytest.fixture(params=["rows", "arrow"])
def transfer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "rows":
        monkeypatch.setenv(VARIABLE, "rows")
    else:
        pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        monkeypatch.delenv(VARIABLE, raising=False)


def orders(flow: Any) -> Any:
    return flow.rows("orders")


def moment(text: str) -> int:
    """Microseconds of a local time, as Spark's Row has them."""
    value = datetime.fromisoformat(text)
    return int(value.replace(microsecond=0).timestamp()) * 1_000_000 + value.microsecond


@pytest.mark.slow
def test_values_are_those_of_spark_rows(spark: Any, transfer: None) -> None:
    at = datetime(2026, 3, 29, 12, 30, 1, 250_001)
    given = [
        (1, -2, 0.5, 0.25, True, "ünï\n\0", b"\0\xff", Decimal("12.30"), at, at, date(1969, 12, 31), ["a", None],
         [date(1970, 1, 2), None], {"x": 1, "y": None}, ("Ulm", at, (5,)), None),
        (2,) + (None,) * 15,
        (2**63 - 1, 1, float("inf"), -0.0, False, "", b"", Decimal("-0.01"), datetime(1960, 1, 1), datetime(1, 1, 1),
         date(9999, 12, 31), [], [], {}, (None, None, None), None),
    ]  # fmt: skip
    frame = spark.createDataFrame(given, SCHEMA).coalesce(1)
    found = megaflow.run(orders, rows={"orders": frame})
    for row, mine in zip(frame.collect(), found, strict=True):
        assert type(mine) is tuple and len(mine) == len(row)
        for field, theirs, value in zip(frame.schema.fields, row, mine, strict=True):
            assert same(theirs, value), f"{field.name}: {theirs!r} {value!r}"
    micros = moment("2026-03-29T12:30:01.250001")
    assert found[0][8:11] == (micros, (at - datetime(1970, 1, 1)).total_seconds() * 10**6, -1)
    assert found[0][12:15] == ([1, None], {"x": 1, "y": None}, ("Ulm", micros, (5,)))


def same(theirs: Any, mine: Any) -> bool:
    """Whether a value is that of Spark's Row: datetimes and dates as numbers."""
    if isinstance(theirs, datetime):
        return type(mine) is int
    if isinstance(theirs, date):
        return bool(mine == theirs.toordinal() - 719_163)
    if isinstance(theirs, list | tuple):
        kind = tuple if isinstance(theirs, tuple) else list
        return type(mine) is kind and len(mine) == len(theirs) and all(map(same, theirs, mine))
    return bool(theirs == mine and (type(theirs) is type(mine) or (type(theirs) is bytearray and type(mine) is bytes)))


def test_a_stream_prepared_in_sql_is_folded_each_row_once(tmp_path: Path, spark: Any) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    for number in range(3):
        lines = [json.dumps({"id": id, "at": "2026-01-01T00:00:00Z"}) for id in range(number * 100, number * 100 + 100)]
        (folder / f"{number}.json").write_text("\n".join(lines))

    def dataflow(flow: Any) -> Any:
        def count(key: int, at: int, total: int | None) -> tuple[int, list[Any]]:
            total = (total or 0) + 1
            return total, [(key, total, at)]

        pairs = flow.rows("orders", as_=dict).map(lambda row: (row["key"], row["at"]))
        return pairs.stateful_state_machine(count)

    prepared = "where=id >= 50&select=id %25 10 AS key, at&trigger=availableNow"
    spec = f"spark:json:{folder}?schema=id LONG, at TIMESTAMP&{prepared}"
    found = megaflow.run(dataflow, rows={"orders": spec}, processes=2)
    assert sorted(found) == [(key, total, 1_767_225_600_000_000) for key in range(10) for total in range(1, 26)]
