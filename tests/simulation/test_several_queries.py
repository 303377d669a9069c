"""Whole durable jobs that several Spark queries feed, in one thread, with crashes and restarts: see `several_queries`.

By hand: `python -m tests.simulation.search "several queries" 1000`.
"""

import pytest

from tests.simulation.attempts import check_all
from tests.simulation.several_queries import run

SEEDS = 60
_SEEDS_PER_TEST = 20
EVENTS = {  # in each of these tests
    "resumed several", "first was over", "rests of several", "resumed the first's rest", "ended", "replayed",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_each_query_resumes_where_the_checkpoint_was(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_rows_of_several_queries_count_once_and_the_first_ones_first(first: int) -> None:
    check_all(run, range(first, first + _SEEDS_PER_TEST), EVENTS)
