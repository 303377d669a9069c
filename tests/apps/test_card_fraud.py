"""Fraud rules in order of payments: the alerts equal those of a loop, even if workers join and leave."""

from collections import Counter
from pathlib import Path

import pytest

from apps.card_fraud import dataflow
from megaflow.testing import Join, Leave, SimulatedCluster
from tests.apps.fraud import Payments


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_the_alerts_are_those_of_a_plain_loop_though_processes_come_and_go(tmp_path: Path, seed: int) -> None:
    payments = Payments(tmp_path / "payments.csv", 400, cards=12, seed=seed)
    cluster = SimulatedCluster(seed)
    cluster.at(record=100, do=Join())
    cluster.at(record=250, do=Leave(1))
    assert Counter(cluster.run(dataflow, lines=payments.lines)) == payments.wanted
    assert {rule for _, _, rule in payments.wanted} == {"burst", "large", "abroad", "tested"}
