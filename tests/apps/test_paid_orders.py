"""Orders joined with payments from two inputs of lines, in any order of the lines."""

from collections import Counter
from pathlib import Path

import pytest

from apps.paid_orders import dataflow
from megaflow.testing import Join, Leave, SimulatedCluster
from tests.apps.paid import Shop


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_what_is_paid_follows_from_the_lines_however_they_meet(tmp_path: Path, seed: int) -> None:
    shop = Shop(tmp_path, 60, seed)
    lines = {"orders": tmp_path / "orders.csv", "payments": tmp_path / "payments"}
    cluster = SimulatedCluster(seed)
    cluster.at(record=20, do=Join())
    cluster.at(record=50, do=Leave(1))
    assert Counter(cluster.run(dataflow, lines=lines)) == shop.wanted
    assert {kind for kind, *_ in shop.wanted} == {"paid", "left"} and len(shop.wanted) > 40
