"""An existing `StatefulProcessor` of Spark as a fold of `Stream.stateful_unary`.

`ProcessorFold` is called as fold(key, time, records, state, timers) -> (state, outputs):

1. Once per key and batch, with records (times, values). `times` is the BatchTimes of the batch, as a tuple. With number
   INITIAL, `values` are a row of the initial state. The processor sees the rows of a batch before timers fire, as in
   Spark.
2. Once per key and expiry of a timer, with its payloads. Then `timers.watermark` is the batch's time in ms.

A payload begins with a text, a record with a tuple. Each worker has one processor and one handle. It calls
`init` before the first call, and `close` when Python exits.
"""

import atexit
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import field
from datetime import UTC, tzinfo
from math import inf
from operator import itemgetter
from typing import Any, Final, TypeAlias

from megaflow.durable.restored import Adapt, Upgrade, unchanged
from megaflow.errors import StoreError, UsageError
from megaflow.keyed_state import KeyedState
from megaflow.megaphone.base.bins import stable_hash
from megaflow.megaphone.base.event_unit import EventUnit
from megaflow.megaphone.folds.stateful_core import Core
from megaflow.quick_dataclass import dataclass
from megaflow.rows.packed_rows import BatchTimes, columns_of
from megaflow.spark.batch_times import INITIAL
from megaflow.spark.processor_states import MS, STALE, TIME_MODES, TIMER, Entries, ProcessorHandle
from megaflow.spark.processor_values import frame_maker, frame_outputs, kept_row, keys_of, row_maker, row_outputs
from megaflow.spark.query_spec import TimeMode
from megaflow.spark.stateful_rows import register_rows
from megaflow.spark.stateful_timers import NO_TIME, time_reader
from megaflow.stream import Stream

INITIAL_ROWS: Final = "initialState"  # name of the job's second input
BINS: Final = 256
STATES: Final = "; states "  # between a time mode and the declarations in a commit
DELAY: Final = "spark.watermarkDelayMs"  # metadata of an event-time column

Times: TypeAlias = tuple[int, int, int, int]
"""A BatchTimes as a tuple."""


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
    event_path: Sequence[int] = ()  # of event time in a row, see `event_path`; (): there is none
    states: Mapping[str, str] = field(default_factory=dict)  # variable -> its declaration


@dataclass(frozen=True, slots=True)
class TimedForm:
    """States whose timers and expiries are times of a time mode."""

    time_mode: TimeMode
    states: Mapping[str, str] = field(default_factory=dict)  # variable -> its declaration

    def text(self) -> str:
        """Return the time mode and the declarations, for the commits of a store."""
        declared = f"{STATES}{json.dumps({**self.states}, sort_keys=True)}" if self.states else ""
        return f"a processor with timeMode {self.time_mode}{declared}"

    def upgrading(self, upgrade: Upgrade, furthest: int | None, has_other_windows: bool) -> Upgrade:
        """Return the same function."""
        return upgrade

    def adapter(self, kept: str) -> Adapt:
        """Return `unchanged`. Raises StoreError for states of another time mode, or if a variable has changed.

        A commit of an earlier megaflow lacks the declarations.
        """
        mode, _, declared = kept.partition(STATES)
        if mode != self.text().partition(STATES)[0]:
            raise StoreError(
                f"The query's checkpoint has the states of {mode}, and now it has timeMode {self.time_mode}. Use the "
                "earlier timeMode, or give the query a new checkpointLocation."
            )
        for name, before in json.loads(declared or "{}").items():
            if (now := self.states.get(name, before)) != before:
                raise StoreError(
                    f"The query's checkpoint has the state {name!r} as {before}, and now the processor declares it as "
                    f"{now}. Give the changed state another name, or give the query a new checkpointLocation."
                )
        return unchanged


def event_path(schema: Any) -> Sequence[int]:
    """Return the path to event time in the rows of a StructType; (): they have none. Raises UsageError for several.

    A window is late by its end, as in Spark.
    """
    found = [place for place, each in enumerate(schema.fields) if DELAY in each.metadata]
    if len(found) > 1:
        names = ", ".join(schema.fields[place].name for place in found)
        raise UsageError(f"Several columns have a watermark: {names}. Keep one of them.")
    if not found:
        return ()
    kind = schema.fields[found[0]].dataType
    return (*found, kind.names.index("end")) if kind.typeName() == "struct" else (*found,)


def declared_states(processor: Any, time_mode: str) -> dict[str, str]:
    """Return the declarations of the processor's state variables, by their names.

    Calls `init` and `close` of a copy, as Spark's driver does. The processor itself stays as its user made it, and so
    can travel, whatever `init` would give it.
    """
    handle, copy = ProcessorHandle(time_mode), deepcopy(processor)
    copy.init(handle)
    declared = handle.seal()
    copy.close()
    return declared


