"""Expected results of NEXMark's queries, computed from the whole list of events.

Plain Python over lists, without regard to speed and without any part of the dataflows: the tests compare the dataflows
with it. Each oracle takes (time, event) in the order of time and returns (time, result); the order of results does not
matter. Each query's module states its choices where the specification leaves some.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from apps.nexmark.events import Auction, Bid, Event, Person
from apps.nexmark.terms import Terms

History = list[tuple[int, Event]]
Results = list[tuple[int, Any]]


def q1(history: History, terms: Terms) -> Results:
    """Return each bid with its price in another currency."""
    return [(time, (bid.auction, bid.bidder, bid.price * 89 // 100, bid.time)) for time, bid in _bids(history)]


def q2(history: History, terms: Terms) -> Results:
    """Return the bids on some auctions."""
    return [(time, (bid.auction, bid.price)) for time, bid in _bids(history) if bid.auction % terms.auction_skip == 0]


def q3(history: History, terms: Terms) -> Results:
    """Return each pair of a person in three states and their auction in category 10, when the later one comes."""
    return [
        (max(person.time, auction.time), (person.name, person.city, person.state, auction.id))
        for person in _people(history)
        for auction in _auctions(history)
        if auction.seller == person.id and person.state in ("OR", "ID", "CA") and auction.category == 10
    ]


def q4(history: History, terms: Terms) -> Results:
    """Return, when auctions close, the average price of all auctions of their category sold by then."""
    sold = _sold(history)
    return [
        (now, (category, _average(price for auction, price in sold if _is(auction, category, now))))
        for now, category in {(auction.expires, auction.category) for auction, _ in sold}
    ]


def _is(auction: Auction, category: int, now: int) -> bool:
    return auction.category == category and auction.expires <= now


def q5(history: History, terms: Terms) -> Results:
    """Return, at the end of each window, the auctions with the most bids in it, and the number of these bids."""
    results: Results = []
    last = max((time for time, _ in _bids(history)), default=-1)
    for end in range(0, last + terms.hot_items_ms + 1, terms.hot_items_slide_ms):
        counts = Counter(bid.auction for time, bid in _bids(history) if end - terms.hot_items_ms <= time < end)
        most = max(counts.values(), default=0)
        results += [(end, (auction, count)) for auction, count in counts.items() if count == most]
    return results


def q6(history: History, terms: Terms) -> Results:
    """Return, when auctions close, the average price of the last ten that their seller has sold."""
    results: Results = []
    sold = sorted(_sold(history), key=lambda pair: (pair[0].expires, pair[0].id))
    for now, seller in {(auction.expires, auction.seller) for auction, _ in sold}:
        prices = [price for auction, price in sold if auction.seller == seller and auction.expires <= now]
        results.append((now, (seller, _average(prices[-terms.last_auctions :]))))
    return results


def q7(history: History, terms: Terms) -> Results:
    """Return, at the end of each window, the bids with its highest price."""
    windows: defaultdict[int, list[Bid]] = defaultdict(list)
    for time, bid in _bids(history):
        windows[time // terms.highest_bid_ms].append(bid)
    return [
        ((window + 1) * terms.highest_bid_ms, (bid.auction, bid.price, bid.bidder))
        for window, bids in windows.items()
        for bid in bids
        if bid.price == max(other.price for other in bids)
    ]


def q8(history: History, terms: Terms) -> Results:
    """Return each pair of a person and their auction less than twelve hours apart, when the later one comes."""
    return [
        (max(person.time, auction.time), (person.id, person.name, auction.reserve))
        for person in _people(history)
        for auction in _auctions(history)
        if auction.seller == person.id and abs(auction.time - person.time) < terms.new_users_ms
    ]


ORACLES: dict[str, Callable[[History, Terms], Results]] = {
    "Q1": q1, "Q2": q2, "Q3": q3, "Q4": q4, "Q5": q5, "Q6": q6, "Q7": q7, "Q8": q8,
}  # fmt: skip


def _people(history: History) -> list[Person]:
    return [event for _, event in history if isinstance(event, Person)]


def _auctions(history: History) -> list[Auction]:
    return [event for _, event in history if isinstance(event, Auction)]


def _bids(history: History) -> list[tuple[int, Bid]]:
    return [(time, event) for time, event in history if isinstance(event, Bid)]


def _sold(history: History) -> list[tuple[Auction, int]]:
    """Return the sold auctions and their prices: the highest bids before they expire that reach the reserve."""
    sold = []
    for auction in _auctions(history):
        offers = [bid.price for time, bid in _bids(history) if bid.auction == auction.id and time < auction.expires]
        if offers and max(offers) >= auction.reserve:
            sold.append((auction, max(offers)))
    return sold


def _average(prices: Iterable[int]) -> int:
    """Return the mean, to the nearest cent, half a cent upwards."""
    all_prices = list(prices)
    return (2 * sum(all_prices) + len(all_prices)) // (2 * len(all_prices))
