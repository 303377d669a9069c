"""F of a joined worker routes like all others once it has the table, and holds no worker back before.

All workers of these clusters take part from the start, but only the first two know the first table. The others know as
little of it as workers that join later. Commands are numbered as by the coordinator of a job, which also sends the
Bootstraps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest

from megaflow import Bootstrap, Map, Move
from megaflow.errors import ProgramError, ProtocolError
from megaflow.megaphone.base import chunks
from megaflow.megaphone.base.routing import Command, Numbered, RoutingTable, Watermark, apply, initial_table
from megaflow.megaphone.router.control_stream import founders_of, set_default
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from megaflow.testing.monitor import describe_pointstamps
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators.linear import linear
from megaflow.timely.dataflow.operators.movement import broadcast
from tests.simulation import parcels, scenarios
from tests.simulation.by_hand import ByHand, Histories, key_of, keys_of

BINS = 4  # bins 0 and 2 belong to worker 0 at first, 1 and 3 to worker 1
KEY = key_of(0, BINS)
NEW = 2
FOUNDERS = (0, 1)


@pytest.fixture(autouse=True)
def founders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the first table to two workers, however many there are."""
    monkeypatch.setattr("megaflow.megaphone.router.router.founders_of", lambda graph: founders_of(graph)[:2])
    monkeypatch.setattr("megaflow.megaphone.router.control_stream.number_commands", number_as_in_a_job)


def number_as_in_a_job(port: Port[Any], bins: int) -> Port[Numbered]:
    numbers = count()
    numbered = linear(port, "Commands", lambda time, batch: [Numbered(next(numbers), command) for command in batch])
    return broadcast(numbered, Lane.MAIL)


class Hands(ByHand):
    """A cluster stepped by hand, which can also hold single routes."""

    held_routes: frozenset[tuple[int, int, Lane]] = frozenset()

    def settle(self) -> None:
        held, network = self.held_routes, self.network
        waiting = type(network).waiting
        network.waiting = lambda: [each for each in waiting(network) if each[0] not in held]  # type: ignore[method-assign]
        super().settle()
        del network.waiting  # type: ignore[method-assign]

    def hold(self, *routes: tuple[int, int, Lane]) -> None:
        self.held_routes = frozenset(routes)

    def ready(self, operator: int = 0) -> list[bool]:
        return [worker.stateful[operator].ready for worker in self.workers]

    def histories(self) -> list[Any]:
        """Return (active table, its time, pending, undecided) on each worker."""
        controls = [worker.stateful[0].router.control for worker in self.workers]
        return [
            (each.history.active, each.history.installed, list(each.history.pending), each._commands)
            for each in controls
        ]

    def finish(self) -> None:
        self.hold()
        super().finish()


def started(workers: int = 3) -> tuple[Histories, Hands]:
    histories = Histories(BINS)
    return histories, Hands(histories.build, workers)


def raw(select: Callable[[int, Numbered], bool]) -> Any:
    """A dataflow whose control is not validated. Worker w hears the numbered commands that `select(w, _)` admits."""
    histories = Histories(BINS)

    def build(worker: Any, records: Any, commands: Any) -> Any:
        heard = Stream(broadcast(commands.port, Lane.MAIL)).filter(lambda numbered: select(worker.index, numbered))
        set_default(heard.port)
        return records.stateful_state_machine(histories.fold_on(worker), bins=BINS, name="histories")

    return histories, Hands(build, 3)


# Handing over ---------------------------------------------------------------------------------


def test_a_newcomer_has_no_table_and_no_bins_until_it_is_told() -> None:
    _, hands = started()
    assert hands.ready() == [True, True, False]
    assert [worker.stateful[0].table() for worker in hands.workers] == [(0, 1, 0, 1), (0, 1, 0, 1), ()]
    hands.command(1, Bootstrap(0, NEW))
    hands.settle()
    assert hands.ready() == [True] * 3
    assert hands.workers[NEW].stateful[0].table() == (0, 1, 0, 1)
    hands.finish()
    assert hands.owned() == [[0, 2], [1, 3], []]


