"""A fold sees a key's records of one closed time together, and its timers once, at the owner of their time."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from megaflow import Map, Move
from megaflow.errors import BuildError, CannotTravel, ProgramError
from megaflow.scope import Scope
from megaflow.testing import EngineCluster
from megaflow.timely.communication.channel import Lane
from tests.simulation.by_hand import ByHand, key_of, keys_of

BINS = 4  # with two workers bins 0 and 2 are worker 0's, with three bins 0 and 3
KEY = key_of(0, BINS)


class Calls:
    """A stateful operator that emits its calls. A value that is a list of (time, payload) sets timers."""

    def __init__(self, bins: int = BINS) -> None:
        self.bins = bins
        self.seen: list[tuple[int, int, Any]] = []  # (time, worker, records) in order
        self.build = self.unary

    def unary(self, worker: Any, records: Any, commands: Any) -> Any:
        """Count records and payloads in the state."""

        def fold(key: Any, time: int, records: list[Any], state: int | None, timers: Any) -> Any:
            self.seen.append((time, worker.index, list(records)))
            self.set_timers(records, timers)
            state = (state or 0) + len(records)
            return (None if "forget" in records else state), [(key, time, tuple(map(str, records)), state)]

        return records.stateful_unary(fold, control=commands, bins=self.bins, name="calls")

    def binary(self, worker: Any, records: Any, commands: Any) -> Any:
        """Values ("left", x) and ("right", x)."""

        def side(name: str) -> Any:
            mine = records.filter(lambda record: record[1][0] == name)
            return mine.map(lambda record: (record[0], record[1][1]))

        def fold(key: Any, time: int, left: list[Any], right: list[Any], state: int | None, timers: Any) -> Any:
            self.seen.append((time, worker.index, [list(left), list(right)]))
            self.set_timers([*left, *right], timers)
            state = (state or 0) + len(left) + 100 * len(right)
            return state, [(key, time, tuple(map(str, left)), tuple(map(str, right)), state)]

        return side("left").stateful_binary(side("right"), fold, control=commands, bins=self.bins, name="calls")

    def set_timers(self, records: list[Any], timers: Any) -> None:
        for record in records:
            for time, payload in record if isinstance(record, list) else ():
                timers.at(time, payload)

    def where(self) -> list[tuple[int, int]]:
        """Return (time, worker) of each call."""
        return [(time, worker) for time, worker, _ in self.seen]


def started(workers: int = 2) -> tuple[Calls, ByHand]:
    calls = Calls()
    return calls, ByHand(calls.build, workers)


def run(fold: Any, records: list[Any], workers: int = 1, **options: Any) -> list[Any]:
    """Return the outputs of stateful_unary fed at times 0, 1, …"""

    def build(worker: Any, records: Any, commands: Any) -> Any:
        return records.stateful_unary(fold, control=commands, **options)

    return EngineCluster(3, workers).run(build, {0: list(enumerate(records))})


def held(hands: ByHand, worker: int) -> list[Any]:
    """Return the times of the capabilities that S holds on a worker."""
    (graph,) = hands.workers[worker].graphs()
    stateful = [location for node in graph.nodes if node.name == "calls" for location in node.sources]
    held = graph.progress.caster.capabilities()
    return [time for (location, time), count in held if count > 0 and location in stateful]


# Once for each key and closed time -------------------------------------------------------------


def test_the_fold_is_called_once_for_each_key_and_time_with_its_values_in_the_order_of_arrival() -> None:
    calls, hands = started(1)
    for value in (1, 2):
        hands.records[0].send((KEY, value))
        hands.records[0].send(("b", value * 10))
        hands.records[0].flush()
        hands.settle()
    hands.advance_to(1)
    hands.records[0].send((KEY, 3))
    hands.finish()
    assert calls.seen == [(0, 0, [1, 2]), (0, 0, [10, 20]), (1, 0, [3])]
    assert hands.outputs[-1] == (1, (KEY, 1, ("3",), 3))


def test_nothing_is_applied_before_its_time_is_closed_on_every_worker() -> None:
    calls, hands = started()
    hands.commands.advance_to(9)
    hands.records[0].send((KEY, 1))
    hands.records[0].advance_to(5)
    hands.settle()
    assert calls.seen == [], "worker 1 may still send at time 0"
    waiting = [worker.stateful[0] for worker in hands.workers]
    assert sum(view.waiting for view in waiting) == 1
    hands.records[1].send((KEY, 2))
    hands.records[1].advance_to(1)
    hands.settle()
    [(time, worker, values)] = calls.seen
    assert (time, worker, sorted(values)) == (0, 0, [1, 2])
    hands.finish()
    assert [view.waiting for view in waiting] == [0, 0]


def test_a_backlog_of_times_is_applied_in_order_and_comes_out_with_each_its_own_time() -> None:
    _, hands = started()
    for time in (3, 4, 5):
        hands.records[1].advance_to(time)
        hands.records[1].send((KEY, time))
    hands.records[1].flush()
    hands.settle()
    assert hands.outputs == []
    hands.finish()
    assert hands.outputs == [(time, (KEY, time, (str(time),), time - 2)) for time in (3, 4, 5)]


def test_a_key_has_the_state_none_at_first_and_none_forgets_it() -> None:
    states = []

    def fold(key: str, time: int, records: list[Any], state: Any, timers: Any) -> Any:
        states.append((key, state))
        return records[0], []

    run(fold, [("a", 1), ("a", None), ("a", None), ("a", 0), ("a", 2), ("b", 3)])
    assert states == [("a", None), ("a", 1), ("a", None), ("a", None), ("a", 0), ("b", None)]


def test_equal_keys_of_different_types_are_one_key() -> None:
    calls = Calls()
    EngineCluster(1, 2).run(calls.build, {0: [(0, (1, "a")), (0, (1.0, "b")), (0, (True, "c"))]})
    assert [records for _, _, records in calls.seen] == [["a", "b", "c"]]


def test_the_list_of_records_is_the_folds_own() -> None:
    kept: list[list[Any]] = []

    def fold(key: str, time: int, records: list[Any], state: Any, timers: Any) -> Any:
        kept.append(records)
        if time < 3:
            timers.at(time + 1, "due")
        records.append("mine")
        return None, [(key, len(records))]

    outputs = run(fold, [("a", 0), ("a", 1)])
    assert kept == [[0, "mine"], ["due", 1, "mine"], ["due", "mine"], ["due", "mine"]]
    assert [length for _, (_, length) in outputs] == [2, 3, 2, 2]


# Timers ---------------------------------------------------------------------------------------


def test_payloads_come_before_the_records_of_their_time_in_the_order_in_which_they_were_set() -> None:
    calls, hands = started(1)
    hands.records[0].send((KEY, [(5, "first"), (5, "second")]))
    hands.advance_to(2)
    hands.records[0].send((KEY, [(5, "third")]))
    hands.advance_to(5)
    hands.records[0].send((KEY, "record"))
    hands.finish()
    assert calls.seen[-1] == (5, 0, ["first", "second", "third", "record"])


def test_a_key_without_records_is_called_when_a_timer_is_due_and_again_when_that_sets_one() -> None:
    calls, hands = started(1)
    hands.records[0].send((KEY, [(5, [(6, [(9, "end")])])]))
    hands.finish()
    assert calls.where() == [(0, 0), (5, 0), (6, 0), (9, 0)]
    assert [time for time, _ in hands.outputs] == [0, 5, 6, 9]


def test_a_timer_outlives_the_state_of_its_key() -> None:
    calls, hands = started()
    hands.records[0].send_batch([(KEY, [(5, "due")]), (KEY, "forget")])
    hands.command(3, Move(0, 1))
    hands.finish()
    assert calls.seen[-1] == (5, 1, ["due"]) and hands.outputs[-1][1][3] == 1, "with no state"


def test_a_timer_set_in_the_generator_of_outputs_counts() -> None:
    def outputs(timers: Any, time: int) -> Iterator[int]:
        if time < 3:
            timers.at(time + 1, "again")
        yield time

    assert run(lambda key, time, records, state, timers: (None, outputs(timers, time)), [("a", 0)]) == [
        (time, time) for time in range(4)
    ]


def test_timers_that_are_left_at_the_end_are_due_in_the_order_of_their_times() -> None:
    calls, hands = started()
    keys = [key_of(bin, BINS) for bin in range(BINS)]
    hands.records[0].send_batch([(key, [(time, time)]) for key, time in zip(keys, (900, 30, 70, 5))])
    hands.finish()
    assert [entry for entry in calls.where() if entry[0] and entry[1] == 0] == [(70, 0), (900, 0)]
    assert [entry for entry in calls.where() if entry[0] and entry[1] == 1] == [(5, 1), (30, 1)]


def test_a_fold_that_sets_a_timer_whenever_one_is_due_leaves_other_operators_their_turn() -> None:
    times: list[int] = []

    def build(worker: Any, records: Any, commands: Any) -> Any:
        def fold(key: Any, time: int, records: list[Any], state: Any, timers: Any) -> Any:
            if time < 100_000:
                timers.at(time + 1, None)
            return None, [time]

        endless = records.stateful_unary(fold, control=commands, bins=BINS)
        return endless.inspect(times.append)

    hands = ByHand(build, 1)
    hands.records[0].send((KEY, 0))
    for handle in [*hands.records, *hands.controls]:
        handle.close()
    for _ in range(20):
        hands.workers[0].step()
    assert 100 < len(times) < 20 * 100 and hands.workers[0].has_work()


@pytest.mark.parametrize("later", [0, -1, 1.5])
def test_a_timer_that_is_not_later_stops_the_job_with_the_key_and_what_to_do(later: float) -> None:
    def fold(key: str, time: int, records: list[Any], state: Any, timers: Any) -> Any:
        timers.at(time + later, "now")
        return None, []

    with pytest.raises(ProgramError, match=r"mine: timers.at\(.*for key 'b', at time 1: .*timers.at\(2, …\)"):
        run(lambda *given: fold(*given) if given[0] == "b" else (None, []), [("a", 0), ("b", 0)], name="mine")


def test_timers_that_are_kept_cannot_be_set_when_the_fold_has_returned() -> None:
    kept: list[Any] = []

    def build(worker: Any, records: Any, commands: Any) -> Any:
        def fold(key: str, time: int, records: list[Any], state: Any, timers: Any) -> Any:
            kept.append(timers)
            return None, [key]

        return records.stateful_unary(fold, name="mine").inspect(lambda key: kept[0].at(9, "late"))

    with pytest.raises(ProgramError, match=r"mine: timers.at\(9, …\) was called after the fold returned"):
        EngineCluster(1, 1).run(build, {0: [(0, ("a", 1))]})


# Capabilities -----------------------------------------------------------------------------------


def test_a_timer_holds_the_outputs_at_its_own_time_and_not_at_that_of_the_fold_that_set_it() -> None:
    _, hands = started()
    hands.commands.close()
    hands.records[0].send((KEY, [(50, "due")]))
    hands.records[0].advance_to(60)
    hands.records[1].advance_to(40)
    hands.settle()
    assert not any(probe.less_than(40) for probe in hands.probes)
    hands.records[1].advance_to(60)
    hands.settle()
    assert not any(probe.less_than(60) for probe in hands.probes) and hands.outputs[-1][0] == 50
    hands.finish()


def test_a_worker_holds_one_capability_however_many_timers_and_times_wait() -> None:
    _, hands = started()
    hands.commands.close()
    keys = keys_of(0, BINS, 50)
    hands.records[0].send_batch([(key, [(time, time) for time in range(10, 60)]) for key in keys])
    hands.records[0].advance_to(5)
    hands.records[1].advance_to(1)
    for time in (5, 6, 7):
        hands.records[0].advance_to(time)
        hands.records[0].send((KEY, time))
    hands.settle()
    assert (held(hands, 0), held(hands, 1)) == ([5], [])
    hands.advance_to(8)
    hands.settle()
    assert held(hands, 0) == [10]
    hands.advance_to(59)
    hands.settle()
    assert held(hands, 0) == [59]
    hands.finish()


def test_what_was_held_for_the_timers_of_a_bin_is_let_go_when_the_bin_leaves() -> None:
    _, hands = started()
    hands.records[0].send((KEY, [(50, "far")]))
    hands.records[0].send((key_of(2, BINS), [(70, "farther")]))
    hands.command(5, Move(0, 1))
    hands.commands.advance_to(90)
    hands.advance_to(6)
    hands.settle()
    assert (held(hands, 0), held(hands, 1)) == ([70], [50])
    hands.commands.send(Map((1, 1, 1, 1)))
    hands.commands.close()
    hands.advance_to(65)
    hands.settle()
    assert (held(hands, 0), held(hands, 1)) == ([70], []), "the second move is still to come"
    hands.advance_to(90)
    hands.settle()
    assert (held(hands, 0), held(hands, 1)) == ([], [])
    hands.finish()


def test_work_is_by_what_is_due_whatever_the_number_of_bins() -> None:
    lines = Counter[int]()
    for bins in (4, 1 << 14):
        calls = Calls(bins)
        hands = ByHand(calls.build, 1)
        hands.commands.close()
        hands.records[0].send_batch([(key_of(bin, BINS), [(20, bin)]) for bin in range(3)])
        hands.advance_to(1)
        hands.settle()

        def count(frame: FrameType, event: str, argument: Any, bins: int = bins) -> Any:
            if "megaflow" not in frame.f_code.co_filename:
                return None
            lines[bins] += 1
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            hands.advance_to(10)
            hands.settle()  # nothing is due
            hands.records[0].send((key_of(3, BINS), 1))
            hands.advance_to(30)
            hands.settle()
        finally:
            sys.settrace(before)
        assert len(calls.seen) == 7
        hands.finish()
    assert lines[4] == lines[1 << 14] > 100


# Timers and moves -----------------------------------------------------------------------------


def test_a_timer_for_the_time_of_a_move_is_due_at_the_new_owner_and_one_before_at_the_old() -> None:
    calls, hands = started()
    hands.records[0].send((KEY, [(9, "before"), (10, "at"), (11, "after")]))
    hands.command(10, Move(0, 1))
    hands.finish()
    assert calls.seen[1:] == [(9, 0, ["before"]), (10, 1, ["at"]), (11, 1, ["after"])]


@pytest.mark.parametrize("seed", range(25))
def test_a_timer_is_due_once_at_the_owner_of_its_time_however_often_its_bin_has_moved(seed: int) -> None:
    calls = Calls()
    commands = [(10, Move(0, 1)), (20, Move(0, 0)), (30, Move(0, 2)), (40, Move(0, 0)), (40, Move(3, 1))]
    outputs = EngineCluster(seed, 3).run(
        calls.build, {1: [(5, (KEY, [(100, "far"), (25, "at home")]))], 2: [(100, (KEY, "record"))]}, commands
    )
    assert calls.where() == [(5, 0), (25, 0), (100, 0)]
    assert calls.seen[-1][2] == ["far", "record"] and outputs[-1] == (100, (KEY, 100, ("far", "record"), 4))


def test_a_bin_that_comes_home_brings_its_timers_back_and_is_called_once_for_each() -> None:
    calls, hands = started()
    hands.records[0].send((KEY, [(time, time) for time in (4, 6, 8)]))
    hands.command(5, Move(0, 1))
    hands.command(7, Move(0, 0))
    hands.advance_to(7)
    hands.records[1].send((KEY, [(8, "too")]))
    hands.finish()
    assert calls.seen[1:] == [(4, 0, [4]), (6, 1, [6]), (7, 0, [[(8, "too")]]), (8, 0, [8, "too"])]


def test_records_that_wait_for_a_bin_to_come_home_stay_where_they_are_when_it_leaves_before() -> None:
    calls, hands = started()
    hands.command(5, Move(0, 1))
    hands.command(7, Move(0, 0))
    for time in (4, 6, 8):
        hands.records[1].advance_to(time)
        hands.records[1].send((KEY, time))
    hands.records[1].flush()
    hands.settle()
    assert calls.seen == [] and held(hands, 0) == [4]
    hands.finish()
    assert calls.seen == [(4, 0, [4]), (6, 1, [6]), (8, 0, [8])]


def test_a_bin_with_timers_and_no_state_moves_and_none_is_called_before_it_is_in() -> None:
    calls, hands = started()
    hands.records[0].send_batch([(KEY, [(6, "due")]), (KEY, "forget")])
    hands.command(5, Move(0, 1))
    hands.advance_to(5)
    hands.held = [Lane.STATE]
    hands.records[1].send((KEY, "at"))
    hands.advance_to(9)
    hands.commands.advance_to(9)
    hands.settle()
    assert hands.owned() == [[2], [1, 3]] and calls.where() == [(0, 0)]
    hands.finish()
    assert calls.seen[1:] == [(5, 1, ["at"]), (6, 1, ["due"])]
    (row,) = hands.workers[1].stateful[0].take_ledger()
    assert row.keys == 0 and row.bytes > 0


def test_a_bin_larger_than_a_chunk_by_its_timers_travels_in_several_and_the_order_of_payloads_stays() -> None:
    calls, hands = started()
    payloads = [f"{number}".rjust(20_000) for number in range(200)]
    hands.records[0].send((KEY, [(9, payload) for payload in payloads]))
    hands.command(5, Move(0, 1))
    hands.finish()
    parcels = [batch for source, _, lane, _, batch in hands.delivered if (source, lane) == (0, Lane.STATE)]
    sent = [chunk for parcel in parcels for chunk in parcel]
    assert len(sent) > 2 and max(chunk.size for chunk in sent) < 1_300_000
    assert calls.seen[-1] == (9, 1, payloads)


@pytest.mark.parametrize("seed", range(10))
def test_windows_that_are_opened_and_closed_by_timers_come_to_nothing_however_bins_move(seed: int) -> None:
    """Like NEXMark's Q5: each record counts from the next time on, for the length of a window."""
    window, low = 12, []

    def build(worker: Any, records: Any, commands: Any) -> Any:
        def fold(key: Any, time: int, records: list[Any], count: int | None, timers: Any) -> Any:
            count = count or 0
            for record in records:
                if record == "bid":
                    timers.at(time + 1, 1)
                    timers.at(time + 1 + window, -1)
                else:
                    count += record
            low.append(count)
            return count or None, [(key, count)]

        return records.stateful_unary(fold, control=commands, bins=BINS)

    feeds = {worker: [(time, (f"item{time % 5}", "bid")) for time in range(2 * window)] for worker in range(3)}
    commands = [(time, Move(bin, (time + bin) % 3)) for time in range(3 * window + 2) for bin in range(BINS)]
    cluster = EngineCluster(seed, 3, monitor=False)
    outputs = cluster.run(build, feeds, commands)
    assert min(low) == 0 and max(low) > 3
    last = {key: count for _, (key, count) in sorted(outputs)}
    assert last == {f"item{number}": 0 for number in range(5)}
    assert all(view.keys() == 0 for worker in cluster.workers for view in worker.stateful)


