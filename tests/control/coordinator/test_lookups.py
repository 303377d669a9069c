"""Lookups of a key and the limit on waiting ones. The transcripts controller_lookups* show whole lookups."""

from types import SimpleNamespace
from typing import Any

import pytest

from megaflow.control.coordinator.base.epoch_clock import CommandStream
from megaflow.control.coordinator.base.events import Asked, Inject
from megaflow.control.coordinator.controller.lookups import (
    KEY_LENGTH_MAX,
    TOGETHER_MAX,
    WAITING_MAX,
    Lookups,
    keys_meant,
    places_of,
)
from megaflow.control.messages import GetState, Request
from megaflow.errors import CommandRefused
from megaflow.megaphone.base.barrier_actions import BarrierActions
from megaflow.megaphone.base.bins import BinStore


def view(name: str, hash: Any = None, keeps: bool = True, may_be_asked: bool = True) -> Any:
    """An operator as its worker reports it."""
    store = BinStore(16) if hash is None else BinStore(16, hash)
    barrier_actions = BarrierActions(name, store) if keeps else None
    return SimpleNamespace(name=name, store=store, barrier_actions=barrier_actions, may_be_asked=may_be_asked)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("rose", ["rose"]), ("7", [7, "7"]), ('"7"', ["7", '"7"']), ("[1, [2]]", [(1, (2,)), "[1, [2]]"]),
        ("null", [None, "null"]), ('{"a": 1}', ['{"a": 1}']), ("[" * 3000, ["[" * 3000]),
        ("9" * 3000, [int("9" * 3000), "9" * 3000]),
    ],
)  # fmt: skip
def test_a_key_is_json_or_the_text_of_a_str(key: str, meant: list[Any]) -> None:
    assert [*keys_meant(key)] == meant


def test_each_meaning_has_the_bin_that_the_operators_own_hash_tells() -> None:
    views = [view("sum", hash=lambda key: 1 if key == 7 else 2), view("count")]
    bin_of = BinStore(16).bin_of_key
    assert places_of(views, GetState("count", "7")) == ((7, bin_of(7)), ("7", bin_of("7")))
    assert [key for key, _ in places_of(views, GetState("sum", "7"))] == [7, "7"]
    assert [key for key, _ in places_of(views, GetState("count", "NaN"))] == ["NaN"], "NaN is no key"


@pytest.mark.parametrize(
    ("operator", "key", "reason"),
    [
        ("cuont", "a", "no operator 'cuont' with a state; did you mean 'count'? Operators with a state: count, twice"),
        ("spread", "a", "no operator 'spread' with a state"),
        ("twice", "a", "2 operators are named 'twice': give each its own name="),
        ("own", "a", "operator 'own' cannot be looked up, because it has its own control="),
        ("users", "a", "operator 'users' cannot have a key 'a': AttributeError: 'str' object has no attribute 'id'"),
        ("count", "a" * (KEY_LENGTH_MAX + 1), "is too long"),
    ],
)
def test_what_cannot_be_asked_is_refused(operator: str, key: str, reason: str) -> None:
    views = [
        view("count"), view("spread", keeps=False), view("twice"), view("twice"), view("own", may_be_asked=False),
        view("users", hash=lambda key: key.id),
    ]  # fmt: skip
    with pytest.raises(CommandRefused) as raised:
        places_of(views, GetState(operator, key))
    assert reason in str(raised.value)


def test_however_many_ask_few_are_under_way_and_some_wait() -> None:
    lookups = Lookups(stream := CommandStream(), lambda asked: ((asked.key, 0),))
    for number in range(WAITING_MAX):
        lookups.ask(Asked("cli", Request(number, GetState("count", str(number)))))
    with pytest.raises(CommandRefused, match="1000 such requests are already waiting"):
        lookups.ask(Asked("cli", Request(WAITING_MAX, GetState("count", "one more"))))
    lookups.go_on()
    lookups.go_on()
    assert len([each for each in stream.out if isinstance(each, Inject)]) == TOGETHER_MAX
    assert len(lookups.asked) == WAITING_MAX - TOGETHER_MAX
