"""The components of apps/components.py, compared with a union of sets, on a job's lines."""

import pytest

from apps.components import dataflow
from megaflow.testing import Join, SimulatedCluster
from tests.simulation.loops import told

EDGES = [("c", "d"), ("a", "b"), ("e", "f"), ("d", "e"), ("g", "g"), ("b", "c"), ("h", "i")]


@pytest.mark.slow
def test_every_node_is_told_the_least_node_of_its_component_last() -> None:
    cluster = SimulatedCluster(seed=3)
    cluster.at(record=2, do=Join())
    lines = [" ".join(edge) for edge in EDGES]
    last = dict(cluster.run(dataflow, lines=[lines[:4], ["", *lines[4:]]]))
    assert last == dict(label for _, label in told((0, edge) for edge in EDGES))
