"""Segments: the immutable files that hold the blocks of a cut, `i3-w1-000017.seg` by incarnation, worker and sequence.

The launcher's, `i3-launcher-000012.seg`, have the number of the checkpoint.

    start   magic, format version
    blocks  the keys and the states of each, one behind the other
    index   the cut's header; of each block what it is, its lengths and its crc32
    end     where the index begins, its crc32, magic

1. A segment is made in memory, of SEGMENT_BYTES at most and a block, and written at once: a disk that fails is given a
   new file from memory. So a large cut is several segments, each with the cut's header.
2. The index says where each block is, so a reader takes those that it needs, one at a time; the lengths in it add up to
   the whole file, so no byte is outside of a checksum or a constant: no flipped bit goes unnoticed.
3. The crc32 of a block begins with its place, so that a block which a disk has put elsewhere is noticed, too.
4. The version comes first and is outside of what the codec reads. A change of the bytes of a segment, or of a value
   in it, takes a new version; tests read a store of each one. Format 2 has the names of NamedTuples' fields and of
   flags: `old_classes` says how values of format 1 are read.
"""

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from megaflow.durable.blocks import Block, BlockKind, CutHeader
from megaflow.errors import MegaflowError, StoreDamaged, StoreError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

Read: TypeAlias = Callable[[int, int], bytes]  # (start, length) -> bytes of a file, fewer at its end

SEGMENT_BYTES: Final = 64 << 20
"""A segment that has reached this size is closed: what a worker holds in memory until it is synced."""
SEGMENT_FORMAT: Final = 2
SEGMENT_NAME: Final = re.compile(r"i(\d+)-(?:w(\d+)|launcher)-(\d{6,})\.seg")
LAUNCHER: Final = -1
"""In the place of a worker."""

_MAGIC: Final = b"mf-segm\n"
_START: Final = struct.Struct("<8sI")  # magic, format
_END: Final = struct.Struct("<QI8s")  # offset of the index, crc32 of it and of its place, magic
_PLACE: Final = struct.Struct("<Q")
_NO_BIN: Final = -1


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """What a commit says of a segment."""

    name: str
    checkpoint: int
    worker: int
    length: int  # bytes
    crc: int  # of all of it
    keys: int  # in its blocks, forgotten ones and timers included


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What a segment's index says of a block."""

    kind: BlockKind
    operator: str
    bin: int | None
    count: int
    offset: int
    keys_length: int  # bytes
    states_length: int  # bytes, after the keys
    crc: int


def segment_name(incarnation: int, worker: int, sequence: int) -> str:
    """Return a segment's name.

    >>> segment_name(3, 1, 17)
    'i3-w1-000017.seg'
    """
    writer = "launcher" if worker == LAUNCHER else f"w{worker}"
    return f"i{incarnation}-{writer}-{sequence:06}.seg"


def checksum(data: bytes, offset: int) -> int:
    """Return the crc32 of bytes and of the place where they stand."""
    return zlib.crc32(data, zlib.crc32(_PLACE.pack(offset)))


class SegmentWriter:
    """Makes one segment in memory."""

    def __init__(self, header: CutHeader) -> None:
        self._header = header
        self._parts = [_START.pack(_MAGIC, SEGMENT_FORMAT)]
        self._entries: list[IndexEntry] = []
        self.length = _START.size  # bytes so far, without the index

    def add(self, block: Block) -> None:
        """Add a block."""
        data = block.keys + block.states
        self._entries.append(
            IndexEntry(
                block.kind, block.operator, block.bin, block.count, self.length, len(block.keys), len(block.states),
                checksum(data, self.length),
            )
        )  # fmt: skip
        self._parts.append(data)
        self.length += len(data)

    def finish(self, name: str) -> tuple[SegmentRef, list[bytes]]:
        """Return what a commit is to say of it, and its content in parts."""
        header, entries = self._header, self._entries
        index = encode(
            (
                (header.number, header.time, header.since, header.worker),
                [int(each.kind) for each in entries],
                [each.operator for each in entries],
                [_NO_BIN if each.bin is None else each.bin for each in entries],
                [each.count for each in entries],
                [each.keys_length for each in entries],
                [each.states_length for each in entries],
                [each.crc for each in entries],
            )
        )
        parts = [*self._parts, index, _END.pack(self.length, checksum(index, self.length), _MAGIC)]
        crc = 0
        for part in parts:
            crc = zlib.crc32(part, crc)
        keys = sum(each.count for each in entries)
        return SegmentRef(name, header.number, header.worker, sum(map(len, parts)), crc, keys), parts


