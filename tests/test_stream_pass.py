"""Methods that pass records on return streams of the same class and type."""

from typing import Any, assert_type

import pytest

from megaflow import EventStream, Stream
from megaflow.errors import BuildError
from megaflow.scope import Scope
from megaflow.timely import example


def test_streams_keep_their_type() -> None:
    def build(scope: Scope) -> Any:
        numbers = scope.to_stream(range(6))
        even = numbers.filter(lambda number: number % 2 == 0)
        assert_type(even, Stream[int])
        low, high = even.branch(lambda time, number: number > 2)
        assert_type(low, Stream[int])
        both = low.concat(high).exchange(int)
        assert_type(both.map(str), Stream[str])
        assert {type(each) for each in (even, low, high, both)} == {Stream}
        return both.map(str).capture()

    assert example(build) == [(0, ["0", "2", "4"])]


def test_timestamps_stay_only_where_they_are_promised() -> None:
    def build(scope: Scope) -> Any:
        timed = scope.to_stream([1, 2]).event_time(float)
        kept = timed.filter(bool)
        assert_type(kept, EventStream[int])
        plain = timed.inspect_batch(lambda time, batch: None)
        assert_type(plain, Stream[int])
        assert (type(kept), type(plain)) == (EventStream, Stream)
        with pytest.raises(BuildError, match="no timestamps"):
            plain.window(None)
        return plain.capture()

    assert example(build) == [(0, [1, 2])]


@pytest.mark.parametrize("wrong", [None, [1], "a"])
def test_only_streams_are_put_together(wrong: Any) -> None:
    def build(scope: Scope) -> Any:
        return scope.to_stream([1]).concat(wrong).capture()

    with pytest.raises(BuildError, match="concat"):
        example(build)
