"""Windows of out-of-order clicks equal a loop's over all clicks not reported late, even if workers join and leave."""

from pathlib import Path
from typing import Any

import pytest

from apps import click_sessions, top_ten
from apps.bench.clicks import faults, write_clicks
from megaflow.testing import Join, Leave, SimulatedCluster

DATAFLOWS = {"click_sessions": click_sessions.dataflow, "top_ten": top_ten.dataflow}
CLICKS = 400


@pytest.mark.slow
@pytest.mark.parametrize("app", DATAFLOWS)
def test_results_are_a_loops_though_processes_come_and_go(tmp_path: Path, app: str) -> None:
    called_late = 0
    for seed in range(5):
        paths = write_clicks(tmp_path / f"clicks{seed}", CLICKS, seed, 0.02)
        cluster = SimulatedCluster(seed)
        cluster.at(record=100, do=Join())
        cluster.at(record=250, do=Leave(1))
        late: list[Any] = []
        found = cluster.run(DATAFLOWS[app], lines=f"{tmp_path}/clicks{seed}/*", outputs={"late": late})
        assert faults(paths, app, CLICKS, found, [click["id"] for click in late]) == []
        called_late += len(late)
    assert called_late
