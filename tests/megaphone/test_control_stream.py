"""Commands are numbered and checked at injection. Every F sees the same ones, and time waits for them."""

from typing import Any

import pytest

from megaflow import Bootstrap, Map, Move
from megaflow.errors import BuildError, CapabilityError, CommandRefused, ProtocolError, TimeError
from megaflow.megaphone.base.routing import Numbered
from megaflow.megaphone.router.control_stream import control_for, number_commands, set_default
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from megaflow.testing.monitor import describe_pointstamps
from tests.simulation.by_hand import ByHand, Histories, key_of

BINS = 4
KEY = key_of(0, BINS)


# Refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (Move(4, 0), "there is no bin 4; bins are 0 to 3"),
        (Move(-1, 0), "there is no bin -1"),
        (Move(0, 2), "there is no worker 2 that may own bins; the workers are 0, 1"),
        (Move(0, -1), "there is no worker -1"),
        (Map((0, 1)), "Map of 2 workers: there are 4 bins"),
        (Map((0, 1, 0, 5)), "there is no worker 5"),
        (Bootstrap(0, 7), "there is no worker 7"),
        ("move bin 0", "is not a command; use Move, Map or Bootstrap"),
    ],
    ids=repr,
)
def test_an_invalid_command_is_refused_on_the_worker_that_injects_it_and_reaches_no_router(
    command: Any, words: str
) -> None:
    histories = Histories(BINS)
    hands = ByHand(histories.build, 2)
    hands.command(5, Move(2, 1))
    hands.advance_to(6)
    hands.settle()
    hands.commands.send(command)
    hands.commands.flush()
    with pytest.raises(CommandRefused, match=words):
        hands.workers[0].step()
    for route, _ in list(hands.network.waiting()):
        hands.deliver(*route)
    hands.workers[1].step()
    assert hands.owned() == [[0], [1, 2, 3]] and hands.workers[1].stateful[0].table() == (0, 1, 1, 1)


def test_a_command_for_a_time_that_control_has_passed_cannot_be_injected() -> None:
    hands = ByHand(Histories(BINS).build, 2)
    hands.command(5, Move(0, 1))
    with pytest.raises(TimeError, match="already at 6"):
        hands.commands.advance_to(5)
    hands.commands.close()
    with pytest.raises(CapabilityError, match="the input was closed"):
        hands.commands.send(Move(0, 0))
    hands.finish()
    assert hands.owned() == [[2], [0, 1, 3]]


@pytest.mark.parametrize("times", [(1, 1), (1, 5), (5, 1)])
def test_commands_injected_on_two_workers_stop_the_job(times: tuple[int, int]) -> None:
    hands = ByHand(Histories(BINS).build, 2, close_other_commands=False)
    for commands, time in zip(hands.controls, times):
        commands.advance_to(time)
        commands.send(Move(0, 1))
        commands.flush()
    with pytest.raises(ProtocolError, match=r"command 0 came at time ., but 1 was due; inject commands on one"):
        hands.settle()


@pytest.mark.parametrize("seed", range(10))
def test_commands_may_be_injected_on_any_one_worker(seed: int) -> None:
    hands = ByHand(Histories(BINS).build, 3, close_other_commands=False)
    injector = seed % 3
    for worker, commands in enumerate(hands.controls):
        if worker == injector:
            commands.advance_to(3)
            commands.send(Move(0, 1))
        else:
            commands.close()
    hands.finish()
    assert hands.owned() == [[3], [0, 1], [2]]


# Numbering --------------------------------------------------------------------------------------


def test_commands_arrive_on_every_worker_numbered_from_0_in_the_order_of_injection() -> None:
    commands = [Move(bin, 1) for bin in (3, 1, 2)] + [Map((0, 1, 0, 1))]

    def build(worker: Any, records: Any, injected: Any) -> Any:
        return Stream(number_commands(injected.port, BINS)).map(lambda numbered: (worker.index, numbered))

    hands = ByHand(build, 3)
    for time, command in zip((0, 0, 2, 5), commands):
        hands.commands.advance_to(time)
        hands.commands.send(command)
    hands.finish()
    for index in range(3):
        mine = [(time, numbered) for time, (worker, numbered) in hands.outputs if worker == index]
        expected = enumerate(zip((0, 0, 2, 5), commands))
        assert mine == [(time, Numbered(number, command)) for number, (time, command) in expected]


