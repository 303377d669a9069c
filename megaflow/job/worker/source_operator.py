"""The source of lines: the operator that turns what a worker may read into batches stamped with epochs.

1. An epoch is a tick of the control stream. With the control frontier at f the source holds a
   capability at f-1 and stamps what it reads with it: all commands at f-1 are known, so the
   operators that route by them do not wait.
2. A command takes effect when control has passed its epoch: what is assigned or committed at e
   enters at e or later.
3. The source holds the capability with or without lines to read, until `EndOfLines`: what is
   assigned or committed later finds it open. On a worker that joins it gets a capability from a
   member; commands that come before that wait.
4. The source of a leaving worker is told by `Withdraw`, which follows every command that gives it
   lines: it takes in what is committed and what was pushed here, hands back its splits and closes.
5. Backpressure holds lines back, never time. While the output lags it reads one small batch per
   tick, and none while records wait in the stateful operators of this worker: then it has run ahead
   of the others, whose records they wait for. While an operator after it, here or on a peer, has
   enough to do (`Output.is_full`), or bytes pile up for a peer or for the launcher, it reads none.
   All of this ends by itself, for time goes on: what waits for the others' epochs gets them.
6. A partition (a file, unless it was cut; what the launcher pushes; a Spark partition of a batch) is read by one worker
   in any one epoch, in its order, and changes hands only between epochs.
   What has a successor: the rest of a split that `Withdraw` made a source return, what the launcher pushes when another
   process coordinates, and an ordered batch of Spark's (its successor is the next one). A source stamps with f-1 while
   it sees control at f. It reports the end of its part (`SplitsReturned`, `PushedEnded`, `CommitTaken`) after the last
   lines of it, so with some such f in its past; when the coordinator hears that, control is at f or later, as the
   frontier that the source saw had come from there. The command that begins the successor's part (`AssignSplits`,
   `ReadPushed`, `CommitBatch`) is issued then, at some e >= f, and who obeys it has seen control pass e (rule 2) and
   stamps with e or more: later than f-1. A coordinator that takes over goes on with the time of the one before.
7. A source says where it is for a checkpoint at t when it obeys the command, so when control has passed t and before it
   reads on. By rule 1 all that it has read until then is stamped below t, as it saw control at t at most; what it reads
   from then on is stamped with t or more. What it has handed back by then was assigned again before t: see
   `control.coordinator.checkpoints`. Of Spark's lines that were committed before t it has what is left written, and
   says where it is when that is on the disk.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import Any

from megaflow.control.checkpoint_messages import PositionsAt
from megaflow.control.messages import (
    AssignSplits,
    Busy,
    CommitBatch,
    EndOfLines,
    ReadPushed,
    Split,
    SplitsReturned,
    Withdraw,
)
from megaflow.control.worker.latency import Lateness
from megaflow.control.worker.port_roles import LauncherDoor
from megaflow.job.worker.line_queue import LineQueue
from megaflow.job.worker.untaken_lines import LinesCut
from megaflow.megaphone.routing import Checkpoint, Numbered
from megaflow.program import Worker
from megaflow.timely.dataflow.builder import Input, NodeBuilder, Output
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.dataflow.session import BATCH_RECORDS
from megaflow.timely.order import Time

LAG_LIMIT_EPOCHS = 20  # a fifth of a second under load; more would only lengthen the queues
BATCHES_PER_ACTIVATION = 1  # what it becomes must stay in the cache: 16 cost a third more (measured)
BATCHES_PER_EPOCH = 256  # about 1 MB: an epoch, and what a stalled job buffers, is bounded
PEER_BYTES_MAX = 8 << 20  # on their way to one process; beyond that the source waits
WAITING_RECORDS_MAX = 16 * BATCH_RECORDS  # in a stateful operator, for their time, while the output lags
BUSY_PERIOD_SECONDS = 0.1
RATE_PERIOD_SECONDS = 0.005  # an open loop reads what has become due this often: half a tick


def epoch_of(time: Time) -> int:
    """Return a root time as the epoch that it is."""
    assert isinstance(time, int), "sources and outputs are in the root scope"
    return time


@dataclass(eq=False)
class LineSource:
    """The operator that reads the lines of one worker; made while its dataflow is built."""

    control: InitVar[Port[Numbered]]
    worker: Worker
    launcher: LauncherDoor
    queue: LineQueue  # what there is to read
    lateness: Lateness  # told of each batch
    probe: ProbeHandle  # at the output of the dataflow
    report: Callable[[Any], None]  # tells the coordinator what was read
    keep: Callable[[LinesCut], None] | None = None  # writes what is left of Spark's lines, and tells the coordinator
    names_inputs: bool = False  # whether each batch goes out as one record, with the name of the input of its rows

    def __post_init__(self, control: Port[Numbered]) -> None:
        self._waiting: deque[tuple[int, object]] = deque()  # (epoch, command) that control has not passed
        self._ended = False  # all lines have
        self._returned: tuple[tuple[Split, ...], float] | None = None  # if the worker leaves: see `LineQueue.give_back`
        self._epoch = -1  # of the capability, once the control frontier allows to read
        self._batches = 0  # read in this epoch
        self._busy_reported = 0.0  # seconds
        self._timer_due = 0.0  # seconds; a later moment is already on the worker's timers
        builder = NodeBuilder(control.scope, "Lines")
        self._commands: Input[Numbered] = builder.new_input(control, Pipeline(), {})  # only the capability holds
        self._output: Output[Any]
        self._output, self.lines = builder.new_output()
        builder.build(self._make, joinable=True)

    def _make(self, capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        self._capability = capabilities[0]
        self._info = info
        return self.run

    def activate(self) -> None:
        """Have the source look for new lines; any thread."""
        self._info.activator.activate()

    def take_pushed(self) -> None:
        """Read the launcher's lines from now on; this thread polls."""
        self.queue.expect_pushed()
        self.launcher.serve(self.queue, self.activate)

    def run(self) -> None:
        """Obey commands, move to the present epoch, read what may be read, report."""
        frontier = self._commands.frontier.elements
        for time, batch in self._commands.drain():
            self._waiting.extend((epoch_of(time), numbered.command) for numbered in batch)
        if self._capability.absent:
            return  # this worker is joining
        if not self._capability.held:
            self._waiting.clear()
            return
        tick = epoch_of(frontier[0]) if frontier else None
        while self._waiting and (tick is None or self._waiting[0][0] < tick):
            self._obey(*self._waiting.popleft())
        if self._ended or tick is None:
            self._close()
        else:
            self._go_on(tick)

    def _go_on(self, tick: int) -> None:
        epoch = tick - 1
        given = epoch_of(self._capability.time)  # on a worker that joined, by a member that may have been ahead of it
        if epoch > self._epoch and epoch >= given:
            self._epoch = epoch
            self._batches = 0
            self._capability.downgrade(epoch)
        if self._epoch >= 0:
            self._read(tick)
        if self._returned is not None and not self.queue.ready and not self.queue.expects_pushed:
            self._close()

    def _obey(self, time: int, command: object) -> None:
        """Take what concerns this worker's lines."""
        match command:
            case AssignSplits(given, share):
                all_bytes = sum(split.end - split.start for splits in given.values() for split in splits)
                self.queue.assign(given.get(self._info.worker, ()), all_bytes, share)
            case CommitBatch():
                self.queue.staging.commit(command)
            case ReadPushed(worker) if worker == self._info.worker:
                self.take_pushed()
            case Withdraw(workers) if self._info.worker in workers:
                self._returned = self.queue.give_back()
            case EndOfLines():
                self._ended = True
            case Checkpoint(number, _, False):
                self._tell_position(number, time)

    def _tell_position(self, checkpoint: int, time: int) -> None:
        """Say what is left of what was assigned or committed here before the checkpoint's time."""
        splits = self.queue.remainders()
        copy = None if self.keep is None else self.queue.untaken()
        if copy is None or self.keep is None:
            self.report(PositionsAt(checkpoint, splits))
        else:
            self.keep(LinesCut(checkpoint, time, splits, copy))

    def _close(self) -> None:
        """Read nothing any more."""
        if self._returned is not None:
            for report in self.queue.take_reports():
                self.report(report)
            self.report(SplitsReturned(*self._returned))
        self.queue.close()
        self._capability.release()

    def _read(self, tick: int) -> None:
        now = self.worker.now()
        allowed, before = self._allowed(tick), self._batches
        for _ in range(allowed):
            taken = self.queue.take(now)
            if taken is None:
                break
            lines, since = taken
            self._output.ship(self._epoch, [(self.queue.staging.input, lines)] if self.names_inputs else lines)
            self.lateness.begin(self._epoch, since, len(lines))
            self._batches += 1
        for report in self.queue.take_reports():
            self.report(report)
        self._call_again(now, allowed, self._batches > before)

    def _allowed(self, tick: int) -> int:
        """Return how many batches may be read now."""
        if self.worker.allocator.pending_bytes > PEER_BYTES_MAX or self._output.is_full():
            return 0
        if not self.launcher.has_room:  # it comes first: a long step may keep the worker from answering it
            return 0
        slowest = self.probe.frontier.elements
        if slowest and tick - epoch_of(slowest[0]) > LAG_LIMIT_EPOCHS:
            return 0 if self._batches or self._is_ahead() else 1
        return min(BATCHES_PER_ACTIVATION, BATCHES_PER_EPOCH - self._batches)

    def _is_ahead(self) -> bool:
        """Tell whether many records wait for their time in a stateful operator of this worker."""
        return any(view.waiting > WAITING_RECORDS_MAX for view in self.worker.stateful)

    def _call_again(self, now: float, allowed: int, took: bool) -> None:
        """Have the operator run again when it may have something to do; `took`: it has just read something."""
        wait = self.queue.due_in(now)
        if (took or wait is not None) and now - self._busy_reported >= BUSY_PERIOD_SECONDS:
            self._busy_reported = now
            self.report(Busy(saturated=wait == 0.0 and self.queue.rate is None))
        if wait is None:
            return  # a command or a pushed line will activate it
        if allowed < BATCHES_PER_ACTIVATION:
            return  # the next tick will: the control frontier moves, about every 10 ms while busy
        if wait == 0.0:
            self._info.activator.activate()
        elif self._timer_due <= now:
            wait = max(wait, RATE_PERIOD_SECONDS)
            self._timer_due = now + wait
            self._info.activator.activate_after(wait)
