"""The guarantees of moving bins hold for every stateful operator: with one input or two, per record or per time."""

from collections import Counter
from typing import Any

import pytest

from megaflow import Map, Move
from megaflow.megaphone.base.routing import initial_table
from megaflow.testing import EngineCluster, Join, Leave
from megaflow.timely.communication.channel import Lane
from tests.simulation.by_hand import ByHand, Histories, key_of

BINS = 4  # with two workers bins 0 and 2 are worker 0's, with three bins 0 and 3
KEY = key_of(0, BINS)

pytestmark = pytest.mark.parametrize("kind", ["machine", "unary", "binary"])


def started(kind: str, workers: int = 2) -> tuple[Histories, ByHand]:
    histories = Histories(BINS, kind)
    return histories, ByHand(histories.build, workers)


@pytest.mark.parametrize("sender", [0, 1])
def test_a_record_before_the_move_is_applied_at_the_old_owner_and_one_at_its_time_at_the_new(
    kind: str, sender: int
) -> None:
    histories, hands = started(kind)
    hands.command(5, Move(0, 1))
    hands.settle()
    hands.records[sender].advance_to(4)
    hands.records[sender].send((KEY, "before"))
    hands.records[sender].advance_to(5)
    hands.records[sender].send((KEY, "at"))
    hands.finish()
    assert (histories.where("before"), histories.where("at")) == (0, 1)
    assert hands.outputs == [(4, (KEY, ("before",))), (5, (KEY, ("before", "at")))]


def test_records_that_are_there_before_the_state_of_their_bin_wait_for_it(kind: str) -> None:
    histories, hands = started(kind)
    hands.records[0].send((KEY, "history"))
    hands.command(5, Move(0, 1))
    hands.advance_to(5)
    hands.held = [Lane.STATE]
    hands.records[0].send((KEY, "at"))
    hands.records[1].advance_to(8)
    hands.records[1].send((KEY, "after"))
    hands.advance_to(9)
    hands.commands.advance_to(9)
    hands.settle()
    assert hands.owned() == [[2], [1, 3]], "the bin is under way"
    assert [value for _, _, value in histories.applied] == ["history"]
    hands.held = ()
    hands.settle()
    assert [(worker, value) for worker, _, value in histories.applied[1:]] == [(1, "at"), (1, "after")]
    hands.finish()
    assert hands.outputs[-1] == (8, (KEY, ("history", "at", "after")))


def test_records_that_control_has_not_passed_go_by_the_command_that_comes_later(kind: str) -> None:
    histories, hands = started(kind)
    hands.commands.advance_to(42)
    for time in (41, 42, 43, 44):
        hands.records[0].advance_to(time)
        hands.records[0].send((KEY, time))
    hands.advance_to(45)
    hands.settle()
    assert [value for _, _, value in histories.applied] == [41]
    hands.command(43, Move(0, 1))
    hands.finish()
    assert [histories.where(time) for time in (41, 42, 43, 44)] == [0, 0, 1, 1]
    assert hands.outputs[-1] == (44, (KEY, (41, 42, 43, 44)))


@pytest.mark.parametrize("owners", [(1, 2), (1, 0), (1, 0, 1, 0, 1), (2, 2, 0)])
def test_a_bin_that_is_moved_on_before_its_first_move_is_done_visits_each_owner(
    kind: str, owners: tuple[int, ...]
) -> None:
    histories, hands = started(kind, 3)
    hands.records[0].send((KEY, 0))
    for time, owner in enumerate(owners, 5):
        hands.command(time, Move(0, owner))
    for time in range(5, 5 + len(owners)):
        hands.advance_to(time)
        hands.records[time % 3].send((KEY, time))
    hands.finish()
    assert [worker for worker, _, _ in histories.applied] == [0, *owners]
    assert hands.outputs[-1][1] == (KEY, (0, *range(5, 5 + len(owners))))
    assert [worker.stateful[0].keys() for worker in hands.workers] == [int(w == owners[-1]) for w in range(3)]


@pytest.mark.parametrize(
    ("workers", "table"),
    [(2, (1, 0, 1, 0)), (4, (1, 2, 3, 0)), (3, (2, 2, 0, 1)), (8, (7, 6, 5, 4))],
    ids=["swap", "ring", "more than one each", "fewer bins than workers"],
)
def test_all_bins_change_places_at_one_time(kind: str, workers: int, table: tuple[int, ...]) -> None:
    histories, hands = started(kind, workers)
    keys = [key_of(bin, BINS) for bin in range(BINS)]
    hands.records[0].send_batch([(key, 0) for key in keys])
    hands.command(1, Map(table))
    hands.advance_to(1)
    hands.records[workers - 1].send_batch([(key, 1) for key in keys])
    hands.finish()
    before = initial_table(BINS, range(workers))
    assert Counter(hands.moved()) == Counter((1, bin, before[bin], owner) for bin, owner in enumerate(table))
    assert {key: worker for worker, key, value in histories.applied if value == 1} == dict(zip(keys, table))
    assert sorted(hands.outputs[BINS:]) == sorted((1, (key, (0, 1))) for key in keys)


