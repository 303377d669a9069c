"""Whoever asks for a key gets its state as of the time of the question, whatever moves, comes and goes.

By hand: python -m tests.simulation.search lookups 10000.
"""

import pytest

from tests.simulation import lookups
from tests.simulation.planting import Fault, planted
from tests.simulation.test_planted_faults import check_found, one_quick

SEEDS = 100
_SEEDS_PER_TEST = 10


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=[pytest.mark.slow] if first else []) for first in range(0, SEEDS, _SEEDS_PER_TEST)],
)
def test_a_key_is_answered_once_with_what_the_oracle_has(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        lookups.run(seed)


FAULTS = {
    "S answers when it has applied records of the question's time": Fault(
        "StateMachine._apply_after", "self._moments.before(time)", "self._moments.before(time - 1)"
    ),
    "an idle S answers before all that is earlier has come": Fault(
        "Core.keep", "(*self.data, self.state)", "(self.state,)"
    ),
    "an S that keeps nothing installs bins before it has answered": Fault(
        "Core.install", "self.moments.before(time)", "None"
    ),
    "F ships bins before they are asked": Fault("Router._install", "self._moments.before(time)", "None"),
}


@pytest.mark.parametrize("name", one_quick(FAULTS))
def test_a_planted_fault_is_found_within_200_runs_with_questions(name: str) -> None:
    check_found(FAULTS[name], "lookups")


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_of_answers_makes_wrong_is_there_once(name: str) -> None:
    planted(FAULTS[name])
