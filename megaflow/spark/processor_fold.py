"""An existing `StatefulProcessor` of Spark as a fold of `Stream.stateful_unary`.

`ProcessorFold` is called as fold(key, time, records, state, timers) -> (state, outputs):

1. Once per key and batch, with records (info, values). `info` is (number, now_ms, late_ms): the batch's number, its
   processing time or watermark, and the watermark for late rows. With number INITIAL, `values` are a row of the initial
   state. The processor sees the rows of a batch before timers fire, as in Spark.
2. Once per key and expiry of a timer, with its payloads. Then `timers.watermark` is the batch's time in ms.
3. Once per key and batch for timers that were set too late for the batch before, with or without rows.

A payload begins with a text, a record with a tuple. Each process has one processor and one handle. The process calls
`init` before the first call, and `close` when Python exits.
"""

import atexit
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, tzinfo
from math import inf
from typing import Any, Final, TypeAlias

from megaflow.errors import UsageError
from megaflow.quick_dataclass import dataclass
from megaflow.rows.packed_rows import columns_of
from megaflow.spark.processor_states import AGAIN, LONG, MS, STALE, TIMER, Entries, ProcessorHandle
from megaflow.spark.processor_values import frame_maker, frame_outputs, kept_row, keys_of, row_maker, row_outputs

INITIAL: Final = -1  # the number of a batch that is the initial state
DELAY: Final = "spark.watermarkDelayMs"  # metadata of an event-time column

Info: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ProcessorPlan:
    """What a fold needs to know besides the processor. Schemas have the form of `StructType.json`."""

    time_mode: str
    schema: str  # of the input
    places: Sequence[int]  # of the key columns in it
    output: str  # schema of the output
    zone: tzinfo = UTC  # of the Spark session
    pandas: bool = False
    initial: str = ""  # schema of the initial state
    event_place: int | None = None  # of the event-time column


def event_place(schema: Any) -> int | None:
    """Return the place of the event-time column in a StructType; None: it has none. Raises UsageError for several."""
    found = [place for place, field in enumerate(schema.fields) if DELAY in field.metadata]
    if len(found) > 1:
        names = ", ".join(schema.fields[place].name for place in found)
        raise UsageError(f"Several columns have a watermark: {names}. Keep one of them.")
    return found[0] if found else None


def declared_states(processor: Any, time_mode: str) -> list[str]:
    """Return the names of the processor's state variables. Calls its `init` and `close`, as Spark's driver does."""
    handle = ProcessorHandle(time_mode)
    processor.init(handle)
    names = handle.seal()
    processor.close()
    return names


class ProcessorFold:
    """The fold of one process."""

    def __init__(self, processor: Any, plan: ProcessorPlan) -> None:
        """Raises UsageError for a time mode that Spark does not have."""
        from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

        self._times, self._expired = TimerValues, ExpiredTimerInfo
        self.late_rows = 0
        """Number of rows that came too late and were dropped."""
        self._processor = processor
        self._plan = plan
        self._handle = ProcessorHandle(plan.time_mode)
        self._begin: Callable[[], None] = self._start
        columns = columns_of(plan.schema)
        kinds = [columns[place].kind for place in plan.places]
        self._key_of = keys_of(kinds, plan.zone, plan.pandas)
        self._key_row = kept_row([columns[place].name for place in plan.places], kinds)
        maker = frame_maker if plan.pandas else row_maker
        self._make = maker(plan.schema, plan.zone)
        self._make_initial = maker(plan.initial, plan.zone) if plan.initial else None
        self._records = frame_outputs(plan.output, plan.zone) if plan.pandas else row_outputs(plan.output)

    def __call__(
        self, key: Any, time: Any, records: Sequence[tuple[Any, Any]], state: Entries | None, timers: Any
    ) -> tuple[Entries | None, Sequence[tuple[Any, ...]]]:
        """Handle the rows or timers of a key."""
        self._begin()
        values = (key,) if len(self._plan.places) == 1 else key
        payloads = [record for record in records if isinstance(record[0], str)]
        rows = [record for record in records if not isinstance(record[0], str)]
        if any(kind != AGAIN for kind, _ in payloads):
            return self._fire(values, {*payloads}, state, timers)
        now_ms = rows[0][0][1] if rows else -LONG
        self._handle.begin(state, timers, now_ms, fires=False)
        for _, expiry in payloads:
            self._handle.fire_again(expiry)
        outputs = self._handle_rows(values, rows, now_ms) if rows else []
        return self._handle.end(), outputs

    def _start(self) -> None:
        """Call the processor's `init` before the first call."""
        self._processor.init(self._handle)
        self._handle.seal()
        atexit.register(self._processor.close)
        self._begin = _do_nothing

    def _handle_rows(self, values: Sequence[Any], records: Sequence[tuple[Info, Any]], now_ms: int) -> list[Any]:
        key, at = self._key_of(values), self._timer_values(now_ms)
        initial = [row for info, row in records if info[0] == INITIAL]
        if initial:
            assert self._make_initial is not None, "the plan has no schema of the initial state"
            given = [self._make_initial(initial)] if self._plan.pandas else map(self._make_initial, initial)
            for each in given:
                self._processor.handleInitialState(key, each, at)
        rows = self._in_time([record for record in records if record[0][0] != INITIAL])
        if not rows:
            return []
        made = iter([self._make(rows)]) if self._plan.pandas else map(self._make, rows)
        return self._taken("handleInputRows", self._processor.handleInputRows(key, made, at))

    def _in_time(self, records: Sequence[tuple[Info, Any]]) -> list[Any]:
        """Return the rows that are not late. A row without event time is never late."""
        rows = [row for _, row in records]
        place = self._plan.event_place
        if not rows or place is None or self._handle.time_mode != "eventtime":
            return rows
        late = records[0][0][2] * MS
        kept_rows = [row for row in rows if row[place] is None or row[place] > late]
        self.late_rows += len(rows) - len(kept_rows)
        return kept_rows

    def _fire(
        self, values: Sequence[Any], payloads: set[tuple[str, int]], state: Entries | None, timers: Any
    ) -> tuple[Entries | None, Sequence[tuple[Any, ...]]]:
        """Handle timers that are due. The timers of Spark stay at the end of a job, so those of its end do nothing."""
        if state is None or timers.watermark == inf:
            return state, ()
        handle, outputs = self._handle, list[Any]()
        handle.begin(state, timers, int(timers.watermark), fires=True)
        for kind, expiry in sorted(payloads):
            if kind == STALE:
                handle.clean(expiry)
            elif kind == TIMER and handle.is_live(expiry):
                at, info = self._timer_values(handle.now_ms), self._expired(expiry)
                result = self._processor.handleExpiredTimer(self._key_row(values), at, info)
                outputs += self._taken("handleExpiredTimer", result)
                handle.deleteTimer(expiry)  # even if the processor has set it again, as in Spark
        return handle.end(), outputs

    def _taken(self, method: str, result: Iterable[Any] | None) -> list[Any]:
        """Return the records of the outputs of a method."""
        if result is None:
            name = type(self._processor).__name__
            raise TypeError(f"{name}.{method} returned None. It must return an iterator, as in 'return iter([])'.")
        return [record for output in result for record in self._records(output)]

    def _timer_values(self, now_ms: int) -> Any:
        """Return the batch's time in the time mode's place. Spark also has the other time there."""
        match self._handle.time_mode:
            case "processingtime":
                return self._times(now_ms, 0)
            case "eventtime":
                return self._times(-1, now_ms)
        return self._times(-1, -1)


def _do_nothing() -> None:
    pass
