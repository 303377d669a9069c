"""The keys of a changed program are compared with those in a store by their kind."""

from decimal import Decimal
from enum import Enum
from typing import NamedTuple

import pytest

from megaflow.durable.blocks import BlockKind, pack, pack_timers
from megaflow.durable.key_kinds import KeyKinds, kinds_in, kinds_of
from megaflow.errors import ProgramError


class Point(NamedTuple):
    x: int
    y: int


class Size(str, Enum):  # noqa: UP042 (StrEnum is not in Python 3.10)
    L = "large"


@pytest.mark.parametrize(
    "one, other",
    [(1, 2.5), (True, Decimal(1)), ("a", Size.L), (Point(1, 2), (3.0, 4)), ((), ()), (b"", b"x"), (None, None)],
)
def test_keys_that_may_be_equal_are_of_one_kind(one: object, other: object) -> None:
    assert kinds_of([one]) == kinds_of([other])


@pytest.mark.parametrize("one, other", [("1", 1), ("a", ("a",)), (("a", 1), ("a", "1")), ("a", b"a"), (None, 0)])
def test_keys_that_cannot_be_equal_are_of_two_kinds(one: object, other: object) -> None:
    assert kinds_of([one]).isdisjoint(kinds_of([other]))


@pytest.mark.parametrize("keys", [["a", "b", "c", "d"], ["a"], [1, "a", 2, 3], [], [("a", 1)] * 5, [7] * 9])
def test_a_block_tells_the_kinds_of_its_keys(keys: list[object]) -> None:
    assert kinds_in(pack(BlockKind.DELTA, "count", None, keys, [0] * len(keys))) == kinds_of(keys)


def test_keys_of_timers_do_not_count() -> None:
    assert kinds_in(pack_timers("count", None, [(7, "a", None)])) == frozenset()


def test_one_key_of_a_kept_kind_is_enough() -> None:
    kinds = KeyKinds("count", frozenset(("str", "number")))
    kinds.check()
    assert not kinds.note([(("a", 1), "value")])
    with pytest.raises(ProgramError, match=r"'count' in the store are of type number or str, .* of type \(str, number"):
        kinds.check()
    assert kinds.note([(("b", 1), 0), (7, 0)])
    kinds.check()