# Two inputs -------------------------------------------------------------------------------------


def test_both_inputs_of_a_key_and_time_come_together_and_payloads_in_the_left_one() -> None:
    calls = Calls()
    hands = ByHand(calls.binary, 2)
    hands.records[0].send_batch([(KEY, ("right", 1)), (KEY, ("left", [(5, "due")])), (KEY, ("right", 2))])
    hands.advance_to(5)
    hands.records[1].send_batch([(KEY, ("left", 3)), (KEY, ("right", 4))])
    hands.finish()
    assert calls.seen == [(0, 0, [[[(5, "due")]], [1, 2]]), (5, 0, [["due", 3], [4]])]
    assert hands.outputs[-1] == (5, (KEY, 5, ("due", "3"), ("4",), 201 + 102))


def two_inputs(calls: Calls) -> Callable[..., Any]:
    """A binary operator whose right input is behind: another operator holds it back until its time is closed."""

    def build(worker: Any, records: Any, commands: Any) -> Any:
        handle, late = worker_scope(records).new_input()
        lates.append(handle)

        def fold(key: Any, time: int, left: list[Any], right: list[Any], state: int | None, timers: Any) -> Any:
            calls.seen.append((time, worker.index, [left, right]))
            return (state or 0) + len(left) + len(right), [(key, time, len(left), len(right), state)]

        return records.stateful_binary(late, fold, control=commands, bins=BINS, name="calls")

    lates: list[Any] = []
    build.lates = lates  # type: ignore[attr-defined]
    return build


