"""Processors of Spark, and a driver that calls their fold as a job does: batch by batch, with timers."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from megaflow.megaphone.base.event_unit import INFINITE, NEVER, EventUnit
from megaflow.megaphone.base.timers import Timers
from megaflow.rows.packed_rows import BatchTimes
from megaflow.spark.processor_fold import ProcessorFold, ProcessorPlan
from megaflow.spark.stateful_rows import register_rows
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

SCHEMA = "k STRING, id INT, at TIMESTAMP, s STRUCT<x: INT>, m MAP<STRING, INT>"
OUTPUT = "k STRING, what STRING"


class Batch(NamedTuple):
    """A batch of Spark, or its initial state if its number is -1."""

    number: int
    now_ms: int
    late_ms: int
    rows: Sequence[tuple[Any, ...]]  # of travelling values


class Alarm:
    """Receiver of timers, as the operator is: they travel, and wait by their time and key."""

    def __init__(self) -> None:
        self.watermark = NEVER
        self.events: defaultdict[int, dict[Any, list[Any]]] = defaultdict(dict)  # microseconds -> key -> payloads

    def set_event(self, micros: int, key: Any, payload: Any) -> None:
        self.events[micros].setdefault(key, []).append(decode(encode(payload)))

    def set_timer(self, time: Any, key: Any, payload: Any) -> None:
        raise NotImplementedError

    def set_after(self, micros: int, key: Any, payload: Any) -> None:
        raise NotImplementedError


class Driver:
    """Calls a fold as the operator does. Each state travels after each call."""

    def __init__(self, processor: Any, plan: ProcessorPlan) -> None:
        register_rows()
        self.fold = ProcessorFold(processor, plan)
        self.states: dict[Any, Any] = {}
        self.alarm = Alarm()
        self.timers = Timers("processor", self.alarm, EventUnit.MILLISECONDS)
        self._time = 0
        self._places = plan.places

    def run(self, batch: Batch) -> list[tuple[Any, ...]]:
        """Handle a batch: its rows by key, then the timers that are due; return the outputs."""
        alarm, outputs = self.alarm, list[tuple[Any, ...]]()
        self._time += 1
        groups = defaultdict[Any, list[Any]](list)
        for row in batch.rows:
            key = tuple(row[place] for place in self._places) if len(self._places) > 1 else row[self._places[0]]
            times = BatchTimes(batch.number, batch.now_ms, batch.now_ms, batch.late_ms)
            groups[key].append((tuple(times), row))
        for key, records in groups.items():
            outputs += self._call(key, records)
        alarm.watermark = batch.now_ms * 1000
        while (least := min(alarm.events, default=INFINITE)) <= alarm.watermark:
            for key, payloads in alarm.events.pop(least).items():
                outputs += self._call(key, payloads)
        return outputs

    def _call(self, key: Any, records: list[Any]) -> Sequence[tuple[Any, ...]]:
        self.timers.key, self.timers.time = key, self._time
        state, outputs = self.fold(key, self._time, records, self.states.get(key), self.timers)
        self.states.pop(key, None)
        if state is not None:
            self.states[key] = decode(encode(state))
        return outputs


class Processor(StatefulProcessor):
    """What the processors below share: their handle, and an output row."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.declare(handle)

    def declare(self, handle: Any) -> None:
        pass

    def out(self, key: Any, *what: Any) -> Row:
        return Row(what=" ".join(map(str, what)), k=key[0])


