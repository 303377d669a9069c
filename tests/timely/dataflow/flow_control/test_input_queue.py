"""A queue knows how much waits, closes at its mark, and reports to which worker it owes taken batches."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from megaflow.timely.dataflow.flow_control.credit import Debts
from megaflow.timely.dataflow.flow_control.gates import Downstream
from megaflow.timely.dataflow.flow_control.input_queue import InputQueue
from megaflow.timely.dataflow.run_queue import RunQueue


def queue(mark: int) -> tuple[InputQueue, RunQueue]:
    run_queue = RunQueue()
    made = InputQueue("map", "here:1", 7, run_queue)
    made.mark = mark
    return made, run_queue


def take(made: InputQueue) -> list[Any]:
    """Take a batch, as `Input` does."""
    _, batch = made.batches.popleft()
    made.took(1, len(batch))
    return batch


def test_the_first_batch_puts_its_operator_in_the_run_queue() -> None:
    made, run_queue = queue(3)
    made.put(0, [1])
    ran: list[int] = []
    run_queue.run(ran.append)
    made.put(0, [2])
    run_queue.run(ran.append)
    assert ran == [7]


def test_it_is_closed_from_the_mark_on_until_half_is_left() -> None:
    made, run_queue = queue(4)
    downstream = Downstream(lambda: None)
    made.enter(downstream)
    closed = []
    for _ in range(5):
        made.put(0, [1])
        closed.append(made.closed)
    assert closed == [False, False, False, True, True]
    assert run_queue.crowded == {made: 7} and downstream.is_full()
    while made.batches:
        take(made)
        closed.append(made.closed)
    assert closed[5:] == [True, True, False, False, False]
    assert not run_queue.crowded and not downstream.closed


def test_without_a_mark_it_is_never_closed_and_a_part_of_no_downstream() -> None:
    made = InputQueue("map", "here:1", 7, RunQueue())
    downstream = Downstream(lambda: None)
    made.enter(downstream)
    made.put(0, [0] * 1_000_000)
    assert not made.closed and not downstream.is_full()


def test_what_is_dropped_leaves_nothing() -> None:
    made, _ = queue(2)
    made.debts = Debts(1, lambda: None)
    made.put_from(3, 0, [1, 2, 3])
    made.clear()
    assert (made.records, len(made.batches)) == (0, 0)
    made.put(0, [1])
    take(made)
    assert made.debts.settle() == []


BATCHES = st.tuples(st.just("put"), st.sampled_from([None, 1, 2]), st.integers(1, 5))


@given(st.lists(st.one_of(BATCHES, st.tuples(st.sampled_from(["one", "all"]), st.none(), st.just(0)))))
def test_what_is_owed_is_what_was_taken_of_each_workers_records(steps: list[tuple[str, int | None, int]]) -> None:
    made, _ = queue(6)
    made.debts = Debts(1, lambda: None)
    queued: list[tuple[int | None, int]] = []
    for verb, worker, records in steps:
        taken: list[tuple[int | None, int]] = []
        if verb == "put":
            batch = [0] * records
            made.put(0, batch) if worker is None else made.put_from(worker, 0, batch)
            queued.append((worker, records))
        elif verb == "one" and queued:
            taken = [queued.pop(0)]
            take(made)
        elif verb == "all" and queued:
            taken, queued = queued, []
            made.batches.clear()
            made.took(len(taken), made.records)
        owed = {worker: sum(n for each, n in taken if each == worker) for worker in (1, 2)}
        assert dict(made.debts.settle()) == {worker: n for worker, n in owed.items() if n}
        made._check()
        assert made.records == sum(n for _, n in queued) == sum(len(batch) for _, batch in made.batches)
        for worker in (1, 2):
            assert made.queued_from(worker) == sum(n for each, n in queued if each == worker)
