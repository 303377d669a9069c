"""Event timers fire once, at the close of the first epoch whose watermark reaches them, wherever their bin is then."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from math import inf, nan
from operator import itemgetter
from typing import Any

import pytest

from megaflow import EventStream, Map, Move
from megaflow.errors import CannotTravel, ProgramError
from megaflow.megaphone.base.event_timers import AFTER, CLOCK, EVENT, EventTimers
from megaflow.megaphone.base.event_unit import INFINITE, NEVER, EventUnit
from megaflow.megaphone.base.routing import Clock, Watermark
from megaflow.megaphone.base.stream_unit import StreamUnit
from megaflow.megaphone.base.timers import NestedTimers, Timers
from megaflow.testing import EngineCluster, Join, SimulatedCluster
from megaflow.timely.communication.channel import Lane
from megaflow.timely.order import Product
from tests.simulation.by_hand import ByHand, key_of

BINS = 4  # with two workers bins 0 and 2 are worker 0's
KEY = key_of(0, BINS)
SECOND = 1_000_000


# Waiting timers -----------------------------------------------------------------------------------


def test_a_timer_waits_in_its_line_until_watermark_or_clock_have_reached_it() -> None:
    timers = EventTimers()
    assert timers.set_event(5, 0, "a", "event") == ((EVENT, 5), "a", "event")
    assert timers.set_after(1, 7, 0, "a", "clock") is None and timers.wants_clock
    assert timers.of(0) == [((EVENT, 5), "a", "event"), ((AFTER, 7), "a", "clock")]
    timers.read(2, Clock(100))
    timers.read(3, Watermark(5))
    assert timers.close(1) == [] and not timers.is_due() and timers.clock == NEVER
    assert timers.close(2) == [(0, ((CLOCK, 107), "a", "clock"))] and not timers.is_due()
    timers.close(3)
    assert timers.is_due() and timers.pop() == {"a": ["event"]} and not timers.is_due()
    timers.read(4, Clock(107))
    timers.close(4)
    assert timers.pop() == {"a": ["clock"]} and not timers.wants_clock


def test_a_count_that_is_set_while_its_time_is_closed_begins_with_the_clock_of_that_time() -> None:
    timers = EventTimers()
    timers.read(2, Clock(100))
    timers.close(2)
    assert timers.set_after(2, 7, 0, "a", None) == ((CLOCK, 107), "a", None)
    assert timers.set_after(3, 7, 0, "a", None) is None


def test_watermark_and_clock_never_fall_and_the_infinite_watermark_makes_the_clock_infinite() -> None:
    timers = EventTimers()
    for micros in (5, 3):
        timers.read(1, Watermark(micros))
        timers.read(2, Clock(micros))
    timers.close(1)
    timers.close(2)
    assert (timers.watermark, timers.clock) == (5, 5)
    timers.read(3, Watermark(INFINITE))
    timers.close(3)
    assert (timers.watermark, timers.clock) == (INFINITE, INFINITE)


def test_at_the_end_counts_begin_in_the_order_of_how_long_they_are_as_who_recovers_has_them() -> None:
    timers = EventTimers()
    for micros in (30, 10, 20, 10):
        timers.set_after(1, micros, 0, "a", micros)
    recovered = EventTimers()
    recovered.install(0, sorted(timers.of(0), key=lambda timer: timer[0]))
    fired = []
    for each in (timers, recovered):
        each.read(2, Watermark(INFINITE))
        each.close(2)
        fired.append(each.pop())
    assert fired[0] == fired[1] and fired[0]["a"] == [10, 10, 20, 30]


def test_a_key_fires_its_least_timestamp_first_then_the_next() -> None:
    timers = EventTimers()
    for payload, micros in (("c", 7), ("a", 3), ("d", 7), ("b", 3)):
        timers.set_event(micros, 0, "k", payload)
    timers.set_event(5, 1, "other", "e")
    timers.read(1, Watermark(9))
    timers.close(1)
    timers.is_firing = True
    assert timers.pop() == {"k": ["a", "b"], "other": ["e"]}
    timers.set_event(4, 0, "k", "set meanwhile")
    timers.set_event(10, 0, "k", "is not due")
    found = [timers.pop() for _ in range(2)]
    assert found == [{"k": ["set meanwhile"]}, {"k": ["c", "d"]}] and not timers.is_due()


def test_the_last_timers_of_a_key_fire_up_to_its_greatest() -> None:
    timers = EventTimers()
    timers.set_event(5, 0, "k", 5)
    timers.set_event(2, 0, "k", 2)
    timers.set_event(1, 1, "other", 1)
    timers.read(1, Watermark(1))
    timers.close(1)
    assert timers.pop() == {"other": [1]}
    timers.read(2, Watermark(INFINITE))
    timers.set_event(0, 1, "other", 0)
    timers.close(2)
    timers.is_firing = True
    assert timers.pop() == {"k": [2], "other": [0]}
    assert timers.set_event(5, 0, "k", "fires") and timers.set_event(6, 0, "k", "is dropped") is None
    assert timers.set_event(1, 1, "other", "fires") and timers.set_event(2, 1, "other", "is dropped") is None
    assert timers.set_after(2, 0, 0, "k", "is dropped") is None and timers.dropped == 3
    assert timers.pop() == {"k": [5, "fires"], "other": ["fires"]} and not timers.is_due()


def test_a_bin_tells_its_new_owner_the_watermark_before_its_time_and_what_comes_at_it() -> None:
    source, target = EventTimers(), EventTimers()
    assert source.heard(1) == ()
    for time, micros in enumerate((10, 20, 30), 1):
        source.read(time, Watermark(micros))
    source.close(1)
    assert source.heard(2) == (10, NEVER, NEVER, 20, NEVER, False)
    assert target.hear(2, source.heard(2)) and target.watermark == 10
    target.close(2)
    assert target.watermark == 20 and not target.hear(4, (20, NEVER, NEVER, NEVER, NEVER, False))
    source.read(5, Watermark(INFINITE, 30, by_stop=True))
    target.hear(5, source.heard(5))
    assert target.by_stop, "and whether a stop closes all"


def test_the_timers_of_a_bin_leave_and_come_in_order() -> None:
    source, target = EventTimers(), EventTimers()
    for payload, micros in enumerate((7, 3, 7, 3)):
        source.set_event(micros, 1, "a", payload)
    source.set_event(1, 2, "b", "stays")
    source.set_after(0, 5, 1, "a", "unbegun")
    taken = source.take(1)
    assert [timer[2] for timer in taken] == [1, 3, 0, 2, "unbegun"] and source.of(1) == []
    assert source.of(2) == [((EVENT, 1), "b", "stays")]
    target.install(1, taken)
    target.read(0, Watermark(9))
    target.close(0)
    assert [target.pop(), target.pop()] == [{"a": [1, 3]}, {"a": [0, 2]}]
    assert target.unbegun() == [(1, ((AFTER, 5), "a", "unbegun"))]


# The handle ------------------------------------------------------------------------------------


class Alarms:
    """Receives a fold's timers, in tests."""

    def __init__(self) -> None:
        self.set: list[Any] = []
        self.watermark = NEVER

    def set_timer(self, time: Any, key: Any, payload: Any) -> None:
        self.set.append((time, key, payload))

    def set_event(self, micros: int, key: Any, payload: Any) -> None:
        self.set.append(("event", micros, key, payload))

    def set_after(self, micros: int, key: Any, payload: Any) -> None:
        self.set.append(("after", micros, key, payload))


