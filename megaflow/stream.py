"""Streams and their methods: one method per operator, one line of code per method.

A stream is the output of an operator, on every worker. Records have a time; a method keeps it unless it says otherwise.
Functions given to methods run on the worker that holds the record. An exception in one stops the job with a traceback.

An `EventStream` is a stream whose records have timestamps beside them. The methods that it overrides keep the
timestamps; all others work on the plain records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Generic, Literal, Protocol, Unpack, overload

from megaflow import event_time as events
from megaflow.keyed_state import KeyedState
from megaflow.megaphone.base.bins import stable_hash
from megaflow.megaphone.base.event_inputs import NAME
from megaflow.megaphone.base.stream_unit import IN_SECONDS, StreamUnit
from megaflow.megaphone.folds import combining
from megaflow.megaphone.folds.aggregates import Emitting, EmittingKeyed, Kept, Keyed, N, Placing, aggregated
from megaflow.megaphone.folds.stateful_timed import BinaryFold, UnaryFold, W
from megaflow.stream_end import A_STREAM, port_of
from megaflow.stream_pass import AnyTime, StreamPass
from megaflow.timely.dataflow.argument_checks import function, instance
from megaflow.timely.dataflow.folds import A, Fold, K, R, V, pairing
from megaflow.timely.dataflow.fusion.stage import STAMPED
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators import aggregation, branching, generic, movement, stamped
from megaflow.timely.dataflow.operators.branching import E, T, U
from megaflow.timely.dataflow.operators.linear import split, stateless
from megaflow.timely.dataflow.pact import PactOrClass
from megaflow.timely.order import Time


class Stream(StreamPass[T, "Stream[T]"]):
    """Records of type T, with times, spread over the workers."""

    unit = IN_SECONDS  # in which timers take and return timestamps
    pairs: Port[Any] | None = None  # of stamps and records; None: the records have no timestamps
    behind = 0  # microseconds by which records may be behind the watermark without being late

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
        return Stream(stateless(self.port, "map", f))

    def flat_map(self, f: Callable[[T], Iterable[U]]) -> Stream[U]:
        """Replace each record by the records that `f(record)` returns."""
        return Stream(stateless(self.port, "flat_map", f))

    def partition(self, count: int, f: Callable[[T], tuple[int, U]]) -> list[Stream[U]]:
        """Split into `count` streams: `f(record)` gives (stream number, new record). Records stay on their workers."""
        return [Stream(port) for port in branching.partition(self.port, count, f)]

    def ok_err(self, f: Callable[[T], branching.Result[U, E]]) -> tuple[Stream[U], Stream[E]]:
        """Return two streams: x of each record for which `f(record)` is `Ok(x)`, and e of each with `Err(e)`."""
        oks, errs = branching.ok_err(self.port, f)
        return Stream(oks), Stream(errs)

    def event_time(
        self, timestamp: Callable[[T], Any], out_of_order: events.Length = 0.0, *, unit: str | None = None,
        name: str = NAME, advance_when_idle: bool = False,
    ) -> EventStream[T]:  # fmt: skip
        """Attach a timestamp to each record: `timestamp(record)`, called once, stays beside the record.

        A timestamp is a number of seconds since 1970 (milliseconds or microseconds with `unit="ms"` or `"us"`) or a
        datetime with a time zone. Windows and timers use the same unit. Event time follows the greatest timestamp of
        each file or partition, less `out_of_order` (seconds or a timedelta): a record that comes at most that much
        behind a later one is not late. All operators between the source and here must be stateless and must not move
        records
        (map, flat_map, filter, branch, concat, …); otherwise BuildError is raised. ProgramError is raised for invalid
        timestamps: None, NaN, a datetime without a zone, a year after 9999, numbers mixed with datetimes.

        A partition without new records never advances event time, so the last windows of a quiet partition stay open.
        With `advance_when_idle` event time follows the clock once all partitions have been idle for `--idle-timeout`.
        """
        return EventStream(*events.event_time(self.port, timestamp, out_of_order, unit, name, bool(advance_when_idle)))

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

    # Custom operators -------------------------------------------------------------------

    def unary(
        self, pact: PactOrClass, name: str, build: generic.UnaryBuild[T, R], *, stateless: bool = False
    ) -> Stream[R]:
        """Build a custom operator: `build(capability, info)` returns `logic(input, output)`, which runs on data.

        `capability` is the right to send without input. If `build` keeps it, release it when it is no longer needed;
        otherwise no later time is ever complete. If `build` does not keep it, the engine releases it.

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
        `notificator.for_each(f)`: it calls `f(capability, count)` for each complete time. `init` lists times that are
        requested at the start.
        """
        return Stream(generic.notified(self.port.scope, name, [(self.port, pact)], logic, init, stateless))

    def binary_notify(
        self, other: Stream[U], pact1: PactOrClass, pact2: PactOrClass, name: str,
        logic: generic.BinaryNotifyLogic[T, U, R], init: Iterable[Time] = (), *, stateless: bool = False,
    ) -> Stream[R]:  # fmt: skip
        """Build an operator like `unary_notify` on two streams: `logic(input1, input2, output, notificator)`."""
        inputs = [(self.port, pact1), (port_of("binary_notify", other), pact2)]
        return Stream(generic.notified(self.port.scope, name, inputs, logic, init, stateless))

    # State that moves -------------------------------------------------------------------

    @overload
    def stateful_state_machine(
        self: Stream[tuple[K, V]], fold: Fold[K, V, A, R], hash: Callable[[K], int] = ...,
        control: Stream[Any] | None = ..., *, ttl: events.Length | None = ..., **kept: Unpack[Kept[K]],
    ) -> Stream[R]: ...  # fmt: skip
    @overload
    def stateful_state_machine(
        self, fold: Fold[K, V, A, R], hash: Callable[[K], int] = ..., control: Stream[Any] | None = ..., *,
        key: Callable[[T], K], value: Callable[[T], V] = ..., ttl: events.Length | None = ..., **kept: Unpack[Kept[K]],
    ) -> Stream[R]: ...  # fmt: skip
    @overload
    def stateful_state_machine(
        self: Stream[tuple[K, V]], fold: Fold[K, V, A, R], hash: Callable[[K], int] = ...,
        control: Stream[Any] | None = ..., *, stamp: Literal["record"], ttl: events.Length | None = ...,
        **kept: Unpack[Kept[K]],
    ) -> EventStream[R]: ...  # fmt: skip
    @overload
    def stateful_state_machine(
        self, fold: Fold[K, V, A, R], hash: Callable[[K], int] = ...,
        control: Stream[Any] | None = ..., *, stamp: Literal["record"], key: Callable[[T], K],
        value: Callable[[T], V] = ..., ttl: events.Length | None = ..., **kept: Unpack[Kept[K]],
    ) -> EventStream[R]: ...  # fmt: skip
    def stateful_state_machine(
        self, fold: Any, hash: Any = stable_hash, control: Any = None, *, key: Any = None, value: Any = None,
        bins: int = 256, name: str | None = None, version: int = 1, upgrade: Any = None, rehash: Any = False,
        ttl: events.Length | None = None, stamp: Any = None,
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

        On a stream of `event_time`, `stamp="record"` gives each output the timestamp of its record, so windows, joins
        and folds with timestamps can follow. An output is late if its record would be late there.

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
        if stamp is not None:
            return EventStream(made.stamped(stamp, pairs.pairs, self.unit, ttl), self.unit, self.behind)
        if ttl is None or pairs.pairs is None:
            return Stream(made.machine(pairs.port, ttl))
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
    @overload
    def stateful_unary(
        self: Stream[tuple[K, V]], fold: UnaryFold[K, A, R], hash: Callable[[K], int] = ...,
        control: Stream[Any] | None = ..., *, stamp: Callable[[R], Any], **kept: Unpack[Kept[K]],
    ) -> EventStream[R]: ...  # fmt: skip
    @overload
    def stateful_unary(
        self, fold: UnaryFold[K, A, R], hash: Callable[[K], int] = ...,
        control: Stream[Any] | None = ..., *, stamp: Callable[[R], Any], key: Callable[[T], K],
        value: Callable[[T], Any] = ..., **kept: Unpack[Kept[K]],
    ) -> EventStream[R]: ...  # fmt: skip
    def stateful_unary(
        self, fold: Any, hash: Any = stable_hash, control: Any = None, *, key: Any = None, value: Any = None,
        bins: int = 256, name: str | None = None, version: int = 1, upgrade: Any = None, rehash: Any = False,
        stamp: Any = None,
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

        On a stream of `event_time`, `stamp(output)` returns the timestamp of each output, in the unit of the stream, so
        windows, joins and folds with timestamps can follow. That includes the outputs of timers. An output is late if
        the watermark has closed its window; timestamps of `timers.at_event` are in time.
        """
        made = KeyedState("stateful_unary", fold, hash, control, bins, name, version, upgrade, rehash)
        return self._outputs(made, made.timed([self._pairs(made.name, key, value).port], self.unit), stamp)

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
    @overload
    def stateful_binary(
        self: Stream[tuple[K, V]], right: Stream[tuple[K, W]], fold: BinaryFold[K, W, A, R],
        hash: Callable[[K], int] = ..., control: Stream[Any] | None = ..., *, stamp: Callable[[R], Any],
        **kept: Unpack[Kept[K]],
    ) -> EventStream[R]: ...  # fmt: skip
    @overload
    def stateful_binary(
        self, right: Stream[U], fold: BinaryFold[K, W, A, R], hash: Callable[[K], int] = ...,
        control: Stream[Any] | None = ..., *, stamp: Callable[[R], Any], key: Callable[[T], K] | None = ...,
        value: Callable[[T], Any] | None = ..., right_key: Callable[[U], K] | None = ...,
        right_value: Callable[[U], W] | None = ..., **kept: Unpack[Kept[K]],
    ) -> EventStream[R]: ...  # fmt: skip
    def stateful_binary(
        self, right: Stream[Any], fold: Any, hash: Any = stable_hash, control: Any = None, *, key: Any = None,
        value: Any = None, right_key: Any = None, right_value: Any = None, bins: int = 256, name: str | None = None,
        version: int = 1, upgrade: Any = None, rehash: Any = False, stamp: Any = None,
    ) -> Stream[Any]:  # fmt: skip
        """Keep a state per key of two streams: `fold(key, time, left, right, state, timers) -> (state, outputs)`.

        It works as `stateful_unary`. The fold is called once for each key and time at which either stream has records
        of the key or a timer is due. Payloads come first in `left`. Both halves of a bin move together. `key` and
        `value` apply to records of this stream, `right_key` and `right_value` to those of the other. Timestamps that
        `timers` takes are in the unit of the stream that has timestamps. If both have them, they are in the unit of
        this stream, like those that `stamp(output)` returns. `stamp` needs this stream to have timestamps.
        """
        made = KeyedState("stateful_binary", fold, hash, control, bins, name, version, upgrade, rehash)
        other = instance(made.name, right, Stream, A_STREAM)._pairs(made.name, right_key, right_value)
        unit = other.unit if self.pairs is None else self.unit
        port = made.timed([self._pairs(made.name, key, value).port, other.port], unit)
        return self._outputs(made, port, stamp, other)

    def _outputs(self, made: KeyedState, port: Port[Any], stamp: Any, *others: Stream[Any]) -> Stream[Any]:
        """Return the outputs of a fold on this stream, and perhaps others, with timestamps if `stamp` is given."""
        if stamp is None:
            return Stream(port)
        behind = max(each.behind for each in (self, *others))
        return EventStream(made.with_timestamps(port, stamp, self.unit, self.pairs is not None), self.unit, behind)

    # Aggregates: one output for each key and time at which it has records ---------------

    def count_by_value(self, **placing: Unpack[Emitting[T]]) -> Stream[tuple[T, int]]:
        """Count how often each record has come: (record, count) for each record of a time, when the time is closed.

        Each worker combines its records of a time before it sends them to the owners of the bins, which costs less than
        a fold of single records. Counts are states: `stateful_state_machine` explains `hash`, `control`, `bins`, `name`
        and `rehash`, and which keys are refused. Outputs are ordered by the ids of the sending workers, and within a
        worker by the order in which its keys came.

        With `emit="end"` the operator sends nothing until all input has ended. Then it sends each record that has come
        in this run once, with its count so far. A stopped job with `--state` keeps the results that it has not sent for
        a later run. All aggregates by key have this option; nested scopes lack it.
        """
        return Stream(aggregated(self.port, combining.COUNT_BY_VALUE, placing))

    @overload
    def count_by_key(self: Stream[tuple[K, V]], **placing: Unpack[Emitting[K]]) -> Stream[tuple[K, int]]: ...
    @overload
    def count_by_key(self, **placing: Unpack[EmittingKeyed[K, T, Any]]) -> Stream[tuple[K, int]]: ...
    def count_by_key(self, **placing: Any) -> Stream[Any]:
        """Count the records of each key so far: (key, count), sent as by `count_by_value`.

        Records are (key, value) pairs, or `key` and `value` make them, see `stateful_state_machine`.
        """
        return self._aggregated(combining.COUNT_BY_KEY, placing)

    @overload
    def sum_by_key(self: Stream[tuple[K, N]], **placing: Unpack[Emitting[K]]) -> Stream[tuple[K, N]]: ...
    @overload
    def sum_by_key(self, **placing: Unpack[EmittingKeyed[K, T, N]]) -> Stream[tuple[K, N]]: ...
    def sum_by_key(self, **placing: Any) -> Stream[Any]:
        """Sum the values of each key so far: (key, sum), sent as by `count_by_key`. Values must be numbers."""
        return self._aggregated(combining.SUM_BY_KEY, placing)

    @overload
    def min_by_key(
        self: Stream[tuple[K, V]], by: Callable[[V], Any] | None = ..., **placing: Unpack[Emitting[K]]
    ) -> Stream[tuple[K, V]]: ...
    @overload
    def min_by_key(
        self, by: Callable[[V], Any] | None = ..., **placing: Unpack[EmittingKeyed[K, T, V]]
    ) -> Stream[tuple[K, V]]: ...
    def min_by_key(self, by: Any = None, **placing: Any) -> Stream[Any]:
        """Find the least value of each key so far: (key, value), sent as by `count_by_key`.

        With `by`, that is the value with the least `by(value)`. If several values rank equally, the choice among them
        does not depend on the order of arrival. NaN comes before all others. Raises ProgramError for None, and for
        values that cannot be compared.
        """
        return self._aggregated(combining.extreme_by_key("min_by_key", by, greatest=False), placing)

    @overload
    def max_by_key(
        self: Stream[tuple[K, V]], by: Callable[[V], Any] | None = ..., **placing: Unpack[Emitting[K]]
    ) -> Stream[tuple[K, V]]: ...
    @overload
    def max_by_key(
        self, by: Callable[[V], Any] | None = ..., **placing: Unpack[EmittingKeyed[K, T, V]]
    ) -> Stream[tuple[K, V]]: ...
    def max_by_key(self, by: Any = None, **placing: Any) -> Stream[Any]:
        """Find the greatest value of each key so far, as `min_by_key` finds the least one."""
        return self._aggregated(combining.extreme_by_key("max_by_key", by, greatest=True), placing)

    @overload
    def top_by_key(
        self: Stream[tuple[K, V]], n: int, by: Callable[[V], Any] | None = ..., **placing: Unpack[Emitting[K]]
    ) -> Stream[tuple[K, list[V]]]: ...
    @overload
    def top_by_key(
        self, n: int, by: Callable[[V], Any] | None = ..., **placing: Unpack[EmittingKeyed[K, T, V]]
    ) -> Stream[tuple[K, list[V]]]: ...
    def top_by_key(self, n: int, by: Any = None, **placing: Any) -> Stream[Any]:
        """List the `n` greatest values of each key so far, greatest first: (key, list), ranked as by `max_by_key`."""
        return self._aggregated(combining.top_by_key(n, by), placing)

    @overload
    def aggregate_by_key(
        self: Stream[tuple[K, V]], init: A, add: Callable[[A, V], A], merge: Callable[[A, A], A],
        **placing: Unpack[Emitting[K]],
    ) -> Stream[tuple[K, A]]: ...  # fmt: skip
    @overload
    def aggregate_by_key(
        self, init: A, add: Callable[[A, V], A], merge: Callable[[A, A], A], **placing: Unpack[EmittingKeyed[K, T, V]]
    ) -> Stream[tuple[K, A]]: ...
    def aggregate_by_key(self, init: Any, add: Any, merge: Any, **placing: Any) -> Stream[Any]:
        """Fold the values of each key so far: (key, accumulated), sent as by `count_by_key`.

        Each worker folds its values of a key and time with `add(accumulated, value)`, starting from a copy of `init`.
        `add` may change and return its first argument. `merge(a, b)` combines two results that were accumulated apart
        and may change neither. Neither function may return None. Results should not depend on how values are grouped.
        """
        return self._aggregated(combining.fold_by_key(init, add, merge), placing)

    def _aggregated(self, counting: combining.Counting, placing: dict[str, Any]) -> Stream[Any]:
        pairs = self._pairs(counting.verb, placing.pop("key", None), placing.pop("value", None))
        return Stream(aggregated(pairs.port, counting, placing))

    def _pairs(self, verb: str, key: Any, value: Any) -> Stream[Any]:
        """Return the stream of the pairs that `key` and `value` make of records; without them, this stream."""
        make = pairing(verb, key, value)
        return self if make is None else self.map(make)



