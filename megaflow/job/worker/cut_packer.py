"""The blocks of one worker's cuts, packed into segments: `CutPacker` puts them into the store, one after the other.

1. A worker's part of a checkpoint is complete when each of its durable operators has written its piece. Operators write
   at their own pace, so pieces of one checkpoint come in any mixture.
2. A piece of a later checkpoint says that the ones before were abandoned: what has come of them is dropped.
   Spark's lines that a source has not taken in are no part of it: they are reported for themselves.
3. A segment is durable when the store has it. One that it does not take is not tried again: the disk may have forgotten
   what it was to write. The next checkpoint's deltas have it all.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Final

from megaflow.control.checkpoint_messages import CutFailed, CutWritten, PositionsAt
from megaflow.durable.blocks import Block, BlockKind, CutHeader
from megaflow.durable.segments import SEGMENT_BYTES, SegmentRef, SegmentWriter, segment_name
from megaflow.durable.store import Store
from megaflow.job.worker.untaken_lines import LinesCut, write_lines
from megaflow.megaphone.unwritten import Piece
from megaflow.quick_dataclass import dataclass

_NOTHING: Final = 0  # the number of no checkpoint


@dataclass(frozen=True, slots=True)
class OutboxCut:
    """What a sink's outbox has for a checkpoint, to be written."""

    sink: str
    number: int
    time: int  # the checkpoint's epoch
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class OutboxWritten:
    """What has become of that."""

    cut: OutboxCut
    segments: tuple[SegmentRef, ...]
    failure: str | None = None


class CutPacker:
    """Packs what one worker keeps. One writer: whoever takes the blocks, in order."""

    def __init__(
        self,
        store: Store,
        incarnation: int,
        worker: int,
        operators: Callable[[], Collection[str]],
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """`operators` gives the names of those that are durable, when the first block has come."""
        self._store = store
        self._names = (segment_name(incarnation, worker, number) for number in count(1))
        self._worker = worker
        self._operators = operators
        self._segment_bytes = segment_bytes
        self._begin(_NOTHING)

    def _begin(self, number: int) -> None:
        self._number = number
        self._missing = set(self._operators()) if number else set[str]()  # that have not written their pieces
        self._segment: SegmentWriter | None = None  # the one being filled
        self._segments: list[SegmentRef] = []
        self._whole: dict[str, dict[int, None]] = {}  # operator -> bins that were written whole
        self._failure: str | None = None

    def take(self, cut: Piece, block: Block | None) -> CutWritten | CutFailed | None:
        """Take in a block, or with None the end of a piece; return what came of the checkpoint with its last piece."""
        if cut.number < self._number:
            return None
        if cut.number > self._number:
            self._begin(cut.number)
        if block is None:
            self._missing.discard(cut.operator)
            return None if self._missing else self._finish()
        if self._failure is None:
            if self._segment is None:
                self._segment = SegmentWriter(CutHeader(cut.number, cut.time, cut.since, self._worker))
            self._segment.add(block)
            if block.kind is BlockKind.BIN and block.bin is not None:
                self._whole.setdefault(block.operator, {})[block.bin] = None
            if self._segment.length >= self._segment_bytes:
                self._put()
        return None

    def write(self, cut: LinesCut) -> PositionsAt | CutFailed:
        """Write what a source has not taken in; return where it is."""
        try:
            untaken = write_lines(cut, self._worker, self._store, lambda: next(self._names), self._segment_bytes)
        except OSError as error:
            return CutFailed(cut.number, f"cannot write Spark's lines: {error.strerror or error}")
        finally:
            cut.copy.close()
        return PositionsAt(cut.number, cut.splits, untaken, cut.portions)

    def write_outbox(self, cut: OutboxCut) -> OutboxWritten:
        """Write the records of an outbox."""
        refs: list[SegmentRef] = []
        try:
            for blocks in _parted(cut.blocks, self._segment_bytes):
                segment = SegmentWriter(CutHeader(cut.number, cut.time, None, self._worker))
                for block in blocks:
                    segment.add(block)
                ref, parts = segment.finish(next(self._names))
                self._store.put(ref.name, parts)
                refs.append(ref)
        except OSError as error:
            return OutboxWritten(cut, (), error.strerror or str(error))
        return OutboxWritten(cut, tuple(refs))

    def _finish(self) -> CutWritten | CutFailed:
        self._put()
        if self._failure is not None:
            return CutFailed(self._number, self._failure)
        whole = tuple((name, tuple(sorted(self._whole[name]))) for name in sorted(self._whole))
        return CutWritten(self._number, tuple(self._segments), whole, 0.0)

    def _put(self) -> None:
        """Have the store take the segment that is being filled, if there is one."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        ref, parts = segment.finish(next(self._names))
        try:
            self._store.put(ref.name, parts)
            self._segments.append(ref)
        except OSError as error:
            self._failure = f"cannot write {ref.name}: {error.strerror or error}"


def _parted(blocks: Sequence[Block], size: int) -> list[list[Block]]:
    """Return the blocks in order, as lists of some bytes more than `size` at most."""
    parts: list[list[Block]] = [[]]
    length = 0
    for block in blocks:
        if length >= size:
            parts.append([])
            length = 0
        parts[-1].append(block)
        length += len(block.keys) + len(block.states)
    return parts