def worker_scope(stream: Any) -> Any:
    """Return the scope of a stream."""
    return Scope(stream.port.scope)


def test_a_bin_with_the_state_of_one_input_alone_moves_once_for_both_however_far_apart_they_are() -> None:
    calls = Calls()
    build: Any = two_inputs(calls)
    hands = ByHand(build, 2)
    hands.records[0].send((KEY, "early"))
    hands.command(5, Move(0, 1))
    hands.advance_to(9)
    hands.commands.advance_to(9)
    hands.settle()
    assert calls.seen == [] and hands.owned() == [[0, 2], [1, 3]], "the right input may still bring something for 0"
    for late in build.lates:
        late.advance_to(5)
    hands.settle()
    assert calls.where() == [(0, 0)] and hands.owned() == [[2], [0, 1, 3]]
    build.lates[0].send((KEY, "late"))
    for late in build.lates:
        late.close()
    hands.finish()
    assert calls.where() == [(0, 0), (5, 1)] and hands.outputs[-1] == (5, (KEY, 5, 0, 1, 1))
    assert hands.moved() == [(5, 0, 0, 1)], "one store, one shipment"


def test_one_input_that_has_ended_does_not_keep_the_other_waiting() -> None:
    calls = Calls()
    build: Any = two_inputs(calls)
    hands = ByHand(build, 2)
    for late in build.lates:
        late.close()
    hands.commands.close()
    hands.records[1].send((KEY, 1))
    hands.advance_to(1)
    hands.settle()
    assert calls.where() == [(0, 0)]
    hands.finish()