def processor_flow(
    flow: Any, processor: Any, plan: ProcessorPlan, rows: str, initial_places: Sequence[int], name: str
) -> Stream[Any]:
    """Build the dataflow of a processor on a worker. `initial_places`: of the initial state's keys; (): there is none.

    Each record is a row with the times of its batch, and its key is that of the row. Each worker has a copy of the
    processor, because the workers of a process are threads.
    """
    register_rows()
    pairs = _keyed(flow.rows(rows), plan.places)
    if initial_places:
        pairs = _keyed(flow.rows(INITIAL_ROWS), initial_places).concat(pairs)
    fold = ProcessorFold(deepcopy(processor), plan)
    made = KeyedState("stateful_unary", fold, stable_hash, None, BINS, name, 1, None, False)
    form = TimedForm(TIME_MODES[plan.time_mode.lower()], plan.states)
    return Stream(made.timed([pairs.port], EventUnit.MILLISECONDS, form, fold.counts_late_rows_of))


def _keyed(records: Stream[Any], places: Sequence[int]) -> Stream[Any]:
    key_of = itemgetter(*places)
    return records.map(lambda record: (key_of(record[1]), record))


class ProcessorFold:
    """The fold of one worker."""

    def __init__(self, processor: Any, plan: ProcessorPlan) -> None:
        """Raises UsageError for a time mode that Spark does not have."""
        from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

        self._times, self._expired = TimerValues, ExpiredTimerInfo
        self._count_late: Callable[[int], None] = lambda rows: None  # adds to the operator's late records
        self._processor = processor
        self._plan = plan
        self._handle = ProcessorHandle(plan.time_mode)
        self._by_processing = self._handle.time_mode == "processingtime"  # else by the watermark
        self._begin: Callable[[], None] = self._start
        columns = columns_of(plan.schema)
        keys = [columns[place] for place in plan.places]
        self._time_of = time_reader(plan.event_path)
        self._key_of = keys_of(keys, plan.zone, plan.pandas)
        self._key_row = kept_row([each.name for each in keys], [each.kind for each in keys])
        maker = frame_maker if plan.pandas else row_maker
        self._make = maker(plan.schema, plan.zone)
        self._make_initial = maker(plan.initial, plan.zone) if plan.initial else None
        self._records = frame_outputs(plan.output, plan.zone) if plan.pandas else row_outputs(plan.output)

    def __call__(
        self, key: Any, epoch: Any, records: Sequence[tuple[Any, Any]], state: Entries | None, timers: Any
    ) -> tuple[Entries | None, Sequence[tuple[Any, ...]]]:
        """Handle the rows or timers of a key."""
        self._begin()
        values = (key,) if len(self._plan.places) == 1 else key
        if isinstance(records[0][0], str):
            return self._fire(values, {*records}, state, timers)
        times = BatchTimes(*records[0][0])
        now_ms = times.processing_ms if self._by_processing else times.watermark_ms
        self._handle.begin(state, timers, now_ms, fires=False)
        outputs = self._handle_rows(values, records, times)
        return self._handle.end(), outputs

    def counts_late_rows_of(self, core: Core) -> None:
        """Count the rows that come too late and are dropped as late records of this operator."""

        def count(rows: int) -> None:
            core.late += rows

        self._count_late = count

    def _start(self) -> None:
        """Call the processor's `init` before the first call."""
        self._processor.init(self._handle)
        self._handle.seal()
        atexit.register(self._processor.close)
        self._begin = _do_nothing

    def _handle_rows(self, values: Sequence[Any], records: Sequence[tuple[Times, Any]], times: BatchTimes) -> list[Any]:
        key, at = self._key_of(values), self._timer_values(times.processing_ms, times.watermark_ms)
        rows = [row for _, row in records]
        if times.number == INITIAL:
            assert self._make_initial is not None, "the plan has no schema of the initial state"
            for each in [self._make_initial(rows)] if self._plan.pandas else map(self._make_initial, rows):
                self._processor.handleInitialState(key, each, at)
            return []
        if not (rows := self._in_time(rows, times.late_ms * MS)):
            return []
        made = iter([self._make(rows)]) if self._plan.pandas else map(self._make, rows)
        return self._taken("handleInputRows", self._processor.handleInputRows(key, made, at))

    def _in_time(self, rows: list[Any], late: int) -> list[Any]:
        """Return the rows that are later than `late`, in microseconds, or have no event time."""
        if not self._plan.event_path or self._handle.time_mode != "eventtime":
            return rows
        kept_rows = [row for row in rows if (at := self._time_of(row)) == NO_TIME or at > late]
        self._count_late(len(rows) - len(kept_rows))
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
                times = (handle.now_ms, 0) if self._by_processing else (round(time.time() * 1000), handle.now_ms)
                key, at, info = self._key_row(values), self._timer_values(*times), self._expired(expiry)
                result = self._processor.handleExpiredTimer(key=key, timerValues=at, expiredTimerInfo=info)  # as Spark
                outputs += self._taken("handleExpiredTimer", result)
                handle.deleteTimer(expiry)  # even if the processor has set it again, as in Spark
        return handle.end(), outputs

    def _taken(self, method: str, result: Iterable[Any] | None) -> list[Any]:
        """Return the records of the outputs of a method."""
        if result is None:
            name = type(self._processor).__name__
            raise TypeError(f"{name}.{method} returned None. It must return an iterator, as in 'return iter([])'.")
        return [record for output in result for record in self._records(output)]

    def _timer_values(self, processing_ms: int, watermark_ms: int) -> Any:
        """Return the times as the processor gets them."""
        return self._times(-1, -1) if self._handle.time_mode == "none" else self._times(processing_ms, watermark_ms)


def _do_nothing() -> None:
    pass
