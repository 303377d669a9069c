"""Aggregates give what one worker gives, per key and time, whatever moves, joins, leaves or is restarted.

By hand: python -m tests.simulation.search aggregates 5000, and "aggregates in jobs" 1000.
"""

import pytest

from tests.simulation.aggregates import run, run_job
from tests.simulation.planting import Fault, planted
from tests.simulation.test_planted_faults import check_found, one_quick, search

SEEDS = 203
_FAST = 3
_SEEDS_PER_TEST = 40
JOB_SEEDS = 61
_FAST_JOBS = 1
_JOBS_PER_TEST = 30

FAULTS = {
    "partial results are sent after their time is closed": Fault(
        "combine.logic",
        "combined[time] = output.mint(time), begin()",
        "held = output.mint(time)\nheld.release()\ncombined[time] = held, begin()",
    ),
    "partial results are sent before all records of their time are in, and the rest apart": Fault(
        "combine.logic", "frontier.less_equal(time)", "frontier.less_than(time)"
    ),
    "partial results are merged a second time where their bin is until it moves": Fault(
        "Forwarder._send",
        "self._splitter.split(batch, history.at(time))",
        "[*self._splitter.split(batch, history.at(time)), *(self._splitter.split(batch, history.active)"
        " if history.active != history.at(time) else ())]",
    ),
    "partial results go by the table that is active when they are sent": Fault(
        "Forwarder._send", "history.at(time)", "history.active"
    ),
    "a key has an output for each worker that has it": Fault("Aggregates._outputs", "list(dict(out).items())", "out"),
    "of a key's partial results the last counts": Fault("Aggregates._outputs", "merge(before, value)", "value"),
    "a state that comes to a key is not noted for the checkpoint": Fault(
        "Aggregates._outputs", "self._core.journal.touch(...)", "None"
    ),
}


@pytest.mark.parametrize(
    "first, seeds",
    [(0, _FAST), *(pytest.param(first, _SEEDS_PER_TEST, marks=pytest.mark.slow)
                   for first in range(_FAST, SEEDS, _SEEDS_PER_TEST))],
)  # fmt: skip
def test_outputs_and_checkpoints_are_those_of_one_worker_whatever_happens(first: int, seeds: int) -> None:
    for seed in range(first, first + seeds):
        run(seed)


@pytest.mark.parametrize(
    "first, seeds",
    [(0, _FAST_JOBS), *(pytest.param(first, _JOBS_PER_TEST, marks=pytest.mark.slow)
                        for first in range(_FAST_JOBS, JOB_SEEDS, _JOBS_PER_TEST))],
)  # fmt: skip
def test_so_they_are_in_jobs_whose_processes_and_disks_fail(first: int, seeds: int) -> None:
    for seed in range(first, first + seeds):
        run_job(seed)


@pytest.mark.parametrize("name", one_quick(FAULTS))
def test_a_planted_fault_is_found_within_200_runs_of_aggregates(name: str) -> None:
    check_found(FAULTS[name], "aggregates")


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_makes_wrong_is_there_once(name: str) -> None:
    planted(FAULTS[name])


@pytest.mark.slow
def test_the_search_finds_nothing_in_the_code_as_it_is() -> None:
    done = search("aggregates", 5)
    assert done.returncode == 0, done.stdout + done.stderr
