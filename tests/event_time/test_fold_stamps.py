"""Timestamps behind folds: those that `stamp=` gives outputs, and the windows built on them."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any, assert_type

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow import EventStream, Stream, session, tumbling
from megaflow.errors import BuildError, ProgramError
from megaflow.event_time.record_bounds import with_bound
from megaflow.event_time.windows import AlignedWindows, SessionWindows, Windows
from megaflow.megaphone.base.event_unit import INFINITE, EventUnit
from megaflow.megaphone.base.routing import Clock, Watermark
from megaflow.megaphone.base.stream_unit import StreamUnit
from megaflow.program import example
from megaflow.testing import EngineCluster, Join, SimulatedCluster, seeds
from tests.simulation.by_hand import ByHand, key_of

BINS = 4
SECOND = 1_000_000
KEYS = [key_of(bin, BINS) for bin in range(BINS)]


def clicks(records: Stream[Any], unit: EventUnit | None = EventUnit.MICROSECONDS) -> EventStream[Any]:
    """Return a stream with timestamps for a stream of (stamp, record)."""
    return EventStream(records.port, StreamUnit(unit))


def numbered(key: str, value: Any, count: int | None) -> Any:
    """Pass a value on."""
    return (count or 0) + 1, [(key, value)]


def at_once(key: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
    """Pass each value on, or the payload of each timer."""
    return None, [(key, value) for value in values]


async def awaited(output: Any) -> int:
    return 1


def parts(windowed: Any) -> Stream[Any]:
    results = windowed.collect().stamped().map(lambda result: ("closed", result))
    return results.concat(windowed.late().stamped().map(lambda late: ("late", late)))  # type: ignore[no-any-return]


def send(hands: ByHand, *records: tuple[float, Any], watermark: float | None = None) -> None:
    """Send records with timestamps in seconds at one epoch, and command a watermark at it."""
    for seconds, record in records:
        hands.records[0].send((round(seconds * SECOND), record))
    time = hands.commands.time
    if watermark is not None:
        hands.commands.send(Watermark(INFINITE if watermark == INFINITE else round(watermark * SECOND)))
    hands.commands.advance_to(time + 1)
    hands.advance_to(time + 1)
    hands.settle()


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """Draw records, some below their bounds, and watermarks that do not pass the bounds still to come."""
    feed: list[Any] = []
    watermarks = []
    bound = 0
    for epoch in range(draw(st.integers(1, 6))):
        for key, ahead in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(-20, 25)), max_size=5)):
            micros = bound + ahead
            stamp = micros if ahead >= 0 else with_bound(micros, bound)
            feed.append((2 * epoch, (stamp, (KEYS[key], len(feed)))))
            bound = max(bound, micros - 5)
        if draw(st.booleans()):
            watermarks.append((2 * epoch + draw(st.integers(0, 1)), Watermark(bound - draw(st.integers(0, 9)))))
    return feed, [*watermarks, (20, Watermark(INFINITE))]


@settings(max_examples=25, deadline=None)
@given(histories(), st.sampled_from([AlignedWindows(10, 10, 3), AlignedWindows(12, 4), SessionWindows(5)]),
       st.sampled_from([None, 1e-5]), st.integers(0, 10**6))  # fmt: skip
def test_windows_are_the_same_behind_a_fold(
    history: tuple[list[Any], list[Any]], windows: Windows, ttl: float | None, seed: int
) -> None:
    """`test_windowed` compares the windows without the fold with plain Python."""
    feed, commands = history

    def build(is_behind: bool) -> Any:
        def built(worker: Any, records: Any, commands: Any) -> Any:
            stream = clicks(records)
            if is_behind:
                place: Any = {"control": commands, "bins": BINS, "stamp": "record"}
                stream = stream.stateful_state_machine(numbered, ttl=ttl, **place)
            return parts(stream.window(windows, allowed_lateness=3e-6, control=commands, bins=BINS, name="windows"))

        return built

    direct = EngineCluster(1, 1).run(build(False), {0: feed}, commands)
    cluster = EngineCluster(seed, 2)
    cluster.at(len(feed) // 2, Join())
    assert Counter(map(repr, cluster.run(build(True), {0: feed}, commands))) == Counter(map(repr, direct))


def test_only_timestamps_of_event_timers_are_never_late() -> None:
    def fold(key: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
        for value in values:
            if value == "by event":
                timers.at_event(7, (7, value))
            elif value == "by epoch":
                timers.at(time + 1, (3, value))
        return None, [(key, value) for value in values if isinstance(value, tuple)]

    def build(worker: Any, records: Any, commands: Any) -> Any:
        sent = clicks(records, EventUnit.SECONDS).stateful_unary(
            fold, control=commands, bins=BINS, stamp=lambda output: output[1][0]
        )
        return parts(sent.window(tumbling(5), control=commands, bins=BINS))

    hands = ByHand(build, 1)
    send(hands, (2, ("a", "by event")), (2, ("a", "by epoch")), watermark=6)
    send(hands)
    send(hands, watermark=100)
    found = [(time, kind, stamp, made[-1]) for time, (kind, (stamp, made)) in hands.outputs]
    assert found == [(1, "late", 3, (3, "by epoch")), (2, "closed", 9.999999, [(7, "by event")])]


def test_lateness_of_windows_before_a_fold_counts_behind_it() -> None:
    def build(stamp: str) -> Any:
        def built(worker: Any, records: Any, commands: Any) -> Any:
            first = clicks(records, EventUnit.SECONDS).window(
                tumbling(5), allowed_lateness=20, control=commands, name="first"
            )
            sums = first.sum().map(lambda result: (result[0], (result[1].start, result[2])))
            again: Any
            if stamp == "record":
                again = sums.stateful_state_machine(numbered, control=commands, stamp="record")
            else:
                again = sums.stateful_unary(at_once, control=commands, stamp=lambda sent: sent[1][0])
            return parts(again.window(tumbling(10), control=commands, name="second"))

        return built

    for stamp in ("record", "function"):
        hands = ByHand(build(stamp), 1)
        send(hands, (2, ("a", 1)), (7, ("a", 2)), watermark=27)
        send(hands, watermark=30)
        hands.finish()
        assert [made[-1] for _, (_, (_, made)) in hands.outputs] == [[(0, 1), (5, 2)]]


def test_a_worker_without_records_learns_datetimes_from_stamps() -> None:
    units: list[StreamUnit] = []

    def build(worker: Any, records: Any, commands: Any) -> Any:
        units.append(StreamUnit())
        stream: EventStream[Any] = EventStream(records.port, units[-1])
        place: Any = {"control": commands, "bins": BINS}
        stamped = stream.stateful_state_machine(numbered, stamp="record", **place)
        lasting = stamped.stateful_state_machine(numbered, stamp="record", ttl=3, name="lasting", **place)
        return lasting.exchange(lambda record: 2).window(tumbling(1), **place).count()

    hands = ByHand(build, 3)
    units[0].micros(datetime(2026, 11, 23, tzinfo=UTC))  # as for the first record of worker 0
    send(hands, (0.5, (key_of(1, BINS), 1)), watermark=1)
    hands.finish()
    assert [result[1].start.isoformat() for _, result in hands.outputs] == ["1970-01-01T00:00:00+00:00"]
    assert [unit.known for unit in units] == [EventUnit.DATETIME] * 3


def test_an_exchange_tells_that_timestamps_are_datetimes() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        stream: EventStream[Any] = EventStream(records.port, StreamUnit())
        units.append(stream.unit)
        sent = stream.exchange(lambda record: 1)
        windows = sent.window(tumbling(1), control=commands, bins=BINS)
        return sent.stamped().concat(windows.count().map(lambda result: result[1].start).plain())

    units: list[StreamUnit] = []
    hands = ByHand(build, 2)
    units[0].micros(datetime(2026, 11, 23, tzinfo=UTC))  # as for the first record of worker 0
    send(hands, (0.5, ("a", 1)), watermark=1)
    hands.finish()
    at = datetime.fromtimestamp(0, UTC)
    assert [record for _, record in hands.outputs] == [(at.replace(microsecond=500_000), ("a", 1)), at]


def test_ttl_behind_a_fold_follows_timestamps_only_with_stamps() -> None:
    def build(terms: dict[str, str]) -> Any:
        def built(worker: Any, records: Any, commands: Any) -> Any:
            first: Any = clicks(records, EventUnit.SECONDS).stateful_state_machine(numbered, control=commands, **terms)
            count: Any = lambda key, value, state: ((state or 0) + 1, [(state or 0) + 1])  # noqa: E731
            return first.stateful_state_machine(count, control=commands, ttl=5, name="count")

        return built

    for terms, right in (({"stamp": "record"}, [1, 1]), ({}, [1, 2])):
        hands = ByHand(build(terms), 1)
        send(hands, (2, ("a", 1)))
        hands.commands.send(Clock(0))
        send(hands, (8, ("a", 2)))
        hands.finish()
        assert [record for _, record in hands.outputs] == right, terms


def test_a_join_of_streams_is_a_stream_with_timestamps() -> None:
    def match(key: str, time: int, left: list[Any], right: list[Any], state: Any, timers: Any) -> Any:
        first, second = state or (None, None)
        first, second = (left or [first])[0], (right or [second])[0]
        if first is None or second is None:
            return (first, second), []
        return None, [(key, max(first, second))]

    def dataflow(flow: Any) -> Any:
        made = [
            flow.lines(name).map(lambda line: line.split()).event_time(lambda words: float(words[1]))
            for name in ("orders", "payments")
        ]
        orders, payments = [stream.map(lambda words: (words[0], float(words[1]))) for stream in made]
        paid = orders.stateful_binary(payments, match, stamp=lambda pair: pair[1])
        return paid.concat(payments).window(session(10)).count().map(lambda result: (*result[1], result[2]))

    lines = {"orders": [["a 1", "a2 50"]], "payments": [["a 2", "a2 45", "a2 90"]]}
    found = SimulatedCluster(seed=1).run(dataflow, lines=lines)
    assert sorted(found) == [(2, 12, 2), (45, 60, 2), (90, 100, 1)]


def visits_once(flow: Any, has_late: bool = False, **terms: Any) -> Any:
    """Build sessions behind a fold that drops repeated visits."""
    visits = flow.lines().map(lambda line: line.split()).event_time(lambda words: int(words[1]), out_of_order=5)
    seen: Any = visits.stateful_state_machine(first_only, key=lambda words: (words[0], words[2]), bins=16, **terms)
    if not terms:
        return seen
    sessions = seen.map(lambda words: (words[0], words[2])).window(session(20), bins=16)
    if has_late:
        flow.output("late", sessions.late())
    return sessions.collect().map(lambda result: (result[0], *result[1], sorted(result[2])))


def first_only(key: Any, words: Any, seen: bool | None) -> Any:
    return True, [] if seen else [words]


FILES = 2 * [[f"{user} {10 * number} visit{number}" for number in range(40) if number % 9 for user in "ab"]]
LATE = "a 100 late"  # far below the last visits


@seeds(4)
def test_sessions_behind_a_fold_survive_whatever_happens(seed: int) -> None:
    cluster = SimulatedCluster(seed, durable=True, idle_timeout=1e6)
    cluster.disturb(3)
    late: list[Any] = []
    files = [[*FILES[0], LATE], FILES[1]]
    found = cluster.run(
        lambda flow: visits_once(flow, True, stamp="record"), lines=files, outputs={"late": late}, close_windows=True
    )
    counted = Counter((user, visit) for user, _, _, visits in found for visit in visits)
    assert set(counted.values()) == {1} and len(counted) == 2 * 35, cluster.happened
    assert len(found) == 2 * 5 and late == [("a", "late")], cluster.happened


def test_stamps_may_be_added_to_a_program_with_a_store() -> None:
    cluster = SimulatedCluster(seed=2, durable=True)
    assert len(cluster.run(visits_once, lines=FILES[:1])) == len(FILES[0])
    more = [*FILES[0], "a 1000 visit1", "a 1000 new"]
    found = cluster.run(lambda flow: visits_once(flow, stamp="record"), lines=[more], close_windows=True)
    assert found == [("a", 1000, 1020, ["new"])]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda s: s.plain().stateful_state_machine(numbered, stamp="record"), r"needs a stream with timestamps"),
        (lambda s: s.plain().stateful_unary(at_once, stamp=len), r"needs a stream with timestamps"),
        (lambda s: s.plain().stateful_binary(s, at_once, stamp=len), r"needs a stream with timestamps"),
        (lambda s: s.stateful_state_machine(numbered, stamp=len), 'numbered .*must be "record", not'),
        (lambda s: s.stateful_unary(at_once, stamp="record"), "at_once .*it must be a function"),
        (lambda s: s.stateful_unary(at_once, stamp=awaited), "at_once .*stamp is 'async def awaited'"),
        (lambda s: s.stateful_state_machine(numbered).event_time(len), "give the fold stamp="),
        (lambda s: s.concat(s.stateful_state_machine(numbered)), r"concat .*and folds with stamp= make"),
        (lambda s: s.stateful_state_machine(numbered).window(tumbling(1)), "stamp="),
    ],
)
def test_what_stamp_cannot_be_is_refused_with_the_remedy(build: Any, said: str) -> None:
    with pytest.raises(BuildError, match=said):
        example(lambda scope: build(scope.to_stream([("a", 1)]).event_time(lambda pair: pair[1])).capture())


@pytest.mark.parametrize("stamp", [None, "1", float("nan"), datetime(2026, 1, 1)])
def test_a_timestamp_that_is_none_is_shown_with_its_output(stamp: Any) -> None:
    with pytest.raises(ProgramError, match=r"stamp= of at_once .*no timestamp for the output \('a', 1\)"):
        example(
            lambda scope: scope.to_stream([("a", 1)])
            .event_time(lambda pair: pair[1])
            .stateful_unary(at_once, stamp=lambda output: stamp)
            .capture()
        )


@pytest.mark.parametrize("returned", [None, 5, (1, None), (1, 5), (1, ("a", 2)), (1, "ab")], ids=repr)
def test_wrong_outputs_are_refused_as_without_stamps(returned: Any) -> None:
    with pytest.raises(ProgramError, match=r"the fold (is called as fold\(key, value, state\)|returned)") as caught:
        example(
            lambda scope: scope.to_stream([("a", 1)])
            .event_time(lambda pair: pair[1])
            .stateful_state_machine(lambda key, value, state: returned, stamp="record")
            .capture()
        )
    assert "record ('a', 1)" in caught.value.__notes__[0]


def test_outputs_may_be_any_iterable_and_errors_name_the_record() -> None:
    def fold(key: str, value: int, state: Any) -> Any:
        return None, () if value == 1 else (value * each for each in (1, 10))

    def outputs(values: list[Any]) -> Any:
        captured: Any = example(
            lambda scope: scope.to_stream([("a", value) for value in values])
            .event_time(lambda pair: 7)
            .stateful_state_machine(fold, stamp="record")
            .stamped()
            .capture()
        )
        return [record for _, batch in captured for record in batch]

    assert outputs([1, 2]) == [(7, 2), (7, 20)]
    with pytest.raises(TypeError) as caught:
        outputs([1, object])
    assert "record ('a', <class 'object'>)" in caught.value.__notes__[0]


def test_types() -> None:
    def build(scope: Any) -> None:
        stream: EventStream[tuple[str, int]] = scope.to_stream([("a", 1)]).event_time(lambda pair: pair[1])

        def count(key: str, value: int, state: int | None) -> tuple[int, list[tuple[str, float]]]:
            return 1, [(key, 1.0)]

        def sent(key: str, time: int, values: list[Any], state: int | None, timers: Any) -> tuple[int, list[str]]:
            return 1, [key]

        assert_type(stream.stateful_state_machine(count, stamp="record"), EventStream[tuple[str, float]])
        assert_type(stream.stateful_state_machine(count, name="plain"), Stream[tuple[str, float]])
        assert_type(stream.stateful_unary(sent, stamp=lambda word: len(word)), EventStream[str])
        assert_type(stream.stateful_unary(sent, name="plain"), Stream[str])

    example(build)
