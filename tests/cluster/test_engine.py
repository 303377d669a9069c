"""Acceptance cases of the engine in two real processes give the results of threads."""

import time
from collections import Counter
from typing import Any

import pytest

from megaflow import stable_hash
from megaflow.program import Worker
from megaflow.timely import Exchange, InputHandle
from tests.cluster.processes import run_processes
from tests.results import check_equal, comparing
from tests.timely.dataflow.test_generic import (
    DISTINCT_FEEDS,
    RETRACTED_COUNTS,
    distinct,
    in_time_order,
    lines_with_retractions,
    word_count,
)
from tests.timely.dataflow.test_movement import is_prime
from tests.timely.times import Divisor, Times

pytestmark = pytest.mark.cluster

EVERY_SHAPE = pytest.mark.parametrize(
    "workers",
    [pytest.param(1, id="one worker each"), pytest.param(2, id="two workers each", marks=pytest.mark.slow)],
)


def primes(worker: Worker) -> list[int]:
    found: list[int] = []
    with worker.dataflow() as scope:
        mine = scope.to_stream(range(worker.index, 10_000, worker.peers))
        probe = mine.exchange(lambda x: x + 1).filter(is_prime).inspect(found.append).probe()
    worker.step_while(lambda: not probe.done())
    return found


@pytest.mark.slow
@EVERY_SHAPE
def test_there_are_1229_primes_below_ten_thousand(workers: int) -> None:
    """Case 4."""
    found = run_processes(primes, workers=workers)
    with comparing():
        assert all((prime + 1) % (2 * workers) == index for index, part in enumerate(found) for prime in part)
    together = sorted(prime for part in found for prime in part)
    check_equal(len(together), 1229)
    check_equal(together, [n for n in range(10_000) if is_prime(n)])


ROUNDS, SIZE = 5, 1501


def volume(worker: Worker) -> Counter[tuple[Any, int]]:
    arrived: Counter[tuple[Any, int]] = Counter()
    handle: InputHandle[int] = InputHandle()
    with worker.dataflow() as scope:
        stream = scope.input_from(handle).exchange(lambda x: x)
        probe = stream.inspect_batch(lambda time, batch: arrived.update((time, x) for x in batch)).probe()
    for number in range(ROUNDS):
        handle.advance_to(number)
        for x in range(SIZE):
            handle.send(x)
        worker.step()
    handle.close()
    worker.step_while(lambda: not probe.done())
    return arrived


@pytest.mark.slow
@EVERY_SHAPE
def test_what_every_worker_sends_in_every_round_arrives_by_value(workers: int) -> None:
    """Case 5."""
    peers = 2 * workers
    for index, arrived in enumerate(run_processes(volume, workers=workers)):
        check_equal(arrived, {(number, x): peers for number in range(ROUNDS) for x in range(index, SIZE, peers)})


def rounds_of_words(worker: Worker) -> list[tuple[Any, Any]]:
    seen: list[tuple[Any, Any]] = []
    handle: InputHandle[tuple[str, int]] = InputHandle()
    with worker.dataflow() as scope:
        probe = word_count(scope.input_from(handle)).inspect_time(lambda time, pair: seen.append((time, pair))).probe()
    for number in range(10):
        handle.send(("round", 1))
        handle.advance_to(number + 1)
        worker.step_while(lambda: probe.less_than(handle.time))
    return seen


@pytest.mark.slow
@EVERY_SHAPE
def test_each_count_of_a_word_that_all_workers_send_is_seen_once(workers: int) -> None:
    """Case 25."""
    peers = 2 * workers
    found = [part for part in run_processes(rounds_of_words, workers=workers) if part]
    check_equal(found, [[(number, ("round", peers * number + i + 1)) for number in range(10) for i in range(peers)]])


def last_counts(worker: Worker) -> dict[str, int]:
    totals: Counter[str] = Counter()
    last: dict[str, int] = {}

    def apply(time: Any, changes: list[tuple[str, int]]) -> list[tuple[str, int]]:
        for word, difference in changes:
            totals[word] += difference
        return [(word, totals[word]) for word in {word for word, _ in changes}]

    handle: InputHandle[tuple[str, int]] = InputHandle()
    by_word = Exchange(lambda pair: stable_hash(pair[0]))
    with worker.dataflow() as scope:
        counted = scope.input_from(handle).unary_frontier(by_word, "Totals", in_time_order(apply))
        probe = counted.inspect(lambda pair: last.update([pair])).probe()
    for index, (moment, update) in enumerate(lines_with_retractions()):
        handle.advance_to(moment)
        if index % worker.peers == worker.index:
            handle.send(update)
    handle.close()
    worker.step_while(lambda: not probe.done())
    return last


