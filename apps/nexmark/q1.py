"""Q1, currency conversion: each bid with its price in another currency.

    SELECT Istream(auction, DOLTOEUR(price), bidder, datetime) FROM bid [ROWS UNBOUNDED]

The rate is the 89 for 100 of Apache Beam's suite; fractions of a cent are dropped. The query needs no state. Bids go to
the owner of their auction's bin, so that moving bins moves work.
"""

from typing import Any

from apps.nexmark.events import Event, bids
from apps.nexmark.terms import Terms
from megaflow.timely import Stream

Converted = tuple[int, int, int, int]  # auction, bidder, price, time


def q1(events: Stream[Event], control: Stream[Any], terms: Terms, bins: int = 256) -> Stream[Converted]:
    """Convert prices."""
    return (
        bids(events)
        .distribute(lambda bid: bid.auction, control, bins=bins, name="Q1")
        .map(lambda bid: (bid.auction, bid.bidder, bid.price * 89 // 100, bid.time))
    )
