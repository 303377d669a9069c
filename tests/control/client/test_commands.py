"""Whoever steers a job follows its coordinator, and asks nothing twice that was begun."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, TypeAlias

import pytest

from megaflow.control.client.commands import MOVES_MAX, Conversation
from megaflow.control.messages import StatusQuery, StopJob
from megaflow.errors import CommandRefused, MegaflowError, PeerLost
from megaflow.timely.communication.tcp import address_text
from tests.job.offices import Office, connect

Talk: TypeAlias = Callable[..., Conversation]


@pytest.fixture
def talk() -> Iterator[Talk]:
    with ExitStack() as stack:

        def talking(office: Office, *more: Any) -> Conversation:
            return stack.enter_context(closing(Conversation(office.client(), 20.0, *more)))

        yield talking


def test_a_question_goes_to_where_the_coordinator_is_said_to_be(talk: Talk) -> None:
    with Office() as here, Office(here.address) as second, Office(second.address) as first:
        one = talk(first, connect)
        assert one.ask(StatusQuery()) == "yes" and here.asked == [StatusQuery()]
        first.close()
        second.close()
        assert one.ask(StopJob()) == "yes" and one.accepted == 7


def test_a_coordinator_that_has_left_without_a_word_is_looked_for(talk: Talk) -> None:
    with Office() as first, Office() as here:
        one = talk(first, connect, here.client)
        assert one.ask(1) == "yes"
        first.close()
        assert one.ask(2) == "yes" and (first.asked, here.asked) == ([1], [2])


def test_a_job_that_is_where_it_was_or_nowhere_has_ended(talk: Talk) -> None:
    with Office() as first, Office() as last:
        gone = last.client()
        for office, more in ((first, ()), (last, (lambda: gone,))):
            one = talk(office, connect, *more)
            office.close()
            with pytest.raises(PeerLost, match=f"the job has ended .*{address_text(office.address)}"):
                one.ask(1)


def test_what_was_accepted_is_not_asked_again(talk: Talk) -> None:
    with Office() as here, Office(leaves=True) as first:
        one = talk(first, connect, here.client)
        with pytest.raises(PeerLost, match="the job has ended"):
            one.ask(1)
        assert (first.asked, here.asked) == ([1], [])


def test_a_coordinator_that_cannot_be_followed_or_caught_is_an_error(talk: Talk) -> None:
    with Office() as one, Office(one.address) as other:
        with pytest.raises(CommandRefused, match="has moved to"):
            talk(other).ask(1)
        one.door.redirect(*other.address)
        with pytest.raises(MegaflowError, match=f"moved {MOVES_MAX} times"):
            talk(one, connect).ask(1)
