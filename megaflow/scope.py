"""Scope: where streams begin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from megaflow.stream import Stream
from megaflow.timely.dataflow.graph import ScopeRef
from megaflow.timely.dataflow.input import InputHandle, input_from
from megaflow.timely.dataflow.operators import generic, movement, sources
from megaflow.timely.dataflow.operators.generic import SourceBuild
from megaflow.timely.dataflow.operators.movement import LoopHandle

T = TypeVar("T")


class Scope:
    """A dataflow under construction; the `with worker.dataflow()` block gives it."""

    def __init__(self, ref: ScopeRef) -> None:
        self.ref = ref

    @property
    def name(self) -> str:
        """The name of the dataflow."""
        return self.ref.graph.name

    def input_from(self, handle: InputHandle[T]) -> Stream[T]:
        """The stream of what the program sends through `handle`, from the handle's current time on."""
        return Stream(input_from(self.ref, handle))

    def new_input(self) -> tuple[InputHandle[Any], Stream[Any]]:
        """A new handle, and the stream of what is sent through it."""
        handle: InputHandle[Any] = InputHandle()
        return handle, self.input_from(handle)

    def to_stream(self, records: Iterable[T]) -> Stream[T]:
        """The records of an iterable at the least time, on every worker that calls it; read bit by bit."""
        return Stream(sources.to_stream(self.ref, records))

    def source(self, name: str, build: SourceBuild[T]) -> Stream[T]:
        """A source of your own: `build(capability, info)` returns `logic(output)`.

        It runs once at the start, then whenever `info.activator` asks for it. While it holds its capability the
        stream stays open; it must release it to end.
        """
        return Stream(generic.source(self.ref, name, build))

    def empty(self) -> Stream[Any]:
        """A stream that ends at once."""
        return self.to_stream(())

    def feedback(self, summary: int) -> tuple[LoopHandle[Any], Stream[Any]]:
        """The open end of a loop and the stream of what is fed back, `summary` later each time around."""
        handle, port = movement.feedback(self.ref, summary)
        return handle, Stream(port)

    def concatenate(self, streams: Sequence[Stream[T]]) -> Stream[T]:
        """All records of several streams, none of them moved."""
        return Stream(movement.concatenate(self.ref, [stream.port for stream in streams]))