def handle(unit: EventUnit = EventUnit.SECONDS) -> tuple[Timers, Alarms]:
    alarms = Alarms()
    timers = Timers("mine", alarms, unit)
    timers.key, timers.time = "a", 7
    return timers, alarms


def test_timestamps_are_in_the_unit_of_the_stream_and_lengths_in_seconds() -> None:
    timers, alarms = handle(EventUnit.MILLISECONDS)
    timers.at_event(1.5, "x")
    timers.after(1.5, "y")
    timers.after(timedelta(minutes=1), "z")
    assert alarms.set == [("event", 1500, "a", "x"), ("after", 1_500_000, "a", "y"), ("after", 60_000_000, "a", "z")]
    timers, alarms = handle(EventUnit.DATETIME)
    timers.at_event(datetime(1970, 1, 1, tzinfo=UTC), "x")
    assert alarms.set == [("event", 0, "a", "x")]


def test_the_watermark_is_none_at_first_and_infinite_at_last() -> None:
    timers, alarms = handle()
    seen = [timers.watermark]
    for alarms.watermark in (-SECOND, 2_500_000, INFINITE):
        seen.append(timers.watermark)
    assert seen == [None, -1, 2.5, inf]


@pytest.mark.parametrize("timestamp", [None, nan, "8", True, 1e300, datetime(2024, 1, 1, tzinfo=UTC)], ids=repr)
def test_what_is_no_time_is_refused_with_operator_key_and_value(timestamp: Any) -> None:
    timers, alarms = handle()
    with pytest.raises(ProgramError, match=r"^mine: timers.at_event\(.*\) for key 'a': "):
        timers.at_event(timestamp, "payload")
    assert not alarms.set


