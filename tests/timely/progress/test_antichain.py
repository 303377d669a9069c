"""Antichain and MutableAntichain against sets and counters."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import TimeError
from megaflow.timely.order import Product, Time, from_coordinates, less_equal, less_than
from megaflow.timely.progress.antichain import Antichain, MutableAntichain

small = st.integers(0, 4)


def times_of(depth: int) -> st.SearchStrategy[Time]:
    return st.tuples(*[small] * (depth + 1)).map(from_coordinates)


depths = st.integers(0, 2)
several_times = depths.flatmap(lambda depth: st.tuples(st.lists(times_of(depth)), times_of(depth)))
rounds_of_updates = depths.flatmap(
    lambda depth: st.lists(st.lists(st.tuples(times_of(depth), st.integers(-2, 2)), max_size=5), max_size=12)
)


def minimal(times: set[Time]) -> set[Time]:
    return {time for time in times if not any(less_than(other, time) for other in times)}


@given(several_times)
def test_an_antichain_is_the_set_of_minimal_times(case: tuple[list[Time], Time]) -> None:
    times, probe = case
    antichain = Antichain()
    for index, time in enumerate(times):
        superfluous = any(less_equal(other, time) for other in times[:index])
        assert antichain.insert(time) == (not superfluous)
        antichain._check()
    assert set(antichain.elements) == minimal(set(times))
    assert antichain == Antichain(reversed(times))
    assert antichain.less_equal(probe) == any(less_equal(time, probe) for time in times)
    assert antichain.less_than(probe) == any(less_than(time, probe) for time in times)
    assert antichain.is_empty() == (not times)
    assert len(antichain) == len(list(antichain)) == len(antichain.elements)


def test_an_antichain_has_no_truth_value_and_no_hash() -> None:
    with pytest.raises(TypeError, match=r"Antichain\(\[3\]\) has no truth value: ask is_empty"):
        bool(Antichain([3]))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Antichain())
    assert Antichain([3]) != 3


def test_the_elements_are_sorted_by_coordinates() -> None:
    assert Antichain([Product(6, 1), Product(5, 7)]).elements == (Product(5, 7), Product(6, 1))


@given(rounds_of_updates)
def test_a_mutable_antichain_has_the_frontier_of_the_positive_counts(rounds: list[list[tuple[Time, int]]]) -> None:
    antichain = MutableAntichain()
    model: Counter[Time] = Counter()
    for updates in rounds:
        before = set(antichain.frontier)
        kept = antichain.frontier
        changes = antichain.update_iter(iter(updates))
        antichain._check()
        for time, delta in updates:
            model[time] += delta
        after = minimal({time for time, count in model.items() if count > 0})
        assert set(antichain.frontier) == after
        assert sorted(changes, key=repr) == sorted(
            [(time, -1) for time in before - after] + [(time, 1) for time in after - before], key=repr
        )
        assert set(kept) == before, "a frontier handed out earlier does not change"
        assert dict(antichain.counts()) == {time: count for time, count in model.items() if count}
        assert all(antichain.count_for(time) == count for time, count in model.items())
        assert antichain.is_empty() == (not any(model.values()))


def test_inserting_into_a_frontier_handed_out_does_not_reach_the_counts() -> None:
    antichain = MutableAntichain([(3, 1)])
    antichain.frontier.insert(1)
    assert antichain.frontier == Antichain([3])


def test_frontier_changes_are_discrete_whatever_the_counts() -> None:
    antichain = MutableAntichain([(1, 1)])
    assert antichain.update_iter([(1, -1), (2, 7)]) == [(1, -1), (2, 1)]
    assert antichain.frontier == Antichain([2])


def test_negative_counts_hold_nothing_back_until_they_cancel() -> None:
    antichain = MutableAntichain()
    assert antichain.update_iter([(4, -1)]) == []
    assert antichain.frontier.is_empty()
    assert not antichain.is_empty()
    assert antichain.update_iter([(4, 1)]) == []
    assert antichain.is_empty()


def test_updates_that_cancel_do_not_pile_up() -> None:
    antichain = MutableAntichain([(7, 6), (8, 5)])
    for _ in range(1000):
        assert antichain.update_iter([(9, 1)]) == []
        assert antichain.update_iter([(9, -1)]) == []
    assert len(list(antichain.counts())) == 2


@dataclass(frozen=True, order=True)
class Tags:
    """Sets ordered by inclusion, which `<` does not sort: of two sets, neither need come before the other."""

    tags: frozenset[str]

    def less_equal(self, other: "Tags") -> bool:
        return self.tags <= other.tags


@dataclass(frozen=True, order=True)
class Falling:
    """Numbers, sorted from their greatest to their least."""

    number: int

    def less_equal(self, other: "Falling") -> bool:
        return self.number >= other.number


@pytest.mark.parametrize(
    "times",
    [
        [Tags(frozenset("a")), Tags(frozenset("b"))],
        [Product(Tags(frozenset("a")), 1), Product(Tags(frozenset("b")), 0)],
        [Falling(1), Falling(2)],
    ],
    ids=["no order", "no order in a product", "another order"],
)
def test_times_that_cannot_be_sorted_by_their_order_are_refused(times: list[Any]) -> None:
    """Otherwise a frontier would be wrong, and a loop of the dataflow would never end."""
    with pytest.raises(TimeError, match=r"and .* cannot be sorted: `<` of a class of times must order any"):
        MutableAntichain((time, 1) for time in times)
