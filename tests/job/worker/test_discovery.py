"""Discovery asks sources for partitions at the start and at their interval, without delaying the worker."""

from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from threading import Event
from typing import Any

import pytest

from megaflow.connect import Found
from megaflow.control.coordinator.base.events import Discovered
from megaflow.control.coordinator.base.job_state import TimedOperator
from megaflow.errors import CannotTravel, SourceError
from megaflow.job.worker.process.discovery import Discovery, in_a_thread
from megaflow.megaphone.base.event_unit import EventUnit
from megaflow.timely.communication.codec.encode import encode


class Shelves:
    """A source that answers `discover` with each given answer in turn."""

    def __init__(self, *answers: Any) -> None:
        self.answers = [*answers]

    def discover(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def open(self, partition: Any, position: Any) -> Any:
        raise AssertionError("it is not opened here")


def at_once(task: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(task())
    except Exception as error:
        future.set_exception(error)
    return future


def test_each_is_asked_as_often_as_it_says_until_no_more_will_come() -> None:
    sources = {"all": Shelves(iter(["x"])), "some": Shelves(Found(["a"], 5.0), Found(["a", "b"], 0.5), Found([]))}
    discovery = Discovery(sources, [], at_once)
    assert discovery.turn(1.0) == [
        Discovered("all", (encode("x"),), True), Discovered("some", (encode("a"),), False),
    ]  # fmt: skip
    assert discovery.due_in(2.0) == 4.0 and discovery.turn(5.9) == []
    assert discovery.turn(6.0) == [Discovered("some", (encode("a"), encode("b")), False)]
    assert discovery.turn(6.5) == [Discovered("some", (), True)] and discovery.due_in(7.0) is None


class Ranges(Shelves):
    """A source that returns its previous partitions."""

    def recall(self, partitions: Any) -> None:
        if "broken" in partitions:
            raise ValueError("of another source")
        self.answers = [[*partitions] or ["new"]]


def test_source_recalls_its_partitions_before_it_is_asked() -> None:
    for known in ([], ["a", "b"]):
        before = [*(("some", encode(each)) for each in known), ("other", encode("c"))]
        [found] = Discovery({"some": Ranges()}, before, at_once).turn(0.0)
        assert found.partitions == tuple(map(encode, known or ["new"]))
    with pytest.raises(ValueError, match="of another source") as caught:
        Discovery({"some": Ranges()}, [("some", encode("broken"))], at_once)
    assert caught.value.__notes__ == ["in source 'some', in recall()"]


def test_equal_partitions_are_one_also_after_a_resume() -> None:
    one, other = frozenset({"b", "a"}), 1.0
    known = [("some", encode(frozenset({"a", "b"}))), ("some", encode(1)), ("of another program's", encode("x"))]
    [found] = Discovery({"some": Shelves([one, other, "new"])}, known, at_once).turn(0.0)
    assert found.partitions == (known[0][1], known[1][1], encode("new"))


def test_how_a_partition_is_encoded_is_forgotten_with_it_only() -> None:
    shelves = Shelves(*(Found([each], 0.0, complete=True) for each in (1, 2, 1.0, 1.0)))
    discovery, known = Discovery({"some": shelves}, [], at_once), {encode(1), encode(2)}
    found = [discovery.turn(now, lambda name, partition: (name, partition) in {("some", each) for each in known})
             for now in range(3)]  # fmt: skip
    assert [each.partitions for [each] in found] == [(encode(1),), (encode(2),), (encode(1),)]
    assert all(each.complete for [each] in found)
    known.clear()
    [forgotten] = discovery.turn(3.0, lambda name, partition: False)
    assert forgotten.partitions == (encode(1.0),)


class Seen(Shelves):
    """A source that says what its new partitions are like."""

    def first_sights(self, partitions: list[str]) -> dict[str, str]:
        return {each: f"{each} is green" for each in partitions if each != "gone"}


def test_new_partitions_are_looked_at_after_the_first_answer() -> None:
    answers = Found(["a"], 1.0), Found(["a", "b", "gone"], 1.0, complete=True), Found(["a"], 1.0)
    discovery = Discovery({"some": Seen(*answers)}, [], at_once, is_first=True)
    known = {encode("a")}
    turn = partial(discovery.turn, is_unread=lambda source, partition: source == "some" and partition in known)
    assert turn(0.0) == [Discovered("some", (encode("a"),), False)]
    assert turn(1.0) == [] and discovery.due_in(1.0) is None, "a thread looks at them"
    names = tuple(map(encode, ("a", "b", "gone")))
    seen = ((encode("b"), encode("b is green")),)
    assert turn(1.5) == [Discovered("some", names, False, complete=True, sights=seen)] and discovery.due_in(1.5) == 1.0
    assert turn(2.5) == [Discovered("some", tuple(known), False)]


def test_successor_looks_at_all_partitions_that_are_new() -> None:
    discovery = Discovery({"some": Seen(Found(["a"], 1.0))}, [], at_once)
    assert discovery.turn(0.0) == []
    [found] = discovery.turn(0.0)
    assert found.sights == ((encode("a"), encode("a is green")),)


def test_a_source_that_takes_long_holds_nobody_up_and_wakes_the_worker() -> None:
    go, done = Event(), Event()
    slow = Shelves()
    slow.discover = lambda: go.wait(180) and ["late"]  # type: ignore[method-assign]
    discovery = Discovery({"slow": slow, "quick": Shelves(["x"])}, [], lambda task: in_a_thread(task, done.set))
    found = discovery.turn(0.0)
    assert discovery.due_in(0.0) is None
    go.set()
    while len(found) < 2:
        assert done.wait(180)
        done.clear()
        found += discovery.turn(0.0)
    assert {each.input: each.partitions for each in found} == {"slow": (encode("late"),), "quick": (encode("x"),)}


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        ([["a"]], SourceError, r"in source 's', in discover\(\): The partition \['a'\] cannot be hashed: give a str"),
        ([print], CannotTravel, r"in source 's', in discover\(\): .*"),
        (None, TypeError, "not iterable"),
        (ValueError("no such page"), ValueError, "no such page"),
    ],
)
def test_what_goes_wrong_names_the_source(answer: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        Discovery({"s": Shelves(answer)}, [], at_once).turn(0.0)
    assert kind in (SourceError, CannotTravel) or caught.value.__notes__ == ["in source 's', in discover()"]


def test_a_source_tells_before_which_time_a_partition_has_nothing_if_somebody_takes_its_timestamps() -> None:
    def taking(*units: EventUnit | None, follows: str = "some") -> dict[str, TimedOperator]:
        return {f"{n}": TimedOperator(0, frozenset([follows]), unit) for n, unit in enumerate(units)}

    class Bounded(Shelves):
        def lower_bound(self, partition: str) -> Any:
            if partition == "bad":
                raise KeyError(partition)
            return {"a": 3, "day": datetime(1970, 1, 1, 0, 1, tzinfo=UTC), "naive": datetime(2026, 1, 1)}.get(partition)

    def found(operators: dict[str, TimedOperator], *partitions: str) -> tuple[int | None, ...]:
        [event] = Discovery({"some": Bounded([*partitions])}, [], at_once, operators).turn(0.0)
        return event.bounds

    assert found(taking(None), "a", "b", "day") == (3_000_000, None, 60_000_000)
    assert found(taking(EventUnit.SECONDS, EventUnit.MILLISECONDS), "a") == (3_000,), "the least that it can mean"
    assert found(taking(None, follows="other"), "a") == found(taking(None), "b") == ()
    with pytest.raises(SourceError, match=r"in source 'some', in lower_bound\('naive'\): .*time zone"):
        found(taking(None), "naive")
    with pytest.raises(KeyError) as raised:
        found(taking(None), "bad")
    assert raised.value.__notes__ == ["in source 'some', in lower_bound('bad')"]
