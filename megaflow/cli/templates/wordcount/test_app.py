"""The counts are right while processes join, leave and crash: see docs/testing.md of megaflow."""

from megaflow.testing import Crash, Join, Kill, Leave, SimulatedCluster, seeds

from app import dataflow

FILES = [["a rose", "a mill"] * 50, ["The mill."] * 100]
EXPECTED = {"a": 100, "rose": 50, "mill": 150, "the": 100}


@seeds(3)  # seeds 0, 1 and 2; each decides another order of steps
def test_counts_survive_changes_of_the_workers(seed: int) -> None:
    cluster = SimulatedCluster(seed, processes=2)
    cluster.at(record=50, do=Join())  # a process joins and receives its share of the words
    cluster.at(record=120, do=Leave(1))
    outputs = cluster.run(dataflow, lines=FILES)
    assert dict(outputs) == EXPECTED  # the last count of each word


@seeds(3)
def test_each_word_is_counted_once_after_a_crash(seed: int) -> None:
    cluster = SimulatedCluster(seed, durable=True)  # as with --state
    cluster.at(record=50, do=Kill())  # a process dies, and the job resumes from its last checkpoint
    cluster.at(record=120, do=Crash())  # all processes die, and the same command runs again
    outputs = cluster.run(dataflow, lines=FILES)
    assert dict(outputs) == EXPECTED and len(outputs) == sum(EXPECTED.values())