class EventStream(Stream[T]):
    """Records of type T, each with a timestamp beside it that functions do not see."""
    def __init__(self, pairs: Port[stamped.Stamped[T]], unit: StreamUnit, behind: int = 0) -> None:
        self.pairs: Port[stamped.Stamped[T]] = pairs  # stamp (see `record_bounds`) and record
        self.unit, self.behind = unit, behind  # `unit`: in which the program counts timestamps

    @cached_property
    def port(self) -> Port[T]:
        return stamped.plain(self.pairs)

    def plain(self) -> Stream[T]:
        """Return the records without their timestamps."""
        return Stream(self.port)

    def stamped(self) -> Stream[tuple[Any, T]]:
        """Return (timestamp, record) pairs, with timestamps in the unit of this stream."""
        time_of, unit = events.timestamp_of, self.unit
        return Stream(stateless(self.pairs, "map", lambda pair: (unit.value(time_of(pair[0])), pair[1])))

    def map(self, f: Callable[[T], U]) -> EventStream[U]:
        return EventStream(stateless(self.pairs, "map", f, STAMPED), self.unit, self.behind)

    def flat_map(self, f: Callable[[T], Iterable[U]]) -> EventStream[U]:
        return EventStream(stateless(self.pairs, "flat_map", f, STAMPED), self.unit, self.behind)

    def filter(self, f: Callable[[T], bool]) -> EventStream[T]:
        return EventStream(stateless(self.pairs, "filter", f, STAMPED), self.unit, self.behind)

    def inspect(self, f: Callable[[T], object]) -> EventStream[T]:
        return EventStream(stateless(self.pairs, "inspect", f, STAMPED), self.unit, self.behind)

    def branch(self, f: Callable[[AnyTime, T], bool]) -> tuple[EventStream[T], EventStream[T]]:
        false, true = split(self.pairs, "branch", f, stamps=STAMPED)
        return EventStream(false, self.unit, self.behind), EventStream(true, self.unit, self.behind)

    def exchange(self, key: Callable[[T], int]) -> EventStream[T]:
        return EventStream(events.exchange(self.pairs, key, self.unit), self.unit, self.behind)

    def concat(self, *others: Stream[T]) -> EventStream[T]:
        """Merge this stream with others whose timestamps have the same unit. Records stay on their workers."""
        what = "streams with timestamps, as .event_time(…) and folds with stamp= make, or take .plain() of this one"
        all: Any = [self, *(instance("concat", each, EventStream, what) for each in others)]
        self.unit.agree([each.unit for each in all])
        behind = max(each.behind for each in all)
        return EventStream(movement.concatenate(self.pairs.scope, [each.pairs for each in all]), self.unit, behind)

    @overload  # type: ignore[override]
    def window(
        self: EventStream[tuple[K, V]], windows: events.Windows, *, allowed_lateness: events.Length = ...,
        emit: events.Emit | None = ..., marks: Literal[False] = ..., **placing: Unpack[Placing[K]],
    ) -> WindowedStream[K, V]: ...  # fmt: skip
    @overload
    def window(
        self, windows: events.Windows, *, allowed_lateness: events.Length = ..., emit: events.Emit | None = ...,
        marks: Literal[False] = ..., **placing: Unpack[Keyed[K, T, V]],
    ) -> WindowedStream[K, V]: ...  # fmt: skip
    @overload
    def window(
        self: EventStream[tuple[K, V]], windows: events.Windows, *, allowed_lateness: events.Length = ...,
        emit: events.Emit | None = ..., marks: Literal[True], **placing: Unpack[Placing[K]],
    ) -> MarkedStream[K, V]: ...  # fmt: skip
    @overload
    def window(
        self, windows: events.Windows, *, allowed_lateness: events.Length = ..., emit: events.Emit | None = ...,
        marks: Literal[True], **placing: Unpack[Keyed[K, T, V]],
    ) -> MarkedStream[K, V]: ...  # fmt: skip
    def window(
        self, windows: events.Windows, *, allowed_lateness: events.Length = 0, emit: events.Emit | None = None,
        marks: bool = False, **placing: Any,
    ) -> Any:
        """Group (key, value) records into windows of their key: `tumbling(…)`, `sliding(…)` or `session(…)`.

        Records that are not pairs need `key` and may have `value`, as in `stateful_state_machine`.

        `clicks.window(session(1800)).count()` is a stream of (key, Window(start, end), result). The timestamp of a
        result is the end of its window, less a microsecond. `sum()` and other aggregates may use the same windows. A
        result is sent once, when the watermark reaches the end of the window plus `allowed_lateness` (seconds or a
        timedelta). `emit="every"` also sends the result so far after each record, `emit="epoch"` after each time that
        changed it; these have an `EarlyWindow`, whose `is_final` is False. A record that is late for all its windows is
        left out and counted; `late()` returns such records.

        With `marks=True`, each result is a `WindowResult(key, window, value, kind)`. Its `kind` is "early" or "final".
        With `emit`, it is "removed" if the bounds of an open session have changed: before the new result, the session's
        last early result comes once more, with its old bounds. So a table by key and window stays right if it deletes
        removed results and upserts all others. Final results are never removed.
        """
        keyed: Any = self._pairs("window", placing.pop("key", None), placing.pop("value", None))
        port = events.WindowedPort(keyed.pairs, windows, self.unit, self.behind, allowed_lateness, emit, marks, placing)
        return WindowedStream(port, self.unit)


