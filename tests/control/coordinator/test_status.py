"""The loads that workers report become one: nothing is lost, whoever owns a bin by now."""

from megaflow.control.coordinator.status import operator_statuses
from megaflow.control.messages import StatusAnswer
from megaflow.control.reports import LatencyQuantiles, OperatorLoad, OperatorStatus, WorkerStatus

Row = tuple[int, float, float, int, int]  # bin, records per second, busy ms per second, keys, bytes


def said(worker: int, *loads: OperatorLoad) -> StatusAnswer:
    return StatusAnswer(0, WorkerStatus(worker, "", 1, "h:1", 0, 0, 0.0, LatencyQuantiles(), 0, 0), loads)


def part(name: str, *rows: Row, hot: tuple[tuple[str, int, float, float], ...] = ()) -> OperatorLoad:
    return OperatorLoad(name, *(tuple(column) for column in zip(*rows)), hot)  # type: ignore[arg-type]


def test_the_parts_of_a_bin_that_has_moved_are_added() -> None:
    before = part("count", (3, 10.0, 500.0, 0, 0), (1, 1.0, 0.0, 2, 20), hot=(("'the'", 3, 8.0, 1.0),))
    after = part("count", (3, 4.0, 250.0, 7, 70), hot=(("'the'", 3, 4.0, 0.5), ("'a'", 1, 1.0, 0.0)))
    other = part("other", (0, 0.0, 0.0, 1, 5))
    operators = {"count": 4, "other": 4, "idle": 4}
    assert operator_statuses([said(0, before, other), said(1, after)], operators, (0, 0, 0, 1)) == (
        OperatorStatus("count", 4, (0, 0, 0, 1), part(
            "count", (3, 14.0, 750.0, 7, 70), (1, 1.0, 0.0, 2, 20),
            hot=(("'the'", 3, 12.0, 1.5), ("'a'", 1, 1.0, 0.0)),
        )),
        OperatorStatus("other", 4, (0, 0, 0, 1), other),
        OperatorStatus("idle", 4, (0, 0, 0, 1)),
    )  # fmt: skip
    assert operator_statuses([said(0)], {"count": 4}, None) == (OperatorStatus("count", 4),)
