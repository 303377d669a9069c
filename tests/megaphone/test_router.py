"""F routes by the table in force at a record's time, and takes a bin out when all earlier records are applied."""

from typing import Any

import pytest

from megaflow import Map, Move
from megaflow.errors import GraphMismatch, ProgramError
from megaflow.testing import EngineCluster
from megaflow.timely.communication.channel import Lane
from tests.simulation.by_hand import ByHand, Histories, key_of
from tests.timely.workers import ByHand as EngineByHand

BINS = 4  # with two workers bins 0 and 2 are worker 0's, with three bins 0 and 3
KEY = key_of(0, BINS)


def started(workers: int = 2) -> tuple[Histories, ByHand]:
    histories = Histories(BINS)
    return histories, ByHand(histories.build, workers)


def routed(hands: ByHand) -> list[tuple[int, int, Any]]:
    """Return (time, target, value) of the records that went from one worker to another."""
    return [
        (time, target, value)
        for _, target, lane, time, batch in hands.delivered
        if lane is Lane.DATA
        for _, value in batch
    ]


# Which table ------------------------------------------------------------------------------


@pytest.mark.parametrize("sender", [0, 1])
def test_a_record_before_a_move_that_comes_after_the_command_is_applied_at_the_old_owner_and_moves_with_the_state(
    sender: int,
) -> None:
    histories, hands = started()
    hands.command(5, Move(0, 1))
    hands.settle()
    hands.records[sender].advance_to(4)
    hands.records[sender].send((KEY, "before"))
    hands.records[sender].advance_to(5)
    hands.records[sender].send((KEY, "at"))
    hands.finish()
    assert (histories.where("before"), histories.where("at")) == (0, 1)
    assert hands.outputs == [(4, (KEY, ("before",))), (5, (KEY, ("before", "at")))]


def test_records_that_control_has_not_passed_wait_and_go_by_the_command_that_comes_later() -> None:
    histories, hands = started()
    hands.commands.advance_to(42)
    for time in (41, 42, 43, 44):
        hands.records[0].advance_to(time)
        hands.records[0].send((KEY, time))
    hands.advance_to(45)
    hands.settle()
    assert [value for _, _, value in histories.applied] == [41], "and what control has passed does not wait"
    hands.command(43, Move(0, 1))
    hands.finish()
    assert [histories.where(time) for time in (41, 42, 43, 44)] == [0, 0, 1, 1]
    assert hands.outputs[-1] == (44, (KEY, (41, 42, 43, 44)))


def test_a_record_at_the_time_where_control_stands_waits_for_it_to_pass() -> None:
    histories, hands = started()
    hands.commands.advance_to(42)
    hands.advance_to(42)
    hands.records[0].send((KEY, 42))
    hands.records[0].flush()
    hands.settle()
    hands.commands.send(Move(0, 1))
    hands.commands.flush()
    hands.settle()
    assert histories.applied == [] and routed(hands) == []
    hands.finish()
    assert histories.where(42) == 1


def test_records_go_by_several_tables_that_wait_before_any_bin_has_moved() -> None:
    histories, hands = started(3)
    for time, target in [(3, 1), (4, 2), (5, 0), (6, 1)]:
        hands.command(time, Move(0, target))
    for time in (2, 3, 4, 5, 6):
        hands.records[0].advance_to(time)
        hands.records[0].send((KEY, time))
    hands.records[0].flush()
    hands.settle()
    assert routed(hands) == [(3, 1, 3), (4, 2, 4), (6, 1, 6)]
    assert hands.owned() == [[0, 3], [1], [2]] and histories.applied == [], "time 0 is open"
    hands.finish()
    assert [histories.where(time) for time in (2, 3, 4, 5, 6)] == [0, 1, 2, 0, 1]
    assert hands.moved() == [(3, 0, 0, 1), (4, 0, 1, 2), (5, 0, 2, 0), (6, 0, 0, 1)]


def test_a_frontier_that_jumps_to_its_end_installs_all_that_waits_in_order() -> None:
    histories, hands = started()
    for time in range(1, 8):
        hands.command(time, Move(0, time % 2), Move(1, time % 2))
        hands.records[1].advance_to(time)
        hands.records[1].send((KEY, time))
    hands.held = list(Lane)
    for handle in [*hands.records, *hands.controls]:
        handle.close()
    hands.settle()
    hands.finish()
    assert [histories.where(time) for time in range(1, 8)] == [1, 0, 1, 0, 1, 0, 1]
    assert hands.outputs[-1] == (7, (KEY, (1, 2, 3, 4, 5, 6, 7)))
    assert hands.owned() == [[2], [0, 1, 3]]


def test_records_of_alternating_times_each_go_by_their_own_table() -> None:
    histories, hands = started(3)
    for time, target in [(1, 1), (2, 2)]:
        hands.command(time, Move(0, target))
    hands.records[0].advance_to(1)
    hands.records[1].advance_to(2)
    for count in range(3):
        hands.records[0].send((KEY, f"one {count}"))
        hands.records[1].send((KEY, f"two {count}"))
        hands.records[0].flush()
        hands.records[1].flush()
        hands.settle()
    hands.finish()
    assert {histories.where(f"one {count}") for count in range(3)} == {1}
    assert {histories.where(f"two {count}") for count in range(3)} == {2}