@pytest.mark.parametrize("seconds", [-1, nan, inf, None, "8", True, 1e12, timedelta(-1)], ids=repr)
def test_what_is_no_length_of_time_is_refused_with_operator_key_and_value(seconds: Any) -> None:
    timers, alarms = handle()
    with pytest.raises(ProgramError, match=r"^mine: timers.after\(.*\) for key 'a': give a number of seconds"):
        timers.after(seconds, "payload")
    assert not alarms.set


@pytest.mark.parametrize("verb", ["at_event", "after"])
def test_a_handle_that_was_kept_sets_nothing_and_one_in_a_loop_neither(verb: str) -> None:
    timers, alarms = handle()
    timers.time = None
    with pytest.raises(ProgramError, match=rf"mine: timers.{verb}\(9, …\) was called after the fold returned"):
        getattr(timers, verb)(9, "late")
    nested = NestedTimers("mine", alarms)
    nested.key, nested.time = "a", Product(3, 1)
    with pytest.raises(
        ProgramError, match=rf"timers.{verb}\(9, …\) for key 'a': a nested scope has no watermark"
    ):
        getattr(nested, verb)(9, "payload")
    assert nested.watermark is None and not alarms.set


# On the engine -----------------------------------------------------------------------------------


class Calls:
    """A stateful operator. A value that is a list of (verb, when, payload) sets timers."""

    def __init__(self) -> None:
        self.seen: list[Any] = []  # (time, worker, watermark, records) in order

    def unary(self, worker: Any, records: Any, commands: Any) -> Any:
        def fold(key: Any, time: int, records: list[Any], state: int | None, timers: Any) -> Any:
            self.seen.append((time, worker.index, timers.watermark, list(records)))
            for record in records:
                for verb, when, payload in record if isinstance(record, list) else ():
                    getattr(timers, verb)(when, payload)
            return (state or 0) + 1, [(key, (state or 0) + 1)]

        return records.stateful_unary(fold, control=commands, bins=BINS, name="calls")

    def twice(self, worker: Any, records: Any, commands: Any) -> Any:
        """Timestamps also reach a second operator behind the first."""
        first = self.unary(worker, records, commands)

        def fold(key: Any, time: int, records: list[Any], state: Any, timers: Any) -> Any:
            self.seen.append((time, "second", timers.watermark, list(records)))
            if "due at once" not in records:
                timers.at_event(0, "due at once")
            return None, []

        first.filter(lambda output: output[1] > 1).stateful_unary(fold, control=commands, bins=BINS, name="second")
        return first


def started(workers: int = 1) -> tuple[Calls, ByHand]:
    calls = Calls()
    return calls, ByHand(calls.unary, workers)


def stepped(hands: ByHand, *entries: tuple[int, Any]) -> None:
    """Send records (or lists of timers to set, or words) and commands at their times."""
    for time, each in entries:
        hands.advance_to(time)
        if hands.commands.time < time:
            hands.commands.advance_to(time)
        if isinstance(each, (list, str)):
            hands.records[0].send((KEY, each))
        else:
            hands.commands.send(each)
    hands.finish()


