"""Checkpoints hold what the oracle says, and a restart from one goes on as if nothing had been; planted faults."""

import pytest

from tests.simulation import cuts, loop_cuts
from tests.simulation.planting import Fault, planted
from tests.simulation.test_planted_faults import check_found, one_quick, search

SEEDS = 300
_SEEDS_PER_TEST = 10
LOOP_SEEDS = 50
_LOOP_SEEDS_PER_TEST = 5


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= _SEEDS_PER_TEST else [])
        for first in range(0, SEEDS, _SEEDS_PER_TEST)
    ],
)
def test_checkpoints_have_all_before_their_time_and_restarts_give_the_outputs_that_are_left(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        cuts.run(seed)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first else [])
        for first in range(0, LOOP_SEEDS, _LOOP_SEEDS_PER_TEST)
    ],
)
def test_so_they_do_in_loops(first: int) -> None:
    for seed in range(first, first + _LOOP_SEEDS_PER_TEST):
        loop_cuts.run(seed)


FAULTS = {
    "F ships bins before they are cut": Fault("Router._install", "self._moments.before(time)", "None"),
    "bins are installed before the cut": Fault("Core.install", "self.moments.before(time)", "None"),
    "a bin that came is not written whole": Fault(
        "Journal._cut", "dict.fromkeys(bin for bin in cut.bins if bin in came)", "dict[int, None]()"
    ),
    "a bin that came before an abandoned cut is not written whole": Fault(
        "Journal._cut", "set[int]().union(*(each.came for each in changed))", "changed[-1].came"
    ),
    "a delta follows an abandoned cut": Fault(
        "Journal._cut",
        "[part for each in changed for part in (each.keys, each.young)]",
        "[changed[-1].keys, changed[-1].young]",
    ),
    "timers are those set since an abandoned cut": Fault(
        "Journal._cut",
        "[timer for each in changed for bin, timer in each.timers if ...]",
        "[timer for bin, timer in changed[-1].timers if bin in store.bins and bin not in whole]",
    ),
    "keys of a bin that left are written": Fault("Journal._cut", "any(each.left for each in changed)", "False"),
    "timers of a bin that left are written": Fault(
        "Journal._cut",
        "[timer for each in changed for bin, timer in each.timers if ...]",
        "[timer for each in changed for bin, timer in each.timers if bin not in whole]",
    ),
    "timers of whole bins are written twice": Fault(
        "Journal._cut",
        "[timer for each in changed for bin, timer in each.timers if ...]",
        "[timer for each in changed for bin, timer in each.timers if bin in store.bins]",
    ),
    "S applies records of the checkpoint's time before it cuts": Fault(
        "StateMachine._apply_after", "self._moments.before(time)", "self._moments.before(time - 1)"
    ),
    "S fires timers of the checkpoint's time before it cuts": Fault(
        "TimedFolds.run", "self._moments.before(time)", "self._moments.before(time - 1)"
    ),
    "F ships bins that move at the checkpoint's time before they are cut": Fault(
        "Router._install", "self._moments.before(time)", "self._moments.before(time - 1)"
    ),
    "an idle S does not look at its state frontier": Fault("Core.keep", "(*self.data, self.state)", "self.data"),
    "an idle S does not look at its data frontiers": Fault("Core.keep", "(*self.data, self.state)", "(self.state,)"),
    "an idle S does not look at what waits": Fault("Core.keep", "(waiting is None or waiting >= next)", "True"),
    "timers due at the checkpoint's time are not written": Fault(
        "Journal._cut", "entry[1][0] >= time", "entry[1][0] > time"
    ),
    "timers due at the checkpoint's time are not restored": Fault(
        "restore", "... >= time", "(when if type(when) is int else when[0]) > time"
    ),
    "keys that are gone are not written": Fault(
        "Unwritten._write_changed",
        "[*filterfalse(self._kept.__contains__, run)]",
        "[key for key in run if key not in self._kept and key in self._store.states]",
    ),
    "keys that are gone, and come while a bin waits, are not written": Fault(
        "Unwritten.save", "self._kept.update(dict.fromkeys(self._of_changed(absent)))", "None"
    ),
    "what is kept is not written": Fault("Unwritten.is_written", "self._kept", "False"),
    "states that change in place are kept": Fault("are_fixed", "kinds <= _FIXED", "True"),
    "a state changes before it is written": Fault(
        "Journal.touch", "self._unwritten is not None and self._unwritten.is_exposed", "False"
    ),
    "a key of a waiting bin changes before it is written": Fault("Unwritten.save", "self._keep(here)", "None"),
    "a bin goes before its changed keys are written": Fault("Unwritten.save_bin", "self._of_changed(...)", "set()"),
    "a bin goes before it is written whole": Fault("Unwritten.save_bin", "bin in self._bins", "False"),
    "a key that came after the cut is in its bin": Fault(
        "Unwritten._write_bin", "[*filterfalse(self._kept.__contains__, keys[-self._run :])]", "keys[-self._run :]"
    ),
    "a payload changes before it is written": Fault("Journal.fire", "self._unwritten is not None", "False"),
    "deltas older than a base count": Fault("restore", "number >= bases[bin]", "True"),
    "deltas of the base's own cut do not count": Fault("restore", "number >= bases[bin]", "number > bases[bin]"),
    "a newcomer does not hear of checkpoints": Fault(
        "ControlInput._register",
        "isinstance(self._moments, Journal)",
        "isinstance(self._moments, Journal) and self._newcomer is None",
    ),
    "a cut does not look into the young dict": Fault("Journal._cut", "self._freeze()", "None"),
    "a bin goes without what the young dict has of it": Fault("Journal.leaving", "self._merge()", "None"),
    "S does not look for old states": Fault("DurableMachine._outputs", "find_old(key)", "None"),
    "the young dict keeps a key that is gone": Fault("Journal.come_or_go", "self.young.pop(key, None)", "None"),
    "a key that S forgets is not noted": Fault("Journal.come_or_go", "self._present.keys.add(key)", "None"),
    "what the young dict had at a cut is not noted": Fault(
        "Journal._freeze", "self._present.young, self.young = self.young.keys(), None", "self.young = None"
    ),
    "a trial ends and nothing is noted": Fault(
        "Journal._try", "self._noting, self._cuts, self._present.dense = noting, 0, True", "self._noting = noting"
    ),
    "what is merged is not noted": Fault("Journal._merge", "self._present.keys.update(self.young)", "None"),
    "a dense interval before an abandoned cut is forgotten": Fault(
        "Journal._cut", "any(each.dense for each in changed)", "changed[-1].dense"
    ),
    "in a dense job no state is saved before it changes": Fault(
        "Journal.wants_keys", "self._unwritten is not None and self._unwritten.is_exposed", "False"
    ),
    "what led to a checkpoint is dropped before it is committed": Fault(
        "Journal.committed", "each.number > self._committed", "False"
    ),
}


@pytest.mark.parametrize("name", one_quick(FAULTS))
def test_a_planted_fault_is_found_within_200_runs_with_checkpoints(name: str) -> None:
    check_found(FAULTS[name], "cuts")


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_makes_wrong_is_there_once(name: str) -> None:
    planted(FAULTS[name])


@pytest.mark.slow
def test_the_search_finds_nothing_in_the_code_as_it_is() -> None:
    done = search("cuts", 20)
    assert done.returncode == 0, done.stdout + done.stderr
