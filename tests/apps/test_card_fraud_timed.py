"""Fraud rules by event time: the alerts equal a loop's over all payments in time, even if workers join and leave."""

from collections import Counter
from pathlib import Path

import pytest

from apps.card_fraud_timed import dataflow
from megaflow.testing import Join, Leave, SimulatedCluster
from tests.apps.timed_payments import TimedPayments


@pytest.mark.slow
def test_payments_are_judged_in_the_order_of_event_time_though_processes_come_and_go(tmp_path: Path) -> None:
    called_late = 0
    for seed in range(5):
        payments = TimedPayments(tmp_path / f"payments{seed}", 400, cards=8, seed=seed)
        cluster = SimulatedCluster(seed)
        cluster.at(record=100, do=Join())
        cluster.at(record=250, do=Leave(1))
        found = Counter(cluster.run(dataflow, lines=[*payments.lines.values()]))
        late = {id for id, _, rule in found if rule == "late"}
        assert found == payments.wanted(late)
        assert not payments.in_time.intersection(late)
        assert {rule for _, _, rule in found} >= {"burst", "abroad"}
        called_late += len(late)
    assert called_late
