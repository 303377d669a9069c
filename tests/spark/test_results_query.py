"""The query that writes results is restarted if Python was too slow to start. Its other failures are reported."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from megaflow.errors import MegaflowError, OutputError
from megaflow.spark import results_query
from megaflow.spark.results_query import LATE, OwnQueries, Query, start_reading, watch
from megaflow.spark.results_spec import parse_results_spec
from megaflow.spark.spark_errors import root_cause, text_of
from tests.words import says

WAIT_SECONDS = 90.0
SPEC = parse_results_spec("spark:noop?schema=n long")


class Started:
    """A StreamingQuery, which fails with this error, if any."""

    def __init__(self, error: str = "") -> None:
        self.isActive = not error
        self._error = error

    def exception(self) -> Exception | None:
        return RuntimeError(self._error) if self._error else None

    def stop(self) -> None:
        self.isActive = False


def query_of(answers: list[Any], told: Callable[[MegaflowError], None] = lambda error: None) -> Query:
    def begin() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def worded(error: Exception) -> OutputError:
        return OutputError(f"{SPEC}: {root_cause(text_of(error))}")

    return Query(worded, begin, told)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_query, "POLL_SECONDS", 0.001)


def test_a_query_is_started_again_if_python_was_late() -> None:
    answers = [RuntimeError(f"Python worker {LATE}."), Started()]
    query = query_of(answers)
    query.start()
    assert not answers


def test_a_query_that_cannot_be_started_is_said_with_what_it_writes() -> None:
    with pytest.raises(OutputError, match=r"spark:noop:: no such column"):
        query_of([RuntimeError("no such column")]).start()


def test_a_query_that_fails_later_is_started_again_or_reported() -> None:
    told: list[str] = []
    heard = threading.Event()

    def hear(error: MegaflowError) -> None:
        told.append(str(error))
        heard.set()

    answers = [Started(f"Python worker {LATE}."), Started("[STREAM_FAILED] the disk is full")]
    query = query_of(answers, hear)
    query.start()
    query.watcher.start()
    assert heard.wait(WAIT_SECONDS)
    query.stop()
    assert not answers and told == ["spark:noop:: the disk is full"]


def test_a_query_that_was_stopped_is_not_reported() -> None:
    query = query_of([Started()], lambda error: pytest.fail(str(error)))
    query.start()
    query.watcher.start()
    query.stop()
    assert not query.watcher.is_alive()


def test_a_sentence_that_does_not_say_why_is_followed_by_its_causes() -> None:
    error = RuntimeError("[STREAM_FAILED] Query [id = 1] terminated with exception: [TASK_WRITE_FAILED] Task failed "
                         "while writing rows to file:/out. SQLSTATE: 58030\n=== Streaming Query ===\nIdentifier: 1")
    trace = """org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/out.
\tat org.apache.spark.Foo
Caused by: org.apache.parquet.util.CloseException: Unable to close resource
\tSuppressed: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\t\tCaused by: java.io.IOException: not this one
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
Caused by: java.io.IOException: No space left on device"""
    error._cause = SimpleNamespace(_stackTrace=trace)  # type: ignore[attr-defined]
    why = "Task failed while writing rows to file:/out. Unable to close resource No space left on device"
    assert root_cause(text_of(error)) == why
    clear = "[CAST_INVALID_INPUT] The value 'x' cannot be cast. SQLSTATE: 22018\nCaused by: java.io.IOException: other"
    assert root_cause(clear) == "The value 'x' cannot be cast."


def test_it_is_not_started_for_ever() -> None:
    with pytest.raises(OutputError, match=LATE):
        query_of([RuntimeError(LATE)] * 20).start()


def test_executors_find_what_the_results_need_whenever_they_ask(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from megaflow.spark.results_source import ResultsPlace, results_frame

    session = MagicMock()
    session.sparkContext.master = "spark://somewhere:7077"
    session.sparkContext._temp_dir = str(tmp_path)
    for _ in "twice":
        results_frame(session, ResultsPlace("job", (("127.0.0.1", 1),), "{}", b"secret"))
    [added] = session.sparkContext.addArchive.call_args_list
    assert Path(added.args[0].partition("#")[0]).exists()


class Reading(SimpleNamespace):
    """Results for a program's queries. Each query ends like the next entry or, if that is empty, asks for results."""

    def start_each(self, ends: list[str]) -> Any:
        self.questions = 0

        def begin() -> Any:
            started = Started(ends.pop(0))
            self.questions += started.isActive
            return started

        return start_reading(begin, self)  # type: ignore[arg-type]


