"""The ten most clicked pages of each category, minute by minute of event time: a window after a window.

    megaflow run apps/top_ten.py --lines 'clicks/*.jsonl' --output jsonl:top.jsonl --output late=jsonl:late.jsonl

Clicks are those of `click_sessions.py`. The first window counts each page, spread over all workers. Its counts have the
timestamp of their minute, so the second window combines those of a category. An output is

    (category, minute, [(page, clicks), …])         most first, equal ones by name; once, when the minute is over
"""

from typing import Any

from megaflow import tumbling
from megaflow.job.worker.process.flow import Flow
from megaflow.stream import Stream

MINUTE_SECONDS = 60
OUT_OF_ORDER = 30  # seconds
TOP = 10

Count = tuple[str, int]  # a page, and how often it was clicked
NOTHING: list[Count] = []


def more(top: list[Count], count: Count) -> list[Count]:
    """Return the most clicked pages after adding one page."""
    return sorted([*top, count], key=lambda each: (-each[1], each[0]))[:TOP]


def of_category(result: tuple[tuple[str, str], Any, int]) -> tuple[str, Count]:
    """Return what one page contributes to its category."""
    (category, page), _, clicks = result
    return category, (page, clicks)


def dataflow(flow: Flow) -> Stream[Any]:
    clicks = flow.json_lines().event_time(lambda click: click["ms"], OUT_OF_ORDER, unit="ms")
    by_page = clicks.map(lambda click: ((click["category"], click["page"]), click))
    pages = by_page.window(tumbling(MINUTE_SECONDS), name="pages")
    flow.output("late", pages.late().map(lambda pair: pair[1]))
    tops = pages.count().map(of_category).window(tumbling(MINUTE_SECONDS), name="tops").fold(NOTHING, more)
    return tops.map(lambda result: (result[0], result[1].start, result[2]))
