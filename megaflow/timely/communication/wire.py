"""Frames: how messages are cut into bytes and put together again. No I/O.

A frame is `u32 length | u8 kind | payload`, big-endian. The length counts only the payload. The kinds 0 to 3 are the
worker lanes; their payload begins with source, target and channel. A message larger than a frame travels as several
frames of its kind, and all but the last are marked MORE. Frames of other kinds may come between them, so an urgent lane
can overtake a large message.

A frame marked MORE is full. So the limit on a message also bounds the number of its frames, including their headers. If
the limit is smaller than a frame, a message is one frame. So no sender can send endless parts that add up to nothing.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, TypeAlias

import msgpack

from megaflow.errors import (
    CannotTravel,
    ClusterError,
    ConfigMismatch,
    ConnectTimeout,
    PeerFailed,
    PeerLost,
    ProtocolError,
)
from megaflow.timely.communication.channel import Channel, Lane

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_FRAME_BYTES = 256 * 1024  # payload; a quarter of a millisecond on loopback, two on a gigabit link
MAX_MESSAGE_BYTES = 1 << 30  # the largest message that a receiver assembles
MAX_REPORT_BYTES = 64 * 1024  # of a traceback
MORE = 0x80
EVERYBODY = -1  # target of a PROGRESS message that is for all workers of the process

_RELAYED: dict[str, type[ClusterError]] = {kind.__name__: kind for kind in (PeerLost, ConfigMismatch, ConnectTimeout)}
_FRAME = struct.Struct("!IB")  # length, kind
_ADDRESS = struct.Struct("!4i")  # source, target, dataflow, number of the channel
_LANES = tuple(Lane)
PREFIX_BYTES = _ADDRESS.size


class Kind(IntEnum):
    """Content of a frame; 0 to 3 are the values of Lane."""

    PROGRESS = Lane.PROGRESS
    MAIL = Lane.MAIL
    STATE = Lane.STATE
    DATA = Lane.DATA
    VALUE = 4  # one value, from a client or a role handler
    GOODBYE = 5
    FAILURE = 6
    GREETING = 16
    PROOF = 17
    HELLO = 18
    WELCOME = 19
    REFUSED = 20


def frames(kind: int, body: Buffer, prefix: bytes = b"") -> list[bytes]:
    """Cut `prefix + body` into frames. Raises CannotTravel above MAX_MESSAGE_BYTES.

    >>> frames(Kind.VALUE, b"abc")
    [b'\\x00\\x00\\x00\\x03\\x04abc']
    """
    length = len(prefix) + len(body)
    if length <= MAX_FRAME_BYTES:
        return [_FRAME.pack(length, kind) + prefix + body]
    if length > MAX_MESSAGE_BYTES:
        raise CannotTravel(
            f"a message of {length} bytes is larger than the limit of {MAX_MESSAGE_BYTES}: send it in smaller pieces"
        )
    rest = memoryview(body)
    room = MAX_FRAME_BYTES - len(prefix)
    cut = [_FRAME.pack(MAX_FRAME_BYTES, kind | MORE) + prefix + rest[:room]]
    rest = rest[room:]
    while len(rest) > MAX_FRAME_BYTES:
        cut.append(_FRAME.pack(MAX_FRAME_BYTES, kind | MORE) + rest[:MAX_FRAME_BYTES])
        rest = rest[MAX_FRAME_BYTES:]
    cut.append(_FRAME.pack(len(rest), kind) + rest)
    return cut


class FrameDecoder:
    """Decoder that turns bytes, received in pieces of any size, into messages.

    `max_message_bytes` may be raised after the handshake.
    """

    def __init__(self, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.max_message_bytes = max_message_bytes
        self._rest = bytearray()  # the beginning of an incomplete frame
        self._parts: dict[int, bytearray] = {}  # kind -> the payloads so far of an incomplete message

    def feed(self, data: Buffer) -> Iterator[tuple[int, Buffer]]:
        """Yield each message that `data` completes, as (kind, payload). Raises ProtocolError.

        A payload may be a view of `data`: use it before the buffer is filled again. Cost: linear in the bytes.

        >>> decoder = FrameDecoder()
        >>> [message for byte in frames(Kind.VALUE, b"abc")[0] for message in decoder.feed(bytes([byte]))]
        [(4, b'abc')]
        """
        view = memoryview(data)
        while True:
            if self._rest:
                view = self._fill(view, _FRAME.size)
            source: Buffer = self._rest or view
            if len(source) < _FRAME.size:
                break
            length, kind = _FRAME.unpack_from(source)
            if length > min(MAX_FRAME_BYTES, self.max_message_bytes):
                raise ProtocolError(f"a frame of {length} bytes is larger than the limit")
            if kind & MORE and length < MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame of {length} bytes is marked as part of a longer message but is not full")
            if self._rest:
                view = self._fill(view, _FRAME.size + length)
                source = self._rest
            if len(source) < _FRAME.size + length:
                break
            payload: Buffer
            if source is self._rest:
                payload = bytes(memoryview(source)[_FRAME.size :])
                self._rest = bytearray()
            else:
                payload = view[_FRAME.size : _FRAME.size + length]
                view = view[_FRAME.size + length :]
            message = self._assemble(kind, payload)
            if message is not None:
                yield message
        self._rest += view

    def _fill(self, view: memoryview, size: int) -> memoryview:
        """Move bytes from `view` until the incomplete frame has `size` bytes; return the rest of `view`."""
        missing = max(0, size - len(self._rest))
        self._rest += view[:missing]
        return view[missing:]

    def _assemble(self, kind: int, payload: Buffer) -> tuple[int, Buffer] | None:
        """Return the message that this frame completes, or None."""
        final = kind & ~MORE
        if kind == final and final not in self._parts:
            return kind, payload
        parts = self._parts.setdefault(final, bytearray())
        if len(parts) + len(payload) > self.max_message_bytes:
            raise ProtocolError(f"a message of more than {self.max_message_bytes} bytes is larger than the limit")
        parts += payload
        if kind != final:
            return None
        return final, self._parts.pop(final)


def pack_message(source: int, target: int, channel: Channel, body: Buffer) -> list[bytes]:
    """Return the frames of a worker message; raises CannotTravel if it is too long."""
    return frames(channel.lane, body, _ADDRESS.pack(source, target, channel.dataflow, channel.number))


def unpack_message(kind: int, payload: Buffer) -> tuple[int, int, Channel, memoryview]:
    """Return source, target, channel and body of a worker message. Its kind is a lane. Raises ProtocolError.

    >>> [(kind, payload)] = FrameDecoder().feed(pack_message(3, 4, Channel.progress(7), b"body")[0])
    >>> source, target, channel, body = unpack_message(kind, payload)
    >>> source, target, channel == Channel.progress(7), bytes(body)
    (3, 4, True, b'body')
    """
    if len(payload) < PREFIX_BYTES:
        raise ProtocolError(f"a worker message of {len(payload)} bytes is shorter than its address")
    source, target, dataflow, number = _ADDRESS.unpack_from(payload)
    return source, target, Channel(_LANES[kind], dataflow, number), memoryview(payload)[PREFIX_BYTES:]


def pack_record(record: object) -> bytes:
    """Encode a record of the transport itself: plain msgpack, no user types."""
    packed: bytes = msgpack.packb(record)
    return packed


def unpack_record(payload: Buffer) -> Any:
    """Decode a record of the transport itself. Raises ProtocolError for any bytes that are not one."""
    try:
        return msgpack.unpackb(payload)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"a record that is not msgpack: {error}") from error


def pack_failure(error: ClusterError) -> list[bytes]:
    """Return the frames that make peers stop with the same error. Only the end of a long message travels."""
    message = str(error).encode(errors="replace")[-MAX_REPORT_BYTES:].decode(errors="replace")
    return frames(Kind.FAILURE, pack_record([type(error).__name__, message]))


def unpack_failure(payload: Buffer) -> ClusterError:
    """Return the error that `pack_failure` encoded; raises ProtocolError.

    >>> [(_, payload)] = FrameDecoder().feed(pack_failure(PeerLost("process 1 is gone"))[0])
    >>> unpack_failure(payload)
    PeerLost('process 1 is gone')
    """
    match unpack_record(payload):
        case [str() as name, str() as message]:
            return _RELAYED.get(name, PeerFailed)(message)
    raise ProtocolError("a failure record of another shape")