@pytest.mark.parametrize("numbers", [(0, 0), (0, 2), (1, 0), (0, 1, 1)], ids=["twice", "gap", "swapped", "late twice"])
@pytest.mark.parametrize("apart", [False, True], ids=["one batch", "two batches"])
def test_a_command_that_comes_twice_or_not_in_turn_stops_the_job_and_moves_nothing(
    numbers: tuple[int, ...], apart: bool
) -> None:
    def build(worker: Any, records: Any, numbered: Any) -> Any:
        set_default(numbered.broadcast().port)
        return records.stateful_state_machine(lambda key, value, state: (value, []), bins=BINS)

    hands = ByHand(build, 2)
    for number in numbers:
        hands.commands.send(Numbered(number, Move(0, 1)))
        if apart:
            hands.commands.flush()
    hands.command(9)
    hands.advance_to(10)
    with pytest.raises(ProtocolError, match=r"control of .*: command \d came at time 0, but \d was due"):
        hands.settle()
    assert hands.owned() == [[0, 2], [1, 3]]


def test_commands_of_one_time_that_come_in_several_batches_are_one_reconfiguration() -> None:
    hands = ByHand(Histories(BINS).build, 2)
    hands.commands.advance_to(5)
    for command in (Move(0, 1), Move(2, 1), Move(0, 0), Move(1, 0)):
        hands.commands.send(command)
        hands.commands.flush()
        hands.advance_to(5)
        hands.settle()
    hands.finish()
    assert sorted(hands.moved()) == [(5, 1, 1, 0), (5, 2, 0, 1)]


def test_a_bootstrap_of_a_worker_that_is_counted_goes_no_further() -> None:
    def build(worker: Any, records: Any, injected: Any) -> Any:
        return Stream(number_commands(injected.port, BINS)).filter(lambda numbered: worker.index == 1)

    hands = ByHand(build, 3)
    hands.command(1, Move(0, 1), Bootstrap(1, 2), Move(0, 2), Bootstrap(1, 2))
    hands.settle()
    assert [numbered for _, numbered in hands.outputs] == [Numbered(0, Move(0, 1)), Numbered(1, Move(0, 2))]


# Sharing ----------------------------------------------------------------------------------------


def test_another_worker_may_go_on_with_the_stream_and_its_numbers() -> None:
    hands = ByHand(Histories(BINS).build, 2)
    hands.command(5, Move(2, 1))
    hands.advance_to(6)
    hands.settle()
    hands.controls[1].receive(hands.commands.give_away())
    hands.controls[1].send(Numbered(1, Move(3, 0)))
    hands.controls[1].advance_to(7)
    hands.advance_to(7)
    hands.settle()
    assert hands.owned() == [[0, 3], [1, 2]]
    hands.controls[1].send(Move(0, 1))  # it gets the next number
    hands.finish()
    assert hands.owned() == [[3], [0, 1, 2]]


def test_operators_that_share_a_control_stream_share_one_numbering() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        first = control_for(records.port.scope, commands.port, BINS)
        assert control_for(records.port.scope, commands.port, BINS) == first
        return records

    ByHand(build, 2).finish()


def test_a_control_stream_that_was_broadcast_by_hand_is_refused_with_operator_and_line() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        return records.stateful_state_machine(lambda k, v, s: (v, []), control=commands.broadcast(), name="sums")

    with pytest.raises(BuildError, match=r"control of 'sums' is a broadcast stream \(.*py:\d+\): .* without broadcast"):
        EngineCluster(1, 1).run(build, {})


def test_one_that_was_changed_after_it_was_broadcast_is_an_error_with_the_first_command() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        return Histories(BINS).build(worker, records, commands.broadcast().map(lambda bin: Move(bin, 0)))

    hands = ByHand(build, 2)
    hands.command(3, 1)
    with pytest.raises(ProtocolError, match=r"of histories: command 0 came .* without broadcast\(\)"):
        hands.settle()