@pytest.mark.parametrize("server", FOUNDERS)
@pytest.mark.parametrize("passed", [1, 4, 5, 6])
def test_reconfigurations_before_at_and_after_the_time_of_the_bootstrap_are_the_same_everywhere(
    server: int, passed: int
) -> None:
    """`passed`: the time that all records have reached when the Bootstrap comes, so earlier tables are in force."""
    histories, hands = started()
    for time in (1, 3, 4):
        hands.command(time, Move(0, time % 2), Move(2, 1))
    hands.advance_to(passed)
    hands.settle()
    hands.commands.advance_to(5)
    for command in (Move(1, 0), Bootstrap(server, NEW), Move(3, 0)):
        hands.commands.send(command)
    hands.commands.flush()
    hands.settle()
    assert hands.ready() == [True] * 3, "though control has not passed the Bootstrap"
    assert hands.histories()[NEW] == hands.histories()[server] and hands.histories()[0] == hands.histories()[1]
    assert hands.histories()[NEW][3] == {5: [Move(1, 0), Move(3, 0)]}
    hands.command(7, Map((1, 1, 1, 1)), Move(0, NEW))
    hands.settle()
    first, second, third = hands.histories()
    assert first == second == third and not first[3]
    sending = [time for time in (3, 5, 6, 7) if time >= passed]
    for time in sending:
        hands.records[NEW].advance_to(time)
        hands.records[NEW].send((KEY, time))
    hands.finish()
    assert [histories.where(time) for time in sending] == [{3: 1, 5: 0, 6: 0, 7: NEW}[time] for time in sending]
    assert [worker.stateful[0].table() for worker in hands.workers] == [(NEW, 1, 1, 1)] * 3
    assert hands.owned() == [[], [1, 2, 3], [0]]


@pytest.mark.parametrize("late", [None, (0, NEW, Lane.STATE), (0, NEW, Lane.MAIL)], ids=str)
@pytest.mark.parametrize("first", range(4))
def test_commands_between_join_and_bootstrap_count_once_whichever_the_newcomer_hears(
    first: int, late: tuple[int, int, Lane] | None
) -> None:
    _, hands = raw(lambda worker, numbered: worker != NEW or numbered.number >= first)
    commands: list[tuple[int, Command]] = [
        (1, Move(0, 1)),
        (2, Move(0, 0)),
        (2, Move(1, 0)),
        (2, Bootstrap(0, NEW)),
        (2, Move(1, 1)),
        (3, Move(2, 1)),
    ]
    hands.hold(*filter(None, [late]))
    for number, (time, command) in enumerate(commands):
        hands.commands.advance_to(time)
        hands.commands.send(Numbered(number, command))
        hands.commands.flush()
        hands.settle()
    hands.commands.advance_to(4)
    hands.settle()
    assert hands.ready() == [True, True, late is None]
    hands.hold()
    hands.settle()
    states = hands.histories()
    assert states[0] == states[1] == states[NEW] and len(states[0][2]) == 3
    hands.finish()
    assert hands.owned() == [[0], [1, 2, 3], []]


def test_one_bootstrap_tells_all_operators_that_share_the_control_stream() -> None:
    histories = Histories(BINS)

    def build(worker: Any, records: Any, commands: Any) -> Any:
        once = records.stateful_state_machine(
            lambda key, value, state: (value, [(key, value)]), control=commands, bins=BINS, name="once"
        )
        return histories.build(worker, once, commands)

    hands = Hands(build, 3)
    hands.command(1, Move(0, 1))
    hands.records[NEW].send((KEY, "early"))
    hands.settle()
    assert hands.ready(0) == hands.ready(1) == [True, True, False]
    hands.command(2, Bootstrap(1, NEW))
    hands.command(3, Move(0, NEW))
    hands.records[NEW].advance_to(3)
    hands.records[NEW].send((KEY, "late"))
    hands.settle()
    assert hands.ready(0) == hands.ready(1) == [True] * 3
    hands.finish()
    assert (histories.where("early"), histories.where("late")) == (0, NEW)
    assert hands.owned(0) == hands.owned(1) == [[2], [1, 3], [0]]


