"""Questions that all members answer: the answers so far, and the members that have not answered.

1. A question waits for workers in a long step. A client that accepts a partial answer gets it after ANSWER_SECONDS.
2. If a bin has just moved, both workers report a part of its load. The answer adds the parts.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Generic, TypeVar

from megaflow.control.coordinator.base.events import Mail
from megaflow.control.messages import StatusAsk, StatusQuery
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
    answers: dict[int, Any]  # worker -> its answer, in the order of arrival
    end: float  # seconds of the monotonic clock: then the question is answered without silent members


class Questions(Generic[T]):
    """The questions under way; a `T` says what a question is for. One writer: the controller.

    A question does not wait for members that have left.
    """

    def __init__(self) -> None:
        self.open: dict[int, Question[T]] = {}  # under way, by id
        self.next = 0  # id

    @property
    def end(self) -> float:
        """The earliest time at which `overdue` may return something."""
        return min((question.end for question in self.open.values()), default=inf)

    def ask(self, about: T, members: tuple[int, ...], query: StatusQuery, now: float) -> list[Mail]:
        """Return the mail that asks all members. Raises CommandRefused if too many questions are under way."""
        if len(self.open) >= QUESTIONS_MAX:
            raise CommandRefused(f"{len(self.open)} requests are already being answered; try again later")
        id = self.begin(about, members, now + ANSWER_SECONDS if query.partial else inf)
        return [Mail(worker, StatusAsk(id, query.loads)) for worker in members]

    def begin(self, about: T, members: Iterable[int], end: float = inf) -> int:
        """Begin a question that these members will answer; return its id."""
        self.open[self.next] = Question(about, set(members), {}, end)
        self.next += 1
        return self.next - 1

    def answered(self, id: int, worker: int, answer: object) -> Question[T] | None:
        """Record an answer; return the question if that was its last one."""
        question = self.open.get(id)
        if question is None:
            return None
        question.answers[worker] = answer
        question.silent.discard(worker)
        return None if question.silent else self.open.pop(id)

    def left(self, ids: Iterable[int]) -> list[Question[T]]:
        """Stop waiting for these workers; return the questions that are complete without them."""
        for question in self.open.values():
            question.silent.difference_update(ids)
        return self.take(lambda question: not question.silent)

    def overdue(self, now: float) -> list[Question[T]]:
        """Return and forget the questions whose time is over, although members are silent."""
        return self.take(lambda question: question.end <= now)

    def take(self, over: Callable[[Question[T]], bool]) -> list[Question[T]]:
        """Return and forget the questions for which `over` is true."""
        found = [id for id, question in self.open.items() if over(question)]
        return [self.open.pop(id) for id in found]
