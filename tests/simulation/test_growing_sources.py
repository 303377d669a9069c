"""Durable jobs that read a source whose partitions come and grow: see `growing_sources`."""

import pytest

from tests.simulation.growing_sources import run
from tests.simulation.lives import check_all
from tests.simulation.planting import Fault, planted
from tests.simulation.test_planted_faults import check_found

SEEDS = 30
EVENTS = {"ended", "failed", "forgotten", "killed", "moved", "stopped", "went on"}

FAULTS = {
    "a partition is handed back behind what was looked up ahead": Fault(
        "PortionReader.rest", "self._before if untaken else self._position", "self._position"
    ),
    "a resume does not know which partitions were wholly read": Fault(
        "CommitDraft.commit", "portion.number not in left", "False"
    ),
    "the next coordinator knows no partition": Fault("Partitions.state", "self.known", "()"),
    "a partition that is named no more is forgotten before it is read": Fault(
        "Partitions._forget", "portion.number not in self._unread", "True"
    ),
    "a partition is forgotten that is named": Fault("Partitions._forget", "portion.partition not in named", "True"),
    "who asks a source forgets how a partition is encoded that is being read": Fault(
        "Discovery._found", "is_known(name, encoded)", "False"
    ),
    "a partition that is idle is forgotten by a checkpoint": Fault(
        "OpenPortions._readers", "(reader for reader, _ in self._idle.values())", "()"
    ),
}


@pytest.mark.parametrize("seed", range(1))
def test_each_record_comes_once_in_the_order_of_its_partition_whatever_happens(seed: int) -> None:
    run(seed)


@pytest.mark.slow
def test_so_it_is_in_many_more() -> None:
    check_all(run, range(SEEDS), EVENTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_of_sources_is_found_within_200_jobs(name: str) -> None:
    check_found(FAULTS[name], "sources")


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_of_sources_makes_wrong_is_there_once(name: str) -> None:
    planted(FAULTS[name])
