"""Parameters of NEXMark: how events are drawn, and how long the windows of the queries are.

The defaults are the specification's: those of the generator as in Apache Beam's suite, those of the windows as in the
queries' CQL text. Tests shorten windows and delays together.
"""

from dataclasses import dataclass

PERSONS, AUCTIONS, BIDS = 1, 3, 46  # of each 50 events
PERIOD = PERSONS + AUCTIONS + BIDS  # events
FIRST_ID = 1000  # of people and of auctions
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_BATCH = 100  # one person or auction in so many is hot
ID_LEAD = 10  # events may name ids up to this far ahead of the last one: arrivals seem swapped

_MINUTE = 60_000
_HOUR = 60 * _MINUTE


@dataclass(frozen=True, slots=True)
class Terms:
    """Parameters of one run of the benchmark."""

    seed: int = 0
    delay_us: int = 100  # event time between two events, microseconds: 10,000 events a second
    in_flight: int = 100  # auctions that are open at once, on average
    active_people: int = 1000  # the newest ones, who sell and bid
    hot_auctions: int = 2  # of this many bids all but one go to a hot auction
    hot_sellers: int = 4  # of this many auctions all but one are a hot seller's
    hot_bidders: int = 4  # of this many bids all but one are a hot bidder's
    person_bytes: int = 200  # on average, as `extra` fills up
    auction_bytes: int = 500
    bid_bytes: int = 100
    auction_skip: int = 123  # Q2 selects every 123rd auction
    last_auctions: int = 10  # Q6 averages so many of each seller
    hot_items_ms: int = 60 * _MINUTE  # Q5: range
    hot_items_slide_ms: int = _MINUTE  # Q5: slide
    highest_bid_ms: int = _MINUTE  # Q7: range and slide
    new_users_ms: int = 12 * _HOUR  # Q8: range

    def __post_init__(self) -> None:
        if self.hot_items_ms % self.hot_items_slide_ms:
            raise ValueError(
                f"hot_items_ms={self.hot_items_ms} is no multiple of hot_items_slide_ms={self.hot_items_slide_ms}: "
                "Q5 counts bids by slides"
            )

    def time_of(self, event: int) -> int:
        """Return the time of an event, by its number."""
        return event * self.delay_us // 1000

    @property
    def patience_ms(self) -> int:
        """Milliseconds that a bid may wait for its auction to open: longer than the lead of ids lasts."""
        return self.time_of((ID_LEAD // AUCTIONS + 2) * PERIOD) + 1
