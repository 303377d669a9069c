"""A balance by load reaches its bound, and seldom moves more bins than necessary."""

import itertools
import random
from collections.abc import Sequence
from typing import TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megaflow.control.client.load_balance import SLACK, balance_load
from megaflow.errors import CommandRefused
from megaflow.megaphone.base.routing import RoutingTable, difference, initial_table
from tests.examples import many

Case: TypeAlias = tuple[RoutingTable, set[int], list[float]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A table, members and loads, uneven or whole numbers. Hypothesis draws only the seed of large ones."""
    ids = draw(st.lists(st.integers(0, 20), min_size=1, max_size=8, unique=True))
    members = set(draw(st.lists(st.sampled_from(ids), min_size=1, unique=True)))
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    bins = draw(st.integers(1, 20) | st.sampled_from([64, 256]))
    kind = draw(st.sampled_from(["whole", "uneven", "even"]))
    loads = [
        {"whole": float(rng.choice([0, 0, 1, 2, 5, 50])), "uneven": rng.paretovariate(0.9), "even": 3.0}[kind]
        for _ in range(bins)
    ]
    return tuple(rng.choices(ids, k=bins)), members, loads


def loads_of(table: RoutingTable, loads: Sequence[float], members: set[int]) -> dict[int, float]:
    result = dict.fromkeys(members, 0.0)
    for bin, owner in enumerate(table):
        result[owner] += loads[bin]
    return result


@settings(deadline=None, max_examples=many(300))
@given(cases())
@example(((0,) * 8, {0, 1}, [32.5, 1.0, 1.0, 2.0, 4.0, 2.0, 1.0, 1.5]))
@example(((0, 0), {0, 1}, [0.0, 1.0]))
@example(((0, 1, 0, 1, 0), {0, 1, 2}, [1.0, 5.0, 2.0, 1.0, 2.0]))
def test_the_maximum_is_within_the_slack_or_one_light_bin_of_the_mean(case: Case) -> None:
    table, members, loads = case
    if not sum(loads):
        with pytest.raises(CommandRefused, match="no load"):
            balance_load(table, members, loads)
        return
    target = balance_load(table, members, loads)
    assert set(target) <= members
    after = loads_of(target, loads, members)
    mean = sum(loads) / len(members)
    most = max(after.values())
    heaviest = [worker for worker in members if after[worker] > most * (1 - 1e-9)]  # equal but for rounding
    loaded = [bin for bin, load in enumerate(loads) if load > mean * 1e-9]
    light = max(min(loads[bin] for bin in loaded if target[bin] == worker) for worker in heaviest)
    assert most - mean <= max(SLACK * mean, light) + mean * 1e-6
    assert balance_load(table, sorted(members, reverse=True), loads) == target


@settings(deadline=None)
@given(cases())
def test_what_is_balanced_stays_as_it_is(case: Case) -> None:
    table, members, loads = case
    if sum(loads):
        target = balance_load(table, members, loads)
        after = loads_of(target, loads, members)
        if max(after.values()) <= (1 + SLACK) * sum(loads) / len(members) * (1 - 1e-9):
            assert balance_load(target, members, loads) == target


def test_of_small_cases_nearly_all_take_the_fewest_moves() -> None:
    surplus = []
    for seed in range(400):
        rng = random.Random(seed)
        ids, bins = list(range(rng.randint(2, 3))), rng.randint(1, 7)
        table = tuple(rng.choices(ids, k=bins))
        loads = [rng.paretovariate(1.1) if seed % 2 else float(rng.choice([1, 2, 3, 5, 10])) for _ in range(bins)]
        target = balance_load(table, ids, loads)
        mean = sum(loads) / len(ids)
        limit = max(*loads_of(target, loads, set(ids)).values(), mean * (1 + SLACK)) * (1 + 1e-9)
        fewest = min(
            len(difference(table, other))
            for other in itertools.product(ids, repeat=bins)
            if max(loads_of(other, loads, set(ids)).values()) <= limit
        )
        surplus.append(len(difference(table, target)) - fewest)
    assert sum(each > 0 for each in surplus) <= 0.03 * len(surplus) and max(surplus) <= 3


def test_one_hot_bin_moves_away_from_the_others_or_they_from_it() -> None:
    assert len(difference((0,) * 5, balance_load((0,) * 5, {0, 1}, [9.0, 1.0, 1.0, 1.0, 1.0]))) == 1


def test_bins_without_load_stay_unless_their_owner_is_none() -> None:
    table = (0, 0, 0, 0, 7, 7)
    assert balance_load(table, {0, 1}, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0])[2:4] == (0, 0)
    assert set(balance_load(table, {0, 1}, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0])) == {0, 1}
    with pytest.raises(CommandRefused, match="no worker"):
        balance_load(table, set(), [1.0] * 6)


def test_65536_bins_are_balanced_in_reasonable_time() -> None:
    bins = 1 << 16
    rng = random.Random(7)
    loads = [rng.paretovariate(1.2) for _ in range(bins)]
    target = balance_load(initial_table(bins, range(3)), range(4), loads)
    after = loads_of(target, loads, set(range(4)))
    assert max(after.values()) <= 1.051 * sum(loads) / 4
