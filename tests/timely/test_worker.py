"""The worker: several dataflows, parking that loses no wake-up, timers, and the end of its work."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from megaflow.errors import BuildError, PeerFailed, ProgramError
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.timely import Capability, InputHandle, OperatorInfo, Pipeline, ProbeHandle
from megaflow.timely.communication.allocator import FailureReport
from megaflow.timely.communication.local import LocalAllocator, LocalFabric
from megaflow.timely.membership import founding
from tests.timely.workers import EVERY, ByHand, by_hand, drain, run

PATIENCE_SECONDS = 90.0

# Several dataflows --------------------------------------------------------------------------


@pytest.mark.parametrize("workers", EVERY)
def test_fifty_dataflows_end_one_by_one_without_disturbing_the_others(workers: int) -> None:  # engine case 40
    order = [(7 * i + 3) % 50 for i in range(50)]

    def main(worker: Worker) -> Any:
        parts = []
        for number in range(50):
            handle: InputHandle[int] = InputHandle()
            with worker.dataflow(f"flow {number}") as scope:
                stream = scope.input_from(handle).map(lambda x, number=number: x + number).exchange(lambda x: x)
                parts.append((handle, stream.probe(), stream.capture()))
        assert worker.installed_dataflows == {number: f"flow {number}" for number in range(50)}
        for closed, number in enumerate(order, start=1):
            parts[number][0].send(worker.index)
            parts[number][0].close()
            worker.step_while(lambda probe=parts[number][1]: not probe.done())  # type: ignore[misc]
            for other, (_, probe, _) in enumerate(parts):
                assert probe.done() == (other in order[:closed])
        worker.step_while(lambda: bool(worker.installed_dataflows))
        return [captured.extract() for _, _, captured in parts]

    found = run(workers, main)
    for number in range(50):
        records = sorted(x for each in found for _, batch in each[number] for x in batch)
        assert records == [number + index for index in range(workers)]


def test_a_complete_dataflow_is_forgotten_and_freed() -> None:
    hand, worker = by_hand()
    with worker.dataflow("short") as scope:
        handle, stream = scope.new_input()
        captured = stream.map(str).capture()
    graph = weakref.ref(worker.graphs()[0])
    handle.send(1)
    handle.close()
    hand.settle()
    assert worker.installed_dataflows == {} and captured.extract() == [(0, ["1"])]
    del scope, stream, captured
    gc.collect()
    assert graph() is None


@pytest.mark.parametrize("workers", [2, 3])
def test_records_for_a_dataflow_not_built_yet_wait_for_it(workers: int) -> None:  # engine case 39; #63, #197
    sent = threading.Event()

    def main(worker: Worker) -> Any:
        if worker.index > 0:
            assert sent.wait(PATIENCE_SECONDS)
            worker.step()  # receives what is meant for later
        handle: InputHandle[int] = InputHandle()
        with worker.dataflow() as scope:
            stream = scope.input_from(handle).exchange(lambda x: x)
            captured, probe = stream.capture(), stream.probe()
        if worker.index == 0:
            handle.send_batch(list(range(1000)))
            worker.step()
            worker.step()
            sent.set()
        handle.close()
        worker.step_while(lambda: not probe.done())
        return captured

    assert run(workers, main) == [[(0, list(range(index, 1000, workers)))] for index in range(workers)]


def test_what_arrives_while_a_dataflow_is_being_built_waits_for_the_end_of_its_block() -> None:
    hand = ByHand(2)
    first, second = hand.workers
    handles: list[InputHandle[str]] = [InputHandle(), InputHandle()]
    with first.dataflow() as scope:
        scope.input_from(handles[0]).exchange(lambda x: 1).capture()
    handles[0].send("early")
    handles[0].close()
    first.step()
    with second.dataflow() as scope:
        stream = scope.input_from(handles[1]).exchange(lambda x: 1)
        second.step()
        captured = stream.capture()
    handles[1].close()
    hand.settle()
    assert captured.extract() == [(0, ["early"])]
    assert not first.installed_dataflows and not second.installed_dataflows


def test_dataflows_may_be_built_inside_one_another_and_between_steps() -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow("outer") as scope:
            outer = scope.to_stream([1]).exchange(lambda x: x).capture()
            with worker.dataflow("inner") as inner_scope:
                inner = inner_scope.to_stream([2]).exchange(lambda x: x).capture()
        worker.step()
        with worker.dataflow("late") as scope:
            late = scope.to_stream([3]).exchange(lambda x: x).capture()
        drain(worker)
        return [captured.extract() for captured in (outer, inner, late)]

    found = run(2, main)
    assert [a or b for a, b in zip(*found)] == [[(0, [1, 1])], [(0, [2, 2])], [(0, [3, 3])]]


# Parking ------------------------------------------------------------------------------------


class Parking(LocalAllocator):
    """Transport that notes how long the worker would wait, and never waits."""

    def __init__(self, during: Callable[[], object] = lambda: None) -> None:
        fabric = LocalFabric([0])
        super().__init__(fabric, 0)
        self.waits: list[float | None] = []
        self.during = during

    def park(self, seconds: float | None) -> None:
        self.waits.append(seconds)
        self.during()


def parking() -> tuple[Parking, Worker, list[float]]:
    now = [1000.0]
    allocator = Parking()
    return allocator, Worker(allocator, founding([0]), Scope, (lambda: now[0], lambda: now[0])), now


def asleep(worker: Worker) -> tuple[InputHandle[int], ProbeHandle, list[OperatorInfo]]:
    """Dataflow with nothing to do: an input, an operator whose activator the test holds, a probe."""
    infos: list[OperatorInfo] = []

    def build(capability: Capability, info: OperatorInfo) -> Callable[[Any, Any], None]:
        capability.release()
        infos.append(info)
        return lambda input, output: infos.append(info) if not list(input) else None

    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        probe = stream.unary(Pipeline(), "Sleeper", build).probe()
    while worker.has_work():
        worker.step()
    del infos[1:]
    return handle, probe, infos


def test_a_worker_parks_only_when_there_is_nothing_to_do() -> None:
    allocator, worker, _ = parking()
    handle, probe, infos = asleep(worker)
    worker.step_or_park(None)
    worker.step_or_park(0.5)
    assert allocator.waits == [None, 0.5]
    for nudge in (
        lambda: handle.send_batch([1]),
        lambda: handle.advance_to(1),
        lambda: infos[0].activator.activate(),
        handle.close,
    ):
        allocator.waits.clear()
        nudge()
        worker.step_or_park(None)
        assert allocator.waits == [], "it would have slept on work"
        while worker.has_work():
            worker.step_or_park(None)
        assert allocator.waits == []
    assert probe.done() and not worker.installed_dataflows


def test_a_worker_does_not_wait_beyond_its_next_timer() -> None:
    allocator, worker, now = parking()
    _, _, infos = asleep(worker)
    infos[0].activator.activate_after(2.0)
    infos[0].activator.activate_after(5.0)
    worker.step_or_park(None)
    worker.step_or_park(10.0)
    worker.step_or_park(0.25)
    assert allocator.waits == [2.0, 2.0, 0.25] and len(infos) == 1
    now[0] += 2.0
    worker.step_or_park(None)
    assert len(infos) == 2 and len(allocator.waits) == 3, "a timer that is due is no reason to wait"
    worker.step_or_park(None)
    assert allocator.waits[3] == 3.0
    now[0] += 60
    worker.step()
    assert len(infos) == 3


def test_a_timer_that_falls_due_while_parked_runs_in_the_same_step() -> None:
    allocator, worker, now = parking()
    _, _, infos = asleep(worker)
    infos[0].activator.activate_after(2.0)
    allocator.during = lambda: now.__setitem__(0, now[0] + 2.0)
    worker.step_or_park(None)
    assert len(infos) == 2


def test_activating_many_times_runs_once() -> None:
    _, worker, _ = parking()
    _, _, infos = asleep(worker)
    for _ in range(5):
        infos[0].activator.activate()
    worker.step()
    assert len(infos) == 2 and not worker.has_work()


def test_a_timer_of_a_dataflow_that_is_complete_does_nothing() -> None:
    _, worker, now = parking()
    handle, _, infos = asleep(worker)
    infos[0].activator.activate_after(1.0)
    handle.close()
    while worker.has_work():
        worker.step()
    now[0] += 2.0
    assert not worker.step() and not worker.has_work()


def test_a_parked_worker_is_woken_by_an_activation_from_another_thread() -> None:  # engine case 57
    ran = threading.Semaphore(0)

    def main(worker: Worker) -> None:
        activators: list[Any] = []

        def build(capability: Capability, info: OperatorInfo) -> Callable[[Any], None]:
            activators.append(info.activator)
            runs = []

            def logic(output: Any) -> None:
                runs.append(1)
                ran.release()
                if len(runs) == 101:
                    capability.release()

            return logic

        with worker.dataflow() as scope:
            scope.source("Woken", build)

        def wake() -> None:
            for _ in range(100):  # one after the other: each finds the worker parked or about to park
                assert ran.acquire(timeout=PATIENCE_SECONDS)
                activators[0].activate()

        thread = threading.Thread(target=wake)
        thread.start()
        drain(worker)
        thread.join()

    run(1, main)


def test_a_source_armed_again_by_a_timer_ticks_on_a_parked_worker() -> None:  # engine case 57
    def main(worker: Worker) -> list[float]:
        ticks: list[float] = []

        def build(capability: Capability, info: OperatorInfo) -> Callable[[Any], None]:
            def logic(output: Any) -> None:
                ticks.append(worker.now())
                if len(ticks) > 5:
                    capability.release()
                else:
                    info.activator.activate_after(0.01)

            return logic

        with worker.dataflow() as scope:
            scope.source("Ticks", build)
        drain(worker)
        return ticks

    [ticks] = run(1, main)
    assert len(ticks) == 6
    assert all(later - earlier >= 0.01 for earlier, later in pairwise(ticks))


@pytest.mark.parametrize("workers", EVERY)
def test_workers_that_park_without_end_are_woken_by_records_and_progress(workers: int) -> None:  # engine case 9
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            records = scope.to_stream(range(10) if worker.index == workers - 1 else [])
            captured = records.exchange(lambda x: 0).capture()
        worker.close_inputs()
        while worker.step_or_park(None):
            pass
        return captured

    assert run(workers, main)[0] == [(0, list(range(10)))]


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_driver_that_waits_outside_each_round_loses_no_wake_up(workers: int) -> None:  # engine case 46; #299
    rounds = 10_000
    barrier = threading.Barrier(workers, timeout=PATIENCE_SECONDS)

    def main(worker: Worker) -> int:
        handle: InputHandle[int] = InputHandle()
        with worker.dataflow() as scope:
            probe = scope.input_from(handle).exchange(lambda x: x).probe()
        if worker.index != 0:
            handle.close()
        for number in range(rounds):
            if worker.index == 0:
                handle.advance_to(number + 1)
            while probe.less_than(number + 1):
                worker.step_or_park(None)
            barrier.wait()
        return rounds

    assert run(workers, main) == [rounds] * workers


def test_step_while_checks_its_predicate_again_also_when_nothing_happens() -> None:
    allocator, worker, _ = parking()
    asleep(worker)
    looks = iter([True, True, False])
    worker.step_while(lambda: next(looks))
    assert len(allocator.waits) == 2 and all(wait is not None and wait <= 0.1 for wait in allocator.waits)


def test_a_step_tells_whether_dataflows_are_left() -> None:
    hand, worker = by_hand()
    assert not worker.step()
    with worker.dataflow() as scope:
        handle, _ = scope.new_input()
    assert worker.step() and worker.step()
    handle.close()
    hand.settle()
    assert not worker.step()


@pytest.mark.parametrize("step", [Worker.step, Worker.step_or_park])
def test_an_operator_cannot_step_its_own_worker(step: Callable[[Worker], object]) -> None:
    """Otherwise the current pass would lose the rest of the run queue."""
    _, worker = by_hand()
    with worker.dataflow() as scope:
        scope.to_stream([1]).inspect(lambda x: step(worker)).map(abs)
    with pytest.raises(ProgramError, match="an operator is running, and cannot step its own worker") as caught:
        worker.step()
    assert caught.value.__notes__[0].startswith("in operator 'Inspect'")


def test_an_operator_may_build_a_dataflow_and_use_an_input() -> None:
    hand, worker = by_hand()
    inner: list[Any] = []
    handle: InputHandle[int] = InputHandle()

    def grow(x: int) -> None:
        handle.send(x)
        with worker.dataflow() as scope:
            inner.append(scope.to_stream([x]).capture())

    with worker.dataflow() as scope:
        captured = scope.input_from(handle).capture()
        scope.to_stream([1]).inspect(grow)
    hand.settle()
    handle.close()
    hand.settle()
    assert captured.extract() == inner[0].extract() == [(0, [1])]


def calls_of_a_step(worker: Worker) -> int:
    """Return the number of Python functions that a step calls."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        worker.step()
    finally:
        sys.setprofile(None)
    return calls


