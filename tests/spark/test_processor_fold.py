"""A processor as a fold: against Spark's own tester, and rule by rule; no Spark runs."""

import json
import re
import threading
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.durable.restored import unchanged
from megaflow.errors import StoreError, UsageError
from megaflow.megaphone.base.event_unit import INFINITE
from megaflow.megaphone.folds.stateful_core import Core
from megaflow.rows.ddl import parse_ddl, schema_json
from megaflow.spark.processor_fold import (
    INITIAL,
    ProcessorPlan,
    TimedForm,
    declared_states,
    event_path,
    processor_flow,
)
from megaflow.testing import SimulatedCluster

pytest.importorskip("pyspark.sql.streaming.stateful_processor")

from pyspark.sql import Row

from tests.spark import processors
from tests.spark.processors import OUTPUT, SCHEMA, Batch, Driver, Processor

SECOND = 1_000_000


def schema(text: str) -> str:
    return schema_json(parse_ddl(text))


def driver(processor: Any, mode: str, **more: Any) -> Driver:
    return Driver(processor, ProcessorPlan(mode, schema(SCHEMA), [0], schema(OUTPUT), **more))


def row(key: str | None, id: int, ms: int | None = None) -> tuple[Any, ...]:
    return key, id, None if ms is None else ms * 1000, None, {"i": id}


class Events(Processor):
    """Uses every state and timer by the numbers of its rows."""

    def declare(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "n INT, s STRING")
        self.items = handle.getListState("items", "n INT")
        self.pages = handle.getMapState("pages", "k INT", "n INT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for each in rows:
            what, amount = each.id % 11, each.id // 11
            watermark = timerValues.getCurrentWatermarkInMs()
            match what:
                case 0 | 1:
                    self.value.update((amount, None if what else "x"))
                case 2:
                    self.value.clear()
                case 3 | 4:
                    self.items.appendValue((amount,))
                case 5:
                    self.items.put([(amount,), (0,)])
                case 6:
                    self.items.clear()
                case 7:
                    self.pages.updateValue((amount % 3,), (amount,))
                case 8:
                    self.pages.removeKey((amount % 3,))
                case 9:
                    self.handle.registerTimer(watermark + 1 + amount % 50)
                case 10:
                    self.handle.deleteTimer(watermark + 1 + amount % 50)
            yield self.out(key, each.id, self.show())

    def show(self) -> str:
        pages = [*self.pages.iterator()], [*self.pages.keys()], [*self.pages.values()], self.pages.containsKey((1,))
        found = self.value.get(), self.value.exists(), [*self.items.get()], self.items.exists(), sorted(pages[0])
        return f"{found} {sorted(pages[1])} {sorted(pages[2])} {pages[3]} {sorted(self.handle.listTimers())}"

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        yield self.out(key, "timer", expiry, timerValues.getCurrentWatermarkInMs(), self.show())
        if expiry % 2:
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 7)
            self.items.appendValue((expiry,))


ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 999)), max_size=12)


@given(st.lists(st.tuples(st.integers(1, 40), ROWS), max_size=8))
def test_a_fold_does_what_the_tester_of_spark_does(batches: list[tuple[int, list[tuple[str, int]]]]) -> None:
    tester_of = pytest.importorskip("pyspark.sql.streaming.tws_tester").TwsTester
    folded = driver(Events(), "EventTime", event_path=(2,))
    tester = tester_of(Events(), timeMode="EventTime", eventTimeExtractor=lambda row: row.ms)
    watermark = 0
    for number, (rise, some) in enumerate(batches):
        rows = [row(key, id, id) for key, id in some]  # the id is also the event time
        found = folded.run(Batch(2 * number, watermark, watermark, rows))
        expected = []
        for key in dict.fromkeys(key for key, _ in some):
            given_rows = [Row(k=key, id=id, ms=id) for name, id in some if name == key and id > watermark]
            if given_rows:
                expected += tester.test(key, given_rows)
        assert [*map(tuple, found)] == [(each.k, each.what) for each in expected]
        watermark += rise
        found = folded.run(Batch(2 * number + 1, watermark, watermark, []))
        assert sorted(found) == sorted((each.k, each.what) for each in tester.setWatermark(watermark))


def test_a_key_without_values_and_timers_is_forgotten() -> None:
    folded = driver(processors.Sessions(), "EventTime", event_path=(2,))
    folded.run(Batch(0, 0, 0, [row("a", 1, 1000), row("b", 2, 9000)]))
    assert folded.states["a"] == {"ids": [(1, 1000)], "last": (1000,), "$timers": [4000]}
    closed = folded.run(Batch(1, 4000, 0, []))
    assert closed == [("a", "closed a 4000 4000 [4000] [(1, 1000)]")]
    assert folded.states.keys() == {"b"}