def test_a_worker_that_was_told_can_tell_another_even_before_it_knows_itself() -> None:
    histories, hands = started(4)
    hands.command(1, Bootstrap(0, 2), Move(0, 2), Bootstrap(2, 3), Move(2, 3))
    hands.hold((0, 2, Lane.STATE))
    hands.advance_to(1)
    hands.records[3].send((KEY, "mine"))
    hands.settle()
    assert hands.ready() == [True, True, False, False]
    hands.hold()
    hands.settle()
    assert hands.ready() == [True] * 4
    assert len({str(state) for state in hands.histories()}) == 1
    hands.finish()
    assert histories.where("mine") == 2 and hands.owned() == [[], [1, 3], [0], [2]]


def test_a_bootstrap_of_a_worker_that_knows_the_table_changes_nothing() -> None:
    _, hands = raw(lambda worker, numbered: True)
    told_twice = [Bootstrap(0, 1), Move(0, 1), Bootstrap(1, 0), Bootstrap(0, NEW), Bootstrap(1, NEW)]
    for number, command in enumerate(told_twice):
        hands.command(number, Numbered(number, command))
        hands.settle()
    assert hands.ready() == [True] * 3
    hands.finish()
    assert hands.owned() == [[2], [0, 1, 3], []] and not any(worker.has_work() for worker in hands.workers)


# No other worker pauses ---------------------------------------------------------------------------


def test_the_others_go_on_and_move_bins_while_the_newcomer_has_no_table() -> None:
    histories, hands = started()
    hands.hold((0, NEW, Lane.STATE))
    hands.records[NEW].close()
    hands.command(1, Bootstrap(0, NEW))
    for time in range(2, 9):
        hands.command(time, Move(0, time % 2))
        for founder in FOUNDERS:
            hands.records[founder].advance_to(time)
            hands.records[founder].send((KEY, (founder, time)))
            hands.records[founder].advance_to(time + 1)
        hands.settle()
        assert {histories.where((founder, time)) for founder in FOUNDERS} == {time % 2}
        assert (0 in hands.owned()[1]) == bool(time % 2)
        assert not any(probe.less_than(time + 1) for probe in hands.probes)
    assert hands.ready() == [True, True, False]
    hands.hold()
    hands.settle()
    assert hands.histories()[NEW] == hands.histories()[0]
    hands.finish()


def test_a_worker_that_is_not_told_yet_holds_nothing_but_its_own_data() -> None:
    histories, hands = started()
    hands.command(1, Move(1, 0))
    hands.advance_to(3)
    hands.records[NEW].send((KEY, "waits"))
    hands.advance_to(5)
    hands.records[0].send((KEY, "after"))
    hands.records[0].flush()
    hands.records[1].close()
    hands.commands.advance_to(9)
    hands.settle()
    assert hands.moved() == [(1, 1, 1, 0)], "what is before its data goes on"
    assert histories.applied == [], "and it holds what comes after"
    question = hands.workers[0].explainer.ask(hands.probes[0], 3)
    hands.settle()
    [held] = question.holdings()
    assert (held.operator, held.worker, held.time, held.kind) == ("histories.route", NEW, 3, "needs a Bootstrap")
    words = describe_pointstamps(hands.workers[0].graphs()[0])
    assert "1 at histories.route.out0" in words and "route.out1" not in words and "route.in1" not in words
    hands.command(9, Bootstrap(0, NEW))
    hands.settle()
    assert [value for _, _, value in histories.applied] == ["waits", "after"]
    hands.finish()


# Data that waits --------------------------------------------------------------------------------


