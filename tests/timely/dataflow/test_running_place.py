"""The place where a thread runs, as another thread sees it: the user's line, the operator, the record. No user code
runs.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from megaflow.program import execute
from megaflow.timely.dataflow.running_place import TEXT_MAX, RunningPlace, place_of, shown_plainly
from megaflow.timely.runtime import Config

WAIT_SECONDS = 90.0


class Held:
    """User code that waits until it is released."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self.go_on = threading.Event()
        self.thread = 0

    def wait(self) -> None:
        self.thread = threading.get_ident()
        self.there.set()
        self.go_on.wait(WAIT_SECONDS)

    def fold(self, key: Any, value: Any, state: Any) -> tuple[Any, list[Any]]:
        if value == "slow":
            self.wait()
        return (state or 0) + 1, []

    def mapped(self, record: Any) -> Any:
        return record if self.fold(record, record, None) else None


LINE = Held.fold.__code__.co_firstlineno + 2  # the line of its call of `wait`


@contextmanager
def running(build: Callable[[Any, Held], Any], *records: Any) -> Iterator[RunningPlace | None]:
    held = Held()

    def main(worker: Any) -> None:
        with worker.dataflow("words") as scope:
            input, stream = scope.new_input()
            build(stream, held)
        for record in records:
            input.send(record)
        input.close()

    thread = threading.Thread(target=lambda: execute(Config.thread(), main))
    thread.start()
    try:
        assert held.there.wait(WAIT_SECONDS)
        yield place_of(sys._current_frames()[held.thread])
    finally:
        held.go_on.set()
        thread.join(WAIT_SECONDS)


def below(place: RunningPlace | None) -> tuple[str | None, str | None]:
    assert place is not None
    return place.operator, place.record


def test_a_fold_is_found_with_its_record() -> None:
    with running(
        lambda stream, held: stream.stateful_state_machine(held.fold, name="count"), ("a", "quick"), ("b", "slow")
    ) as place:
        assert below(place) == ("count", "('b', 'slow')")
        assert place is not None
        assert (place.function, place.where) == ("wait", f"test_running_place.py:{Held.wait.__code__.co_firstlineno+3}")


@pytest.mark.parametrize("operators", [1, 2])
def test_a_mapped_record_is_found_alone_and_among_fused_operators(operators: int) -> None:
    def build(stream: Any, held: Held) -> None:
        for _ in range(operators - 1):
            stream = stream.map(str.strip)
        stream.map(held.mapped)

    with running(build, "quick", "slow", "late") as place:
        assert below(place)[1] == "'slow'"
        assert below(place)[0] is not None


def test_a_record_of_the_user_s_own_class_shows_its_type_only() -> None:
    with running(lambda stream, held: stream.map(held.mapped), Hostile()) as place:
        assert below(place)[1] == "<Hostile>"


class Hostile:
    """Would hang any thread that compares it."""

    def __eq__(self, other: object) -> bool:
        return other == "slow"

    def __hash__(self) -> int:
        raise AssertionError

    def __repr__(self) -> str:
        time.sleep(WAIT_SECONDS)
        raise AssertionError

    __str__ = __repr__


def test_a_thread_that_waits_for_something_to_do_is_nowhere() -> None:
    indices: list[int] = []

    def main(worker: Any) -> None:
        with worker.dataflow("idle") as scope:
            input, _ = scope.new_input()
        indices.append(threading.get_ident())
        worker.step_while(lambda: not done.is_set())
        input.close()

    done = threading.Event()
    thread = threading.Thread(target=lambda: execute(Config.thread(), main))
    thread.start()
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:  # it waits most of the time
            frame = sys._current_frames().get(indices[0]) if indices else None
            if frame is not None and place_of(frame) is None:
                break
        else:
            raise AssertionError("it was never seen to wait")
    finally:
        done.set()
        thread.join(WAIT_SECONDS)


def test_the_library_s_frames_are_passed_over() -> None:
    held = Held()
    thread = threading.Thread(target=lambda: sorted([2, 1], key=lambda record: held.wait() or record))
    thread.start()
    try:
        assert held.there.wait(WAIT_SECONDS)
        place = place_of(sys._current_frames()[thread.ident or 0])
        assert place is not None and place.function == "wait"  # not the `wait` of `Event`, inside which it is
    finally:
        held.go_on.set()
        thread.join(WAIT_SECONDS)


class Meta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise AssertionError


class Odd(metaclass=Meta):
    pass


class Text(str):
    def __getitem__(self, key: object) -> str:
        raise AssertionError


SHOWN: list[tuple[object, str]] = [
    (1, "1"),
    (True, "True"),
    ({"a": {"b": [1]}}, "{'a': {'b': [1]}}"),
    ([[[[1]]]], "[[[<list>]]]"),
    ((), "()"),
    (set(), "set()"),
    (frozenset([1]), "{1}"),
    (list(range(100)), "[0, 1, 2, 3, 4, 5, …]"),
    (10**5000, "<int>"),
    (Hostile(), "<Hostile>"),
    ([Hostile()], "[<Hostile>]"),
    (Odd(), "<Odd>"),
    (Text("x"), "<Text>"),
    ("\udc80", "'\\udc80'"),
]


@pytest.mark.parametrize(("value", "shown"), SHOWN, ids=[shown for _, shown in SHOWN])
def test_a_value_shows_without_any_code_of_the_user_s(value: object, shown: str) -> None:
    assert shown_plainly(value) == shown


def test_what_is_shown_is_short() -> None:
    long: Any = "x" * 10_000_000
    assert max(len(shown_plainly(each)) for each in (long, [long] * 9, {long: long}, (long, (long,)))) <= TEXT_MAX


def test_the_command_that_began_a_process_is_not_where_it_is() -> None:
    names: dict[str, Any] = {"place_of": place_of, "sys": sys}
    code = "def own(): return place_of(sys._getframe())\nfound = [place_of(sys._getframe()), own()]"
    line = f"import sys; from megaflow.timely.dataflow.running_place import place_of\n{code}\nprint(found)"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    exec(compile(code, "app.py", "exec"), names)
    assert eval(done.stdout) == [RunningPlace(), RunningPlace("own", "<string>:2")]
    assert names["found"] == [RunningPlace("<module>", "app.py:2"), RunningPlace("own", "app.py:1")]