def test_rows_at_the_watermark_are_late_and_nulls_are_not() -> None:
    folded = driver(processors.Counts(), "EventTime", event_path=(2,))
    operator = SimpleNamespace(late=0)
    folded.fold.counts_late_rows_of(cast(Core, operator))
    rows = [row("a", 1, 1000), row("a", 2, 1001), row("a", 3, None), row("b", 4, 1000)]
    assert [each[1].split()[2] for each in folded.run(Batch(1, 5000, 1000, rows))] == ["2"]
    assert operator.late == 2
    by_clock = driver(processors.Counts(), "ProcessingTime", event_path=(2,))
    assert [each[1].split()[2] for each in by_clock.run(Batch(1, 5000, 1000, rows))] == ["3", "1"]


def test_timers_that_are_due_fire_after_the_rows() -> None:
    folded = driver(processors.Expiring(), "ProcessingTime")
    found = folded.run(Batch(0, 5000, 0, [row("a", 0), row("b", 1)]))
    assert [each[1].split()[0] for each in found] == ["0", "1", "timer", "timer"]
    assert folded.states["a"]["$timers"] == [6000]
    assert folded.run(Batch(1, 7000, 0, []))[0][1].startswith("timer 7000 6000 (False, False, False)")
    assert folded.states == {}


def test_a_timer_that_timers_set_too_late_waits_for_a_rise() -> None:
    folded = driver(processors.Restless(), "EventTime")
    assert folded.run(Batch(0, 50, 0, [row("a", 11)])) == [("a", "[11]"), ("a", "11 50 [3, 11, 12]")]
    assert folded.states["a"] == {"$timers": [3, 12]}
    assert [each[1] for each in folded.run(Batch(1, 50, 0, [row("a", 60)]))] == ["[3, 12, 60]"]
    found = folded.run(Batch(2, 51, 0, []))
    assert [each[1] for each in found] == ["3 51 [3, 12, 60]", "12 51 [4, 12, 13, 60]"]


def test_a_timer_that_was_deleted_does_not_fire() -> None:
    folded = driver(processors.Sessions(), "EventTime", event_path=(2,))
    folded.run(Batch(0, 0, 0, [row("a", 1, 1000)]))
    folded.run(Batch(1, 0, 0, [row("a", 2, 5000)]))
    assert sorted(folded.alarm.events) == [4000 * 1000, 8000 * 1000]
    assert folded.run(Batch(2, 5000, 0, [])) == []
    assert folded.run(Batch(3, 8000, 5000, [])) == [("a", "closed a 8000 8000 [8000] [(1, 1000), (2, 5000)]")]


def test_the_end_of_a_job_fires_no_timers() -> None:
    folded = driver(processors.Restless(), "EventTime")
    folded.run(Batch(0, 0, 0, [row("a", 11)]))
    folded.alarm.watermark = INFINITE
    state, outputs = folded.fold("a", 9, [("timer", 11)], folded.states["a"], folded.timers)
    assert (state, outputs) == ({"$timers": [11]}, ())


def test_rows_of_the_initial_state_come_first() -> None:
    folded = driver(processors.Counts(), "None", initial=schema("k STRING, w INT"))
    assert folded.run(Batch(INITIAL, -1, -1, [("a", 7), ("b", 1)])) == []
    assert folded.states == {"a": {"count": (7, "initial")}, "b": {"count": (1, "initial")}}
    assert folded.run(Batch(0, -1, -1, [row("a", 5)]))[0][1].startswith("tuple True 8 Row(k='a', id=5")


def test_a_processor_for_pandas_gets_and_returns_frames() -> None:
    pytest.importorskip("pandas")
    folded = driver(processors.Frames(), "EventTime", pandas=True, initial=schema("k STRING, w INT"))
    assert folded.run(Batch(INITIAL, 0, 0, [("a", 7), ("a", 8)])) == []
    assert folded.states == {"a": {"total": (15, "['k', 'w'] 2")}}
    found = folded.run(Batch(0, 0, 0, [row("a", 1, 0), row("a", 2, None)]))
    assert [key for key, _ in found] == ["a", "x", "timer"]
    kinds = "['object', 'int64', 'datetime64[ns]', 'object', 'object']"
    assert found[0][1].startswith(f"('a',) 18 ['k', 'w'] 2 {kinds} ")
    assert found[1:] == [("x", None), ("timer", "Row(k='a') (18, \"['k', 'w'] 2\")")]


def test_several_key_columns_are_a_tuple_and_a_row() -> None:
    class Keys(Processor):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self.handle.registerTimer(0)
            yield self.out(key, repr(key))

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            yield self.out(key, key.id, key.at)

    folded = Driver(Keys(), ProcessorPlan("EventTime", schema(SCHEMA), [0, 1, 2], schema(OUTPUT)))
    found = folded.run(Batch(0, 0, 0, [row("a", 5, 1000)]))
    at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert [each[1] for each in found] == [repr(("a", 5, at)), f"5 {at.astimezone().replace(tzinfo=None)}"]


