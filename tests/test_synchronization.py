"""Barriers and sequencers: no worker runs ahead, and all read one log."""

import threading
from typing import Any

import pytest

from megaflow.program import Worker, execute
from megaflow.timely import Barrier, Config, Sequencer
from tests.timely.workers import ByHand


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_no_worker_passes_a_barrier_alone(workers: int) -> None:
    begun: list[int] = []  # rounds, in the order in which workers begin them

    def main(worker: Worker) -> None:
        barrier = Barrier(worker)
        for round in range(20):
            begun.append(round)
            barrier.wait()

    execute(Config.process(workers), main)
    assert begun == sorted(begun) and len(begun) == 20 * workers


def test_a_barrier_mixes_with_one_of_the_operating_system() -> None:
    both = threading.Barrier(2)

    def main(worker: Worker) -> None:
        barrier = Barrier(worker)
        for _ in range(50):
            barrier.wait()
            if worker.index < 2:
                both.wait(180)
            else:
                barrier.close()
                return

    execute(Config.process(3), main)


def test_a_barrier_is_reached_once_all_have_advanced() -> None:
    hand = ByHand(2)
    barriers = [Barrier(worker) for worker in hand.workers]
    assert all(barrier.reached() for barrier in barriers)
    barriers[0].advance()
    hand.settle()
    assert not barriers[0].reached()
    barriers[1].advance()
    hand.settle()
    assert all(barrier.reached() for barrier in barriers)
    barriers[0].advance()
    barriers[1].close()
    barriers[1].close()
    hand.settle()
    assert barriers[0].reached()


def test_all_workers_read_the_same_sequence() -> None:
    def main(worker: Worker) -> list[str]:
        sequencer: Sequencer[str] = Sequencer(worker)
        seen: list[str] = []
        for number in range(10):
            sequencer.push(f"{worker.index}.{number}")
            for _ in range(worker.index):
                worker.step()
            seen += sequencer
        while len(seen) < 40:
            worker.step_or_park(0.1)
            seen += sequencer
        return seen

    first, *others = execute(Config.process(4), main)
    assert others == [first] * 3
    assert sorted(first) == sorted(f"{worker}.{number}" for worker in range(4) for number in range(10))
    for worker in range(4):
        assert [each for each in first if each.startswith(f"{worker}.")] == [f"{worker}.{i}" for i in range(10)]


def test_a_silent_worker_holds_no_element_back_while_it_steps() -> None:
    hand = ByHand(3)
    sequencers: list[Sequencer[Any]] = [Sequencer(worker) for worker in hand.workers]
    for element in ("a", "b"):
        sequencers[1].push(element)
        hand.settle()
        assert [list(each) for each in sequencers] == [[element]] * 3
        assert [list(each) for each in sequencers] == [[]] * 3
    sequencers[0].close()
    sequencers[2].push("c")
    hand.settle()
    assert [list(each) for each in sequencers] == [["c"]] * 3
