"""S applies a key's values in time order, at their own times, wherever its bin is; and errors."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from megaflow import Map, Move, stable_hash
from megaflow.errors import BuildError, CannotTravel, ProgramError, UsageError
from megaflow.megaphone.base.routing import difference, initial_table
from megaflow.megaphone.folds import stateful
from megaflow.scope import Scope
from megaflow.testing import EngineCluster
from megaflow.timely import Exchange
from megaflow.timely.communication.channel import Lane
from tests.simulation.by_hand import ByHand, Histories, bin_of, key_of

BINS = 4
KEY = key_of(0, BINS)  # of worker 0, with two workers or three


def machine(fold: Any, **options: Any) -> Callable[..., Any]:
    """A dataflow of one stateful operator."""
    return lambda worker, records, commands: records.stateful_state_machine(fold, control=commands, **options)


def run(fold: Any, records: list[Any], workers: int = 1, **options: Any) -> list[Any]:
    """Return the outputs of a stateful operator fed at times 0, 1, …"""
    outputs = EngineCluster(3, workers).run(machine(fold, **options), {0: list(enumerate(records))})
    return [record for _, record in outputs]


def count(key: Any, value: Any, state: int | None) -> tuple[int | None, list[Any]]:
    state = (state or 0) + 1
    return state, [(key, state)]


# Inputs and outputs of a fold -----------------------------------------------------------------


def test_a_new_key_has_the_state_none_and_none_forgets_it() -> None:
    seen = []

    def fold(key: str, value: int, state: int | None) -> tuple[int | None, list[int]]:
        seen.append(state)
        return (None if value == 0 else value), []

    run(fold, [("a", 1), ("a", 2), ("a", 0), ("a", 0), ("a", 3), ("b", 4)])
    assert seen == [None, 1, 2, None, None, None]


def test_states_that_are_false_are_states() -> None:
    assert run(lambda key, value, state: (value, [state]), [("a", 0), ("a", ""), ("a", False), ("a", [])]) == [
        None, 0, "", False,
    ]  # fmt: skip


def test_outputs_may_be_any_iterable_and_a_generator_runs_at_once() -> None:
    def outputs(state: int) -> Iterator[int]:
        yield state
        yield -state

    assert run(lambda key, value, state: (value, outputs(value)), [("a", 1), ("a", 2)]) == [1, -1, 2, -2]
    assert run(lambda key, value, state: (value, {value, -value}), [("a", 0)]) == [0]


@pytest.mark.parametrize("workers", [1, 3])
def test_keys_that_are_equal_are_one_key_wherever_they_come_from(workers: int) -> None:
    keys = [1, 1.0, True, Decimal(1), complex(1)]
    feeds = {worker: [(time, (key, 0)) for time, key in enumerate(keys)] for worker in range(workers)}
    commands = [(time, Move(bin, time % workers)) for time in (1, 3) for bin in range(BINS)]
    outputs = EngineCluster(5, workers).run(machine(count, bins=BINS), feeds, commands)
    assert sorted(total for _, (_, total) in outputs) == list(range(1, 5 * workers + 1))


def test_a_key_that_moved_is_equal_to_itself_again() -> None:
    keys = [("tuple", 1), frozenset({"a", "b"}), b"bytes", None, 1 << 70, 2.5, "\udcff"]
    feeds = {0: [(time, (key, 0)) for time in range(4) for key in keys]}
    commands = [(time, Map((time % 2,) * BINS)) for time in range(4)]
    outputs = EngineCluster(5, 2).run(machine(count, bins=BINS), feeds, commands)
    assert Counter(total for _, (_, total) in outputs) == {total: len(keys) for total in (1, 2, 3, 4)}


# Time ------------------------------------------------------------------------------------------


def test_a_backlog_comes_out_at_the_time_of_each_record_not_at_its_earliest() -> None:
    hands = ByHand(Histories(BINS).build, 2)
    for time in (3, 4, 5):
        hands.advance_to(time)
        for records in hands.records:
            records.send((KEY, time))
    hands.advance_to(6)
    hands.settle()
    assert hands.outputs == [], "control is at 0"
    hands.finish()
    assert [time for time, _ in hands.outputs] == [3, 3, 4, 4, 5, 5]
    assert all(output[1][-1] == time for time, output in hands.outputs)


def test_a_keys_values_are_applied_in_the_order_of_their_times_whatever_arrives_first() -> None:
    histories = Histories(BINS)
    hands = ByHand(histories.build, 2)
    hands.commands.close()
    hands.records[0].advance_to(7)
    hands.records[0].send((KEY, 7))
    hands.records[0].flush()
    hands.settle()
    assert histories.applied == [], "worker 1 may still send earlier values"
    views = [worker.stateful[0] for worker in hands.workers]
    assert sum(view.waiting for view in views) == 1
    hands.records[1].advance_to(5)
    hands.records[1].send((KEY, 5))
    hands.finish()
    assert [value for _, _, value in histories.applied] == [5, 7]
    assert [view.waiting for view in views] == [0, 0]


def test_a_record_is_applied_before_its_own_time_is_closed() -> None:
    histories = Histories(BINS)
    hands = ByHand(histories.build, 2)
    hands.commands.close()
    hands.records[1].advance_to(5)
    hands.records[0].advance_to(5)
    hands.records[0].send((KEY, 5))
    hands.records[0].flush()
    hands.settle()
    assert hands.outputs == [(5, (KEY, (5,)))] and all(probe.less_equal(5) for probe in hands.probes)


def test_records_of_one_time_from_one_worker_are_applied_in_the_order_sent() -> None:
    histories = Histories(BINS)
    hands = ByHand(histories.build, 2)
    hands.records[1].send_batch([(KEY, number) for number in range(2_000)])
    hands.settle()
    hands.commands.close()
    hands.records[1].send_batch([(KEY, number) for number in range(2_000, 3_000)])
    hands.finish()
    assert [value for _, _, value in histories.applied] == list(range(3_000))


@pytest.mark.parametrize("waits", [True, False])
def test_a_worker_looks_up_between_the_batches_of_a_slow_fold_from_the_stash_or_not(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(stateful, "TURN_SECONDS", 0.0)  # each batch takes longer
    histories = Histories(BINS)
    hands = ByHand(histories.build, 1)
    if not waits:
        hands.commands.close()
        hands.settle()
    for number in range(5):
        hands.records[0].send_batch([(KEY, number)])
    if waits:
        hands.settle()
        assert histories.applied == []
        hands.commands.close()
    seen = [0]
    while hands.workers[0].has_work():
        hands.workers[0].step()
        seen.append(len(histories.applied))
    assert {later - before for before, later in pairwise(seen)} == {0, 1}, "at most one batch a step"
    hands.finish()
    assert [value for _, _, value in histories.applied] == list(range(5))


# Several operators ---------------------------------------------------------------------------


def two_in_a_row(log: list[Any], apart: bool) -> Callable[..., Any]:
    """Two stateful operators with the same keys. They share commands, or get (operator, command) pairs if `apart`."""

    def build(worker: Any, records: Any, commands: Any) -> Any:
        def fold_of(operator: str) -> Any:
            def fold(key: Any, value: int, state: int | None) -> tuple[int, list[Any]]:
                log.append((operator, value, worker.index))
                return (state or 0) + 1, [(key, value)]

            return fold

        for operator in ("first", "second"):
            control = commands
            if apart:
                control = commands.filter(lambda pair, mine=operator: pair[0] == mine).map(lambda pair: pair[1])
            records = records.stateful_state_machine(fold_of(operator), control=control, bins=BINS, name=operator)
        return records

    return build


@pytest.mark.parametrize("seed", range(25))
def test_two_operators_with_one_control_move_at_one_time_and_what_is_before_goes_to_the_old_owners(seed: int) -> None:
    log: list[Any] = []
    feeds = {worker: [(time, (KEY, time)) for time in range(10)] for worker in range(3)}
    EngineCluster(seed, 3).run(two_in_a_row(log, apart=False), feeds, [(4, Move(0, 1)), (7, Move(0, 2))])
    owner = {time: 0 if time < 4 else 1 if time < 7 else 2 for time in range(10)}
    assert Counter(log) == {(name, time, owner[time]): 3 for name in ("first", "second") for time in range(10)}


@pytest.mark.parametrize("seed", range(25))
def test_two_operators_with_controls_of_their_own_move_each_at_its_time(seed: int) -> None:
    log: list[Any] = []
    feeds = {worker: [(time, (KEY, time)) for time in range(10)] for worker in range(3)}
    commands = [(4, ("first", Move(0, 1))), (7, ("second", Move(0, 2)))]
    cluster = EngineCluster(seed, 3)
    cluster.run(two_in_a_row(log, apart=True), feeds, commands)
    owners = {time: {"first": 0 if time < 4 else 1, "second": 0 if time < 7 else 2} for time in range(10)}
    assert Counter(log) == {(name, time, owners[time][name]): 3 for name in ("first", "second") for time in range(10)}


@pytest.mark.parametrize("seed", range(10))
def test_operators_of_one_name_are_told_apart(seed: int) -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        once = records.stateful_state_machine(count, control=commands, bins=BINS)
        return once.stateful_state_machine(count, control=commands, bins=BINS)

    feeds = {0: [(time, (KEY, time)) for time in range(6)]}
    outputs = EngineCluster(seed, 2).run(build, feeds, [(2, Move(0, 1)), (4, Move(0, 0))])
    assert sorted(outputs) == [(time, (KEY, time + 1)) for time in range(6)]


@pytest.mark.parametrize("seed", range(10))
def test_a_stateful_operator_in_a_loop_moves_its_bins(seed: int) -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        handle, again = worker_scope(records).feedback(1)
        counted = records.concat(again).stateful_state_machine(count, control=commands, bins=BINS)
        counted.filter(lambda output: output[1] < 8).connect_loop(handle)
        return counted

    outputs = EngineCluster(seed, 2).run(build, {0: [(0, (KEY, 0))]}, [(3, Move(0, 1)), (5, Move(0, 0))])
    assert outputs == [(time, (KEY, time + 1)) for time in range(8)]


def worker_scope(stream: Any) -> Any:
    """Return the scope of a stream."""
    return Scope(stream.port.scope)


def test_without_control_the_table_stays_as_it_is() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        return records.stateful_state_machine(count, bins=BINS)

    cluster = EngineCluster(2, 3)
    outputs = cluster.run(build, {1: [(time, (KEY, 0)) for time in range(5)]})
    assert outputs == [(time, (KEY, time + 1)) for time in range(5)]
    assert [worker.stateful[0].owned() for worker in cluster.workers] == [[0, 3], [1], [2]]


def test_each_bin_is_owned_once_or_under_way_at_every_step_and_the_ledger_tells_where_it_went() -> None:
    hands = ByHand(Histories(BINS).build, 3)
    tables = [initial_table(BINS, range(3)), (1, 2, 0, 1), (2, 0, 1, 2), (0, 0, 0, 0)]
    for time, table in enumerate(tables[1:], 1):
        hands.command(time, Map(table))
    hands.advance_to(9)
    ready = True
    while ready:
        ready = False
        for worker in hands.workers:
            if worker.has_work() or hands.network.allocator(worker.index).arrived:
                worker.step()
                ready = True
            owned = [bin for bins in hands.owned() for bin in bins]
            assert len(owned) == len(set(owned)) == BINS - _under_way(hands)
        for route, _ in list(hands.network.waiting())[:1]:
            hands.deliver(*route)
            ready = True
    rows = Counter(hands.moved())
    assert rows == Counter(
        (time, *move) for time in (1, 2, 3) for move in difference(tables[time - 1], tables[time])
    )


def _under_way(hands: ByHand) -> int:
    """Return how many bins, each empty and one chunk, are on the network, or arrived and not read."""
    routes = [route for route, _ in hands.network.waiting() if route[2] is Lane.STATE]
    sent = [envelope.body for route in routes for envelope in hands.network.under_way(route)]
    arrived = [
        envelope.body
        for worker in hands.workers
        for envelope in hands.network.allocator(worker.index).arrived
        if envelope.channel.lane is Lane.STATE
    ]
    return sum(len(parcel) for _, parcel in sent + arrived)


# Effects on the rest of the worker ----------------------------------------------------------------


def test_the_view_tells_bins_keys_records_and_table() -> None:
    hands = ByHand(Histories(BINS).build, 2)
    hands.commands.close()
    hands.records[1].send_batch([(KEY, 1), (KEY, 2), (key_of(2, BINS), 1), (key_of(1, BINS), 1)])
    hands.finish()
    views = [worker.stateful[0] for worker in hands.workers]
    assert [view.records for view in views] == [3, 1] and [view.keys() for view in views] == [2, 1]
    assert [view.name for view in views] == ["histories"] * 2 and views[0].bins == BINS
    assert views[0].table() == views[1].table() == (0, 1, 0, 1)
    assert views[0].take_ledger() == []


# Errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fold", "words"),
    [
        (lambda key, value, state: None, r"fold must|must return \(new state, outputs\).*instead: cannot unpack"),
        (lambda key, value, state: 7, r"must return \(new state, outputs\)"),
        (lambda key, value, state: (1, 2, 3), r"must return \(new state, outputs\).*too many values"),
        (lambda key, value, state: (1, None), r"must return \(new state, outputs\).*'NoneType' object is not iterable"),
        (lambda key, value: (1, []), r"called as fold\(key, value, state\).*2 positional arguments but 3 were given"),
    ],
    ids=["None", "int", "three", "outputs that are none", "two arguments"],
)
def test_a_fold_that_does_not_give_state_and_outputs_is_told_so(fold: Any, words: str) -> None:
    with pytest.raises(ProgramError, match=words) as failure:
        run(fold, [("a", 1)], name="mine")
    assert str(failure.value).startswith("mine: the fold is called as")


@pytest.mark.parametrize("error", [TypeError("mine"), ValueError("mine"), KeyError("mine")], ids=repr)
def test_an_error_inside_the_fold_stays_as_it_is_with_the_record_in_its_note(error: Exception) -> None:
    def fold(key: str, value: int, state: Any) -> Any:
        raise error

    with pytest.raises(type(error)) as failure:
        run(fold, [("a", 41)])
    assert failure.value is error and "time 0, record ('a', 41)" in failure.value.__notes__[0]


def test_an_error_inside_a_generator_of_outputs_stays_as_it_is() -> None:
    def outputs() -> Iterator[int]:
        yield 1
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine"):
        run(lambda key, value, state: (1, outputs()), [("a", 1)])


@pytest.mark.parametrize(
    "state", [object(), lambda: 1, iter([]), [1, {2: print}]], ids=["object", "lambda", "iterator", "deep inside"]
)
def test_a_state_that_cannot_travel_is_refused_on_the_first_key_even_by_a_single_worker(state: Any) -> None:
    with pytest.raises(CannotTravel, match="mine: the state of key 'a' cannot be encoded: "):
        run(lambda key, value, held: (state, []), [("a", 1)], name="mine")


def test_a_second_type_of_state_is_tried_as_well() -> None:
    with pytest.raises(CannotTravel, match=r"key 'b'.*object"):
        run(lambda key, value, held: (value, []), [("a", 1), ("b", object())])


def test_states_of_the_usual_containers_travel() -> None:
    def fold(key: str, value: Any, state: Any) -> tuple[Any, list[Any]]:
        return state or value, [state]

    for value in [Counter("aab"), defaultdict(list, a=[1]), deque([1, 2], 5), {1, 2}, (1, 2), 2.5, b"b"]:
        feeds = {0: [(0, (KEY, value)), (2, (KEY, value)), (4, (KEY, value))]}
        outputs = EngineCluster(1, 2).run(machine(fold, bins=BINS), feeds, [(1, Move(0, 1)), (3, Move(0, 0))])
        assert [(type(state), state) for _, state in outputs[1:]] == [(type(value), value)] * 2


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("value", ["text", None, 2.5], ids=repr)
def test_a_hash_that_gives_no_int_is_named(workers: int, value: Any) -> None:
    with pytest.raises(UsageError, match=r"hash\('a'\) gave .* of type .*; it must give an int"):
        run(count, [("a", 1)], workers, hash=lambda key: value)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_key_without_a_stable_hash_is_named(workers: int) -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            return self is other

        __hash__ = object.__hash__

    with pytest.raises(UsageError, match=r"Odd has no stable hash; use a str.* or pass hash="):
        run(count, [(Odd(), 1)], workers)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_poor_hash_still_spreads_small_numbers_over_the_bins(workers: int) -> None:
    owners = set()

    def build(worker: Any, records: Any, commands: Any) -> Any:
        def fold(key: int, value: int, state: Any) -> Any:
            owners.add(worker.index)
            return 1, []

        return records.stateful_state_machine(fold, hash=lambda key: key, control=commands)

    EngineCluster(1, workers).run(build, {0: [(0, (key, 0)) for key in range(50)]})
    assert owners == set(range(workers))


@pytest.mark.parametrize("bins", [0, 3, 255, -4, 1 << 21, 2.0, "4", True, None], ids=repr)
def test_a_number_of_bins_that_is_no_power_of_two_is_refused(bins: Any) -> None:
    with pytest.raises(BuildError, match=r"bins=.*must be a power of two from 1 to 1048576"):
        run(count, [], bins=bins)


def test_a_single_bin_moves_as_others_do() -> None:
    feeds = {worker: [(time, (word, 0)) for time in range(6) for word in "abc"] for worker in range(2)}
    commands = [(time, Move(0, time % 2)) for time in range(6)]
    outputs = EngineCluster(4, 2).run(machine(count, bins=1), feeds, commands)
    assert Counter(total for _, (_, total) in outputs) == dict.fromkeys(range(1, 13), 3)


def test_what_holds_output_back_downstream_does_not_hold_moves_back() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        def keep_capabilities(capability: Any, info: Any) -> Any:
            capability.release()
            held = []

            def logic(source: Any, output: Any) -> None:
                for time, data in source:
                    held.append((time.retain(), data))
                if source.frontier.is_empty():
                    for capability, data in held:
                        with capability, output.session(capability) as session:
                            session.give_iterator(data)
                    held.clear()

            return logic

        counted = records.stateful_state_machine(count, control=commands, bins=BINS)
        return counted.unary_frontier(Exchange(lambda output: stable_hash(output[0])), "Keep", keep_capabilities)

    hands = ByHand(build, 2)
    hands.records[0].send((KEY, 1))
    hands.command(3, Move(0, 1))
    hands.advance_to(4)
    hands.settle()
    assert hands.owned() == [[2], [0, 1, 3]] and all(probe.less_equal(0) for probe in hands.probes)
    hands.finish()
    assert hands.outputs == [(0, (KEY, 1))] and bin_of(stable_hash(KEY), 2) == 0
