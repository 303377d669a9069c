"""Durable jobs that read a source whose partitions appear and grow: see `growing_sources`."""

import pytest

from tests.simulation.attempts import check_all
from tests.simulation.growing_sources import run

SEEDS = 30
EVENTS = {"ended", "failed", "forgotten", "killed", "moved", "replaced", "resumed", "stayed", "stopped", "went on"}


@pytest.mark.parametrize("seed", range(1))
def test_each_record_comes_once_in_the_order_of_its_partition_whatever_happens(seed: int) -> None:
    run(seed)


@pytest.mark.slow
def test_so_it_is_in_many_more() -> None:
    check_all(run, range(SEEDS), EVENTS)