def test_data_that_waits_is_routed_by_the_table_of_its_time_as_soon_as_that_is_known() -> None:
    histories, hands = started()
    for time, target in [(2, 1), (4, 0), (6, 1)]:
        hands.command(time, Move(0, target))
    hands.commands.advance_to(8)
    for time in range(1, 9):
        hands.records[NEW].advance_to(time)
        hands.records[NEW].send((KEY, time))
    hands.records[NEW].flush()
    hands.settle()
    assert not [lane for _, _, lane, _, _ in hands.delivered if lane is Lane.DATA]
    hands.command(8, Bootstrap(1, NEW))
    hands.settle()
    sent = [
        (time, target) for source, target, lane, time, _ in hands.delivered if (source, lane) == (NEW, Lane.DATA)
    ]
    assert sorted(sent) == [(1, 0), (2, 1), (3, 1), (4, 0), (5, 0), (6, 1), (7, 1), (8, 1)]
    hands.finish()
    assert [histories.where(time) for time in range(1, 9)] == [0, 1, 1, 0, 0, 1, 1, 1]
    assert hands.outputs[-1] == (8, (KEY, tuple(range(1, 9))))


def test_how_long_data_waited_for_the_table_is_told() -> None:
    _, hands = started()
    router = hands.workers[NEW].stateful[0].router
    seconds = iter([10.0, 12.5])
    router.context = replace(router.context, now=lambda: next(seconds))
    assert [worker.stateful[0].bootstrap_seconds for worker in hands.workers] == [0.0] * 3
    for time in (1, 2):
        hands.records[NEW].advance_to(time)
        hands.records[NEW].send((KEY, time))
        hands.records[NEW].flush()
        hands.settle()
    hands.command(1, Bootstrap(0, NEW))
    hands.settle()
    assert [worker.stateful[0].bootstrap_seconds for worker in hands.workers] == [0.0, 0.0, 2.5]
    hands.finish()


def test_no_time_is_told_where_no_data_waited() -> None:
    _, hands = started()
    hands.command(1, Bootstrap(0, NEW))
    hands.settle()
    hands.records[NEW].send((KEY, 1))
    hands.finish()
    assert hands.workers[NEW].stateful[0].bootstrap_seconds == 0.0


# Bins for the newcomer --------------------------------------------------------------------------


def test_a_bin_may_come_and_go_again_before_the_newcomer_knows_the_table() -> None:
    histories, hands = started()
    hands.hold((0, NEW, Lane.STATE))
    hands.records[0].send((KEY, 0))
    hands.command(1, Bootstrap(0, NEW), Move(2, 1))
    hands.command(3, Move(0, NEW))
    hands.command(5, Move(0, 1))
    hands.command(7, Move(0, NEW))
    for time in range(1, 9):
        for records in hands.records:
            records.advance_to(time)
            records.send((KEY, time))
    hands.advance_to(9)
    hands.settle()
    assert hands.ready() == [True, True, False]
    assert Counter(value for _, _, value in histories.applied) == {0: 1, 1: 2}, "its own of time 1 waits, and all later"
    hands.finish()
    owners = {time: {worker for worker, _, value in histories.applied if value == time} for time in range(9)}
    assert owners == {0: {0}, 1: {0}, 2: {0}, 3: {NEW}, 4: {NEW}, 5: {1}, 6: {1}, 7: {NEW}, 8: {NEW}}
    assert hands.moved() == [(1, 2, 0, 1), (3, 0, 0, NEW), (5, 0, NEW, 1), (7, 0, 1, NEW)]


def test_event_timers_fire_at_a_newcomer_before_it_knows_the_table() -> None:
    seen = []

    def build(worker: Any, records: Any, commands: Any) -> Any:
        def fold(key: Any, time: int, records: list[Any], state: Any, timers: Any) -> Any:
            seen.append((worker.index, time, timers.watermark, records))
            if records == ["set"]:
                timers.at_event(1, "one")
                timers.at_event(2, "two")
            return 1, []

        return records.stateful_unary(fold, control=commands, bins=BINS)

    hands = Hands(build, 3)
    hands.hold((1, NEW, Lane.STATE))
    hands.records[0].send((KEY, "set"))
    hands.command(1, Bootstrap(1, NEW))
    hands.command(2, Watermark(1_000_000), Move(0, NEW))
    hands.command(4, Watermark(2_000_000))
    hands.advance_to(9)
    hands.settle()
    assert hands.ready() == [True, True, False]
    assert seen == [(0, 0, None, ["set"]), (NEW, 2, 1, ["one"]), (NEW, 4, 2, ["two"])]
    hands.finish()


