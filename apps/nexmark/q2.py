"""Q2, selection: the bids on some auctions.

    SELECT Rstream(auction, price) FROM Bid [NOW] WHERE auction = 1007 OR auction = 1020 OR ...

The specification chooses five ids of auctions. A generated stream has every 123rd auction instead, as in Apache Beam's
suite. Bids go to the owner of their auction's bin first, as in Q1.
"""

from typing import Any

from apps.nexmark.events import Event, bids
from apps.nexmark.terms import Terms
from megaflow.timely import Stream


def q2(events: Stream[Event], control: Stream[Any], terms: Terms, bins: int = 256) -> Stream[tuple[int, int]]:
    """Select bids: (auction, price)."""
    skip = terms.auction_skip
    return (
        bids(events)
        .distribute(lambda bid: bid.auction, control, bins=bins, name="Q2")
        .filter(lambda bid: bid.auction % skip == 0)
        .map(lambda bid: (bid.auction, bid.price))
    )
