"""What is late follows from the partitions alone: see `late_records`. And faults planted in what it goes by.

By hand: python -m tests.simulation.search "late records" 5000.
"""

import pytest

from tests.simulation.late_records import run
from tests.simulation.planting import Fault, planted
from tests.simulation.test_planted_faults import check_found

SEEDS = 400
_SEEDS_PER_TEST = 50

FAULTS = {
    "what is handed back has no maxima": Fault("ExactMaxima.hand_back", "with_maxima(running, rest)", "rest"),
    "who is given a partition begins anew": Fault("EventClock.begin_with", "maximum is not None", "False"),
    "maxima are told before all that was read is seen": Fault("ExactMaxima.after", "self._operators", "False"),
    "bounds are those of a worker": Fault(
        "EventClock.begin", "self.running.get(origin, NEVER)", "max(self.running.values(), default=NEVER)"
    ),
    "bounds are by batches": Fault("EventClock.begin", "self.running.get(origin, NEVER)", "NEVER"),
    "no record carries its bound": Fault("EventClock.begin", "self._out_of_order", "_NO_BOUND"),
    "what was counted of lateness goes with the coordinator": Fault("Watermarks.resume", "state.late", "()"),
    "lateness is by batches": Fault(
        "EventClock._counting", "seen.counting(slack)", "LatenessHistogram().counting(slack)"
    ),
    "a record is late when its bound is near the end of a window": Fault(
        "Panes._first_open", "limit >= self._closes_at(first)", "limit >= self._closes_at(first) - 1_000_000"
    ),
    "a record that is late for some of its windows counts in all": Fault(
        "Panes._by_pane", "start if first == self._windows.first_end_after(start) else (start, first)", "start"
    ),
    "a late record joins a session that is open": Fault(
        "Sessions._judged", "micros + self._lateness < bound", "micros + self._gap + self._lateness <= bound"
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_late_records_follow_from_the_partitions_alone(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_late_records_of_many_more_seeds(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_of_bounds_is_found(name: str) -> None:
    check_found(FAULTS[name], "late records")


@pytest.mark.parametrize("name", FAULTS)
def test_piece_of_a_fault_of_bounds_is_there_once(name: str) -> None:
    planted(FAULTS[name])
