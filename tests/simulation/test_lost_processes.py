"""Durable jobs that lose processes while others stay and remember: see `lost_processes`.

By hand: `python -m tests.simulation.search "lost processes" 1000`.
"""

from collections import Counter

import pytest

from tests.simulation.lost_processes import run

SEEDS = 300
_SEEDS_PER_TEST = 100


@pytest.mark.parametrize("seed", range(4))
def test_who_stays_after_a_loss_begins_with_what_a_new_process_would_read(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_so_it_is_after_many_more_losses(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + _SEEDS_PER_TEST):
        seen += run(seed)
    tame = f"the runs have become too tame: {seen}"
    assert seen["remembered"] > _SEEDS_PER_TEST / 4 and seen["joined"] and seen["shrunk"], tame
    assert seen["answered"] > _SEEDS_PER_TEST and seen["asked again"], tame
