"""What a process remembers is what a new one would read, whatever it was that fell to it before."""

from random import Random
from typing import Any

import pytest

from megaflow import stable_hash
from megaflow.durable.recovery import Recovery
from megaflow.job.worker.memory import Memory, kept_bins
from megaflow.megaphone.bins import BinStore
from megaflow.megaphone.journal import Interval
from megaflow.megaphone.remains import Remains
from tests.durable.kept_operator import BINS, KeptOperator
from tests.durable.test_recovery import heir

COUNT = heir(stable_hash)


def left(kept: KeptOperator, bins: range, touched: set[Any]) -> Remains:
    """What a worker with some of the bins has, whose keys in `touched` are now others."""
    store = BinStore(BINS)
    for bin in bins:
        store.install(bin, {key: state for key, state in kept.states.items() if store.bin_of_key(key) == bin})
    for key in touched & store.states.keys():
        store.states[key] = "other"
    return Remains(store.states, store.bins, [Interval(keys=touched)], {}, BINS)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("dealt", [1, 2, 3])
def test_what_is_remembered_and_what_is_read_are_all_that_there_is(seed: int, dealt: int) -> None:
    kept, random = KeptOperator(seed), Random(seed)
    touched = {*random.sample(sorted(kept.states), min(5, len(kept.states))), "new"}
    before = [(COUNT, left(kept, range(worker, BINS - 1, 2), touched)) for worker in (0, 1)]  # and one bin was lost
    memory, recovery = Memory(), Recovery(kept.store, kept.commit, {})
    memory.roll_back(kept.store, kept.commit, before)
    for worker in range(dealt):
        bins = range(worker, BINS, dealt)
        begun, right = memory.restore(COUNT, bins, recovery), recovery.restore(COUNT, bins)
        states, owned = begun.kept or ({}, {})
        assert begun.kept is not None or dealt == 3
        found = begun.states | {bin: {key: states.pop(key) for key in keys} for bin, keys in owned.items()}
        assert (found, begun.timers, states) == (right.states, right.timers, {})
    assert memory.keys == 0


def test_a_process_that_stays_has_the_bins_of_any_of_its_operators() -> None:
    kept = KeptOperator(1)
    first, second = ((COUNT, left(kept, range(start, BINS, 4), set())) for start in (0, 1))
    bins = tuple(range(0, BINS, 4)), tuple(sorted({*range(1, BINS, 4), *range(0, BINS, 4)})), ()
    assert kept_bins([[first], [second, first], []]) == bins


def test_nothing_is_remembered_of_an_operator_that_has_become_another() -> None:
    kept = KeptOperator(1)
    for other in heir(stable_hash, BINS * 2), heir(stable_hash, name="new"), heir(stable_hash, version=4):
        memory = Memory()
        memory.roll_back(kept.store, kept.commit, [(other, left(kept, range(BINS), set()))])
        assert memory.keys == 0
