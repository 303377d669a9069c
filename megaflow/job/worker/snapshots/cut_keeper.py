"""Writer of one worker's state: a thread packs, writes and syncs the blocks of its cuts, and reports the outcome.

The worker's thread encodes, slice by slice (`snapshot_writer`). The other thread does all work that may wait for a
disk.
1. The queue of blocks is bounded: a worker that encodes faster than the disk writes waits for the disk. The blocks left
   over from a failed checkpoint cost no time, since they are dropped.
2. An error of the disk becomes a report, `CutFailed`. Any other error is a fault of megaflow and ends the thread. The
   worker raises it when it next asks for reports, or waits.
3. The outcome of the checkpoint at the job's end is not among the reports: `finish` returns it, for the launcher.
4. `finish` waits for the disk without a limit; so does `write`, once the queue is full. A disk that hangs blocks this
   process but not the launcher, which kills it at the second Ctrl-C, at the end of `--drain-timeout` and for
   `megaflow control stop --force`. That loses only what is not committed.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, Full, Queue
from typing import Final, TypeAlias

from megaflow.control.checkpoint_messages import CutFailed, CutWritten, PositionsAt
from megaflow.durable.blocks import Block
from megaflow.job.worker.reading.untaken_lines import LinesCut
from megaflow.job.worker.snapshots.cut_packer import CutPacker, OutboxCut, OutboxWritten
from megaflow.megaphone.base.durability import Piece

WRITER: Final = "checkpoints"  # the thread
BLOCKS_MAX: Final = 1024
"""Blocks of about 64 KiB each that may wait to be packed."""
CHECK_SECONDS: Final = 0.1  # between two checks of a waiting worker whether the thread still runs


Kept: TypeAlias = Piece | LinesCut | OutboxCut
Outcome: TypeAlias = CutWritten | CutFailed | PositionsAt | OutboxWritten


class CutKeeper:
    """The cuts of one worker, whose thread calls all methods."""

    clock = staticmethod(time.thread_time)  # processor seconds of the calling thread

    def __init__(self, packer: CutPacker, encoding_seconds: Callable[[], float], wake: Callable[[], None]) -> None:
        """`encoding_seconds` returns how long the worker encoded its last cuts; the thread calls `wake`."""
        self._packer = packer  # only the thread uses it
        self._encoding_seconds = encoding_seconds
        self._wake = wake
        self._blocks: Queue[tuple[Kept, Block | None] | None] = Queue(BLOCKS_MAX)  # None ends the thread
        self._reports: deque[Outcome] = deque()  # appended by the thread
        self._final: CutWritten | CutFailed | None = None  # set by the thread
        self._spent = 0.0  # processor seconds of the thread until its last report
        self._fault: Exception | None = None  # set by the thread, which then ends
        self._thread: threading.Thread | None = None  # started with the first block

    def write(self, cut: Kept, block: Block | None = None) -> None:
        """Take a block, the end of a piece, Spark's lines, or an outbox. Blocks while the queue is full.

        The worker's operators, its source and its outboxes write their cuts here.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=WRITER, daemon=True)
            self._thread.start()
        self._put((cut, block))

    def take_reports(self) -> list[Outcome]:
        """Return the outcomes of checkpoints since the last call, each once. Raises the error that ended the thread."""
        self._raise_fault()
        found: list[Outcome] = []
        while self._reports:
            report = self._reports.popleft()
            if isinstance(report, CutWritten):
                report = replace(report, seconds=report.seconds + self._encoding_seconds())
            found.append(report)
        return found

    def finish(self) -> CutWritten | CutFailed | None:
        """Wait until all is written; return the outcome of the checkpoint at the end, None if there was none."""
        if self._thread is not None:
            self._put(None)
            self._thread.join()
            self._raise_fault()
        return self._final

    def stop(self) -> None:
        """Stop writing after the item that is being written; blocks until that is done."""
        if self._thread is not None:
            with contextlib.suppress(Empty):
                while True:
                    self._blocks.get_nowait()
            self._blocks.put(None)
            self._thread.join()

    def _put(self, item: tuple[Kept, Block | None] | None) -> None:
        while True:
            self._raise_fault()
            with contextlib.suppress(Full):
                self._blocks.put(item, timeout=CHECK_SECONDS)
                return

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        try:
            while (item := self._blocks.get()) is not None:
                self._pack(*item)
        except Exception as error:
            self._fault = error
            self._wake()

    def _pack(self, cut: Kept, block: Block | None) -> None:
        """Write the item of one call of `write`."""
        if isinstance(cut, LinesCut | OutboxCut):
            packer = self._packer
            self._reports.append(packer.write(cut) if isinstance(cut, LinesCut) else packer.write_outbox(cut))
            self._wake()
            return
        report = self._packer.take(cut, block)
        if report is None:
            return
        if isinstance(report, CutWritten):
            now = self.clock()
            report, self._spent = replace(report, seconds=now - self._spent), now
        if cut.at_end:
            self._final = report
        else:
            self._reports.append(report)
        self._wake()
