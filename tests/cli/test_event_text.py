"""Events of a job as lines: a time of day that is clear on any day."""

from datetime import date, datetime

from megaflow.cli.event_text import day_of, event_line
from megaflow.control.job_events import JobEvent, WorkersLeft


def test_an_event_of_another_day_has_its_date() -> None:
    event = JobEvent(1, 7, datetime(2026, 3, 28, 23, 59, 59, 500_000).timestamp(), WorkersLeft((2,)))
    day = date(2026, 3, 28)
    assert day_of(event) == day
    assert event_line(event, day).startswith("23:59:59.500  ")
    assert event_line(event, date(2026, 3, 29)) == f"2026-03-28 {event_line(event, day)}"
