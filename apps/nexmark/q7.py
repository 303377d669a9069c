"""Q7, highest bid: the bids with the highest price of each minute.

    SELECT Rstream(B.auction, B.price, B.bidder) FROM Bid [RANGE 1 MINUTE SLIDE 1 MINUTE] B
    WHERE B.price = (SELECT MAX(B1.price) FROM Bid [RANGE 1 MINUTE SLIDE 1 MINUTE] B1)

Windows are a minute long, as in Apache Beam's suite (the first paper has ten minutes). They do not overlap, and a bid
at the end of one belongs to the next. Results come at the end, with all bids of the highest price.

There are two operators. One keeps each auction's highest bids and sends them when the window ends. The other takes the
highest of all auctions of a window; its key is the window itself.
"""

from typing import Any

from apps.nexmark.events import Event, bids
from apps.nexmark.terms import Terms
from megaflow.megaphone.base.timers import Timers
from megaflow.timely import Stream

Offer = tuple[int, int, int]  # auction, price, bidder

_WINDOW_ENDS = "window ends"  # a timer


def highest(offers: list[Offer]) -> list[Offer]:
    """Take the offers with the highest price."""
    price = max(offer[1] for offer in offers)
    return [offer for offer in offers if offer[1] == price]


def highest_of_all(end: int, time: int, offers: list[Offer], state: None, timers: Timers) -> tuple[None, list[Offer]]:
    """Take the highest offers of one window."""
    return None, highest(offers)


def q7(events: Stream[Event], control: Stream[Any], terms: Terms, bins: int = 256) -> Stream[Offer]:
    """Find the highest bids."""
    size = terms.highest_bid_ms

    def highest_of_auction(
        auction: int, time: int, news: list[Offer | str], best: list[Offer] | None, timers: Timers
    ) -> tuple[list[Offer] | None, list[tuple[int, Offer]]]:
        results: list[tuple[int, Offer]] = []
        if _WINDOW_ENDS in news:
            results = [(time, offer) for offer in best or []]
            best = None
        offers = [new for new in news if not isinstance(new, str)]
        if not offers:
            return best, results
        if best is None:
            timers.at((time // size + 1) * size, _WINDOW_ENDS)
        return highest([*(best or []), *offers]), results

    offers: Stream[tuple[int, Offer | str]] = bids(events).map(
        lambda bid: (bid.auction, (bid.auction, bid.price, bid.bidder))
    )
    windows = offers.stateful_unary(highest_of_auction, control=control, bins=bins, name="Highest")
    return windows.stateful_unary(highest_of_all, control=control, bins=bins, name="Q7")
