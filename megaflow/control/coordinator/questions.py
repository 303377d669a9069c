"""Questions that all members answer: who was asked what, and who has not answered yet."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from megaflow.control.coordinator.events import Mail
from megaflow.control.messages import StatusAnswer, StatusAsk
from megaflow.errors import CommandRefused

QUESTIONS_MAX = 1_000  # under way

T = TypeVar("T")


@dataclass(slots=True)
class Question(Generic[T]):
    """A question that members are answering."""

    about: T
    silent: set[int]  # members that have not answered
    answers: dict[int, StatusAnswer]  # worker -> what it said


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

    def ask(self, about: T, members: tuple[int, ...], loads: bool = False) -> list[Mail]:
        """Return the mail that asks them all, for their loads too. Raises CommandRefused if too many are under way."""
        if not self.has_room:
            raise CommandRefused(f"{len(self._open)} questions are being answered already; try again later")
        id = self.next
        self.next += 1
        self._open[id] = Question(about, set(members), {})
        return [Mail(worker, StatusAsk(id, loads)) for worker in members]

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
        answered = [id for id, question in self._open.items() if not question.silent]
        return [self._open.pop(id) for id in answered]
