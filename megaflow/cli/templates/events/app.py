"""Visits of users to a site: clicks less than half an hour apart belong together, though they come out of order."""

from datetime import datetime, timedelta
from typing import Any

from megaflow import Flow, Stream, Window, session

GAP = timedelta(minutes=30)
OUT_OF_ORDER = timedelta(minutes=1)  # a click that comes later than this behind others may be too late for its visit

Visit = tuple[str, str, str, list[str]]  # user, first click, last click, pages


def at(click: dict[str, Any]) -> datetime:
    """Return the time of a click: its *event time*, whenever it is read."""
    return datetime.fromisoformat(click["at"])


def visit(result: tuple[str, Window, list[str]]) -> Visit:
    """Return the output for a window. It ends at the time until which another click would have belonged to it."""
    user, window, pages = result
    return user, window.start.isoformat(), (window.end - GAP).isoformat(), pages


def dataflow(flow: Flow) -> Stream[Visit]:
    """Return the visits, each once when it is over. Late clicks go to an output of their own."""
    clicks = flow.json_lines().event_time(at, OUT_OF_ORDER)
    visits = clicks.map(lambda click: (click["user"], click["page"])).window(session(GAP), name="visits")
    flow.output("late", visits.late())
    return visits.collect().map(visit)
