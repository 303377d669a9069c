"""Records as rows of a schema: values that fit arrive unchanged, and an error names the first that does not."""

import re
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import numpy
import pytest

from megaflow.errors import ProgramError, ProtocolError, UsageError
from megaflow.rows.ddl import parse_ddl, schema_json
from megaflow.rows.result_rows import SHORT_ZONES, RowPacker, in_zone, row_count, unpack, zone_of
from megaflow.spark.stateful_rows import in_columns
from tests.test_floor_plan import ROOT

BERLIN = "Europe/Berlin"
NAMES = {"datetime": datetime, "date": date, "UTC": UTC}
ENTRY = re.compile(r"\| `(.+?)`.*? \| (.+) \|")


def documented(heading: str) -> list[tuple[str, list[str]]]:
    """Return the values of a table in the documentation, and what it says of each."""
    _, _, rest = (ROOT / "docs" / "spark.md").read_text().partition(heading)
    found = [match for line in rest.partition("\n\n")[0].splitlines() if (match := ENTRY.fullmatch(line))]
    assert len(found) > 5, found
    return [(match[1], match[2].split(" | ")) for match in found]


CELLS = [
    (value, kind, text)
    for heading, kinds in (
        ("| value | in a TIMESTAMP column | in a TIMESTAMP_NTZ column |\n", ("TIMESTAMP", "TIMESTAMP_NTZ")),
        ("| value | in a DATE column |\n", ("DATE",)),
    )
    for value, texts in documented(heading)
    for kind, text in zip(kinds, texts, strict=True)
]
SHAPES = {
    "{}": lambda value: value, "ARRAY<{}>": lambda value: [value], "STRUCT<x: {}>": lambda value: (value,),
    "MAP<STRING, {}>": lambda value: {"x": value},
}  # fmt: skip


class Count(NamedTuple):
    n: int
    word: str


def packed(columns: str, *records: Any) -> list[list[Any]]:
    data = RowPacker(schema_json(parse_ddl(columns))).pack(records)
    assert row_count(data) == len(records)
    return unpack(data)


@pytest.mark.parametrize(
    "records",
    [
        [("a", 1), ("b", None)],
        [{"word": "a", "n": 1}, {"n": None, "word": "b"}],
        [Count(1, "a"), ("b", None)],
    ],
)
def test_a_record_is_a_tuple_by_position_or_what_has_names_by_name(records: Sequence[Any]) -> None:
    assert packed("word string, n long", *records) == [["a", "b"], [1, None]]


def test_of_one_column_a_record_is_its_value() -> None:
    assert packed("line string", "a", ("b",), None) == [["a", "b", None]]


def test_values_become_plain() -> None:
    moment = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert packed("at timestamp", (moment,), (5,)) == [[1_000_000, 5]]
    assert packed("day date", (date(1970, 1, 3),), (1,)) == [[2, 1]]
    assert packed("d decimal(4,1)", (Decimal("1.5"),), (7,)) == [[Decimal("1.5"), Decimal(7)]]
    assert packed("b binary", (bytearray(b"x"),)) == [[b"x"]]
    assert packed("a array<date>", ([date(1970, 1, 2), None],), (None,)) == [[[1, None], None]]
    row = {"x": 1, "y": [moment]}
    assert packed("m map<string, struct<x: int, y: array<timestamp>>>", ({"k": row, "l": None},)) == [
        [[("k", (1, [1_000_000])), ("l", None)]]
    ]


def test_a_scalar_of_numpy_is_the_value_that_it_stands_for() -> None:
    texts = numpy.str_("a"), numpy.bool_(True), numpy.bytes_(b"b")
    record = (numpy.int64(1), numpy.float32(0.5), *texts, numpy.uint8(7))
    columns = "n int, x float, word string, is_new boolean, b binary, d decimal(3,1)"
    assert packed(columns, record) == [[1], [0.5], ["a"], [True], [b"b"], [Decimal(7)]]
    row = {numpy.str_("k"): (numpy.int8(1), [numpy.float64(2.5)])}
    assert packed("m map<string, struct<x: int, y: array<double>>>", (row,)) == [[[("k", (1, [2.5]))]]]
    assert in_columns(record[:3], ["n", "x", "word"]) == (1, 0.5, "a")
    assert [*map(type, in_columns(row[numpy.str_("k")], ["x", "y"])[1])] == [float]


class Turned(NamedTuple):
    y: Any
    x: int


def rows_of_spark() -> Any:
    return pytest.importorskip("pyspark.sql").Row


@pytest.mark.parametrize("make", [Turned, lambda y, x: rows_of_spark()(y=y, x=x)])
def test_names_in_a_column_match_those_of_a_struct(make: Any) -> None:
    row = make(numpy.int64(2), 1)
    assert packed("s struct<x: int, y: int>", (row,), ((3, 4),)) == [[(1, 2), (3, 4)]]
    assert packed("a array<struct<x: int, y: int>>", ([row],)) == [[[(1, 2)]]]
    assert packed("m map<string, struct<x: int, y: struct<x: int, y: int>>>", ({"k": make(row, 3)},)) == [
        [[("k", (3, (1, 2)))]]
    ]
    with pytest.raises(ProgramError, match=r"column 's' is \{'y': 2, 'x': 1\}"):
        packed("s struct<x: int, z: int>", (row,))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("value", "kind", "text"), CELLS)
