"""An outbox sink on one worker: its records wait in the store, or in memory if there is none, until delivery.

1. The worker encodes records in blocks as they are written. At a cut, the blocks go to the thread that writes cuts,
   which puts them into segments of their own. Records that come meanwhile belong to the next cut.
2. The thread writes one cut at a time, so tokens are in the order of their records. A cut that comes meanwhile waits,
   with the records that were written until then and no later ones. Records that could not be written come first in the
   next cut.
3. A token is made after its segments are in the store as a whole. No two tokens are equal, even of different runs or
   jobs. So a mark of a token in a database shows that exactly these records were delivered.
4. Like all files of commits, segments are removed once no kept commit names them. A checkpoint that is abandoned gives
   up its own segments but not these, since the next checkpoint names them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final
from uuid import uuid4

from megaflow.connect.sink import OutboxSink
from megaflow.durable.blocks import KEYS_PER_BLOCK, Block, BlockKind, keys_of, pack
from megaflow.durable.commits import SinkToken
from megaflow.durable.outbox import name_at
from megaflow.durable.segments import SegmentReader
from megaflow.errors import CannotTravel, Outage, OutputError, RecordRefused, StoreError
from megaflow.job.worker import snapshots
from megaflow.job.worker.writing.open_sink import OpenSink
from megaflow.timely.communication.codec.decode import decode

FLUSH_RECORDS: Final = 1 << 16  # without a store, this many records may wait in memory


class Records(Iterable[Any]):
    """Records to deliver; each iteration reads them again."""

    def __init__(self, batches: Callable[[], Iterable[list[Any]]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._batches())


class OpenOutbox(OpenSink):
    """An open sink whose sink is an `OutboxSink`."""

    _rows_max = FLUSH_RECORDS
    _sink: OutboxSink[Any]
    _blocks: list[Block]  # of records that are in no cut
    _batches: list[list[Any]]  # the same records, without a store
    _writing: snapshots.OutboxCut | None = None
    _after: snapshots.OutboxCut | None = None  # all cuts since then as one, which waits for `_writing`

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._blocks, self._batches = [], []

    @property
    def is_settled(self) -> bool:
        """Whether all records of cuts are in the store."""
        return self._writing is None

    def written(self, outcome: snapshots.OutboxWritten) -> None:
        """Handle the outcome of writing a cut."""
        cut, failure = outcome.cut, outcome.failure
        assert cut is self._writing, "one is written at a time"
        self._writing, after, self._after = None, self._after, None
        if failure is None:
            self._add(cut.number, uuid4().hex, outcome.segments)
        elif after is not None:
            after = replace(after, blocks=cut.blocks + after.blocks)
        else:
            count = sum(block.count for block in cut.blocks)
            self.held, self.rows, self._blocks[:0] = self.held - count, self.rows + count, cut.blocks
        if after is not None and after.blocks:
            self._writing = after
            self._keeper.keep(after)
        elif failure is not None:
            self._keeper.failed(cut.number, f"cannot write the records of sink {self.name!r}: {failure}")
        else:
            self._settle()
        self._activate()

    def check(self, records: list[Any]) -> None:
        """Raise ProgramError for a record that the sink could not deliver."""
        self._sink.check(records)

    def _write(self, epoch: int, batch: list[Any]) -> None:
        self.check(batch)
        if self._keeper.store is None:
            self._batches.append(batch)
            return
        for start in range(0, len(batch), KEYS_PER_BLOCK):
            part = batch[start : start + KEYS_PER_BLOCK]
            try:
                self._blocks.append(pack(BlockKind.OUTBOX, self.name, None, part, [None] * len(part)))
            except CannotTravel as error:
                raise CannotTravel(
                    f"sink {self.name!r} keeps its records in the store until they are delivered, but one of "
                    f"them cannot be stored: {error}"
                ) from None

    def _prepare(self, epoch: int, number: int) -> None:
        before = () if self._after is None else self._after.blocks
        cut = snapshots.OutboxCut(self.name, number, epoch, (*before, *self._blocks))
        self.held, self.rows, self._blocks = self.held + self.rows, 0, []
        if self._writing is not None:
            self._after = cut
        elif cut.blocks:
            self._writing = cut
            self._keeper.keep(cut)

    def _settle(self) -> None:
        if self._writing is None and self.done != self._number:
            super()._settle()

    def _commit(self, number: int, token: SinkToken) -> None:
        try:
            self._sink.deliver(number, decode(token.token), Records(partial(self._read, token)))
        except Outage:
            raise  # no record is at fault
        except OutputError as error:
            folder = self._keeper.folder or "DIR"
            if not isinstance(error, RecordRefused):
                error.add_note(
                    f"If one of the records is refused, megaflow state outbox {shlex.quote(folder)} shows the "
                    "waiting records, and can drop or rewrite one."
                )
                raise
            store = self._keeper.store
            assert store is not None, "it has the records"
            record = name_at(store, token, error.position)
            raise RecordRefused(
                f"{str(error).rstrip('.')}. It is record {record} of sink {self.name!r} in the store {folder}, "
                "and every run from there fails on it. Change the system so that it accepts the record, or drop "
                f"the record: megaflow state outbox {shlex.quote(folder)} --drop {record} (or --rewrite {record} "
                "JSON)",
                error.position,
            ) from error.__cause__

    def _read(self, token: SinkToken) -> Iterator[list[Any]]:
        store = self._keeper.store
        assert store is not None, "it has the records"
        for each in token.segments:
            try:
                segment = SegmentReader(each.name, partial(store.read, each.name), each.length)
                for block in segment.blocks():
                    yield keys_of(block)
            except OSError as error:
                raise StoreError(
                    f"Cannot read {each.name}, which has records for sink {self.name!r}: {error.strerror or error}."
                ) from error

    def _flush(self) -> None:
        if not self.rows:
            return
        self._number, self._flushed_at = self._number + 1, self._keeper.now()
        batches, self._batches = self._batches, []
        with self._calling(f"deliver({self._number}, …)"):
            self._sink.deliver(self._number, uuid4().hex, Records(lambda: batches))
        self.rows, self.committed = 0, self._number
