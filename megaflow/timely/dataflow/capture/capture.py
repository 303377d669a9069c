"""Capture: keeps a stream in memory, or as events for a later or distant replay.

`capture` keeps the records of this worker's part of a stream. `capture_into` passes its events (see `event_format`) to
a pusher: an `EventLink` in memory, an `EventWriter` on a file or socket, or any object with `push(event)`. `replay`
turns them into a stream again. It reads links and `EventReader`s.

No reader or writer makes a worker wait for the other end. If a socket or pipe is full, the bytes stay in the writer,
and the dataflow lives until they are written. If a file or socket has nothing to read, `replay` polls it again after a
pause.
"""

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from io import TextIOBase
from typing import Any, Final, Generic, TypeVar

from megaflow.errors import BuildError, PeerLost, SourceError, UsageError
from megaflow.timely.dataflow.builder import Input, NodeBuilder
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.capture.event_format import HEADER, Event, EventDecoder, Messages, Progress, encode_event
from megaflow.timely.dataflow.capture.event_link import EventLink, EventPusher
from megaflow.timely.dataflow.context import Backoff, OperatorInfo
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.fusion.stage import run_whole
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.dataflow.partition_tag import untagged
from megaflow.timely.order import Time, in_order
from megaflow.timely.progress.antichain import Antichain

T = TypeVar("T")

_CHUNK_BYTES: Final = 64 * 1024  # read or written at once
_CHUNKS_PER_READ: Final = 16  # then other operators run, even if a large event is not complete


class Captured(Generic[T]):
    """Records of one worker's part of a stream."""

    def __init__(self) -> None:
        self._records: dict[Time, list[T]] = {}  # in arrival order within a time

    def add(self, time: Time, batch: list[T]) -> None:
        """Keep one batch."""
        self._records.setdefault(time, []).extend(batch)

    def extract(self) -> list[tuple[Time, list[T]]]:
        """Return the records so far, by time. Records of a time are sorted if possible, else in arrival order."""
        return [(time, _sorted(self._records[time])) for time in in_order(self._records)]


def _sorted(records: list[Any]) -> list[Any]:
    try:
        return sorted(records)
    except (TypeError, ValueError):  # records without an order, such as arrays, keep the order of arrival
        return list(records)


def capture(port: Port[T]) -> Captured[T]:
    """Keep the stream's records on each worker. They are readable at any time, and complete when the dataflow is."""
    captured: Captured[T] = Captured()
    builder = NodeBuilder(port.scope, "Capture")
    source: Input[T] = builder.new_input(port, Pipeline(), notify=False)
    builder.build_releasing(run_whole([source], [], captured.add))
    return captured


class _EventFile:
    """A file or socket with the events of one capture. It never makes a worker wait."""

    def __init__(self, file: Any, mode: str) -> None:
        self.used = False  # by a capture or replay; set by `capture_into` and `attach`
        self._file = file
        self._is_socket = isinstance(file, socket.socket)
        self._name = _socket_name(file) if self._is_socket else str(getattr(file, "name", type(file).__name__))
        kind = type(self).__name__
        if isinstance(file, TextIOBase):
            raise UsageError(f"{kind}: {self} is open as text; open it with mode {mode!r}")
        if not self._is_socket and not hasattr(file, "write" if mode == "wb" else "read"):
            raise UsageError(f"{kind}({file!r}): this is neither a file nor a socket; use {kind}(open(PATH, {mode!r}))")
        self._descriptor: int | None = None  # None: in memory
        with contextlib.suppress(AttributeError, OSError):
            self._descriptor = int(file.fileno())
        self._is_pipe = False  # or a terminal
        if self._is_socket:
            file.setblocking(False)
        elif self._descriptor is not None and not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.set_blocking(self._descriptor, False)
            self._is_pipe = True

    def close(self) -> None:
        """Close the file or socket."""
        if self._descriptor is not None:
            self._file.close()

    def __str__(self) -> str:
        return self._name


def _socket_name(file: socket.socket) -> str:
    with contextlib.suppress(OSError):  # no longer connected
        peer = file.getpeername()
        if isinstance(peer, tuple):
            return f"socket to {peer[0]}:{peer[1]}"
    return "socket"


