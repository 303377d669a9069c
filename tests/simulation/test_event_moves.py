"""Event timers and windows on a simulated cluster, whatever moves: see `event_moves`. And faults planted in them.

By hand: python -m tests.simulation.search "event moves" 1000.
"""

import pytest

from tests.simulation.event_moves import run
from tests.simulation.planting import Fault, planted
from tests.simulation.test_planted_faults import check_found, one_quick

SEEDS = 103
_FAST = 3
_SEEDS_PER_TEST = 25

FAULTS = {
    "event timers fire at the start of an epoch": Fault(
        "TimedFolds.run", "self._apply(time)\nself._close(time)", "self._close(time)\nself._apply(time)"
    ),
    "a newcomer is not told the watermark": Fault("EventTimers.heard", "known if max(known) > NEVER else ()", "()"),
    "event timers stay where they were set, and are lost": Fault(
        "BinStore.take", "self.events.take(bin)", "self.events.take(bin)[:0]"
    ),
    "event timers stay where they were set, and leave as well": Fault(
        "EventTimers.take", "self._by_event.take(bin)", "pass"
    ),
    "a timer is set after those with a later timestamp": Fault(
        "TimerLine.add",
        "heappush(heap, (micros, self.next_order(), key, payload))",
        "heappush(heap, (micros, -self.next_order(), key, payload))",
    ),
    "a late record counts in a window": Fault(
        "Panes._first_open",
        "limit >= self._closes_at(first)",
        "False",
    ),
    "a session that a record begins earlier begins where it did": Fault(
        "Sessions._insert", "min(start, met[0][0])", "met[0][0]"
    ),
    "a session that a record ends later ends where it did": Fault(
        "Sessions._insert", "max(end, met[-1][1])", "met[-1][1]"
    ),
    "two sessions that touch are one": Fault(
        "Sessions._met", "bisect_right(intervals, start, key=_END)", "bisect_left(intervals, start, key=_END)"
    ),
    "of two sessions that a record joins one is lost": Fault(
        "Sessions._insert", "[interval[2] for interval in met]", "[met[0][2]]"
    ),
}


@pytest.mark.parametrize(
    "first, seeds",
    [(0, _FAST), *(pytest.param(first, _SEEDS_PER_TEST, marks=pytest.mark.slow)
                   for first in range(_FAST, SEEDS, _SEEDS_PER_TEST))],
)  # fmt: skip
def test_windows_and_event_timers_give_at_each_time_what_the_model_gives(first: int, seeds: int) -> None:
    for seed in range(first, first + seeds):
        run(seed)


@pytest.mark.parametrize("name", one_quick(FAULTS))
def test_a_planted_fault_of_event_timers_is_found_within_200_runs(name: str) -> None:
    check_found(FAULTS[name], "event moves")


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_of_event_timers_makes_wrong_is_there_once(name: str) -> None:
    planted(FAULTS[name])