# Effects on the rest of the worker ----------------------------------------------------------------


def test_the_view_tells_bins_keys_and_records_and_operators_that_share_a_control_need_the_same_bins() -> None:
    _, hands = started()
    hands.commands.close()
    hands.records[1].send_batch([(KEY, 1), (KEY, 2), (key_of(1, BINS), [(9, 9)])])
    hands.finish()
    views = [worker.stateful[0] for worker in hands.workers]
    assert [view.records for view in views] == [2, 1] and [view.keys() for view in views] == [1, 1]
    assert [view.name for view in views] == ["calls"] * 2 and views[0].table() == (0, 1, 0, 1)

    def build(worker: Any, records: Any, commands: Any) -> Any:
        Calls(8).unary(worker, records, commands)
        return records.distribute(lambda record: 1, control=commands, bins=16)

    with pytest.raises(BuildError, match=r"bins=16, but another stateful operator .* bins=8"):
        EngineCluster(1, 1).run(build, {})


# Errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fold", "words"),
    [
        (lambda key, time, records, state, timers: None, r"must return \(new state, outputs\).*instead: cannot unpack"),
        (lambda key, time, records, state, timers: (1, 2, 3), r"must return \(new state, outputs\).*too many values"),
        (lambda key, time, records, state, timers: (1, None), r"'NoneType' object is not iterable"),
        (lambda key, value, state: (1, []), r"called as fold\(key, time, records, state, timers\).*3 positional"),
    ],
    ids=["None", "three", "outputs that are none", "three arguments"],
)
def test_a_fold_that_does_not_give_state_and_outputs_is_told_so(fold: Any, words: str) -> None:
    with pytest.raises(ProgramError, match=words) as failure:
        run(fold, [("a", 1)], name="mine")
    assert str(failure.value).startswith("mine: the fold is called as")


