"""Totals are right while processes join and leave. The simulated cluster has no Spark: items take the rows' place."""

from megaflow.testing import Join, Leave, SimulatedCluster, seeds

from app import totals

ORDERS = [("ann", 100), ("bob", 200), ("ann", 300)] * 20


@seeds(3)  # seeds 0, 1 and 2; each decides another order of steps
def test_totals_survive_changes_of_the_workers(seed: int) -> None:
    cluster = SimulatedCluster(seed, processes=2, rate=60)  # orders per second: both changes then take place
    cluster.at(record=20, do=Join())
    cluster.at(record=40, do=Leave(1))
    outputs = cluster.run(lambda flow: totals(flow.items()), items=ORDERS)
    assert {customer: last for customer, *last in outputs} == {"ann": [40, 8000], "bob": [20, 4000]}
    assert len(outputs) == len(ORDERS)
