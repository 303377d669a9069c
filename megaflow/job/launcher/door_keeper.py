"""Answers at the launcher's side door (see `megaflow.job.side_door`), on a separate thread.

So it answers whatever the launcher waits for: workers that do not answer, input, output, Spark. Its `handlers` may run
on any thread and return quickly.

No visitor can block the others. A visitor makes one request, of at most REQUEST_BYTES. It is dismissed after
SILENCE_SECONDS of silence. If there are more than VISITORS_MAX, the one that has waited longest is dismissed. An answer
that does not fit into the socket's buffer is not waited for.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from typing import Any, Self

from megaflow.control.shapes import conforms
from megaflow.errors import ProtocolError
from megaflow.job.job_file import Job
from megaflow.job.launcher.wakeups import Wakeup
from megaflow.job.side_door import open_door
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.wire import FrameDecoder, Kind, frames

REQUEST_BYTES = 4096
SILENCE_SECONDS = 5.0
VISITORS_MAX = 32
FAREWELL_SECONDS = 1.0  # for the thread to answer whom it is answering
LOOK_SECONDS = 1.0
FULL_SECONDS = 0.1  # until it is tried again to let somebody in when there are no descriptors


@dataclass(eq=False, slots=True)
class Visitor:
    """A connection, until it has its answer."""

    connection: socket.socket
    deadline: float  # seconds of time.monotonic()
    decoder: FrameDecoder = field(default_factory=lambda: FrameDecoder(REQUEST_BYTES))


class DoorKeeper:
    """The thread; a context manager that ends it. A job on a system without such sockets goes on without a door."""

    def __init__(
        self, job: Job, handlers: Mapping[type, Callable[[Any], object]], look: Callable[[], None] = lambda: None
    ) -> None:
        """`handlers` has for each class of requests what gives the answer; `look` is called every LOOK_SECONDS."""
        self._handlers = handlers
        self._look = look
        self._next_look = time.monotonic()
        self._visitors: dict[socket.socket, Visitor] = {}  # the one that came first, first
        self._closing = Wakeup()
        self._closed = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._closing, selectors.EVENT_READ, self._closed.set)
        self._listener: socket.socket | None = None
        with contextlib.suppress(OSError):
            self._listener = open_door(job)
            self._selector.register(self._listener, selectors.EVENT_READ, self._let_in)
        self._thread = threading.Thread(target=self._run, name="megaflow-door", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.wake()
        self._thread.join(FAREWELL_SECONDS)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                for key, _ in self._selector.select(self._timeout()):
                    key.data()
                now = time.monotonic()
                self._send_away(now)
                if now >= self._next_look:
                    self._look()
                    self._next_look = now + LOOK_SECONDS
        finally:
            self._selector.close()
            for open_file in (*self._visitors, self._listener, self._closing):
                if open_file is not None:
                    open_file.close()

    def _timeout(self) -> float:
        first = next(iter(self._visitors.values()), None)
        due = self._next_look if first is None else min(first.deadline, self._next_look)
        return max(0.0, due - time.monotonic())

    def _send_away(self, now: float) -> None:
        """Let go of those that have come to ask and do not."""
        while self._visitors and next(iter(self._visitors.values())).deadline <= now:
            self._let_go(next(iter(self._visitors)))

    def _let_in(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return  # it has left already
        except OSError:
            self._closed.wait(FULL_SECONDS)
            return
        connection.setblocking(False)
        if len(self._visitors) >= VISITORS_MAX:
            self._let_go(next(iter(self._visitors)))
        self._visitors[connection] = Visitor(connection, time.monotonic() + SILENCE_SECONDS)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._listen, self._visitors[connection]))

    def _listen(self, visitor: Visitor) -> None:
        if visitor.connection not in self._visitors:
            return  # it was sent away in this very turn
        try:
            data = visitor.connection.recv(REQUEST_BYTES)
            asked = [(kind, bytes(payload)) for kind, payload in visitor.decoder.feed(data)]
            if asked:
                visitor.connection.sendall(self._answer(*asked[0]))
            elif data:
                return
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            pass  # it has left, or is no client of ours
        self._let_go(visitor.connection)

    def _answer(self, kind: int, payload: bytes) -> bytes:
        """Return the answer to a request, as frames. Raises ProtocolError if it is none."""
        request = decode(payload) if kind == Kind.VALUE else None
        handler = self._handlers.get(type(request))
        if handler is None or not conforms(request, type(request)):
            raise ProtocolError(f"The launcher does not know the request {type(request).__name__}.")
        return b"".join(frames(Kind.VALUE, encode(handler(request))))

    def _let_go(self, connection: socket.socket) -> None:
        del self._visitors[connection]
        self._selector.unregister(connection)
        connection.close()
