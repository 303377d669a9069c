"""States with a TTL: a key without records for `ttl` loses its state at one time, wherever its bin is then."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from megaflow import Map, Move
from megaflow.errors import BuildError, CannotTravel, ProgramError
from megaflow.event_time.state_ttl import Alarms
from megaflow.megaphone.base.barrier_actions import Shown
from megaflow.megaphone.base.event_inputs import carries
from megaflow.megaphone.base.event_unit import INFINITE
from megaflow.megaphone.base.routing import Clock, Lookup, Watermark
from megaflow.stream import Stream
from megaflow.timely import example
from megaflow.timely.dataflow.operators.linear import linear
from megaflow.timely.dataflow.partition_tag import Tagged
from tests.simulation.by_hand import ByHand, key_of, keys_of

BINS = 4  # with two workers bins 0 and 2 are worker 0's
KEY = key_of(0, BINS)
SECOND = 1_000_000


class AlarmsAgainstDict(RuleBasedStateMachine):
    """Alarms beside a plain dict."""

    def __init__(self) -> None:
        super().__init__()
        self.alarms = Alarms()
        self.model: dict[int, int] = {}

    @rule(micros=st.integers(0, 9), key=st.integers(0, 5))
    def put(self, micros: int, key: int) -> None:
        self.alarms.set(micros, key)
        self.model[key] = min(micros, self.model.get(key, micros))

    @rule(key=st.integers(0, 5))
    def cancel(self, key: int) -> None:
        self.alarms.cancel(key)
        self.model.pop(key, None)

    @rule(keys=st.sets(st.integers(0, 5)))
    def keep(self, keys: set[int]) -> None:
        self.alarms.keep(keys)
        self.model = {key: micros for key, micros in self.model.items() if key in keys}

    @rule(limit=st.integers(0, 9))
    def pop(self, limit: int) -> None:
        due = {key: micros for key, micros in self.model.items() if micros <= limit}
        assert self.alarms.least() <= min(self.model.values(), default=INFINITE + 1)
        found = self.alarms.pop(limit)
        assert len(found) == len(due) and [due[key] for key in found] == sorted(due.values())
        for key in found:
            del self.model[key]

    @invariant()
    def is_the_same(self) -> None:
        self.alarms._check()
        assert len(self.alarms) == len(self.model)


TestAlarms = AlarmsAgainstDict.TestCase


def count(key: Any, value: Any, state: Any) -> Any:
    """Count; "forget" removes the state."""
    return (None if value == "forget" else (state or 0) + 1), [(key, (state or 0) + 1)]


def by_clock(worker: Any, records: Any, commands: Any) -> Any:
    return records.stateful_state_machine(count, control=commands, bins=BINS, ttl=timedelta(seconds=5))


def by_events(worker: Any, records: Any, commands: Any) -> Any:
    """Values are timestamps in seconds."""
    stamped = records.event_time(lambda record: record[1])
    return stamped.stateful_state_machine(count, control=commands, bins=BINS, ttl=5)


def stepped(hands: ByHand, *entries: tuple[int, Any]) -> None:
    """Send values for KEY and commands at their times."""
    for time, each in entries:
        hands.advance_to(time)
        hands.commands.advance_to(time)
        if isinstance(each, (Clock, Watermark, Move, Map, Lookup)):
            hands.commands.send(each)
        else:
            hands.records[0].send((KEY, each))


def counts(build: Callable[..., Any], *entries: tuple[int, Any], workers: int = 1) -> list[int]:
    """Return the counts of KEY, in order of time."""
    hands = ByHand(build, workers)
    stepped(hands, *entries)
    hands.finish()
    return [total for _, (_, total) in sorted(hands.outputs, key=lambda output: output[0])]


def test_a_key_loses_its_state_when_the_clock_has_gone_on_so_far_since_the_first_one_after_its_last_record() -> None:
    begun, nearly, over = (1, Clock(50 * SECOND)), (2, Clock(55 * SECOND - 1)), (2, Clock(55 * SECOND))
    assert counts(by_clock, (0, "x"), begun, nearly, (3, "x")) == [1, 2]
    assert counts(by_clock, (0, "x"), begun, over, (3, "x")) == [1, 1]
    assert counts(by_clock, (0, "x"), begun, (2, "x"), over, (3, "x")) == [1, 2, 3], "it counts from what is at 2"


def test_a_record_at_the_time_of_a_clock_counts_from_that_one_whatever_was_before() -> None:
    assert counts(by_clock, (0, Clock(0)), (1, Clock(90 * SECOND)), (1, "x"), (2, "x")) == [1, 2]


def test_a_record_before_the_time_is_over_has_the_state_last_and_its_alarm_is_set_anew() -> None:
    clocks = [(2 * time + 1, Clock((50 + 4 * time) * SECOND)) for time in range(4)]
    entries = [(0, "x"), clocks[0], (2, "x"), clocks[1], (4, "x"), clocks[2], clocks[3], (8, "x")]
    assert counts(by_clock, *entries) == [1, 2, 3, 4]
    assert counts(by_clock, *entries[:-1], (8, Clock(63 * SECOND)), (9, "x")) == [1, 2, 3, 1]


def test_a_state_goes_when_the_watermark_has_reached_its_greatest_timestamp_and_ttl() -> None:
    assert counts(by_events, (0, 10), (1, Watermark(15 * SECOND - 1)), (2, 14)) == [1, 2]
    assert counts(by_events, (0, 10), (1, Watermark(15 * SECOND)), (2, 14)) == [1, 1]
    assert counts(by_events, (0, 10), (0, 12), (0, 7), (1, Watermark(15 * SECOND)), (2, 16)) == [1, 2, 3, 4]
    assert counts(by_events, (0, 10), (1, Watermark(15 * SECOND)), (1, 8), (2, 99)) == [1, 2, 1], "at the close of 1"


@pytest.mark.parametrize("epochs", [(0, 0, 0), (0, 1, 2)])
def test_record_after_ttl_finds_no_state_at_any_speed(epochs: tuple[int, ...]) -> None:
    assert counts(by_events, *zip(epochs, (10, 14.5, 19))) == [1, 2, 3]
    assert counts(by_events, *zip(epochs, (10, 15, 20))) == [1, 1, 1]
    assert counts(by_events, *zip(epochs, (10, 12, 7))) == [1, 2, 3]


def test_record_finds_no_state_that_was_over_at_its_bound() -> None:
    def tagged(worker: Any, records: Any, commands: Any) -> Any:
        port = linear(records.port, "Trace", lambda time, batch: Tagged(batch, ("partition", -1)))
        carries(port, "lines")
        shown: Stream[Any] = Stream(port).event_time(lambda record: record[1], out_of_order=3)
        return shown.stateful_state_machine(count, control=commands, bins=BINS, ttl=5, name="count")

    hands = ByHand(tagged, 1)
    hands.records[0].send((KEY, 10))
    hands.records[0].send((key_of(1, BINS), 18))
    hands.records[0].send((KEY, 14))
    hands.finish()
    assert [total for _, (key, total) in hands.outputs if key == KEY] == [1, 1]


def test_record_finds_no_state_that_the_watermark_has_passed() -> None:
    assert counts(by_events, (0, Watermark(15 * SECOND)), (1, 10), (1, 9), (2, 10), (3, 11), (4, 11)) == [1, 1, 1, 1, 2]


def test_a_key_that_was_forgotten_lasts_as_its_new_records_say() -> None:
    def forgetting(worker: Any, records: Any, commands: Any) -> Any:
        def fold(key: Any, value: Any, state: Any) -> Any:
            return (None if value == 10 else (state or 0) + 1), [(key, (state or 0) + 1)]

        stamped = records.event_time(lambda record: record[1])
        return stamped.stateful_state_machine(fold, control=commands, bins=BINS, ttl=5)

    assert counts(forgetting, (0, 9), (0, 10), (0, 3), (1, Watermark(8 * SECOND)), (2, 3)) == [1, 2, 1, 1]


def test_when_all_lines_are_read_no_state_goes() -> None:
    for build, value in ((by_clock, "x"), (by_events, 10)):
        hands = ByHand(build, 1)
        stepped(hands, (0, value), (1, Clock(0)), (2, Watermark(INFINITE)), (3, value))
        hands.finish()
        assert sorted(total for _, (_, total) in hands.outputs) == [1, 2]
        assert hands.workers[0].stateful[0].keys() == 1


@pytest.mark.parametrize("at", range(2, 9))
def test_it_goes_at_the_same_time_wherever_its_bin_is_by_then(at: int) -> None:
    entries: list[tuple[int, Any]] = [(0, "x"), (2, Clock(50 * SECOND)), (4, "x"), (5, Clock(53 * SECOND)),
                                      (6, Clock(55 * SECOND)), (7, Clock(58 * SECOND)), (8, "x")]  # fmt: skip
    alone = counts(by_clock, *entries)
    assert alone == [1, 2, 1]
    moved = sorted([*entries, (at, Move(0, 1))], key=lambda entry: entry[0])
    assert counts(by_clock, *moved, workers=2) == alone
    back = sorted([*moved, (at + 1, Map((0, 1, 0, 1)))], key=lambda entry: entry[0])
    assert counts(by_clock, *back, workers=2) == alone


def test_the_clock_is_wanted_while_a_key_has_a_state_and_only_for_those_by_the_clock() -> None:
    hands = ByHand(by_clock, 1)
    [view] = hands.workers[0].stateful
    assert not view.wants_clock
    stepped(hands, (0, "x"), (1, Clock(0)))
    hands.advance_to(2)
    hands.commands.advance_to(2)
    hands.settle()
    assert view.wants_clock and view.keys() == 1
    stepped(hands, (2, Clock(5 * SECOND)), (3, Clock(6 * SECOND)))
    hands.settle()
    assert not view.wants_clock and view.keys() == 0
    hands.finish()
    hands = ByHand(by_events, 1)
    stepped(hands, (0, 1), (1, Clock(0)))
    hands.settle()
    assert not hands.workers[0].stateful[0].wants_clock
    hands.finish()


def alarms_of(hands: ByHand) -> Alarms:
    """Return the capabilities of worker 0."""
    machine: Any = hands.workers[0].stateful[0].store.arrived
    return machine.__self__._alarms  # type: ignore[no-any-return]


def test_there_is_one_alarm_a_key_however_many_records_it_has() -> None:
    hands = ByHand(by_events, 1)
    alarms = alarms_of(hands)
    for number, key in enumerate(keys_of(0, BINS, 3) * 20):
        hands.records[0].send((key, number))
    hands.finish()
    assert len(alarms) == 3 and len(alarms._heap) == 3


def test_alarms_of_keys_that_have_left_do_not_stay() -> None:
    hands = ByHand(by_events, 2)
    alarms = alarms_of(hands)
    for key in keys_of(0, BINS, 20):
        hands.records[0].send((key, 10))
    stepped(hands, (1, Move(0, 1)), (2, Watermark(SECOND)), (3, Watermark(2 * SECOND)))
    hands.advance_to(4)
    hands.commands.advance_to(4)
    hands.settle()
    assert hands.workers[1].stateful[0].keys() == 20 and len(alarms) == 0
    hands.finish()


def test_who_asks_for_a_state_is_shown_what_the_fold_has_returned() -> None:
    hands = ByHand(by_events, 1)
    stepped(hands, (0, 10), (1, 11))
    hands.finish()
    barrier_actions = hands.workers[0].stateful[0].barrier_actions
    assert barrier_actions is not None
    asked = Lookup(1, "count", ((KEY, 0),), "text")
    assert barrier_actions._shown(asked, 0, barrier_actions.state_of(KEY)) == Shown(1, 0, "2")


def test_a_state_that_cannot_travel_is_found_as_it_comes() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        return records.stateful_state_machine(lambda k, v, s: (object(), []), control=commands, ttl=1, name="mine")

    hands = ByHand(build, 1)
    hands.records[0].send((KEY, 1))
    with pytest.raises(CannotTravel, match=r"mine: the state of key .*: a value of type builtins.object cannot travel"):
        hands.finish()


@pytest.mark.parametrize("ttl", [0, -1, "5", float("nan"), timedelta(0), True], ids=repr)
def test_what_is_no_length_of_time_is_refused(ttl: Any) -> None:
    with pytest.raises(BuildError, match=r"count\(ttl=.* must be a number of seconds above 0, or such a timedelta"):
        example(lambda scope: scope.to_stream([("a", 1)]).stateful_state_machine(count, ttl=ttl).capture())


def test_in_a_nested_scope_it_is_refused() -> None:
    def build(scope: Any) -> Any:
        with scope.iterative() as inner:
            inside = scope.to_stream([("a", 1)]).enter(inner)
            return inside.stateful_state_machine(count, ttl=5).leave().capture()

    with pytest.raises(BuildError, match="count: ttl= needs a watermark or a clock, and a nested scope has neither"):
        example(build)


def test_what_is_no_pair_and_what_the_fold_returns_wrongly_are_said_as_without_it() -> None:
    with pytest.raises(ProgramError, match=r"records must be \(key, value\) pairs, but one is 7, a int"):
        example(
            lambda scope: scope.to_stream([7]).event_time(lambda record: record)
            .stateful_state_machine(count, ttl=5).capture()
        )  # fmt: skip
    with pytest.raises(ProgramError, match=r"the fold is called as fold\(key, value, state\) and must return"):
        example(lambda scope: scope.to_stream([("a", 1)]).stateful_state_machine(lambda k, v, s: 7, ttl=5).capture())


def test_without_ttl_nothing_is_sent_or_noted() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        return records.stateful_state_machine(count, control=commands, bins=BINS)

    hands = ByHand(build, 1)
    stepped(hands, (0, "x"), (1, Clock(0)))
    hands.settle()
    [view] = hands.workers[0].stateful
    assert view.store.states == {KEY: 1} and not view.store.events.is_heard and not view.wants_clock
    assert view.store.arrived is None
    hands.finish()
