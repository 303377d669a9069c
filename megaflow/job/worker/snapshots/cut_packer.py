"""Blocks of one worker's cuts as segments: `CutPacker` fills one segment after the other and puts it into the store.

1. A worker's part of a checkpoint is complete when each of its durable operators has written its piece. Operators write
   at their own pace, so the blocks of their pieces arrive interleaved.
2. A piece of a later checkpoint shows that the earlier ones were abandoned, so the packer drops their outcome. Spark's
   lines that a source has not taken in are not part of this: they have a report of their own.
3. A segment is durable when the store has it. If the store fails to take a segment, the packer does not try again: the
   disk may have forgotten data that it was to write. The deltas of the next checkpoint contain it all.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from errno import EFBIG
from itertools import count
from typing import Final

from megaflow.control.checkpoint_messages import CutFailed, CutWritten, LeftOut, PositionsAt
from megaflow.durable.blocks import Block, BlockKind, CutHeader
from megaflow.durable.commits import UntakenLines
from megaflow.durable.segments import SEGMENT_BYTES, SegmentRef, SegmentWriter, segment_name
from megaflow.durable.store import Store
from megaflow.job.worker.reading.untaken_lines import LinesCut
from megaflow.megaphone.base.durability import Piece
from megaflow.quick_dataclass import dataclass

_NOTHING: Final = 0  # a number that no checkpoint has


@dataclass(frozen=True, slots=True)
class OutboxCut:
    """Records of a sink's outbox to be written for a checkpoint."""

    sink: str
    number: int
    time: int  # the checkpoint's epoch
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class OutboxWritten:
    """The outcome of an `OutboxCut`."""

    cut: OutboxCut
    segments: tuple[SegmentRef, ...]
    failure: str | None = None


@dataclass(eq=False, repr=False)
class CutPacker:
    """Packer of one worker's blocks. Only one thread calls it, in the order of the blocks."""

    _store: Store
    _incarnation: int
    _worker: int
    _operators: Callable[[], Collection[str]]  # names of the durable operators; called once the first block has come
    _segment_bytes: int = SEGMENT_BYTES

    def __post_init__(self) -> None:
        self._names = (segment_name(self._incarnation, self._worker, number) for number in count(1))
        self._begin(_NOTHING)

    def _begin(self, number: int) -> None:
        self._number = number
        self._missing = set(self._operators()) if number else set[str]()  # operators whose pieces are not complete
        self._segment: SegmentWriter | None = None  # the one being filled
        self._segments: list[SegmentRef] = []
        self._whole: dict[str, dict[int, None]] = {}  # operator -> bins that were written whole
        self._windowed: dict[str, int] = {}  # operator with windows -> records that it received
        self._late: dict[str, int] = {}  # operator with windows -> records that it left out
        self._failure: CutFailed | None = None

    def take(self, cut: Piece, block: Block | None) -> CutWritten | CutFailed | None:
        """Take in a block, or with None the end of a piece; return the checkpoint's outcome with its last piece."""
        if cut.number < self._number:
            return None
        if cut.number > self._number:
            self._begin(cut.number)
        if block is None:
            self._missing.discard(cut.operator)
            for counts, count in zip((self._windowed, self._late), cut.windowed):
                counts |= {cut.operator: count} if count else {}
            return None if self._missing else self._finish()
        if self._failure is None:
            if self._segment is None:
                self._segment = SegmentWriter(CutHeader(cut.number, cut.time, cut.since, self._worker))
            self._segment.add(block)
            if block.kind is BlockKind.BIN and block.bin is not None:
                self._whole.setdefault(block.operator, {})[block.bin] = None
            if self._segment.length >= self._segment_bytes:
                self._put_segment()
        return None

    def write(self, cut: LinesCut) -> PositionsAt | CutFailed:
        """Write the lines that a source has not taken in; return its positions."""
        header = CutHeader(cut.report.checkpoint, cut.time, None, self._worker)
        try:
            untaken = tuple(
                UntakenLines(*each, query)
                for query in cut.copy.chunks
                for each in self._written(header, cut.copy.blocks(query))
            )
        except OSError as error:
            return _failed(cut.report.checkpoint, "Spark's lines", error)
        finally:
            cut.copy.close()
        return replace(cut.report, untaken=untaken)

    def write_outbox(self, cut: OutboxCut) -> OutboxWritten:
        """Write the records of an outbox."""
        header = CutHeader(cut.number, cut.time, None, self._worker)
        try:
            refs = tuple(ref for ref, _ in self._written(header, ((block, block.count) for block in cut.blocks)))
        except OSError as error:
            return OutboxWritten(cut, (), error.strerror or str(error))
        return OutboxWritten(cut, refs)

    def _written(self, header: CutHeader, blocks: Iterable[tuple[Block, int]]) -> Iterator[tuple[SegmentRef, int]]:
        """Put these blocks into the store; yield each segment, and the number of its records. Raises OSError."""
        segment, records = SegmentWriter(header), 0
        for block, held in blocks:
            segment.add(block)
            records += held
            if segment.length >= self._segment_bytes:
                yield self._put(segment), records
                segment, records = SegmentWriter(header), 0
        if records:
            yield self._put(segment), records

    def _put(self, segment: SegmentWriter) -> SegmentRef:
        ref, parts = segment.finish(next(self._names))
        self._store.put(ref.name, parts)
        return ref

    def _finish(self) -> CutWritten | CutFailed:
        self._put_segment()
        if self._failure is not None:
            return self._failure
        whole = tuple((name, tuple(sorted(self._whole[name]))) for name in sorted(self._whole))
        left_out = LeftOut(windowed=self._windowed, late=self._late)
        return CutWritten(self._number, tuple(self._segments), whole, 0.0, left_out)

    def _put_segment(self) -> None:
        """Put the segment that is being filled into the store, if there is one."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        ref, parts = segment.finish(next(self._names))
        try:
            self._store.put(ref.name, parts)
            self._segments.append(ref)
        except OSError as error:
            self._failure = _failed(self._number, ref.name, error)


def _failed(number: int, what: str, error: OSError) -> CutFailed:
    limit = "; raise the limit on the size of files: ulimit -f" if error.errno == EFBIG else ""
    return CutFailed(number, f"cannot write {what}: {error.strerror or error}{limit}", error.errno or 0)
