"""Sessions of users by event time: clicks less than GAP_SECONDS apart belong together, though they come out of order.

    megaflow run apps/click_sessions.py --lines 'clicks/*.jsonl' --output jsonl:sessions.jsonl \
        --output late=jsonl:late.jsonl

Clicks are JSON lines, `{"id": 7, "ms": 1700000000250, "user": "ann", "category": "tea", "page": "/assam"}`, with the
time in milliseconds since 1970. In each file, a click may come OUT_OF_ORDER seconds behind later ones. A click that
comes after its session was sent goes to the late ones, unchanged. An output is

    (user, first click, last click, clicks)         times in milliseconds, once for each session, when it is over
"""

from typing import Any

from megaflow import session
from megaflow.job.worker.process.flow import Flow
from megaflow.stream import Stream

GAP_SECONDS = 1800
OUT_OF_ORDER = 30  # seconds

Click = dict[str, Any]


def told(result: tuple[str, Any, int]) -> tuple[str, int, int, int]:
    """Return the output of a session. Its window ends when its user could not have clicked again in it."""
    user, window, clicks = result
    return user, window.start, window.end - 1000 * GAP_SECONDS, clicks


def dataflow(flow: Flow) -> Stream[Any]:
    clicks = flow.json_lines().event_time(lambda click: click["ms"], OUT_OF_ORDER, unit="ms")
    sessions = clicks.map(lambda click: (click["user"], click)).window(session(GAP_SECONDS), name="sessions")
    flow.output("late", sessions.late().map(lambda pair: pair[1]))
    return sessions.count().map(told)
