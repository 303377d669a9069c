"""Orders through Spark: the parts of the app around its job."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from megaflow.control.reports import JobStatus, LatencyQuantiles, MoveReport, OperatorStatus, WorkerStatus

WORKER = WorkerStatus(0, "running", 77, "127.0.0.1:2101", 0, 0, 0.0, LatencyQuantiles(), 0, 0)


def test_every_other_bin_moves_though_a_worker_is_too_busy_to_say_how_it_is() -> None:
    pytest.importorskip("pyspark")
    from apps.spark_orders import move_half

    workers, table, moved = (2, 3, 5), (2, 3, 5, 2, 3, 5), []
    answered = [replace(WORKER, id=worker) for worker in workers if worker != 3]
    operators = (OperatorStatus("spend", len(table), table),)
    status = JobStatus("orders", "running", 1, 1, tuple(answered), operators, silent=(3,))

    def move_bins(map: str, **_: Any) -> MoveReport:
        moved.append(map)
        return MoveReport(1, 3, 0, 0, 0.0, (1,))

    move_half(SimpleNamespace(status=lambda: status, move_bins=move_bins))
    assert moved == ["2 5 5 3 3 2"]
