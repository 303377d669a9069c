"""A blocking client of a worker process's port, for the command line, the launcher and Spark's executors."""

import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from megaflow.errors import ConfigMismatch, PeerLost, ProtocolError
from megaflow.timely.communication.address import address_text
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.handshake import NONCE_BYTES, ClientHandshake
from megaflow.timely.communication.tcp import check_other_end, configure, hears_nothing
from megaflow.timely.communication.wire import Buffer, FrameDecoder, Kind, frames

READ_BYTES = 64 * 1024
LOOK_SECONDS = 0.1  # between checks that an answer can still come


class Client:
    """One authenticated connection, used by one thread at a time for sending and one for receiving."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.address = address  # host:port of the other side
        self._socket = connection
        self._decoder = FrameDecoder()
        self._buffer = memoryview(bytearray(READ_BYTES))  # reused: a new one for each read fragments the heap
        self._messages: deque[tuple[int, bytes]] = deque()  # arrived, not returned yet
        self._unsent = bytearray()  # posted bytes that have not left
        self._lost: str | None = None  # why no more messages will come

    @classmethod
    def connect(
        cls, host: str, port: int, secret: bytes, role: str, hello: dict[str, Any], timeout_seconds: float = 10.0,
        has_reason: Callable[[], bool] = lambda: False, is_over: Callable[[], bool] = lambda: False,
    ) -> Self:  # fmt: skip
        """Connect and shake hands, once. The timeout starts anew while the other side `has_reason` to be slow.

        Raises OSError if no process listens, TimeoutError after the given time, ConfigMismatch if the other side
        refuses, PeerLost if it hangs up or `is_over` returns true (no answer can come), and ProtocolError if the other
        side is not megaflow.
        """
        address = address_text((host, port))
        deadline = time.monotonic() + timeout_seconds
        connection = socket.create_connection((host, port), timeout_seconds)
        try:
            check_other_end(connection, connection.getpeername())
            connection.settimeout(None)
            configure(connection)
            client = cls(connection, address)
            handshake = ClientHandshake(secret, role, hello, secrets.token_bytes(NONCE_BYTES))
            connection.sendall(handshake.start())
            while handshake.answer is None:
                try:
                    kind, payload = client._next(timeout_seconds, min(deadline, time.monotonic() + LOOK_SECONDS))
                except TimeoutError:
                    if is_over():
                        raise PeerLost(f"{address} does not answer") from None
                    if time.monotonic() < deadline:
                        continue
                    if not has_reason():
                        raise
                    deadline = time.monotonic() + timeout_seconds
                else:
                    connection.sendall(handshake.received(kind, payload))
        except ConfigMismatch as error:
            connection.close()
            raise ConfigMismatch(f"{address} refuses the connection: {error}") from error
        except BaseException:
            connection.close()
            raise
        return client

    def send(self, value: object) -> None:
        """Send one value; blocks while the other side does not read. Raises CannotTravel and PeerLost."""
        for frame in frames(Kind.VALUE, encode(value)):
            try:
                self._socket.sendall(frame)
            except OSError as error:
                raise PeerLost(f"lost {self.address} while sending: {error.strerror or error}") from error

    def post(self, value: object) -> None:
        """Send as much of one value as possible without blocking; `flush` sends the rest.

        Raises CannotTravel and PeerLost. A caller of `post` must not call `send`.
        """
        for frame in frames(Kind.VALUE, encode(value)):
            self._unsent += frame
        self.flush()

    def flush(self) -> None:
        """Send as much of the posted bytes as possible without blocking. Raises PeerLost."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise PeerLost(f"lost {self.address} while sending: {error.strerror or error}") from error
            del self._unsent[:sent]

    def check_heard(self) -> None:
        """Raise PeerLost if the other host acknowledges nothing. Keepalive detects this only on idle connections."""
        if hears_nothing(self._socket):
            raise PeerLost(f"lost {self.address}: its machine does not answer")

    @property
    def has_unsent(self) -> bool:
        """Whether to call `flush` when the connection is writable."""
        return bool(self._unsent)

    def receive(self, timeout_seconds: float | None = None) -> Any:
        """Return the next value. Raises TimeoutError after the given time, PeerLost once the other side has closed."""
        return self._value(*self._next(timeout_seconds))

    def receive_available(self) -> list[Any]:
        """Return the values that have arrived, without blocking. Raises PeerLost only if there are none to return."""
        while self._lost is None and self._read(0.0):
            pass
        if not self._messages and self._lost is not None:
            raise PeerLost(self._lost)
        return [self._value(*self._messages.popleft()) for _ in range(len(self._messages))]

    def fileno(self) -> int:
        """Return the descriptor to wait for. It stays readable until `receive_available` has read what arrived.

        `connect` and `receive` may read more messages than they return. Call `receive_available` after them, before
        you wait.
        """
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection. Values that were sent still arrive."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, timeout_seconds: float | None, deadline: float | None = None) -> tuple[int, Buffer]:
        """Return the next message. `deadline` is given if the timeout began before this call."""
        if timeout_seconds is not None and deadline is None:
            deadline = time.monotonic() + timeout_seconds
        while not self._messages:
            if self._lost is not None:
                raise PeerLost(self._lost)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._read(left) and left is not None and self._lost is None:
                raise TimeoutError(f"{self.address} sent nothing for {timeout_seconds:g} s")
        return self._messages.popleft()

    def _read(self, seconds: float | None) -> bool:
        """Wait for bytes and decode them; return whether any came."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        if not poller.poll(None if seconds is None else seconds * 1000):
            return False
        try:
            size = self._socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._lost = f"lost {self.address}: {error.strerror or error}"
            return False
        if not size:
            self._lost = f"{self.address} has closed the connection"
            return False
        self._messages.extend((kind, bytes(payload)) for kind, payload in self._decoder.feed(self._buffer[:size]))
        return True

    def _value(self, kind: int, payload: Buffer) -> Any:
        if kind != Kind.VALUE:
            raise ProtocolError(f"a frame of kind {kind} from {self.address} where a value was expected")
        return decode(payload)
