"""Capture: keep what a stream carries, in memory or as events for a later or distant replay.

`capture` keeps the records of this worker's part of a stream. `capture_into` hands its events (see `events`) to a
pusher: an `EventLink` in memory, an `EventWriter` on a file or socket, or anything with `push(event)`. `replay` turns
them into a stream again; it reads links and `EventReader`s.

None of them blocks a worker: a socket or pipe that cannot take more leaves bytes in the writer, and the dataflow lives
until they are gone; one that has nothing to read is looked at again after a pause.
"""

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from io import TextIOBase
from typing import Any, Final, Generic, TypeVar

from megaflow.errors import BuildError, PeerLost, SourceError, UsageError
from megaflow.timely.dataflow.builder import Input, OperatorBuilder
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.capture.event_format import HEADER, Event, EventDecoder, Messages, Progress, encode_event
from megaflow.timely.dataflow.capture.event_link import EventLink, EventPusher, claimed_twice
from megaflow.timely.dataflow.context import Backoff, OperatorInfo
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.order import Time, coordinates, minimum
from megaflow.timely.progress.antichain import Antichain

T = TypeVar("T")

_CHUNK_BYTES: Final = 64 * 1024  # read or written at once
_CHUNKS_PER_READ: Final = 16  # then others get their turn, even if a large event is not complete


class Captured(Generic[T]):
    """What one worker's part of a stream carried."""

    def __init__(self) -> None:
        self._records: dict[Time, list[T]] = {}  # in arrival order within a time

    def add(self, time: Time, batch: list[T]) -> None:
        """Keep one batch."""
        self._records.setdefault(time, []).extend(batch)

    def extract(self) -> list[tuple[Time, list[T]]]:
        """Return the records so far, by time; within a time sorted where they can be, else in arrival order."""
        return [(time, _sorted(self._records[time])) for time in sorted(self._records, key=coordinates)]


def _sorted(records: list[Any]) -> list[Any]:
    try:
        return sorted(records)
    except TypeError:  # records without an order keep that of their arrival
        return list(records)


def capture(port: Port[T]) -> Captured[T]:
    """Keep the stream's records on each worker; readable at any time, complete when the dataflow is."""
    captured: Captured[T] = Captured()
    builder = OperatorBuilder(port.scope, "Capture")
    source: Input[T] = builder.new_input(port, Pipeline(), notify=False)

    def logic() -> None:
        for time, batch in source.drain():
            captured.add(time, batch)

    builder.build_releasing(logic)
    return captured


class EventWriter:
    """Writes the events of one capture to a file or socket, in the format that `events` documents.

    It belongs to the writer, which closes it once the stream is complete (a BytesIO stays open). A disk is written to
    at once; what a socket or pipe does not take waits in memory, `pending_bytes` of it.
    """

    def __init__(self, file: Any) -> None:
        _check_file(file, "EventWriter", "wb")
        self._file = file
        self._name = _name(file)
        self._descriptor = _make_non_blocking(file)
        self._pending = bytearray(HEADER)
        self._claimed = False

    @property
    def pending_bytes(self) -> int:
        """How much the outside has not taken yet."""
        return len(self._pending)

    def claim(self) -> None:
        """Be captured into; raises BuildError for a second time."""
        if self._claimed:
            raise claimed_twice(self)
        self._claimed = True

    def push(self, event: Event) -> None:
        """Add an event. Raises CannotTravel, or what `flush` raises."""
        self._pending += encode_event(event)
        if len(self._pending) >= _CHUNK_BYTES:
            self.flush()

    def flush(self) -> bool:
        """Write what can be written without waiting; True if nothing is left.

        Raises PeerLost if the receiver is gone, OSError if a disk refuses.
        """
        try:
            while self._pending:
                del self._pending[: self._write(bytes(self._pending[:_CHUNK_BYTES]))]
        except BlockingIOError:
            return False
        except ConnectionError as error:
            raise PeerLost(f"{self}: the receiver is gone before the stream was complete: {error}") from error
        if not isinstance(self._file, socket.socket):
            self._file.flush()
        return True

    def close(self) -> None:
        """Close the file or socket."""
        _close(self._file)

    def _write(self, data: bytes) -> int:
        if isinstance(self._file, socket.socket):
            return self._file.send(data)
        if self._descriptor is not None:  # past a buffer that could not say how much it has taken
            return os.write(self._descriptor, data)
        written: int | None = self._file.write(data)
        return len(data) if written is None else written

    def __str__(self) -> str:
        return self._name


