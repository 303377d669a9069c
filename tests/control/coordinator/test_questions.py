"""Questions to all members: answered with the last answer, without waiting for members that leave.

The loads that workers report are merged without loss, even if bins have moved since.
"""

import pytest

from megaflow.control.coordinator.base.events import Mail
from megaflow.control.coordinator.base.questions import ANSWER_SECONDS, QUESTIONS_MAX, Question, Questions
from megaflow.control.coordinator.controller.job_status import operator_statuses
from megaflow.control.messages import StatusAnswer, StatusAsk, StatusQuery
from megaflow.control.reports import LatencyQuantiles, OperatorLoad, OperatorStatus, WorkerStatus
from megaflow.errors import CommandRefused

ALL, PARTIAL = StatusQuery(), StatusQuery(partial=True)
Row = tuple[int, float, float, int, int]  # bin, records per second, busy ms per second, keys, bytes


def said(id: int, worker: int) -> StatusAnswer:
    return StatusAnswer(id, WorkerStatus(worker, "", 1, "h:1", 0, 0, 0.0, LatencyQuantiles(), 0, 0))


def answer(questions: Questions[str], id: int, worker: int) -> Question[str] | None:
    return questions.answered(id, worker, said(id, worker))


def test_a_question_is_answered_once_by_the_last_who_says_something() -> None:
    questions: Questions[str] = Questions()
    assert questions.ask("why", (0, 3), ALL, 1.0) == [Mail(0, StatusAsk(0)), Mail(3, StatusAsk(0))]
    assert answer(questions, 0, 3) is None and answer(questions, 0, 3) is None
    answered = answer(questions, 0, 0)
    assert answered is not None and answered.about == "why" and sorted(answered.answers) == [0, 3]
    assert answer(questions, 0, 0) is None and answer(questions, 7, 0) is None


def test_whoever_leaves_is_not_waited_for() -> None:
    questions: Questions[str] = Questions()
    questions.ask("a", (0, 3), ALL, 1.0)
    questions.ask("b", (0, 3), ALL, 1.0)
    answer(questions, 1, 0)
    assert [question.about for question in questions.left((3,))] == ["b"]
    assert questions.left((3,)) == []
    answered = answer(questions, 0, 0)
    assert answered is not None and answered.about == "a"


def test_a_question_for_what_is_known_does_not_wait_for_the_silent() -> None:
    questions: Questions[str] = Questions()
    questions.ask("all", (0, 3), ALL, 1.0)
    questions.ask("some", (0, 3), PARTIAL, 2.0)
    answer(questions, 1, 3)
    assert questions.end == 2.0 + ANSWER_SECONDS and questions.overdue(1.9 + ANSWER_SECONDS) == []
    [overdue] = questions.overdue(questions.end)
    assert (overdue.about, overdue.silent, sorted(overdue.answers)) == ("some", {0}, [3])
    assert questions.overdue(1e9) == [] and answer(questions, 1, 0) is None
    assert [each.about for each in questions.open.values()] == ["all"]


def test_questions_are_bounded() -> None:
    questions: Questions[int] = Questions()
    for number in range(QUESTIONS_MAX):
        questions.ask(number, (0,), ALL, 1.0)
    with pytest.raises(CommandRefused, match="already being answered"):
        questions.ask(0, (0,), ALL, 1.0)


def loads_of(worker: int, *loads: OperatorLoad) -> StatusAnswer:
    return StatusAnswer(0, WorkerStatus(worker, "", 1, "h:1", 0, 0, 0.0, LatencyQuantiles(), 0, 0), loads)


def part(name: str, *rows: Row, hot: tuple[tuple[str, int, float, float], ...] = ()) -> OperatorLoad:
    return OperatorLoad(name, *(tuple(column) for column in zip(*rows)), hot)  # type: ignore[arg-type]


def test_the_parts_of_a_bin_that_has_moved_are_added() -> None:
    before = part("count", (3, 10.0, 500.0, 0, 0), (1, 1.0, 0.0, 2, 20), hot=(("'the'", 3, 8.0, 1.0),))
    after = part("count", (3, 4.0, 250.0, 7, 70), hot=(("'the'", 3, 4.0, 0.5), ("'a'", 1, 1.0, 0.0)))
    other = part("other", (0, 0.0, 0.0, 1, 5))
    operators = {"count": 4, "other": 4, "idle": 4}
    assert operator_statuses([loads_of(0, before, other), loads_of(1, after)], operators, (0, 0, 0, 1)) == (
        OperatorStatus("count", 4, (0, 0, 0, 1), part(
            "count", (3, 14.0, 750.0, 7, 70), (1, 1.0, 0.0, 2, 20),
            hot=(("'the'", 3, 12.0, 1.5), ("'a'", 1, 1.0, 0.0)),
        )),
        OperatorStatus("other", 4, (0, 0, 0, 1), other),
        OperatorStatus("idle", 4, (0, 0, 0, 1)),
    )  # fmt: skip
    assert operator_statuses([loads_of(0)], {"count": 4}, None) == (OperatorStatus("count", 4),)