class WindowedStream(Generic[K, V]):
    """Records (K, V) grouped into windows, see `EventStream.window`. Its methods return streams of their results."""

    def __init__(self, windowed: events.WindowedPort, unit: StreamUnit) -> None:
        self._windowed, self._unit = windowed, unit

    def count(self) -> EventStream[tuple[K, events.Window, int]]:
        """Count the values of each window: (key, Window, count)."""
        return self._results(events.Count())

    def sum(self) -> EventStream[tuple[K, events.Window, V]]:
        """Sum the values of each window: (key, Window, sum). Values must be numbers."""
        return self._results(events.Sum(self._windowed.name))

    def min(self, by: Callable[[V], Any] | None = None) -> EventStream[tuple[K, events.Window, V]]:
        """Find the least value of each window: (key, Window, value). With `by`, the value with the least `by(value)`.

        If `by` ranks several values equally, the result is the one with the earliest timestamp. If several have that
        timestamp, the choice does not depend on the order of arrival. NaN comes before all others. Raises ProgramError
        for None, and for values that cannot be compared.
        """
        return self._results(events.extreme(self._windowed.name, "min", by, greatest=False))

    def max(self, by: Callable[[V], Any] | None = None) -> EventStream[tuple[K, events.Window, V]]:
        """Find the greatest value of each window: (key, Window, value); `by`, equal values and NaN are as in `min`."""
        return self._results(events.extreme(self._windowed.name, "max", by, greatest=True))

    def top(self, n: int, by: Callable[[V], Any] | None = None) -> EventStream[tuple[K, events.Window, list[V]]]:
        """List the `n` greatest values of each window, the greatest first: (key, Window, list of values).

        `by`, equal values and NaN are as in `min`. Each window keeps at most `n` values.
        """
        return self._results(events.best(self._windowed.name, n, by))

    def mean(self) -> EventStream[tuple[K, events.Window, Any]]:
        """Compute the mean of the values of each window: (key, Window, mean). Values must be numbers."""
        return self._results(events.Mean(self._windowed.name))

    def collect(self) -> EventStream[tuple[K, events.Window, list[V]]]:
        """Collect the values of each window by timestamp, then in order of arrival: (key, Window, list of values)."""
        return self._results(events.Collect())

    def reduce(self, f: Callable[[V, V], V]) -> EventStream[tuple[K, events.Window, V]]:
        """Reduce the values of each window to one with `f(a, b)`, which may change neither: (key, Window, value).

        The result should not depend on the order of the values, nor on how they are grouped.
        """
        return self._results(events.by_reduction(self._windowed.name, f))

    def fold(
        self, init: A, add: Callable[[A, V], A], merge: Callable[[A, A], A] | None = None
    ) -> EventStream[tuple[K, events.Window, A]]:
        """Fold the values of each window: (key, Window, accumulated), see `aggregate_by_key`.

        `tumbling` windows need no `merge`.
        """
        return self._results(events.by_fold(self._windowed.name, init, add, merge, self._windowed.is_merged))

    def late(self) -> EventStream[tuple[K, V]]:
        """Return the records that were late for all their windows, which leave them out."""
        return EventStream(self._windowed.late(), self._unit, self._windowed.behind)

    def partial(self) -> EventStream[tuple[K, events.Window, Any]]:
        """Return the results of windows that lack records, because their states were dropped when the job resumed.

        The value is that of the only aggregation, or a tuple of all. Without a call of this, they are left out.
        """
        return EventStream(self._windowed.partial(), self._unit, self._windowed.behind)

    def _results(self, accumulator: Any) -> EventStream[Any]:
        return EventStream(self._windowed.aggregated(accumulator), self._unit, self._windowed.behind)