class EventReader:
    """Reads the events of one capture from a file or socket, which it closes once the stream is complete.

    The end of a file that is not complete is an error, as is that of a socket; with `growing` more of the file is
    waited for.
    """

    def __init__(self, file: Any, growing: bool = False) -> None:
        _check_file(file, "EventReader", "rb")
        self._file = file
        self._growing = growing
        self._decoder = EventDecoder(_name(file))
        self._attached = False
        _make_non_blocking(file)

    def attach(self, wake: Callable[[], None]) -> bool:
        """Be replayed, once; return False, for a file does not say when there is more to read."""
        if self._attached:
            raise BuildError(f"replay ({user_line()}): {self} is replayed already; open it a second time")
        self._attached = True
        return False

    def read(self) -> Event | None:
        """Return the next event, None if its bytes have not all come.

        Raises SourceError, naming file and byte, for what is no captured stream, is damaged, or has ended.
        """
        for _ in range(_CHUNKS_PER_READ):
            event = self._decoder.next()
            if event is not None:
                return event
            data = self._receive()
            if data is None or (self._growing and not data):
                return None
            if not data:
                raise self._decoder.end()
            self._decoder.feed(data)
        return None

    def close(self) -> None:
        """Close the file or socket."""
        _close(self._file)

    def _receive(self) -> bytes | None:
        """Return some bytes, none at the end, None if there are none now."""
        try:
            if isinstance(self._file, socket.socket):
                return self._file.recv(_CHUNK_BYTES)
            data: bytes | None = self._file.read(_CHUNK_BYTES)
            return data
        except BlockingIOError:
            return None
        except (OSError, ValueError) as error:  # the latter from a file that the program has closed
            raise SourceError(f"{self}: cannot be read after byte {self._decoder.offset}: {error}") from error

    def __str__(self) -> str:
        return self._decoder.name


def capture_into(port: Port[Any], pusher: EventPusher) -> None:
    """Hand the events of this worker's part of the stream to `pusher`, one for each worker.

    The dataflow is complete once an EventWriter has got everything out.
    """
    if isinstance(pusher, EventLink | EventWriter):
        pusher.claim()
    writer = pusher if isinstance(pusher, EventWriter) else None
    builder = OperatorBuilder(port.scope, "CaptureInto")
    source: Input[Any] = builder.new_input(port, Pipeline(), connection={})
    builder.new_output()  # leads nowhere; while its capability is held, the dataflow is not complete
    now = port.scope.graph.context.now

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        [alive], backoff = capabilities, Backoff(info.activator, now)
        shown = Antichain([minimum(port.scope.depth)])

        def logic() -> None:
            nonlocal shown
            if not alive.held:
                return
            for time, batch in source.drain():
                pusher.push(Messages(time, batch))
            frontier = source.frontier  # read after the records: progress may come late, never early
            if frontier != shown:
                pusher.push(Progress(_difference(shown, frontier)))
                shown = frontier
            if writer is not None and not writer.flush():
                backoff.later()
                return
            backoff.reset()
            if frontier.is_empty():
                if writer is not None:
                    writer.close()
                alive.release()

        return logic

    builder.build(make)


def _difference(old: Antichain, new: Antichain) -> list[tuple[Time, int]]:
    gone = [(time, -1) for time in old if time not in new.elements]
    return [(time, 1) for time in new if time not in old.elements] + gone


def _check_file(file: Any, kind: str, mode: str) -> None:
    if isinstance(file, TextIOBase):
        raise UsageError(f"{kind}: {_name(file)} is open as text; open it with mode {mode!r}")
    method = "write" if mode == "wb" else "read"
    if not isinstance(file, socket.socket) and not hasattr(file, method):
        raise UsageError(f"{kind}({file!r}): this is neither a file nor a socket; use {kind}(open(PATH, {mode!r}))")


def _name(file: Any) -> str:
    if isinstance(file, socket.socket):
        peer: Any = None
        with contextlib.suppress(OSError):  # not connected any more
            peer = file.getpeername()
        return f"socket to {peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "socket"
    return str(getattr(file, "name", type(file).__name__))


def _make_non_blocking(file: Any) -> int | None:
    """See to it that the file never makes a worker wait; the descriptor of a pipe or terminal, None of others."""
    if isinstance(file, socket.socket):
        file.setblocking(False)
        return None
    descriptor = _descriptor(file)
    if descriptor is None or stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None
    os.set_blocking(descriptor, False)
    return descriptor


def _descriptor(file: Any) -> int | None:
    try:
        return int(file.fileno())
    except (AttributeError, OSError):  # in memory
        return None


def _close(file: Any) -> None:
    if _descriptor(file) is not None:
        file.close()