def test_a_timer_fires_after_the_records_of_the_watermarks_time_in_a_call_of_its_own() -> None:
    calls, hands = started()
    stepped(hands, (0, [("at_event", 5, "due")]), (1, Watermark(4 * SECOND)), (2, Watermark(5 * SECOND)), (2, "record"))
    assert calls.seen == [(0, 0, None, [[("at_event", 5, "due")]]), (2, 0, 4, ["record"]), (2, 0, 5, ["due"])]
    assert hands.outputs == [(0, (KEY, 1)), (2, (KEY, 2)), (2, (KEY, 3))]


def test_a_call_has_the_payloads_of_a_timestamp_and_engine_timers_fire_before() -> None:
    calls, hands = started()
    timers = [
        ("at_event", 7, "c"),
        ("at_event", 3, "a"),
        ("at_event", 7, "d"),
        ("at_event", 3, "b"),
        ("at", 4, "first"),
    ]
    stepped(hands, (0, timers), (4, Watermark(9 * SECOND)), (4, "record"))
    assert [records for *_, records in calls.seen[1:]] == [["first", "record"], ["a", "b"], ["c", "d"]]


def test_a_timer_that_the_watermark_has_reached_fires_at_the_close_of_the_present_time_and_so_on() -> None:
    calls, hands = started()
    chain = ("at_event", 1, [("at_event", 0, [("at_event", 2, "last")])])
    stepped(hands, (0, Watermark(2 * SECOND)), (1, [chain]), (2, [("at_event", 3, "never")]))
    assert [time for time, *_ in calls.seen] == [1, 1, 1, 1, 2] and calls.seen[3][3] == ["last"]


def test_under_the_infinite_watermark_timers_fire_up_to_the_greatest() -> None:
    calls, hands = started()
    timers = [
        ("at_event", 9, [("at_event", 9, "is known"), ("at_event", 10, "dropped")]),
        ("after", 60, [("after", 1, "dropped"), ("at", 9, "kept")]),
    ]
    stepped(hands, (0, timers), (1, Clock(0)), (3, Watermark(INFINITE)), (4, [("after", 5, "at once")]))
    assert [(time, watermark) for time, _, watermark, _ in calls.seen] == [
        (0, None),
        (3, inf),
        (3, inf),
        (3, inf),
        (4, inf),
        (4, inf),
        (9, inf),
    ]
    [view] = hands.workers[0].stateful
    assert view.timers_dropped == 2 and not view.wants_clock


def test_without_a_watermark_no_timer_fires_and_the_dataflow_ends() -> None:
    calls, hands = started()
    stepped(hands, (0, [("at_event", 0, "never"), ("after", 0, "never")]), (1, "record"))
    assert len(calls.seen) == 2 and hands.done()


def test_a_timer_after_a_while_counts_from_the_first_clock_that_is_not_before_it() -> None:
    calls, hands = started()
    entries = [(0, Clock(50 * SECOND)), (1, [("after", 2, "due")]), (3, Clock(90 * SECOND)), (4, Clock(91 * SECOND)),
               (5, Clock(92 * SECOND))]  # fmt: skip
    hands.commands.send(entries[0][1])
    hands.commands.advance_to(1)
    hands.settle()
    [view] = hands.workers[0].stateful
    assert not view.wants_clock
    hands.advance_to(1)
    hands.records[0].send((KEY, entries[1][1]))
    hands.advance_to(2)
    hands.commands.advance_to(2)
    hands.settle()
    assert view.wants_clock
    stepped(hands, *entries[2:])
    assert [time for time, *_ in calls.seen] == [1, 5] and not view.wants_clock


def test_a_timer_fires_where_its_bin_is_at_the_watermarks_time() -> None:
    calls, hands = started(2)
    timers = [("at_event", second, second) for second in (1, 2, 3)]
    watermarks = [(4, Watermark(SECOND)), (5, Watermark(2 * SECOND)), (6, Watermark(3 * SECOND))]
    stepped(hands, (0, timers), *watermarks[:2], (5, Move(0, 1)), watermarks[2], (6, Map((0, 0, 0, 0))))
    assert [(time, worker, records) for time, worker, _, records in calls.seen[1:]] == [
        (4, 0, [1]),
        (5, 1, [2]),
        (6, 0, [3]),
    ]