class Counts(Processor):
    """Counts the rows of a key; forgets it at ten."""

    def declare(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n INT, last STRING")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        count, last = self.count.get() or (0, None)
        for row in rows:
            count, last = count + 1, str(row)
        yield self.out(key, type(key).__name__, self.count.exists(), count, last)
        if count >= 10:
            self.count.clear()
        else:
            self.count.update((count, last))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.count.update((initialState.w, "initial"))


class Sessions(Processor):
    """Sessions with a gap of 3 s of event time: each later row moves the timer."""

    def declare(self, handle: Any) -> None:
        self.ids = handle.getListState("ids", "id INT, ms LONG")
        self.last = handle.getValueState("last", "ms LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        rows = [(row.id, None if row.at is None else int(row.at.timestamp() * 1000)) for row in rows]
        self.ids.appendList(rows)
        (last,) = self.last.get() or (None,)
        latest = max((ms for _, ms in rows if ms is not None), default=None)
        if latest is not None and (last is None or latest > last):
            if last is not None:
                self.handle.deleteTimer(last + 3000)
            self.last.update((latest,))
            self.handle.registerTimer(latest + 3000)
            self.handle.registerTimer(latest + 3000)
        yield self.out(key, rows, timerValues.getCurrentWatermarkInMs(), sorted(self.handle.listTimers()))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        expiry, watermark = expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs()
        yield self.out(key, "closed", key.k, expiry, watermark, sorted(self.handle.listTimers()), list(self.ids.get()))
        self.ids.clear()
        self.last.clear()


class Pages(Processor):
    """A map and a list, without timers."""

    def declare(self, handle: Any) -> None:
        self.pages = handle.getMapState("pages", "page STRING, part INT", "n INT, at TIMESTAMP, s STRUCT<x: INT>")
        self.seen = handle.getListState("seen", "m MAP<STRING, INT>, ids ARRAY<INT>")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            page = (f"p{row.id % 3}", row.id % 2)
            found = self.pages.getValue(page)
            count = found.n + 1 if found else 1
            self.pages.updateValue(page, (count, row.at, row.s))
            self.seen.appendValue((dict(row.m) if row.m else None, [row.id, None]))
            if count == 3:
                self.pages.removeKey(page)
            if row.id % 7 == 0:
                self.seen.put([({}, [])])
        yield self.out(key, self.pages.exists(), sorted(map(repr, self.pages.iterator())), sorted(self.pages.keys()))
        yield self.out(key, [*self.seen.get()], len([*self.pages.values()]), timerValues.getCurrentWatermarkInMs())


class Expiring(Processor):
    """Values that expire after 2 s of processing time, and a timer for each row after 1 s."""

    def declare(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "id INT", 2000)
        self.ids = handle.getListState("ids", "id INT", 2000)
        self.by_id = handle.getMapState("by_id", "id INT", "n INT", 2000)

    def show(self) -> str:
        ids, exist = sorted(self.ids.get()), (self.value.exists(), self.ids.exists(), self.by_id.exists())
        return f"{exist} {self.value.get()} {ids} {sorted(self.by_id.iterator())} {self.by_id.containsKey((0,))}"

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in rows:
            yield self.out(key, row.id, self.show())
            if row.id % 3 == 0:
                self.value.update((row.id,))
            self.ids.appendValue((row.id,))
            self.by_id.updateValue((row.id % 4,), (row.id,))
            self.handle.registerTimer(now + 1000)
            self.handle.registerTimer(now - 1)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        yield self.out(key, "timer", now, expiredTimerInfo.getExpiryTimeInMs(), self.show())


class Frames(Processor):
    """Gets and returns DataFrames of pandas, and begins with an initial state."""

    def declare(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n LONG, what STRING")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.total.update((int(initialState["w"].sum()), f"{[*initialState.columns]} {len(initialState)}"))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        from pandas import DataFrame

        total, what = self.total.get() or (0, "")
        for frame in rows:
            total += int(frame["id"].sum())
            kinds, first = [*map(str, frame.dtypes)], [repr(value) for value in frame.iloc[-1]]
            yield DataFrame({"what": [f"{key} {total} {what} {kinds} {first}", None], "k": [key[0], "x"]})
        self.total.update((total, what))
        self.handle.registerTimer(timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        from pandas import DataFrame

        yield DataFrame([["timer", f"{key} {self.total.get()}"]], columns=["k", "what"])


class Restless(Processor):
    """Sets timers that are already due while timers fire."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(row.id)
        yield self.out(key, sorted(self.handle.listTimers()))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        if expiry % 10 < 3:
            self.handle.registerTimer(expiry)
            self.handle.registerTimer(expiry + 1)
            self.handle.registerTimer(expiry - 8)
        yield self.out(key, expiry, timerValues.getCurrentWatermarkInMs(), sorted(self.handle.listTimers()))
