"""The ends of streams: the methods that return no other stream, for probes, captures, sinks and loops.

A method here asks for the port only when it is called, because a stream with timestamps makes its plain records at that
moment. `StreamPass` and `Stream` add the methods that continue a stream.
"""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar

from megaflow.errors import BuildError
from megaflow.timely.dataflow.argument_checks import instance
from megaflow.timely.dataflow.capture.capture import Captured, capture, capture_into
from megaflow.timely.dataflow.capture.event_link import EventPusher
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators import generic, movement
from megaflow.timely.dataflow.pact import PactOrClass
from megaflow.timely.dataflow.probe import ProbeHandle, probe_with

T = TypeVar("T")
A_STREAM = "a stream, as scope.to_stream(…) makes one of an iterable"


class StreamEnd(Generic[T]):
    """Output of an operator, with the methods that end a stream."""

    def __init__(self, port: Port[T]) -> None:
        self._port = port

    @property
    def port(self) -> Port[T]:
        """The operator's output port in the engine."""
        return self._port

    def probe(self) -> ProbeHandle:
        """Return a handle that reports which times may still arrive here."""
        handle = ProbeHandle()
        probe_with(self.port, handle)
        return handle

    def probe_with(self, handle: ProbeHandle) -> Self:
        """Attach a handle that reports which times may still arrive here, and return the stream."""
        probe_with(self.port, instance("probe_with", handle, ProbeHandle, "a ProbeHandle()"))
        return self

    def window(self, windows: Any, **how: Any) -> Any:
        """Raise BuildError: only a stream with timestamps has windows, see `EventStream.window`."""
        raise BuildError(
            f"window ({user_line()}): this stream has no timestamps; write .event_time(timestamp) before, where "
            "timestamp(record) gives one. Aggregates, .plain() and stateful operators without stamp= take them away"
        )

    def capture(self) -> Captured[T]:
        """Keep this worker's records. `extract()` of the result returns [(time, records)]."""
        return capture(self.port)

    def capture_into(self, pusher: EventPusher) -> None:
        """Send this worker's records and progress to an EventLink, an EventWriter or any object with `push(event)`.

        `scope.replay` turns them into a stream again, on any number of workers. Each worker needs its own pusher.
        """
        capture_into(self.port, pusher)

    def sink(self, pact: PactOrClass, name: str, build: generic.SinkBuild[T], *, stateless: bool = False) -> None:
        """End the stream in a custom operator: `build(info)` returns `logic(input)`.

        `logic` runs when records arrive and when the frontier moves.
        """
        generic.sink(self.port, pact, name, build, stateless)

    def connect_loop(self, handle: movement.LoopHandle[T]) -> None:
        """Feed this stream back into the loop that `scope.feedback` opened."""
        instance("connect_loop", handle, movement.LoopHandle, "the handle that `feedback` returned").connect(self.port)


def port_of(verb: str, stream: Any) -> Port[Any]:
    """Return the port of a stream that a program gave to a method. Raises BuildError if it is not a stream."""
    given: StreamEnd[Any] = instance(verb, stream, StreamEnd, A_STREAM)
    return given.port
