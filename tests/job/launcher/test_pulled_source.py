"""A job pulls from iterables and queues. None of them delays a stop."""

import itertools
import multiprocessing
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from megaflow.errors import CannotTravel, UsageError
from megaflow.job.launcher.inputs.launcher_input import JobInput, find_input
from megaflow.job.launcher.inputs.pulled_source import PulledLines, packed
from megaflow.timely.communication.codec.decode import decode
from tests.bench import WAIT_SECONDS
from tests.job.launcher.reading import ItemsBench


def test_items_are_what_they_were_when_they_were_given() -> None:
    def reused() -> Iterator[dict[str, int]]:
        row: dict[str, int] = {}
        for number in range(500):
            row["n"] = number
            yield row

    with closing(ItemsBench(reused())) as pulling:
        assert pulling.take_all() == [{"n": number} for number in range(500)]


def test_what_cannot_travel_is_refused_with_the_item() -> None:
    with closing(ItemsBench([1, lambda: 2])) as pulling:
        assert pulling.take() == [1]
        with pytest.raises(CannotTravel, match=r"^Cannot send an item of items= to a worker: .*function.*<lambda>"):
            pulling.take()
    assert decode(packed(("a", None))) == ("a", None)


def feeds(put: Callable[[Any], None], count: int) -> None:
    for number in range(count):
        put(number)


@pytest.mark.parametrize("make", [queue.Queue, queue.SimpleQueue, multiprocessing.Queue])
def test_a_queue_is_read_as_it_is_fed_and_keeps_what_nobody_waits_for(make: Callable[[], Any]) -> None:
    source = make()
    with closing(ItemsBench(source)) as pulling:
        for number in range(100):
            source.put(number)
        assert pulling.take_until(100) == [*range(100)]
        pulling.reader.end()
        pulling.join()
        source.put("late")
        assert pulling.take() is None
        assert source.get(timeout=WAIT_SECONDS) == "late"


def test_a_queue_ends_when_it_is_shut_down() -> None:
    class ShutDown(Exception):
        """The class as in Python 3.13."""

    class Closing(queue.Queue[int]):
        def get(self, block: bool = True, timeout: float | None = None) -> int:
            if self.empty():
                raise ShutDown
            return super().get(block, timeout)

    source = Closing()
    source.put(1)
    with closing(ItemsBench(source)) as pulling:
        assert pulling.take_all() == [1]


def test_what_was_pulled_when_the_end_came_is_taken_and_no_more_is_pulled() -> None:
    pulled: list[int] = []

    def numbers() -> Iterator[int]:
        for number in itertools.count():
            pulled.append(number)
            yield number

    source = numbers()
    with closing(ItemsBench(source)) as pulling:
        found = pulling.take_until(1)
        pulling.reader.end()
        found += pulling.take_all()
    assert found == pulled and next(source) == len(found)


def test_a_generator_that_blocks_does_not_hold_up_an_end() -> None:
    go_on = threading.Event()

    def blocking() -> Iterator[int]:
        yield 1
        assert go_on.wait(WAIT_SECONDS)
        yield 2

    pulling = ItemsBench(blocking())
    assert pulling.take() == [1]
    pulling.reader.end()
    assert pulling.reader.take() == ([], 0)
    pulling.close()
    assert pulling.is_running()
    go_on.set()
    pulling.join()


def test_inputs_of_items_have_names_beside_those_of_lines(tmp_path: Any) -> None:
    path = tmp_path / "orders"
    path.write_text("a\n")
    alone = find_input(None, 1, "replace", items=[1])
    assert (alone.names.lines, alone.names.items, [*alone.pushed]) == (("items",), ("items",), ["items"])
    both = find_input({"orders": str(path)}, 1, "replace", items={"clicks": [1], "prices": queue.Queue()})
    assert (both.names.lines, both.names.items) == (("clicks", "orders", "prices"), ("clicks", "prices"))
    assert [split.input for split in both.splits] == ["orders"] and [*both.pushed] == ["clicks", "prices"]
    assert isinstance(find_input(queue.Queue(), 1, "replace").pushed[""], PulledLines)
    assert JobInput().names.items == ()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"items": {}}, "items is an empty dict"),
        ({"items": "abc"}, r"items must be an iterable, .* not 'abc' \(str\)\. .*items=\['abc'\].* lines="),
        ({"items": b"abc"}, r"not b'abc' \(bytes\)\. To send it as one item, give a list: items=\[b'abc'\]"),
        ({"items": {"user": "ada"}}, r"not 'ada' \(str\)\. To send a dict as an item, give a list of dicts\."),
        ({"items": 5}, r"not 5 \(int\)"),
        ({"items": {"a-b": [1]}}, r"items: 'a-b' must be a name, as in flow.items\('clicks'\)"),
        ({"items": {"a": {"b": 1}}}, r"not \{'b': 1\} \(dict\)\. To send a dict as an item, give a list of dicts"),
        ({"items": {"a": [1]}, "lines": {"a": ["x"]}}, "lines and items both have the name 'a'"),
        ({"items": [1], "lines": ["x"]}, "To combine lines with items, give the lines names"),
        ({"items": [1], "rows": {"a": 1}}, "rows and items cannot be combined"),
    ],
)
def test_items_that_cannot_be_read_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        find_input(given.pop("lines", None), 1, "replace", **given)