class MarkedStream(Protocol[K, V]):
    """The type of a `WindowedStream` with `marks=True`: its results are `WindowResult`s."""

    def count(self) -> EventStream[events.WindowResult[K, int]]: ...
    def sum(self) -> EventStream[events.WindowResult[K, V]]: ...
    def min(self, by: Callable[[V], Any] | None = ...) -> EventStream[events.WindowResult[K, V]]: ...
    def max(self, by: Callable[[V], Any] | None = ...) -> EventStream[events.WindowResult[K, V]]: ...
    def top(self, n: int, by: Callable[[V], Any] | None = ...) -> EventStream[events.WindowResult[K, list[V]]]: ...
    def mean(self) -> EventStream[events.WindowResult[K, Any]]: ...
    def collect(self) -> EventStream[events.WindowResult[K, list[V]]]: ...
    def reduce(self, f: Callable[[V, V], V]) -> EventStream[events.WindowResult[K, V]]: ...
    def fold(self, init: A, add: Callable[[A, V], A], merge: Callable[[A, A], A] | None = ...) -> EventStream[
        events.WindowResult[K, A]]: ...  # fmt: skip
    def late(self) -> EventStream[tuple[K, V]]: ...
    def partial(self) -> EventStream[events.WindowResult[K, Any]]: ...