def test_a_time_is_carried_or_refused_as_documented(value: str, kind: str, text: str, shape: str) -> None:
    packer = RowPacker(in_zone(schema_json(parse_ddl(f"n INT, at {shape.format(kind)}")), BERLIN))
    records = [(6, None), (7, SHAPES[shape](eval(value, NAMES)))]
    if not text.startswith("refused"):  # `tests/spark/test_times.py` compares the texts
        assert row_count(packer.pack(records)) == 2
        return
    with pytest.raises(ProgramError, match=r"the record \(7, .*column 'at' is ") as raised:
        packer.pack(records)
    _, _, why = text.partition("refused: ")
    assert all(word in str(raised.value) for word in re.findall(r"\w+", why)), why


@pytest.mark.parametrize("machine", ["Asia/Tokyo", "America/New_York"])
def test_a_naive_datetime_is_in_the_zone_of_the_session(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def micros(value: datetime, zone: str) -> Any:
        return unpack(RowPacker(in_zone(schema_json(parse_ddl("at timestamp")), zone)).pack([(value,)]))[0][0]

    noon = datetime(2026, 6, 1, 12)
    monkeypatch.setenv("TZ", machine)
    time.tzset()
    try:
        assert micros(noon, BERLIN) == 1_780_308_000_000_000
        assert micros(noon, "") == int(noon.timestamp()) * 1_000_000, "without a session, the machine's"
        assert micros(datetime.min, "+05:00") == -62_135_614_800_000_000
        assert micros(datetime.max, "America/New_York") == 253_402_318_799_999_999
        ends = {"Asia/Tokyo": (-33539, -32400), "America/New_York": (17762, 18000)}[machine]
        assert micros(datetime.min, "") == (-62_135_596_800 + ends[0]) * 1_000_000
        assert micros(datetime.max, "") == (253_402_300_799 + ends[1]) * 1_000_000 + 999_999
        with pytest.raises(UsageError, match="no time zone 'Mars/Base'"):
            micros(noon, "Mars/Base")
        assert micros(noon.replace(tzinfo=timezone(timedelta(hours=1))), "Mars/Base") == 1_780_311_600_000_000
    finally:
        monkeypatch.undo()
        time.tzset()
    assert zone_of("+01:00").utcoffset(None) == timedelta(hours=1)


def test_names_of_zones_are_those_of_java() -> None:
    noon = datetime(2026, 6, 1, 12)
    given = {"PST": -7.0, "JST": 9, "IST": 5.5, "BST": 6, "EST": -5, "MST": -7, "HST": -10, "UT": 0, "Z": 0, "+9": 9}
    assert {name: zone_of(name).utcoffset(noon) for name in given} == {
        name: timedelta(hours=hours) for name, hours in given.items()
    }
    assert zone_of("-05:30:15").utcoffset(noon) == -timedelta(hours=5, minutes=30, seconds=15)
    assert all(zone_of(name).utcoffset(noon) is not None for name in SHORT_ZONES)


@pytest.mark.parametrize(
    ("columns", "record", "why"),
    [
        ("n double", ((1 << 53) + 1,), "9007199254740993, an int which is too large for double: convert it by float"),
        ("a array<float>", ([(1 << 24) + 1],), "16777217, an int which is too large for float"),
        ("at timestamp", (-(1 << 63),), "too large for timestamp"),
        ("day date", (-(1 << 31),), "too large for date"),
        ("word string, n long", ("a", "1"), "('a', '1') does not fit the schema of the results: column 'n' is '1' (s"),
        ("n tinyint", (numpy.int64(300),), "column 'n' is 300, which is too large for byte"),
        ("at timestamp", (numpy.datetime64("2026-01-01"),), "(datetime64), but must be timestamp"),
        ("a array<long>", (numpy.array([1]),), "(ndarray), but must be array<long>"),
        ("word string, n long", ("a", True), "column 'n' is True (bool), but must be long"),
        ("word string, n long", ("a", 1.0), "column 'n' is 1.0 (float), but must be long"),
        ("word string, n long", ("a",), "it has 1 values for 2 columns, 'word' and 'n'"),
        ("word string, n long", {"word": "a"}, "it has 'word', not the columns 'word' and 'n'"),
        ("word string, n long", 7, "it is neither a tuple nor a dict, but of type int"),
        ("word string", ("\ud800",), "contains a lone surrogate"),
        ("n int", (1 << 31,), "2147483648, which is too large for integer"),
        ("n byte", (-129,), "too large for byte"),
        ("n double", (1 << 5000,), "too large for double"),
        ("n decimal(3,1)", (Decimal("100"),), "100, which has more digits than decimal(3,1)"),
        ("n decimal(3,1)", (Decimal("0.25"),), "0.25, which has more digits than decimal(3,1)"),
        ("n decimal(3,1)", (Decimal("NaN"),), "NaN, which has more digits"),
        ("a array<long>", ([1, "x"],), "column 'a' is 'x' (str), but must be long"),
        ("m map<string, long>", ({None: 1},), "the key of a map cannot be None"),
        ("s struct<x: int>", ((1, 2),), "column 's' is (1, 2) (tuple), but must be struct<x: integer>"),
    ],
)
def test_a_record_that_does_not_fit_is_named_with_column_and_type(columns: str, record: Any, why: str) -> None:
    good = {"word string, n long": ("a", 1)}.get(columns)
    with pytest.raises(ProgramError) as raised:
        packed(columns, *([good] if good else []), record)
    assert why in str(raised.value)


def test_limits_of_a_column_fit() -> None:
    assert packed("n byte", (-128,), (127,)) == [[-128, 127]]
    assert packed("n double", (1,), (2.5,), (1 << 53,)) == [[1, 2.5, 1 << 53]]
    assert packed("at timestamp_ntz", (-(1 << 63),), ((1 << 63) - 1,)) == [[-(1 << 63), (1 << 63) - 1]]


@pytest.mark.parametrize("data", [b"", b"\0\0\0\1", RowPacker(schema_json(parse_ddl("n long"))).pack([(1,)])[1:]])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack(data)
