"""Timers that set timers fire in the order of a reference that knows no epochs: see `timer_order`.

By hand: python -m tests.simulation.search "timer order" 1000.
"""

import pytest

from tests.simulation.planting import Fault, planted
from tests.simulation.test_planted_faults import check_found, one_quick
from tests.simulation.timer_order import run

SEEDS = 210
_FAST = 10
_SEEDS_PER_TEST = 50

FAULTS = {
    "what is set meanwhile fires after all that was due": Fault(
        "EventTimers.set_event", "self.is_firing and micros <= self.watermark", "False"
    ),
    "timers of several timestamps fire in one call": Fault(
        "EventTimers.pop", "due and due[0][:2] == (line, micros)", "due"
    ),
    "what is set under the infinite watermark is not dropped": Fault(
        "EventTimers.set_event", "self._limits.get(key, INFINITE)", "INFINITE"
    ),
    "all that is set under the infinite watermark is dropped": Fault(
        "EventTimers.set_event", "self._limits.get(key, INFINITE)", "INFINITE if self.watermark < INFINITE else -1"
    ),
    "the first of a key's last timers is its limit": Fault(
        "EventTimers._gather",
        "max(least, self._limits.get(key, self.greatest))",
        "self._limits.get(key, max(least, self.greatest))",
    ),
    "timers of one timestamp fire in any order": Fault(
        "EventTimers.set_event", "self._by_event.next_order()", "-self._by_event.next_order()"
    ),
}


@pytest.mark.parametrize(
    "first, seeds",
    [(0, _FAST), *(pytest.param(first, _SEEDS_PER_TEST, marks=pytest.mark.slow)
                   for first in range(_FAST, SEEDS, _SEEDS_PER_TEST))],
)  # fmt: skip
def test_timers_fire_in_order_whatever_the_epochs(first: int, seeds: int) -> None:
    for seed in range(first, first + seeds):
        run(seed)


@pytest.mark.parametrize("name", one_quick(FAULTS))
def test_a_fault_of_timer_order_is_found_within_200_runs(name: str) -> None:
    check_found(FAULTS[name], "timer order")


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_of_timer_order_changes_is_there(name: str) -> None:
    planted(FAULTS[name])
