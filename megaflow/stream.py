"""Streams and their methods: one method per operator, one line of code per method.

A stream is the output of an operator, on every worker. Records have a time; a method keeps it unless it says otherwise.
Functions given to methods run on the worker that holds the record. An exception in one stops the job with a traceback.

An `EventStream` is a stream whose records have timestamps beside them. The methods that it overrides keep the
timestamps; all others work on the plain records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Unpack, overload

from megaflow.event_time.aggregations import Aggregations
from megaflow.event_time.windowed import Emit, WindowedPort
from megaflow.event_time.windows import Length, Window, Windows
from megaflow.keyed_state import KeyedState
from megaflow.megaphone.aggregates import (
    COUNT_BY_KEY,
    COUNT_BY_VALUE,
    SUM_BY_KEY,
    Counting,
    Kept,
    Keyed,
    N,
    Placing,
    aggregated,
    fold_by_key,
)  # fmt: skip
from megaflow.megaphone.bins import stable_hash
from megaflow.megaphone.event_clock import IN_SECONDS, NAME, StreamUnit, event_time
from megaflow.megaphone.record_bounds import timestamp_of
from megaflow.megaphone.stateful import A, Fold, K, R, V
from megaflow.megaphone.stateful_timed import BinaryFold, UnaryFold, W
from megaflow.stream_end import A_STREAM, port_of
from megaflow.stream_pass import AnyTime, StreamPass
from megaflow.timely.dataflow.folds import pairing
from megaflow.timely.dataflow.given import function, instance
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators import aggregation, branching, generic, linear, movement, stamped
from megaflow.timely.dataflow.operators.branching import E, T, U
from megaflow.timely.dataflow.pact import PactOrClass
from megaflow.timely.order import Time


class Stream(StreamPass[T, "Stream[T]"]):
    """Records of type T, with times, spread over the workers."""

    unit = IN_SECONDS  # that timers take and give the times of events in
    pairs: Port[Any] | None = None  # of timestamps and records; None: they have none

    def _same(self, port: Port[T]) -> Stream[T]:
        return Stream(port)

    # Records one by one -----------------------------------------------------------------

    def map(self, f: Callable[[T], U]) -> Stream[U]:
        """Apply `f` to each record.

        `f` may change the record that it receives, like the functions of all other operators. If a stream has several
        consumers, or is broadcast to threads of one process, each consumer receives its own copies of mutable records;
        records of immutable types are shared. A class controls copying with `__deepcopy__`. A record that cannot be
        copied stops the job.
        """
        return Stream(linear.map_(self.port, function("map", f)))

    def flat_map(self, f: Callable[[T], Iterable[U]]) -> Stream[U]:
        """Replace each record by the records that `f(record)` returns."""
        return Stream(linear.flat_map(self.port, function("flat_map", f)))

    def partition(self, count: int, f: Callable[[T], tuple[int, U]]) -> list[Stream[U]]:
        """Split into `count` streams: `f(record)` returns (stream number, new record). Records stay on their workers.
        """
        return [Stream(port) for port in branching.partition(self.port, count, function("partition", f))]

    def ok_err(self, f: Callable[[T], branching.Result[U, E]]) -> tuple[Stream[U], Stream[E]]:
        """Return two streams: x of each record for which `f(record)` is `Ok(x)`, and e of each with `Err(e)`."""
        oks, errs = branching.ok_err(self.port, function("ok_err", f))
        return Stream(oks), Stream(errs)

    def event_time(
        self, timestamp: Callable[[T], Any], out_of_order: Length = 0.0, *, unit: str | None = None, name: str = NAME,
        advance_when_idle: bool = False,
    ) -> EventStream[T]:  # fmt: skip
        """Attach a timestamp to each record: `timestamp(record)`, called once, stays beside the record.

        A timestamp is a number of seconds since 1970 (milliseconds or microseconds with `unit="ms"` or `"us"`) or a
        datetime with a time zone. Windows and timers use the same unit. Event time follows the greatest timestamp of
        each file or partition, less `out_of_order` (seconds or a timedelta): a record that comes at most so much behind
        a later one is not late. All operators between the source and here must be stateless and must not move records
        (map, flat_map, filter, branch, concat, …); otherwise BuildError is raised. ProgramError is raised for invalid
        timestamps: None, NaN, a datetime without a zone, a year after 9999, numbers mixed with datetimes.

        A partition without new records never advances event time, so the last windows of a quiet partition stay open.
        With `advance_when_idle` event time follows the clock once all partitions have been idle for `--idle-timeout`.
        """
        return EventStream(*event_time(self.port, timestamp, out_of_order, unit, name, bool(advance_when_idle)))

    # State of a time, or of a key -------------------------------------------------------

    def count(self) -> Stream[int]:
        """Count this worker's records of each time that has any. Sends the count when the time is closed."""
        return Stream(aggregation.count(self.port))

    def accumulate(self, init: A, f: Callable[[A, T], A]) -> Stream[A]:
        """Fold this worker's records of each time that has any, from a copy of `init`: `f(acc, record) -> acc`."""
        return Stream(aggregation.accumulate(self.port, init, function("accumulate", f)))

    @overload
    def aggregate(
        self: Stream[tuple[K, V]], fold: Callable[[K, V, A | None], A], emit: Callable[[K, A], R],
        hash: Callable[[K], int] = ...,
    ) -> Stream[R]: ...  # fmt: skip
    @overload
    def aggregate(
        self, fold: Callable[[K, V, A | None], A], emit: Callable[[K, A], R], hash: Callable[[K], int] = ..., *,
        key: Callable[[T], K], value: Callable[[T], V] = ...,
    ) -> Stream[R]: ...  # fmt: skip
    def aggregate(self, fold: Any, emit: Any, hash: Any = stable_hash, *, key: Any = None, value: Any = None) -> Any:
        """Fold the values of each key and time: `fold(key, value, state) -> state`, where the first state is None.

        When a time is closed, `emit(key, state)` is sent for each of its keys. Keys go to founding workers and must not
        be or contain NaN. Records are (key, value) pairs, or `key` and `value` make them, see `stateful_state_machine`.
        """
        function("aggregate", fold, "fold")
        function("aggregate", emit, "emit")
        port = self._pairs("aggregate", key, value).port
        return Stream(aggregation.aggregate(port, fold, emit, function("aggregate", hash, "hash")))

    @overload
    def state_machine(
        self: Stream[tuple[K, V]], fold: Fold[K, V, A, R], hash: Callable[[K], int] = ...
    ) -> Stream[R]: ...
    @overload
    def state_machine(
        self, fold: Fold[K, V, A, R], hash: Callable[[K], int] = ..., *,
        key: Callable[[T], K], value: Callable[[T], V] = ...,
    ) -> Stream[R]: ...  # fmt: skip
    def state_machine(self, fold: Any, hash: Any = stable_hash, *, key: Any = None, value: Any = None) -> Any:
        """Keep a state per key that never moves. Arguments and order are those of `stateful_state_machine`.

        Keys are exchanged among the founding workers, even after others join. For state that moves, use
        `stateful_state_machine`.
        """
        function("state_machine", fold, "fold")
        port = self._pairs("state_machine", key, value).port
        return Stream(aggregation.state_machine(port, fold, function("state_machine", hash, "hash")))

    # Operators by hand ------------------------------------------------------------------

    def unary(
        self, pact: PactOrClass, name: str, build: generic.UnaryBuild[T, R], *, stateless: bool = False
    ) -> Stream[R]:
        """Build a custom operator: `build(capability, info)` returns `logic(input, output)`, which runs on data.

        With `--state` a job refuses custom operators, because it cannot save what they keep from one time to the next.
        `stateless=True` declares that the operator keeps no state and no record to send later; the job then accepts it.
        """
        inputs = [(self.port, pact)]
        return Stream(generic.operator(self.port.scope, name, inputs, build, notify=False, stateless=stateless))

    def unary_frontier(
        self, pact: PactOrClass, name: str, build: generic.UnaryBuild[T, R], *, stateless: bool = False
    ) -> Stream[R]:
        """Build an operator like `unary` whose logic also runs when `input.frontier` moves."""
        return Stream(generic.operator(self.port.scope, name, [(self.port, pact)], build, stateless=stateless))

    def binary(
        self, other: Stream[U], pact1: PactOrClass, pact2: PactOrClass, name: str, build: generic.BinaryBuild[T, U, R],
        *, stateless: bool = False,
    ) -> Stream[R]:  # fmt: skip
        """Build a custom operator on two streams: `logic(input1, input2, output)` runs on data, see `unary`."""
        inputs = [(self.port, pact1), (port_of("binary", other), pact2)]
        return Stream(generic.operator(self.port.scope, name, inputs, build, notify=False, stateless=stateless))

    def binary_frontier(
        self, other: Stream[U], pact1: PactOrClass, pact2: PactOrClass, name: str, build: generic.BinaryBuild[T, U, R],
        *, stateless: bool = False,
    ) -> Stream[R]:  # fmt: skip
        """Build an operator like `binary` whose logic also runs when a frontier moves."""
        inputs = [(self.port, pact1), (port_of("binary_frontier", other), pact2)]
        return Stream(generic.operator(self.port.scope, name, inputs, build, stateless=stateless))

    def unary_notify(
        self, pact: PactOrClass, name: str, logic: generic.NotifyLogic[T, R], init: Iterable[Time] = (),
        *, stateless: bool = False,
    ) -> Stream[R]:  # fmt: skip
        """Build a custom operator that is notified when times are complete: `logic(input, output, notificator)`.

        Call `notificator.notify_at(time.retain())` to request a notification. In each run, call
        `notificator.for_each([input.frontier], f)`: it calls `f(capability, count)` for each complete time. `init`
        lists times that are requested at the start.
        """
        return self.unary_frontier(pact, name, generic.notified(logic, init), stateless=stateless)

    def binary_notify(
        self, other: Stream[U], pact1: PactOrClass, pact2: PactOrClass, name: str,
        logic: generic.BinaryNotifyLogic[T, U, R], init: Iterable[Time] = (), *, stateless: bool = False,
    ) -> Stream[R]:  # fmt: skip
        """Build an operator like `unary_notify` on two streams: `logic(input1, input2, output, notificator)`."""
        build = generic.notified(logic, init)
        return self.binary_frontier(other, pact1, pact2, name, build, stateless=stateless)

    # State that moves -------------------------------------------------------------------

    @overload
    def stateful_state_machine(
        self: Stream[tuple[K, V]], fold: Fold[K, V, A, R], hash: Callable[[K], int] = ...,
        control: Stream[Any] | None = ..., *, ttl: Length | None = ..., **kept: Unpack[Kept[K]],
    ) -> Stream[R]: ...  # fmt: skip
    @overload
    def stateful_state_machine(
        self, fold: Fold[K, V, A, R], hash: Callable[[K], int] = ..., control: Stream[Any] | None = ..., *,
        key: Callable[[T], K], value: Callable[[T], V] = ..., ttl: Length | None = ..., **kept: Unpack[Kept[K]],
    ) -> Stream[R]: ...  # fmt: skip
    def stateful_state_machine(
        self, fold: Any, hash: Any = stable_hash, control: Any = None, *, key: Any = None, value: Any = None,
        bins: int = 256, name: str | None = None, version: int = 1, upgrade: Any = None, rehash: Any = False,
        ttl: Length | None = None,
    ) -> Stream[Any]:  # fmt: skip
        """Keep a state per key, in bins that can move between workers while the stream runs.

        Records are (key, value) pairs: tuples or lists of two. For all other records, `key(record)` returns the key,
        and `value(record)` the value; without `value`, the value is the record itself.

        `fold(key, value, state) -> (state, outputs)`: state is None for a new key; return None to forget the key.
        Values of a key come in the order of their times, and within a time in order of arrival. Outputs have the
        record's time.

        `outputs` is a list, or another iterable, of records: `[(key, state)]` for one, `[]` or `()` for none. A str,
        bytes, dict or non-empty tuple is refused, because it is one record that would be split. An output must neither
        be nor contain an object that the fold changes in place later. Emit a copy, `[(key, list(state))]`, or make a
        new state in each call. Set `MEGAFLOW_CHECK=aliasing` in the environment to find a fold that does neither.

        A nested scope orders times by the outer time, then by the round. Round 0 of t + 1 waits for the last round of
        t, so a state never shows later records. Times of commands are ints in every scope. They move bins between outer
        times: a command at t takes effect after the last round of t - 1. The dataflow must have int times.

        With `ttl` (seconds or a timedelta), a key loses its state after that long without a record. Its next record
        finds None; nothing is sent. On a stream of `event_time`, event time decides when the next record is read: that
        record's timestamp, or the earlier ones of its file or partition less `out_of_order`, has reached the key's
        greatest timestamp plus `ttl`. The watermark frees such states earlier. On other streams the clock of
        `timers.after` decides: the job has run for `ttl` since the key's last record. When all lines are read, no state
        expires. `ttl` needs commands, and is not available in nested scopes.

        A key must not be or contain NaN, which equals nothing. `hash` must agree between processes; its result is mixed
        before the bin is chosen. `control` is a stream of `Move` and `Map`, injected on one worker. A worker that joins
        may be named once `worker.peer_ids` lists it. Without `control`, and without that of a flow, bins never move.
        `bins` is a power of two up to 2^20. Source: Megaphone, PVLDB 12(9), section 3.

        With `--state` the operator is stored under its `name`, by default the name of the fold. If the form of states
        changes, raise `version` and give `upgrade(key, state, version)`. It returns the new form of a state of an
        earlier version, or None to forget the key. Each state passes through it once, before any other use. If `hash`
        changes, give the previous hash as `rehash` (True stands for `stable_hash`); keys are then placed anew. Both may
        stay in the program. The number of `bins` may change freely. Payloads of timers are not upgraded.
        """
        made = KeyedState("stateful_state_machine", fold, hash, control, bins, name, version, upgrade, rehash)
        pairs = self._pairs(made.name, key, value)
        if ttl is None:
            return Stream(made.machine(pairs.port))
        if pairs.pairs is None:
            return Stream(made.lasting_by_clock(pairs.port, ttl))
        return Stream(made.lasting_by_events(pairs.pairs, ttl))

    @overload
    def stateful_unary(
        self: Stream[tuple[K, V]], fold: UnaryFold[K, A, R], hash: Callable[[K], int] = ...,
        control: Stream[Any] | None = ..., **kept: Unpack[Kept[K]],
    ) -> Stream[R]: ...  # fmt: skip
    @overload
    def stateful_unary(
        self, fold: UnaryFold[K, A, R], hash: Callable[[K], int] = ..., control: Stream[Any] | None = ..., *,
        key: Callable[[T], K], value: Callable[[T], Any] = ..., **kept: Unpack[Kept[K]],
    ) -> Stream[R]: ...  # fmt: skip
    def stateful_unary(
        self, fold: Any, hash: Any = stable_hash, control: Any = None, *, key: Any = None, value: Any = None,
        bins: int = 256, name: str | None = None, version: int = 1, upgrade: Any = None, rehash: Any = False,
    ) -> Stream[Any]:  # fmt: skip
        """Keep a state per key, as `stateful_state_machine` does, and fold the records of a key and time together.

        `fold(key, time, records, state, timers) -> (state, outputs)` is called once per key and time, when the time is
        closed. `timers.at(later, payload)` makes another call at that time, on the worker that owns the key by then.
        `records` lists the due payloads in the order in which they were set, then the key's values in order of arrival.
        The fold may keep and change the list. After all inputs end, the timers that are left are due, in the order of
        their times; a fold that sets a timer whenever one is due never ends. In a nested scope `time` and `later` are
        Products, and no coordinate of `later` is less than that of `time`. Payloads must be able to travel, like keys
        and states. `stateful_state_machine` states what outputs and keys may be.

        A time orders records; it is not a clock. In `megaflow run` it is the number of an epoch: the records that were
        read while the epoch was open. An epoch lasts 10 ms to 250 ms or more, depending on load. `timers.at(time + 1,
        …)` requests a call after the next epoch, `timers.after(seconds, payload)` after the job has run for that long,
        and `timers.at_event(timestamp, payload)` once `timers.watermark` reaches the timestamp. The last two make calls
        of their own, after the call for the key's values of a time; nested scopes lack them.
        """
        made = KeyedState("stateful_unary", fold, hash, control, bins, name, version, upgrade, rehash)
        return Stream(made.timed([self._pairs(made.name, key, value).port], self.unit))

    @overload
    def stateful_binary(
        self: Stream[tuple[K, V]], right: Stream[tuple[K, W]], fold: BinaryFold[K, W, A, R],
        hash: Callable[[K], int] = ..., control: Stream[Any] | None = ..., **kept: Unpack[Kept[K]],
    ) -> Stream[R]: ...  # fmt: skip
    @overload
    def stateful_binary(
        self, right: Stream[U], fold: BinaryFold[K, W, A, R], hash: Callable[[K], int] = ...,
        control: Stream[Any] | None = ..., *, key: Callable[[T], K] | None = ...,
        value: Callable[[T], Any] | None = ..., right_key: Callable[[U], K] | None = ...,
        right_value: Callable[[U], W] | None = ..., **kept: Unpack[Kept[K]],
    ) -> Stream[R]: ...  # fmt: skip
    def stateful_binary(
        self, right: Stream[Any], fold: Any, hash: Any = stable_hash, control: Any = None, *, key: Any = None,
        value: Any = None, right_key: Any = None, right_value: Any = None, bins: int = 256, name: str | None = None,
        version: int = 1, upgrade: Any = None, rehash: Any = False,
    ) -> Stream[Any]:  # fmt: skip
        """Keep a state per key of two streams: `fold(key, time, left, right, state, timers) -> (state, outputs)`.

        It works as `stateful_unary`. The fold is called once for each key and time at which either stream has records
        of the key or a timer is due. Payloads come first in `left`. Both halves of a bin move together. `key` and
        `value` apply to records of this stream, `right_key` and `right_value` to those of the other.
        """
        made = KeyedState("stateful_binary", fold, hash, control, bins, name, version, upgrade, rehash)
        other = instance(made.name, right, Stream, A_STREAM)._pairs(made.name, right_key, right_value)
        return Stream(made.timed([self._pairs(made.name, key, value).port, other.port], self.unit))

    # Aggregates: one output for each key and time at which it has records ---------------

    def count_by_value(self, **placing: Unpack[Placing[T]]) -> Stream[tuple[T, int]]:
        """Count how often each record has come: (record, count) for each record of a time, when the time is closed.

        Each worker combines its records of a time before it sends them to the owners of the bins, which costs less than
        a fold of single records. Counts are states: `stateful_state_machine` explains `hash`, `control`, `bins`, `name`
        and `rehash`, and which keys are refused. Outputs are ordered by the ids of the sending workers, and within a
        worker by the order in which its keys came.
        """
        return Stream(aggregated(self.port, COUNT_BY_VALUE, placing))

    @overload
    def count_by_key(self: Stream[tuple[K, V]], **placing: Unpack[Placing[K]]) -> Stream[tuple[K, int]]: ...
    @overload
    def count_by_key(self, **placing: Unpack[Keyed[K, T, Any]]) -> Stream[tuple[K, int]]: ...
    def count_by_key(self, **placing: Any) -> Stream[Any]:
        """Count the records of each key so far: (key, count), sent as by `count_by_value`.

        Records are (key, value) pairs, or `key` and `value` make them, see `stateful_state_machine`.
        """
        return self._aggregated(COUNT_BY_KEY, placing)

    @overload
    def sum_by_key(self: Stream[tuple[K, N]], **placing: Unpack[Placing[K]]) -> Stream[tuple[K, N]]: ...
    @overload
    def sum_by_key(self, **placing: Unpack[Keyed[K, T, N]]) -> Stream[tuple[K, N]]: ...
    def sum_by_key(self, **placing: Any) -> Stream[Any]:
        """Sum the values of each key so far: (key, sum), sent as by `count_by_key`. Values must be numbers."""
        return self._aggregated(SUM_BY_KEY, placing)

    @overload
    def aggregate_by_key(
        self: Stream[tuple[K, V]], init: A, add: Callable[[A, V], A], merge: Callable[[A, A], A],
        **placing: Unpack[Placing[K]],
    ) -> Stream[tuple[K, A]]: ...  # fmt: skip
    @overload
    def aggregate_by_key(
        self, init: A, add: Callable[[A, V], A], merge: Callable[[A, A], A], **placing: Unpack[Keyed[K, T, V]]
    ) -> Stream[tuple[K, A]]: ...
    def aggregate_by_key(self, init: Any, add: Any, merge: Any, **placing: Any) -> Stream[Any]:
        """Fold the values of each key so far: (key, accumulated), sent as by `count_by_key`.

        Each worker folds its values of a key and time with `add(accumulated, value)`, starting from a copy of `init`.
        `add` may change and return its first argument. `merge(a, b)` combines two results that were accumulated apart
        and may change neither. Neither function may return None. Results should not depend on how values are grouped.
        """
        return self._aggregated(fold_by_key(init, add, merge), placing)

    def _aggregated(self, counting: Counting, placing: dict[str, Any]) -> Stream[Any]:
        pairs = self._pairs(counting.verb, placing.pop("key", None), placing.pop("value", None))
        return Stream(aggregated(pairs.port, counting, placing))

    def _pairs(self, verb: str, key: Any, value: Any) -> Stream[Any]:
        """Return the stream of the pairs that functions make of records; without functions, of records as they are."""
        make = pairing(verb, key, value)
        return self if make is None else self.map(make)



