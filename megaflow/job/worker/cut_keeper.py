"""What one worker keeps of its state: a thread packs, writes and syncs the blocks of its cuts, and reports come back.

The worker's thread encodes, slice by slice (`unwritten`); all that may wait for a disk is done by the other one.
1. What waits to be written is bounded: a worker that encodes faster than the disk takes waits for the disk. What is
   left of a checkpoint that has failed takes no time, since its blocks are dropped.
2. An error of the disk is a report, `CutFailed`. Any other is a fault of this program, and ends it: the error is raised
   where the worker asks for reports, or waits.
3. The checkpoint at the job's end is reported to nobody here: `finish` returns what came of it, for the launcher.
4. `finish` waits for the disk as long as that takes; so does `write`, once enough waits. A disk that hangs holds this
   process up, but not the launcher, which kills it at the second Ctrl-C, at the end of `--drain-timeout` and for
   `megaflow control stop --force`. Nothing is lost by that but what is not committed.
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
from megaflow.job.worker.cut_packer import CutPacker, OutboxCut, OutboxWritten
from megaflow.job.worker.untaken_lines import LinesCut
from megaflow.megaphone.unwritten import Piece

WRITER: Final = "checkpoints"  # the thread
BLOCKS_MAX: Final = 1024
"""That wait to be packed: of about 64 KiB each."""
CHECK_SECONDS: Final = 0.1  # until whoever waits for the thread looks whether it is still there


Kept: TypeAlias = Piece | LinesCut | OutboxCut
Outcome: TypeAlias = CutWritten | CutFailed | PositionsAt | OutboxWritten


class CutKeeper:
    """The cuts of one worker, whose thread calls all methods."""

    clock = staticmethod(time.thread_time)  # seconds of a processor, of the thread that asks

    def __init__(self, packer: CutPacker, encoding_seconds: Callable[[], float], wake: Callable[[], None]) -> None:
        """`encoding_seconds` tells what the worker has spent on its last cuts; `wake` is called from the thread."""
        self._packer = packer  # the thread's
        self._encoding_seconds = encoding_seconds
        self._wake = wake
        self._blocks: Queue[tuple[Kept, Block | None] | None] = Queue(BLOCKS_MAX)  # None: nothing follows
        self._reports: deque[Outcome] = deque()  # put by the thread
        self._final: CutWritten | CutFailed | None = None  # set by the thread
        self._spent = 0.0  # seconds of a processor, by the thread until its last report
        self._fault: Exception | None = None  # set by the thread, which ends with it
        self._thread: threading.Thread | None = None  # from the first block on

    def write(self, cut: Kept, block: Block | None) -> None:
        """Take a block, or the end of a piece, or Spark's lines, or an outbox; blocks while too many wait.

        The sink of the worker's operators, of its source, and of its outboxes.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=WRITER, daemon=True)
            self._thread.start()
        self._put((cut, block))

    def take_reports(self) -> list[Outcome]:
        """Return, once, what has come of checkpoints since the last call. Raises what ended the thread."""
        self._raise_fault()
        found: list[Outcome] = []
        while self._reports:
            report = self._reports.popleft()
            if isinstance(report, CutWritten):
                report = replace(report, seconds=report.seconds + self._encoding_seconds())
            found.append(report)
        return found

    def finish(self) -> CutWritten | CutFailed | None:
        """Wait until all is written; return what came of the checkpoint at the end, None if there was none."""
        if self._thread is not None:
            self._put(None)
            self._thread.join()
            self._raise_fault()
        return self._final

    def stop(self) -> None:
        """Write no more than what is being written; blocks until that is done."""
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
        """Do the thread's work with what one `write` has brought."""
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
