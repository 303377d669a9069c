"""An operator's states kept in memory are exactly those of the committed checkpoint. All others are read again."""

from random import Random

import pytest

from megaflow.megaphone.snapshot.retained_bins import RetainedBins
from tests.megaphone.test_journal import BINS, Operator


def rolled_back(operator: Operator, checkpoint: int) -> tuple[RetainedBins, set[object]]:
    remains = RetainedBins.of(operator.store, operator.journal)
    touched = remains.roll_back(operator.store.bin_of_key, checkpoint)
    assert sorted(remains.states) == sorted(key for keys in remains.bins.values() for key in keys)
    return remains, touched


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_and_what_is_read_again_is_the_checkpoint(seed: int) -> None:
    random, operator, committed = Random(seed), Operator(), 0
    for number in range(1, random.randint(3, 8)):
        for time in range(3):
            keys = random.sample(range(60), random.randint(0, 6))
            gone = {key: None for key in keys if key in operator.store.states and random.random() < 0.3}
            operator.apply(number * 10 + time - 3, {key: random.random() for key in keys} | gone)
        operator.checkpoint(number, number * 10, committed or None)
        operator.journal.write(all=True)
        if random.random() < 0.6:  # otherwise it is abandoned, or under way
            committed = number
    operator.apply(1000, {61: 1.0, 62: 2.0})
    right = operator.states(committed) if committed else {}
    remains, touched = rolled_back(operator, committed)
    assert {61, 62} <= touched and not touched & remains.states.keys()
    assert remains.states == {key: state for key, state in right.items() if key not in touched}
    remains.add(operator.store.bin_of_key, {key: right[key] for key in touched & right.keys()})
    assert remains.states == right and sum(map(len, remains.bins.values())) == len(right)


def test_of_a_bin_that_came_or_went_nothing_is_kept() -> None:
    operator = Operator()
    operator.apply(1, {key: key for key in range(1, 100)})
    operator.checkpoint(1, 5, None)
    operator.journal.write(all=True)
    store = operator.store
    first, second = (store.bin_of_key(key) for key in (1, 2))
    taken = store.take(first)
    store.take(second)  # under way: its states are drawn later
    store.install(first, taken.pairs, taken.timers)
    remains, touched = rolled_back(operator, 1)
    assert not touched and len(remains.bins) == BINS - 2
    assert remains.states == {key: key for key in range(1, 100) if store.bin_of_key(key) not in (first, second)}


def test_where_nothing_was_noted_nothing_is_kept() -> None:
    operator = Operator()
    operator.apply(1, {key: key for key in range(1, 100)})
    operator.checkpoint(1, 5, None)
    operator.journal.intervals[-1].dense = True
    remains, touched = rolled_back(operator, 1)
    assert not remains.states and not remains.bins and not touched
