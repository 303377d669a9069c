"""Q5, hot items: which auctions have had the most bids in the last hour? There is a result every minute.

    SELECT Rstream(auction) FROM (SELECT B1.auction, count(*) AS num
                                  FROM Bid [RANGE 60 MINUTE SLIDE 1 MINUTE] B1 GROUP BY B1.auction)
    WHERE num >= ALL (SELECT count(*) FROM Bid [RANGE 60 MINUTE SLIDE 1 MINUTE] B2 GROUP BY B2.auction)

Windows begin at multiples of the slide. They end before their last millisecond is over: a bid at the end belongs to the
next window. Results come at the end of a window, also of the first windows, which begin before the stream does. A
result has all auctions with the most bids, and the number of bids, as in Apache Beam's suite.

There are two operators. One counts each auction's bids by slides and adds them up when a window ends. The other takes
the greatest count of all auctions of a window; its key is the window itself.
"""

from typing import Any

from apps.nexmark.events import Event, bids
from apps.nexmark.terms import Terms
from megaflow.megaphone.base.timers import Timers
from megaflow.timely import Stream

Count = tuple[int, int]  # auction, bids
Slides = dict[int, int]  # number of the slide -> bids in it

_WINDOW_ENDS = "window ends"  # a timer


def hottest(end: int, time: int, counts: list[Count], state: None, timers: Timers) -> tuple[None, list[Count]]:
    """Take the auctions with the most bids in one window."""
    most = max(count for _, count in counts)
    return None, [one for one in counts if one[1] == most]


def q5(events: Stream[Event], control: Stream[Any], terms: Terms, bins: int = 256) -> Stream[Count]:
    """Find hot items: (auction, bids)."""
    size, slide = terms.hot_items_ms, terms.hot_items_slide_ms

    def count(
        auction: int, time: int, news: list[str | None], slides: Slides | None, timers: Timers
    ) -> tuple[Slides | None, list[tuple[int, Count]]]:
        slides, results = slides or {}, []
        is_armed = bool(slides) and _WINDOW_ENDS not in news
        if _WINDOW_ENDS in news:
            results = [(time, (auction, sum(slides.values())))]
            slides.pop((time - size) // slide, None)  # the first of the window that ends is not in the next
        new_bids = len(news) - news.count(_WINDOW_ENDS)
        if new_bids:
            slides[time // slide] = slides.get(time // slide, 0) + new_bids
        if slides and not is_armed:
            timers.at((time // slide + 1) * slide, _WINDOW_ENDS)
        return slides or None, results

    counts: Stream[tuple[int, str | None]] = bids(events).map(lambda bid: (bid.auction, None))
    windows = counts.stateful_unary(count, control=control, bins=bins, name="Counts")
    return windows.stateful_unary(hottest, control=control, bins=bins, name="Q5")
