"""Keys, states and timers of changed classes are found before a job begins, which is refused with a remedy."""

import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from megaflow.durable.blocks import Block, BlockKind, pack, pack_timers
from megaflow.durable.commits import OperatorCut
from megaflow.durable.recovery import check_readable
from megaflow.durable.restored import StateDescriptor, Terms
from megaflow.errors import StoreError

CUT = OperatorCut("count", "", (3, 3))


@pytest.fixture
def classes() -> Iterator[types.ModuleType]:
    """The program's module, with a class that exists while blocks are made."""

    @dataclass(frozen=True)
    class Item:
        name: str

    class Colour(Enum):
        RED = 1

    module = types.ModuleType("changing")
    for each in (Item, Colour):
        each.__module__, each.__qualname__ = "changing", each.__name__
        setattr(module, each.__name__, each)
    sys.modules["changing"] = module
    yield module
    del sys.modules["changing"]


def bin_of(key: Any) -> int:
    return 0


def check(*blocks: Block, version: int = 1) -> None:
    terms = Terms(version, lambda key, state, version: state)
    descriptor = StateDescriptor("count", 2, lambda bins, hash: bin_of, terms)
    check_readable(blocks, descriptor, CUT, bin_of)


def states(*values: Any) -> Block:
    return pack(BlockKind.BIN, "count", 0, [str(n) for n, _ in enumerate(values)], values)


def test_what_can_be_read_is_accepted(classes: Any) -> None:
    check(states(1, {"a": classes.Item("x")}), states(*[classes.Item("x")] * 9), states(classes.Colour.RED))


def test_each_changed_class_is_refused_and_says_what_to_do(classes: Any) -> None:
    blocks = states(1, 2), states([classes.Item("x")]), states(classes.Colour.RED, None)
    del classes.Item
    with pytest.raises(StoreError, match=r"the states of operator 'count' .*changing\.Item.*version=2 and upgrade="):
        check(*blocks)
    check(*blocks, version=2)


def test_a_missing_member_is_refused_even_if_others_are_there(classes: Any) -> None:
    blocks = [states(classes.Colour.RED)]
    classes.Colour = Enum("Colour", {"BLUE": 1}, module="changing")
    blocks.insert(0, states(classes.Colour.BLUE))
    with pytest.raises(StoreError, match="has no member 'RED'"):
        check(*blocks)


def test_keys_and_timers_pass_no_upgrade(classes: Any) -> None:
    keys = pack(BlockKind.DELTA, "count", None, [classes.Item("x")], [1])
    timers = pack_timers("count", None, [(9, "a", classes.Item("x"))])
    del classes.Item
    for block, what in ((keys, "keys"), (timers, "timers")):
        with pytest.raises(StoreError, match=f"the {what} of operator 'count'.*--drop-state count") as refused:
            check(block, version=2)
        assert "upgrade=" not in str(refused.value)


def test_each_key_of_a_class_is_to_be_in_its_bin(classes: Any) -> None:
    block = pack(BlockKind.BIN, "count", 1, [classes.Item("x")], [1])
    with pytest.raises(StoreError, match=r"now it belongs to bin 0: if the fields of class Item or"):
        check(block)
