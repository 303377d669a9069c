"""Threads of one process exchange references and lose no wake-up."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from megaflow.errors import PeerFailed
from megaflow.timely.communication.allocator import Allocator, FailureReport
from megaflow.timely.communication.channel import Channel, Lane
from megaflow.timely.communication.local import LocalFabric


def test_a_body_arrives_by_reference_with_its_address() -> None:
    fabric = LocalFabric([3, 8])
    body = [1]
    fabric.allocator(3).send(8, Channel(Lane.DATA, 0, 5), body)
    [envelope] = fabric.allocator(8).receive()
    assert envelope == (Channel(Lane.DATA, 0, 5), 3, body)
    assert envelope.body is body


def test_each_target_of_send_all_gets_the_body_once() -> None:
    fabric = LocalFabric([0, 1, 2])
    fabric.allocator(1).send_all([0, 1, 2], Channel.progress(0), "batch")
    assert [[e.body for e in fabric.allocator(i).receive()] for i in range(3)] == [["batch"]] * 3


def test_park_returns_at_once_if_something_is_there_or_wake_was_called() -> None:
    a, b = (LocalFabric([0, 1]).allocator(i) for i in (0, 1))
    a.wake()
    a.park(None)
    a.send(0, Channel(Lane.MAIL, 0, 0), None)
    a.park(None)
    assert len(a.receive()) == 1
    b.park(0.0)


def test_a_wake_counts_for_one_park() -> None:
    end = LocalFabric([0]).allocator(0)
    end.wake()
    end.park(None)
    start = time.monotonic()
    end.park(0.05)
    assert time.monotonic() - start >= 0.04


def test_ten_thousand_turns_between_parked_threads_lose_no_wakeup() -> None:
    fabric = LocalFabric([0, 1])

    def play(end: Allocator) -> int:
        if end.index == 0:
            end.send(1, Channel(Lane.DATA, 0, 0), 0)
        turn = 0
        while turn < 10_000:
            end.park(None)
            for envelope in end.receive():
                turn = envelope.body + 1
                end.send(1 - end.index, Channel(Lane.DATA, 0, 0), turn)
        return turn

    with ThreadPoolExecutor(2) as pool:
        for turns in [pool.submit(play, fabric.allocator(i)) for i in (0, 1)]:
            assert turns.result(180) >= 10_000


def test_abort_is_raised_in_every_other_worker_also_in_a_parked_one() -> None:
    fabric = LocalFabric([0, 1, 2])
    parked = threading.Event()

    def park(end: Allocator) -> None:
        parked.set()
        while True:
            end.park(None)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(park, fabric.allocator(1))
        assert parked.wait(180)
        fabric.allocator(0).abort(FailureReport(0, "", "ValueError: boom"))
        with pytest.raises(PeerFailed, match="worker 0 failed:\nValueError: boom"):
            waiting.result(180)
    with pytest.raises(PeerFailed):
        fabric.allocator(2).receive()
    fabric.allocator(2).abort(FailureReport(2, "", "PeerFailed"))
    with pytest.raises(PeerFailed, match="boom"):
        fabric.allocator(1).receive()
    fabric.allocator(0).receive()


def test_a_finished_worker_takes_nothing_in() -> None:
    fabric = LocalFabric([0, 1])
    fabric.allocator(1).finish()
    fabric.allocator(0).send(1, Channel.progress(0), None)
    assert fabric.allocator(1).receive() == []