def test_a_program_s_query_is_started_again_if_python_was_late() -> None:
    ends = [f"Python worker {LATE}."] * 2 + ["", "not started"]
    assert Reading().start_each(ends).isActive and ends == ["not started"]


def test_a_program_s_query_that_fails_by_something_else_is_not_started_again() -> None:
    ends = ["[STREAM_FAILED] no room", "not started"]
    assert str(Reading().start_each(ends).exception()) == "[STREAM_FAILED] no room" and ends == ["not started"]


def test_a_program_s_query_is_not_started_for_ever() -> None:
    ends = [LATE] * 20
    assert str(Reading().start_each(ends).exception()) == LATE and 0 < len(ends) < 20


def test_a_program_s_query_that_has_read_and_ended_is_returned_as_it_is() -> None:
    results, ended = SimpleNamespace(questions=0), Started(LATE)  # by what it does itself, perhaps

    def begin() -> Any:
        results.questions += 1
        return ended

    assert start_reading(begin, results) is ended and results.questions == 1  # type: ignore[arg-type]


def test_who_starts_a_query_waits_until_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    results, waits = SimpleNamespace(questions=3), []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        results.questions += len(waits) == 5

    monkeypatch.setattr(results_query, "time", SimpleNamespace(sleep=sleep))
    assert start_reading(Started, results).isActive and len(waits) == 5  # type: ignore[arg-type]


class OfProgram(Started):
    """A StreamingQuery of a program, which reads from sources with these names."""

    def __init__(self, run: int, *sources: str) -> None:
        super().__init__()
        self.runId = run
        plan = MagicMock()
        plan.toString.return_value = " ".join(f"StreamingRelationV2 {source}, []" for source in sources)
        self._jsq = MagicMock()
        self._jsq.streamingQuery.return_value.analyzedPlan.return_value = plan

    def fail(self, error: str) -> None:
        self.isActive, self._error = False, error


def test_of_a_program_s_queries_that_one_counts_which_read_the_results_last() -> None:
    pytest.importorskip("pyspark")
    active = [OfProgram(1, "rate"), OfProgram(2, "megaflow_other_x")]
    queries = OwnQueries(SimpleNamespace(streams=SimpleNamespace(active=active)), "job")
    assert queries.trouble() == "no query reads them" and not queries.have_begun
    active.append(first := OfProgram(3, "megaflow_job_x", "rate"))
    assert queries.trouble() is None and queries.have_begun
    active.remove(first)
    first.fail("[STREAM_FAILED] no room")
    assert queries.trouble() == "their query failed: no room"
    active.append(again := OfProgram(4, "megaflow_job_y"))
    assert queries.trouble() is None
    active.remove(again)
    again.stop()
    assert queries.trouble() == "their query was stopped"


def test_nobody_fails_a_job_because_spark_does_not_say() -> None:
    pytest.importorskip("pyspark")
    assert OwnQueries(None, "job").trouble() is None


def test_a_job_that_waits_in_vain_for_a_reader_fails_with_what_ended_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_query, "ALONE_SECONDS", 0.0)
    troubles = [None, None, "their query failed: no room"]
    results = MagicMock(unread=7)
    watch(lambda: troubles.pop(0), results, lambda: bool(troubles))
    [told] = results.fail.call_args.args
    assert says(str(told), "7 rows of the results have no reader", "no room")


def test_a_query_that_is_started_again_in_time_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_query, "ALONE_SECONDS", 1e6)
    troubles = ["their query failed: no room", "their query failed: no room", None]
    results = MagicMock()
    watch(lambda: troubles.pop(0), results, lambda: bool(troubles))
    results.fail.assert_not_called()


@pytest.mark.parametrize("has_ended", [False, True])
def test_nobody_waits_for_a_reader_of_nothing(monkeypatch: pytest.MonkeyPatch, has_ended: bool) -> None:
    monkeypatch.setattr(results_query, "ALONE_SECONDS", 0.0)
    troubles = ["no query reads them"]
    results = MagicMock(unread=0, has_ended=has_ended)
    watch(lambda: troubles.pop(0), results, lambda: bool(troubles))
    results.fail.assert_not_called()
    assert results.forgo.called == has_ended
