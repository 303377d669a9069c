"""Records as JSON: valid and written by rule, or refused, including values that json itself would write wrongly."""

import json
from collections import Counter, OrderedDict, UserDict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import numpy
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import ProgramError
from megaflow.job.worker.writing.json_lines import as_json_lines, to_json

NAN = float("nan")


class Point(NamedTuple):
    x: int
    y: Any


@dataclass
class Sale:
    item: str
    at: Any


class Colour(Enum):
    RED = ("r", 1)


class Rank(IntEnum):
    ONE = 1


class Mood(StrEnum):
    GOOD = "good"


class Loud(str):
    def __str__(self) -> str:
        return "LOUD"


class Rude:
    def __repr__(self) -> str:
        raise LookupError("no")


DAY = date(2026, 1, 2)

FORMS: list[tuple[Any, Any]] = [
    (None, None), (True, True), (1.5, 1.5), (2**70, 2**70), ("é\n", "é\n"),
    (NAN, None), ([1, float("inf"), (-float("inf"),)], [1, None, [None]]),
    (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "2026-01-02T03:04:05.000006+00:00"), (DAY, "2026-01-02"),
    (time(3, 4), "03:04:00"), (timedelta(minutes=1, milliseconds=500), 60.5),
    (Point(1, Point(2, NAN)), {"x": 1, "y": {"x": 2, "y": None}}), (("a", [Point(1, 2)]), ["a", [{"x": 1, "y": 2}]]),
    (namedtuple("Pair", "a b")(1, 2), {"a": 1, "b": 2}), (Sale("tea", DAY), {"item": "tea", "at": "2026-01-02"}),
    ({10, 9, 100}, [9, 10, 100]), (frozenset(("b", "a")), ["a", "b"]), ({1, "a", None}, ["a", 1, None]),
    ({(2, 1), (1, 9)}, [[1, 9], [2, 1]]), ({frozenset((2, 1)), frozenset((0,))}, [[0], [1, 2]]),
    (deque((1, DAY)), [1, "2026-01-02"]), (range(3), [0, 1, 2]), ({"a": 1}.keys(), ["a"]),
    (Counter("aab"), {"a": 2, "b": 1}), (OrderedDict(b=1, a=2), {"b": 1, "a": 2}), (UserDict(a=1), {"a": 1}),
    (Colour.RED, ["r", 1]), (Rank.ONE, 1), (Mood.GOOD, "good"), ({Rank.ONE: Mood.GOOD}, {"1": "good"}),
    (Loud("quiet"), "quiet"), (Decimal("1.10"), "1.10"), (Decimal("NaN"), None), (Path("/a/b"), "/a/b"),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ({1: 6, None: 3, 2.5: 4, DAY: 5, Decimal("1.1"): 7}, {"1": 6, "null": 3, "2.5": 4, "2026-01-02": 5, "1.1": 7}),
    ({True: 1, False: 2, timedelta(seconds=1): 3}, {"true": 1, "false": 2, "1.0": 3}),
    ({numpy.int64(7): 1}, {"7": 1}),
    (numpy.int64(3), 3), (numpy.float32(1.5), 1.5), (numpy.float64(NAN), None), (numpy.bool_(True), True),
    (numpy.longdouble(1.5), 1.5), (numpy.str_("a"), "a"), (numpy.uint8(255), 255),
    (numpy.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]), (numpy.array(1.5), 1.5),
    (numpy.datetime64("2026-01-02T03"), "2026-01-02T03"), (numpy.timedelta64(1500, "ms"), 1.5),
    (numpy.timedelta64(1_500_000_000, "ns"), 1.5), (numpy.array([1_500_000_000], "m8[ns]"), [1.5]),
    (numpy.timedelta64(2, "W"), 1_209_600.0), (numpy.timedelta64("NaT", "M"), None),
    (numpy.array(["2026-01-02", "NaT"], "datetime64[ns]"), ["2026-01-02T00:00:00.000000000", None]),
    (numpy.timedelta64("NaT"), None), (pandas.Timestamp("2026-01-02"), "2026-01-02T00:00:00"), (pandas.NaT, None),
    (pandas.NA, None), (pandas.Period("2026-01"), "2026-01"), (pandas.Timedelta(1500, "ms"), 1.5),
    (pandas.Timestamp("2026-01-02 00:00:00.000000007", tz="UTC"), "2026-01-02T00:00:00.000000007+00:00"),
    (pandas.Timedelta("1ns"), 1e-9), (pandas.Timedelta(-1_234_567_891, "ns"), -1.234567891),
    (pandas.Timedelta("100000 days 1ns"), 8_640_000_000.000000001), (timedelta.min, -86_399_999_913_600.0),
    ("a\ud800b", "a\ufffdb"), ("\udc80", "\ufffd"), ({"\ud800": ["\udfff"]}, {"\ufffd": ["\ufffd"]}),
    ("\ufeffa\ud83d\ude00", "\ufeffa\U0001f600"), (Path("b\udcff"), "b\ufffd"),
]  # fmt: skip


