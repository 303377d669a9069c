"""Generator of NEXMark's events: event n depends only on the seed and on n, so that any worker can make any part.

The rules are those of the generator in Apache Beam's suite; the code and the drawn numbers are ours. Of 50 events the
first is a person, the next three are auctions, the others bids. Most auctions are a hot seller's; half of the bids go
to a hot auction, most are a hot bidder's. Events may name sellers and auctions a little before these come, as if two
arrivals were swapped.
"""

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from string import ascii_lowercase

from apps.nexmark.events import Auction, Bid, Event, Person
from apps.nexmark.terms import (
    AUCTIONS,
    CATEGORIES,
    FIRST_CATEGORY,
    FIRST_ID,
    HOT_BATCH,
    ID_LEAD,
    PERIOD,
    PERSONS,
    Terms,
)

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Astoria", "Burbank", "Casper", "Eugene", "Flagstaff", "Fresno", "Medford", "Moscow", "Tacoma", "Yuma")
_FIRST_NAMES = ("Ada", "Alan", "Barbara", "Edsger", "Frances", "Grace", "John", "Kathleen", "Niklaus", "Robin", "Tony")
_LAST_NAMES = ("Allen", "Antonelli", "Backus", "Church", "Goldberg", "Hopper", "Lovelace", "Milner", "Scott")
_INT_BYTES = 8


def generate(terms: Terms, numbers: Iterable[int]) -> Iterator[tuple[int, Event]]:
    """Yield the events with these numbers, each with its time; in order of time if the numbers are in order."""
    for number in numbers:
        yield terms.time_of(number), event(terms, number)


def event(terms: Terms, number: int) -> Event:
    """Make the event with this number."""
    dice = _Dice(terms, number)
    offset = number % PERIOD
    if offset < PERSONS:
        return _person(dice)
    if offset < PERSONS + AUCTIONS:
        return _auction(dice)
    return _bid(dice)


def last_person(number: int) -> int:
    """Return how many people came before the last one, at the event with this number.

    >>> [last_person(number) for number in (0, 1, 49, 50)]
    [0, 0, 0, 1]
    """
    period, offset = divmod(number, PERIOD)
    return period * PERSONS + min(offset, PERSONS - 1)


def last_auction(number: int) -> int:
    """Return how many auctions came before the last one, at the event with this number; -1 before the first.

    >>> [last_auction(number) for number in (0, 1, 3, 49, 50, 51)]
    [-1, 0, 2, 2, 2, 3]
    """
    period, offset = divmod(number, PERIOD)
    return period * AUCTIONS + min(max(offset - PERSONS, -1), AUCTIONS - 1)


class _Dice:
    """Random draws for one event. They use only `random()`, which alone is the same in every version of Python."""

    def __init__(self, terms: Terms, number: int) -> None:
        self.terms = terms
        self.number = number
        self._draw = Random((terms.seed << 64) + number).random

    def below(self, bound: int) -> int:
        """Draw a number."""
        return int(self._draw() * bound)

    def one_of(self, choices: Sequence[str]) -> str:
        """Draw one of these."""
        return choices[self.below(len(choices))]

    def text(self, longest: int) -> str:
        """Draw three letters or more."""
        return "".join(self.one_of(ascii_lowercase) for _ in range(3 + self.below(longest - 2)))

    def filling(self, size: int, average: int) -> str:
        """Draw the text that brings a record of this size to the average, plus or minus a fifth. No query reads it."""
        missing = average - size
        if missing <= 0:
            return ""
        fifth = missing // 5
        return self.one_of(ascii_lowercase) * (missing - fifth + self.below(2 * fifth + 1))

    def price(self) -> int:
        """Draw a price: each order of magnitude from 1 to 1,000,000 is as likely."""
        return round(10 ** (self._draw() * 6) * 100)

    def person(self) -> int:
        """Draw one of the people: an active one, or one that comes later."""
        people = last_person(self.number) + 1
        active = min(people, self.terms.active_people)
        return FIRST_ID + people - active + self.below(active + ID_LEAD)

    def auction(self) -> int:
        """Draw one of the auctions: one that may still be open, or one that comes later."""
        last = last_auction(self.number)
        first = max(last - self.terms.in_flight, 0)
        return FIRST_ID + first + self.below(last - first + 1 + ID_LEAD)


def _person(dice: _Dice) -> Person:
    name = f"{dice.one_of(_FIRST_NAMES)} {dice.one_of(_LAST_NAMES)}"
    email = f"{dice.text(7)}@{dice.text(5)}.com"
    card = " ".join(f"{dice.below(10_000):04}" for _ in range(4))
    city, state = dice.one_of(_CITIES), dice.one_of(STATES)
    size = 2 * _INT_BYTES + sum(map(len, (name, email, card, city, state)))
    extra = dice.filling(size, dice.terms.person_bytes)
    id, time = FIRST_ID + last_person(dice.number), dice.terms.time_of(dice.number)
    return Person(id, name, email, card, city, state, time, extra)


def _auction(dice: _Dice) -> Auction:
    terms, time = dice.terms, dice.terms.time_of(dice.number)
    if dice.below(terms.hot_sellers):
        seller = FIRST_ID + last_person(dice.number) // HOT_BATCH * HOT_BATCH
    else:
        seller = dice.person()
    category, initial_bid = FIRST_CATEGORY + dice.below(CATEGORIES), dice.price()
    # As many auctions as are to be open at once will have opened by the horizon: the average length of one.
    horizon = terms.time_of(dice.number + terms.in_flight * PERIOD // AUCTIONS) - time
    expires = time + 1 + dice.below(max(2 * horizon, 1))
    item, description, reserve = dice.text(20), dice.text(100), initial_bid + dice.price()
    extra = dice.filling(7 * _INT_BYTES + len(item) + len(description), terms.auction_bytes)
    id = FIRST_ID + last_auction(dice.number)
    return Auction(id, item, description, initial_bid, reserve, time, expires, seller, category, extra)


def _bid(dice: _Dice) -> Bid:
    terms = dice.terms
    if dice.below(terms.hot_auctions):
        auction = FIRST_ID + last_auction(dice.number) // HOT_BATCH * HOT_BATCH
    else:
        auction = dice.auction()
    if dice.below(terms.hot_bidders):  # the second of each hundred: hot sellers are the first
        bidder = FIRST_ID + last_person(dice.number) // HOT_BATCH * HOT_BATCH + 1
    else:
        bidder = dice.person()
    extra = dice.filling(4 * _INT_BYTES, terms.bid_bytes)
    return Bid(auction, bidder, dice.price(), terms.time_of(dice.number), extra)