def test_operators_with_different_bins_on_one_control_stream_are_refused() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        once = records.stateful_state_machine(lambda k, v, s: (v, [(k, v)]), control=commands, bins=8)
        return once.stateful_state_machine(lambda k, v, s: (v, []), control=commands, bins=4)

    with pytest.raises(BuildError, match=r"bins=4, but another .* on the same control stream has bins=8"):
        EngineCluster(1, 1).run(build, {})


@pytest.mark.parametrize("named", [False, True], ids=["left out", "named"])
def test_the_default_control_is_the_one_of_operators_that_name_none_and_may_be_named(named: bool) -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        numbered = number_commands(commands.port, BINS)
        set_default(numbered)
        control = Stream(numbered) if named else None
        return records.stateful_state_machine(lambda k, v, s: (v, [s]), control=control, bins=BINS)

    hands = ByHand(build, 2)
    hands.records[0].send((KEY, "moved"))
    hands.command(1, Move(0, 1))
    hands.advance_to(2)
    hands.records[1].send((KEY, 0))
    hands.finish()
    assert hands.owned() == [[2], [0, 1, 3]] and hands.outputs == [(0, None), (2, "moved")]


def test_operators_with_controls_of_their_own_may_have_different_bins() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        other = commands.filter(lambda command: False)
        once = records.stateful_state_machine(lambda k, v, s: (v, [(k, v)]), control=commands, bins=4)
        return once.stateful_state_machine(lambda k, v, s: (v, [v]), control=other, bins=8)

    assert EngineCluster(1, 2).run(build, {0: [(1, (KEY, 5))]}, [(1, Move(0, 1))]) == [(1, 5)]


# Control that stands still -----------------------------------------------------------------------


def test_while_control_stands_still_nothing_at_its_time_or_later_comes_out_and_the_reason_can_be_read() -> None:
    hands = ByHand(Histories(BINS).build, 2)
    hands.commands.advance_to(7)
    for time in range(12):
        hands.advance_to(time)
        hands.records[time % 2].send((KEY, time))
    for records in hands.records:
        records.close()
    hands.settle()
    assert [time for time, _ in hands.outputs] == list(range(7)) and not hands.done()
    for worker in hands.workers:
        (graph,) = worker.graphs()
        words = describe_pointstamps(graph)
        assert "1 at Input.out0" in words and "time 7" in words and "histories.route" in words
    hands.commands.close()
    hands.settle()
    assert [time for time, _ in hands.outputs] == list(range(12)) and hands.done()


def test_a_worker_that_leaves_its_control_input_open_holds_everybody_back() -> None:
    hands = ByHand(Histories(BINS).build, 3, close_other_commands=False)
    hands.records[0].send((KEY, 0))
    for handle in [*hands.records, *hands.controls[:2]]:
        handle.close()
    hands.settle()
    assert hands.outputs == [] and not hands.done()
    hands.controls[2].close()
    hands.settle()
    assert hands.outputs == [(0, (KEY, (0,)))] and hands.done()


def test_control_that_closes_before_the_records_come_leaves_the_last_table_in_force() -> None:
    histories = Histories(BINS)
    hands = ByHand(histories.build, 2)
    hands.command(3, Move(0, 1))
    hands.commands.close()
    hands.settle()
    for time in (2, 3, 40):
        hands.advance_to(time)
        hands.records[0].send((KEY, time))
    hands.finish()
    assert [histories.where(time) for time in (2, 3, 40)] == [0, 1, 1]


def test_commands_after_the_last_record_are_carried_out() -> None:
    hands = ByHand(Histories(BINS).build, 2)
    hands.records[0].send((KEY, 0))
    for records in hands.records:
        records.close()
    hands.settle()
    for time in range(1, 4):
        hands.command(time, Move(0, time % 2))
        hands.settle()
        assert (0 in hands.owned()[1]) == bool(time % 2)
    hands.finish()
    assert hands.moved() == [(1, 0, 0, 1), (2, 0, 1, 0), (3, 0, 0, 1)]
