"""Pushed lines come in order, each with its partition. Partitions without lines are known."""

import pytest

from megaflow.errors import SourceError
from megaflow.job.worker.reading.pushed_lines import PushedLines
from megaflow.timely.communication.codec.encode import encode


def test_lines_and_items_come_in_their_order_with_their_partitions() -> None:
    pushed = PushedLines()
    pushed.add(["a", "b"], "")
    pushed.add([encode(1), encode((2, "x"))], "clicks")
    assert pushed
    assert pushed.take("") == (("pushed", ""), ["a", "b"])
    assert pushed.take("clicks") == (("items", "clicks"), [1, (2, "x")])
    assert not pushed


def test_an_item_that_cannot_be_read_is_an_error_of_its_input() -> None:
    pushed = PushedLines()
    pushed.add([b"\xc1"], "clicks")
    with pytest.raises(SourceError, match="'clicks'"):
        pushed.take("clicks")


def test_what_was_not_pushed_and_what_is_taken_is_empty_since_that_was_asked_first() -> None:
    pushed = PushedLines()
    pushed.partitions = ("pushed", "a"), ("pushed", "b")
    pushed.add(["x"], "a")
    assert [*pushed.empty(1.0, None)] == [(("pushed", "b"), 1.0)]
    partition = ("pushed", "a")
    assert pushed.take("a") == (partition, ["x"])
    assert [*pushed.empty(2.0, partition)] == [(("pushed", "b"), 1.0)], "some of it is still to be read"
    assert [*pushed.empty(3.0, None)] == [(("pushed", "a"), 3.0), (("pushed", "b"), 1.0)]
    pushed.add(["y"], "b")
    pushed.take("b")
    assert [*pushed.empty(4.0, None)] == [(("pushed", "a"), 3.0), (("pushed", "b"), 4.0)]


def test_nothing_is_empty_while_lines_are_held() -> None:
    pushed = PushedLines()
    pushed.partitions = ("pushed", "a"), ("pushed", "b")
    pushed.add(["x"], "a")
    assert [*pushed.empty(1.0)] == [(("pushed", "b"), 1.0)]
    assert [*pushed.empty(9.0, is_held=True)] == [], "more of b may wait at the launcher"
    assert [*pushed.empty(10.0)] == [(("pushed", "b"), 10.0)], "the time before does not count"
