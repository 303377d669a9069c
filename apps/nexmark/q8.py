"""Q8, monitor new users: who has put an item up for sale within twelve hours of registering?

    SELECT Rstream(P.id, P.name, A.reserve) FROM Person [RANGE 12 HOUR] P, Auction [RANGE 12 HOUR] A
    WHERE P.id = A.seller

The window slides, as in the specification: a person and an auction match if they are less than twelve hours apart, in
either order. The result comes once, with the later one. (Apache Beam's suite cuts time into windows instead, and misses
people who register late in one.) Timers forget people after twelve hours, and auctions whose seller does not come.
"""

from typing import Any

from apps.nexmark.events import Event, auctions, people
from apps.nexmark.terms import Terms
from megaflow.megaphone.base.timers import Timers
from megaflow.timely import Stream

User = tuple[int, str]  # time, name
Offer = tuple[int, int]  # time, reserve
NewUser = tuple[int, str, int]  # id, name, reserve
Known = tuple[User | None, list[Offer]]  # the person, or the auctions that wait for one

_EXPIRY = "expiry"  # a timer


def q8(events: Stream[Event], control: Stream[Any], terms: Terms, bins: int = 256) -> Stream[NewUser]:
    """Monitor new users."""
    period = terms.new_users_ms

    def fold(
        id: int, time: int, news: list[User | str], offers: list[Offer], known: Known | None, timers: Timers
    ) -> tuple[Known | None, list[NewUser]]:
        user, waiting = known or (None, [])
        if user is not None and user[0] + period <= time:
            user = None
        waiting = [offer for offer in waiting if offer[0] + period > time] + offers
        for new in news:
            if not isinstance(new, str):
                user = new
                timers.at(time + period, _EXPIRY)
        if user is not None:
            return (user, []), [(id, user[1], reserve) for _, reserve in waiting]
        if offers:
            timers.at(time + period, _EXPIRY)
        return (None, waiting) if waiting else None, []

    users: Stream[tuple[int, User | str]] = people(events).map(lambda person: (person.id, (person.time, person.name)))
    offers = auctions(events).map(lambda auction: (auction.seller, (auction.time, auction.reserve)))
    return users.stateful_binary(offers, fold, control=control, bins=bins, name="Q8")
