"""Scope: the place where streams begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar, overload

from megaflow.stream import Stream
from megaflow.timely.dataflow.argument_checks import instance, iterable
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.capture.event_link import EventSource
from megaflow.timely.dataflow.capture.replay import replay
from megaflow.timely.dataflow.graph import ScopeRef
from megaflow.timely.dataflow.input_handle import InputHandle, input_from
from megaflow.timely.dataflow.operators import generic, movement, sources
from megaflow.timely.dataflow.scopes import adds_rounds, block_or_value, open_child
from megaflow.timely.path_summary import Step

T = TypeVar("T")
R = TypeVar("R")


class Scope:
    """A dataflow, or a part of it, under construction.

    `worker.dataflow()` returns the root; `scoped`, `iterative` and `region` return children, which streams `enter` and
    `leave`. Each is used in a `with` block, or is given a function that builds it; a scope can be changed until its
    block, or the function, ends.
    """

    def __init__(self, ref: ScopeRef) -> None:
        self.ref = ref

    @property
    def name(self) -> str:
        """Name of the scope; the root has the name of the dataflow."""
        return self.ref.graph.name if self.ref.parent is None else self.ref.name

    @property
    def index(self) -> int:
        """Id of this worker, as `worker.index`."""
        return self.ref.graph.context.allocator.index

    @property
    def peers(self) -> int:
        """Present number of workers, as `worker.peers`."""
        return len(self.ref.graph.context.membership().ids)

    def input_from(self, handle: InputHandle[T]) -> Stream[T]:
        """Return the stream of the records that the program sends through `handle`, from its current time on."""
        return Stream(input_from(self.ref, instance("input_from", handle, InputHandle, "an InputHandle()")))

    def new_input(self) -> tuple[InputHandle[Any], Stream[Any]]:
        """Return a new handle, and the stream of the records that are sent through it."""
        handle: InputHandle[Any] = InputHandle()
        return handle, self.input_from(handle)

    def new_unordered_input(self) -> tuple[sources.UnorderedHandle[Any], Capability, Stream[Any]]:
        """Return a handle without a current time, a capability, and the stream of the records sent through the handle.

        `with handle.session(capability) as session` sends at the capability's time. Clones, and capabilities made with
        `capability.delayed(time)`, may be used in any order. The stream's frontier waits for all capabilities that are
        held: release them. When the worker's program ends, the remaining ones are released.
        """
        handle, capability, port = sources.new_unordered_input(self.ref)
        return handle, capability, Stream(port)

    def to_stream(self, records: Iterable[T]) -> Stream[T]:
        """Return the records of an iterable at the first time, on every worker that calls it, bit by bit."""
        return Stream(sources.to_stream(self.ref, iterable("to_stream", records, "an iterable of records")))

    def source(
        self, name: str, build: generic.SourceBuild[T], joinable: bool = False, *, stateless: bool = False
    ) -> Stream[T]:
        """Build a custom source: `build(capability, info)` returns `logic(output)`.

        The logic runs once at the start, then whenever `info.activator` requests it. The stream stays open while the
        source holds its capability; release it to end the stream. The engine releases it if `build` drops it. If
        `output.is_full()`, stop sending and return: the logic runs again when there is room. On a worker that joins
        later the capability is absent. With `joinable` it is filled, before `worker.bootstrap()` returns, if a member
        still holds one.

        A job that keeps its state refuses a custom source, because its records cannot be read again. `stateless=True`
        declares that the records need not survive; after a crash the source then starts from its beginning.
        """
        return Stream(generic.operator(self.ref, name, [], build, joinable=joinable, stateless=stateless))

    def replay(self, sources: Iterable[EventSource]) -> Stream[Any]:
        """Return the stream that was captured into these EventLinks, or into the files of these EventReaders.

        A reader's file may be a socket. Each worker passes its share of the sources, perhaps none. Together the workers
        pass each source once.
        """
        return Stream(replay(self.ref, iterable("replay", sources, "a list of EventLinks and EventReaders")))

    def empty(self) -> Stream[Any]:
        """Return a stream that ends at once."""
        return self.to_stream(())

    def feedback(self, summary: Step) -> tuple[movement.LoopHandle[Any], Stream[Any]]:
        """Return the open end of a loop, and the stream that it feeds back, `summary` later each time around.

        `summary` is an int in nested scopes and where times are ints, a tuple or Product of ints for such times, and a
        `PathSummary` for a class of times. Records for which it returns no time are dropped.
        """
        handle, port = movement.feedback(self.ref, summary)
        return handle, Stream(port)

    def loop_variable(self, summary: int) -> tuple[movement.LoopHandle[Any], Stream[Any]]:
        """Return the open end of an iterative scope's loop, and the stream that this feeds `summary` rounds later."""
        handle, port = movement.loop_variable(self.ref, summary)
        return handle, Stream(port)

    @overload
    def scoped(self, name: str, build: None = None, *, timestamp: Any = None) -> AbstractContextManager[Scope]: ...
    @overload
    def scoped(self, name: str, build: Callable[[Scope], R], *, timestamp: Any = None) -> R: ...
    def scoped(self, name: str, build: Any = None, *, timestamp: Any = None) -> Any:
        """Open a child scope of this name. Its times are Product(time here, round), for any kind of time here.

        `timestamp` states the kind of its times, as for `worker.dataflow`: those of this scope, as for a `region`, or
        `Product` of them and 0. `scoped(name, build)` calls `build(scope)` in place of a block and returns its value.
        """
        rounds = timestamp is None or adds_rounds(self.ref, timestamp)
        return block_or_value("scoped", partial(self._child, "scope", rounds), name, build)

    @overload
    def iterative(self, name: str | None = None, build: None = None) -> AbstractContextManager[Scope]: ...
    @overload
    def iterative(self, name: Callable[[Scope], R]) -> R: ...
    @overload
    def iterative(self, name: str | None, build: Callable[[Scope], R]) -> R: ...
    def iterative(self, name: Any = None, build: Any = None) -> Any:
        """Open a child scope for a loop. Its times are Product(time here, round); see `loop_variable`.

        `iterative(build)` and `iterative(name, build)` call `build(scope)` in place of a block and return its value.
        """
        return block_or_value("iterative", partial(self._child, "iterative", True), name, build)

    @overload
    def region(self, name: str | None = None, build: None = None) -> AbstractContextManager[Scope]: ...
    @overload
    def region(self, name: Callable[[Scope], R]) -> R: ...
    @overload
    def region(self, name: str | None, build: Callable[[Scope], R]) -> R: ...
    def region(self, name: Any = None, build: Any = None) -> Any:
        """Open a child scope that only has a name. Its times are those of this scope, and entering it costs nothing.

        `region(build)` and `region(name, build)` call `build(scope)` in place of a block and return its value.
        """
        return block_or_value("region", partial(self._child, "region", False), name, build)

    def _child(self, default: str, rounds: bool, name: str | None) -> AbstractContextManager[Scope]:
        return _building(open_child(self.ref, default if name is None else name, rounds))

    def concatenate(self, streams: Sequence[Stream[T]]) -> Stream[T]:
        """Merge several streams. Records stay on their workers."""
        iterable("concatenate", streams, "a list of streams")
        ports = [instance("concatenate", stream, Stream, "streams").port for stream in streams]
        return Stream(movement.concatenate(self.ref, ports))


@contextmanager
def _building(ref: ScopeRef) -> Iterator[Scope]:
    try:
        yield Scope(ref)
    finally:
        ref.open = False
