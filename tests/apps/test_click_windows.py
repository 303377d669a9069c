"""Windows of clicks that are out of order: whoever comes and goes, a loop's over all that are not called late."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps import click_sessions, top_ten
from apps.bench.clicks import faults, write_clicks
from megaflow.job.worker.flow import Flow
from megaflow.stream import Stream
from megaflow.testing import Join, Leave, SimulatedCluster

DATAFLOWS = {"click_sessions": click_sessions.dataflow, "top_ten": top_ten.dataflow}
CLICKS = 400


class LateBeside:
    """A flow for an app, which keeps the stream that the app gives out by name."""

    def __init__(self, flow: Flow) -> None:
        self.json_lines = flow.json_lines

    def output(self, name: str, stream: Stream[Any]) -> None:
        self.late = stream.plain()


def in_one(app: Callable[[Any], Stream[Any]]) -> Callable[[Flow], Stream[Any]]:
    """Return a dataflow whose only output has both streams of an app, each record with a word that says of which."""

    def dataflow(flow: Flow) -> Stream[Any]:
        beside = LateBeside(flow)
        results = app(beside).plain().map(lambda result: ("result", result))
        return results.concat(beside.late.map(lambda click: ("late", click["id"])))

    return dataflow


@pytest.mark.slow
@pytest.mark.parametrize("app", DATAFLOWS)
def test_results_are_a_loops_though_processes_come_and_go(tmp_path: Path, app: str) -> None:
    called_late = 0
    for seed in range(5):
        paths = write_clicks(tmp_path / f"clicks{seed}", CLICKS, seed, 0.02)
        cluster = SimulatedCluster(seed, workers=2)
        cluster.at(record=100, do=Join())
        cluster.at(record=250, do=Leave(1))
        found = cluster.run(in_one(DATAFLOWS[app]), lines={path.name: path.read_text().splitlines() for path in paths})
        late = [record for kind, record in found if kind == "late"]
        assert faults(paths, app, CLICKS, [record for kind, record in found if kind == "result"], late) == []
        called_late += len(late)
    assert called_late
