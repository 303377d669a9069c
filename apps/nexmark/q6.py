"""Q6, average selling price by seller: the mean of the last ten auctions that each seller has sold.

    SELECT Istream(AVG(Q.final), Q.seller) FROM (winning bids) [PARTITION BY A.seller ROWS 10] Q GROUP BY Q.seller

The winning bids are those of `winning`. The last auctions are those that closed last. Auctions that close at the same
time count in the order of their ids, and together: one result for each seller and time.
"""

from typing import Any

from apps.nexmark.events import Event
from apps.nexmark.terms import Terms
from apps.nexmark.winning import average, winning_bids
from megaflow.megaphone.base.timers import Timers
from megaflow.timely import Stream


def q6(events: Stream[Event], control: Stream[Any], terms: Terms, bins: int = 256) -> Stream[tuple[int, int]]:
    """Average prices: (seller, average of the last ten)."""

    def last_prices(
        seller: int, time: int, sold: list[tuple[int, int]], prices: list[int] | None, timers: Timers
    ) -> tuple[list[int], list[tuple[int, int]]]:
        prices = [*(prices or []), *(price for _, price in sorted(sold))][-terms.last_auctions :]
        return prices, [(seller, average(sum(prices), len(prices)))]

    sold = winning_bids(events, control, terms, bins).map(lambda one: (one[0].seller, (one[0].id, one[1])))
    return sold.stateful_unary(last_prices, control=control, bins=bins, name="Q6")
