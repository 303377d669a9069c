"""Events of NEXMark's auction house: a person registers, an auction opens, a bid is made.

Times are milliseconds since the first event. Money is whole cents.
"""

from typing import NamedTuple, TypeAlias

from megaflow.timely import Stream


class Person(NamedTuple):
    """A person registers, to sell or to bid."""

    id: int
    name: str
    email: str
    credit_card: str
    city: str
    state: str
    time: int
    extra: str


class Auction(NamedTuple):
    """An item is put up for sale; bids before `expires` count if they reach the reserve."""

    id: int
    item: str
    description: str
    initial_bid: int
    reserve: int
    time: int
    expires: int
    seller: int
    category: int
    extra: str


class Bid(NamedTuple):
    """A person offers a price."""

    auction: int
    bidder: int
    price: int
    time: int
    extra: str


Event: TypeAlias = Person | Auction | Bid


def people(events: Stream[Event]) -> Stream[Person]:
    """Return the people who register."""
    return events.flat_map(lambda event: [event] if isinstance(event, Person) else [])


def auctions(events: Stream[Event]) -> Stream[Auction]:
    """Return the auctions that open."""
    return events.flat_map(lambda event: [event] if isinstance(event, Auction) else [])


def bids(events: Stream[Event]) -> Stream[Bid]:
    """Return the bids."""
    return events.flat_map(lambda event: [event] if isinstance(event, Bid) else [])
