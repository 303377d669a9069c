"""Credit: the counts of both ends agree, there are few messages, and no sender waits for a withheld return."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import ProtocolError
from megaflow.timely.dataflow.flow_control.credit import Credits, Debts
from megaflow.timely.dataflow.flow_control.gates import Downstream


class Pair:
    """Worker 0 sends to worker 1; messages are under way until the test delivers them."""

    def __init__(self, window: int) -> None:
        self.credits = Credits(window)
        self.downstream = Downstream(lambda: None)
        self.credits.enter(self.downstream)
        self.due = 0
        self.debts = Debts(window, self.tell)
        self.out: deque[int] = deque()  # batches under way
        self.queue: deque[int] = deque()  # batches not yet taken
        self.back: deque[int] = deque()  # returns under way
        self.returns = self.sent = 0

    def tell(self) -> None:
        self.due += 1

    def do(self, verb: str, records: int) -> None:
        if verb == "send":
            self.credits.spend(1, records)
            self.out.append(records)
            self.sent += records
        elif verb == "arrive" and self.out:
            self.queue.append(self.out.popleft())
        elif verb == "take" and self.queue:
            self.debts.add(0, self.queue.popleft())
        elif verb == "settle":
            for worker, amount in self.debts.settle():
                assert worker == 0
                self.back.append(amount)
                self.returns += 1
        elif verb == "return" and self.back:
            self.credits.take_back(1, self.back.popleft())


STEPS = st.lists(st.tuples(st.sampled_from(["send", "arrive", "take", "settle", "return"]), st.integers(1, 9)))


@given(st.integers(1, 30), STEPS)
def test_a_sender_whose_records_are_all_taken_has_credit_and_returns_are_few(
    window: int, steps: list[tuple[str, int]]
) -> None:
    pair = Pair(window)
    for verb, records in steps:
        pair.do(verb, records)
        pair.credits._check()
        pair.debts._check()
        pair.downstream._check()
        assert pair.downstream.is_full() == (pair.credits.used(1) >= window) or pair.downstream.granted
    for verb in ("arrive", "take", "settle", "return"):
        for _ in range(len(steps) + 1):
            pair.do(verb, 0)
    assert not pair.downstream.closed, "it waits for ever"
    assert pair.credits.used(1) < max(1, window // 2)
    assert pair.returns <= pair.sent // max(1, window // 2)
    assert pair.due >= pair.returns


def test_each_worker_has_a_window_of_its_own_and_the_channel_waits_for_the_slowest() -> None:
    credits, downstream = Credits(10), Downstream(lambda: None)
    credits.enter(downstream)
    credits.spend(1, 9)
    credits.spend(2, 9)
    assert not downstream.is_full()
    credits.spend(2, 1)
    assert downstream.is_full()
    credits.take_back(1, 9)
    assert downstream.is_full()
    credits.take_back(2, 5)
    assert not downstream.closed


def test_a_room_that_is_made_late_knows_what_is_used_up_already() -> None:
    credits, downstream = Credits(1), Downstream(lambda: None)
    credits.spend(7, 1)
    credits.enter(downstream)
    assert downstream.is_full()


def test_a_worker_that_has_left_holds_nobody_up_and_what_comes_of_it_later_is_dropped() -> None:
    woken: list[int] = []
    credits, downstream = Credits(5), Downstream(lambda: woken.append(1))
    credits.enter(downstream)
    credits.spend(3, 50)
    assert downstream.is_full()
    credits.forget(3)
    credits.forget(4)
    assert woken and not downstream.closed
    credits.take_back(3, 50)
    assert credits.used(3) == 0


@pytest.mark.parametrize("records", [6, 0, -1])
def test_a_return_of_what_a_worker_never_had_is_refused(records: int) -> None:
    credits = Credits(10)
    credits.spend(2, 5)
    with pytest.raises(ProtocolError, match=f"worker 2 gives credit back for {records} records, but had 5"):
        credits.take_back(2, records)
    assert credits.used(2) == 5


def test_a_debtor_tells_once_that_something_is_due_and_gives_all_back_that_it_owes() -> None:
    told: list[int] = []
    debts = Debts(10, lambda: told.append(1))
    debts.add(4, 4)
    assert not told and debts.settle() == []
    debts.add(4, 1)
    debts.add(4, 3)
    debts.add(2, 6)
    assert len(told) == 2 and debts.settle() == [(2, 6), (4, 8)]
    debts.add(4, 4)
    assert debts.settle() == []


def test_nothing_is_owed_to_a_worker_that_has_left() -> None:
    debts = Debts(2, lambda: None)
    debts.add(4, 4)
    debts.forget(4)
    assert debts.settle() == []
