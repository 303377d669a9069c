"""A blocking client of a worker process's port: for the command line, the launcher and Spark's executors."""

import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from megaflow.errors import ConfigMismatch, PeerLost, ProtocolError
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.handshake import NONCE_BYTES, ClientHandshake
from megaflow.timely.communication.tcp import address_text, check_other_end, configure, hears_nothing
from megaflow.timely.communication.wire import Buffer, FrameDecoder, Kind, frames

READ_BYTES = 64 * 1024


class Client:
    """One authenticated connection, used by one thread at a time for sending and one for receiving."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.address = address  # host:port of the other side
        self._socket = connection
        self._decoder = FrameDecoder()
        self._buffer = memoryview(bytearray(READ_BYTES))  # for one read: to allocate it each time tears the heap apart
        self._messages: deque[tuple[int, bytes]] = deque()  # arrived, not yet asked for
        self._unsent = bytearray()  # of what was posted
        self._lost: str | None = None  # why nothing more comes

    @classmethod
    def connect(
        cls, host: str, port: int, secret: bytes, role: str, hello: dict[str, Any], timeout_seconds: float = 10.0,
        has_reason: Callable[[], bool] = lambda: False,
    ) -> Self:  # fmt: skip
        """Connect and shake hands, once. While the other side `has_reason` to be slow, the time begins anew.

        Raises OSError if no process listens, TimeoutError after the time given, ConfigMismatch if the other side
        refuses, PeerLost if it hangs up and ProtocolError if it is no megaflow.
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
                    kind, payload = client._next(timeout_seconds, deadline)
                except TimeoutError:
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
        """Send one value as far as that does not block; `flush` sends the rest. Raises CannotTravel and PeerLost.

        Whoever posts does not `send`.
        """
        for frame in frames(Kind.VALUE, encode(value)):
            self._unsent += frame
        self.flush()

    def flush(self) -> None:
        """Send what was posted as far as that does not block. Raises PeerLost."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise PeerLost(f"lost {self.address} while sending: {error.strerror or error}") from error
            del self._unsent[:sent]

    def check_heard(self) -> None:
        """Raise PeerLost if the other host acknowledges nothing of what was sent: keepalive is for idle connections."""
        if hears_nothing(self._socket):
            raise PeerLost(f"lost {self.address}: its machine does not answer")

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` is to be called when the connection can be written to."""
        return bool(self._unsent)

    def receive(self, timeout_seconds: float | None = None) -> Any:
        """Return the next value; raises TimeoutError after the time given, PeerLost once the other side has closed."""
        return self._value(*self._next(timeout_seconds))

    def receive_available(self) -> list[Any]:
        """Return what has arrived, without blocking; raises PeerLost only once there is nothing left to return."""
        while self._lost is None and self._read(0.0):
            pass
        if not self._messages and self._lost is not None:
            raise PeerLost(self._lost)
        return [self._value(*self._messages.popleft()) for _ in range(len(self._messages))]

    def fileno(self) -> int:
        """Return the descriptor to wait for; what `receive_available` has not been asked for stays unread in it."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close; what was sent still arrives."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, timeout_seconds: float | None, deadline: float | None = None) -> tuple[int, Buffer]:
        """Return the next message; `deadline` is for a timeout that has begun before."""
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
        """Wait for bytes and take them in; tell whether there were any."""
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
