"""Epochs are as short as the waiting operations need, and no shorter."""

from hypothesis import given
from hypothesis import strategies as st

from megaflow.control.coordinator.base.epoch_clock import (
    BUSY_SECONDS,
    TICK_BUSY_SECONDS,
    TICK_IDLE_SECONDS,
    TICK_SATURATED_SECONDS,
    Pace,
)
from megaflow.control.messages import Busy

reports = st.lists(st.tuples(st.booleans(), st.floats(0, 1)), max_size=6)


@given(reports=reports, urgent=st.booleans(), lags=st.booleans(), now=st.floats(0, 2))
def test_the_most_pressing_of_the_last_reports_decides(
    reports: list[tuple[bool, float]], urgent: bool, lags: bool, now: float
) -> None:
    pace = Pace()
    pace.advanced(0.0)
    reports = sorted(report for report in reports if report[1] <= now)
    for saturated, at in sorted(reports, key=lambda report: report[1]):
        pace.busy(Busy(saturated), at)
    recent = {saturated for saturated, at in reports if now < at + BUSY_SECONDS}
    if urgent or False in recent:
        expected = TICK_BUSY_SECONDS
    elif recent:
        expected = TICK_SATURATED_SECONDS
    else:
        expected = TICK_BUSY_SECONDS if lags else TICK_IDLE_SECONDS
    assert pace.due(urgent, lags, now) == expected


def test_the_first_epoch_ends_at_once() -> None:
    assert Pace().due(urgent=False, lags=False, now=0.0) < 0.0
