"""The trial finds all that cannot travel while the bin stays, whole or in small slices of time."""

import threading
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import CannotTravel, ProtocolError
from megaflow.megaphone.base.bin_trial import SCANNED_KEYS, trial
from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.base.chunks import chunks
from megaflow.timely.communication.codec import tags
from megaflow.timely.communication.codec.class_names import ClassName, check_known, classes_in
from megaflow.timely.communication.codec.encode import register
from megaflow.timely.communication.codec.lowering import lower
from tests.timely.communication.codec.registrations import undone


class Colour(Enum):
    RED = 1


class Point(NamedTuple):
    x: Any


class Session:
    def __init__(self, value: Any) -> None:
        self.value = value


class Clock:
    """A clock that advances by a fixed amount each time it is read."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.now, self.reads = seconds, 0.0, 0

    def __call__(self) -> float:
        self.now += self.seconds
        self.reads += 1
        return self.now


def store_of(states: dict[Any, Any], bins: int = 4) -> BinStore:
    store = BinStore(bins)
    for bin in range(bins):
        store.install(bin, [])
    for key, state in states.items():
        store.create(key, state)
    return store


def tried(store: BinStore, bins: range | list[int] = range(4), now: Callable[[], float] = Clock()) -> set[ClassName]:  # noqa: B008
    met: set[ClassName] = set()
    for _ in trial("count", store, bins, now, met):
        pass
    store._check()
    return met


def test_the_first_state_that_cannot_travel_is_named_with_operator_key_and_type() -> None:
    states: dict[Any, Any] = {f"key{n}": (n, None) for n in range(3000)}
    store = store_of(states)
    assert tried(store) == set()
    store.states["key1234"] = (7, threading.Lock())
    bin = store.bin_of_key("key1234")
    with pytest.raises(CannotTravel, match=r"^count: the state of key 'key1234' cannot be encoded.*type _thread\.lock"):
        tried(store, [bin])
    others = [each for each in range(4) if each != bin]
    assert tried(store, [*others, 9]) == set()


def test_keys_and_timers_are_tried_too() -> None:
    store = BinStore(4, hash=len)
    store.install(store.bin_of_key((1, threading)), [((1, threading), 3)])
    with pytest.raises(CannotTravel, match=r"^count: key .*module"):
        tried(store)
    store = store_of({})
    store.timers.add(9, 2, "a", "fine")
    store.timers.add(9, 2, "b", [threading.Lock()])
    with pytest.raises(CannotTravel, match=r"^count: a timer's payload for key 'b'.*lock"):
        tried(store)
    assert [key for _, key, _ in store.timers.of(2)] == ["a", "b"], "they stay"


def test_one_odd_state_among_many_numbers_is_found() -> None:
    states: dict[Any, Any] = dict.fromkeys(range(5 * SCANNED_KEYS), 1.5)
    states[4 * SCANNED_KEYS] = open
    with pytest.raises(CannotTravel, match=f"key {4 * SCANNED_KEYS} cannot"):
        tried(store_of(states, bins=1), [0])


def test_states_that_need_no_trial_are_not_encoded() -> None:
    clock = Clock()
    tried(store_of(dict.fromkeys(range(5000), "word")), now=clock)
    assert clock.reads == 0


@pytest.mark.parametrize("seconds", [0.0001, 0.01], ids=["fast", "slow"])
def test_between_two_yields_as_many_are_tried_as_go_into_a_millisecond(seconds: float) -> None:
    steps = 0
    met: set[ClassName] = set()
    for _ in trial("count", store_of({n: [n] for n in range(500)}, bins=1), [0], Clock(seconds), met):
        steps += 1
    assert (steps < 20) == (seconds < 0.001) and steps <= 502


def test_keys_that_come_and_go_meanwhile_are_no_error() -> None:
    store = store_of({n: [n] for n in range(3000)}, bins=1)
    for step, _ in enumerate(trial("count", store, [0], Clock(), set())):
        store.create(f"new{step}", [1])
        if step < 3000 and step in store.states:
            store.forget(2999 - step)
    store._check()


def test_an_error_of_a_registered_function_is_a_fault_too() -> None:
    with undone():
        register(Session, lambda session: 1 // session.value, Session)
        with pytest.raises(CannotTravel, match=r"key 'a' cannot be encoded.*encoding a .* raised ZeroDivisionError"):
            tried(store_of({"a": Session(0)}))
        assert tried(store_of({"a": Session(1)})) == {(tags.REGISTERED, f"{__name__}.Session", "")}


def test_the_classes_in_a_bin_are_told() -> None:
    met = tried(store_of({"a": [Colour.RED], "b": {"x": (Session({Point(1)}),)}}))
    expected = {(tags.ENUM, "Colour"), (tags.OBJECT, "Session"), (tags.NAMED_TUPLE, "Point")}
    assert met == {(tag, __name__, name) for tag, name in expected}
    check_known(met)
    for unknown in [(tags.OBJECT, "app", "Session"), (tags.ENUM, __name__, "Session"), (tags.REGISTERED, "a.B", "")]:
        with pytest.raises(ProtocolError, match=r"imported no app Session|imported no .*Session|registered no a\.B"):
            check_known([unknown])


def test_libraries_are_classes_too() -> None:
    numpy = pytest.importorskip("numpy")
    met = tried(store_of({"a": (numpy.float64(1), [1, 2, 3]), "b": numpy.zeros((2, 3))}))
    assert {name for _, name, _ in met} == {"numpy"}
    with pytest.raises(ProtocolError, match="imported no nothing_like_numpy"):
        check_known([(tags.ARRAY, "nothing_like_numpy", "")])


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.sampled_from([Colour.RED]) | st.integers().map(Point),
    lambda inner: (
        st.lists(inner, max_size=6) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    )
    | inner.map(Session)
    | inner.map(Point),
    max_leaves=15,
)


@given(values)
def test_the_classes_in_a_tree_are_those_of_the_value(value: Any) -> None:
    found: set[str] = set()

    def walk(part: Any) -> None:
        if isinstance(part, (Colour, Point, Session)):
            found.add(type(part).__name__)
        if isinstance(part, dict):
            walk(list(part.values()))
        elif isinstance(part, Session):
            walk(part.value)
        elif isinstance(part, (list, tuple)):
            for each in part:
                walk(each)

    walk(value)
    met: set[ClassName] = set()
    classes_in(lower(value), met)
    assert {name for _, _, name in met} == found


def test_what_becomes_untravellable_after_its_trial_is_named_with_its_state_when_the_bin_moves() -> None:
    store = store_of({"a": (1, None), "b": (2, None)}, bins=1)
    assert tried(store, [0]) == set()
    store.states["b"] = (2, threading.Lock(), "x" * 1000)
    with pytest.raises(CannotTravel) as caught:
        list(chunks(0, store.take(0), 0, 0.0, "count"))
    assert "count: the state of key 'b', which is (2, <unlocked _thread.lock" in str(caught.value)
    assert "_thread.lock cannot travel" in str(caught.value) and len(str(caught.value)) < 600
