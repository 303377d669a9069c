"""Whole durable jobs that Spark feeds, in one thread, with crashes and restarts: see `durable_spark`.

By hand: python -m tests.simulation.search "durable Spark" 1000.
"""

import pytest

from tests.simulation.durable_spark import run
from tests.simulation.lives import check_all
from tests.simulation.planting import Fault, planted
from tests.simulation.test_planted_faults import check_found

SEEDS = 40
_SEEDS_PER_TEST = 20
EVENTS = {  # in each of these tests
    "committed", "crashed", "ended", "failed", "half taken", "joined", "replayed", "stopped", "went on with a half",
}  # fmt: skip

FAULTS = {
    "a batch is answered before it is durable": Fault("Commits._is_durable", "self._durable is None", "True"),
    "a batch is answered when a checkpoint is committed, be it of an earlier epoch": Fault(
        "Checkpoints.answered", "self._commits.kept(one.spark)", "self._commits.kept(self._commits.newest)"
    ),
    "what a source has not taken in is in no segment": Fault(
        "LineSource._tell_position", "self.queue.untaken()", "None"
    ),
    "what a source has looked up ahead is in no segment": Fault(
        "LineQueue.untaken", "self._next if self._from_spark else ()", "()"
    ),
    "the chunk that is half taken is kept whole": Fault(
        "OpenLines.rest", "self._text[self._position:]", "self._text"
    ),
    "what is left is nobody's after a restart": Fault(
        "WorkerProgram._reading", "self._queue.staging.restore(self._kept.restaged())", "pass"
    ),
    "a batch that is replayed after its commit enters again": Fault(
        "KeptState.durable",
        """Durable(
            operators, every, commit.checkpoint, commit.time, commit.next_worker, code, commit.spark, untaken, whole,
            table, commit.portions, commit.finished,
            watermark=commit.watermark, clock=commit.clock, bound=commit.bound,
        )""",
        "Durable(operators, every, commit.checkpoint, commit.time, commit.next_worker, code, whole=whole, table=table)",
    ),
    "the next coordinator does not know what is durable": Fault(
        "Commits.resume", "None if state.durable is None else dict(state.durable)", "None"
    ),
}


@pytest.mark.parametrize("seed", range(3))
def test_a_restart_goes_on_with_the_batch_where_the_checkpoint_was(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_lines_are_neither_lost_nor_doubled_and_a_batch_is_answered_when_it_is_durable(first: int) -> None:
    check_all(run, range(first, first + _SEEDS_PER_TEST), EVENTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_within_40_jobs(name: str) -> None:
    check_found(FAULTS[name], "durable Spark", 40)


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_of_durable_spark_makes_wrong_is_there_once(name: str) -> None:
    planted(FAULTS[name])
