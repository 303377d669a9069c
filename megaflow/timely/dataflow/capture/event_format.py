"""Events of captured streams, and the format that stores them.

Each worker of a captured stream makes one sequence of events, with these rules:
 1. A sequence begins with one capability at the least time of its scope (0; Product(0, 0) one level down). This
    capability is not stored.
 2. `Progress` changes the counts of capabilities, all at once. Afterwards no count is negative. The least times with a
    count are the sequence's frontier, which only moves forward.
 3. `Messages` carries records at a time that the frontier has not passed.
 4. The sequence is complete when no count is left. No event follows.
So messages may move earlier and progress may move later. Any interleaving of sequences follows the same rules with the
sum of their capabilities, so any number of workers can replay k sequences.

The stored format, version 2. Numbers outside of payloads are unsigned and big-endian.

    magic      16 bytes   0x89, then "megaflow events"
    version    u32        2; version 1 had fewer tags of the codec, and is read in the same way
    frames     each       u32 length of the payload
                          u32 CRC-32 of those four bytes and the payload
                          the payload: a value of the project's codec (`timely/communication/codec`)

A payload is `(0, [(time, change), ...])` for progress or `(1, time, [record, ...])` for messages. A time is the tuple
of its coordinates, outermost first: ints of at least 0, tuples, or values of a class of times. The tags of the codec
(`codec/tags.py`) are part of the format: a new tag, or a new meaning of a tag, needs a new version. Users' classes are
stored by name. A program that reads them must have imported them.
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
MAX_EVENT_BYTES: Final = 1 << 30  # the limit of a message between workers
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
    """Return the frame of an event. Raises CannotTravel, naming a type that cannot be stored.

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
    """Decoder of the stored format, which may arrive in any pieces. Errors call the stream `name`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.offset = 0  # position in the file at which the buffer begins, always between two frames
        self._buffer = bytearray()
        self._started = False  # the header has been read

    def feed(self, data: bytes) -> None:
        """Add bytes to the buffer."""
        self._buffer += data

    def next(self) -> Event | None:
        """Return the next event, or None until all its bytes are there. Raises SourceError, naming the damaged place.
        """
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
        """Return the error to raise if no more bytes can follow."""
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