class SegmentReader:
    """Reads one segment, with `partial(store.read, name)`: its header and index at first, a block when it is asked for.

    Raises StoreDamaged with the file and the place for what is not as it was written, here and in each method.
    """

    def __init__(self, name: str, read: Read, length: int) -> None:
        self.name = name
        self._read = read
        start = self._exactly(0, _START.size)
        magic, version = _START.unpack(start)
        if magic != _MAGIC:
            raise self._damaged(0, "it does not begin as a segment does")
        check_format(name, version, SEGMENT_FORMAT)
        end_at = length - _END.size
        if end_at < _START.size:
            raise self._damaged(length, "it ends too early")
        index_at, crc, magic = _END.unpack(self._exactly(end_at, _END.size))
        if magic != _MAGIC or not _START.size <= index_at < end_at:
            raise self._damaged(end_at, "it does not end as a segment does")
        index = self._exactly(index_at, end_at - index_at)
        if checksum(index, index_at) != crc:
            raise self._damaged(index_at, "the index does not match its checksum")
        try:
            self.header, self.entries = _index(index, index_at)
        except (MegaflowError, TypeError, ValueError) as error:
            raise self._damaged(index_at, f"it has no valid index: {error}") from error

    def block(self, entry: IndexEntry) -> Block:
        """Read one block."""
        data = self._exactly(entry.offset, entry.keys_length + entry.states_length)
        if checksum(data, entry.offset) != entry.crc:
            what = f"{entry.kind.name} block of operator {entry.operator!r}"
            raise self._damaged(entry.offset, f"a {what} of {len(data)} bytes does not match its checksum")
        keys, states = data[: entry.keys_length], data[entry.keys_length :]
        return Block(entry.kind, entry.operator, entry.bin, entry.count, keys, states)

    def blocks(self) -> Iterator[Block]:
        """Read all blocks, one at a time, in order."""
        return map(self.block, self.entries)

    def _exactly(self, start: int, length: int) -> bytes:
        data = self._read(start, length)
        if len(data) != length:
            raise self._damaged(start + len(data), "it ends too early")
        return data

    def _damaged(self, offset: int, what: str) -> StoreDamaged:
        return damaged(self.name, offset, what)


def _index(encoded: bytes, index_at: int) -> tuple[CutHeader, list[IndexEntry]]:
    """Decode an index; raises ProtocolError, TypeError or ValueError."""
    header, *columns = decode(encoded)
    entries, offset = [], _START.size
    for kind, operator, bin, count, keys_length, states_length, crc in zip(*columns, strict=True):
        where = None if bin == _NO_BIN else bin
        entries.append(IndexEntry(BlockKind(kind), operator, where, count, offset, keys_length, states_length, crc))
        offset += keys_length + states_length
    if offset != index_at:
        raise ValueError(f"its blocks end at byte {offset}, but it begins at {index_at}")
    return CutHeader(*header), entries


def damaged(name: str, offset: int, what: str) -> StoreDamaged:
    """Return the error for a file that is not as it was written."""
    return StoreDamaged(f"{name} is damaged at byte {offset}: {what}; restore the store from a backup")


def check_format(name: str, version: Any, known: int) -> None:
    """Raise StoreError unless this megaflow reads files of that format version."""
    if not 1 <= version <= known:
        raise StoreError(
            f"{name} has format {version}, but this megaflow reads formats up to {known}: use the megaflow that "
            "wrote it (if none did, the file is damaged: restore the store from a backup)"
        )
