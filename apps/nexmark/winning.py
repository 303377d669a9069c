"""Winning bids: the price of each auction that is sold, when it closes. Q4 and Q6 build on it.

    SELECT Rstream(MAX(B.price), A.*) FROM Auction A [ROWS UNBOUNDED], Bid B [ROWS UNBOUNDED]
    WHERE A.id = B.auction AND B.datetime < A.expires AND A.expires < CURRENT_TIME GROUP BY A.id

As in Apache Beam's suite the winner must reach the reserve, otherwise the auction ends without a result. The result
comes at `expires` itself; a bid at that very time is late.

A bid that comes before its auction opens counts, so it must wait. A bid for an auction that has closed looks the same,
because the auction is forgotten. So a bid waits only as long as arrivals can be swapped (`Terms.patience_ms`). Then it
is also forgotten: no state outlives its auction for long.
"""

from typing import Any, NamedTuple

from apps.nexmark.events import Event, auctions, bids
from apps.nexmark.terms import Terms
from megaflow.megaphone.base.timers import Timers
from megaflow.timely import Stream


class Sale(NamedTuple):
    """State of an open auction."""

    id: int
    reserve: int
    expires: int
    seller: int
    category: int


Sold = tuple[Sale, int]  # the auction, the winning price
Known = tuple[Sale | None, int]  # the auction once it is open, the highest bid so far (0: none)

News = Sale | str  # the auction opens, or a timer

_CLOSE, _FORGET = "close", "forget"  # timers


def winning_bids(events: Stream[Event], control: Stream[Any], terms: Terms, bins: int) -> Stream[Sold]:
    """Return the auctions that are sold, each at the time when it closes."""
    patience = terms.patience_ms

    def fold(
        id: int, time: int, news: list[News], prices: list[int], known: Known | None, timers: Timers
    ) -> tuple[Known | None, list[Sold]]:
        sale, best = known or (None, 0)
        if _CLOSE in news:
            assert sale is not None
            return None, [(sale, best)] if 0 < best >= sale.reserve else []
        for new in news:
            if isinstance(new, Sale):
                sale = new
                timers.at(sale.expires, _CLOSE)
        if sale is None and _FORGET in news:
            return None, []
        if sale is None and known is None:
            timers.at(time + patience, _FORGET)
        return (sale, max([best, *prices])), []

    sales: Stream[tuple[int, News]] = auctions(events).map(
        lambda one: (one.id, Sale(one.id, one.reserve, one.expires, one.seller, one.category))
    )
    prices = bids(events).map(lambda bid: (bid.auction, bid.price))
    return sales.stateful_binary(prices, fold, control=control, bins=bins, name="WinningBids")


def average(total: int, count: int) -> int:
    """Return the mean of prices, to the nearest cent, half a cent upwards."""
    return (2 * total + count) // (2 * count)