@pytest.mark.parametrize(
    "commands", [[Move(0, 0)], [Map((0, 1, 0, 1))], [Move(0, 1), Move(0, 0)], [Map((1, 1, 1, 1)), Map((0, 1, 0, 1))]]
)
def test_a_reconfiguration_that_moves_nothing_ships_nothing_and_completes(kind: str, commands: list[Any]) -> None:
    _, hands = started(kind)
    hands.records[0].send((KEY, 1))
    hands.command(5, *commands)
    hands.advance_to(6)
    hands.settle()
    assert not any(probe.less_than(6) for probe in hands.probes)
    assert not [lane for _, _, lane, _, _ in hands.delivered if lane is Lane.STATE] and hands.moved() == []
    hands.finish()


def test_an_empty_bin_moves_and_takes_its_first_record_at_the_new_owner(kind: str) -> None:
    histories, hands = started(kind)
    hands.command(5, Move(0, 1))
    hands.advance_to(5)
    hands.records[0].send((KEY, "first"))
    hands.finish()
    assert histories.where("first") == 1 and hands.outputs == [(5, (KEY, ("first",)))]


def test_several_reconfigurations_wait_while_an_early_time_is_open_and_are_installed_in_order(kind: str) -> None:
    histories, hands = started(kind, 3)
    for time, target in [(3, 1), (4, 2), (5, 0), (6, 1)]:
        hands.command(time, Move(0, target))
    for time in (2, 3, 4, 5, 6):
        hands.records[0].advance_to(time)
        hands.records[0].send((KEY, time))
    hands.records[0].flush()
    hands.settle()
    assert hands.owned() == [[0, 3], [1], [2]] and histories.applied == [], "time 0 is open"
    hands.finish()
    assert [histories.where(time) for time in (2, 3, 4, 5, 6)] == [0, 1, 2, 0, 1]
    assert hands.moved() == [(3, 0, 0, 1), (4, 0, 1, 2), (5, 0, 2, 0), (6, 0, 0, 1)]


@pytest.mark.parametrize("seed", range(10))
def test_bins_move_and_the_stream_ends_when_only_frontiers_move(kind: str, seed: int) -> None:
    cluster = EngineCluster(seed, 3)
    outputs = cluster.run(
        Histories(BINS, kind).build,
        {0: [(0, (KEY, 0))]},
        [(5, Move(0, 2)), (6, Map((2, 2, 2, 2))), (9, Map((0, 1, 2, 0)))],
    )
    assert outputs == [(0, (KEY, (0,)))]
    assert [worker.stateful[0].owned() for worker in cluster.workers] == [[0, 3], [1], [2]]
    assert not any(worker.installed_dataflows for worker in cluster.workers)


@pytest.mark.parametrize("downstream", ["machine", "unary", "binary"])
@pytest.mark.parametrize("apart", [False, True], ids=["one control", "controls of their own"])
@pytest.mark.parametrize("seed", range(4))
def test_what_one_operator_puts_out_before_a_move_reaches_the_old_owner_of_the_next(
    kind: str, downstream: str, apart: bool, seed: int
) -> None:
    first, second = Histories(BINS, kind), Histories(BINS, downstream)

    def build(worker: Any, records: Any, commands: Any) -> Any:
        def control(name: str) -> Any:
            return commands.filter(lambda pair: pair[0] == name).map(lambda pair: pair[1]) if apart else commands

        once = first.build(worker, records, control("first"))
        again = once.map(lambda output: (output[0], output[1][-1]))
        return second.build(worker, again, control("second"))

    commands = [(4, ("first", Move(0, 1))), (7, ("second", Move(0, 2)))]
    if not apart:
        commands = [(time, command) for time, (_, command) in commands]  # type: ignore[misc]
    feeds = {worker: [(time, (KEY, (time, worker))) for time in range(10)] for worker in range(3)}
    EngineCluster(seed, 3).run(build, feeds, commands)
    both = {time: 0 if time < 4 else 1 if time < 7 else 2 for time in range(10)}
    ours = {time: 0 if time < 4 else 1 for time in range(10)} if apart else both
    theirs = {time: 0 if time < 7 else 2 for time in range(10)} if apart else both
    for histories, owner in ((first, ours), (second, theirs)):
        assert Counter((value[0], worker) for worker, _, value in histories.applied) == {
            (time, owner[time]): 3 for time in range(10)
        }


@pytest.mark.parametrize("seed", range(3))
def test_three_workers_become_two_and_three_again_and_nothing_is_lost(kind: str, seed: int) -> None:
    cluster = EngineCluster(seed, 3)
    cluster.at(record=60, do=Leave(2))
    cluster.at(record=120, do=Join())
    words = [(time, (f"word{number % 20}", number)) for number, time in enumerate(sorted(list(range(50)) * 4))]
    histories = Histories(BINS, kind)
    outputs = cluster.run(histories.build, {0: words}, [])
    assert not cluster.refusals and len(outputs) == len(words)
    longest = {key: values for _, (key, values) in sorted(outputs, key=lambda output: len(output[1][1]))}
    for key, values in longest.items():
        assert sorted(values) == [number for _, (word, number) in words if word == key]
