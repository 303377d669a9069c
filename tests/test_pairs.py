"""Columns of pairs read like a list of pairs, and travel."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import ProtocolError
from megaflow.pairs import Pairs
from megaflow.timely.communication import lowering
from megaflow.timely.communication.codec import decode, encode

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=9), st.floats(allow_nan=False))
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.tuples(scalars), st.dictionaries(st.text(), scalars))


@given(content=st.lists(st.tuples(scalars, values), max_size=12), start=st.integers(-13, 13), step=st.integers(1, 4))
def test_columns_read_like_the_list_of_pairs_that_they_are(content: list[Any], start: int, step: int) -> None:
    pairs = Pairs([key for key, _ in content], [value for _, value in content])
    assert list(pairs) == content and len(pairs) == len(content) and bool(pairs) == bool(content)
    assert pairs[start::step] == content[start::step]
    assert [pairs[index] for index in range(len(content))] == content


@given(content=st.lists(st.tuples(scalars, values), max_size=12))
def test_columns_arrive_as_they_were_sent(content: list[Any]) -> None:
    arrived = decode(encode((3, Pairs([key for key, _ in content], [value for _, value in content]))))[1]
    assert type(arrived) is Pairs
    assert [*map(repr, arrived)] == [*map(repr, content)], "types included: True is not 1"


@pytest.mark.parametrize("columns", [[["a"], []], [["a"], ["b"], ["c"]], [("a",), ["b"]], ["a", "b"], 7, None, {}])
def test_columns_that_are_not_two_lists_of_one_length_are_refused(columns: Any) -> None:
    tag, name, _ = lowering.lower(Pairs([], []))
    with pytest.raises(ProtocolError, match="columns of pairs"):
        decode(msgpack.packb([tag, name, lowering.lower(columns)]))
