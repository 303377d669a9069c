"""Activators: operators ask to run now, later, or from another thread."""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from megaflow.program import Worker
from megaflow.timely import Capability, OperatorInfo
from megaflow.timely.dataflow.context import Activator
from tests.timely.cases import run_threads
from tests.timely.workers import by_hand

Logic = Callable[[Any], None]
TICKS = 10


def counting(runs: list[Any], infos: list[OperatorInfo], hold: list[Capability]) -> Callable[[Any, Any], Logic]:
    """A source that notes its runs and sends nothing."""

    def build(capability: Capability, info: OperatorInfo) -> Logic:
        infos.append(info)
        hold.append(capability)
        return lambda output: runs.append(info.worker)

    return build


def ticking(seconds: float) -> Callable[[Capability, OperatorInfo], Logic]:
    """Source that sends ten numbers, one at each end of its timer."""

    def build(capability: Capability, info: OperatorInfo) -> Logic:
        sent = -1  # the first run is the start

        def logic(output: Any) -> None:
            nonlocal sent
            if sent >= 0:
                output.session(capability).give(sent)
            sent += 1
            if sent < TICKS:
                info.activator.activate_after(seconds)
            else:
                capability.release()

        return logic

    return build


@pytest.mark.parametrize("workers", [1, 2])
def test_a_source_that_arms_its_timer_ticks_in_time_and_sleeps_between(workers: int) -> None:
    """Case 57: ten ticks of 50 ms take at least half a second, with little work."""

    def main(worker: Worker) -> tuple[Any, float, float]:
        begun, worked = time.monotonic(), time.thread_time()
        with worker.dataflow() as scope:
            captured = scope.source("Tick", ticking(0.05)).capture()
        while worker.installed_dataflows:
            worker.step_or_park(None)
        return captured, time.monotonic() - begun, time.thread_time() - worked

    for captured, took, worked in run_threads(workers, main):
        assert captured.extract() == [(0, list(range(TICKS)))]
        assert took >= 0.5
        assert worked < 0.25 * took  # really a hundredth; polling would work all the time


def test_a_timer_fires_when_its_time_has_come_and_not_before() -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        captured = scope.source("Tick", ticking(3.0)).capture()
    hand.settle()
    for number in range(TICKS):
        hand.now += 2.9
        hand.settle()
        worker.step()
        assert captured.extract() == ([(0, list(range(number)))] if number else [])
        hand.now += 0.2
        worker.step()
        assert captured.extract() == [(0, list(range(number + 1)))]
    worker.step()
    assert not worker.installed_dataflows


def test_timers_fire_in_the_order_in_which_they_are_due() -> None:
    hand, worker = by_hand()
    runs: list[str] = []
    infos: dict[str, OperatorInfo] = {}

    def named(name: str) -> Callable[[Capability, OperatorInfo], Logic]:
        def build(capability: Capability, info: OperatorInfo) -> Logic:
            capability.release()
            infos[name] = info
            return lambda output: runs.append(name)

        return build

    with worker.dataflow() as scope:
        hold, _ = scope.new_input()
        for name in ("a", "b"):
            scope.source(name, named(name))
    hand.settle()
    runs.clear()
    infos["a"].activator.activate_after(2)
    infos["b"].activator.activate_after(1)
    infos["b"].activator.activate_after(3)
    for _ in range(4):
        hand.now += 1
        worker.step()
    assert runs == ["b", "a", "b"]
    hold.close()


def test_activations_before_a_step_are_one_run() -> None:
    hand, worker = by_hand()
    runs: list[int] = []
    infos: list[OperatorInfo] = []
    hold: list[Capability] = []
    with worker.dataflow() as scope:
        scope.source("Mine", counting(runs, infos, hold))
    hand.settle()
    assert runs == [0] and not worker.has_work()
    for _ in range(1000):
        infos[0].activator.activate()
    assert worker.has_work()
    hand.settle()
    assert runs == [0, 0]
    hold[0].release()
    hand.settle()


