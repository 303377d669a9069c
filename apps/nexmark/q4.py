"""Q4, average price for a category: the mean price of the auctions of each category that have been sold so far.

    SELECT Istream(AVG(Q.final)) FROM Category C, (winning bids) Q WHERE Q.category = C.id GROUP BY C.id

The winning bids are those of `winning`. The category is given with its average; the table of categories adds nothing.
There is one result for each category and time at which auctions of it are sold, and it includes all of that time. The
average is over the whole past, as in the specification; Apache Beam's suite uses a sliding window instead.
"""

from typing import Any

from apps.nexmark.events import Event
from apps.nexmark.terms import Terms
from apps.nexmark.winning import average, winning_bids
from megaflow.megaphone.base.timers import Timers
from megaflow.timely import Stream

Totals = tuple[int, int]  # sum of prices, how many


def average_price(
    category: int, time: int, prices: list[int], totals: Totals | None, timers: Timers
) -> tuple[Totals, list[tuple[int, int]]]:
    """Count what was sold at one time."""
    total, count = totals or (0, 0)
    total, count = total + sum(prices), count + len(prices)
    return (total, count), [(category, average(total, count))]


def q4(events: Stream[Event], control: Stream[Any], terms: Terms, bins: int = 256) -> Stream[tuple[int, int]]:
    """Average prices: (category, average so far)."""
    sold = winning_bids(events, control, terms, bins).map(lambda one: (one[0].category, one[1]))
    return sold.stateful_unary(average_price, control=control, bins=bins, name="Q4")
