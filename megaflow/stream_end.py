"""What a stream may end in: probes, captures, sinks of one's own, and loops.

All that makes no other stream is here, whatever the records are; what goes on from a stream is told by `Stream`. A
method of these asks for the port when it is called and not before: a stream with timestamps has its plain records only
then.
"""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar

from megaflow.errors import BuildError
from megaflow.timely.dataflow.capture.capture import Captured, capture, capture_into
from megaflow.timely.dataflow.capture.event_link import EventPusher
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.given import instance
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators import generic, movement
from megaflow.timely.dataflow.pact import PactOrClass
from megaflow.timely.dataflow.probe import ProbeHandle, probe_with

T = TypeVar("T")


class StreamEnd(Generic[T]):
    """The output of an operator, where others are told of its records; all that goes on from it has a `Stream`."""

    def __init__(self, port: Port[T]) -> None:
        self._port = port

    @property
    def port(self) -> Port[T]:
        """The output, as the engine knows it."""
        return self._port

    def probe(self) -> ProbeHandle:
        """A handle that tells which times may still arrive here."""
        handle = ProbeHandle()
        probe_with(self.port, handle)
        return handle

    def probe_with(self, handle: ProbeHandle) -> Self:
        """Attach a handle that tells which times may still arrive here; the stream itself is returned."""
        probe_with(self.port, instance("probe_with", handle, ProbeHandle, "a ProbeHandle()"))
        return self

    def window(self, windows: Any, **how: Any) -> Any:
        """Refuse, with BuildError, to divide a stream that has no timestamps into windows."""
        raise BuildError(
            f"window ({user_line()}): this stream has no timestamps; write .event_time(timestamp) before, where "
            "timestamp(record) gives one. Stateful operators and .plain() take them away"
        )

    def capture(self) -> Captured[T]:
        """Keep this worker's records; `extract()` gives [(time, records)]."""
        return capture(self.port)

    def capture_into(self, pusher: EventPusher) -> None:
        """Hand this worker's records and progress to an EventLink, an EventWriter, or what else has `push(event)`.

        `scope.replay` makes a stream of them again, with any number of workers. Each worker needs its own pusher.
        """
        capture_into(self.port, pusher)

    def sink(self, pact: PactOrClass, name: str, build: generic.SinkBuild[T], *, stateless: bool = False) -> None:
        """An end of your own: `build(info)` returns `logic(input)`, run on data and when the frontier moves."""
        generic.sink(self.port, pact, name, build, stateless)

    def connect_loop(self, handle: movement.LoopHandle[T]) -> None:
        """Feed this stream back into the loop that `scope.feedback` opened."""
        instance("connect_loop", handle, movement.LoopHandle, "the handle that `feedback` returned").connect(self.port)
