"""Whole durable jobs that write to sinks, through all faults of jobs (see `sinks`).

By hand: `python -m tests.simulation.search sinks 1000`.
"""

import pytest

from tests.simulation.attempts import check_all
from tests.simulation.sinks import run

SEEDS = 100
EVENTS = {"crashed outside", "ended", "failed", "joined", "killed", "remembered", "restarted", "stopped", "went on"}


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_each_row_is_seen_once_outside(seed: int) -> None:
    run(seed)


@pytest.mark.slow
def test_so_it_is_in_many_more() -> None:
    check_all(run, range(3, SEEDS), EVENTS)
