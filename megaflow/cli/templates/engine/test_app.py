"""The numbers of stops are the fewest, whatever the order of the steps, and while stations move between workers."""

from megaflow.testing import Join, Kill, SimulatedCluster, seeds

from app import dataflow

RING = [*(f"s{number} s{number + 1}" for number in range(20)), "airport s0", "airport s20"]
EXPECTED = {f"s{number}": min(number, 20 - number) + 1 for number in range(21)}


@seeds(3)  # seeds 0, 1 and 2; each decides another order of steps
def test_stops_are_the_fewest_while_stations_move(seed: int) -> None:
    cluster = SimulatedCluster(seed, processes=2)
    cluster.at(record=10, do=Join())  # a process joins and receives its share of the stations
    assert dict(cluster.run(dataflow, lines=RING)) == EXPECTED  # the last number of each


@seeds(3)
def test_stops_are_the_fewest_after_a_crash(seed: int) -> None:
    cluster = SimulatedCluster(seed, processes=2, durable=True)  # as with --state
    cluster.at(record=10, do=Kill())
    assert dict(cluster.run(dataflow, lines=RING)) == EXPECTED
