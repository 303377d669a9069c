"""A copy equals its original and shares no changeable part with it."""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from gc import get_referents
from threading import Lock
from types import FunctionType
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow import Move
from megaflow.timely.dataflow.record_copies import copies_of

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.binary(max_size=3))
plain = st.recursive(
    scalars,
    lambda part: st.one_of(
        st.lists(part, max_size=3), st.dictionaries(st.text(max_size=2), part, max_size=3), st.tuples(part, part),
        st.frozensets(scalars, max_size=2), st.sets(scalars, max_size=2),
    ),
    max_leaves=8,
)  # fmt: skip


class Colour(Enum):
    RED = "red"


class Pair(NamedTuple):
    key: str
    value: Any


class Tagged(tuple[Any, ...]):
    """Has more than its items."""


@dataclass
class Order:
    items: list[int]


@dataclass(frozen=True)
class Point:
    x: int
    tags: Any = None
    near: Any = field(default=None, compare=False)


class Shared:
    """Copies return the same object, so all consumers share it."""

    def __deepcopy__(self, memo: Any) -> "Shared":
        return self


def changeable(value: Any) -> dict[int, Any]:
    """Return all changeable objects in a value, by id."""
    found: dict[int, Any] = {}
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, type | FunctionType | Enum | Shared) or id(part) in found:
            continue
        if type(part).__hash__ is None or hasattr(part, "__dict__"):
            found[id(part)] = part
        if not isinstance(part, Order | Point | Tagged):
            left += get_referents(part)
        else:
            left += [vars(part), *(part if isinstance(part, tuple) else ())]
    return found


@given(batch=st.lists(plain, min_size=1, max_size=6))
def test_copies_are_equal_and_apart(batch: list[Any]) -> None:
    copies = copies_of(batch)
    assert list(map(repr, copies)) == list(map(repr, batch))
    assert not changeable(copies).keys() & changeable(batch).keys() - {id(batch)}


@pytest.mark.parametrize(
    "record",
    [
        Order([1]), [Order([1])], Pair("a", [1]), Pair("a", {}), Point(1, [2]), Point(1, (Order([1]), 2)),
        bytearray(b"a"),
        {"a": {"b": [{1}]}}, ({"a": 1},), (((1, [2]),),), {1: Decimal(1), 2: [Decimal(2)]}, {Point(1)},
    ],
    ids=lambda record: type(record).__name__,
)  # fmt: skip
def test_what_can_change_is_copied(record: Any) -> None:
    [copy] = copies_of([record])
    assert copy == record and copy is not record and type(copy) is type(record)
    assert not changeable(copy).keys() & changeable(record).keys()


@pytest.mark.parametrize(
    "record",
    [
        "a", 1, 1.5, None, True, b"a", Decimal(1), date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC), UUID(int=1),
        ("a", 1), (("a", (1, None)), 2), Pair("a", 1), Point(1), Point(1, "x"), frozenset([1, "a"]), Shared(), len,
        Pair, Colour.RED,
        (Shared(), Colour.RED), Move([1], 2),
    ],
    ids=lambda record: type(record).__name__,
)  # fmt: skip
def test_what_cannot_change_stays_the_same(record: Any) -> None:
    assert copies_of([record])[0] is record


@pytest.mark.parametrize("batch", [["a"] * 9, [1, 2], [("a", 1), ("b", 2)], [("a", None, 1.5)]])
def test_a_batch_that_cannot_change_stays_the_same(batch: list[Any]) -> None:
    assert copies_of(batch) is batch


def test_a_tuple_with_more_than_its_items_is_copied() -> None:
    tagged = Tagged([1])
    tagged.tags = [1]  # type: ignore[attr-defined]
    [copy] = copies_of([tagged])
    assert copy == tagged and copy.tags == [1] and copy.tags is not tagged.tags  # type: ignore[attr-defined]


def test_what_is_shared_within_a_batch_is_shared_in_the_copies() -> None:
    part = {"n": [1]}
    first, second, (third, fourth), order = copies_of([part, {"part": part}, (part, part), Pair("a", part)])
    assert first is second["part"] is third is fourth is order.value and first == part and first is not part


def test_what_contains_itself_is_copied() -> None:
    record: list[Any] = [1]
    record.append({"me": record, "us": (record,)})
    [copy] = copies_of([record])
    assert copy is not record and copy[1]["me"] is copy and copy[1]["us"][0] is copy


def test_what_cannot_be_copied_raises() -> None:
    with pytest.raises(TypeError):
        copies_of([{"a": Lock()}])