def test_a_bin_comes_in_many_parcels_before_the_newcomer_knows_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1)
    histories, hands = started()
    hands.hold((1, NEW, Lane.STATE))
    keys = keys_of(0, BINS, 5)
    hands.records[0].send_batch([(key, 0) for key in keys])
    hands.command(1, Bootstrap(1, NEW))
    hands.command(3, Move(0, NEW))
    hands.command(4, Move(2, 1))
    hands.advance_to(3)
    hands.settle()
    assert hands.ready() == [True, True, False] and hands.owned() == [[2], [1, 3], [0]]
    assert hands.workers[NEW].stateful[0].keys() == 5, "it is whole"
    hands.advance_to(5)
    hands.records[0].send_batch([(key, 5) for key in keys])
    hands.settle()
    assert hands.owned() == [[], [1, 2, 3], [0]] and hands.ready() == [True, True, False], "and nobody waits for it"
    hands.finish()
    assert {worker for worker, _, value in histories.applied if value == 5} == {NEW}
    assert {values for _, (_, values) in hands.outputs[-5:]} == {(0, 5)}


def test_until_it_may_own_a_bin_it_holds_no_time_of_the_state() -> None:
    _, hands = started()
    hands.hold((0, NEW, Lane.STATE))
    hands.advance_to(9)
    hands.command(1, Bootstrap(0, NEW))
    for time, target in [(2, 1), (3, NEW), (4, 1)]:
        hands.command(time, Move(1, target), Move(3, 0))
        hands.settle()
        held = dict(hands.workers[NEW].stateful[0].router.shipper.claimed)
        assert list(held) == ([4] if time == 4 else [])
    hands.finish()
    assert hands.owned() == [[0, 2, 3], [1], []]


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("worker", [0, NEW])
def test_a_command_that_is_missing_stops_the_job_on_a_newcomer_as_well(worker: int) -> None:
    _, hands = raw(lambda index, numbered: index != worker or numbered.number not in (0, 2))
    for number in range(4):
        hands.command(number, Numbered(number, Move(0, 1)))
    read, due = (1, 0) if worker == 0 else (3, 2)  # a newcomer begins with any number
    with pytest.raises(ProtocolError, match=f"command {read} came .* but {due} was due"):
        hands.settle()


@pytest.mark.parametrize("command", [Move(0, 3), Move(4, 0), Map((0, 1, 0, 3)), Map((0, 1))], ids=str)
def test_a_command_that_cannot_be_obeyed_and_was_not_refused_stops_the_job(command: Command) -> None:
    _, hands = raw(lambda worker, numbered: True)
    hands.command(5, Numbered(0, command))
    with pytest.raises(ProtocolError, match=r"histories: the commands for time 5 cannot be carried out: (Move|Map)"):
        hands.settle()


def test_a_newcomer_that_is_named_before_its_bootstrap_stops_the_job() -> None:
    _, hands = raw(lambda worker, numbered: True)
    hands.command(5, Numbered(0, Move(0, NEW)))
    with pytest.raises(ProtocolError, match="names worker 2, which has joined but is not bootstrapped yet"):
        hands.settle()


def test_records_of_a_newcomer_that_nobody_will_tell_are_an_error_and_without_records_it_is_none() -> None:
    _, hands = started()
    hands.finish()
    _, hands = started()
    hands.records[NEW].send((KEY, 1))
    hands.records[NEW].flush()
    hands.commands.close()
    with pytest.raises(ProgramError, match=r"worker 2 has joined and has records, .* Bootstrap\(server, 2\)"):
        hands.settle()


def test_control_may_end_while_the_table_is_under_way() -> None:
    histories, hands = started()
    hands.hold((0, NEW, Lane.STATE))
    hands.records[NEW].send((KEY, 1))
    hands.command(0, Bootstrap(0, NEW))
    hands.commands.close()
    hands.settle()
    assert histories.applied == []
    hands.finish()
    assert histories.where(1) == 0


