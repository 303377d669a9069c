"""Rows and Arrow batches are packed alike. Types that cannot travel are named before the job starts."""

from collections.abc import Iterable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from megaflow.errors import UsageError
from megaflow.job.launcher.inputs.launcher_input import find_input, find_rows
from megaflow.rows.packed_rows import unpack_rows
from megaflow.spark.push import Parcel
from megaflow.spark.query_spec import RowFrames, SparkSpec
from megaflow.spark.row_packing import ROWS_FIRST, RowPacking, check_columns
from tests.words import says

types = pytest.importorskip("pyspark.sql.types")

LONG, STRING, INTERVAL = types.LongType(), types.StringType(), types.DayTimeIntervalType()
HAS_TIME = hasattr(types, "TimeType")  # not before Spark 4.1
MOMENTS = types.ArrayType(types.TimestampType())


def struct(**kinds: Any) -> Any:
    return types.StructType([types.StructField(name, kind) for name, kind in kinds.items()])


def packing(**kinds: Any) -> RowPacking:
    return RowPacking("orders", struct(**kinds).json())


def unpacked(parcels: Iterable[Parcel]) -> list[list[Any]]:
    """The columns of all."""
    columns: list[list[Any]] = []
    for parcel in parcels:
        assert isinstance(parcel.text, bytes)
        pack = unpack_rows(parcel.text)
        assert (pack.input, pack.rows, parcel.separator) == ("orders", parcel.lines, "")
        columns = [
            before + now for before, now in zip(columns or [[] for _ in pack.columns], pack.columns, strict=True)
        ]
    return columns


MICROS = 1_767_268_800_000_005


def test_rows_and_arrow_batches_make_the_same_packs() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    given = [(n, f"n{n}", b"\xff", Decimal(n), MICROS, [MICROS, None], (n,), {"a": n}) for n in range(100)]
    given += [(None,) * 8]  # type: ignore[list-item]
    rows = [(*row[:2], None if row[2] is None else bytearray(row[2]), *row[3:]) for row in given]
    names = ("n", "name", "raw", "amount", "at", "seen", "p", "m")
    pairs = pyarrow.map_(pyarrow.string(), pyarrow.int32())
    kinds = {"p": pyarrow.struct([("x", pyarrow.int32())]), "m": pairs}
    arrays = []
    for name, values in zip(names, zip(*given, strict=True), strict=True):
        column = [{"x": value[0]} if name == "p" and value else value for value in values]
        arrays.append(pyarrow.array(column, kinds.get(name)))
    batch = pyarrow.RecordBatch.from_arrays(arrays, list(names))
    whole = packing(
        n=LONG, name=STRING, raw=types.BinaryType(), amount=types.DecimalType(5, 2), at=types.TimestampType(),
        seen=MOMENTS, p=struct(x=LONG), m=types.MapType(STRING, LONG),
    )  # fmt: skip
    expected = [list(column) for column in zip(*given, strict=True)]
    assert unpacked(whole.of_rows(iter(rows), 2000)) == expected
    assert unpacked(whole.of_batches([batch.slice(0, 60), batch.slice(60)], 2000)) == expected


def test_a_pack_grows_to_the_size_that_is_asked_for_and_a_large_row_is_one() -> None:
    sizes = [parcel.lines for parcel in packing(n=LONG).of_rows(((n,) for n in range(20_000)), 8000)]
    assert sizes[0] == ROWS_FIRST and sum(sizes) == 20_000
    assert all(500 < size <= 2000 for size in sizes[3:-1])
    large = [parcel.lines for parcel in packing(s=STRING).of_rows((("x" * 5000,) for _ in range(40)), 1000)]
    assert large == [16] + [1] * 24


def frame(*fields: tuple[str, Any]) -> Any:
    schema = types.StructType([types.StructField(name, kind) for name, kind in fields])
    return SimpleNamespace(schema=schema, isStreaming=True)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            [("id", LONG), ("wait", INTERVAL)],
            "have the column 'wait' of type interval day to second, which cannot be sent",
        ),
        *([([("at", types.TimeType())], "the column 'at' of type time(6), which cannot be sent")] if HAS_TIME else []),
        ([("x", struct(v=types.VariantType()))], "the column 'x' of type struct<v:variant>, which cannot be sent"),
        ([("m", types.MapType(MOMENTS, LONG))], "the column 'm' of type map<array<timestamp>,bigint>, which cannot"),
        ([("id", LONG), ("id", STRING)], "two columns 'id'"),
        ([], "The rows 'orders' have no columns"),
    ],
)
def test_a_column_that_cannot_travel_is_named_with_its_type_before_anything_starts(fields: Any, why: str) -> None:
    with pytest.raises(UsageError) as refusal:
        find_rows({"orders": frame(*fields)})
    assert why in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_column_of_a_query_is_named_without_an_input() -> None:
    with pytest.raises(UsageError) as refusal:
        check_columns(None, frame(("id", LONG), ("wait", INTERVAL)))
    said = str(refusal.value)
    assert says(said, "The DataFrame has the column 'wait'", "frame.withColumn('wait', frame['wait'].cast('string'))")
    assert "select=" not in said


def test_rows_are_given_by_name() -> None:
    check_columns("orders", frame(("id", LONG), ("seen", MOMENTS), ("m", types.MapType(STRING, struct(x=LONG)))))
    found = find_input(None, 1, "replace", {"b": frame(("id", LONG)), "a": "spark:json:in/"})
    assert isinstance(found.spark, RowFrames) and isinstance(found.spark.frames["a"], SparkSpec)
    assert (found.names.rows, found.spark_queries) == (("a", "b"), 2)
    assert find_input("spark:rate:", 1, "replace").spark_queries == 1


def test_a_batch_frame_alone_can_come_first() -> None:
    batch = SimpleNamespace(schema=types.StructType([types.StructField("id", LONG)]), isStreaming=False)
    stream = frame(("id", LONG))
    found = find_rows(RowFrames({"a": batch, "b": stream}, first="a"))
    assert isinstance(found.spark, RowFrames) and found.spark.first == "a"
    for frames in {"a": stream, "b": batch}, {"a": "spark:rate:", "b": batch}, {"b": batch}:
        with pytest.raises(UsageError, match="'a', which come first, must be a batch DataFrame"):
            find_rows(RowFrames(frames, first="a"))


@pytest.mark.parametrize(
    ("lines", "rows", "why"),
    [
        (None, {}, "rows must be a dict such as"),
        (None, [1], "rows must be a dict such as"),
        (None, {"a b": "spark:rate:"}, "'a b' must be a name"),
        (None, {"a": 5}, "The rows 'a' must be a DataFrame of Spark or 'spark:FORMAT:PATH', not 5"),
        (None, {"a": "in/"}, "must be NAME=spark:FORMAT:PATH"),
        ("in.txt", {"a": "spark:rate:"}, "lines and rows cannot be combined"),
    ],
)
def test_what_is_no_rows_is_refused(lines: Any, rows: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        find_input(lines, 1, "replace", rows)
