"""Durable jobs with two named inputs: see `two_inputs`."""

import pytest

from tests.simulation.attempts import check_all
from tests.simulation.two_inputs import run

SEEDS = 40
EVENTS = {"ended", "failed", "killed", "stopped", "went on"}


@pytest.mark.parametrize("seed", range(1))
def test_each_line_comes_once_in_order_by_its_own_input_whatever_happens(seed: int) -> None:
    run(seed)


@pytest.mark.slow
def test_so_it_is_in_many_more() -> None:
    check_all(run, range(SEEDS), EVENTS)
