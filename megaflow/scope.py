"""Scope: where streams begin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from megaflow.stream import Stream
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.capture.event_link import EventSource
from megaflow.timely.dataflow.capture.replay import replay
from megaflow.timely.dataflow.given import instance, iterable
from megaflow.timely.dataflow.graph import ScopeRef
from megaflow.timely.dataflow.input_handle import InputHandle, input_from
from megaflow.timely.dataflow.operators import generic, movement, sources
from megaflow.timely.dataflow.scopes import open_child
from megaflow.timely.path_summary import Step

T = TypeVar("T")


class Scope:
    """A dataflow, or a part of it, under construction; a `with` block gives it.

    `worker.dataflow()` gives the root; `scoped`, `iterative` and `region` give children, which streams
    `enter` and `leave`. A scope can be built in until its block ends.
    """

    def __init__(self, ref: ScopeRef) -> None:
        self.ref = ref

    @property
    def name(self) -> str:
        """The name of the scope; the root's is that of the dataflow."""
        return self.ref.graph.name if self.ref.parent is None else self.ref.name

    def input_from(self, handle: InputHandle[T]) -> Stream[T]:
        """The stream of what the program sends through `handle`, from the handle's current time on."""
        return Stream(input_from(self.ref, instance("input_from", handle, InputHandle, "an InputHandle()")))

    def new_input(self) -> tuple[InputHandle[Any], Stream[Any]]:
        """A new handle, and the stream of what is sent through it."""
        handle: InputHandle[Any] = InputHandle()
        return handle, self.input_from(handle)

    def new_unordered_input(self) -> tuple[sources.UnorderedHandle[Any], Capability, Stream[Any]]:
        """A handle without a present time, a capability, and the stream of what is sent through the handle.

        `with handle.session(capability) as session` sends at the capability's time; clones and later ones made with
        `capability.delayed(time)` may be used in any order. The stream's time waits for all that are held: release
        them. What is left when the worker's program ends is released then.
        """
        handle, capability, port = sources.new_unordered_input(self.ref)
        return handle, capability, Stream(port)

    def to_stream(self, records: Iterable[T]) -> Stream[T]:
        """The records of an iterable at the least time, on every worker that calls it; read bit by bit."""
        return Stream(sources.to_stream(self.ref, iterable("to_stream", records, "an iterable of records")))

    def source(
        self, name: str, build: generic.SourceBuild[T], joinable: bool = False, *, stateless: bool = False
    ) -> Stream[T]:
        """A source of your own: `build(capability, info)` returns `logic(output)`.

        It runs once at the start, then whenever `info.activator` asks for it. While it holds its capability the
        stream stays open; it must release it to end. While `output.is_full()` it should send no more and return: it
        runs again when there is room. On a worker that joins later the capability is absent; with
        `joinable` it is filled, before `worker.bootstrap()` returns, if a member still holds one.

        A job that keeps its state refuses it, since nobody can read its records again, unless `stateless=True` says
        that none of them matters: after a crash it begins anew.
        """
        return Stream(generic.operator(self.ref, name, [], build, joinable=joinable, stateless=stateless))

    def replay(self, sources: Iterable[EventSource]) -> Stream[Any]:
        """The stream that was captured into these EventLinks, or into the files or sockets of these EventReaders.

        Each worker gives its share of the sources, perhaps none; together they give each once.
        """
        return Stream(replay(self.ref, iterable("replay", sources, "a list of EventLinks and EventReaders")))

    def empty(self) -> Stream[Any]:
        """A stream that ends at once."""
        return self.to_stream(())

    def feedback(self, summary: Step) -> tuple[movement.LoopHandle[Any], Stream[Any]]:
        """The open end of a loop and the stream of what is fed back, `summary` later each time around.

        It is an int in nested scopes and where times are ints, a tuple or Product of such for times like that, and a
        `PathSummary` for a class of times. What it brings to no time is dropped.
        """
        handle, port = movement.feedback(self.ref, summary)
        return handle, Stream(port)

    def loop_variable(self, summary: int) -> tuple[movement.LoopHandle[Any], Stream[Any]]:
        """The open end of a loop in an iterative scope and the stream of what is fed back, `summary` rounds later."""
        handle, port = movement.loop_variable(self.ref, summary)
        return handle, Stream(port)

    def scoped(self, name: str) -> AbstractContextManager[Scope]:
        """A child scope of this name, whose times are Product(time here, round), of whatever kind times here are."""
        return _building(open_child(self.ref, name, rounds=True))

    def iterative(self, name: str | None = None) -> AbstractContextManager[Scope]:
        """A child scope for a loop, whose times are Product(time here, round); see `loop_variable`."""
        return _building(open_child(self.ref, "iterative" if name is None else name, rounds=True))

    def region(self, name: str | None = None) -> AbstractContextManager[Scope]:
        """A child scope that is a name only: its times are those here, and entering it costs nothing."""
        return _building(open_child(self.ref, "region" if name is None else name, rounds=False))

    def concatenate(self, streams: Sequence[Stream[T]]) -> Stream[T]:
        """All records of several streams, none of them moved."""
        iterable("concatenate", streams, "a list of streams")
        ports = [instance("concatenate", stream, Stream, "streams").port for stream in streams]
        return Stream(movement.concatenate(self.ref, ports))


@contextmanager
def _building(ref: ScopeRef) -> Iterator[Scope]:
    try:
        yield Scope(ref)
    finally:
        ref.open = False
