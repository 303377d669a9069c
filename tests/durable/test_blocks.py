"""Blocks are columns of keys and states, each encoded by itself."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.durable.blocks import KEYS_PER_BLOCK, BlockKind, keys_of, pack, pack_timers, states_of
from megaflow.errors import ProtocolError
from megaflow.timely.communication.codec.encode import encode

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@dataclass(frozen=True)
class Visit:
    page: str
    seconds: float


@given(st.lists(st.tuples(st.integers() | st.text(), VALUES), max_size=20))
def test_a_block_gives_back_its_keys_and_states(pairs: list[tuple[Any, Any]]) -> None:
    made = pack(BlockKind.DELTA, "count", None, [key for key, _ in pairs], [state for _, state in pairs])
    assert list(zip(keys_of(made), states_of(made), strict=True)) == pairs
    assert made.count == len(pairs)


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.text(), VALUES), max_size=20))
def test_a_block_of_timers_gives_them_back_in_order(set_: list[tuple[int, Any, Any]]) -> None:
    made = pack_timers("sessions", 3, set_)
    timers = [(time, key, payload) for key, (time, payload) in zip(keys_of(made), states_of(made), strict=True)]
    assert (made.kind, made.bin, timers) == (BlockKind.TIMERS, 3, set_)


def test_keys_are_read_without_the_states() -> None:
    made = pack(BlockKind.BIN, "count", 5, ["a", "b"], [1, 2])
    assert keys_of(replace(made, states=b"\xc1 no value")) == ["a", "b"]


def test_states_may_be_of_the_programs_own_classes() -> None:
    visits = [Visit("/", 0.5), Visit("/help", 2.0)]
    assert states_of(pack(BlockKind.DELTA, "visits", None, [1, 2], visits)) == visits


def test_an_object_that_a_state_refers_to_twice_stays_one() -> None:
    inner = [1]
    (state,) = states_of(pack(BlockKind.DELTA, "count", None, ["a"], [{"x": inner, "y": inner}]))
    assert state["x"] is state["y"]


@pytest.mark.parametrize("column", [encode(["a"]), encode(["a", "b", "c"]), encode("ab"), b"\xc1"])
def test_a_column_that_is_none_of_its_length_is_refused(column: bytes) -> None:
    made = pack(BlockKind.DELTA, "count", None, ["a", "b"], [1, 2])
    with pytest.raises(ProtocolError):
        keys_of(replace(made, keys=column))


def test_a_block_is_bounded() -> None:
    with pytest.raises(AssertionError):
        pack(BlockKind.DELTA, "count", None, list(range(KEYS_PER_BLOCK + 1)), [0] * (KEYS_PER_BLOCK + 1))
