"""Whole jobs with event time through all faults of jobs (see `event_time`).

By hand: `python -m tests.simulation.search "event time" 5000`.
"""

import pytest

from tests.simulation.attempts import check_all
from tests.simulation.event_time import run

SEEDS = 200
_SEEDS_PER_TEST = 50
EVENTS = {
    "by the clock", "closed early", "closed for good", "ended", "grew", "joined", "killed", "late", "restarted",
    "stayed open", "waited", "went on",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_what_is_put_out_and_when_is_what_the_model_puts_out_for_the_same_watermarks(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_so_it_is_in_many_more(first: int) -> None:
    check_all(run, range(first, first + _SEEDS_PER_TEST), EVENTS)