def test_a_binary_fold_with_the_arguments_of_a_unary_one_is_told_so() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        return records.stateful_binary(records, lambda key, time, records, state, timers: (None, []))

    with pytest.raises(ProgramError, match=r"called as fold\(key, time, left, right, state, timers\)"):
        EngineCluster(1, 1).run(build, {0: [(0, ("a", 1))]})


@pytest.mark.parametrize("error", [TypeError("mine"), ValueError("mine"), KeyError("mine")], ids=repr)
def test_an_error_inside_the_fold_stays_as_it_is_with_time_and_key_in_its_note(error: Exception) -> None:
    def fold(key: str, time: int, records: list[Any], state: Any, timers: Any) -> Any:
        raise error

    with pytest.raises(type(error)) as failure:
        run(fold, [("a", 41)], name="mine")
    assert failure.value is error
    assert failure.value.__notes__[0].startswith("in operator 'mine' (") and failure.value.__notes__[0].endswith(
        "worker 0, time 0, key 'a'"
    )


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("record", "words"),
    [
        (5, r"mine: records must be \(key, value\) pairs, but one is 5, a int"),
        ((1, 2, 3), r"pairs, but one is \(1, 2, 3\), a tuple"),
        ((["a"], 1), r"mine: the key \['a'\] is a list, which cannot be a key"),
    ],
    ids=repr,
)
def test_a_record_that_is_no_pair_and_a_key_that_cannot_be_one_are_named(
    workers: int, record: Any, words: str
) -> None:
    with pytest.raises(ProgramError, match=words):
        run(lambda *given: (None, []), [record], workers, name="mine")


def test_what_cannot_travel_is_refused_at_once_be_it_a_state_or_the_payload_of_a_timer() -> None:
    with pytest.raises(CannotTravel, match="mine: the state of key 'a' cannot be encoded: "):
        run(lambda *given: (object(), []), [("a", 1)], name="mine")

    def fold(key: str, time: int, records: list[Any], state: Any, timers: Any) -> Any:
        if time == 0:
            timers.at(time + 1, print)
        return None, []

    with pytest.raises(CannotTravel, match="mine: a timer's payload for key 'a' cannot be encoded: "):
        run(fold, [("a", 1)], name="mine")
