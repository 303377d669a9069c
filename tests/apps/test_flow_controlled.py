"""apps/flow_controlled.py: a frontier that goes around a loop admits the work of one time at once."""

import sys

import pytest

from apps.flow_controlled import main
from megaflow.timely.dataflow.flow_control import handoffs
from megaflow.timely.dataflow.flow_control.handoffs import Bounds
from megaflow.timely.dataflow.fusion.stage import LARGEST_BATCH_RECORDS
from tests.timely.cases import run_threads
from tests.timely.workers import EVERY

ALL = sum(range(2000))
LARGEST_TIME = sum(range(1900, 2000))


@pytest.mark.parametrize("workers", EVERY)
def test_at_most_one_times_work_waits_behind_the_gate(workers: int) -> None:
    """Case 50."""
    found = run_threads(workers, main)
    assert sum(made for made, _ in found) == ALL == 1_999_000
    assert 0 < sum(most for _, most in found) <= LARGEST_TIME == 194_950


def test_without_the_gate_and_without_bounds_nearly_all_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 50."""
    monkeypatch.setattr(handoffs, "Bounds", lambda: Bounds(sys.maxsize, sys.maxsize))
    assert run_threads(1, main, "2000", "ungated") == [(ALL, ALL)]


def test_without_the_gate_the_queues_bounds_keep_it_to_little_more_than_they_hold() -> None:
    [(made, most)] = run_threads(1, main, "2000", "ungated")
    assert made == ALL
    assert most <= Bounds().queue_records + LARGEST_BATCH_RECORDS + 2000, "a queue, a batch and a number's records"
