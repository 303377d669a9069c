"""Questions that all members answer: who has not answered yet, and the loads that the answers add up to.

Who is in a long step is waited for; but who asks for what is known is given that after ANSWER_SECONDS.
A bin that has moved a moment ago has a share of its load at either worker: the shares are added, whoever owns it now.
"""

from collections.abc import Callable, Iterator
from math import inf
from typing import Generic, TypeVar

from megaflow.control.coordinator.events import Mail
from megaflow.control.messages import StatusAnswer, StatusAsk, StatusQuery
from megaflow.errors import CommandRefused
from megaflow.quick_dataclass import dataclass

QUESTIONS_MAX = 1_000  # under way
ANSWER_SECONDS = 1.5  # clients are promised 2

T = TypeVar("T")


@dataclass(slots=True)
class Question(Generic[T]):
    """A question that members are answering."""

    about: T
    silent: set[int]  # members that have not answered
    answers: dict[int, StatusAnswer]  # worker -> what it said
    end: float  # seconds of the monotonic clock: those that are silent are not waited for any longer


class Questions(Generic[T]):
    """The questions under way; `T` is what they are asked for. One writer: the controller.

    Whoever leaves is not waited for.
    """

    def __init__(self) -> None:
        self._open: dict[int, Question[T]] = {}  # id of StatusAsk -> question
        self.next = 0  # id

    def __iter__(self) -> Iterator[T]:
        """What the questions under way are asked for."""
        return iter([question.about for question in self._open.values()])

    @property
    def has_room(self) -> bool:
        """Whether one more may be asked."""
        return len(self._open) < QUESTIONS_MAX

    @property
    def end(self) -> float:
        """When `overdue` has something to return, at the earliest."""
        return min((question.end for question in self._open.values()), default=inf)

    def ask(self, about: T, members: tuple[int, ...], query: StatusQuery, now: float) -> list[Mail]:
        """Return the mail that asks them all. Raises CommandRefused if too many questions are under way."""
        if not self.has_room:
            raise CommandRefused(f"{len(self._open)} requests are already being answered; try again later")
        id = self.next
        self.next += 1
        self._open[id] = Question(about, set(members), {}, now + ANSWER_SECONDS if query.partial else inf)
        return [Mail(worker, StatusAsk(id, query.loads)) for worker in members]

    def answered(self, answer: StatusAnswer) -> Question[T] | None:
        """Take an answer; return the question if that was the last one to it."""
        question = self._open.get(answer.id)
        if question is None:
            return None
        question.answers[answer.status.id] = answer
        question.silent.discard(answer.status.id)
        if question.silent:
            return None
        return self._open.pop(answer.id)

    def left(self, ids: tuple[int, ...]) -> list[Question[T]]:
        """Wait for these workers no longer; return the questions that are answered without them."""
        for question in self._open.values():
            question.silent.difference_update(ids)
        return self._take(lambda question: not question.silent)

    def overdue(self, now: float) -> list[Question[T]]:
        """Return the questions that are waited for no longer, though workers are silent."""
        return self._take(lambda question: question.end <= now)

    def _take(self, over: Callable[[Question[T]], bool]) -> list[Question[T]]:
        found = [id for id, question in self._open.items() if over(question)]
        return [self._open.pop(id) for id in found]
