"""Folds with timers on Spark's Rows: in a job with megaflow's timers, and for a batch frame with a queue of each key.

`fold_sorted` travels by value to executors without megaflow, so the module imports only `stateful_rows`, which does as
well.

1. A fold with timers is an object with the methods `on_row(key, row, state, timers)` and `on_timer(key, payload, state,
   timers)`, which return (state, outputs). It is an object and not a class, because an object has its settings in it,
   such as the gap of sessions. It travels as a function does, so each worker has a copy. Checkpoints and moves
   leave out the object: only states and timers are kept.
2. A timer's payload travels in a list, and a row as a tuple. So the operator knows one from the other.
3. The watermark of a job follows the column that has one in Spark, with Spark's delay. A row without a time there does
   not move it, as in Spark. Such a row gets a stamp below all others, because the job needs one.
4. A batch frame is sorted by key and event time. The watermark is the time of the present row, because no earlier row
   follows. So a timer fires before the first row that is not earlier than it. In a job, rows come in any order within
   the delay, and rows that are later than a timer may come before it fires. A fold has the same results in both if they
   do not depend on this.
5. After the last row of a key of a batch frame all timers fire: first those for timestamps, in order, then those by the
   clock. A timer that such a call sets fires if it is not later than the key's rows and the timers that it had at that
   moment. Others are dropped. The end of a job has the same rule, with the rows of all keys.
6. The time of a window column is the window's start, which is not later than the rows in it. If it were the end, the
   first row of a window would pass for the time up to its end, and a timer for the end would fire before the others.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from heapq import heappop, heappush
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from megaflow.spark.stateful_rows import (
    answer_of,
    checked_key,
    key_maker,
    naive_in,
    operator_name,
    output_maker,
    plain_record,
    plain_values,
    register_rows,
    row_maker,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NO_TIME = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
START = "start"  # field of a window
EVENTS, CLOCK = 0, 1  # lines of timers, in the order in which they fire at the end


class EventColumn(NamedTuple):
    """The column with the event time of a frame."""

    name: str
    path: tuple[int, ...]  # its place in a row; for a window also the place of its start
    delay_ms: int  # of its watermark


class TimerFold(Protocol):
    """A fold with timers."""

    def on_row(self, key: Any, row: Any, state: Any, timers: "RowTimers") -> tuple[Any, Iterable[Any]]:
        """Take a row of a key; return the key's new state, and outputs."""

    def on_timer(self, key: Any, payload: Any, state: Any, timers: "RowTimers") -> tuple[Any, Iterable[Any]]:
        """Take the payload of a timer that is due."""


class RowTimers:
    """The `timers` of a fold on Spark's rows. They belong to the key of the present call.

    Timers cannot be canceled. Instead, `on_timer` looks at the state, and does nothing if the timer no longer matters.
    """

    def __init__(self, no_events: str, has_tuples: bool, zone: tzinfo) -> None:
        """`no_events`: what to do to get event time, if there is none; `has_tuples`: whether rows are tuples.

        `zone`: that of naive datetimes.
        """
        self.base: Any = None  # `megaflow.Timers`, or a KeyQueue; written by the operator
        self._no_events = no_events
        self._has_tuples = has_tuples
        self._zone = zone

    def at_event(self, timestamp: datetime | int, payload: Any) -> None:
        """Call `on_timer` for the key with `payload`, once the watermark has reached `timestamp`.

        `timestamp` is a datetime as in Rows, naive in the session's time zone, or one with a zone. If rows are tuples,
        it may also be an int of microseconds. Raises ValueError if the frame has no event time.
        """
        if self._no_events:
            raise ValueError(f"timers.at_event needs event time. {self._no_events}")
        if isinstance(timestamp, datetime):
            known = timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=self._zone)
            timestamp = (known - EPOCH) // timedelta(microseconds=1)
        elif type(timestamp) is not int or not self._has_tuples:
            wanted = "a datetime or an int of microseconds" if self._has_tuples else "a datetime, as in Rows"
            raise TypeError(f"timers.at_event({timestamp!r:.200}, …): the timestamp must be {wanted}")
        self.base.at_event(timestamp, [payload])

    def after(self, seconds: float | timedelta, payload: Any) -> None:
        """Call `on_timer` for the key with `payload`, after the job has run for that long."""
        self.base.after(seconds, [payload])

    @property
    def watermark(self) -> Any:
        """Progress of event time, in the form of timestamps in rows: later rows should not be before it.

        None if there is none yet. At the end, when all timers fire, it is the last datetime, or `inf` if rows are
        tuples. It is also the last datetime if no datetime can hold it.
        """
        micros = self.base.watermark
        if self._no_events or micros is None or micros <= NO_TIME:
            return None
        if self._has_tuples:
            return micros
        try:
            return datetime.max if micros == inf else naive_in(self._zone, micros)
        except OverflowError:
            return datetime.max if micros > 0 else None


def has_timers(fold: object) -> bool:
    """Tell whether an object is meant as a fold with timers, and not as a function."""
    return hasattr(fold, "on_row") or hasattr(fold, "on_timer")


def time_reader(path: Sequence[int]) -> Callable[[Any], int]:
    """Return a function from the travelling values of a row to its event time, NO_TIME if it is null.

    >>> time_reader([1])(("ann", 7)), time_reader([0, 1])(((5, 6),)), time_reader([0, 1])((None,)) == NO_TIME
    (7, 6, True)
    """

    def read(values: Any) -> int:
        for place in path:
            values = None if values is None else values[place]
        return NO_TIME if values is None else values

    return read


