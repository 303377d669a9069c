"""An inlet knows how much waits, closes at its mark, and tells to whom it owes what was taken."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from megaflow.timely.dataflow.flow_control.credit import Debts
from megaflow.timely.dataflow.flow_control.gates import Room
from megaflow.timely.dataflow.flow_control.input_queue import Inlet
from megaflow.timely.dataflow.run_queue import Agenda


def inlet(mark: int) -> tuple[Inlet, Agenda]:
    agenda = Agenda()
    made = Inlet("map", "here:1", 7, agenda)
    made.mark = mark
    return made, agenda


def take(made: Inlet) -> list[Any]:
    """Take a batch, as `Input` does."""
    _, batch = made.queue.popleft()
    made.took(1, len(batch))
    return batch


def test_the_first_batch_puts_its_operator_on_the_agenda() -> None:
    made, agenda = inlet(3)
    made.put(0, [1])
    ran: list[int] = []
    agenda.run(ran.append)
    made.put(0, [2])
    agenda.run(ran.append)
    assert ran == [7]


def test_it_is_closed_from_the_mark_on_until_half_is_left() -> None:
    made, agenda = inlet(4)
    room = Room(lambda: None)
    made.enter(room)
    closed = []
    for _ in range(5):
        made.put(0, [1])
        closed.append(made.closed)
    assert closed == [False, False, False, True, True]
    assert agenda.crowded == {made: 7} and room.is_full()
    while made.queue:
        take(made)
        closed.append(made.closed)
    assert closed[5:] == [True, True, False, False, False]
    assert not agenda.crowded and not room.closed


def test_without_a_mark_it_is_never_closed_and_in_no_room() -> None:
    made = Inlet("map", "here:1", 7, Agenda())
    room = Room(lambda: None)
    made.enter(room)
    made.put(0, [0] * 1_000_000)
    assert not made.closed and not room.is_full()


def test_what_is_dropped_leaves_nothing() -> None:
    made, _ = inlet(2)
    made.debts = Debts(1, lambda: None)
    made.put_from(3, 0, [1, 2, 3])
    made.clear()
    assert (made.records, len(made.queue)) == (0, 0)
    made.put(0, [1])
    take(made)
    assert made.debts.settle() == []


BATCHES = st.tuples(st.just("put"), st.sampled_from([None, 1, 2]), st.integers(1, 5))


@given(st.lists(st.one_of(BATCHES, st.tuples(st.sampled_from(["one", "all"]), st.none(), st.just(0)))))
def test_what_is_owed_is_what_was_taken_of_each_workers_records(steps: list[tuple[str, int | None, int]]) -> None:
    made, _ = inlet(6)
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
            made.queue.clear()
            made.took(len(taken), made.records)
        owed = {worker: sum(n for each, n in taken if each == worker) for worker in (1, 2)}
        assert dict(made.debts.settle()) == {worker: n for worker, n in owed.items() if n}
        assert made.records == sum(n for _, n in queued) == sum(len(batch) for _, batch in made.queue)
