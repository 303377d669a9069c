"""Segments: immutable files with the blocks of a cut, such as `i3-w1-000017.seg` (incarnation, worker, sequence).

The launcher's segments, such as `i3-launcher-000012.seg`, have the number of the checkpoint.

    start   magic, format version
    blocks  the keys and the states of each, one after another
    index   the cut's header; for each block its kind, operator, bin, count, lengths and crc32
    end     the place of the index, its crc32, magic

1. A writer builds a segment in memory, of at most SEGMENT_BYTES plus one block, and writes it at once. If the disk
   fails, the writer can write a new file from memory. So a large cut takes several segments, each with the cut's
   header.
2. The index has the place of each block, so a reader can take single blocks. The lengths in it add up to the whole
   file, so each byte belongs to a checksum or a constant, and no flipped bit goes unnoticed.
3. The crc32 of a block also covers its place, so a block that a disk has put elsewhere is noticed.
4. The version comes first, outside of the codec's data. Any change of a segment's bytes, or of a value in it, takes a
   new version; tests read a store of each version. Format 2 has the names of the fields of NamedTuples and of flags:
   `old_classes` states how values of format 1 are read.
"""

import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias

from megaflow.durable.blocks import Block, BlockKind, CutHeader
from megaflow.errors import MegaflowError, StoreDamaged, StoreError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

Read: TypeAlias = Callable[[int, int], bytes]  # (start, length) -> bytes of a file, fewer at its end

SEGMENT_BYTES: Final = 64 << 20
"""Size at which a segment is closed. A worker holds that much in memory until it is synced."""
SEGMENT_FORMAT: Final = 2
SEGMENT_NAME: Final = re.compile(r"i(\d+)-(?:w(\d+)|launcher)-(\d{6,})\.seg")
LAUNCHER: Final = -1
"""The launcher, in place of a worker's id."""

_MAGIC: Final = b"mf-segm\n"
_START: Final = struct.Struct("<8sI")  # magic, format
_END: Final = struct.Struct("<QI8s")  # offset of the index, crc32 of it and of its place, magic
_PLACE: Final = struct.Struct("<Q")
_NO_BIN: Final = -1


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """Reference to a segment in a commit."""

    name: str
    checkpoint: int
    worker: int
    length: int  # bytes
    crc: int  # of the whole file
    keys: int  # in its blocks, including forgotten ones and those of timers

    def open(self, read: Callable[[str, int, int], bytes]) -> "SegmentReader":
        """Return a reader of the segment; `read` is the method of a store. Raises StoreDamaged or OSError."""
        return SegmentReader(self.name, partial(read, self.name), self.length)


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """Entry of a block in a segment's index."""

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
    """Return the crc32 of bytes and of their place in the file."""
    return zlib.crc32(data, zlib.crc32(_PLACE.pack(offset)))


def crc_of(parts: Iterable[bytes]) -> int:
    """Return the crc32 of bytes that come in parts."""
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


class SegmentWriter:
    """Writer of one segment, in memory."""

    def __init__(self, header: CutHeader) -> None:
        self._header = header
        self._parts = [_START.pack(_MAGIC, SEGMENT_FORMAT)]
        self._entries: list[IndexEntry] = []
        self.length = _START.size  # bytes so far, without the index

    def add(self, block: Block) -> None:
        """Append a block."""
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
        """Return the segment's reference for a commit, and its content in parts."""
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
        keys = sum(each.count for each in entries)
        return SegmentRef(name, header.number, header.worker, sum(map(len, parts)), crc_of(parts), keys), parts


class SegmentReader:
    """Reader of one segment, through `partial(store.read, name)`: first its header and index, then blocks on request.

    The constructor and each method raise StoreDamaged, with the file and the place, for content that has changed.
    """

    def __init__(self, name: str, read: Read, length: int) -> None:
        self.name = name
        self._read = read
        start = self._exactly(0, _START.size)
        magic, version = _START.unpack(start)
        if magic != _MAGIC:
            raise damaged(self.name, 0, "it does not begin as a segment does")
        check_format(name, version, SEGMENT_FORMAT)
        end_at = length - _END.size
        if end_at < _START.size:
            raise damaged(self.name, length, "it ends too early")
        index_at, crc, magic = _END.unpack(self._exactly(end_at, _END.size))
        if magic != _MAGIC or not _START.size <= index_at < end_at:
            raise damaged(self.name, end_at, "it does not end as a segment does")
        index = self._exactly(index_at, end_at - index_at)
        if checksum(index, index_at) != crc:
            raise damaged(self.name, index_at, "the index does not match its checksum")
        try:
            self.header, self.entries = _index(index, index_at)
        except (MegaflowError, TypeError, ValueError) as error:
            raise damaged(self.name, index_at, f"it has no valid index: {error}") from error

    def block(self, entry: IndexEntry) -> Block:
        """Read one block."""
        data = self._exactly(entry.offset, entry.keys_length + entry.states_length)
        if checksum(data, entry.offset) != entry.crc:
            what = f"{entry.kind.name} block of operator {entry.operator!r}"
            raise damaged(self.name, entry.offset, f"a {what} of {len(data)} bytes does not match its checksum")
        keys, states = data[: entry.keys_length], data[entry.keys_length :]
        return Block(entry.kind, entry.operator, entry.bin, entry.count, keys, states)

    def blocks(self) -> Iterator[Block]:
        """Read all blocks, one at a time, in order."""
        return map(self.block, self.entries)

    def _exactly(self, start: int, length: int) -> bytes:
        data = self._read(start, length)
        if len(data) != length:
            raise damaged(self.name, start + len(data), "it ends too early")
        return data


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
    """Return the error for a file that has changed since it was written."""
    return StoreDamaged(f"{name} is damaged at byte {offset}: {what}; restore the store from a backup")


def check_format(name: str, version: Any, known: int) -> None:
    """Raise StoreError unless this megaflow reads files of that format version."""
    if not 1 <= version <= known:
        raise StoreError(
            f"{name} has format {version}, but this megaflow reads formats up to {known}: use the megaflow that "
            "wrote it (if none did, the file is damaged: restore the store from a backup)"
        )
