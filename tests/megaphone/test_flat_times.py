"""In nested scopes bins move at outer times, between the last round of one time and the first of the next."""

from typing import Any

import pytest

from megaflow import Map, Move
from megaflow.errors import BuildError, ProgramError
from megaflow.scope import Scope
from megaflow.testing import EngineCluster
from megaflow.timely import Product, example
from megaflow.timely.communication.channel import Lane
from tests.simulation.by_hand import ByHand, Histories, key_of

BINS = 4  # with two workers bins 0 and 2 are worker 0's
KEY = key_of(0, BINS)


class Rounds(Histories):
    """Histories in a loop: a value (name, rounds left) goes round, through the worker that `rounds` names."""

    def build(self, worker: Any, records: Any, commands: Any) -> Any:
        with Scope(records.port.scope).iterative() as loop:
            handle, again = loop.loop_variable(1)
            given = records.enter(loop).concat(again)
            outputs = given.stateful_state_machine(self.fold_on(worker), control=commands, bins=BINS, name="rounds")
            last = outputs.map(lambda output: (output[0], output[1][-1])).filter(lambda record: record[1][1] > 0)
            spread = last.exchange(lambda record: record[1][1])
            spread.map(lambda record: (record[0], (record[1][0], record[1][1] - 1))).connect_loop(handle)
            return outputs.leave()


def test_a_bin_that_moves_at_t_stays_as_long_as_a_round_before_t_is_to_come_and_moves_before_the_first_of_t() -> None:
    rounds = Rounds(BINS)
    hands = ByHand(rounds.build)
    hands.command(5, Move(0, 1))
    hands.records[0].advance_to(4)
    hands.records[0].send((KEY, ("before", 3)))
    hands.advance_to(5)
    hands.records[0].send((KEY, ("at", 1)))
    hands.held = [Lane.DATA]  # worker 1 delays the records of the loop
    hands.advance_to(9)
    hands.commands.advance_to(9)
    hands.settle()
    assert [(worker, value) for worker, _, value in rounds.applied] == [(0, ("before", 3))]
    assert hands.owned() == [[0, 2], [1, 3]], "round 1 of 4 is to come, though nothing is before (5, 0) as a product"
    hands.finish()
    before, at = [(0, ("before", left)) for left in (3, 2, 1, 0)], [(1, ("at", left)) for left in (1, 0)]
    assert [(worker, value) for worker, _, value in rounds.applied] == before + at
    assert hands.moved() == [(5, 0, 0, 1)], "the ledger knows outer times"


def test_records_of_each_round_wait_for_the_state_that_moved_at_their_outer_time() -> None:
    rounds = Rounds(BINS)
    hands = ByHand(rounds.build)
    hands.records[0].send((KEY, ("before", 0)))
    hands.command(5, Move(0, 1))
    hands.held = [Lane.STATE]
    hands.advance_to(5)
    hands.records[1].send((KEY, ("at", 1)))
    hands.advance_to(9)
    hands.commands.advance_to(9)
    hands.settle()
    assert [value for _, _, value in rounds.applied] == [("before", 0)]
    assert hands.owned() == [[2], [1, 3]], "the bin is under way"
    hands.finish()
    assert rounds.applied[1:] == [(1, KEY, ("at", 1)), (1, KEY, ("at", 0))]
    assert hands.outputs[-1] == (5, (KEY, (("before", 0), ("at", 1), ("at", 0))))


def test_a_round_that_is_earlier_but_of_a_later_outer_time_waits() -> None:
    """Therefore a state never includes later records."""
    rounds = Rounds(BINS)
    hands = ByHand(rounds.build)
    hands.held = [Lane.DATA]
    hands.records[0].send((KEY, ("first", 1)))
    hands.records[0].advance_to(1)
    hands.records[0].send((KEY, ("second", 0)))
    hands.records[0].advance_to(2)
    hands.records[1].advance_to(2)
    hands.commands.advance_to(2)
    hands.settle()
    assert [value for _, _, value in rounds.applied] == [("first", 1)]
    hands.finish()
    assert [value for _, _, value in rounds.applied] == [("first", 1), ("first", 0), ("second", 0)]


def in_rounds(fold: Any) -> Any:
    """Return what a `stateful_unary` emits for two keys in its own scope. The last of two moves is at time 2."""

    def build(worker: Any, records: Any, commands: Any) -> Any:
        with Scope(records.port.scope).scoped("alone") as scope:
            entered = records.enter(scope)
            return entered.stateful_unary(fold, control=commands, bins=BINS, name="mine").leave()

    feeds = {0: [(0, (KEY, "first")), (3, (KEY, "last"))]}
    return EngineCluster(1, 2).run(build, feeds, [(1, Move(0, 1)), (2, Map((0, 0, 0, 0)))])


def test_timers_of_a_nested_scope_come_back_at_their_product_and_move_with_their_bin() -> None:
    def fold(key: str, time: Product, records: list[str], state: Any, timers: Any) -> Any:
        if records == ["first"]:
            for later in (Product(1, 1), Product(0, 4), Product(2, 0), Product(1, 0), Product(7, 9)):
                timers.at(later, f"due at {later.outer}, {later.inner}")
        return None, [(time.outer, time.inner, *records)]

    due = [(0, 4), (1, 0), (1, 1), (2, 0)]
    timers = [(outer, (outer, inner, f"due at {outer}, {inner}")) for outer, inner in due]
    assert in_rounds(fold) == [(0, (0, 0, "first")), *timers, (3, (3, 0, "last")), (7, (7, 9, "due at 7, 9"))]


@pytest.mark.parametrize("wrong", [7, Product(0, 0), Product(2, 0), Product(0, 9), Product(Product(9, 9), 9), None])
def test_a_timer_that_is_not_after_the_present_in_every_coordinate_is_refused(wrong: Any) -> None:
    def fold(key: str, time: Product, records: list[str], state: Any, timers: Any) -> Any:
        timers.at(Product(1, 5) if time == Product(0, 0) else wrong, "due")
        return None, []

    with pytest.raises(ProgramError, match=r"mine: timers.at\(.*Product\(1, 5\): .*, timers.at\(Product\(1, 6\)"):
        in_rounds(fold)


def test_a_control_stream_that_has_entered_the_loop_is_refused() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        with Scope(records.port.scope).scoped("inside") as scope:
            return records.enter(scope).distribute(control=commands.enter(scope)).leave()

    with pytest.raises(BuildError, match=r"control: commands have int times.* of scope 'inside'.*without enter\(\)"):
        EngineCluster(1, 1).run(build, {})


def test_a_nested_scope_of_a_dataflow_whose_times_are_no_ints_is_refused() -> None:
    def build(scope: Any) -> Any:
        with scope.scoped("inside") as inside:
            return scope.to_stream([("a", 1)]).enter(inside).distribute(name="latest").leave().capture()

    with pytest.raises(BuildError, match=r"latest: stateful operators need a dataflow with int times; .* \(0, 0\)"):
        example(build, (0, 0))