def test_s_holds_its_output_from_the_marker_until_it_has_fired_and_f_nothing() -> None:
    calls, hands = started()
    hands.records[0].send((KEY, [("at_event", 1, "due")]))
    hands.command(5, Watermark(SECOND))
    hands.commands.close()
    hands.records[0].advance_to(3)
    hands.settle()
    [graph] = hands.workers[0].graphs()
    held = [
        (node.name, time)
        for node in graph.nodes
        for (location, time), count in graph.progress.caster.capabilities()
        if count > 0 and location in node.sources and node.name.startswith("calls")
    ]
    assert held == [("calls", 5)]
    hands.advance_to(5)
    hands.settle()
    assert hands.probes[0].less_equal(5) and [time for time, *_ in calls.seen] == [0]
    hands.advance_to(6)
    hands.settle()
    assert not hands.probes[0].less_equal(5) and [time for time, *_ in calls.seen] == [0, 5]


def test_what_fires_is_a_record_of_that_time_for_the_next_operator_which_fires_after_it() -> None:
    calls = Calls()
    hands = ByHand(calls.twice, 2)
    stepped(hands, (0, [("at_event", 5, "due")]), (2, Watermark(5 * SECOND)))
    assert calls.seen[1:] == [(2, 0, 5, ["due"]), (2, "second", None, [2]), (2, "second", 5, ["due at once"])]


def test_only_operators_with_timed_folds_are_sent_markers() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        counts = records.stateful_state_machine(lambda key, value, state: (1, [(key, 1)]), control=commands, bins=BINS)
        summed = counts.sum_by_key(control=commands, bins=BINS)
        return summed.distribute(lambda record: 1, control=commands, bins=BINS)

    hands = ByHand(build, 2)
    hands.commands.send(Watermark(SECOND))
    hands.commands.advance_to(1)
    hands.settle()
    assert [view.store.events.is_heard for view in hands.workers[1].stateful] == [False] * 3
    assert {lane for _, _, lane, _, _ in hands.delivered} == {Lane.MAIL}, "commands alone"
    assert all(view.store.events.heard(5) == () for worker in hands.workers for view in worker.stateful)
    hands.finish()


def test_a_fold_that_sets_a_timer_that_is_due_whenever_one_is_leaves_other_operators_their_turn() -> None:
    count = 0

    def build(worker: Any, records: Any, commands: Any) -> Any:
        def fold(key: Any, time: int, records: list[Any], state: Any, timers: Any) -> Any:
            nonlocal count
            count += 1
            timers.at_event(0, None)
            return None, []

        return records.stateful_unary(fold, control=commands, bins=BINS)

    hands = ByHand(build, 1)
    hands.commands.send(Watermark(SECOND))
    hands.records[0].send((KEY, 0))
    for handle in [*hands.records, *hands.controls]:
        handle.close()
    for _ in range(20):
        hands.workers[0].step()
    assert 100 < count < 20 * 100 and hands.workers[0].has_work()


def test_a_binary_fold_has_payloads_on_the_left() -> None:
    seen = []

    def build(worker: Any, records: Any, commands: Any) -> Any:
        def fold(key: Any, time: int, left: list[Any], right: list[Any], state: Any, timers: Any) -> Any:
            seen.append((time, left, right))
            if "due" not in left:
                timers.at_event(1, "due")
            return None, []

        return records.stateful_binary(records, fold, control=commands, bins=BINS)

    hands = ByHand(build, 1)
    stepped(hands, (1, "record"), (2, Watermark(SECOND)))
    assert seen == [(1, ["record"], ["record"]), (2, ["due"], [])]