def often(activator: Activator) -> None:
    for _ in range(1000):
        activator.activate()


def test_activations_from_another_thread_are_one_run_and_take_no_room() -> None:
    hand, worker = by_hand()
    runs: list[int] = []
    infos: list[OperatorInfo] = []
    hold: list[Capability] = []
    with worker.dataflow() as scope:
        scope.source("Mine", counting(runs, infos, hold))
    hand.settle()
    activator = worker.sync_activator(infos[0])
    for _ in range(2):
        thread = threading.Thread(target=often, args=(activator,))
        thread.start()
        thread.join()
        assert worker.has_work() and len(worker._handed) == 1
        hand.settle()
    assert runs == [0, 0, 0]
    hold[0].release()
    hand.settle()


def test_a_timer_can_be_set_from_another_thread() -> None:
    hand, worker = by_hand()
    runs: list[int] = []
    infos: list[OperatorInfo] = []
    hold: list[Capability] = []
    with worker.dataflow() as scope:
        scope.source("Mine", counting(runs, infos, hold))
    hand.settle()
    thread = threading.Thread(target=lambda: worker.sync_activator(infos[0]).activate_after(5))
    thread.start()
    thread.join()
    hand.settle()
    assert runs == [0]
    hand.now += 6
    worker.step()
    assert runs == [0, 0]
    hold[0].release()
    hand.settle()


def test_a_thread_wakes_a_parked_worker_within_milliseconds() -> None:
    """Case 57. Takes one of the quicker attempts, since another process may have the processor."""
    asked: SimpleQueue[float | None] = SimpleQueue()  # when each activation was made; None: the end
    answers: SimpleQueue[float] = SimpleQueue()
    ready: SimpleQueue[Any] = SimpleQueue()

    def build(capability: Capability, info: OperatorInfo) -> Logic:
        ready.put(info)

        def logic(output: Any) -> None:
            while not asked.empty():
                begun = asked.get()
                if begun is None:
                    capability.release()
                else:
                    answers.put(time.monotonic() - begun)

        return logic

    def main(worker: Worker) -> None:
        with worker.dataflow() as scope:
            scope.source("Woken", build)
        ready.put(worker)
        while worker.installed_dataflows:
            worker.step_or_park(None)  # without limit: only the thread can wake it

    def ask(found: list[float]) -> None:
        info, worker = ready.get(), ready.get()
        activator = worker.sync_activator(info)
        for _ in range(50):
            asked.put(time.monotonic())
            activator.activate()
            found.append(answers.get(timeout=90))
        asked.put(None)
        activator.activate()

    found: list[float] = []
    thread = threading.Thread(target=ask, args=(found,))
    thread.start()
    run_threads(1, main)
    thread.join()
    assert sorted(found)[5] < 0.010


def test_an_activation_after_the_end_is_harmless() -> None:
    infos: list[OperatorInfo] = []

    def build(capability: Capability, info: OperatorInfo) -> Logic:
        capability.release()
        infos.append(info)
        return lambda output: None

    def main(worker: Worker) -> None:
        with worker.dataflow() as scope:
            scope.source("Short", build)

    def activate_all() -> None:
        for info in infos:
            info.activator.activate()

    run_threads(2, main)
    thread = threading.Thread(target=activate_all)
    thread.start()
    thread.join()
    assert len(infos) == 2


def test_activating_an_operator_of_a_dropped_dataflow_is_harmless() -> None:
    hand, worker = by_hand()
    runs: list[int] = []
    infos: list[OperatorInfo] = []
    hold: list[Capability] = []
    with worker.dataflow() as scope:
        scope.source("Mine", counting(runs, infos, hold))
    hand.settle()
    infos[0].activator.activate_after(1)
    worker.drop_dataflow(0)
    infos[0].activator.activate()
    hand.now += 2
    worker.step()
    hand.settle()
    assert runs == [0] and not worker.installed_dataflows
    hold[0].release()
