"""A client follows the coordinator, and never repeats a request that has begun and must not run twice."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, TypeAlias

import pytest

from megaflow.control.client.conversation import (
    MOVES_MAX,
    QUIET_AGAIN_SECONDS,
    QUIET_SECONDS,
    REPEATABLE,
    Conversation,
    Stopped,
)
from megaflow.control.messages import (
    CommitBatch,
    CommitRequest,
    Done,
    IngestPorts,
    RemoveWorker,
    SourceEnded,
    StatusQuery,
    StopJob,
    TryBins,
)
from megaflow.errors import CommandRefused, MegaflowError, NoAnswer, PeerLost
from megaflow.timely.communication.address import address_text
from tests.job.offices import Office, connect

Talk: TypeAlias = Callable[..., Conversation]


@pytest.fixture
def talk() -> Iterator[Talk]:
    with ExitStack() as stack:

        def talking(office: Office, *more: Any, timeout: float | None = 20.0, **options: Any) -> Conversation:
            return stack.enter_context(closing(Conversation(office.client(), timeout, *more, **options)))

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
        assert one.ask(RemoveWorker(1)) == "yes"
        first.close()
        assert one.ask(RemoveWorker(2)) == "yes" and (first.asked, here.asked) == ([RemoveWorker(1)], [RemoveWorker(2)])


def test_who_was_connected_when_the_coordinator_left_is_told_where_it_is_before_asking(talk: Talk) -> None:
    with Office() as here, Office() as first:
        silent, idle = talk(first, connect), talk(first, connect)
        assert idle.ask(StatusQuery()) == "yes"
        first.redirect(here)
        first.close()
        assert silent.ask(RemoveWorker(1)) == idle.ask(RemoveWorker(2)) == "yes"
        assert (first.asked, here.asked) == ([StatusQuery()], [RemoveWorker(1), RemoveWorker(2)])


def test_a_job_that_is_where_it_was_or_nowhere_has_ended(talk: Talk) -> None:
    with Office() as first, Office() as last:
        gone = last.client()
        for office, more in ((first, ()), (last, (lambda: gone,))):
            one = talk(office, connect, *more)
            office.close()
            with pytest.raises(PeerLost, match=f"the job ended .*{address_text(office.address)}"):
                one.ask(RemoveWorker(1))


def test_what_was_accepted_is_not_asked_again(talk: Talk) -> None:
    with Office() as here, Office(leaves="accepted") as first:
        one = talk(first, connect, here.client)
        with pytest.raises(PeerLost, match="the job ended"):
            one.ask(RemoveWorker(1))
        assert (first.asked, here.asked) == ([RemoveWorker(1)], [])


@pytest.mark.parametrize("body", [IngestPorts(), CommitRequest(CommitBatch("q", "r", 0, {})), SourceEnded("q")])
def test_what_may_be_repeated_is_asked_again_though_it_was_accepted(talk: Talk, body: object) -> None:
    assert isinstance(body, REPEATABLE)
    with Office() as here, Office(leaves="accepted") as first:
        assert talk(first, connect, here.client).ask(body) == "yes"
        assert (first.asked, here.asked) == ([body], [body])


def test_where_the_job_is_by_now_is_looked_for_until_the_patience_is_over(talk: Talk) -> None:
    with Office() as here, Office(leaves="asked") as first:
        news = [None, first, None, here]
        looks: list[Office | None] = []

        def find() -> Any:
            looks.append(news[len(looks)])
            return looks[-1] and looks[-1].client()

        never = threading.Event()
        one = talk(first, connect, find, patience_seconds=90.0, stopping=never.wait)
        assert one.ask(RemoveWorker(1)) == "yes" and looks == news
        looks.clear()
        with pytest.raises(PeerLost, match="the job ended"):
            talk(first, connect, find, patience_seconds=0.2, stopping=never.wait).ask(RemoveWorker(1))
        assert looks == news[:3]


def test_an_answer_is_not_waited_for_when_all_is_to_stop(talk: Talk) -> None:
    with Office() as here:
        here.door.keep(())  # the question waits for a coordinator
        stopping = threading.Event()
        one = talk(here, connect, timeout=None, stopping=stopping.wait)
        threading.Timer(0.2, stopping.set).start()
        with pytest.raises(Stopped):
            one.ask(RemoveWorker(1))
        with pytest.raises(Stopped):
            one.ask(RemoveWorker(2), grace_seconds=0.2)
        here.door.serve(here._serve)
        assert one.ask(RemoveWorker(3), grace_seconds=90.0) == "yes"
        assert here.asked == [RemoveWorker(1), RemoveWorker(2), RemoveWorker(3)]


def test_a_coordinator_that_cannot_be_followed_or_caught_is_an_error(talk: Talk) -> None:
    with Office() as one, Office(one.address) as other:
        with pytest.raises(CommandRefused, match="has moved to"):
            talk(other).ask(RemoveWorker(1))
        one.door.redirect(*other.address)
        with pytest.raises(MegaflowError, match=f"moved {MOVES_MAX} times"):
            talk(one, connect).ask(RemoveWorker(1))


class Still:
    """A coordinator that takes requests, but answers only when the test lets it."""

    def __init__(self) -> None:
        self.given: list[float] = []  # timeouts of the waits for an answer
        self.answers: list[Any] = []
        self.address = "h:1"

    def send(self, request: Any) -> None:
        pass

    def receive(self, seconds: float) -> Any:
        self.given.append(seconds)
        if not self.answers:
            raise TimeoutError
        return self.answers.pop(0)

    def close(self) -> None:
        pass


def test_who_is_silent_is_asked_about_and_the_answer_is_waited_for() -> None:
    still, calls = Still(), 0

    def quiet() -> str:
        nonlocal calls
        calls += 1
        if calls == 2:
            still.answers.append(Done(1, "yes"))
        return "busy"

    one = Conversation(still, 60.0, quiet=quiet)  # type: ignore[arg-type]
    assert one.ask(StatusQuery()) == "yes"
    assert still.given[:2] == [QUIET_SECONDS, QUIET_AGAIN_SECONDS] and calls == 2


@pytest.mark.parametrize(("timeout", "times"), [(1.0, 0), (2.0, 0), (5.0, 1), (30.0, 3)])
def test_a_time_limit_holds_and_its_error_says_why(timeout: float, times: int) -> None:
    still, why = Still(), ["worker 1 is busy"] * times
    one = Conversation(still, timeout, quiet=why.pop)  # type: ignore[arg-type]
    who = "worker 1" if times else "a worker"
    with pytest.raises(MegaflowError, match=f"within {timeout:g} s; {who}.* the request is queued there"):
        one.ask(StopJob())
    assert sum(still.given) == pytest.approx(timeout) and why == []


@pytest.mark.parametrize("question", [StatusQuery(), TryBins((1,)), RemoveWorker(1, ask_only=True)])
def test_a_question_that_is_not_answered_has_changed_nothing(question: object) -> None:
    one = Conversation(Still(), 1.0)  # type: ignore[arg-type]
    with pytest.raises(MegaflowError, match=r"within 1 s; .*; nothing has changed$"):
        one.ask(question)


def test_what_the_reason_raises_ends_the_question() -> None:
    def quiet() -> str:
        raise NoAnswer("it is busy")

    with pytest.raises(NoAnswer, match="it is busy"):
        Conversation(Still(), 60.0, quiet=quiet).ask(StatusQuery())  # type: ignore[arg-type]
