"""Events: what a captured stream consists of, and the format that stores it.

Each worker of a captured stream makes one sequence of events, with these rules:
 1. It begins with one capability at the least time of its scope (0; Product(0, 0) one level down), which is not
    written down.
 2. `Progress` changes counts of capabilities, all of its changes at once. Afterwards no count is negative; the least
    times with a count are the sequence's frontier, which only moves forward.
 3. `Messages` carries records at a time that the frontier has not passed.
 4. The sequence is complete when no count is left. Nothing follows.
So messages may move earlier and progress may move later, and any interleaving of sequences follows the same rules
with the sum of their capabilities: k of them can be replayed by any number of workers.

The stored format, version 2. Numbers outside of payloads are unsigned and big-endian.

    magic      16 bytes   0x89, then "megaflow events"
    version    u32        2; version 1 had fewer tags of the codec, and is read as this one is
    frames     each       u32 length of the payload
                          u32 CRC-32 of those four bytes and the payload
                          the payload: a value of the project's codec (`timely/communication/codec`)

A payload is `(0, [(time, change), ...])` for progress or `(1, time, [record, ...])` for messages. A time is the tuple
of its coordinates, outermost first: ints of at least 0, tuples, or values of a class of times. The tags of the codec
(`codec/tags.py`) are part of the format: a new tag, or another meaning of one, needs a new version. Classes of the
user's are stored by name; a program that reads them must have imported them.
"""

import struct
from typing import Any, Final, TypeAlias
from zlib import crc32

from megaflow.errors import CannotTravel, ProtocolError, SourceError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.order import Time, coordinates, from_coordinates

MAGIC: Final = b"\x89megaflow events"
VERSION: Final = 2
VERSIONS_READ: Final = (1, VERSION)
MAX_EVENT_BYTES: Final = 1 << 30  # as large as a message between workers may be
_PREFIX = struct.Struct("!II")  # length, checksum
_NUMBER = struct.Struct("!I")
HEADER: Final = MAGIC + _NUMBER.pack(VERSION)


@dataclass(frozen=True, slots=True)
class Progress:
    """Changes to the counts of a stream's capabilities."""

    changes: list[tuple[Time, int]]


@dataclass(frozen=True, slots=True)
class Messages:
    """A batch of records. It may be shared and must not be changed."""

    time: Time
    data: list[Any]


Event: TypeAlias = Progress | Messages


def encode_event(event: Event) -> bytes:
    """Return the frame of an event; raises CannotTravel naming a type that cannot be stored.

    >>> decoder = EventDecoder("an example")
    >>> decoder.feed(HEADER + encode_event(Messages(3, ["a", "b"])))
    >>> decoder.next()
    Messages(time=3, data=['a', 'b'])
    """
    if isinstance(event, Progress):
        payload = encode((0, [(coordinates(time), change) for time, change in event.changes]))
    else:
        payload = encode((1, coordinates(event.time), event.data))
    if len(payload) > MAX_EVENT_BYTES:
        raise CannotTravel(
            f"a batch of {len(payload)} bytes is larger than the limit of {MAX_EVENT_BYTES}: send smaller records"
        )
    return _PREFIX.pack(len(payload), _checksum(payload)) + payload


class EventDecoder:
    """Turns the bytes of the stored format, in whatever pieces they come, into events. `name` is for messages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.offset = 0  # where in the file the buffer begins, always between two frames
        self._buffer = bytearray()
        self._started = False  # the header has been read

    def feed(self, data: bytes) -> None:
        """Take some more bytes."""
        self._buffer += data

    def next(self) -> Event | None:
        """Return the next event, None until all its bytes are there. Raises SourceError naming the damaged place."""
        if not self._started and not self._read_header():
            return None
        if len(self._buffer) < _PREFIX.size:
            return None
        length, checksum = _PREFIX.unpack_from(self._buffer)
        if length > MAX_EVENT_BYTES:
            raise self._damage(f"an event of {length} bytes is larger than the limit of {MAX_EVENT_BYTES}")
        end = _PREFIX.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[_PREFIX.size : end])
        if _checksum(payload) != checksum:
            raise self._damage("the checksum of the event is wrong")
        try:
            event = _restore(decode(payload))
        except (ProtocolError, TypeError, ValueError) as error:
            raise self._damage(f"this is not an event: {error}") from error
        self._drop(end)
        return event

    def end(self) -> SourceError:
        """Return what to raise if no byte can follow any more."""
        what = "event" if self._started else "header"
        rest = len(self._buffer)
        place = f"{rest} bytes into the {what} that begins at byte {self.offset}" if rest else f"before the next {what}"
        return SourceError(f"{self.name}: ended at byte {self.offset + rest}, {place}; its stream is not complete")

    def _read_header(self) -> bool:
        if not MAGIC.startswith(self._buffer[: len(MAGIC)]):
            found = bytes(self._buffer[: len(MAGIC)])
            raise SourceError(f"{self.name}: begins with {found!r}; a captured stream begins with {MAGIC!r}")
        if len(self._buffer) < len(HEADER):
            return False
        (version,) = _NUMBER.unpack_from(self._buffer, len(MAGIC))
        if version not in VERSIONS_READ:
            raise SourceError(
                f"{self.name}: is in version {version} of the format of captured streams; "
                f"this megaflow reads versions {' and '.join(map(str, VERSIONS_READ))}: capture it anew"
            )
        self._drop(len(HEADER))
        self._started = True
        return True

    def _drop(self, length: int) -> None:
        del self._buffer[:length]  # cheap: a bytearray only moves its start
        self.offset += length

    def _damage(self, what: str) -> SourceError:
        return SourceError(f"{self.name}: damaged at byte {self.offset}: {what}")


def _checksum(payload: bytes) -> int:
    return crc32(payload, crc32(_NUMBER.pack(len(payload))))


def _restore(value: Any) -> Event:
    match value:
        case (0, list() as changes):
            return Progress([(_restore_time(time), _restore_change(change)) for time, change in changes])
        case (1, time, list() as data):
            return Messages(_restore_time(time), data)
    raise ValueError("a value of another shape")


def _restore_time(value: Any) -> Time:
    if not isinstance(value, tuple) or not value or not all(map(_is_coordinate, value)):
        raise ValueError(f"{value!r} is not a time")
    return from_coordinates(value)


def _is_coordinate(value: Any) -> bool:
    return value >= 0 if type(value) is int else type(value) is tuple or hasattr(value, "less_equal")


def _restore_change(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a number of capabilities")
    return value
