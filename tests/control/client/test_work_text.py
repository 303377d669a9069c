"""The work of a worker between two statuses: its share of busy time, and the operator that took it."""

from dataclasses import replace

import pytest

from megaflow.control.client.rate_sample import busy_share, work_text
from megaflow.control.reports import LatencyQuantiles, UsefulTime, WorkerStatus

BEFORE = WorkerStatus(
    1, "running", 77, "h:1", 10, 20, 5.0, LatencyQuantiles(), 2, 7, now=100.0, busy_seconds=3.0,
    useful={"total": UsefulTime(20, 2.0), "seen": UsefulTime(20, 0.5)},
)  # fmt: skip


def later(busy: float, total: float, records: int = 7, **more: object) -> WorkerStatus:
    """Return the status a second later, after so many busy seconds, most of them in `total`."""
    useful = {"total": UsefulTime(20 + records, 2.0 + total), "seen": UsefulTime(60, 0.6), "new": UsefulTime()}
    return replace(BEFORE, now=101.0, busy_seconds=3.0 + busy, useful=useful, **more)


def test_a_busy_worker_names_the_operator_that_takes_its_time_with_the_time_of_a_record() -> None:
    now = later(0.98, 0.91)
    assert busy_share(BEFORE, now) == pytest.approx(0.98)
    assert work_text(BEFORE, now) == "'total' takes 130 ms a record"
    assert work_text(BEFORE, later(0.98, 0.91, records=13_000)) == "'total' takes 70 µs a record"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (None, later(0.98, 0.91)),  # the first status
        (BEFORE, later(0.98, 0.91, pid=78)),  # another process has the id since a restart
        (BEFORE, later(0.3, 0.29)),  # mostly idle
        (BEFORE, later(0.98, 0.1)),  # busy with something else
        (BEFORE, later(0.98, 0.91, records=0)),
        (BEFORE, BEFORE),  # no time has passed
    ],
)
def test_otherwise_no_operator_is_named(before: WorkerStatus | None, now: WorkerStatus) -> None:
    assert work_text(before, now) == ""
    share = busy_share(before, now)
    assert share is None or 0 <= share <= 1
