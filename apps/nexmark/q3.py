"""Q3, local item suggestion: who sells in Oregon, Idaho or California in category 10, and which auctions?

    SELECT Istream(P.name, P.city, P.state, A.id)
    FROM Auction A [ROWS UNBOUNDED], Person P [ROWS UNBOUNDED]
    WHERE A.seller = P.id AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA') AND A.category = 10

Rows are unbounded, so state grows with the people. All auctions wait for their seller, who may come later. Once the
seller is known no auction is kept, wherever the seller lives.
"""

from typing import Any

from apps.nexmark.events import Event, auctions, people
from apps.nexmark.terms import Terms
from megaflow.megaphone.base.timers import Timers
from megaflow.timely import Stream

Seller = tuple[str, str, str]  # name, city, state
Suggestion = tuple[str, str, str, int]  # name, city, state, auction
Known = tuple[Seller | None, list[int]]  # the seller, or the auctions that wait for one

_CATEGORY = 10
_STATES = ("OR", "ID", "CA")


def suggest(
    id: int, time: int, sellers: list[Seller], items: list[int], known: Known | None, timers: Timers
) -> tuple[Known, list[Suggestion]]:
    """Join the auctions of one seller with the seller."""
    seller, waiting = known or (None, [])
    if sellers:
        seller = sellers[0]
    if seller is None:
        return (None, waiting + items), []
    if seller[2] not in _STATES:
        return (seller, []), []
    return (seller, []), [(*seller, auction) for auction in waiting + items]


def q3(events: Stream[Event], control: Stream[Any], terms: Terms, bins: int = 256) -> Stream[Suggestion]:
    """Suggest items."""
    sellers = people(events).map(lambda person: (person.id, (person.name, person.city, person.state)))
    offers = auctions(events).filter(lambda auction: auction.category == _CATEGORY)
    items = offers.map(lambda auction: (auction.seller, auction.id))
    return sellers.stateful_binary(items, suggest, control=control, bins=bins, name="Q3")
