"""Event timers under moves, joins, leaves, checkpoints and restarts give the oracle's outputs; planted faults."""

import pytest

from tests.simulation import cuts
from tests.simulation.planting import Fault, planted
from tests.simulation.test_planted_faults import check_found, one_quick, search

SEEDS = 200
_SEEDS_PER_TEST = 10


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= _SEEDS_PER_TEST else [])
        for first in range(0, SEEDS, _SEEDS_PER_TEST)
    ],
)
def test_event_timers_fire_when_those_of_one_worker_do_whatever_moves_joins_or_restarts(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        cuts.run_eventful(seed)


FAULTS = {
    "event timers fire before the records of the time": Fault(
        "TimedFolds.run", "self._apply(time)\nself._close(time)", "self._close(time)\nself._apply(time)"
    ),
    "records see the watermark of their own time": Fault(
        "TimedFolds.run", "self._apply(time)", "self._events.close(time)\nself._apply(time)"
    ),
    "S does not wait for the time of a marker": Fault(
        "TimedFolds.run", "self._stash[time]", "self._events.close(time)"
    ),
    "a bin does not tell the watermark": Fault("Shipper._take", "self._store.events.heard(time)", "()"),
    "a bin does not tell what is commanded at its time": Fault(
        "EventTimers.heard", "self._coming.get(time, (NEVER, NEVER))", "(NEVER, NEVER)"
    ),
    "a bin that tells it does not have its time closed": Fault("Installer.install", "return is_marked", "return False"),
    "a watermark counts from the time that it is read": Fault(
        "EventTimers.read", "INFINITE if micros >= INFINITE else NEVER", "setattr(self, 'watermark', micros) or NEVER"
    ),
    "event timers stay where they were set": Fault("BinStore.take", "self.events.take(bin)", "[]"),
    "event timers stay where they were set, and leave as well": Fault(
        "EventTimers.take", "self._by_event.take(bin)", "None"
    ),
    "event timers do not travel": Fault(
        "_runs", "(taken.pairs, taken.timers, taken.events)", "(taken.pairs, taken.timers, [])"
    ),
    "what is due meanwhile waits for the next time": Fault(
        "TimedFolds._close", "if events.is_due():\n    self._stash[time]", "pass"
    ),
    "a count begins when it is set": Fault(
        "EventTimers.set_after", "self.ticked == time or self.clock >= INFINITE", "self.clock > NEVER"
    ),
    "what is set under the infinite watermark is not dropped": Fault(
        "EventTimers.set_after", "self.is_firing and self.watermark >= INFINITE", "False"
    ),
    "event timers are those set since an abandoned cut": Fault(
        "Journal._cut",
        "chain(store.events.unbegun(), *(each.events for each in changed))",
        "chain(store.events.unbegun(), changed[-1].events)",
    ),
    "those whose count has not begun are not written": Fault(
        "Journal._cut",
        "chain(store.events.unbegun(), *(each.events for each in changed))",
        "chain(*(each.events for each in changed))",
    ),
    "those whose count has not begun count ever after": Fault(
        "restore", "number == newest or state[0][0] != UNBEGUN", "True"
    ),
    "a count that begins is not written": Fault("TimedFolds._close", "core.journal.set_event(bin, timer)", "None"),
    "event timers of a bin that left are written": Fault(
        "Journal._cut",
        "[timer for bin, timer in logged if bin in store.bins and bin not in whole]",
        "[timer for bin, timer in logged if bin not in whole]",
    ),
    "event timers of whole bins are written twice": Fault(
        "Journal._cut",
        "[timer for bin, timer in logged if bin in store.bins and bin not in whole]",
        "[timer for bin, timer in logged if bin in store.bins]",
    ),
    "event timers that have fired are restored": Fault("_begin", "filter(store.events.waits, events)", "events"),
    "a payload of an event timer changes before it is written": Fault(
        "Journal.fire_events", "self._unwritten is not None", "False"
    ),
}


@pytest.mark.parametrize("name", one_quick(FAULTS))
def test_a_planted_fault_is_found_within_200_runs_with_event_timers(name: str) -> None:
    check_found(FAULTS[name], "event timers")


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_makes_wrong_is_there_once(name: str) -> None:
    for each in (FAULTS[name], *FAULTS[name].more):
        planted(each)


@pytest.mark.slow
def test_the_search_finds_nothing_in_the_code_as_it_is() -> None:
    done = search("event timers", 20)
    assert done.returncode == 0, done.stdout + done.stderr