def test_without_control_everybody_knows_the_table_for_ever() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        return records.stateful_state_machine(lambda k, v, s: (v, [worker.index]), bins=BINS)

    hands = Hands(build, 3)
    assert hands.ready() == [True] * 3
    hands.records[NEW].send((KEY, 1))
    hands.finish()
    assert hands.outputs == [(0, 0)] and hands.owned() == [[0, 2], [1, 3], []]


# Any order of events ----------------------------------------------------------------------------


def draw(seed: int) -> scenarios.Scenario:
    """A scenario in which one or two newcomers are bootstrapped, each by any worker that may, and then own bins."""
    scenario = scenarios.draw(seed)
    random = Random(f"newcomers {seed}")
    scenario.workers = random.choice([3, 3, 4])
    know, others = list(FOUNDERS), list(range(2, scenario.workers))
    random.shuffle(others)
    scenario.feeds = {
        worker: [
            (time, (random.choice(scenarios.WORDS), time))
            for time in sorted(random.randrange(scenario.times) for _ in range(random.randint(0, 12)))
        ]
        for worker in range(scenario.workers)
    }
    kinds = sorted(random.choice("cccb") for _ in range(random.randint(0, 12)))
    random.shuffle(kinds)
    commands: list[Command] = []
    for kind in [*kinds, *"b" * len(others)]:
        if kind == "c":
            owner = random.choice(know)
            table = tuple(random.choice(know) for _ in range(scenarios.BINS))
            commands.append(random.choice([Move(random.randrange(scenarios.BINS), owner)] * 3 + [Map(table)]))
        elif others:
            commands.append(Bootstrap(random.choice(know), others[0]))
            know.append(others.pop(0))
    times = sorted(random.randrange(scenario.times) for _ in commands)
    scenario.commands = list(zip(times, commands))
    return scenario


def tables(scenario: scenarios.Scenario) -> list[RoutingTable]:
    """Return the table in force at each time."""
    table, all_tables = initial_table(scenarios.BINS, FOUNDERS), []
    for time in range(scenario.times):
        table = apply(table, [command for due, command in scenario.commands if due == time])
        all_tables.append(table)
    return all_tables


def run(scenario: scenarios.Scenario) -> None:
    """Run the scenario and its oracle, a single worker that receives all records."""
    log = scenarios.Log()
    cluster = EngineCluster(scenario.seed, scenario.workers)
    with parcels.small(scenario.seed, cluster):
        outputs = cluster.run(lambda *given: scenarios.build(scenario, log, *given), scenario.feeds, scenario.commands)
    everything = sorted((entry for feed in scenario.feeds.values() for entry in feed), key=lambda entry: entry[0])
    oracle, unread = EngineCluster(scenario.seed, 1, monitor=False), scenarios.Log()
    expected = oracle.run(lambda *given: scenarios.build(scenario, unread, *given), {0: everything})
    assert Counter(outputs) == Counter(expected), f"seed {scenario.seed}: the outputs differ from one worker's"
    in_force = tables(scenario)
    for operator, bin, time, worker in log.applied:
        owner = in_force[min(time, len(in_force) - 1)][bin]  # timers are due later than any command
        assert worker == owner, f"seed {scenario.seed}: {operator}, bin {bin}, time {time}: {worker}"
    for worker in cluster.workers:
        for view in worker.stateful:
            owned = [bin for bin, owner in enumerate(in_force[-1]) if owner == worker.index]
            assert view.ready and view.table() == in_force[-1] and view.owned() == owned, f"seed {scenario.seed}"


@pytest.mark.parametrize(
    "first", [0, 25, *(pytest.param(first, marks=pytest.mark.slow) for first in range(50, 200, 25))]
)
def test_outputs_and_their_times_equal_those_of_one_worker_whoever_is_told_the_table_when(first: int) -> None:
    for seed in range(first, first + 25):
        run(draw(seed))
