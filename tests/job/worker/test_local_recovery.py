"""A surviving process remembers exactly the states that a new one would read, whatever it owned before."""

from random import Random
from typing import Any

import pytest

from megaflow import stable_hash
from megaflow.durable.recovery import Recovery
from megaflow.job.worker.snapshots.local_recovery import LocalRecovery, kept_bins
from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.snapshot.journal import Interval
from megaflow.megaphone.snapshot.retained_bins import RetainedBins
from tests.durable.kept_operator import BINS, KeptOperator
from tests.durable.test_recovery import descriptor

COUNT = descriptor(stable_hash)


def left(kept: KeptOperator, bins: range, touched: set[Any]) -> RetainedBins:
    """Return the state of a worker with some of the bins, after changes to the keys in `touched`."""
    store = BinStore(BINS)
    for bin in bins:
        store.install(bin, {key: state for key, state in kept.states.items() if store.bin_of_key(key) == bin})
    for key in touched & store.states.keys():
        store.states[key] = "other"
    return RetainedBins(store.states, store.bins, [Interval(keys=touched)], {}, BINS)


def remembered(memory: LocalRecovery) -> int:
    """Return the number of keys that no worker has taken."""
    return sum(len(each.states) for several in memory._remains.values() for each in several)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("dealt", [1, 2, 3])
def test_what_is_remembered_and_what_is_read_are_all_that_there_is(seed: int, dealt: int) -> None:
    kept, random = KeptOperator(seed), Random(seed)
    touched = {*random.sample(sorted(kept.states), min(5, len(kept.states))), "new"}
    before = [(COUNT, left(kept, range(worker, BINS - 1, 2), touched)) for worker in (0, 1)]  # and one bin was lost
    memory, recovery = LocalRecovery(), Recovery(kept.store, kept.commit, {})
    memory.roll_back(kept.store, kept.commit, before)
    for worker in range(dealt):
        bins = range(worker, BINS, dealt)
        begun, right = memory.restore(COUNT, bins, recovery), recovery.restore(COUNT, bins)
        states, owned = begun.kept or ({}, {})
        assert begun.kept is not None or dealt == 3
        found = begun.states | {bin: {key: states.pop(key) for key in keys} for bin, keys in owned.items()}
        assert (found, begun.timers, states) == (right.states, right.timers, {})
    assert remembered(memory) == 0


def test_a_process_that_stays_has_the_bins_of_any_of_its_operators() -> None:
    kept = KeptOperator(1)
    first, second = ((COUNT, left(kept, range(start, BINS, 4), set())) for start in (0, 1))
    bins = tuple(range(0, BINS, 4)), tuple(sorted({*range(1, BINS, 4), *range(0, BINS, 4)})), ()
    assert kept_bins([[first], [second, first], []]) == bins


def test_nothing_is_remembered_of_an_operator_that_has_become_another() -> None:
    kept = KeptOperator(1)
    more = descriptor(stable_hash, BINS * 2)
    for other in more, descriptor(stable_hash, name="new"), descriptor(stable_hash, version=4):
        memory = LocalRecovery()
        memory.roll_back(kept.store, kept.commit, [(other, left(kept, range(BINS), set()))])
        assert remembered(memory) == 0
