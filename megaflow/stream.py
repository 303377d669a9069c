"""Stream: the fluent face of operators. One method per operator, one line per method.

A stream is the output of an operator, on every worker. Records have a time; methods keep
it unless they say otherwise. Functions given to methods run on the worker that holds the
record; an exception in one stops the job with its own traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from megaflow.bins import stable_hash
from megaflow.control_stream import control_for
from megaflow.stateful import Fold, stateful_state_machine
from megaflow.timely.dataflow.capture import Captured, capture
from megaflow.timely.dataflow.graph import Port, ScopeRef
from megaflow.timely.dataflow.operators import generic, linear, movement, nesting
from megaflow.timely.dataflow.operators.generic import BinaryBuild, SinkBuild, UnaryBuild
from megaflow.timely.dataflow.operators.movement import LoopHandle
from megaflow.timely.dataflow.pact import Pact
from megaflow.timely.dataflow.probe import ProbeHandle, probe_with
from megaflow.timely.order import Time

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")
K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")


class _Scoped(Protocol):
    """A scope, seen from below."""

    ref: ScopeRef


class Stream(Generic[T]):
    """Records of type T, with times, spread over the workers."""

    def __init__(self, port: Port[T]) -> None:
        self.port = port

    # Records one by one -----------------------------------------------------------------

    def map(self, f: Callable[[T], U]) -> Stream[U]:
        """Apply `f` to each record."""
        return Stream(linear.map_(self.port, f))

    def flat_map(self, f: Callable[[T], Iterable[U]]) -> Stream[U]:
        """Replace each record by the records of `f(record)`."""
        return Stream(linear.flat_map(self.port, f))

    def filter(self, f: Callable[[T], bool]) -> Stream[T]:
        """Keep the records for which `f` is true."""
        return Stream(linear.filter_(self.port, f))

    def map_in_place(self, f: Callable[[T], None]) -> Stream[T]:
        """Let `f` change each record itself; records are shared with other consumers of this stream."""
        return Stream(linear.map_in_place(self.port, f))

    def inspect(self, f: Callable[[T], object]) -> Stream[T]:
        """Show each record to `f` and pass it on."""
        return Stream(linear.inspect(self.port, f))

    def inspect_time(self, f: Callable[[Time, T], object]) -> Stream[T]:
        """Show each time and record to `f` and pass the record on."""
        return Stream(linear.inspect_time(self.port, f))

    def inspect_batch(self, f: Callable[[Time, list[T]], object]) -> Stream[T]:
        """Show each time and batch to `f` and pass the batch on."""
        return Stream(linear.inspect_batch(self.port, f))

    # Where records go -------------------------------------------------------------------

    def exchange(self, key: Callable[[T], int]) -> Stream[T]:
        """Send each record to worker `sorted(peer_ids)[key(record) % peers]`; the key must be an int.

        Follows the membership: where a key goes may change, sender by sender, when workers come or leave.
        """
        return Stream(movement.exchange(self.port, key))

    def broadcast(self) -> Stream[T]:
        """Send a copy of each record to every worker."""
        return Stream(movement.broadcast(self.port))

    def concat(self, *others: Stream[T]) -> Stream[T]:
        """This stream's records and those of others, none of them moved."""
        return Stream(movement.concatenate(self.port.scope, [self.port, *(other.port for other in others)]))

    def connect_loop(self, handle: LoopHandle[T]) -> None:
        """Feed this stream back into the loop that `scope.feedback` opened."""
        handle.connect(self.port)

    # In and out of scopes ---------------------------------------------------------------

    def enter(self, scope: _Scoped) -> Stream[T]:
        """Bring the stream into a child of its scope: time t becomes Product(t, 0), in a region it stays t."""
        return Stream(nesting.enter(self.port, scope.ref))

    def leave(self) -> Stream[T]:
        """Bring the stream out to the scope around its own: time Product(t, i) becomes t, in a region it stays."""
        return Stream(nesting.leave(self.port))

    # Watching ---------------------------------------------------------------------------

    def probe(self) -> ProbeHandle:
        """A handle that tells which times may still arrive here."""
        handle = ProbeHandle()
        probe_with(self.port, handle)
        return handle

    def probe_with(self, handle: ProbeHandle) -> Stream[T]:
        """Attach a handle that tells which times may still arrive here; the stream itself is returned."""
        probe_with(self.port, handle)
        return self

    def capture(self) -> Captured[T]:
        """Keep this worker's records; `extract()` gives [(time, records)]."""
        return capture(self.port)

    # Operators by hand ------------------------------------------------------------------

    def unary(self, pact: Pact, name: str, build: UnaryBuild[T, R]) -> Stream[R]:
        """An operator of your own: `build(capability, info)` returns `logic(input, output)`, run on data."""
        return Stream(generic.unary(self.port, pact, name, build))

    def unary_frontier(self, pact: Pact, name: str, build: UnaryBuild[T, R]) -> Stream[R]:
        """Like `unary`, run also when `input.frontier` moves."""
        return Stream(generic.unary(self.port, pact, name, build, notify=True))

    def binary(self, other: Stream[U], pact1: Pact, pact2: Pact, name: str, build: BinaryBuild[T, U, R]) -> Stream[R]:
        """An operator of your own on two streams: `logic(input1, input2, output)`, run on data."""
        return Stream(generic.binary(self.port, other.port, (pact1, pact2), name, build))

    def binary_frontier(
        self, other: Stream[U], pact1: Pact, pact2: Pact, name: str, build: BinaryBuild[T, U, R]
    ) -> Stream[R]:
        """Like `binary`, run also when a frontier moves."""
        return Stream(generic.binary(self.port, other.port, (pact1, pact2), name, build, notify=True))

    def sink(self, pact: Pact, name: str, build: SinkBuild[T]) -> None:
        """An end of your own: `build(info)` returns `logic(input)`, run on data and when the frontier moves."""
        generic.sink(self.port, pact, name, build)

    # State that moves -------------------------------------------------------------------

    def stateful_state_machine(
        self: Stream[tuple[K, V]],
        fold: Fold[K, V, A, R],
        hash: Callable[[K], int] = stable_hash,
        control: Stream[Any] | None = None,
        *,
        bins: int = 256,
        name: str | None = None,
    ) -> Stream[R]:
        """Keep a state per key, in bins that can move between workers while the stream runs.

        `fold(key, value, state) -> (state, outputs)`: state is None for a key without one; returning None forgets
        it. Per key, values come in time order, those of one time in the order of their arrival. Outputs carry the
        time of their record. `hash` must agree between processes; it is mixed before a bin is taken from it.
        `control` is a stream of `Move` and `Map`, injected on one worker; without it (and without a flow's) the
        table is fixed. `bins` is a power of two up to 2^20. See Megaphone, PVLDB 12(9), section 3.
        """
        commands = control_for(self.port.scope, control.port if control is not None else None, bins)
        return Stream(stateful_state_machine(self.port, fold, hash, commands, bins, name))
