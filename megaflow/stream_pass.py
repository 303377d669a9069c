"""Operators that pass records on: the methods of a stream that return a stream of the same records.

They show records, select them, send them to workers, hold them back, or give them other times. `Stream` adds the
methods that make other records.

1. `Stream` is above this module, because its own methods return streams of any type. So the type of the streams that
   are returned here is a parameter, `Same`: for a `Stream[T]` it is `Stream[T]`. `_same` makes one of a port.
2. A stream with timestamps returns plain streams from these methods, except from those that `EventStream` overrides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from megaflow.connect import writing
from megaflow.megaphone.base.bins import stable_hash
from megaflow.megaphone.folds.stateful_core import PassOn, build
from megaflow.megaphone.router.splitting import ByRecord
from megaflow.stream_end import StreamEnd, port_of
from megaflow.timely.dataflow.argument_checks import function, instance
from megaflow.timely.dataflow.graph import Port, Scoped, ScopeRef
from megaflow.timely.dataflow.operators import buffering, movement
from megaflow.timely.dataflow.operators.branching import T
from megaflow.timely.dataflow.operators.delays import delay, delay_batch, reclock
from megaflow.timely.dataflow.operators.linear import split, stateless
from megaflow.timely.order import Time

AnyTime: TypeAlias = Any  # a Time; the program knows its kind: int, or Product in nested scopes
Same = TypeVar("Same")


class StreamPass(StreamEnd[T], Generic[T, Same]):
    """Output of an operator, with the methods that return the same records: `Same` is a `Stream` of them."""

    def _same(self, port: Port[T]) -> Same:
        """Return a stream of the records at a port."""
        raise NotImplementedError

    def filter(self, f: Callable[[T], bool]) -> Same:
        """Keep the records for which `f` returns true."""
        return self._same(stateless(self.port, "filter", f))

    def map_in_place(self, f: Callable[[T], None]) -> Same:
        """Let `f` change each record in place; its return value is ignored. Use `map` if `f` makes a new record.

        The records belong to this operator alone: no other branch sees the change, see `map`.
        """
        return self._same(stateless(self.port, "map_in_place", f))

    def inspect(self, f: Callable[[T], object]) -> Same:
        """Call `f` with each record and pass the record on."""
        return self._same(stateless(self.port, "inspect", f))

    def inspect_time(self, f: Callable[[Time, T], object]) -> Same:
        """Call `f(time, record)` for each record and pass the record on."""
        return self._same(stateless(self.port, "inspect_time", f))

    def inspect_batch(self, f: Callable[[Time, list[T]], object]) -> Same:
        """Call `f(time, records)` for each batch and pass the batch on."""
        return self._same(stateless(self.port, "inspect_batch", f))

    def branch(self, f: Callable[[AnyTime, T], bool]) -> tuple[Same, Same]:
        """Return two streams: the records for which `f(time, record)` is false, then those for which it is true."""
        false, true = split(self.port, "branch", f)
        return self._same(false), self._same(true)

    def branch_when(self, f: Callable[[AnyTime], bool]) -> tuple[Same, Same]:
        """Return two streams: the records of the times for which `f(time)` is false, then those of all other times."""
        false, true = split(self.port, "branch_when", f)
        return self._same(false), self._same(true)

    # Moving records to workers ----------------------------------------------------------

    def exchange(self, key: Callable[[T], int]) -> Same:
        """Send each record to worker `sorted(peer_ids)[key(record) % peers]`.

        The key must be an int. Routing follows the membership: when workers join or leave, the records of a key may go
        to another worker, and each sender switches on its own.
        """
        return self._same(movement.exchange(self.port, key))

    def broadcast(self) -> Same:
        """Send a copy of each record to every worker."""
        return self._same(movement.broadcast(self.port))

    def distribute(
        self, hash: Callable[[T], int] = stable_hash, control: StreamEnd[Any] | None = None, *, bins: int = 256,
        name: str | None = None,
    ) -> Same:  # fmt: skip
        """Send each record, unchanged, to the owner of the bin of `hash(record)` at its time.

        Use it to place records for operators that keep no state. Unlike `exchange`, the placement changes at a defined
        time, for all senders alike, by the same commands that move states. A record may contain NaN if `hash` accepts
        it; `stable_hash` does not.
        """
        name = str(name or "distribute")
        commands = None if control is None else port_of(f"control= of {name}", control)
        hashed = function(name, hash, "hash")
        return self._same(build([self.port], hashed, commands, bins, name, PassOn, ByRecord))

    def concat(self, *others: Same) -> Same:
        """Merge this stream with others. Records stay on their workers."""
        ports = [self.port, *(port_of("concat", other) for other in others)]
        return self._same(movement.concatenate(self.port.scope, ports))

    def enter(self, scope: Scoped) -> Same:
        """Bring the stream into a child of its scope. Time t becomes Product(t, 0); in a region it stays t."""
        return self._same(movement.enter(self.port, _ref("enter", scope)))

    def leave(self, scope: Scoped | None = None) -> Same:
        """Bring the stream out into the parent of its scope. Time Product(t, i) becomes t; in a region it stays t.

        `scope` is optional. If given, it must be that parent.
        """
        return self._same(movement.leave(self.port, None if scope is None else _ref("leave", scope)))

    def write(self, sink: writing.Sink[T], name: str) -> Same:
        """Write the records to a sink of a job, on each worker, and return the stream.

        After a crash the job finds the sink by its `name`. With `--state` each record is written exactly once, under
        the conditions that `megaflow.connect.sink` states. Raises BuildError if two sinks have one name, and outside a
        job.
        """
        return self._same(writing.write(self.port, sink, name))

    # When records are passed on ---------------------------------------------------------

    def buffer(
        self, records: int | None = None, when_full: buffering.WhenFull = "wait", *,
        merge: Callable[[T, T], T] | None = None, handle: buffering.BufferHandle | None = None,
    ) -> Same:  # fmt: skip
        """Hold up to `records` records on their worker while the operators after the buffer have no room for them.

        Every queue between operators has a bound of its own, 16 batches. Without a buffer a full queue stops the
        sources before it. With a buffer, a full queue after the buffer stops nothing before the buffer. `when_full`
        chooses what happens when the buffer itself is full:

        - "wait": the sources before the buffer stop.
        - "drop_newest": the arriving record is dropped.
        - "drop_oldest": the record that has waited longest is dropped.
        - "fail": the job ends with an error.
        - "grow": the buffer has no bound.

        Dropped records hold no time back. `merge(a, b)` is a policy of its own: one record waits per time, the merge of
        all records of that time. It may not change `a` or `b`, and its result must not depend on order or grouping, as
        for `max`, `set.union` and any other join. `handle` counts the waiting, dropped and merged records of this
        worker. The buffer passes records on as soon as there is room. A producer that asks for room sends whole
        batches, so up to 700 more records may wait. In a loop nothing waits for room.
        """
        return self._same(buffering.buffer(self.port, records, when_full, merge, handle))

    def delay(self, f: Callable[[T, AnyTime], Time]) -> Same:
        """Give each record the time `f(record, time)`, at or after its own. The record itself is not held back."""
        return self._same(delay(self.port, function("delay", f)))

    def delay_batch(self, f: Callable[[AnyTime], Time]) -> Same:
        """Give all records of a time the time `f(time)`, at or after their own. Calls `f` once per batch."""
        return self._same(delay_batch(self.port, function("delay_batch", f)))

    def reclock(self, clock: StreamEnd[Any]) -> Same:
        """Hold each record back until `clock` ticks on this worker, at the first tick at or after the record's time.

        Records are sent at the time of the tick, in the order of their own times, once neither stream can have more up
        to that time. Records that no tick follows are never sent. If a clock ticks on one worker only, `broadcast()`
        it.
        """
        return self._same(reclock(self.port, port_of("reclock", clock)))


def _ref(verb: str, scope: object) -> ScopeRef:
    """Return the engine's scope. Raises BuildError if a program passed another object."""
    ref: Any = getattr(scope, "ref", scope)
    given: ScopeRef = instance(verb, ref, ScopeRef, "a scope")
    return given
