"""The controller's hands: events reach it, its instructions are carried out, members answer for themselves."""

from typing import Any

import pytest

from megaflow.control.agent import TOPIC, Agent, Coordinator
from megaflow.control.controller import Controller
from megaflow.control.events import Asked
from megaflow.control.messages import (
    Accepted,
    Done,
    EndOfLines,
    PushedEnded,
    Reconfigure,
    Refused,
    Request,
    StatusQuery,
)
from megaflow.control.statistics import Lateness
from megaflow.errors import ProtocolError
from megaflow.routing import Move, Numbered
from megaflow.timely.dataflow.input import InputHandle
from megaflow.timely.dataflow.probe import ProbeHandle
from tests.run.by_hand import Clock, lone_worker, settle


class Client:
    """Notes its answers."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def send(self, message: object) -> None:
        self.answers.append(message)


class Bench:
    """A coordinator on a lone worker whose control stream is merely watched."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.worker = lone_worker(self.clock)
        self.control: InputHandle[Any] = InputHandle()
        self.seen: list[tuple[int, Any]] = []  # (epoch, command)
        self.probe = ProbeHandle()
        self.agent = Agent(self.worker, "127.0.0.1:2101", lambda: 17, Lateness())
        with self.worker.dataflow() as scope:
            watched = scope.input_from(self.control).inspect_time(
                lambda time, record: self.seen.append((int(str(time)), record))
            )
            watched.probe_with(self.probe)
        controller = Controller("job", self.worker.membership, {"count": 4}, pushed=True)
        self.coordinator = Coordinator(self.worker, controller, self.control, "job", self.probe)
        self.agent.coordinate(self.coordinator)
        self.client = Client()

    def _note(self, time: Any, command: Any) -> None:
        self.seen.append((time, command))

    def ask(self, id: int, body: object) -> None:
        self.coordinator.put(Asked(self.client, Request(id, body)))

    def turn(self, seconds: float = 0.01) -> float:
        self.clock.now += seconds
        settle(self.worker)
        open_times = self.probe.frontier.elements
        wait = self.coordinator.turn(self.clock.now, int(str(open_times[0])) if open_times else None)
        settle(self.worker)
        return wait


def test_ticks_advance_the_control_stream() -> None:
    bench = Bench()
    waits = [bench.turn() for _ in range(5)]
    assert bench.control.time == 5
    assert all(0 < wait <= 0.01 for wait in waits)


def test_a_command_is_injected_at_one_epoch_and_answered_when_the_probe_has_passed_it() -> None:
    bench = Bench()
    bench.turn()
    bench.ask(3, Reconfigure((Move(1, 0),)))
    bench.turn()
    assert bench.seen == [(1, Numbered(0, Move(1, 0)))]
    assert bench.client.answers == [Accepted(3, 1)]
    bench.turn()
    (_, done) = bench.client.answers
    assert isinstance(done, Done)
    assert done.result["epoch"] == 1


def test_a_refusal_changes_nothing() -> None:
    bench = Bench()
    bench.ask(3, Reconfigure((Move(99, 0),)))
    bench.turn()
    assert bench.seen == []
    assert isinstance(bench.client.answers[0], Refused)


def test_a_request_wakes_a_parked_worker() -> None:
    bench = Bench()
    bench.turn()
    bench.ask(1, StatusQuery())
    bench.worker.allocator.park(30.0)  # returns at once, or the test times out


def test_status_comes_from_the_members_themselves() -> None:
    bench = Bench()
    bench.ask(9, StatusQuery())
    for _ in range(3):
        bench.turn()
    (done,) = bench.client.answers
    assert done.id == 9
    (worker,) = done.result["workers"]
    assert (worker["id"], worker["address"], worker["lines"]) == (0, "127.0.0.1:2101", 17)


def test_when_the_lines_are_over_the_end_is_announced_and_control_closes() -> None:
    bench = Bench()
    bench.turn()
    bench.agent.report(PushedEnded())
    bench.turn()
    bench.turn()
    assert [command.command for _, command in bench.seen] == [EndOfLines()]
    assert bench.probe.done()
    assert bench.worker.installed_dataflows == {}


def test_a_report_to_a_worker_that_does_not_coordinate_is_a_broken_protocol() -> None:
    worker = lone_worker(Clock())
    Agent(worker, "", lambda: 0, Lateness())
    worker.post(0, TOPIC, PushedEnded())
    with pytest.raises(ProtocolError, match="no coordinator"):
        worker.step()
