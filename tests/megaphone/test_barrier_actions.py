"""The states that an operator shows, by hand. The simulation tests that it shows them at the right time."""

from typing import Any

from megaflow.megaphone.base.barrier_actions import SHOWN_MAX, BarrierActions, Shown
from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.base.routing import Lookup
from megaflow.megaphone.snapshot.journal import Journal

BINS = 4


def asked(barrier_actions: BarrierActions, store: BinStore, *keys: Any, operator: str = "count") -> list[Shown]:
    """Return what is shown of these keys as of time 5, when work of time 7 is about to begin."""
    barrier_actions.look(5, Lookup(3, operator, tuple((key, store.bin_of_key(key)) for key in keys), "text"))
    barrier_actions.before(4)
    assert not barrier_actions.answers, "that is too early"
    barrier_actions.before(7)
    return barrier_actions.take_answers()


def store_of(states: dict[Any, Any], bins: range = range(BINS)) -> BinStore:
    store = BinStore(BINS)
    for bin in bins:
        store.install(bin, [])
    for key, state in states.items():
        store.create(key, state)
    return store


def test_it_shows_the_keys_of_bins_that_are_here_and_those_that_have_no_state() -> None:
    here = store_of({"a": 1, "b": 2})
    assert asked(BarrierActions("count", here), here, "a", "c") == [Shown(3, 0, "1"), Shown(3, 1, None)]
    nowhere = store_of({}, range(0))
    assert asked(BarrierActions("count", nowhere), nowhere, "a") == []


def test_it_does_not_hear_what_others_are_asked() -> None:
    store = store_of({"a": 1})
    assert asked(BarrierActions("count", store), store, "a", operator="sum") == []


def test_what_is_in_the_young_dict_is_newer_than_what_is_in_the_store() -> None:
    store = store_of({"a": 1, "b": 2})
    journal = Journal("count", store, lambda cut, block: None, lambda: 0.0, lambda: 0.0)
    journal.young = {"a": 7}
    assert asked(journal, store, "a", "b") == [Shown(3, 0, "7"), Shown(3, 1, "2")]


def test_a_state_that_cannot_be_shown_is_said_and_ends_nothing() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise KeyError("what")

    store = store_of({"odd": Odd(), "long": "x" * SHOWN_MAX})
    odd, long = asked(BarrierActions("count", store), store, "odd", "long")
    assert odd.text is None and odd.fault is not None and odd.fault.endswith("Odd, cannot be shown: KeyError: 'what'")
    assert long.fault == f"the state, of type str, takes {SHOWN_MAX + 2:,} characters; at most {SHOWN_MAX:,} are shown"
