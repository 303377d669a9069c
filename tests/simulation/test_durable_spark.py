"""Whole durable jobs that Spark feeds, in one thread, with crashes and restarts: see `durable_spark`.

By hand: `python -m tests.simulation.search "durable Spark" 1000`.
"""

import pytest

from tests.simulation.attempts import check_all
from tests.simulation.durable_spark import run

SEEDS = 40
_SEEDS_PER_TEST = 20
EVENTS = {  # in each of these tests
    "committed", "crashed", "ended", "failed", "half taken", "joined", "replayed", "stopped", "went on with a half",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_a_restart_goes_on_with_the_batch_where_the_checkpoint_was(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_lines_are_neither_lost_nor_doubled_and_a_batch_is_answered_when_it_is_durable(first: int) -> None:
    check_all(run, range(first, first + _SEEDS_PER_TEST), EVENTS)