class EventWriter(_EventFile):
    """Writer of the events of one capture to a file or socket, in the format that `event_format` documents.

    The writer owns the file or socket and closes it once the stream is complete (a BytesIO stays open). Writes to a
    disk happen at once. Bytes that a socket or pipe does not accept wait in memory; `pending_bytes` counts them.
    """

    def __init__(self, file: Any) -> None:
        super().__init__(file, "wb")
        self._pending = bytearray(HEADER)

    @property
    def pending_bytes(self) -> int:
        """Number of bytes that the file or socket has not accepted yet."""
        return len(self._pending)

    def push(self, event: Event) -> None:
        """Add an event. Raises CannotTravel, and the errors of `flush`."""
        self._pending += encode_event(event)
        if len(self._pending) >= _CHUNK_BYTES:
            self.flush()

    def flush(self) -> bool:
        """Write as much as possible without waiting. Return True if everything is written.

        Raises PeerLost if the receiver is gone, and OSError if a write to the disk fails.
        """
        try:
            while self._pending:
                del self._pending[: self._write(bytes(self._pending[:_CHUNK_BYTES]))]
        except BlockingIOError:
            return False
        except ConnectionError as error:
            raise PeerLost(
                f"{self}: the receiver closed the connection before the stream was complete: {error}"
            ) from error
        if not self._is_socket:
            self._file.flush()
        return True

    def _write(self, data: bytes) -> int:
        if self._is_pipe:  # bypass the file's buffer, which cannot report how much it accepted
            return os.write(self._file.fileno(), data)
        written: int | None = (self._file.send if self._is_socket else self._file.write)(data)
        return len(data) if written is None else written


class EventReader(_EventFile):
    """Reader of the events of one capture from a file or socket, which it closes once the stream is complete.

    A file or socket that ends before the stream is complete is an error. With `growing`, the reader waits for more of
    the file.
    """

    def __init__(self, file: Any, growing: bool = False) -> None:
        super().__init__(file, "rb")
        self._growing = growing
        self._decoder = EventDecoder(str(self))

    def attach(self, wake: Callable[[], None]) -> bool:
        """Start the only replay of this reader. Return False: a file does not signal when there is more to read."""
        if self.used:
            raise BuildError(f"replay ({user_line()}): {self} is already being replayed; open it a second time")
        self.used = True
        return False

    def read(self) -> Event | None:
        """Return the next event, or None if its bytes have not all arrived.

        Raises SourceError, with file and byte, for a stream that is not a capture, is damaged, or has ended.
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

    def _receive(self) -> bytes | None:
        """Return some bytes, b"" at the end, or None if there are none now."""
        try:
            data: bytes | None = (self._file.recv if self._is_socket else self._file.read)(_CHUNK_BYTES)
            return data
        except BlockingIOError:
            return None
        except (OSError, ValueError) as error:  # ValueError: the program has closed the file
            raise SourceError(f"{self}: cannot be read after byte {self._decoder.offset}: {error}") from error


def capture_into(port: Port[Any], pusher: EventPusher) -> None:
    """Pass the events of this worker's part of the stream to `pusher`. Each worker has its own pusher.

    The dataflow is complete once an EventWriter has written everything.
    """
    if not hasattr(pusher, "push"):
        raise BuildError(
            f"capture_into ({user_line()}): {pusher!r:.200} is neither an EventLink nor an EventWriter, "
            "and has no push(event)"
        )
    if isinstance(pusher, EventLink | EventWriter):
        if pusher.used:
            raise BuildError(
                f"capture_into ({user_line()}): {pusher} already receives the events of another capture; each "
                f"stream, and each worker's part of it, needs its own {type(pusher).__name__}"
            )
        pusher.used = True
    writer = pusher if isinstance(pusher, EventWriter) else None
    builder = NodeBuilder(port.scope, "CaptureInto")
    source: Input[Any] = builder.new_input(port, Pipeline(), connection={})
    # The output has no reader. While its capability is held, the dataflow is not complete.
    builder.new_output()
    now = port.scope.graph.context.now

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        [alive], backoff = capabilities, Backoff(info.activator, now)
        shown = Antichain([port.scope.least])

        def logic() -> None:
            nonlocal shown
            if not alive.held:
                return
            for time, batch in source.drain():
                pusher.push(Messages(time, untagged(batch)))
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
