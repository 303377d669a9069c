"""Columns of times, decimals and UUIDs travel as plain values, with the same result as one by one."""

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from megaflow.errors import ProtocolError
from megaflow.timely.communication.codec import tags
from megaflow.timely.communication.codec.class_names import shapes_in, unknown_in
from megaflow.timely.communication.codec.decode import decode, unpack
from megaflow.timely.communication.codec.encode import encode, register
from megaflow.timely.communication.codec.lowering import forget, lower
from tests.timely.communication.codec.test_round_trip import Loose, Point, same, zones

ZURICH = ZoneInfo("Europe/Zurich")
REPEATED = datetime(2026, 10, 25, 2, 30, tzinfo=ZURICH)  # the clocks are set back at three
SHAPES: list[Callable[[Any], Any]] = [
    lambda a: (1, a), lambda a: {"at": a}, lambda a: Point(1, a), lambda a: Loose(a, "b"), lambda a: [a, "b"],
]  # fmt: skip
of_one_zone = zones.flatmap(lambda zone: st.lists(st.datetimes(timezones=st.just(zone), allow_imaginary=True)))
columns = st.one_of(
    of_one_zone,
    st.lists(st.datetimes(timezones=zones)),
    st.lists(st.dates()),
    st.lists(st.timedeltas()),
    st.lists(st.decimals(allow_nan=True).filter(lambda number: not number.is_snan())),
    st.lists(st.uuids()),
    st.lists(st.dates() | st.datetimes()),
)


@given(columns, st.sets(st.integers(0, 9)), st.sampled_from(SHAPES), st.booleans())
@example([REPEATED, REPEATED.replace(fold=1)] * 2, set(), SHAPES[0], False)
@example([datetime.min, datetime.max] * 2, {0}, SHAPES[0], False)
@example([timedelta.min, timedelta.max] * 2, {0}, SHAPES[1], True)
@example([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=ZURICH)] * 2, set(), SHAPES[0], False)
def test_a_column_arrives_as_it_was(values: list[Any], nones: set[int], shape: Callable[[Any], Any], one: bool) -> None:
    rows = [shape(None if place in nones else value) for place, value in enumerate(values)]
    assert same(decode(encode(rows, shared=one), shared=one), rows)


@pytest.mark.parametrize(
    "value",
    [date(2026, 3, 1), datetime(2026, 3, 1, 9, 30), datetime(2026, 3, 1, tzinfo=UTC), REPEATED, timedelta(1, 2, 3),
     Decimal("1.10"), uuid.UUID(int=7)],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("with_nones", [False, True])
def test_a_column_has_no_node_for_each_value(value: Any, with_nones: bool) -> None:
    rows = [(place, value) for place in range(50)]
    if with_nones:
        rows[7] = 7, None
    node = lower(rows)[1][1]
    assert node[0] == tags.PLAIN_COLUMN
    assert all(type(part) is not list for part in node[2][1])


def test_each_value_of_a_column_has_the_zone_itself() -> None:
    arrived = decode(encode([(at, at) for at in [REPEATED] * 5]))
    assert {id(at.tzinfo) for row in arrived for at in row} == {id(ZURICH)}
    assert arrived[0][0].utcoffset() == timedelta(hours=2)


class Noisy(tzinfo):
    """Zone whose methods must not run while a value travels."""

    def utcoffset(self, when: datetime | None) -> timedelta:
        raise AssertionError("it was asked")


@pytest.fixture(autouse=True)
def noisy_travels() -> Iterator[None]:
    register(Noisy, lambda zone: None, lambda nothing: Noisy())
    yield
    forget(lambda cls: cls is Noisy)


def test_no_method_of_a_zone_runs() -> None:
    zone = Noisy()
    rows = [(datetime(2026, 1, 1, tzinfo=zone),)] * 5
    assert decode(encode(rows))[0][0].replace(tzinfo=None) == datetime(2026, 1, 1)


def test_several_zones_travel_one_by_one() -> None:
    rows = [(datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=hours))),) for hours in range(5)]
    assert lower(rows)[1][0][0] == tags.LIST
    assert same(decode(encode(rows)), rows)


def test_a_value_by_itself_keeps_its_bytes() -> None:
    day = date(2026, 3, 1)
    assert lower((day,) * 5) == [tags.TUPLE, [tags.LIST, [[tags.DATE, day.toordinal()]] * 5]]


def test_bytes_of_earlier_versions_are_read() -> None:
    day = date(2026, 3, 1)
    node = [tags.LIST, [[tags.DATE, day.toordinal()]] * 5]
    assert decode(msgpack.packb([tags.COLUMNS, [[tags.LIST, [*range(5)]], node]])) == [(at, day) for at in range(5)]


def test_the_class_of_a_zone_is_found() -> None:
    encoded = encode([(datetime(2026, 1, 1, tzinfo=Noisy()),)] * 5)
    assert {each[1].rpartition(".")[2] for each in shapes_in(encoded)} == {"Noisy"} and unknown_in(encoded) == []
    assert unpack(encoded)[1][0][0] == tags.PLAIN_COLUMN


@pytest.mark.parametrize(
    "node",
    [
        [tags.PLAIN_COLUMN, tags.DATE, [tags.LIST, [1, True]], None],
        [tags.PLAIN_COLUMN, tags.DATE, [tags.LIST, [0]], None],
        [tags.PLAIN_COLUMN, tags.DATE, [tags.LIST, ["1"]], None],
        [tags.PLAIN_COLUMN, tags.DATE, 1, None],
        [tags.PLAIN_COLUMN, tags.DATE, [tags.LIST, [1]]],
        [tags.PLAIN_COLUMN, tags.DATETIME, [tags.LIST, [2**62]], None],
        [tags.PLAIN_COLUMN, tags.DATETIME, [tags.LIST, [1.5]], None],
        [tags.PLAIN_COLUMN, tags.DATETIME, [tags.LIST, [1]], "Europe/Zurich"],
        [tags.PLAIN_COLUMN, tags.TIMEDELTA, [tags.LIST, [[tags.BIG_INT, b"\1" * 99]]], None],
        [tags.PLAIN_COLUMN, tags.DECIMAL, [tags.LIST, [1]], None],
        [tags.PLAIN_COLUMN, tags.DECIMAL, [tags.STRS, b"one"], None],
        [tags.PLAIN_COLUMN, tags.UUID, [tags.LIST, [b"short"]], None],
        [tags.PLAIN_COLUMN, tags.TIME, [tags.LIST, [1]], None],
        [tags.PLAIN_COLUMN, [tags.LIST, []], [tags.LIST, [1]], None],
    ],
    ids=str,
)
def test_a_column_that_encode_does_not_make_is_refused(node: Any) -> None:
    with pytest.raises(ProtocolError):
        decode(msgpack.packb(node))
