"""The table in force at a time is the result of all commands up to it. Impossible commands are refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import CommandRefused
from megaflow.megaphone.base.routing import (
    Bootstrap,
    Clock,
    Command,
    Map,
    Move,
    Numbered,
    Reconfiguration,
    RoutingHistory,
    Watermark,
    apply,
    difference,
    initial_table,
    validate,
)
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.order import Product

BINS = 4
MEMBERS = frozenset({2, 5, 11})

workers = st.sampled_from(sorted(MEMBERS))
tables = st.tuples(*[workers] * BINS)
micros = st.integers(-(1 << 63), (1 << 63) - 1)
commands = st.one_of(
    st.builds(Move, st.integers(0, BINS - 1), workers), st.builds(Map, tables), st.builds(Bootstrap, workers, workers)
)


def test_the_initial_table_does_not_depend_on_the_order_of_the_founders() -> None:
    assert initial_table(5, [11, 2, 5]) == initial_table(5, {2, 5, 11}) == (2, 5, 11, 2, 5)
    assert initial_table(1, MEMBERS) == (2,)


def test_the_last_command_on_a_bin_wins() -> None:
    assert apply((2, 2, 2, 2), [Move(1, 5), Move(1, 11)]) == (2, 11, 2, 2)
    assert apply((2, 2, 2, 2), [Map((5, 5, 5, 5)), Move(0, 2)]) == (2, 5, 5, 5)
    assert apply((2, 2, 2, 2), [Move(0, 2), Map((5, 5, 5, 5))]) == (5, 5, 5, 5)


@given(tables, tables)
def test_the_difference_leads_from_one_table_to_the_other(old: Any, new: Any) -> None:
    changes = difference(old, new)
    assert apply(old, [Move(bin, target) for bin, _, target in changes]) == new
    assert all(old[bin] == source != target for bin, source, target in changes)
    assert difference(new, new) == []


@given(tables, st.dictionaries(st.integers(0, 30), st.lists(commands, max_size=3), max_size=6), st.data())
def test_a_history_is_the_list_of_all_tables(
    start: Any, by_time: dict[int, list[Command]], data: st.DataObject
) -> None:
    history = RoutingHistory(start)
    model = [(-1, start)]
    waiting = sorted(by_time)
    installed = 0
    while waiting or history.pending:
        if waiting and (not history.pending or data.draw(st.booleans())):
            time = waiting.pop(0)
            history.append(time, by_time[time])
            model.append((time, apply(model[-1][1], by_time[time])))
        else:
            time, moves = history.install_first()
            installed += 1
            assert time == model[installed][0] and moves == difference(model[installed - 1][1], model[installed][1])
        history._check()
        assert history.active == model[installed][1]
        for time in range(max(model[installed][0], 0), 32):
            assert history.at(time) == [table for since, table in model if since <= time][-1]


def test_a_reconfiguration_that_moves_nothing_is_installed_as_well() -> None:
    history = RoutingHistory((2, 5, 2, 5))
    history.append(3, [Move(0, 2)])
    history.append(4, [])
    assert [reconfiguration.time for reconfiguration in history.pending] == [3, 4]
    assert history.install_first() == (3, [])
    assert history.install_first() == (4, [])


def test_a_move_takes_effect_exactly_at_its_time() -> None:
    history = RoutingHistory((2,))
    history.append(5, [Move(0, 11)])
    assert (history.at(4), history.at(5), history.at(6)) == ((2,), (11,), (11,))


def test_times_are_compared_as_times() -> None:
    history = RoutingHistory((2,))
    history.append(Product(1, 2), [Move(0, 5)])
    assert history.at(Product(1, 1)) == history.at(Product(0, 9)) == (2,)
    assert history.at(Product(1, 2)) == history.at(Product(2, 2)) == (5,)


def test_reconfigurations_out_of_order_are_a_bug() -> None:
    history = RoutingHistory((2,))
    history.append(5, [Move(0, 11)])
    for late in (4, 5):
        with pytest.raises(AssertionError, match="after the one at 5"):
            history.append(late, [])
    history.install_first()
    with pytest.raises(AssertionError, match="after the one at 5"):
        history.append(5, [])


def test_a_history_can_be_handed_over() -> None:
    history = RoutingHistory((2,), [Reconfiguration(3, (Move(0, 5),)), Reconfiguration(4, (Map((11,)),))], installed=1)
    assert (history.at(2), history.at(3), history.at(9)) == ((2,), (5,), (11,))
    history._check()
    with pytest.raises(AssertionError, match="reconfiguration at 1 after the one at 1"):
        RoutingHistory((2,), installed=1).append(1, [])


def test_a_thousand_moves_that_wait_are_not_a_thousand_tables() -> None:
    history = RoutingHistory((2,) * 64)
    for time in range(1000):
        history.append(time, [Move(time % 64, 5 + time)])
    for time in [999, 0, 500, *range(300, 320), 998, 500]:
        assert history.at(time)[time % 64] == 5 + time
        history._check()
    assert history.at(999) is history.at(5000), "a table is made once"
    assert [history.install_first() for _ in range(1000)][64:66] == [(64, [(0, 5, 69)]), (65, [(1, 6, 70)])]
    history._check()


@given(commands, st.sets(workers))
def test_only_members_may_be_named_and_who_is_on_its_way_is_told_what_to_wait_for(
    command: Command, passing: set[int]
) -> None:
    members = MEMBERS - passing
    match command:
        case Move(_, worker):
            valid = worker in members
        case Map(owners):
            valid = members.issuperset(owners)
        case Bootstrap(server, worker):
            valid = {server, worker} <= members and server != worker
    if valid:
        validate(command, BINS, members, passing)
    else:
        with pytest.raises(CommandRefused, match=r"is joining or leaving; .* worker.peer_ids|cannot bootstrap itself"):
            validate(command, BINS, members, passing)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (Move(4, 2), "no bin 4; bins are 0 to 3"),
        (Move(-1, 2), "no bin -1"),
        (Move(True, 2), "no bin True"),
        (Move("0", 2), "no bin '0'"),  # type: ignore[arg-type]
        (Move(0, 3), "no worker 3 .* the workers are 2, 5, 11"),
        (Move(0, 2.0), "no worker 2.0"),  # type: ignore[arg-type]
        (Move(0, -1), "no worker -1"),
        (Map((2, 2, 2)), "Map of 3 workers: there are 4 bins"),
        (Map((2, 2, 2, 2, 2)), "Map of 5 workers"),
        (Map((2, 2, 2, 7)), "no worker 7"),
        (Map((2, 2, 2, None)), "no worker None"),  # type: ignore[arg-type]
        (Bootstrap(2, 7), "no worker 7"),
        (Bootstrap(7, 2), "no worker 7"),
        (Bootstrap(2, 2), "cannot bootstrap itself; name another worker as the server"),
        (Bootstrap(2, True), "no worker True"),
        (Bootstrap([], 2), r"no worker \[\]"),  # type: ignore[arg-type]
        (Bootstrap(2, []), r"no worker \[\]"),  # type: ignore[arg-type]
        (Move(0, 1), "no worker 1 .*; worker 1 is joining or leaving; a joining worker may own bins once"),
        (Map((2, 2, 2, 7)), "no worker 7 .*; the workers are 2, 5, 11; a joining worker may own bins once worker.peer"),
        (Move(0, True), "no worker True"),
        (Bootstrap(1, 2), "worker 1 is joining or leaving"),
        (Watermark(1.5), r"Watermark\(micros=1.5, .*\): give it an int of microseconds, not 1.5"),  # type: ignore[arg-type]
        (Clock(True), "not True"),
        ("move", "'move' is not a command"),
        (None, "not a command"),
    ],
    ids=str,
)
def test_what_no_table_can_hold_is_refused_with_the_reason(command: Any, words: str) -> None:
    with pytest.raises(CommandRefused, match=words):
        validate(command, BINS, MEMBERS, {1})


@given(st.integers(0), commands | st.builds(Watermark, micros) | st.builds(Clock, micros))
def test_commands_travel(number: int, command: Command) -> None:
    numbered = Numbered(number, command)
    arrived = decode(encode(numbered))
    assert arrived == numbered and type(arrived.command) is type(command)


@pytest.mark.parametrize("workers", [5, None, "2222", ([], [], [], []), (2, 5, 2, {})])
def test_a_map_that_is_no_tuple_of_workers_is_refused(workers: Any) -> None:
    with pytest.raises(CommandRefused):
        validate(Map(workers), BINS, MEMBERS, {1})
