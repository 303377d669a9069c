"""apps/diagnosed.py: results are complete even while a question of their time waits, on threads and in simulation."""

from typing import Any

import pytest

from apps.diagnosed import count, main
from megaflow.scope import Scope
from megaflow.testing import EngineCluster, Join
from megaflow.timely import InputHandle, ProbeHandle
from tests.timely.cases import run_threads
from tests.timely.workers import EVERY, by_hand


@pytest.mark.parametrize("workers", EVERY)
def test_numbers_are_counted_while_a_question_stays_at_time_0(workers: int) -> None:
    found = run_threads(workers, main)
    assert [(counted, asked) for counted, asked, _ in found] == [(10, 0)] * workers
    answers = [answer for _, _, heard in found for answer in heard]
    assert [worker for _, worker, _ in answers] == list(range(workers)), "every worker answers"
    assert sum(records for _, _, records in answers) == 100, "a tenth of 1000 numbers is of time 0"


@pytest.mark.parametrize("independent", [True, False])
def test_only_an_output_that_depends_on_questions_waits_for_them(independent: bool) -> None:
    """The book's operator, and the same one without declared dependencies between inputs and outputs."""
    hand, worker = by_hand()
    numbers, questions = InputHandle[int](), InputHandle[str]()
    counts, answers = ProbeHandle(), ProbeHandle()
    with worker.dataflow() as scope:
        streams = count(scope, scope.input_from(numbers), scope.input_from(questions), independent)
        streams[0].probe_with(counts)
        streams[1].probe_with(answers)
    questions.send("how many?")
    numbers.advance_to(5)
    hand.settle()
    assert not answers.less_than(0) and answers.less_equal(0)
    assert counts.less_equal(0) is not independent
    assert counts.less_equal(5)
    questions.advance_to(9)
    hand.settle()
    assert not counts.less_than(5) and not answers.less_than(5), "an answer waits for the numbers of its time, too"
    numbers.close()
    hand.settle()
    assert not answers.less_than(9) and counts.done() is independent


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_delivery_and_a_join_give_the_same_answers(seed: int) -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        scope = Scope(records.port.scope)
        asked, numbers = records.partition(2, lambda record: (isinstance(record, int), record))
        counted, answered = count(scope, numbers, asked.filter(lambda text: worker.index < 3))
        return counted.map(lambda pair: ("count", *pair)).concat(answered.map(lambda answer: ("answer", *answer)))

    feeds: dict[int, list[tuple[int, Any]]] = {
        worker: [(time, worker + 3 * time) for time in range(8)] for worker in range(3)
    }
    feeds[0].insert(4, (3, "how many?"))
    cluster = EngineCluster(seed, 3)
    cluster.at(record=5, do=Join())
    found = cluster.run(build, feeds)
    counts = sorted(record[1:] for _, record in found if record[0] == "count")
    assert counts == sorted((key, n + 1) for key in range(10) for n in range(len(range(key, 24, 10))))
    answers = [(time, record) for time, record in found if record[0] == "answer"]
    assert {time for time, _ in answers} == {3}
    assert sum(record[3] for _, record in answers) == 12, "those of times 0 to 3"