# When a bin is taken out ------------------------------------------------------------------


def test_a_bin_stays_while_a_record_before_its_move_may_still_come_anywhere() -> None:
    _, hands = started()
    hands.command(5, Move(0, 1))
    hands.records[0].advance_to(9)
    hands.records[1].advance_to(4)
    hands.settle()
    assert hands.owned() == [[0, 2], [1, 3]], "worker 1 may still send at time 4"
    hands.records[1].advance_to(5)
    hands.settle()
    assert hands.owned() == [[2], [0, 1, 3]]


def test_a_bin_stays_while_a_command_may_still_come_for_the_time_of_its_move() -> None:
    _, hands = started(3)
    hands.commands.advance_to(5)
    hands.commands.send(Move(0, 1))
    hands.commands.flush()
    hands.advance_to(9)
    hands.settle()
    assert hands.owned() == [[0, 3], [1], [2]]
    hands.commands.send(Move(0, 2))
    hands.commands.advance_to(6)
    hands.settle()
    assert hands.owned() == [[3], [1], [0, 2]]
    assert hands.moved() == [(5, 0, 0, 2)]


def test_a_bin_stays_while_a_record_before_its_move_is_under_way_to_its_owner() -> None:
    histories, hands = started()
    hands.held = [Lane.DATA]
    hands.records[1].send((KEY, "late"))
    hands.command(5, Move(0, 1))
    hands.advance_to(9)
    hands.settle()
    assert hands.owned() == [[0, 2], [1, 3]]
    hands.finish()
    assert histories.where("late") == 0 and hands.owned() == [[2], [0, 1, 3]]


def test_the_time_of_a_move_is_open_from_the_command_until_the_last_chunk_is_in() -> None:
    _, hands = started()
    hands.command(5, Move(0, 1))
    hands.commands.advance_to(9)
    hands.records[0].advance_to(9)
    hands.settle()
    hands.held = [Lane.STATE]
    hands.records[1].advance_to(9)
    hands.settle()
    assert hands.waiting(Lane.STATE) == [(0, 1)], "taken out and shipped"
    assert all(probe.less_equal(5) for probe in hands.probes), "the chunk under way holds its time"
    assert not any(probe.less_than(5) for probe in hands.probes)
    hands.held = ()
    hands.settle()
    assert not any(probe.less_than(9) for probe in hands.probes), "and nothing holds it afterwards"


# Commands that move nothing ----------------------------------------------------------------


@pytest.mark.parametrize("commands", [[Move(0, 0)], [Map((0, 1, 0, 1))], [Move(0, 1), Move(0, 0)]], ids=repr)
def test_a_reconfiguration_that_moves_nothing_ships_nothing_and_completes(commands: list[Any]) -> None:
    _, hands = started()
    hands.command(5, *commands)
    hands.advance_to(6)
    hands.settle()
    assert not any(probe.less_than(6) for probe in hands.probes)
    assert not [lane for _, _, lane, _, _ in hands.delivered if lane is Lane.STATE]
    assert hands.moved() == [] and hands.owned() == [[0, 2], [1, 3]]
    hands.finish()


def test_of_two_moves_of_a_bin_at_one_time_the_last_wins_and_it_is_shipped_once() -> None:
    _, hands = started(3)
    hands.command(5, Move(0, 1), Move(0, 2))
    hands.command(7, Map((0, 0, 0, 0)), Move(1, 2))
    hands.finish()
    assert hands.moved() == [(5, 0, 0, 2), (7, 0, 2, 0), (7, 2, 2, 0), (7, 1, 1, 2)]
    assert hands.owned() == [[0, 2, 3], [], [1]]


# Errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("record", "words"),
    [
        (5, r"histories: records must be \(key, value\) pairs, but one is 5, a int; name the key with key="),
        ("word", r"pairs, but one is 'word', a str"),
        ((1, 2, 3), r"pairs, but one is \(1, 2, 3\), a tuple"),
        ((), r"pairs, but one is \(\), a tuple"),
        ({"a": 1}, r"pairs, but one is {'a': 1}, a dict"),
        (None, r"pairs, but one is None, a NoneType"),
        ((["a"], 1), r"histories: the key \['a'\] is a list, which cannot be a key; make it a tuple"),
    ],
    ids=repr,
)
def test_a_record_that_is_no_pair_and_a_key_that_cannot_be_one_are_named(
    workers: int, record: Any, words: str
) -> None:
    with pytest.raises(ProgramError, match=words):
        EngineCluster(1, workers).run(Histories(BINS).build, {0: [(0, record)]})


def test_an_error_of_the_users_own_hash_stays_as_it_is() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        return records.stateful_state_machine(
            lambda key, value, state: (value, []), hash=lambda key: key["id"], control=commands
        )

    with pytest.raises(TypeError, match="string indices"):
        EngineCluster(1, 2).run(build, {0: [(0, ("key", 1))]})


def test_workers_with_different_numbers_of_bins_find_out() -> None:
    hand = EngineByHand(2)
    for worker, bins in zip(hand.workers, (16, 32), strict=True):
        with worker.dataflow() as scope:
            scope.to_stream([("a", 1)]).stateful_state_machine(lambda key, value, state: (value, []), bins=bins)
    with pytest.raises(GraphMismatch, match=r"16 bins.*32 bins|32 bins.*16 bins"):
        hand.settle()