# In a job -----------------------------------------------------------------------------------


def timed_flow(
    flow: Any, fold: TimerFold, schema: str, places: Sequence[int], event: EventColumn | None, has_tuples: bool,
    zone: tzinfo = UTC,
) -> Any:  # fmt: skip
    """Build the dataflow of a fold with timers on a worker. `places` are those of the key columns in the schema.

    `zone`: that of naive datetimes.
    """
    from pyspark.sql.types import StructType

    register_rows()
    kind = StructType.fromJson(json.loads(schema))
    make_key = row_maker(StructType([kind.fields[place] for place in places]), zone)
    make, is_alone = row_maker(kind, zone), len(places) == 1
    hint = "" if event else "Add .withWatermark(column, delay) to the frame, before groupBy."
    timers = RowTimers(hint, has_tuples, zone)

    def fold_rows(values: Any, _: Any, records: Sequence[Any], state: Any, base: Any) -> Any:
        timers.base = base
        key, out = values, list[Any]()
        if not has_tuples:
            key = make_key((values,))[0] if is_alone else make_key(values)
        if type(records[0]) is list:  # timers get a call of their own
            for (payload,) in records:
                state, outputs = answer_of(key, fold.on_timer(key, payload, state, timers))
                out.extend(outputs)
            return state, out
        for record in records:
            state, outputs = answer_of(key, fold.on_row(key, record if has_tuples else make(record), state, timers))
            out.extend(outputs)
        return state, out

    rows = flow.rows()
    if event is not None:
        rows = rows.event_time(time_reader(event.path), timedelta(milliseconds=event.delay_ms), unit="us")
    name = operator_name(kind.names, places)
    return rows.stateful_unary(fold_rows, key=itemgetter(*places), name=name).map(plain_record)


# In a task of Spark -------------------------------------------------------------------------


class KeyQueue:
    """Timers of one key of a batch frame. Its one writer is `fold_key`."""

    def __init__(self) -> None:
        self.watermark: float | None = None  # microseconds
        self._due: list[tuple[int, float, int, Any]] = []  # heap: line, microseconds, number, payload in a list
        self._count = 0  # timers so far
        self._limit = inf  # at the end: of timestamps that still fire

    def at_event(self, micros: int, payload: Any) -> None:
        """Set a timer for a timestamp."""
        if micros <= self._limit:
            self._add(EVENTS, micros, payload)

    def after(self, seconds: float | timedelta, payload: Any) -> None:
        """Set a timer by the clock, which fires at the end. Raises ValueError for an invalid length of time."""
        length = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if type(length) not in (int, float) or not 0 <= length < inf:
            raise ValueError(f"timers.after({seconds!r:.200}, …): give a number of seconds or a timedelta, at least 0")
        if self._limit == inf:
            self._add(CLOCK, length, payload)

    def reach(self, micros: int) -> Iterator[Any]:
        """Set the watermark; yield the payloads that are due, each when the previous one has been processed."""
        self.watermark = micros
        return self._fire(EVENTS, micros)

    def end(self) -> Iterator[Any]:
        """Set the infinite watermark, and yield the payloads of all timers."""
        reached = NO_TIME if self.watermark is None else self.watermark
        self._limit = max((micros for line, micros, *_ in self._due if line == EVENTS), default=reached)
        self._limit = max(self._limit, reached)
        self.watermark = inf
        return self._fire(CLOCK, inf)

    def _add(self, line: int, micros: float, payload: Any) -> None:
        self._count += 1
        heappush(self._due, (line, micros, self._count, payload))

    def _fire(self, line: int, micros: float) -> Iterator[Any]:
        while self._due and (first := self._due[0][:2]) <= (line, micros):
            together = list[Any]()
            while self._due and self._due[0][:2] == first:
                together.append(heappop(self._due)[-1])
            yield from together


def fold_sorted(
    fold: TimerFold, kind: Any, places: Sequence[int], output: Any, event: EventColumn | None,
    has_tuples: bool, zone: tzinfo, rows: Iterable[Any],
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """Yield the outputs of a fold with timers, as tuples. Runs in a task of Spark.

    The rows are sorted by key, and by event time if there is any. `kind` is the StructType of the frame; the rows have
    ints for its timestamps and dates. `output`: the StructType of the outputs; `zone`: that of naive datetimes. Keeps
    the state of one key at a time.
    """
    hint = "" if event else "Name its column by event_time=, because Spark drops withWatermark from a batch frame."
    timers, time_of = RowTimers(hint, has_tuples, zone), None if event is None else time_reader(event.path)
    make, made = row_maker(kind, zone), output_maker(output, zone)
    pairs = ((values, values if has_tuples else make(values)) for values in map(plain_values, rows))
    pick, make_key = itemgetter(*places), key_maker(kind.names, places)
    for values_of_key, group in groupby(pairs, key=lambda pair: pick(pair[0])):
        queue = timers.base = KeyQueue()
        state: Any = None
        key = checked_key(values_of_key)
        for values, row in group:
            if not has_tuples:
                key = make_key(row)
            if time_of is not None and (micros := time_of(values)) != NO_TIME:
                for (payload,) in queue.reach(micros):
                    state, outputs = answer_of(key, fold.on_timer(key, payload, state, timers))
                    yield from map(made, outputs)
            state, outputs = answer_of(key, fold.on_row(key, row, state, timers))
            yield from map(made, outputs)
        for (payload,) in queue.end():
            state, outputs = answer_of(key, fold.on_timer(key, payload, state, timers))
            yield from map(made, outputs)
