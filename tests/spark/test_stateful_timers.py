"""Folds with timers on Spark's Rows: a job and a batch frame give the results of plain Python, without a Spark."""

import json
import random
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from megaflow.errors import ProgramError, UsageError
from megaflow.rows.ddl import parse_ddl, schema_json
from megaflow.rows.result_rows import zone_of
from megaflow.spark.stateful_frame import check_fold, event_column
from megaflow.spark.stateful_rows import fold_partition, naive_in, output_maker
from megaflow.spark.stateful_timers import (
    NO_TIME,
    EventColumn,
    KeyQueue,
    RowTimers,
    fold_sorted,
    has_timers,
    timed_flow,
)
from megaflow.testing import Join, Kill, SimulatedCluster, seeds

types = pytest.importorskip("pyspark.sql.types")

SCHEMA = "user STRING, at TIMESTAMP"
GAP = timedelta(minutes=30)
DELAY = timedelta(minutes=10)
EVENT = EventColumn("at", (1,), DELAY // timedelta(milliseconds=1))
ZONE = zone_of("America/New_York")
START = datetime(2026, 6, 1, tzinfo=UTC)

Click = tuple[str, int | None]  # user, microseconds


def joined(spans: Iterable[Any], gap: Any) -> list[Any]:
    """Join the spans (first, last, clicks) between which there is less than a gap."""
    out = list[Any]()
    for first, last, clicks in sorted(spans):
        if out and first < out[-1][1] + gap:
            out[-1] = out[-1][0], max(out[-1][1], last), out[-1][2] + clicks
        else:
            out.append((first, last, clicks))
    return out


class Sessions:
    """Sessions of a user: those that are open are the state, as spans."""

    def __init__(self, gap: Any) -> None:
        self.gap = gap

    def on_row(self, user: Any, click: Any, spans: Any, timers: RowTimers) -> Any:
        at = click[1]
        assert click[0] == user
        if at is None:
            return spans, [(user, None, timers.watermark is None, 1)]
        timers.at_event(at + self.gap, None)
        return joined([*(spans or []), (at, at, 1)], self.gap), []

    def on_timer(self, user: Any, payload: None, spans: Any, timers: RowTimers) -> Any:
        over = [span for span in spans or [] if span[1] + self.gap <= timers.watermark]
        return [span for span in spans or [] if span not in over] or None, [(user, *span) for span in over]


def micros_of(value: datetime) -> int:
    known = value if value.tzinfo is not None else value.replace(tzinfo=ZONE)
    return (known - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def clicks_of(seed: int, count: int = 400) -> list[Click]:
    """Return clicks of some users, out of order by less than DELAY."""
    dice = random.Random(seed)
    at = micros_of(START)
    clicks = list[Click]()
    for _ in range(count):
        at += dice.choice([0, 20, 60, 900]) * 1_000_000 + dice.randrange(7)
        clicks.append((dice.choice("abcdefgh"), at - dice.randrange(DELAY // timedelta(microseconds=1))))
    return clicks


def expected(clicks: Iterable[Click]) -> list[Any]:
    """Return the sessions of all clicks, in microseconds."""
    users = dict[str, list[Any]]()
    for user, at in clicks:
        users.setdefault(user, []).append((at, at, 1))
    gap = GAP // timedelta(microseconds=1)
    return sorted((user, *span) for user, spans in users.items() for span in joined(spans, gap))


def in_micros(records: Iterable[Any]) -> list[Any]:
    def plain(value: Any) -> Any:
        return micros_of(value) if isinstance(value, datetime) else value

    return sorted(tuple(map(plain, record)) for record in records)


def struct(names: str = SCHEMA) -> Any:
    kinds = {"STRING": types.StringType(), "TIMESTAMP": types.TimestampType(), "DATE": types.DateType()}
    pairs = (column.split() for column in names.split(", "))
    return types.StructType([types.StructField(name, kinds[kind]) for name, kind in pairs])


def dataflow_of(fold: Any, has_tuples: bool, event: EventColumn | None = EVENT, places: tuple[int, ...] = (0,)) -> Any:
    schema = struct().json()

    def dataflow(flow: Any) -> Any:
        rows = flow.lines().map(json.loads).map(tuple)
        return timed_flow(SimpleNamespace(rows=lambda: rows), fold, schema, places, event, has_tuples, ZONE)

    return dataflow


def as_lines(clicks: Iterable[Click]) -> list[str]:
    return [json.dumps(click) for click in clicks]


def texts(*names: str) -> Any:
    """Return columns whose values stay as they are."""
    return types.StructType([types.StructField(name, types.StringType()) for name in names])


def in_batch(fold: Any, clicks: Iterable[Click], has_tuples: bool, event: EventColumn | None = EVENT) -> list[Any]:
    """Return the outputs of a batch frame: Spark sorts its rows, and rows without a time come first."""
    kind = struct()
    rows = sorted(clicks, key=lambda click: (click[0], click[1] or NO_TIME))
    return [*fold_sorted(fold, kind, [0], texts("user", "first", "last", "clicks"), event, has_tuples, ZONE, rows)]


@pytest.mark.parametrize("has_tuples", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_job_and_a_batch_frame_give_the_same_sessions(seed: int, has_tuples: bool) -> None:
    clicks = clicks_of(seed)
    fold = Sessions(GAP // timedelta(microseconds=1) if has_tuples else GAP)
    assert in_micros(in_batch(fold, clicks, has_tuples)) == expected(clicks)
    found = SimulatedCluster(seed).run(dataflow_of(fold, has_tuples), lines=as_lines(clicks))
    assert in_micros(found) == expected(clicks)


@seeds(2)
def test_timers_survive_a_kill_and_a_move(seed: int) -> None:
    clicks = clicks_of(seed)
    cluster = SimulatedCluster(seed, processes=2, durable=True)
    cluster.at(record=100, do=Kill())
    cluster.at(record=250, do=Join())
    found = cluster.run(dataflow_of(Sessions(GAP), False), lines=as_lines(clicks), close_windows=True)
    assert in_micros(found) == expected(clicks)


@pytest.mark.parametrize("has_tuples", [False, True])
def test_a_row_without_a_time_does_not_move_the_watermark(has_tuples: bool) -> None:
    clicks: list[Click] = [("a", None), ("a", None), ("a", micros_of(START))]
    fold = Sessions(GAP // timedelta(microseconds=1) if has_tuples else GAP)
    session = ("a", micros_of(START), micros_of(START), 1)
    assert [*in_batch(fold, clicks, has_tuples)][:2] == [("a", None, True, 1)] * 2
    found = SimulatedCluster(1).run(dataflow_of(fold, has_tuples), lines=as_lines(clicks))
    assert [record for record in found if record[1] is None] == [("a", None, True, 1)] * 2
    assert in_micros(record for record in found if record[1] is not None) == [session]


class Windows:
    """Counts the rows of a user's windows. The state is a dict: end of an open window -> count."""

    def on_row(self, user: Any, row: Any, counts: Any, timers: RowTimers) -> Any:
        end = row[1][1]
        timers.at_event(end, end)
        return {**(counts or {}), end: (counts or {}).get(end, 0) + 1}, []

    def on_timer(self, user: Any, end: int, counts: Any, timers: RowTimers) -> Any:
        rest = {each: count for each, count in (counts or {}).items() if each != end}
        return rest or None, [(user, counts[end])] if end in (counts or {}) else []


def test_a_window_ends_after_all_its_rows() -> None:
    window = types.StructType().add("start", "timestamp").add("end", "timestamp")
    kind = types.StructType().add("user", "string").add("span", window)
    event = event_column(SimpleNamespace(schema=kind, isStreaming=False), Windows(), "span")
    hour = 3_600_000_000
    rows = [("ab"[n % 2], [n // 20 * hour, (n // 20 + 1) * hour]) for n in range(60)]

    def dataflow(flow: Any) -> Any:
        found = flow.lines().map(json.loads).map(tuple)
        return timed_flow(SimpleNamespace(rows=lambda: found), Windows(), kind.json(), (0,), event, True)

    lines = [json.dumps(row) for row in rows]
    found = SimulatedCluster(1, processes=1, workers=1, rate=50.0).run(dataflow, lines=lines)
    assert sorted(found) == [(user, 10) for user in "aaabbb"]
    made = [(user, tuple(span)) for user, span in sorted(rows)]
    assert [*fold_sorted(Windows(), kind, [0], texts("user", "n"), event, True, ZONE, made)] == sorted(found)


class Noted:
    """Notes its calls, in order, as outputs."""

    def __init__(self, sets: Any) -> None:
        self.sets = sets  # called with timers for each row

    def on_row(self, key: Any, row: Any, state: Any, timers: RowTimers) -> Any:
        self.sets(row, timers)
        return state, [(key, "row", row[1], 0)]

    def on_timer(self, key: Any, payload: Any, state: Any, timers: RowTimers) -> Any:
        if isinstance(payload, int):
            timers.at_event(payload, "again")
        return state, [(key, "timer", payload, 0)]


def steps(records: Iterable[Any]) -> Iterator[Any]:
    return ((what, value) for _, what, value, _ in records)


def test_nan_is_no_key_of_a_batch_frame() -> None:
    kind = types.StructType().add("key", "double").add("n", "long")
    for task in (
        partial(fold_sorted, Noted(lambda row, timers: None), kind, [0], texts(*"abcd"), None, False, ZONE),
        partial(fold_partition, lambda key, row, state: (state, []), kind, [0], texts(), False, ZONE),
    ):
        with pytest.raises(ValueError, match="NaN cannot be a key"):
            [*task([(0.5, 1), (float("nan"), 2)])]


def test_timers_of_a_batch_frame_fire_between_rows_and_at_the_end() -> None:
    def sets(row: Any, timers: RowTimers) -> None:
        timers.after(0.5, f"clock {row[1]}")
        timers.at_event(row[1] + 20, row[1] + 25)  # its call sets another timer

    clicks: list[Click] = [("a", 100), ("a", 120), ("a", 130)]
    assert [*steps(in_batch(Noted(sets), clicks, True))] == [
        ("row", 100),
        ("timer", 125), ("row", 120),
        ("timer", "again"), ("row", 130),
        ("timer", 145), ("timer", "again"), ("timer", 155),  # at 155: later than 150, so dropped
        ("timer", "clock 100"), ("timer", "clock 120"), ("timer", "clock 130"),
    ]  # fmt: skip


def test_a_timer_by_the_clock_fires_without_event_time() -> None:
    def sets(row: Any, timers: RowTimers) -> None:
        assert timers.watermark is None
        timers.after(timedelta(seconds=1), "due")

    clicks: list[Click] = [("a", 1), ("b", 2)]
    found = SimulatedCluster(1).run(dataflow_of(Noted(sets), True, event=None), lines=as_lines(clicks))
    assert sorted(found) == sorted(in_batch(Noted(sets), clicks, True, event=None))
    assert [record[1] for record in found].count("timer") == 2


def test_a_key_of_several_columns_is_a_row_in_both_methods() -> None:
    class Keyed:
        def on_row(self, key: Any, row: Any, state: Any, timers: RowTimers) -> Any:
            timers.after(0, key)
            return 1, []

        def on_timer(self, key: Any, payload: Any, state: Any, timers: RowTimers) -> Any:
            assert key == payload and key.at == naive_in(ZONE, 7), key
            return None, [(key.user, key.at, state, 0)]

    flow = dataflow_of(Keyed(), False, places=(0, 1))
    assert SimulatedCluster(1).run(flow, lines=as_lines([("a", 7)])) == [("a", naive_in(ZONE, 7), 1, 0)]


@pytest.mark.parametrize(
    ("set_timer", "why"),
    [
        (lambda timers: timers.at_event(7, None), "must be a datetime, as in Rows"),
        (lambda timers: timers.after(-1, None), "at least 0"),
        (lambda timers: timers.after(float("nan"), None), "at least 0"),
    ],
)
def test_a_wrong_timer_is_refused_with_the_reason(set_timer: Any, why: str) -> None:
    def sets(row: Any, timers: RowTimers) -> None:
        set_timer(timers)

    with pytest.raises((TypeError, ValueError), match=why):
        in_batch(Noted(sets), [("a", 1)], False)


def test_event_timers_without_event_time_say_how_to_get_it() -> None:
    def sets(row: Any, timers: RowTimers) -> None:
        timers.at_event(row[1], None)

    with pytest.raises(ValueError, match="event_time="):
        in_batch(Noted(sets), [("a", 1)], False, event=None)
    with pytest.raises((ValueError, ProgramError), match="withWatermark"):
        SimulatedCluster(1).run(dataflow_of(Noted(sets), False, event=None), lines=as_lines([("a", 1)]))


def test_a_datetime_with_a_zone_is_a_timestamp_too() -> None:
    timers = RowTimers("", False, ZONE)
    queue = timers.base = KeyQueue()
    timers.at_event(START, "zone")
    timers.at_event(naive_in(ZONE, micros_of(START)), "naive")
    assert [*queue.reach(micros_of(START))] == [["zone"], ["naive"]]


def test_times_at_the_ends_of_all_years_are_timestamps() -> None:
    timers = RowTimers("", False, ZONE)
    queue = timers.base = KeyQueue()
    timers.at_event(datetime.max, "last")
    timers.at_event(datetime.min, "first")
    assert [*queue.reach(253_402_318_799_999_998)] == [["first"]] and timers.watermark.year == 9999
    assert [*queue.reach(253_402_318_800_000_000)] == [["last"]] and timers.watermark == datetime.max
    queue.watermark = NO_TIME + 1
    assert timers.watermark is None, "New York has no such time"


def test_outputs_of_a_batch_frame_have_ints_for_times() -> None:
    kind = types.StructType.fromJson(json.loads(schema_json(parse_ddl(
        "n LONG, at TIMESTAMP, wall TIMESTAMP_NTZ, day DATE, s STRUCT<a: ARRAY<TIMESTAMP>, m: MAP<DATE, LONG>>"
    ))))  # fmt: skip
    make, noon = output_maker(kind, ZONE), datetime(1970, 1, 1, 12)
    micros = 12 * 3_600_000_000
    later = micros + 5 * 3_600_000_000
    made = (1, later, micros, 1, ([later, None], {1: 5}))
    day = date(1970, 1, 2)
    assert make((1, noon, noon, day, {"a": [noon, None], "m": {day: 5}})) == made
    assert make(made) == made and make((None,) * 5) == (None,) * 5
    assert make((1, noon.replace(tzinfo=UTC), None, None, None))[1] == micros
    for value, why in ((noon.replace(tzinfo=UTC), "has no time zone: choose"), ("x", r"'x' \(str\), but must be")):
        with pytest.raises(ValueError, match=rf"the record \(1, .* column 'wall' is .*{why}"):
            make((1, None, value, None, None))
    for value in (noon, "x"):
        with pytest.raises(ValueError, match=r"the record \(1, .* column 'day' is .*, but must be date"):
            make((1, None, None, value, None))
    nat = pytest.importorskip("pandas").NaT
    with pytest.raises(ValueError, match=r"column 'at' is NaT \(NaTType\), but must be timestamp"):
        make((1, nat, None, None, None))


def test_names_in_an_output_of_a_batch_frame_match_its_structs() -> None:
    kind = types.StructType.fromJson(json.loads(schema_json(parse_ddl(
        "s STRUCT<a: LONG, b: LONG>, l ARRAY<STRUCT<a: LONG, b: LONG>>, m MAP<STRING, STRUCT<a: LONG, b: TIMESTAMP>>"
    ))))  # fmt: skip
    make, row = output_maker(kind, ZONE), types.Row(b=numpy.int64(1), a=2)
    assert make({"s": row, "l": [row, {"b": 3, "a": 4}], "m": {"x": row}}) == ((2, 1), [(2, 1), (4, 3)], {"x": (2, 1)})
    assert make(((2, 1), [None], None)) == ((2, 1), [None], None)
    for value in (types.Row(b=1, c=2), {"a": 1}, {"a": 1, "b": 2, "c": 3}):
        with pytest.raises(ValueError, match=r"column 's' is .*, but its fields must be \['a', 'b'\]"):
            make((value, None, None))


@pytest.mark.parametrize("has_tuples", [False, True])
def test_keys_of_an_hour_that_clocks_repeat_differ_in_a_batch(has_tuples: bool) -> None:
    def count(key: Any, row: Any, n: int | None) -> Any:
        return (n or 0) + 1, [(row[1], (n or 0) + 1)]

    first = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)  # 01:30 in New York, twice
    rows = [(micros_of(first + timedelta(hours=hours)), word) for hours, word in ((0, "a"), (1, "b"), (1, "c"))]
    kind = types.StructType([types.StructField("at", types.TimestampType()), *texts("word").fields])
    output = types.StructType([*texts("word").fields, types.StructField("n", types.LongType())])
    assert [*fold_partition(count, kind, [0], output, has_tuples, ZONE, rows)] == [("a", 1), ("b", 1), ("c", 2)]


@pytest.mark.parametrize("answer", [None, 5, (1,), (1, "text"), (1, {"user": "a"}), (1, ("a", 1)), (1, None)])
def test_a_wrong_answer_of_a_method_is_shown(answer: Any) -> None:
    class Wrong(Noted):
        def on_row(self, key: Any, row: Any, state: Any, timers: RowTimers) -> Any:
            return answer

    with pytest.raises(TypeError, match="the fold must return"):
        in_batch(Wrong(None), [("a", 1)], True)
    with pytest.raises((TypeError, ProgramError), match="the fold must return"):
        SimulatedCluster(1).run(dataflow_of(Wrong(None), True), lines=as_lines([("a", 1)]))


class OnlyRows:
    def on_row(self, key: Any, row: Any, state: Any, timers: RowTimers) -> Any: ...


class FewArguments(OnlyRows):
    def on_timer(self, key: Any, payload: Any) -> Any: ...


@pytest.mark.parametrize(
    ("fold", "why"),
    [
        (Sessions, r"an object of the class Sessions: write Sessions\(\)"),
        (OnlyRows(), r"needs the method on_timer\(self, key, payload, state, timers\), and OnlyRows"),
        (FewArguments(), r"needs the method on_timer"),
    ],
)
def test_a_fold_without_both_methods_is_refused(fold: Any, why: str) -> None:
    assert has_timers(fold)
    with pytest.raises(UsageError, match=why):
        check_fold(fold)
