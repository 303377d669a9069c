"""The forms of values that a processor gets, keeps and returns; no Spark runs."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import nan
from typing import Any

import pytest

from megaflow.errors import UsageError
from megaflow.rows.ddl import parse_ddl, schema_json
from megaflow.rows.result_rows import zone_of
from megaflow.spark.processor_values import (
    StateSchema,
    frame_maker,
    frame_outputs,
    keys_of,
    row_maker,
    row_outputs,
)
from tests.words import says

pytest.importorskip("pyspark")

BERLIN = zone_of("Europe/Berlin")
ALL = (
    "i INT, l LONG, d DOUBLE, s STRING, b BOOLEAN, ts TIMESTAMP, dt DATE, n DECIMAL(10,2), a ARRAY<INT>, "
    "m MAP<STRING, DATE>, st STRUCT<x: INT, y: STRING>, bin BINARY, ntz TIMESTAMP_NTZ, f FLOAT, y BYTE"
)


def schema(text: str) -> str:
    return schema_json(parse_ddl(text))


def test_a_row_has_the_values_of_arrow() -> None:
    text = "at TIMESTAMP, ntz TIMESTAMP_NTZ, d DATE, s STRUCT<a: INT, b: ARRAY<STRUCT<c: DATE>>>, m MAP<STRING, INT>"
    make = row_maker(schema(text), BERLIN)
    row: Any = make((1_500_000, 1, 1, (1, [(2,)]), {"q": 1}))
    assert row.at == datetime(1970, 1, 1, 1, 0, 1, 500_000, BERLIN) and row.at.tzinfo is BERLIN
    assert (row.ntz, row.d) == (datetime(1970, 1, 1, 0, 0, 0, 1), date(1970, 1, 2))
    assert (row.s, row.m) == ({"a": 1, "b": [{"c": date(1970, 1, 3)}]}, [("q", 1)])
    assert make((None,) * 5) == (None,) * 5


def test_a_data_frame_has_the_types_of_spark() -> None:
    pytest.importorskip("pandas")
    text = "i INT, n INT, b BOOLEAN, o BOOLEAN, at TIMESTAMP, f DOUBLE, a ARRAY<INT>, s STRUCT<x: INT>, m MAP<INT, INT>"
    rows = [(1, 2, True, True, 0, 1.5, [1, 2], (1,), {7: 1}), (2, None, False, None, None, None, None, None, None)]
    frame = frame_maker(schema(text), BERLIN)(rows)
    kinds = ["int64", "float64", "bool", "object", "datetime64[ns]", "float64", "object", "object", "object"]
    assert [*map(str, frame.dtypes)] == kinds
    assert str(frame["at"][0]) == "1970-01-01 01:00:00"
    assert frame["a"][0].dtype == "int32" and [*frame["a"][0]] == [1, 2]
    assert (frame["s"][0], frame["m"][0], frame["o"][1]) == ({"x": 1}, {7: 1}, None)


NEVER, YEAR_10000 = 253_402_318_799_000_000, 253_402_318_800_000_000  # in New York


def test_a_time_arrives_if_it_fits_the_zone_of_the_session() -> None:
    york, columns = zone_of("America/New_York"), parse_ddl("n LONG, at TIMESTAMP, several ARRAY<TIMESTAMP>")
    never = datetime(9999, 12, 31, 23, 59, 59)
    row = row_maker(schema_json(columns), york)((1, NEVER, [NEVER, None]))
    assert row.at == row.several[0] == never.replace(tzinfo=york)
    assert [*row_outputs(schema_json(columns))(row)] == [tuple(row)]
    assert keys_of(columns[1:2], york, pandas=False)((NEVER,)) == (never.replace(tzinfo=york),)
    for values, name in (((1, YEAR_10000, None), "at"), ((1, None, [NEVER, YEAR_10000]), "several")):
        with pytest.raises(ValueError, match="Python's datetimes hold only the years 1 to 9999") as raised:
            row_maker(schema_json(columns), york)(values)
        assert says(str(raised.value), f"column {name!r}", f"{YEAR_10000}", f"row {values!r}")
    with pytest.raises(ValueError, match="The column 'at' has 25340"):
        keys_of(columns[1:2], york, pandas=False)((YEAR_10000,))


def test_a_time_that_pandas_cannot_hold_is_named() -> None:
    pytest.importorskip("pandas")
    make = frame_maker(schema_json(parse_ddl("n LONG, at TIMESTAMP")), BERLIN)
    assert len(make([(1, 0), (2, None)])) == 2
    with pytest.raises(ValueError, match="only the years 1678 to 2261") as raised:
        make([(1, 0), (2, NEVER)])
    assert says(str(raised.value), "column 'at'", str(NEVER), f"row (2, {NEVER})")


def test_keys_have_the_types_of_their_variant() -> None:
    kinds = parse_ddl("name STRING, at TIMESTAMP")
    assert keys_of(kinds, BERLIN, pandas=False)(("a", 0)) == ("a", datetime(1970, 1, 1, 1, tzinfo=BERLIN))
    pandas = pytest.importorskip("pandas")
    key = keys_of(kinds, BERLIN, pandas=True)(("a", 0))
    assert key == ("a", pandas.Timestamp("1970-01-01 01:00")) and type(key[1]) is pandas.Timestamp


def test_a_state_returns_what_spark_returns() -> None:
    from pyspark.sql import Row

    at = datetime(2026, 1, 2, 3, 4, 5, 6)
    value = (
        1, 2, 3.0, "x", True, at, date(2026, 1, 2), Decimal("1.5"), [1, None], {"q": date(2026, 1, 2)}, (1, "y"),
        b"\1", at, 1.1, 5,
    )  # fmt: skip
    states = StateSchema(ALL, "s")
    found = states.outward(states.inward(value))
    assert tuple(found) == (*value[:13], 1.100000023841858, 5)
    assert repr(found.st) == repr(Row(x=1, y="y")) and str(found.n) == "1.50"
    assert tuple(states.outward(states.inward((None,) * 15))) == (None,) * 15


def test_a_list_that_a_state_returned_is_a_copy() -> None:
    states = StateSchema("a ARRAY<INT>, m MAP<STRING, INT>", "s")
    kept = states.inward(([1], {"a": 1}))
    first = states.outward(kept)
    first.a.append(2)
    first.m["b"] = 2
    assert kept == ([1], {"a": 1})


def test_numpy_and_pandas_values_fit_a_state() -> None:
    numpy, pandas = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    states = StateSchema("i INT, d DOUBLE, at TIMESTAMP, n STRING", "s")
    at = pandas.Timestamp("2026-01-01", tz="UTC")
    kept = states.inward((numpy.int32(4), numpy.float64(2), at, pandas.NaT))
    assert kept == (4, 2.0, 1_767_225_600_000_000, None)
    assert [*map(type, kept[:3])] == [int, float, int]


@pytest.mark.parametrize(
    ("text", "given", "kept"),
    [
        ("s STRING", (1,), ("1",)),
        ("s STRING", (True,), ("true",)),
        ("n DECIMAL(4,1)", (Decimal("1.25"),), (Decimal("1.3"),)),
        ("s STRUCT<a: INT, b: INT>", ({"b": 1},), ((None, 1),)),
        ("i INT", [7], (7,)),
        ("i INT NOT NULL, s STRING not null", (7, None), (7, None)),
        ("at TIMESTAMP_NTZ", (datetime(1970, 1, 1, 1, tzinfo=BERLIN),), (3_600_000_000,)),
        ("f FLOAT", (1e300,), (float("inf"),)),
    ],
)
def test_a_value_is_kept_as_spark_keeps_it(text: str, given: Any, kept: tuple[Any, ...]) -> None:
    assert StateSchema(text, "s").inward(given) == kept


@pytest.mark.parametrize(
    ("text", "given", "error", "why"),
    [
        ("i INT", None, TypeError, "must be a tuple or a Row of (i)"),
        ("i INT", "a", TypeError, "must be a tuple"),
        ("i INT", {"i": 1}, TypeError, "must be a tuple"),
        ("i INT", (1, 2), ValueError, "2 values for 1 columns"),
        ("i INT", (1 << 40,), ValueError, "too large for integer"),
        ("i INT", (1.5,), TypeError, "must be integer"),
        ("i INT", (True,), TypeError, "must be integer"),
        ("i INT", ("1",), TypeError, "column 'i': '1' is of type str"),
        ("d DOUBLE", (1,), TypeError, "must be double"),
        ("at TIMESTAMP", ("2026-01-01",), TypeError, "must be timestamp"),
        ("n DECIMAL(4,1)", (Decimal("12345.6"),), ValueError, "does not fit decimal(4,1)"),
        ("s STRUCT<a: INT>", ((1, 2),), ValueError, "2 values for 1 fields"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(text: str, given: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error) as caught:
        StateSchema(text, "The state 's'").inward(given)
    assert says(str(caught.value), "The state 's'", why)


def test_a_key_of_a_map_state_is_hashable() -> None:
    keys = StateSchema("a ARRAY<INT>, s STRUCT<b: ARRAY<INT>>", "s")
    key = keys.as_key(([1, 2], ([3],)))
    assert {key: 1}[keys.as_key(([1, 2], ([3],)))] == 1
    assert keys.outward(key).a == [1, 2]
    with pytest.raises(ValueError, match="NaN cannot be a key"):
        StateSchema("d DOUBLE", "s").as_key((nan,))


def test_a_schema_that_cannot_be_kept_is_refused() -> None:
    from pyspark.sql.types import DayTimeIntervalType, LongType, StructType

    for wrong in ("n TEXT", LongType(), StructType().add("i", DayTimeIntervalType())):
        with pytest.raises(UsageError, match="The state 's'"):
            StateSchema(wrong, "The state 's'")


def test_output_rows_are_in_the_order_of_the_columns() -> None:
    from pyspark.sql import Row

    records = row_outputs(schema("k STRING, n LONG, s STRUCT<a: TIMESTAMP>"))
    assert records(Row(n=1, k="a")) == records({"n": 1, "k": "a"}) == records(("a", 1, None)) == [("a", 1, None)]
    assert records(Row(s=Row(a=None), k="b")) == [("b", None, {"a": None})]
    for wrong, error in ((Row(z=1), ValueError), (("a",), ValueError), (3, TypeError)):
        with pytest.raises(error):
            records(wrong)


def test_naive_output_datetimes_are_in_utc_in_rows() -> None:
    at = datetime(2026, 1, 1)
    assert row_outputs(schema("a TIMESTAMP, n TIMESTAMP_NTZ"))((at, at)) == [(at.replace(tzinfo=UTC), at)]


def test_output_frames_become_rows() -> None:
    pandas = pytest.importorskip("pandas")
    records = frame_outputs(schema("what STRING, n LONG, at TIMESTAMP, f DOUBLE, a ARRAY<INT>"), BERLIN)
    frame = pandas.DataFrame(
        {"n": [1.0, nan], "what": ["x", None], "at": [pandas.Timestamp("1970-01-01"), pandas.NaT], "f": [1, nan],
         "a": [pandas.array([1]).to_numpy(), None]}
    )  # fmt: skip
    at = datetime(1970, 1, 1, tzinfo=BERLIN)
    assert records(frame) == [("x", 1, at, 1.0, [1]), (None, None, None, None, None)]
    assert at.utcoffset() == timedelta(hours=1)
    assert records(pandas.DataFrame()) == records(frame[:0]) == []
    no_columns = pandas.DataFrame(index=[0])
    for wrong, error in ((frame[["n"]], ValueError), (no_columns, ValueError), ([1], TypeError)):
        with pytest.raises(error):
            records(wrong)


def test_an_unknown_time_zone_is_refused() -> None:
    assert zone_of("+01:00").utcoffset(None) == timedelta(hours=1)
    with pytest.raises(UsageError, match="no time zone 'Mars/Base'"):
        zone_of("Mars/Base")