def test_arguments_of_a_timer_go_by_their_names() -> None:
    class Turned(Processor):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self.handle.registerTimer(7)
            return iter([])

        def handleExpiredTimer(self, expiredTimerInfo: Any, timerValues: Any, *, key: Any) -> Any:
            yield self.out(key, expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs())

    assert driver(Turned(), "EventTime").run(Batch(0, 9, 0, [row("a", 1)])) == [("a", "7 9")]


def test_states_of_another_time_mode_are_refused() -> None:
    form = TimedForm("EventTime")
    assert form.adapter(form.text()) is unchanged
    with pytest.raises(StoreError, match="has the states of a processor with timeMode ProcessingTime, and now"):
        form.adapter(TimedForm("ProcessingTime").text())


def test_states_that_are_declared_otherwise_are_refused() -> None:
    def form(**states: str) -> TimedForm:
        return TimedForm("EventTime", states)

    one = "a ValueState of (n: integer)"
    kept = form(n=one, gone="a ListState of (v: long)").text()
    assert form(n=one, new="a ListState of (n: long)").adapter(kept) is unchanged
    assert form(n=one).adapter(form().text()) is unchanged, "stores of an earlier megaflow"
    for now in (one.replace("integer", "string"), one.replace("Value", "List"), f"{one} with a TTL"):
        with pytest.raises(StoreError, match=re.escape(f"declares it as {now}. Give the changed state another name")):
            form(n=now).adapter(kept)
    with pytest.raises(StoreError, match="states of a processor with timeMode EventTime, and now"):
        TimedForm("ProcessingTime").adapter(kept)


def test_a_window_is_late_by_its_end() -> None:
    from pyspark.sql.types import StructType

    window = StructType().add("start", "timestamp").add("end", "timestamp")
    kind = StructType().add("k", "string").add("span", window, True, {"spark.watermarkDelayMs": 1})
    plan = ProcessorPlan("EventTime", kind.json(), [0], schema(OUTPUT), event_path=event_path(kind))
    rows = [("a", (0, 5000)), ("a", (0, 5001)), ("a", None)]
    [(_, what)] = Driver(processors.Counts(), plan).run(Batch(1, 9, 5, rows))
    assert what.split()[2] == "2"


def test_a_processor_that_returns_none_is_refused() -> None:
    class Silent(Processor):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            return None

    with pytest.raises(TypeError, match=r"Silent\.handleInputRows returned None"):
        driver(Silent(), "None").run(Batch(0, -1, -1, [row("a", 1)]))


def test_the_driver_learns_the_states_and_their_mistakes() -> None:
    assert declared_states(processors.Pages(), "None") == {
        "pages": "a MapState of (page: string, part: integer) to (n: integer, at: timestamp, s: struct<x: integer>)",
        "seen": "a ListState of (m: map<string, integer>, ids: array<integer>)",
    }
    assert "with a TTL" in declared_states(processors.Expiring(), "ProcessingTime")["value"]
    with pytest.raises(UsageError, match="timeMode must be 'ProcessingTime'"):
        declared_states(processors.Expiring(), "EventTime")


def test_two_columns_with_a_watermark_are_refused() -> None:
    from pyspark.sql.types import StructType

    delayed = StructType().add("a", "timestamp", True, {"spark.watermarkDelayMs": 1}).add("b", "timestamp")
    assert (event_path(delayed), event_path(StructType().add("b", "timestamp"))) == ((0,), ())
    with pytest.raises(UsageError, match="a, c"):
        event_path(delayed.add("c", "timestamp", True, {"spark.watermarkDelayMs": 1}))


def test_folds_of_one_process_have_processors_of_their_own() -> None:
    plan = ProcessorPlan("None", schema("k STRING, id INT"), [0], schema(OUTPUT))
    shared = Numbers()

    def dataflow(flow: Any) -> Any:
        records = flow.json_lines().map(lambda pair: (tuple(pair[0]), tuple(pair[1])))
        rows = SimpleNamespace(rows=lambda name: records)
        one, two = (processor_flow(rows, shared, plan, "rows", (), name) for name in ("one", "two"))
        return one.concat(two)

    lines = [json.dumps([[0, 0, 0, 0], [f"key {number % 7}", number]]) for number in range(70)]
    found = Counter(SimulatedCluster(1, processes=1, workers=2, rate=100.0).run(dataflow, lines=lines))
    last = {key: max((int(total), count) for (each, total), count in found.items() if each == key) for key, _ in found}
    assert last == {f"key {number}": (10, 2) for number in range(7)}


def test_a_processor_may_make_in_init_what_cannot_travel() -> None:
    class Locked(Numbers):
        def declare(self, handle: Any) -> None:
            super().declare(handle)
            self.lock = threading.Lock()

    locked = Locked()
    assert [*declared_states(locked, "None")] == ["count"]
    assert not vars(locked), "so it can be pickled"


class Numbers(Processor):
    """Counts the rows of a key."""

    def declare(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n INT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        before = self.count.get() or (0,)
        self.count.update((before[0] + len([*rows]),))
        yield self.out(key, self.count.get()[0])
