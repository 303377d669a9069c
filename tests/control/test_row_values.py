"""Values leave Spark the same way in a Row as in an Arrow value, and return as the same datetimes."""

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.rows.row_values import EPOCH_UTC, MICROSECOND, arriving, leaving, micros_of, plain, stranger


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def mapping(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def struct(**kinds: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/New_York"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("hours", range(0, 24 * 365, 24 * 7))
def test_a_local_time_is_the_instant_that_it_stands_for_also_when_clocks_are_set_back(zone: None, hours: int) -> None:
    for micros in (hours * 3_600_000_000 + 7, 1_729_990_800_000_001 + hours * 1_800_000_000):
        seconds, rest = divmod(micros, 1_000_000)
        assert micros_of(datetime.fromtimestamp(seconds).replace(microsecond=rest)) == micros


def test_the_first_and_last_local_times_have_an_instant(zone: None) -> None:
    for value, aside in ((datetime.min, timedelta(days=3)), (datetime.max, timedelta(days=-3))):
        assert micros_of(value) == micros_of(value + aside) - aside // MICROSECOND


@given(st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 30)), st.integers(-12, 12))
def test_an_instant_is_the_same_in_any_time_zone_and_comes_back(moment: datetime, hours: int) -> None:
    aware = moment.replace(tzinfo=UTC)
    micros = micros_of(aware.astimezone(timezone(timedelta(hours=hours))))
    assert micros == (aware - EPOCH_UTC) // MICROSECOND
    convert = arriving("timestamp")
    assert convert is not None and convert(micros) == aware
    naive, back = plain("timestamp_ntz"), arriving("timestamp_ntz")
    assert naive is not None and back is not None and back(naive(moment)) == moment


def test_nested_values_are_converted_wherever_they_are() -> None:
    kind = array(struct(day=mapping("string", "date"), raw="binary", n="long"))
    convert, back = leaving(kind), arriving(kind)
    assert convert is not None and back is not None
    as_row = [({"a": 2, "b": None}, bytearray(b"x"), 5), None]
    as_arrow = [{"day": [("a", 2), ("b", None)], "raw": b"x", "n": 5}, None]
    left = [({"a": 2, "b": None}, b"x", 5), None]
    assert convert(as_row) == convert(as_arrow) == left
    assert back(left) == [({"a": date(1970, 1, 3), "b": None}, b"x", 5), None]
    assert convert(None) is None and back(None) is None


def test_what_needs_no_converter_has_none() -> None:
    for kind in ("long", "double", "string", "boolean", "decimal(10,2)", array("long")):
        assert leaving(kind) is None and arriving(kind) is None
    assert leaving("timestamp") is None and leaving(array("date")) is None, "Java makes ints of them"
    made = leaving(struct(a="long"))
    assert made is not None and made({"a": 1}) == made((1,)) == (1,)
    assert arriving(struct(a="long")) is None and arriving(mapping("string", "long")) is None


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("interval day to second", "interval day to second"),
        (array(struct(a="long", b="variant")), "variant"),
        (mapping("string", "calendar_interval"), "calendar_interval"),
        ({"type": "udt", "class": "x"}, {"type": "udt", "class": "x"}),
        (mapping(array("long"), "long"), mapping(array("long"), "long")),
        (mapping("long", array("decimal(3,1)")), None),
        ("varchar(5)", None),
    ],
)
def test_what_cannot_travel_is_found_wherever_it_is(kind: Any, found: Any) -> None:
    assert stranger(kind) == found
