"""Stream: the fluent face of operators. One method per operator, one line per method.

A stream is the output of an operator, on every worker. Records have a time; methods keep it unless they say otherwise.
Functions given to methods run on the worker that holds the record; an exception stops the job with its traceback.

An `EventStream` is a stream whose records have timestamps beside them. It has all methods of a stream; those that it
defines anew keep the timestamps, all others are those of the plain records.
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
        """Apply `f` to each record, which is this operator's own.

        A function may change what it gets, here and in every operator. Where a stream has several consumers, or is
        broadcast to threads of one process, each gets copies of the records that can change; types that cannot change
        are shared. A class decides by `__deepcopy__` what a copy is. A record that cannot be copied stops the job.
        """
        return Stream(linear.map_(self.port, function("map", f)))

    def flat_map(self, f: Callable[[T], Iterable[U]]) -> Stream[U]:
        """Replace each record by the records of `f(record)`."""
        return Stream(linear.flat_map(self.port, function("flat_map", f)))

    def partition(self, count: int, f: Callable[[T], tuple[int, U]]) -> list[Stream[U]]:
        """`count` streams: `f(record)` gives (the number of a stream, what to send there). Nothing is moved."""
        return [Stream(port) for port in branching.partition(self.port, count, function("partition", f))]

    def ok_err(self, f: Callable[[T], branching.Result[U, E]]) -> tuple[Stream[U], Stream[E]]:
        """x of each record for which `f(record)` is `Ok(x)`, and e of each for which it is `Err(e)`."""
        oks, errs = branching.ok_err(self.port, function("ok_err", f))
        return Stream(oks), Stream(errs)

    def event_time(
        self, timestamp: Callable[[T], Any], out_of_order: Length = 0.0, *, unit: str | None = None, name: str = NAME,
        advance_when_idle: bool = False,
    ) -> EventStream[T]:  # fmt: skip
        """Say when what a record tells of has happened: `timestamp(record)`, taken once, stays beside the record.

        It is a number of seconds since 1970, or of milliseconds or microseconds with `unit="ms"` or `"us"`; or a
        datetime with a time zone. Windows and timers take and give the same. How far event time is follows from the
        greatest timestamp of each file or partition, less `out_of_order`, seconds or a timedelta: how much later than
        a later one a record may come and is not late. All that stands between the source and here must be stateless
        and stay on its worker (map, flat_map, filter, branch, concat, …); else BuildError. Raises ProgramError for what
        is no timestamp: None, NaN, a datetime without a zone, a year after 9999, numbers and datetimes mixed.

        A partition that has nothing new never moves event time, so the last windows of a quiet one stay open. With
        `advance_when_idle` event time follows the clock once all partitions have been idle for `--idle-timeout`.
        """
        return EventStream(*event_time(self.port, timestamp, out_of_order, unit, name, bool(advance_when_idle)))

    # State of a time, or of a key -------------------------------------------------------

    def count(self) -> Stream[int]:
        """How many records of each time this worker has; sent when the time is closed, nothing for none."""
        return Stream(aggregation.count(self.port))

    def accumulate(self, init: A, f: Callable[[A, T], A]) -> Stream[A]:
        """Fold this worker's records of each time that has any: `f(acc, record) -> acc`, from a copy of `init`."""
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
        """Fold the values of each key and time: `fold(key, value, state) -> state`, None at first.

        Keys, none of which may be NaN, go to founding workers. As a time is closed `emit(key, state)` is sent for each.
        Records are pairs, or `key` and `value` say what is what: see `stateful_state_machine`.
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
        """Keep a state per key that stays where it is; arguments and order are those of `stateful_state_machine`.

        Keys are exchanged among the founding workers, also after others join: use that one for state that moves.
        """
        function("state_machine", fold, "fold")
        port = self._pairs("state_machine", key, value).port
        return Stream(aggregation.state_machine(port, fold, function("state_machine", hash, "hash")))

    # Operators by hand ------------------------------------------------------------------

    def unary(
        self, pact: PactOrClass, name: str, build: generic.UnaryBuild[T, R], *, stateless: bool = False
    ) -> Stream[R]:
        """An operator of your own: `build(capability, info)` returns `logic(input, output)`, run on data.

        A job that keeps its state (`--state`) refuses operators of your own, as it does not know what they keep from
        one time to the next; unless `stateless=True` says that it is nothing: no state, and no record to be sent later.
        """
        inputs = [(self.port, pact)]
        return Stream(generic.operator(self.port.scope, name, inputs, build, notify=False, stateless=stateless))

    def unary_frontier(
        self, pact: PactOrClass, name: str, build: generic.UnaryBuild[T, R], *, stateless: bool = False
    ) -> Stream[R]:
        """Like `unary`, run also when `input.frontier` moves."""
        return Stream(generic.operator(self.port.scope, name, [(self.port, pact)], build, stateless=stateless))

    def binary(
        self, other: Stream[U], pact1: PactOrClass, pact2: PactOrClass, name: str, build: generic.BinaryBuild[T, U, R],
        *, stateless: bool = False,
    ) -> Stream[R]:  # fmt: skip
        """An operator of your own on two streams: `logic(input1, input2, output)`, run on data."""
        inputs = [(self.port, pact1), (port_of("binary", other), pact2)]
        return Stream(generic.operator(self.port.scope, name, inputs, build, notify=False, stateless=stateless))

    def binary_frontier(
        self, other: Stream[U], pact1: PactOrClass, pact2: PactOrClass, name: str, build: generic.BinaryBuild[T, U, R],
        *, stateless: bool = False,
    ) -> Stream[R]:  # fmt: skip
        """Like `binary`, run also when a frontier moves."""
        inputs = [(self.port, pact1), (port_of("binary_frontier", other), pact2)]
        return Stream(generic.operator(self.port.scope, name, inputs, build, stateless=stateless))

    def unary_notify(
        self, pact: PactOrClass, name: str, logic: generic.NotifyLogic[T, R], init: Iterable[Time] = (),
        *, stateless: bool = False,
    ) -> Stream[R]:  # fmt: skip
        """An operator that is told when times are over: `logic(input, output, notificator)`.

        `notificator.notify_at(time.retain())` asks; `notificator.for_each([input.frontier], f)` in each run calls
        `f(capability, count)` for what is over. `init`: times that are asked for at the start.
        """
        return self.unary_frontier(pact, name, generic.notified(logic, init), stateless=stateless)

    def binary_notify(
        self, other: Stream[U], pact1: PactOrClass, pact2: PactOrClass, name: str,
        logic: generic.BinaryNotifyLogic[T, U, R], init: Iterable[Time] = (), *, stateless: bool = False,
    ) -> Stream[R]:  # fmt: skip
        """Like `unary_notify` on two streams: `logic(input1, input2, output, notificator)`."""
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

        Records are (key, value) pairs: tuples or lists of two. Records of any other kind need `key(record)`, which
        returns the key, and may have `value(record)`; without it the value is the record itself.

        `fold(key, value, state) -> (state, outputs)`: state is None for a key without one; returning None forgets it.
        Per key, values come in time order, those of one time in order of arrival. Outputs have their record's time.

        In a nested scope time order is: the outer time, then the round. So round 0 of t + 1 waits here for the last
        round of t, and a state never shows what is later. Commands have int times wherever the operator is, and move
        bins between outer times: at t, after the last round of t - 1. The times of the dataflow must be ints.

        Outputs are a list of records, or another iterable of them: `[(key, state)]` for one record, `[]` or `()` for
        none. A str, bytes, dict or a tuple that is not empty is refused, for it is one record that would be split. An
        output must not be, or have in it, what the fold changes in place later. Emit a copy, `[(key, list(state))]`, or
        make a new state at each call; `MEGAFLOW_CHECK=aliasing` in the environment finds a fold that does neither.

        With `ttl`, seconds or a timedelta, a key that has had no record for so long loses its state. On a stream of
        `event_time` that is so if event time has come to its greatest timestamp plus `ttl` when its next record is
        read: by that record's timestamp, or by those before it in its file or partition less `out_of_order`. The
        watermark frees such states before that. On other streams a state goes when the job has run for so long since
        the key's last record, by the clock of `timers.after`. Nothing is put out; the key's next record finds None.
        When all lines are read no state goes. There is no `ttl` in nested scopes, nor without commands.

        A key that is NaN, or has it in it, is refused: it equals nothing. `hash` must agree between processes; it is
        mixed before a bin is taken from it. `control` is a stream of `Move` and `Map`, injected on one worker (one
        that joins may be named once `worker.peer_ids` does); without it (and without a flow's) the table is fixed.
        `bins` is a power of two up to 2^20. See Megaphone, PVLDB 12(9), section 3.

        With `--state` it is known by its `name`, by default the fold's. When its states take another form give it the
        next `version`, and `upgrade(key, state, version)`, which returns the new form of a state of an earlier version
        (None: forget the key): each passes through it once, before anything else. When `hash` becomes another one, give
        the one that it was as `rehash` (True: it was `stable_hash`); keys are placed anew then. Both may stay in the
        program afterwards. For another number of `bins` nothing more is needed. Payloads of timers stay as they are.
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
        """Keep a state per key, as `stateful_state_machine`; fold a key's records of one time together, with timers.

        `fold(key, time, records, state, timers) -> (state, outputs)` is called once for each key and time, when the
        time is closed. `timers.at(later, payload)` has the fold called for the key at that time, too, wherever the key
        is by then: `records` are the payloads that are due, in the order in which they were set, then the key's values
        in the order of their arrival; it may keep and change that list. Timers that are left when all inputs have
        ended are due in the order of their times; a fold that sets one whenever one is due never ends. In a nested
        scope `time` and `later` are Products, and `later` is in no coordinate less than `time`. Keys, states
        and payloads must be able to travel; what outputs and keys may be is said at `stateful_state_machine`.

        A time says what comes before what, and is no clock. In `megaflow run` it is the number of an epoch: what was
        read while that was open. Epochs last some 10 ms to 250 ms or more, by the load. `timers.at(time + 1, …)` asks
        for a call when the next epoch is over, `timers.after(seconds, payload)` when the job has run for so long, and
        `timers.at_event(timestamp, payload)` when `timers.watermark` has reached a timestamp. The last two have a call
        of their own, after that for the key's values of a time; there are none in nested scopes. See `Timers`.
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

        As `stateful_unary`, once for each key and time at which either stream has records of the key, or a timer is
        due: payloads are the first in `left`. Both halves of a bin move together. `key` and `value` are those of this
        stream's records, `right_key` and `right_value` of the other's.
        """
        made = KeyedState("stateful_binary", fold, hash, control, bins, name, version, upgrade, rehash)
        other = instance(made.name, right, Stream, A_STREAM)._pairs(made.name, right_key, right_value)
        return Stream(made.timed([self._pairs(made.name, key, value).port, other.port], self.unit))

    # Aggregates: one output for each key and time at which it has records ---------------

    def count_by_value(self, **placing: Unpack[Placing[T]]) -> Stream[tuple[T, int]]:
        """(record, how often it has come), for each record of a time when the time is closed.

        What a worker has of a time is combined before it goes to the owner of its bin, which costs less than a fold
        record by record. Counts are states as those of `stateful_state_machine`, where it is said what `hash`,
        `control`, `bins`, `name` and `rehash` are, and what cannot be a key. The order of outputs is that of the
        workers' ids, and of each worker's that in which its keys came.
        """
        return Stream(aggregated(self.port, COUNT_BY_VALUE, placing))

    @overload
    def count_by_key(self: Stream[tuple[K, V]], **placing: Unpack[Placing[K]]) -> Stream[tuple[K, int]]: ...
    @overload
    def count_by_key(self, **placing: Unpack[Keyed[K, T, Any]]) -> Stream[tuple[K, int]]: ...
    def count_by_key(self, **placing: Any) -> Stream[Any]:
        """(key, how many records it has had), as `count_by_value`.

        Records are pairs, or `key` and `value` say what is what: see `stateful_state_machine`.
        """
        return self._aggregated(COUNT_BY_KEY, placing)

    @overload
    def sum_by_key(self: Stream[tuple[K, N]], **placing: Unpack[Placing[K]]) -> Stream[tuple[K, N]]: ...
    @overload
    def sum_by_key(self, **placing: Unpack[Keyed[K, T, N]]) -> Stream[tuple[K, N]]: ...
    def sum_by_key(self, **placing: Any) -> Stream[Any]:
        """(key, the sum of its values), as `count_by_key`; a value that is no number is refused."""
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
        """(key, what its values have come to), as `count_by_key`.

        Each worker folds its values of a key and time by `add(accumulated, value)`, beginning with a copy of `init`,
        which `add` may change and return. `merge(a, b)` makes one of two that were accumulated apart, and may change
        neither. The result should not depend on how values are grouped. Neither function may return None.
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
    """Records of type T, each with a timestamp beside it, which functions do not see."""
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
        """The records without their timestamps."""
        return Stream(self.port)

    def stamped(self) -> Stream[tuple[Any, T]]:
        """Pairs of timestamp, in the unit of this stream, and record."""
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
        """This stream's records and those of others with timestamps in the same unit, none of them moved."""
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
        """Put (key, value) records into windows of their key: `tumbling(…)`, `sliding(…)` or `session(…)`.

        Records that are no pairs need `key`, and may have `value`, as for `stateful_state_machine`.

        `clicks.window(session(1800)).count()` is a stream of (key, Window(start, end), result), whose timestamps are
        the ends of windows, less a microsecond; `sum()` and others may be taken of the same windows. A result comes
        once, when the watermark has reached the end and `allowed_lateness` (seconds, or a timedelta); so far as it is
        known also after each record with `emit="every"`, and with `emit="epoch"` after each time that has changed it.
        A record that is late for all its windows is left out, counted, and in `late()`.
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
    """Records (K, V) by windows: see `EventStream.window`."""

    def fold(
        self, init: A, add: Callable[[A, V], A], merge: Callable[[A, A], A] | None = None
    ) -> EventStream[tuple[K, Window, A]]:
        """(key, Window, what the values have come to): see `aggregate_by_key`; `tumbling` does without `merge`."""
        return self._folded(init, add, merge)  # type: ignore[no-any-return]
