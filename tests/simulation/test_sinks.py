"""Whole durable jobs that write to sinks, whatever happens to them: see `sinks`. And faults planted in how they do.

By hand: python -m tests.simulation.search sinks 1000.
"""

import pytest

from tests.simulation.lives import check_all
from tests.simulation.planting import Fault, planted
from tests.simulation.sinks import run
from tests.simulation.test_planted_faults import check_found

SEEDS = 100
EVENTS = {"crashed outside", "ended", "failed", "joined", "killed", "remembered", "restarted", "stopped", "went on"}

FAULTS = {
    "a token is committed before its checkpoint is": Fault(
        "OpenSink._cut", "self._settle()", "self._settle()\nself.has_committed(self._number)"
    ),
    "a record of the checkpoint's epoch or later is in its token": Fault(
        "WriteOperator._may_write", "not self._cuts or time < self._cuts[0][0]", "True"
    ),
    "what an earlier run had prepared is not committed": Fault("WorkerSinks.restored", "number, mine", "number, ()"),
    "what is to be delivered is removed before it is": Fault("Commit.files", "self.tokens", "()"),
    "what was prepared for an abandoned checkpoint is forgotten": Fault(
        "OpenSink._settle", "len(self.tokens)", "len([token for token in self.tokens if token.checkpoint == self.done])"
    ),
    "what a worker has prepared that leaves is in no checkpoint": Fault(
        "Checkpoints.learn", "token not in self._in_last", "False"
    ),
    "what a worker has prepared that has left is committed by nobody": Fault(
        "Checkpoints.answered", "one.adopted if worker == first else ()", "()"
    ),
    "a worker that leaves prepares nothing": Fault("WriteOperator._read_commands", "self._is_leaving = True", "pass"),
    "a worker that leaves does not wait until what it has is told": Fault(
        "WriteOperator.run", "self.outlet.hand_over()", "(self.outlet.hand_over(), True)[1]"
    ),
    "a stop does not wait until all is committed": Fault(
        "Checkpointing.settle", "set(draft.ready.committers)", "set()"
    ),
}


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_each_row_is_seen_once_outside(seed: int) -> None:
    run(seed)


@pytest.mark.slow
def test_so_it_is_in_many_more() -> None:
    check_all(run, range(3, SEEDS), EVENTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_of_sinks_is_found_within_200_jobs(name: str) -> None:
    check_found(FAULTS[name], "sinks")


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_of_sinks_makes_wrong_is_there_once(name: str) -> None:
    planted(FAULTS[name])