@pytest.mark.slow
@EVERY_SHAPE
def test_retracted_lines_leave_the_counts_of_the_last_three(workers: int) -> None:
    """Case 26."""
    found = run_processes(last_counts, workers=workers)
    together = {word: count for part in found for word, count in part.items()}
    check_equal(len(together), sum(len(part) for part in found), "each word lives on one worker")
    check_equal({word: count for word, count in together.items() if count}, RETRACTED_COUNTS)


def distinct_values(worker: Worker) -> list[int]:
    found: list[int] = []
    with worker.dataflow() as scope:
        probe = distinct(scope.to_stream(DISTINCT_FEEDS[worker.index])).inspect(found.append).probe()
    worker.step_while(lambda: not probe.done())
    return sorted(found)


@pytest.mark.slow
def test_distinct_gives_each_value_once_where_it_belongs() -> None:
    """Case 27."""
    check_equal(run_processes(distinct_values), [[0, 2, 4], [1, 3, 5, 7]])


def late(worker: Worker) -> list[int]:
    if worker.index == 1:
        time.sleep(1)
    seen: list[int] = []
    handle: InputHandle[int] = InputHandle()
    with worker.dataflow() as scope:
        probe = scope.input_from(handle).exchange(lambda x: x).inspect(seen.append).probe()
    if worker.index == 0:
        handle.send_batch(list(range(1000)))
    handle.advance_to(1)
    worker.step_while(lambda: probe.less_than(1))
    return sorted(seen)


@pytest.mark.slow
def test_records_for_a_dataflow_that_is_built_a_second_later_are_kept() -> None:
    """Case 39."""
    check_equal(run_processes(late), [list(range(0, 1000, 2)), list(range(1, 1000, 2))])


def two_dataflows(worker: Worker) -> tuple[list[tuple[Any, int]], list[tuple[Any, int]]]:
    first: list[tuple[Any, int]] = []
    second: list[tuple[Any, int]] = []
    handle: InputHandle[int] = InputHandle()
    with worker.dataflow("first") as scope:
        stream = scope.input_from(handle).exchange(lambda x: x)
        early = stream.inspect_time(lambda time, x: first.append((time, x))).probe()
    handle.send(worker.index)
    handle.advance_to(5)
    with worker.dataflow("second") as scope:
        stream = scope.input_from(handle).exchange(lambda x: x)
        later = stream.inspect_time(lambda time, x: second.append((time, x))).probe()
    handle.send(10 + worker.index)
    handle.advance_to(6)
    worker.step_while(lambda: early.less_than(6) or later.less_than(6))
    return first, second


def test_one_handle_feeds_a_later_dataflow_from_its_present_time_on() -> None:
    """Case 37."""
    expected = [([(0, index), (5, 10 + index)], [(5, 10 + index)]) for index in range(2)]
    check_equal(run_processes(two_dataflows), expected)


def doubled(worker: Worker) -> list[tuple[int, int]]:
    """Send numbers round, between processes, at times of a class of this test; count them at each time."""
    seen: list[tuple[int, int]] = []
    with worker.dataflow(timestamp=Divisor) as scope:
        handle, back = scope.feedback(Times(2))
        with scope.iterative() as loop:
            start = scope.to_stream([worker.index]).concat(back).enter(loop)
            again, rounds = loop.loop_variable(1)
            spread = start.concat(rounds).exchange(lambda x: x)
            spread.branch_when(lambda time: time.inner < 2)[1].map(lambda x: x + 1).connect_loop(again)
            left = spread.branch_when(lambda time: time.inner < 2)[0].leave()
        left.connect_loop(handle)
        left.count().inspect_time(lambda time, count: seen.append((time.number, count)))
    return seen


@pytest.mark.slow
def test_times_of_a_class_of_ones_own_come_through_between_processes() -> None:
    totals: Counter[int] = Counter()
    for seen in run_processes(doubled):
        check_equal([number for number, _ in seen], sorted({number for number, _ in seen}))
        for number, count in seen:
            totals[number] += count
    check_equal(totals, {2**n: 2 for n in range(13)})