def test_idle_dataflows_cost_a_step_nothing() -> None:
    hand, worker = by_hand()
    first, probe = build(worker)
    hand.settle()
    idle = calls_of_a_step(worker)
    busy = 0
    for _ in range(2):  # the first batch also makes what it needs
        first.send_batch([1])
        busy = calls_of_a_step(worker)
        hand.settle()
    rest = [build(worker) for _ in range(300)]
    hand.settle()
    assert not worker.has_work() and calls_of_a_step(worker) == idle
    first.send_batch([2])
    assert calls_of_a_step(worker) == busy > idle
    for handle, other in rest:
        handle.close()
        assert worker.has_work()
        hand.settle()
        assert other.done() and not probe.done()
    assert len(worker.installed_dataflows) == 1


def build(worker: Worker) -> tuple[InputHandle[int], ProbeHandle]:
    """Build a dataflow that hands its records on."""
    handle: InputHandle[int] = InputHandle()
    with worker.dataflow() as scope:
        probe = scope.input_from(handle).map(abs).probe()
    return handle, probe


def test_dataflows_that_feed_one_another_all_run() -> None:
    hand, worker = by_hand()
    handles: list[InputHandle[int]] = [InputHandle() for _ in range(5)]
    seen: list[tuple[int, int]] = []

    def feed(number: int, x: int) -> None:
        seen.append((number, x))
        if x < 10:
            handles[(number * 3 + 1) % 5].send_batch([x + 1])  # a later dataflow, an earlier one, itself

    for number in range(5):
        with worker.dataflow() as scope:
            scope.input_from(handles[number]).inspect(partial(feed, number))
    handles[4].send_batch([0])
    hand.settle()
    expected, number = [], 4
    for x in range(11):
        expected.append((number, x))
        number = (number * 3 + 1) % 5
    assert seen == expected
    for handle in handles:
        handle.close()
    hand.settle()
    assert not worker.installed_dataflows