class EventStream(Stream[T]):
    """Records of type T, each with a timestamp beside it that functions do not see."""
    def __init__(self, pairs: Port[stamped.Stamped[T]], unit: StreamUnit, behind: int = 0) -> None:
        self.pairs: Port[stamped.Stamped[T]] = pairs  # stamp (see `record_bounds`) and record
        self.unit = unit  # that the program counts timestamps in
        self.behind = behind  # microseconds that records may be behind the watermark, and are not late
        self._plain: Port[T] | None = None  # made when first needed

    @property
    def port(self) -> Port[T]:
        self._plain = stamped.plain(self.pairs) if self._plain is None else self._plain
        return self._plain

    def plain(self) -> Stream[T]:
        """Return the records without their timestamps."""
        return Stream(self.port)

    def stamped(self) -> Stream[tuple[Any, T]]:
        """Return (timestamp, record) pairs, with timestamps in the unit of this stream."""
        return Stream(linear.map_(self.pairs, lambda pair: (self.unit.value(timestamp_of(pair[0])), pair[1])))

    def map(self, f: Callable[[T], U]) -> EventStream[U]:
        return EventStream(stamped.map_(self.pairs, function("map", f)), self.unit, self.behind)

    def flat_map(self, f: Callable[[T], Iterable[U]]) -> EventStream[U]:
        return EventStream(stamped.flat_map(self.pairs, function("flat_map", f)), self.unit, self.behind)

    def filter(self, f: Callable[[T], bool]) -> EventStream[T]:
        return EventStream(stamped.filter_(self.pairs, function("filter", f)), self.unit, self.behind)

    def inspect(self, f: Callable[[T], object]) -> EventStream[T]:
        return EventStream(stamped.inspect(self.pairs, function("inspect", f)), self.unit, self.behind)

    def branch(self, f: Callable[[AnyTime, T], bool]) -> tuple[EventStream[T], EventStream[T]]:
        false, true = stamped.branch(self.pairs, function("branch", f))
        return EventStream(false, self.unit, self.behind), EventStream(true, self.unit, self.behind)

    def exchange(self, key: Callable[[T], int]) -> EventStream[T]:
        return EventStream(stamped.exchange(self.pairs, key), self.unit, self.behind)

    def concat(self, *others: Stream[T]) -> EventStream[T]:
        """Merge this stream with others whose timestamps have the same unit. Records stay on their workers."""
        what = "streams with timestamps, as stream.event_time(…) makes them, or take .plain() of this one"
        all: Any = [self, *(instance("concat", each, EventStream, what) for each in others)]
        self.unit.agree([each.unit for each in all])
        behind = max(each.behind for each in all)
        return EventStream(movement.concatenate(self.pairs.scope, [each.pairs for each in all]), self.unit, behind)

    @overload  # type: ignore[override]
    def window(
        self: EventStream[tuple[K, V]], windows: Windows, *, allowed_lateness: Length = ..., emit: Emit | None = ...,
        **placing: Unpack[Placing[K]],
    ) -> WindowedStream[K, V]: ...  # fmt: skip
    @overload
    def window(
        self, windows: Windows, *, allowed_lateness: Length = ..., emit: Emit | None = ...,
        **placing: Unpack[Keyed[K, T, V]],
    ) -> WindowedStream[K, V]: ...  # fmt: skip
    def window(
        self, windows: Windows, *, allowed_lateness: Length = 0, emit: Emit | None = None, **placing: Any
    ) -> WindowedStream[Any, Any]:
        """Group (key, value) records into windows of their key: `tumbling(…)`, `sliding(…)` or `session(…)`.

        Records that are not pairs need `key` and may have `value`, as in `stateful_state_machine`.

        `clicks.window(session(1800)).count()` is a stream of (key, Window(start, end), result). The timestamp of a
        result is the end of its window, less a microsecond. `sum()` and other aggregates may use the same windows. A
        result is sent once, when the watermark reaches the end of the window plus `allowed_lateness` (seconds or a
        timedelta). `emit="every"` also sends the result so far after each record, `emit="epoch"` after each time that
        changed it. A record that is late for all its windows is left out and counted; `late()` returns such records.
        """
        keyed: Any = self._pairs("window", placing.pop("key", None), placing.pop("value", None))
        port = WindowedPort(keyed.pairs, windows, self.unit, self.behind, allowed_lateness, emit, placing)
        return WindowedStream(port, lambda made: EventStream(made, self.unit, port.behind))


class WindowedStream(
    Aggregations[
        V, EventStream[tuple[K, Window, int]], EventStream[tuple[K, Window, V]], EventStream[tuple[K, Window, Any]],
        EventStream[tuple[K, Window, list[V]]], EventStream[tuple[K, V]],
    ],
    Generic[K, V],
):  # fmt: skip
    """Records (K, V) grouped into windows, see `EventStream.window`."""

    def fold(
        self, init: A, add: Callable[[A, V], A], merge: Callable[[A, A], A] | None = None
    ) -> EventStream[tuple[K, Window, A]]:
        """Fold the values of each window: (key, Window, accumulated), see `aggregate_by_key`.

        `tumbling` windows need no `merge`.
        """
        return self._folded(init, add, merge)  # type: ignore[no-any-return]
