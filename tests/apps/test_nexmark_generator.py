"""The generated events of apps/nexmark follow the specification, and are the same on every worker."""

from collections import Counter
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.nexmark.events import Auction, Bid, Event, Person
from apps.nexmark.generator import STATES, event, generate
from apps.nexmark.terms import FIRST_ID, HOT_BATCH, ID_LEAD, Terms

TERMS = Terms()
MANY = [event for _, event in generate(TERMS, range(50_000))]
PEOPLE = [event for event in MANY if isinstance(event, Person)]
AUCTIONS = [event for event in MANY if isinstance(event, Auction)]
BIDS = [event for event in MANY if isinstance(event, Bid)]


@given(st.integers(0, 10**12), st.integers(0, 2**32))
def test_an_event_depends_on_the_seed_and_its_number_alone(number: int, seed: int) -> None:
    terms = Terms(seed=seed)
    alone = event(terms, number)
    assert [each for _, each in generate(terms, (number + 7, number))][1] == alone
    assert event(Terms(seed=seed + 1), number) != alone != event(terms, number + 50)


def test_events_are_the_same_on_every_machine() -> None:
    assert event(TERMS, 0)[:7] == (
        1000, "Robin Lovelace", "gnkuh@pxnh.com", "7558 6183 2505 9097", "Yuma", "WA", 0,
    )  # fmt: skip
    assert event(TERMS, 51)[3:9] == (8_459_278, 8_475_246, 5, 82, 1006, 10)
    assert event(TERMS, 123_456)[:4] == (8400, 3401, 103, 12_345)


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_others_bids() -> None:
    for start in range(0, len(MANY), 50):
        kinds = [type(each) for each in MANY[start : start + 50]]
        assert kinds == [Person] + 3 * [Auction] + 46 * [Bid]


def test_ten_thousand_events_happen_in_a_second_and_each_tells_its_time() -> None:
    times = [time for time, _ in generate(TERMS, range(20_001))]
    assert times == sorted(times) and times[10_000] == 1000 and times[20_000] == 2000
    assert all(each.time == time for time, each in generate(Terms(delay_us=777), range(1000)))


def test_ids_are_consecutive() -> None:
    assert [person.id for person in PEOPLE] == list(range(FIRST_ID, FIRST_ID + len(PEOPLE)))
    assert [auction.id for auction in AUCTIONS] == list(range(FIRST_ID, FIRST_ID + len(AUCTIONS)))


def test_one_is_hot_in_a_hundred_and_gets_its_share() -> None:
    latest: dict[type, int] = {}
    hot: Counter[str] = Counter()
    for each in MANY:
        if isinstance(each, Bid):
            hot["auction"] += each.auction == latest[Auction] // HOT_BATCH * HOT_BATCH
            hot["bidder"] += each.bidder == latest[Person] // HOT_BATCH * HOT_BATCH + 1
        else:
            if isinstance(each, Auction):
                hot["seller"] += each.seller == latest[Person] // HOT_BATCH * HOT_BATCH
            latest[type(each)] = each.id
    assert hot["auction"] / len(BIDS) == pytest.approx(1 / 2, abs=0.02)
    assert hot["bidder"] / len(BIDS) == pytest.approx(3 / 4, abs=0.02)
    assert hot["seller"] / len(AUCTIONS) == pytest.approx(3 / 4, abs=0.02)


def test_who_and_what_is_named_is_new_enough_or_hardly_yet_to_come() -> None:
    terms = Terms(active_people=20, in_flight=30)
    person = auction = FIRST_ID - 1
    swapped: Counter[str] = Counter()
    for _, each in generate(terms, range(20_000)):
        match each:
            case Person():
                person = each.id
            case Auction():
                auction = each.id
                oldest = min(person - terms.active_people + 1, person // HOT_BATCH * HOT_BATCH)
                assert oldest <= each.seller <= person + ID_LEAD
                swapped["seller"] += each.seller > person
            case Bid():
                oldest = min(auction - terms.in_flight, auction // HOT_BATCH * HOT_BATCH)
                assert oldest <= each.auction <= auction + ID_LEAD
                swapped["auction"] += each.auction > auction
    assert swapped["seller"] > 10 and swapped["auction"] > 100


@pytest.mark.parametrize("delay_us", [100, 1000, 12_345])
def test_a_bid_that_comes_before_its_auction_has_the_patience_that_it_needs(delay_us: int) -> None:
    terms = Terms(delay_us=delay_us)
    first: dict[int, int] = {}
    waited = 0
    for time, each in generate(terms, range(20_000)):
        if isinstance(each, Bid):
            first.setdefault(each.auction, time)
        elif isinstance(each, Auction) and each.id in first:
            waited = max(waited, time - first[each.id])
    assert terms.patience_ms / 2 < waited < terms.patience_ms


def test_auctions_are_open_as_long_on_average_as_the_next_hundred_take_to_come() -> None:
    lengths = [auction.expires - auction.time for auction in AUCTIONS]
    horizon = 100 * 50 / 3 / 10  # ms
    assert min(lengths) >= 1 and max(lengths) <= 2 * horizon + 1
    assert mean(lengths) == pytest.approx(horizon, rel=0.03)


def test_prices_are_spread_over_six_orders_of_magnitude() -> None:
    assert all(100 <= bid.price <= 100_000_000 for bid in BIDS)
    digits = Counter(len(str(bid.price)) for bid in BIDS)
    assert all(digits[count] / len(BIDS) == pytest.approx(1 / 6, abs=0.01) for count in range(3, 9))
    assert all(auction.reserve >= auction.initial_bid + 100 for auction in AUCTIONS)


def test_there_are_five_categories_and_six_states() -> None:
    assert {auction.category for auction in AUCTIONS} == set(range(10, 15))
    assert {person.state for person in PEOPLE} == set(STATES)


def test_records_are_as_big_on_average_as_they_should_be() -> None:
    def size(each: Event) -> int:
        return sum(len(value) if isinstance(value, str) else 8 for value in each)

    for events, bytes in ((PEOPLE, 200), (AUCTIONS, 500), (BIDS, 100)):
        assert mean(map(size, events)) == pytest.approx(bytes, rel=0.02)


def test_windows_that_slides_do_not_fill_are_refused() -> None:
    with pytest.raises(ValueError, match="hot_items_ms=10 is no multiple of hot_items_slide_ms=3"):
        Terms(hot_items_ms=10, hot_items_slide_ms=3)