def test_a_dataflow_that_fails_leaves_the_others_to_the_next_step() -> None:
    _, worker = by_hand()
    failing, _ = build(worker)
    handle: InputHandle[Any] = InputHandle()
    with worker.dataflow() as scope:
        captured = scope.input_from(handle).capture()
    while worker.has_work():
        worker.step()
    failing.send_batch(["text"])  # type: ignore[arg-type]
    handle.send_batch([1])
    with pytest.raises(TypeError):
        worker.step()
    handle.close()
    worker.step()
    assert captured.extract() == [(0, [1])]


def test_a_step_without_work_lets_the_other_workers_of_the_process_run(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr("megaflow.timely.worker.time.sleep", naps.append)
    for workers in (1, 2):
        hand = ByHand(workers)
        worker = hand.workers[0]
        worker.step()
        assert len(naps) == workers - 1
        handle, _ = build(worker)
        handle.send_batch([1])
        worker.step()
        assert len(naps) == workers - 1, "it had work"


# Facts for programs ---------------------------------------------------------------------------


def test_a_worker_knows_who_takes_part() -> None:
    assert run(3, lambda worker: (worker.index, worker.peers, worker.peer_ids, worker.bootstrap())) == [
        (index, 3, (0, 1, 2), False) for index in range(3)
    ]


def test_a_worker_has_its_own_list_of_arguments() -> None:
    fabric = LocalFabric([0])
    words = ("a", "b")
    worker: Worker = Worker(fabric.allocator(0), founding([0]), Scope, (lambda: 0.0, lambda: 0.0), words)
    assert worker.args == ["a", "b"]


def test_mail_waits_for_its_handler_and_keeps_its_order() -> None:
    hand = ByHand(2)
    first, second = hand.workers
    for number in range(3):
        first.post(1, "topic", number)
    second.step()
    got: list[Any] = []
    second.on_mail("topic", lambda source, body: got.append((source, body)))
    first.post(1, "topic", 3)
    second.post(1, "topic", 4)
    hand.settle()
    assert got == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4)]
    with pytest.raises(BuildError, match="'topic' already has a handler"):
        second.on_mail("topic", lambda source, body: None)


def test_a_failure_elsewhere_reaches_a_worker_at_its_next_step() -> None:
    hand = ByHand(2)
    hand.fabric.fail(FailureReport(1, "", "ValueError: no"))
    with pytest.raises(PeerFailed, match="worker 1 failed:\nValueError: no"):
        hand.workers[0].step()
