"""Questions to all members: answered when the last one has, and whoever leaves is not waited for."""

import pytest

from megaflow.control.coordinator.events import Mail
from megaflow.control.coordinator.questions import QUESTIONS_MAX, Questions
from megaflow.control.messages import StatusAnswer, StatusAsk
from megaflow.control.reports import LatencyQuantiles, WorkerStatus
from megaflow.errors import CommandRefused


def said(id: int, worker: int) -> StatusAnswer:
    return StatusAnswer(id, WorkerStatus(worker, "", 1, "h:1", 0, 0, 0.0, LatencyQuantiles(), 0, 0))


def test_a_question_is_answered_once_by_the_last_who_says_something() -> None:
    questions: Questions[str] = Questions()
    assert questions.ask("why", (0, 3)) == [Mail(0, StatusAsk(0)), Mail(3, StatusAsk(0))]
    assert questions.answered(said(0, 3)) is None and questions.answered(said(0, 3)) is None
    answered = questions.answered(said(0, 0))
    assert answered is not None and answered.about == "why" and sorted(answered.answers) == [0, 3]
    assert questions.answered(said(0, 0)) is None and questions.answered(said(7, 0)) is None


def test_whoever_leaves_is_not_waited_for() -> None:
    questions: Questions[str] = Questions()
    questions.ask("a", (0, 3))
    questions.ask("b", (0, 3))
    questions.answered(said(1, 0))
    assert [question.about for question in questions.left((3,))] == ["b"]
    assert questions.left((3,)) == []
    answered = questions.answered(said(0, 0))
    assert answered is not None and answered.about == "a"


def test_questions_are_bounded() -> None:
    questions: Questions[int] = Questions()
    for number in range(QUESTIONS_MAX):
        assert questions.has_room
        questions.ask(number, (0,))
    with pytest.raises(CommandRefused, match="being answered already"):
        questions.ask(0, (0,))
