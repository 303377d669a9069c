"""Durable jobs with two inputs by name: see `two_inputs`."""

from collections import Counter

import pytest

from tests.simulation.two_inputs import run

SEEDS = 40


@pytest.mark.parametrize("seed", range(1))
def test_each_line_comes_once_in_order_by_its_own_input_whatever_happens(seed: int) -> None:
    run(seed)


@pytest.mark.slow
def test_so_it_is_in_many_more() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen += run(seed)
    missing = {"ended", "stopped", "failed", "killed", "went on"} - set(seen)
    assert not missing, f"the runs have become too tame: {seen}"
