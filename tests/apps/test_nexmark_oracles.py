"""The oracles of apps/nexmark, on auctions small enough to check by eye."""

from typing import Any

from apps.nexmark.events import Auction, Bid, Event, Person
from apps.nexmark.oracles import ORACLES
from apps.nexmark.terms import Terms

TERMS = Terms(hot_items_ms=20, hot_items_slide_ms=10, highest_bid_ms=10, new_users_ms=50, last_auctions=2)


def person(time: int, id: int, name: str = "", state: str = "OR") -> Person:
    return Person(id, name, "", "", "Bend", state, time, "")


def auction(time: int, id: int, expires: int = 0, seller: int = 0, category: int = 10, reserve: int = 0) -> Auction:
    return Auction(id, "", "", 0, reserve, time, expires, seller, category, "")


def bid(time: int, auction: int, price: int, bidder: int = 0) -> Bid:
    return Bid(auction, bidder, price, time, "")


def results(query: str, *events: Event, terms: Terms = TERMS) -> list[tuple[int, Any]]:
    history = sorted(((event.time, event) for event in events), key=lambda pair: pair[0])
    return sorted(ORACLES[query](history, terms))


def test_q1_takes_89_of_100_and_drops_what_is_left_of_a_cent() -> None:
    assert results("Q1", bid(3, 1, 1000, 7), bid(4, 1, 99, 8)) == [(3, (1, 7, 890, 3)), (4, (1, 8, 88, 4))]


def test_q2_takes_every_123rd_auction() -> None:
    bids = [bid(time, auction, 5) for time, auction in enumerate((1229, 1230, 1231, 1353))]
    assert results("Q2", *bids) == [(1, (1230, 5)), (3, (1353, 5))]


def test_q3_joins_every_auction_in_category_10_with_a_seller_of_three_states_whoever_comes_first() -> None:
    events = [
        auction(1, 101, seller=1), person(2, 1, "Ann"), auction(3, 102, seller=1),
        auction(3, 103, seller=1, category=11),
        person(0, 2, "Ben", "WA"), auction(1, 104, seller=2), auction(9, 105, seller=3), person(0, 4, "Dan", "CA"),
    ]  # fmt: skip
    assert results("Q3", *events) == [(2, ("Ann", "Bend", "OR", 101)), (3, ("Ann", "Bend", "OR", 102))]


def test_an_auction_is_won_by_the_highest_bid_before_it_expires_if_it_reaches_the_reserve() -> None:
    for bids, sold in {
        (): [],
        ((5, 99),): [],
        ((5, 100),): [(10, (10, 100))],
        ((1, 150), (5, 120)): [(10, (10, 150))],
        ((1, 150), (9, 170), (10, 180), (11, 190)): [(10, (10, 170))],
        ((10, 150),): [],
    }.items():
        events = [auction(2, 1, expires=10, reserve=100), *(bid(time, 1, price) for time, price in bids)]
        assert results("Q4", *events) == sold, bids


def test_q4_averages_all_that_a_category_has_sold_so_far() -> None:
    events = [
        auction(0, 1, expires=10), auction(0, 2, expires=20), auction(0, 3, expires=20),
        auction(0, 4, expires=15, category=11),
        bid(5, 1, 100), bid(5, 2, 201), bid(5, 3, 300), bid(5, 4, 7),
    ]  # fmt: skip
    assert results("Q4", *events) == [(10, (10, 100)), (15, (11, 7)), (20, (10, 200))]


def test_averages_are_rounded_half_a_cent_upwards() -> None:
    events = [auction(0, 1, expires=9), auction(0, 2, expires=9), bid(5, 1, 100), bid(5, 2, 101)]
    assert results("Q4", *events) == [(9, (10, 101))]


def test_q5_tells_all_auctions_with_the_most_bids_of_each_window() -> None:
    events = [bid(time, auction, 1) for time, auction in ((0, 1), (9, 2), (10, 2), (19, 3), (20, 3), (45, 4))]
    assert results("Q5", *events) == [
        (10, (1, 1)), (10, (2, 1)), (20, (2, 2)), (30, (3, 2)), (40, (3, 1)), (50, (4, 1)), (60, (4, 1)),
    ]  # fmt: skip


def test_q6_averages_the_last_auctions_of_each_seller() -> None:
    events = [
        *(auction(0, number, expires=10 * number, seller=number % 2) for number in range(1, 7)),
        auction(0, 9, expires=50, seller=1), auction(0, 8, expires=55, seller=1),
        *(bid(5, number, 100 * number) for number in (1, 2, 3, 4, 5, 9)),
    ]  # fmt: skip
    assert results("Q6", *events) == [
        (10, (1, 100)), (20, (0, 200)), (30, (1, 200)), (40, (0, 300)), (50, (1, 700)),
    ]  # fmt: skip


def test_q7_tells_all_bids_with_the_highest_price_of_each_window() -> None:
    events = [bid(0, 1, 5, 1), bid(9, 2, 5, 2), bid(4, 2, 4, 3), bid(10, 1, 3, 4), bid(35, 1, 1, 5)]
    assert results("Q7", *events) == [(10, (1, 5, 1)), (10, (2, 5, 2)), (20, (1, 3, 4)), (40, (1, 1, 5))]


def test_q8_tells_the_auctions_of_those_who_registered_less_than_a_period_apart() -> None:
    events = [
        person(10, 1, "Ann"), auction(10, 1, seller=1, reserve=5), auction(59, 2, seller=1, reserve=6),
        auction(60, 3, seller=1, reserve=7), person(40, 2, "Ben"), auction(0, 4, seller=2, reserve=8),
        person(60, 3, "Cyd"), auction(10, 5, seller=3, reserve=9),
    ]  # fmt: skip
    assert results("Q8", *events) == [(10, (1, "Ann", 5)), (40, (2, "Ben", 8)), (59, (1, "Ann", 6))]


def test_of_nothing_comes_nothing() -> None:
    assert all(results(query) == [] for query in ORACLES)
