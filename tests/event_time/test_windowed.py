"""Windows on the engine: results and their epochs equal those of plain Python, even if bins move."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from random import Random
from typing import Any, assert_type

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow import EarlyWindow, EventStream, Map, Move, Stream, Window, session, sliding, tumbling
from megaflow.errors import BuildError, ProgramError
from megaflow.event_time.calendar_windows import CalendarWindows
from megaflow.event_time.kept_windows import UNTIL, WINDOWS_OF_KEY
from megaflow.event_time.windowed import Emit
from megaflow.event_time.windows import AlignedWindows, SessionWindows, Windows
from megaflow.job.worker.writing.json_lines import to_json
from megaflow.megaphone.base.event_unit import INFINITE, EventUnit
from megaflow.megaphone.base.routing import Watermark
from megaflow.megaphone.base.stream_unit import StreamUnit
from megaflow.testing import EngineCluster, Join
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from tests.event_time.naive_windows import NaiveSessions, NaiveWindows, aligned, days_in
from tests.simulation.by_hand import ByHand, key_of

BINS = 4
SECOND = 1_000_000
HOUR = 3_600 * SECOND
KEYS = [key_of(bin, BINS) for bin in range(BINS)]
Feed = list[tuple[int, tuple[int, tuple[str, int]]]]  # (epoch, (timestamp, (key, value)))


def clicks(records: Stream[Any], unit: EventUnit = EventUnit.MICROSECONDS) -> EventStream[tuple[str, int]]:
    """Return a stream with timestamps for a stream of (microseconds, record)."""
    return EventStream(records.port, StreamUnit(unit))


def windowed(
    windows: Windows, lateness: int = 0, emit: Emit | None = None
) -> Callable[[Any, Stream[Any], Stream[Any]], Stream[Any]]:
    """Build windows of a stream of pairs. Outputs are ("count" or "collect", …) and ("late", …), with timestamps."""

    def build(worker: Any, records: Stream[Any], commands: Stream[Any]) -> Stream[Any]:
        made = clicks(records).window(
            windows, allowed_lateness=lateness / 1e6, emit=emit, control=commands, bins=BINS, name="clicks"
        )
        parts: dict[str, EventStream[Any]] = {"count": made.count(), "collect": made.collect(), "late": made.late()}
        tagged = [part.stamped().map(lambda pair, what=what: (what, pair)) for what, part in parts.items()]
        return tagged[0].concat(*tagged[1:])

    return build


def rises(watermarks: dict[int, int]) -> list[tuple[int, Any]]:
    return [(time, Watermark(micros)) for time, micros in sorted(watermarks.items())]


def expected(feed: Feed, watermarks: dict[int, int], windows: Windows, lateness: int, emit: Emit | None) -> list[Any]:
    """Return the outputs of plain Python, unordered: (epoch, output)."""
    out: list[Any] = []
    by_epoch: defaultdict[int, defaultdict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for time, (micros, (key, value)) in feed:
        by_epoch[time][key].append((micros, value))

    def put(time: int, key: str, results: Iterable[Any], kind: type[Window] = Window) -> None:
        for start, end, records in results:
            window = kind(start, end)
            values = [value for _, value in sorted(records, key=lambda record: record[0])]
            out.append((time, ("count", (end - 1, (key, window, len(values))))))
            out.append((time, ("collect", (end - 1, (key, window, values)))))

    naive: dict[str, Any] = {}
    for key in KEYS:
        if isinstance(windows, SessionWindows):
            naive[key] = NaiveSessions(windows.gap, lateness)
        else:
            spans = days_in("Europe/Berlin") if isinstance(windows, CalendarWindows) else aligned(windows)
            naive[key] = NaiveWindows(spans, lateness)
    for time in sorted({*by_epoch, *watermarks}):
        for key, records in by_epoch[time].items():
            for some in [[record] for record in records] if emit == "every" else [records]:
                late, changed = naive[key].take(some, {})
                out += [(time, ("late", (micros, (key, value)))) for micros, value in late]
                put(time, key, changed if emit else (), EarlyWindow)
        for key in KEYS:
            put(time, key, naive[key].rise(watermarks.get(time, naive[key].watermark)))
    return out


def plain(outputs: Iterable[tuple[Any, Any]]) -> Counter[str]:
    return Counter(map(repr, outputs))


@st.composite
def histories(draw: st.DrawFn) -> tuple[Feed, dict[int, int]]:
    """Draw records out of order, each with a unique value, and watermarks that they more or less respect."""
    feed, watermarks, low = [], {}, 0
    for epoch in range(draw(st.integers(1, 6))):
        times = draw(st.lists(st.tuples(st.integers(low - 12, low + 30), st.integers(0, 3)), max_size=5))
        feed += [(2 * epoch, (time, (KEYS[key], len(feed) + number))) for number, (time, key) in enumerate(times)]
        if draw(st.booleans()):
            low += draw(st.integers(0, 20))
            watermarks[2 * epoch + draw(st.integers(0, 1))] = low
    watermarks[20] = INFINITE
    return feed, watermarks


KINDS = [
    AlignedWindows(10, 10, 3),
    AlignedWindows(12, 4),
    AlignedWindows(10, 4, 1),
    SessionWindows(5),
]  # microseconds
BERLIN = tumbling("1D", tz="Europe/Berlin")
CHANGE = round(datetime(2026, 3, 29, 1, tzinfo=UTC).timestamp()) * SECOND  # when clocks in Berlin go forward


def stretched(feed: Feed, watermarks: dict[int, int]) -> tuple[Feed, dict[int, int]]:
    """Turn microseconds into hours around a change of clocks."""
    made = [(time, (CHANGE + (micros - 40) * HOUR, pair)) for time, (micros, pair) in feed]
    return made, {t: w if w == INFINITE else CHANGE + (w - 40) * HOUR for t, w in watermarks.items()}


@settings(max_examples=40, deadline=None)
@given(histories(), st.sampled_from(KINDS), st.sampled_from([0, 7]), st.sampled_from([None, "epoch"]))
def test_results_and_late_records_come_at_the_epochs_that_plain_python_says(
    history: tuple[Feed, dict[int, int]], windows: Windows, lateness: int, emit: Emit | None
) -> None:
    feed, watermarks = history
    outputs = EngineCluster(1, 1).run(windowed(windows, lateness, emit), {0: feed}, rises(watermarks))
    assert plain(outputs) == plain(expected(feed, watermarks, windows, lateness, emit))


@settings(max_examples=20, deadline=None)
@given(histories(), st.sampled_from(KINDS))
def test_results_may_be_seen_after_every_record(history: tuple[Feed, dict[int, int]], windows: Windows) -> None:
    feed, watermarks = history
    outputs = EngineCluster(1, 1).run(windowed(windows, 3, "every"), {0: feed}, rises(watermarks))
    assert plain(outputs) == plain(expected(feed, watermarks, windows, 3, "every"))


@settings(max_examples=40, deadline=None)
@given(histories(), st.sampled_from(KINDS), st.sampled_from([0, 7]), st.integers(0, 10**6))
def test_bins_that_move_and_workers_that_join_and_leave_change_nothing(
    history: tuple[Feed, dict[int, int]], windows: Windows, lateness: int, seed: int
) -> None:
    feed, watermarks = history
    check_moves(feed, watermarks, windows, lateness, Random(seed), seed)


@settings(max_examples=20, deadline=None)
@given(histories(), st.sampled_from([0, 7]), st.integers(0, 10**6))
def test_moves_change_nothing_about_days_of_a_zone(
    history: tuple[Feed, dict[int, int]], lateness: int, seed: int
) -> None:
    check_moves(*stretched(*history), BERLIN, lateness * HOUR, Random(seed), seed)


@settings(max_examples=20, deadline=None)
@given(histories(), st.sampled_from([0, 7]), st.sampled_from([None, "epoch", "every"]))
def test_days_of_a_zone_close_as_plain_python_says(
    history: tuple[Feed, dict[int, int]], lateness: int, emit: Emit | None
) -> None:
    feed, watermarks = stretched(*history)
    outputs = EngineCluster(1, 1).run(windowed(BERLIN, lateness * HOUR, emit), {0: feed}, rises(watermarks))
    assert plain(outputs) == plain(expected(feed, watermarks, BERLIN, lateness * HOUR, emit))


def check_moves(
    feed: Feed, watermarks: dict[int, int], windows: Windows, lateness: int, random: Random, seed: int
) -> None:
    moves = [(random.randrange(12), Move(random.randrange(BINS), random.randrange(2))) for _ in range(6)]
    moves.append((random.randrange(12), Map(tuple(random.randrange(2) for _ in range(BINS)))))
    commands = sorted([*rises(watermarks), *moves], key=lambda command: command[0])
    feeds: dict[int, Feed] = {0: [], 1: []}
    for time, (micros, (key, value)) in feed:  # one worker sends all of a key and epoch, in a known order
        feeds[(time // 2 + KEYS.index(key)) % 2].append((time, (micros, (key, value))))
    cluster = EngineCluster(seed, 2)
    if feed:
        cluster.at(random.randrange(len(feed) + 1), Join())
    outputs = cluster.run(windowed(windows, lateness), feeds, commands)
    assert plain(outputs) == plain(expected(feed, watermarks, windows, lateness, None))


# Visible behaviour ----------------------------------------------------------------------------


def by_hand(build: Callable[[EventStream[Any], dict[str, Any]], Any], workers: int = 1) -> ByHand:
    """Step epochs by hand. `build(stream, placing)` gives the outputs; the stream has timestamps in seconds."""

    def built(worker: Any, records: Any, commands: Any) -> Any:
        return build(clicks(records, EventUnit.SECONDS), {"control": commands, "bins": BINS})

    return ByHand(built, workers)


def send(hands: ByHand, *records: tuple[float, Any], watermark: float | None = None) -> None:
    """Send records with timestamps in seconds at the current epoch, then advance to the next one."""
    time = hands.commands.time
    for seconds, record in records:
        hands.records[0].send((round(seconds * 1e6), record))
    if watermark is not None:
        hands.commands.send(Watermark(round(watermark * 1e6)))
    hands.commands.advance_to(time + 1)
    hands.advance_to(time + 1)
    hands.settle()


def test_all_that_a_stream_of_windows_is_aggregated_to_shares_one_operator() -> None:
    def build(stream: EventStream[Any], placing: dict[str, Any]) -> Any:
        windows = stream.window(tumbling(60), **placing)
        made: list[EventStream[Any]] = [
            windows.count(), windows.sum(), windows.min(), windows.max(), windows.mean(), windows.collect(),
            windows.reduce(lambda a, b: a * b), windows.fold("", lambda text, value: text + str(value)),
            windows.min(by=lambda value: -value), windows.max(by=lambda value: value % 5), windows.top(2),
            windows.top(2, by=lambda value: value % 2),
        ]  # fmt: skip
        return made[0].concat(*made[1:])

    hands = by_hand(build)
    assert len(hands.workers[0].stateful) == 1
    send(hands, (5, ("a", 3)), (2, ("a", 1)), (59, ("a", 5)))
    send(hands, watermark=60)
    window = Window(0, 60)
    results = [3, 9, 1, 5, 3.0, [1, 3, 5], 15, "315", 5, 3, [5, 3], [1, 3]]
    assert [output for _, output in hands.outputs] == [("a", window, result) for result in results]
    assert hands.workers[0].stateful[0].keys() == 0, "nothing is left of a key whose windows are closed"
    hands.finish()


def test_a_key_that_an_upgrade_forgot_has_one_alarm() -> None:
    hands = by_hand(lambda stream, placing: stream.window(tumbling(60), **placing).count())
    view = hands.workers[0].stateful[0]
    send(hands, watermark=100)
    view.store.create("a", {UNTIL: 200 * SECOND, WINDOWS_OF_KEY: None})
    for seconds in (10, 20, 30):
        send(hands, (seconds, ("a", 1)))
    assert view.store.events.count() == (1, 0), "late records open no window, so one alarm at the end is enough"
    send(hands, watermark=300)
    assert view.keys() == 0
    assert hands.outputs == []
    hands.finish()


def test_windows_of_windows_close_with_what_the_first_ones_give_at_the_same_time() -> None:
    def build(stream: EventStream[Any], placing: dict[str, Any]) -> Any:
        minutes = stream.window(tumbling(60), allowed_lateness=30, **placing, name="minutes").count()
        hours = minutes.map(lambda result: ("all", result[2])).window(tumbling(120), **placing, name="hours")
        return hours.sum().concat(hours.late())

    hands = by_hand(build)
    send(hands, (5, ("a", 0)), (70, ("b", 0)), (100, ("a", 0)), watermark=100)
    send(hands, (1, ("a", 0)))  # late for its minute, which closes at 90
    send(hands, watermark=149)
    assert hands.outputs == []
    send(hands, watermark=150)
    assert hands.outputs == [(3, ("all", Window(0, 120), 3))], "and no result of the first windows is late"
    hands.finish()


def test_late_records_are_counted_and_a_stream_of_their_own() -> None:
    hands = by_hand(lambda stream, placing: stream.window(sliding(10, 5), **placing).late().stamped())
    send(hands, watermark=12)
    send(hands, (4, ("a", 1)), (5, ("a", 2)), (11, ("a", 3)), (6, ("a", 4)))
    assert hands.outputs == [(1, (4, ("a", 1)))], "5 and 6 are in the window that ends at 15, too"
    assert hands.workers[0].stateful[0].late == 1
    hands.finish()


def test_late_records_are_left_out_where_nobody_wants_them() -> None:
    hands = by_hand(lambda stream, placing: stream.window(session(3), **placing).count())
    send(hands, watermark=12)
    send(hands, (4, ("a", 1)), (11, ("a", 2)), (12, ("a", 3)))
    send(hands, watermark=15)
    assert hands.outputs == [(2, ("a", Window(12, 15), 1))]
    hands.finish()


def test_with_the_infinite_watermark_all_windows_close_and_nothing_is_late_any_more() -> None:
    hands = by_hand(lambda stream, placing: stream.window(session(30), **placing).count())
    send(hands, (100, ("a", 1)), watermark=90)
    hands.commands.send(Watermark(INFINITE))
    send(hands)
    assert hands.outputs == [(1, ("a", Window(100, 130), 1))]
    send(hands, (5, ("a", 1)), (6, ("b", 1)))
    assert hands.outputs[1:] == [(2, ("a", Window(5, 35), 1)), (2, ("b", Window(6, 36), 1))]
    hands.finish()


def test_early_results_are_not_changed_by_what_comes_later() -> None:
    def add(values: list[int], value: int) -> list[int]:
        values.append(value)
        return values

    def build(stream: EventStream[Any], placing: dict[str, Any]) -> Any:
        return stream.window(tumbling(60), emit="every", **placing).fold([], add)

    hands = by_hand(build)
    send(hands, (1, ("a", 1)), (2, ("a", 2)))
    send(hands, (3, ("a", 3)), watermark=60)
    hands.finish()
    assert [output[2] for _, output in hands.outputs] == [[1], [1, 2], [1, 2, 3], [1, 2, 3]]


def test_bounds_of_windows_are_in_the_unit_of_the_timestamps() -> None:
    def bounds(unit: EventUnit) -> Any:
        def built(worker: Any, records: Any, commands: Any) -> Any:
            return clicks(records, unit).window(tumbling(0.5), control=commands).count()

        hands = ByHand(built, 1)
        send(hands, (1.7, ("a", 1)), watermark=2)
        hands.finish()
        return hands.outputs[0][1][1]

    assert bounds(EventUnit.SECONDS) == Window(1.5, 2)
    assert bounds(EventUnit.MILLISECONDS) == Window(1500, 2000)
    assert bounds(EventUnit.DATETIME).end.isoformat() == "1970-01-01T00:00:02+00:00"


def test_bounds_of_days_are_in_the_zone_of_the_windows() -> None:
    def built(worker: Any, records: Any, commands: Any) -> Any:
        return clicks(records, EventUnit.DATETIME).window(BERLIN, control=commands).count()

    hands = ByHand(built, 1)
    send(hands, (CHANGE / SECOND, ("a", 1)), watermark=CHANGE / SECOND + 86_400)
    hands.finish()
    bounds = [bound.isoformat() for bound in hands.outputs[0][1][1]]
    assert bounds == ["2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"]


def test_a_worker_that_has_seen_no_timestamp_knows_datetimes_by_their_records_and_by_states() -> None:
    units: list[StreamUnit] = []

    def build(worker: Any, records: Any, commands: Any) -> Any:
        units.append(StreamUnit())
        stream: EventStream[Any] = EventStream(records.port, units[-1])
        return stream.window(tumbling(1), control=commands, bins=BINS).count()

    hands = ByHand(build, 3)
    units[0].micros(datetime(2026, 11, 23, tzinfo=UTC))  # as for the first record of worker 0
    owned_by_1 = key_of(1, BINS)
    send(hands, (0.5, (owned_by_1, 1)))
    hands.commands.send(Move(1, 2))
    send(hands, watermark=1)
    hands.finish()
    assert [result[1].start.isoformat() for _, result in hands.outputs] == ["1970-01-01T00:00:00+00:00"]
    assert [unit.known for unit in units] == [EventUnit.DATETIME] * 3


@pytest.mark.parametrize("first", ["seconds", "datetimes"])
def test_workers_that_read_seconds_and_datetimes_find_out_at_the_first_key_of_both(first: str) -> None:
    units: list[StreamUnit] = []

    def build(worker: Any, records: Any, commands: Any) -> Any:
        units.append(StreamUnit(title=f"event_time on {worker.index}"))
        stream: EventStream[Any] = EventStream(records.port, units[-1])
        return stream.window(tumbling(1), control=commands, bins=BINS).count()

    hands = ByHand(build, 2)
    units[0].micros(1.5 if first == "seconds" else datetime(2026, 11, 23, tzinfo=UTC))
    units[1].micros(1.5 if first == "datetimes" else datetime(2026, 11, 23, tzinfo=UTC))
    send(hands, (0.5, (key_of(0, BINS), 1)))  # worker 0 reads it, and owns it
    with pytest.raises(ProgramError, match=r"timestamps are .* on one worker, but .* on another"):
        send(hands, (0.5, (key_of(1, BINS), 1)))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda stream: stream.window(60), "clicks .*give it tumbling"),
        (lambda stream: stream.stream.plain().window(tumbling(60)), "this stream has no timestamps; write"),
        (lambda stream: stream.window(tumbling(60), allowed_lateness=-1), "clicks .*allowed_lateness=-1 must be"),
        (lambda stream: stream.window(tumbling(60), allowed_lateness="1"), r"clicks\(allowed_lateness='1'\)"),
        (lambda stream: stream.window(tumbling(60), emit="always"), 'clicks .*emit must be "every"'),
        (lambda stream: stream.window(session(9)).fold(0, max), "clicks .*fold needs merge"),
        (lambda stream: stream.window(sliding(9, 3)).fold(0, max), "clicks .*fold needs merge"),
    ],
)
def test_what_cannot_be_meant_is_refused_when_the_dataflow_is_built(build: Any, said: str) -> None:
    class Named:
        def __init__(self, stream: EventStream[Any]) -> None:
            self.stream = stream

        def window(self, *arguments: Any, **options: Any) -> Any:
            return self.stream.window(*arguments, name="clicks", **options)

    with pytest.raises(BuildError, match=said):
        by_hand(lambda stream, placing: build(Named(stream)).plain())


def test_an_argument_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="argument 'buns'; it takes windows, allowed_lateness, marks, hash, control"):
        by_hand(lambda stream, placing: stream.window(tumbling(60), buns=4))  # type: ignore[call-arg]


@pytest.mark.parametrize("record", ["click", ("a", 1, 2), 7, "DE", {"k": 1, "v": 2}, {1, 2}, b"ab", range(2)])
def test_a_record_that_is_no_pair_is_refused(record: Any) -> None:
    hands = by_hand(lambda stream, placing: stream.window(tumbling(60), **placing, name="clicks").count())
    with pytest.raises(ProgramError, match=r"clicks: records must be \(key, value\) pairs, but one is "):
        send(hands, (1, record))


def test_a_value_that_has_no_sum_is_refused_with_its_key() -> None:
    hands = by_hand(lambda stream, placing: stream.window(tumbling(60), **placing, name="clicks").sum())
    with pytest.raises(ProgramError, match="clicks: the value 'x' is a str") as refused:
        send(hands, (1, ("anna", "x")))
    assert "key 'anna'" in "".join(refused.value.__notes__)


@pytest.mark.parametrize("windows", [tumbling(60), sliding(60, 20), session(60)])
def test_incomparable_values_are_refused_with_key_and_value(windows: Windows) -> None:
    hands = by_hand(lambda stream, placing: stream.window(windows, **placing, name="clicks").top(2, by=lambda v: v[0]))
    with pytest.raises(ProgramError, match="top 2 cannot compare 'x' of type str, which by= returned") as refused:
        send(hands, (1, ("anna", (1, 2))), (2, ("anna", ("x", 3))))
    assert "key 'anna', value ('x', 3)" in "".join(refused.value.__notes__)


def bad_add(accumulated: Any, value: int) -> Any:
    if value == 3:
        raise ValueError("three")
    return (accumulated or 0) + value


def bad_merge(one: Any, other: Any) -> Any:
    raise ValueError("merged")


@pytest.mark.parametrize(
    ("windows", "options", "functions", "time", "note"),
    [
        (tumbling(60), {}, (bad_add,), 0, "value 3"),
        (session(9), {}, (bad_add, max), 0, "value 3"),
        (session(9), {"emit": "every"}, (bad_add, max), 0, "value 3"),
        (sliding(60, 20), {}, (max, bad_merge), 1, "merging 3 and 4"),
        (session(9), {}, (max, bad_merge), 1, "merging 2 and 4"),
    ],
)
def test_the_note_of_what_a_function_of_windows_raises_has_the_epoch_the_key_and_what_it_was_given(
    windows: Windows, options: Any, functions: Any, time: int, note: str
) -> None:
    hands = by_hand(lambda stream, placing: stream.window(windows, **placing, **options).fold(0, *functions))
    key, other = KEYS[0], KEYS[1]
    with pytest.raises(ValueError, match=r"three|merged") as raised:
        send(hands, (1, (key, 1)), (2, (key, 2)), (16, (key, 3)), (3, (other, 1)), (21, (key, 4)))
        send(hands, (9, (key, 1)), watermark=100)
    [said] = raised.value.__notes__
    assert said.startswith("in operator 'window' (")
    assert said.endswith(f", worker 0, time {time}, key {key!r}, {note}")


def test_windows_of_which_nothing_is_made_are_refused_with_their_line() -> None:
    def build(stream: EventStream[Any], placing: dict[str, Any]) -> Any:
        stream.window(tumbling(60), **placing, name="late ones").late()
        stream.window(tumbling(60), **placing, name="forgotten")
        return stream.plain()

    with pytest.raises(BuildError, match=rf"^forgotten \({__file__}:\d+\): these windows have no aggregation, .*count"):
        by_hand(build)


def test_it_is_known_whether_the_program_takes_late_records() -> None:
    def build(stream: EventStream[Any], placing: dict[str, Any]) -> Any:
        windows = [stream.window(tumbling(60), **placing, name=name) for name in ("taken", "left")]
        windows[0].late()
        return windows[0].count().concat(windows[1].count())

    hands = by_hand(build)
    assert [(view.name, view.late_is_taken) for view in hands.workers[0].stateful] == [("taken", True), ("left", False)]
    hands.finish()


WINDOWS = pytest.mark.parametrize(
    "windows", [tumbling(10), sliding(20, every=10), session(10)], ids=["tumbling", "sliding", "session"]
)


@WINDOWS
@pytest.mark.parametrize("emit", ["epoch", "every"])
def test_only_the_last_result_of_a_window_is_final(windows: Windows, emit: Emit) -> None:
    hands = by_hand(lambda stream, placing: stream.window(windows, emit=emit, **placing).count(), workers=2)
    send(hands, (1, (KEYS[0], 1)), (2, (KEYS[0], 2)))
    hands.commands.send(Move(0, 1))
    send(hands, (3, (KEYS[0], 3)), watermark=5)
    send(hands, watermark=30)
    hands.finish()
    final: dict[Any, Any] = {}
    early: dict[Any, Any] = {}
    for _, (_, window, count) in hands.outputs:
        assert window not in final, "nothing comes after the final result"
        assert not window.is_final or window in early
        (final if window.is_final else early)[window] = count
        assert type(window) is (Window if window.is_final else EarlyWindow)
    assert final.items() <= early.items() and {*final.values()} == {3}


@WINDOWS
@pytest.mark.parametrize("by_stop", [False, True])
def test_a_window_that_a_stop_closes_is_not_final(windows: Windows, by_stop: bool) -> None:
    hands = by_hand(lambda stream, placing: stream.window(windows, **placing).count(), workers=2)
    send(hands, (1, (KEYS[0], 1)), (31, (KEYS[0], 2)))
    send(hands, watermark=30)
    hands.commands.send(Move(0, 1))
    hands.commands.send(Watermark(INFINITE, 31, by_stop=by_stop))
    hands.finish()
    found = [(window.start, window.is_final) for _, (_, window, _) in hands.outputs]
    assert found and found == [(start, start < 20 or not by_stop) for start, _ in found]


@WINDOWS
def test_windows_that_close_together_come_in_order_of_ends(windows: Windows) -> None:
    def build(stream: EventStream[Any], placing: dict[str, Any]) -> Any:
        windowed = stream.window(windows, **placing)
        return windowed.count().concat(windowed.max())

    hands = by_hand(build)
    random = Random(7)
    for _ in range(5):
        send(hands, *[(random.uniform(0, 400), (random.choice(KEYS), n)) for n in range(40)])
    send(hands, watermark=200)
    send(hands, watermark=250)
    hands.commands.send(Watermark(INFINITE))
    hands.finish()
    assert len({time for time, _ in hands.outputs}) == 3
    by_epoch: dict[int, list[float]] = defaultdict(list)
    for time, (_, window, _) in hands.outputs:
        by_epoch[time].append(window.end)
    for ends in by_epoch.values():
        half = len(ends) // 2  # counts, then maxima
        assert len(ends) > 6 and ends[:half] == ends[half:] == sorted(ends[:half])


def test_a_mark_survives_its_way() -> None:
    early = decode(encode(("a", EarlyWindow(0, 60), 3)))
    assert type(early[1]) is EarlyWindow and early == ("a", Window(0, 60), 3)
    assert to_json(early) == '["a", {"start": 0, "end": 60, "is_final": false}, 3]'
    assert to_json(("a", Window(0, 60), 3)) == '["a", {"start": 0, "end": 60}, 3]'
    start, end = early[1]
    assert (start, end) == (0, 60)


def test_a_state_that_a_move_takes_along_goes_on_at_its_new_owner() -> None:
    hands = by_hand(lambda stream, placing: stream.window(session(10), **placing).collect(), workers=2)
    send(hands, (1, (KEYS[0], 1)))
    hands.commands.send(Move(0, 1))
    send(hands, (7, (KEYS[0], 2)), watermark=10)
    send(hands, (13, (KEYS[0], 3)), watermark=22)
    assert hands.outputs == []
    send(hands, watermark=23)
    assert hands.outputs == [(3, (KEYS[0], Window(1, 23), [1, 2, 3]))]
    assert [worker.stateful[0].records for worker in hands.workers] == [1, 2]
    hands.finish()


def test_types() -> None:
    def build(stream: EventStream[tuple[str, int]]) -> None:
        windows = stream.window(tumbling(60))
        assert_type(windows.count(), EventStream[tuple[str, Window, int]])
        assert_type(windows.sum(), EventStream[tuple[str, Window, int]])
        assert_type(windows.collect(), EventStream[tuple[str, Window, list[int]]])
        assert_type(windows.max(by=str), EventStream[tuple[str, Window, int]])
        assert_type(windows.top(3, by=str), EventStream[tuple[str, Window, list[int]]])
        assert_type(windows.fold("", lambda text, value: text), EventStream[tuple[str, Window, str]])
        assert_type(windows.late(), EventStream[tuple[str, int]])

    by_hand(lambda stream, placing: (build(stream), stream)[1])


@pytest.mark.parametrize(
    "windows, opened, deadline",
    [(tumbling(10), 2, 40 + 3), (sliding(20, every=10), 4, 50 + 3), (session(10), 2, 41 + 3)],
    ids=["tumbling", "sliding", "session"],
)
def test_open_windows_are_counted_and_so_are_those_closed_early(windows: Windows, opened: int, deadline: int) -> None:
    hands = ByHand(windowed(windows, lateness=3 * SECOND))
    for micros in (12 * SECOND, 31 * SECOND):
        hands.records[0].send((micros, (KEYS[0], micros)))
    hands.settle()
    hands.advance_to(1)
    hands.commands.advance_to(1)
    hands.settle()
    [view] = hands.workers[0].stateful
    early = view.store.events.early
    assert view.unfinished() == (opened, 0, 0) and early.windows == 0
    hands.commands.send(Watermark(INFINITE))
    hands.commands.advance_to(2)
    hands.advance_to(2)
    hands.settle()
    assert view.unfinished() == (0, 0, 0)
    assert (early.windows, early.timers, early.deadline) == (opened, 0, deadline * SECOND)
    hands.finish()
