"""A job that ends before it has processed everything reports how much is left, as far as it is known."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from megaflow.control.launcher_messages import BusyReport, EndNow, EndsNow
from megaflow.control.messages import Done, Request, StatusQuery
from megaflow.control.reports import BusyWorker, Explanation, HeldBy, JobStatus, LatencyQuantiles, WorkerStatus
from megaflow.errors import ClusterError
from megaflow.job.launcher.processes import drain_limit
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.children import Children
from megaflow.job.launcher.processes.drain_limit import (
    FORCE_SECONDS,
    QUESTION_SECONDS,
    DrainLimit,
    LastQuestion,
    what_is_left,
)
from megaflow.timely.communication.client import Client
from tests.words import says

COORDINATOR = ("127.0.0.1", 5000)


def worker(id: int, lines: int, done: int, timers: int | None = 0) -> WorkerStatus:
    return WorkerStatus(id, "running", 1, "h:1", lines, 0, 0.0, LatencyQuantiles(), 0, 0, done, timers=timers)


def status(*workers: WorkerStatus) -> JobStatus:
    return JobStatus("job", "stopping", 1, 0, workers, ())


def explanation(*held: HeldBy) -> Explanation:
    return Explanation("job", 1, 0, False, held)


def test_lines_and_timers_are_told_by_worker_and_who_holds_them() -> None:
    held = [HeldBy("tick", f"app.py:{line}", "output 0", line, 0, 1, "capability") for line in (3, 3, 4, 5, 6, 7)]
    told = what_is_left(status(worker(0, 10, 7, 1), worker(1, 5, 5), worker(2, 1, 0)), explanation(*held), ["more"])
    assert says(told, "worker 0: 3 of the 10 lines", "1 timer", "worker 2: 1 of the 1 line", "more")
    assert says(told, "held back by", *(f"'tick' (app.py:{line}) on worker {line}" for line in (3, 4, 5)), "2 more")


def test_it_is_said_that_nothing_was_left_and_that_nothing_is_known() -> None:
    assert what_is_left(status(worker(0, 10, 10, None)), None, []) == "no line, timer or record was left"
    assert says(what_is_left(None, None, []), "did not answer", "unknown")


class FakeQuestion:
    """A question that is answered when the test lets it."""

    made: list["FakeQuestion"]

    def __init__(self, address: Any, secret: bytes, wake: Callable[[], None], with_holders: bool) -> None:
        self.with_holders = with_holders
        self.status: JobStatus | None = None
        self.explanation = None
        self.is_over = False
        self.made.append(self)


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[FakeQuestion]:
    FakeQuestion.made = []
    monkeypatch.setattr(drain_limit, "LastQuestion", FakeQuestion)
    return FakeQuestion.made


def test_a_drain_ends_when_its_time_is_over_and_the_answer_is_in(questions: list[FakeQuestion]) -> None:
    end = DrainLimit(b"secret", Children())
    assert end.wait_seconds(0.0) is None
    end.drain(10.0, None)
    end.drain(10.0, 5.0)
    end.drain(14.0, 5.0)
    assert end.wait_seconds(12.0) == 3.0
    end.turn(14.9, COORDINATOR, (0, 0))
    assert questions == []
    end.turn(15.0, COORDINATOR, (0, 0))
    [question] = questions
    assert end.wait_seconds(15.0) == QUESTION_SECONDS
    end.turn(15.1, COORDINATOR, (0, 0))
    question.status, question.is_over = status(worker(0, 2, 1)), True
    said = (
        r"did not finish .* within 5 s .* \(--drain-timeout 5\), .*: worker 0: 1 of the 2 lines it has read"
    )
    with pytest.raises(ClusterError, match=said):
        end.turn(15.2, COORDINATOR, (0, 0))


def test_an_answer_that_does_not_come_is_not_waited_for(questions: list[FakeQuestion]) -> None:
    end = DrainLimit(b"secret", Children())
    end.drain(0.0, 1.0)
    end.turn(1.0, COORDINATOR, (0, 0))
    with pytest.raises(ClusterError, match=r"unfinished: 2 records not written yet; the workers did not answer"):
        end.turn(1.0 + QUESTION_SECONDS, COORDINATOR, (0, 2))


def test_who_has_ended_is_not_asked(questions: list[FakeQuestion]) -> None:
    end = DrainLimit(b"secret", Children())
    end.drain(0.0, 1.0)
    with pytest.raises(ClusterError, match=r"; unfinished: 2 records not written yet$"):
        end.turn(1.0, None, (0, 2))
    assert questions == []


def test_a_question_that_reaches_nobody_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Client:
        raise ConnectionRefusedError

    monkeypatch.setattr(Client, "connect", refuse)
    over = threading.Event()
    question = LastQuestion(COORDINATOR, b"secret", over.set)
    assert over.wait(90) and question.is_over and question.status is None


def test_the_question_does_not_wait_for_a_worker_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    known = replace(status(worker(0, 2, 1, 3)), silent=(1,))

    class FakeClient:
        def send(self, request: Request) -> None:
            asked.append(request)

        def receive(self, timeout_seconds: float) -> Done:
            return Done(asked[-1].id, known)

        def close(self) -> None:
            pass

    monkeypatch.setattr(Client, "connect", lambda *_: FakeClient())
    over = threading.Event()
    question = LastQuestion(COORDINATOR, b"secret", over.set, with_holders=False)
    assert over.wait(90) and question.status == known
    assert [each.body for each in asked] == [StatusQuery(loads=True, partial=True)]
    told = what_is_left(known, None, [])
    assert told.startswith("unfinished: worker 0: 1 of the 2 lines it has read and 3 timers; worker 1 did not answer")
    nothing = what_is_left(replace(status(worker(0, 1, 1)), silent=(1, 2)), None, [])
    assert says(nothing, "workers 1, 2 did not answer", "unknown")


def test_force_asks_for_the_status_alone_and_not_for_long(questions: list[FakeQuestion]) -> None:
    end = DrainLimit(b"secret", Children())
    woken: list[bool] = []
    end.wake = lambda: woken.append(True)
    end.is_served = True
    assert end.end_now(EndNow()) == EndsNow() and woken == [True]
    end.turn(0.0, COORDINATOR, (0, 0))
    [question] = questions
    assert not question.with_holders and end.wait_seconds(0.0) == FORCE_SECONDS
    question.status, question.is_over = status(worker(0, 2, 1)), True
    with pytest.raises(ClusterError, match=r"ended by force, .*; unfinished: worker 0: 1 of the 2 lines"):
        end.turn(0.1, COORDINATOR, (0, 0))


def test_force_asks_no_coordinator_that_is_busy(questions: list[FakeQuestion], monkeypatch: pytest.MonkeyPatch) -> None:
    busy = BusyReport((BusyWorker((0,), 7, 12.0, "busy", "fold", "app.py:3"),), (0,))
    monkeypatch.setattr(drain_limit, "who_is_busy", lambda children: busy)
    end = DrainLimit(b"secret", Children())
    end.is_served = True
    end.end_now(EndNow())
    said = r"; unfinished: 3 lines sent.*; worker 0 has been in 'fold' \(app.py:3\) for 12.0 s$"
    with pytest.raises(ClusterError, match=said):
        end.turn(0.0, COORDINATOR, (3, 0))
    assert questions == []


def test_force_kills_processes_that_the_launcher_still_waits_for() -> None:
    children = Children()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    children.all.append(Child(("h", 1), process))
    with children:
        DrainLimit(b"secret", children).end_now(EndNow())
        assert process.wait(90) == -signal.SIGKILL
