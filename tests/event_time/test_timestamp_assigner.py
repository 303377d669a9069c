"""Timestamps beside records: the operators that see them, their values, and refusals."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from megaflow.errors import BuildError, ProgramError
from megaflow.event_time.lateness import bucket_of
from megaflow.event_time.timestamp_assigner import TimestampAssigner
from megaflow.megaphone.base.event_inputs import EventTimes, carries
from megaflow.megaphone.base.event_unit import EventUnit
from megaflow.megaphone.base.stream_unit import IN_SECONDS, StreamUnit
from megaflow.program import example
from megaflow.stream import EventStream
from megaflow.timely import Pipeline
from megaflow.timely.dataflow.partition_tag import Tagged, followed

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def records(captured: Any) -> list[Any]:
    return [record for _, batch in captured for record in batch]


def stamped(given: list[Any], **terms: Any) -> list[Any]:
    """Return (timestamp, record) pairs for records that are timestamps."""
    return records(example(lambda s: s.to_stream(given).event_time(lambda x: x, **terms).stamped().capture()))


def test_a_timestamp_stays_beside_what_becomes_of_its_record() -> None:
    seen: list[Any] = []
    texts = [(3, "a b"), (1, "c"), (2.5, "d e")]

    def build(scope: Any) -> Any:
        words = (
            scope.to_stream(texts)
            .event_time(lambda text: text[0])
            .inspect(seen.append)
            .flat_map(lambda text: text[1].split())
            .filter(lambda word: word != "c")
        )
        early, late = words.branch(lambda time, word: word > "b")
        both = early.map(str.upper).concat(late).exchange(ord)
        assert isinstance(both, EventStream)
        return both.stamped().capture(), both.plain().capture(), both.count_by_value().capture()

    pairs, plain, counts = map(records, example(build))
    assert seen == texts
    assert sorted(pairs) == [(2.5, "d"), (2.5, "e"), (3, "A"), (3, "B")]
    assert sorted(plain) == ["A", "B", "d", "e"]
    assert sorted(counts) == [("A", 1), ("B", 1), ("d", 1), ("e", 1)]


def test_the_function_of_a_timestamp_is_called_once_for_each_record() -> None:
    calls: list[int] = []

    def at(record: int) -> int:
        calls.append(record)
        return record

    def build(scope: Any) -> Any:
        stream = scope.to_stream(range(1000)).event_time(at)
        return stream.map(lambda x: x).plain().capture(), stream.stamped().capture(), stream.capture()

    example(build)
    assert calls == list(range(1000))


@pytest.mark.parametrize(
    ("unit", "given", "shown"),
    [
        (None, 1.5, 1.5),
        (None, -2, -2),
        ("ms", 1, 1),
        ("us", 7, 7),
        (None, NOON, NOON),
        ("datetime", NOON, NOON),
        (None, datetime(2026, 3, 1, 14, tzinfo=NOON.tzinfo) - timedelta(hours=2), NOON),
    ],
)
def test_timestamps_are_shown_in_the_unit_in_which_they_were_given(unit: str | None, given: Any, shown: Any) -> None:
    assert stamped([given], unit=unit) == [(shown, given)]


@pytest.mark.parametrize(
    "bad", [None, float("nan"), float("inf"), "x", True, datetime(2026, 1, 1), 9e11, 10**40, NOON, b"", [1]]
)
@pytest.mark.parametrize("first", [[], [1]])
def test_what_is_no_timestamp_is_refused_with_the_operator_and_the_record(bad: Any, first: list[int]) -> None:
    if bad is NOON and not first:
        return  # it is one, if it is the first
    with pytest.raises(ProgramError, match=r"clicks .*no timestamp for the record") as raised:
        stamped([*first, bad], name="clicks")
    assert repr(bad)[:20] in str(raised.value)
    assert any("'clicks'" in note and "record" in note for note in raised.value.__notes__)


def test_numbers_among_datetimes_are_refused() -> None:
    with pytest.raises(ProgramError, match=r"no timestamp for the record 1: 1 is a int"):
        stamped([NOON, 1])


def test_an_error_in_the_function_of_a_timestamp_is_raised_as_it_is() -> None:
    with pytest.raises(KeyError) as raised:
        example(lambda s: s.to_stream([{"at": 1}, {"on": 2}]).event_time(lambda x: x["at"]).capture())
    assert any("'event_time'" in note and "record {'on': 2}" in note for note in raised.value.__notes__)


def test_an_error_behind_names_the_record_without_its_timestamp() -> None:
    def build(scope: Any) -> Any:
        stream = scope.to_stream([5, 0]).event_time(lambda x: x)
        return stream.map(lambda x: 1 // x).capture()

    with pytest.raises(ZeroDivisionError) as raised:
        example(build)
    assert [note for note in raised.value.__notes__ if note.endswith("record 0")]


@pytest.mark.parametrize("late", [-1, float("nan"), "1", True, None, timedelta(seconds=-1), float("inf")])
def test_how_late_a_record_may_be_is_seconds_or_a_timedelta(late: Any) -> None:
    with pytest.raises(BuildError, match=r"event_time.* \(.*\): out_of_order"):
        stamped([1], out_of_order=late)


def test_how_late_a_record_may_be_and_the_inputs_are_known_by_the_name_of_the_operator() -> None:
    def build(scope: Any) -> None:
        graph = scope.ref.graph
        orders, clicks = scope.to_stream([1]), scope.to_stream([2])
        carries(orders.port, "orders")
        carries(clicks.port, "clicks")
        both = orders.map(lambda x: x).concat(clicks.filter(bool), scope.to_stream([3]))
        both.event_time(lambda x: x, timedelta(seconds=2), name="both")
        clicks.event_time(lambda x: x, 0.5)
        clicks.event_time(lambda x: x)
        known = graph.extension(EventTimes).operators
        assert {name: (each.out_of_order, each.follows) for name, each in known.items()} == {
            "both": (2_000_000, ("clicks", "orders")),
            "event_time": (500_000, ("clicks",)),
            "event_time_2": (0, ("clicks",)),
        }
        assert followed(both.port, graph.extension(EventTimes).inputs, "") == ("clicks", "orders")
        with pytest.raises(BuildError, match=r"both \(.*\): another event_time already has this name"):
            orders.event_time(lambda x: x, name="both")

    example(build)


def clock_that_has_read(partition: tuple[str, int | str], *seconds: int) -> TimestampAssigner[int]:
    clock = TimestampAssigner[int]("clicks", lambda second: second, IN_SECONDS)
    batch = Tagged(list(seconds), partition)
    to_stamp, greatest, below = clock.begin(batch)
    for second in seconds:
        if (micros := to_stamp(second, second)) < greatest:
            below(micros, greatest)
        greatest = max(micros, greatest)
    clock.end(0, batch, greatest, True)
    return clock


def test_lateness_is_taken_once_also_of_a_partition_handed_back() -> None:
    partition = "partition", -1
    clock = clock_that_has_read(partition, 5, 3, 4)
    clock.forget(partition)
    late = [(partition, ((bucket_of(2_000_000), 1), (bucket_of(1_000_000), 1)), 2_000_000)]
    assert clock.take() == ({partition: 5_000_000}, {}, late)
    assert clock.take() == ({}, {}, []) and not clock._late


def test_lateness_is_not_counted_where_workers_share_a_partition() -> None:
    assert clock_that_has_read(("spark", "orders"), 5, 3, 4).take()[2] == []


BEFORE = {
    "Exchange": lambda s: s.exchange(lambda x: x),
    "Broadcast": lambda s: s.broadcast(),
    "Count": lambda s: s.count(),
    "Delay": lambda s: s.delay(lambda x, time: time),
    "sums": lambda s: s.map(lambda x: (x, 1)).stateful_state_machine(lambda k, v, n: (n, []), name="sums"),
    "Mine": lambda s: s.unary(Pipeline, "Mine", lambda capability, info: lambda input, output: None),
}


@pytest.mark.parametrize("name", BEFORE)
def test_behind_what_mixes_partitions_timestamps_are_refused(name: str) -> None:
    def build(scope: Any) -> None:
        BEFORE[name](scope.to_stream([1])).map(lambda x: x).event_time(lambda x: x, name="clicks")

    with pytest.raises(BuildError, match=rf"clicks \(.*\): the operator '{name}' \(.*\) before it"):
        example(build)


def test_streams_that_are_put_together_have_one_unit_whichever_is_known_first() -> None:
    def build(scope: Any) -> Any:
        none = scope.to_stream([]).event_time(lambda x: x)
        return none.concat(scope.to_stream([NOON]).event_time(lambda x: x)).stamped().capture()

    assert records(example(build)) == [(NOON, NOON)]


@pytest.mark.parametrize(
    ("units", "words"),
    [
        (("s", "datetime"), ("datetimes and seconds", "seconds", "datetimes")),
        ((None, "ms"), ("milliseconds and seconds or datetimes", "seconds or datetimes", "milliseconds")),
        (("us", None), ("microseconds and seconds or datetimes", "microseconds", "seconds or datetimes")),
    ],
)
def test_streams_of_two_units_are_not_put_together(units: tuple[Any, Any], words: tuple[str, str, str]) -> None:
    """The same holds if one names no unit, because its numbers are seconds."""

    def build(scope: Any) -> Any:
        first = scope.to_stream([1]).event_time(lambda x: x, unit=units[0])
        return first.concat(scope.to_stream([NOON]).event_time(lambda x: x, unit=units[1], name="other"))

    place = r"\(.*test_timestamp_assigner.py:\d+\)"
    each = rf"event_time {place} in {words[1]}, other {place} in {words[2]}; give them one unit"
    with pytest.raises(BuildError, match=rf"concat {place}: .*units, {words[0]}: {each}"):
        example(build)


def test_of_streams_put_together_one_whose_timestamps_are_of_another_kind_is_refused_with_both() -> None:
    def build(scope: Any) -> Any:
        first = scope.to_stream([1]).event_time(lambda x: x)
        return first.concat(scope.to_stream([NOON]).event_time(lambda x: x, name="other")).stamped().capture()

    with pytest.raises(ProgramError, match=r"no timestamp for .*streams of event_time \(.*\) and other \(.*\) were"):
        example(build)


def test_a_stream_without_timestamps_is_not_put_to_one_that_has_them() -> None:
    with pytest.raises(BuildError, match=r"concat .*streams with timestamps"):
        example(lambda s: s.to_stream([1]).event_time(lambda x: x).concat(s.to_stream([2])))


def test_what_is_no_timestamp_decides_nothing() -> None:
    unit = StreamUnit()
    with pytest.raises(ValueError):
        unit.micros(None)
    assert unit.known is None
    assert unit.micros(NOON) == int(NOON.timestamp()) * 1_000_000
    assert unit.known is EventUnit.DATETIME
