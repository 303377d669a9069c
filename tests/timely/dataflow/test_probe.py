"""ProbeHandle: the times that may still arrive, on all workers together."""

from typing import Any

import pytest

from megaflow.program import Worker
from megaflow.timely import InputHandle, ProbeHandle
from tests.timely.workers import EVERY, ByHand, by_hand, run


def test_a_probe_says_least_before_anything_is_known() -> None:  # engine case 7
    probe = ProbeHandle()
    assert not probe.done() and probe.less_equal(0) and not probe.less_than(0)
    _, worker = by_hand()
    with worker.dataflow() as scope:
        scope.empty().probe_with(probe)
        assert not probe.done() and probe.less_equal(0)
    assert not probe.done() and probe.less_equal(0)


def test_a_probe_follows_ten_rounds_and_the_end() -> None:  # engine case 6
    _, worker = by_hand()
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        probe = stream.probe()
    for number in range(10):
        assert not probe.done()
        assert probe.less_equal(number)
        assert probe.less_than(number + 1)
        handle.advance_to(number + 1)
        for _ in range(4):
            worker.step()
        assert not probe.less_than(number + 1)
    handle.close()
    for _ in range(4):
        worker.step()
    assert probe.done() and not probe.less_equal(10**9)


@pytest.mark.parametrize("workers", EVERY)
def test_each_number_comes_to_its_worker_before_the_next_is_sent(workers: int) -> None:  # engine case 2
    seen: list[tuple[int, int]] = []

    def main(worker: Worker) -> None:
        numbers: InputHandle[int] = InputHandle()
        probe = ProbeHandle()
        with worker.dataflow() as scope:
            stream = scope.input_from(numbers).exchange(lambda x: x)
            stream.inspect(lambda x: seen.append((worker.index, x))).probe_with(probe)
        for number in range(10):
            if worker.index == 0:
                numbers.send(number)
            numbers.advance_to(number + 1)
            worker.step_while(lambda: probe.less_than(numbers.time))

    run(workers, main)
    assert seen == [(number % workers, number) for number in range(10)]


def test_a_probe_waits_for_records_under_way_to_another_worker() -> None:
    hand = ByHand(2)
    handles, probes = [], []
    for worker in hand.workers:
        with worker.dataflow() as scope:
            handle, stream = scope.new_input()
            probes.append(stream.exchange(lambda x: 1).probe())
            handles.append(handle)
    handles[0].send("to worker 1")
    for handle in handles:
        handle.advance_to(1)
    for _ in range(10):
        hand.workers[0].step()
    assert probes[0].less_than(1), "worker 1 has not even seen it"
    hand.settle()
    assert not probes[0].less_than(1) and not probes[1].less_than(1)


def test_a_probe_of_two_streams_shows_what_may_arrive_at_either() -> None:
    hand, worker = by_hand()
    probe = ProbeHandle()
    with worker.dataflow() as scope:
        slow, slow_stream = scope.new_input()
        slow_stream.probe_with(probe)
    with worker.dataflow() as scope:
        fast, fast_stream = scope.new_input()
        fast_stream.probe_with(probe)
    fast.advance_to(9)
    slow.advance_to(2)
    hand.settle()
    assert probe.frontier.elements == (2,)
    slow.close()
    hand.settle()
    assert probe.frontier.elements == (9,) and not probe.done()
    fast.close()
    hand.settle()
    assert probe.done()


def test_probe_with_returns_the_stream_and_probe_the_handle() -> None:
    _, worker = by_hand()
    with worker.dataflow() as scope:
        stream: Any = scope.empty()
        assert stream.probe_with(ProbeHandle()) is stream
        assert isinstance(stream.probe(), ProbeHandle)


def test_a_frontier_read_earlier_does_not_change() -> None:
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        probe = stream.probe()
    before = probe.frontier
    handle.advance_to(4)
    hand.settle()
    assert before.elements == (0,) and probe.frontier.elements == (4,)