@pytest.mark.parametrize(("record", "wanted"), FORMS, ids=[ascii(wanted)[:40] for _, wanted in FORMS])
def test_each_type_has_the_form_that_is_written_down(record: Any, wanted: Any) -> None:
    [line] = as_json_lines(3, [record])
    line.encode()
    found = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found == {"time": 3, "record": wanted} and str(found) == str({"time": 3, "record": wanted})
    assert json.loads(to_json([{"a": (record,)}])) == [{"a": [wanted]}], "also at depth"


def test_a_row_of_spark_is_an_object_if_its_names_differ() -> None:
    from pyspark.sql.types import Row

    assert to_json([Row(name="ann", item=Row(sizes=[1, None]))]) == '[{"name": "ann", "item": {"sizes": [1, null]}}]'
    assert to_json([Row(1, 2), Row("a", "a")(1, 2)]) == "[[1, 2], [1, 2]]"


def itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


REFUSED: list[tuple[Any, str]] = [
    (b"a", "bytes; decode()"), (bytearray(b"a"), "bytearray"), (memoryview(b"a"), "memoryview"),
    (numpy.bytes_(b"a"), "bytes_"), (1j, "complex"), (object(), "builtins.object; convert the records"),
    (Fraction(1, 2), "fractions.Fraction"), (len, "builtin_function"), (Sale, "builtins.type"),
    (iter([1]), "list_iterator"),
    (Rude(), "a value whose repr raises LookupError of type .*Rude"), (pandas.Interval(1, 2), "Interval"),
    (numpy.complex128(1), "complex"), (numpy.ma.masked, "Masked"),
    (numpy.timedelta64(1, "M"), "not a fixed number"), (numpy.timedelta64(3), "not a fixed number"),
    ({(1, 2): 3}, "be a key"), ({frozenset(): 3}, "be a key"), ({NAN: 3}, "be a key"), ({b"a": 3}, "bytes"),
    ({1: "a", "1": "b"}, "the keys 1 and '1' of a dict would both become '1'"),
    ({None: 1, "null": 2}, "would both become 'null'"), ({DAY: 1, "2026-01-02": 2}, "become '2026-01-02'"),
    (dict.fromkeys(("\ud800", "\ud801")), "would both become"),
    (itself(), "contains itself"), (10**5000, "4300 digits"),
]  # fmt: skip


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: Point(1, [value])], ids=["itself", "at depth"])
@pytest.mark.parametrize(("record", "said"), REFUSED, ids=lambda value: str(type(value)))
def test_what_json_has_no_form_for_is_refused_with_its_type(record: Any, said: str, wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(ProgramError, match=said):
        as_json_lines(3, [wrap(record)])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda some: st.lists(some) | st.dictionaries(st.text(), some),
)


@given(values)
def test_what_json_has_comes_back_as_it_was(value: Any) -> None:
    assert json.loads(to_json(value)) == value


@given(st.recursive(st.text(st.characters(), max_size=3) | st.floats(), lambda some: st.lists(some) | st.tuples(some)))
def test_every_line_is_valid_utf8_and_json(value: Any) -> None:
    json.loads(to_json(value).encode(), parse_constant=lambda name: pytest.fail(name))


atoms = st.integers(0, 5) | st.text(max_size=1)


@given(st.sets(st.none() | atoms | st.tuples(atoms, atoms)))
def test_the_array_of_a_set_depends_on_its_elements_only(elements: set[Any]) -> None:
    assert to_json(elements) == to_json(frozenset(sorted(elements, key=repr)))