@pytest.mark.parametrize(
    "left, right, at, watermark",
    [
        (None, EventUnit.MILLISECONDS, 1_500, 2_000),
        (None, EventUnit.DATETIME, datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC), datetime(1970, 1, 1, 0, 0, 2, 0, UTC)),
        (EventUnit.MILLISECONDS, None, 1_500, 2_000),
        (EventUnit.MILLISECONDS, EventUnit.SECONDS, 1_500, 2_000),
        (EventUnit.SECONDS, EventUnit.MILLISECONDS, 1.5, 2),
        (None, None, 1.5, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_keyed", [False, True])
def test_binary_fold_has_the_unit_of_the_stream_with_timestamps(
    left: EventUnit | None, right: EventUnit | None, at: Any, watermark: Any, is_keyed: bool
) -> None:
    seen = []

    def fold(key: Any, time: int, left: list[Any], right: list[Any], state: Any, timers: Any) -> Any:
        seen.append((time, timers.watermark, left))
        if "due" not in left:
            timers.at_event(at, "due")
        return None, []

    def build(worker: Any, records: Any, commands: Any) -> Any:
        def side(unit: EventUnit | None) -> Any:
            return records.map(itemgetter(1)) if unit is None else EventStream(records.port, StreamUnit(unit))

        key = itemgetter(0)
        more: Any = {"key": key, "value": key, "right_key": key, "right_value": key} if is_keyed else {}
        return side(left).stateful_binary(side(right), fold, control=commands, bins=BINS, **more)

    hands = ByHand(build, 1)
    hands.records[0].send((SECOND, (KEY, KEY)))
    stepped(hands, (2, Watermark(SECOND)), (3, Watermark(2 * SECOND)))
    assert seen == [(0, None, [KEY]), (3, watermark, ["due"])]


def test_what_cannot_travel_is_refused_at_once() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        def fold(key: Any, time: int, records: list[Any], state: Any, timers: Any) -> Any:
            timers.at_event(1, print)
            return None, []

        return records.stateful_unary(fold, control=commands, name="mine")

    with pytest.raises(CannotTravel, match="mine: a timer's payload for key 'a' cannot be encoded: "):
        EngineCluster(1, 1).run(build, {0: [(0, ("a", 1))]})


@pytest.mark.parametrize("seed", range(20))
def test_a_worker_that_joins_learns_the_watermark_with_its_first_bin(seed: int) -> None:
    """Its first bin comes at the time of a watermark that was commanded before the worker was a member."""
    calls = Calls()
    cluster = EngineCluster(seed, 2)
    cluster.at(0, Join())
    feeds = {0: [(time, (KEY, [("at_event", time, time)])) for time in range(6)]}
    cluster.run(calls.unary, feeds, [(time, Watermark(time * SECOND)) for time in range(6)])
    by_time: dict[int, list[Any]] = defaultdict(list)
    for time, _, watermark, records in calls.seen:
        by_time[time].append((watermark, records))
    before = None
    for time in range(6):
        assert by_time[time] == [(before, [[("at_event", time, time)]]), (time, [time])], f"seed {seed}"
        before = time


@pytest.mark.parametrize("order", [(0, 99), (99, 0), (0, 0, 99, 99), (99, 0, 50)])
def test_the_recipe_for_sessions_ends_each_once(order: tuple[int, ...]) -> None:
    gap = 100

    def visit(key: str, time: int, records: list[Any], last: Any, timers: Timers) -> tuple[Any, list[Any]]:
        ended = []
        if ("end", last) in records:
            return None, [(key, last)]
        for record in sorted(record for record in records if not isinstance(record, tuple)):
            if last is not None and record >= last + gap:
                ended.append((key, last))
                last = None
            if last is None or record > last:
                last = record
                timers.at_event(last + gap, ("end", last))
        return last, ended

    def dataflow(flow: Any) -> Any:
        clicks = flow.lines().map(int).event_time(lambda at: at, out_of_order=gap)
        return clicks.map(lambda at: ("ada", at)).stateful_unary(visit)

    lines = [str(start + at) for start in (0, 1000) for at in order] + ["1199"]  # a gap after 1099: not the same one
    found = SimulatedCluster(seed=3).run(dataflow, lines=lines)
    assert found == [("ada", 99), ("ada", 1099), ("ada", 1199)]
