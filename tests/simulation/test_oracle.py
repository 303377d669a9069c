"""The oracle test: random input, moves and delivery give the outputs of one worker without moves."""

import pytest

from megaflow.testing import EngineCluster
from tests.simulation.scenarios import Log, build, draw, run

SEEDS = 300
_FAST = 25
_SEEDS_PER_TEST = 25


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= _FAST else [])
        for first in range(0, SEEDS, _SEEDS_PER_TEST)
    ],
)
def test_outputs_and_their_times_equal_those_of_one_worker_without_moves(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        run(draw(seed))


def test_a_seed_fails_the_same_way_twice() -> None:
    scenario = draw(7)
    orders = []
    for _ in range(2):
        log = Log()
        EngineCluster(7, scenario.workers).run(
            lambda *given, log=log: build(scenario, log, *given), scenario.feeds, scenario.commands
        )
        orders.append(log.applied)
    assert orders[0] == orders[1] and orders[0]
