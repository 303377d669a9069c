"""The source of lines: the operator that turns all that a worker may read into batches stamped with epochs.

1. An epoch is a tick of the control stream. While the control frontier is at f, the source holds a capability at f-1
   and stamps with it what it reads. All commands at f-1 are known then, so operators that route by them do not wait.
2. A command takes effect when control has passed its epoch: lines assigned or committed at e enter at e or later.
3. The source holds its capability until `EndOfLines`, with or without lines to read, so that later assignments and
   commits find it open. On a joiner, it gets the capability from a member; commands that come before that wait.
4. `Withdraw` closes the source of a leaving worker. It follows all commands that give the worker lines. The source
   first takes in the lines that were committed or pushed here. Then it hands back its splits and partitions and closes.
5. Backpressure holds back lines, never time. All of it ends by itself, because time advances: when the epochs of other
   workers close, the records that wait for them can be processed.
   - While the output lags, the source reads one small batch per tick. If many records also wait in the stateful
     operators of this worker, it reads none: then it is ahead of the workers whose epochs these records wait for.
   - It reads none while an operator after it, here or on a peer, has enough to do (`Output.is_full`), or while many
     bytes wait for a peer or for the launcher.
   - It reads at most about a second of this worker's own work ahead (`reading_pace`).
6. In any one epoch, only one worker reads a partition, in its order; the reader changes only between epochs. Here a
   partition is a file that is not cut, the launcher's lines, a source's partition, or a Spark partition of a batch.
   Reading passes to a successor in three cases. `Withdraw`, `RevokeSplits` or `RevokePartitions` made a source hand
   back the rest of a split or of a source's partition. Or the launcher pushes to another process, which now
   coordinates. Or an ordered batch of Spark follows another. Why the successor stamps later:
   - A source stamps with f-1 while it sees control at f. It reports the end of its part (`SplitsReturned`,
     `SplitsRevoked`, `PartitionsRevoked`, `PushedEnded`, `CommitTaken`) after the last lines of it, so it has seen such
     an f by then.
   - When the coordinator receives the report, control is at f or later: the frontier that the source saw came from
     there. Only then does the coordinator issue the command that begins the successor's part (`AssignSplits`,
     `AssignPartitions`, `ReadPushed`, `CommitBatch`), at some e >= f.
   - The successor obeys once it has seen control pass e (rule 2). It stamps with e or more, so later than f-1. A
     coordinator that takes over continues with the time of the previous one.
7. A source determines its positions for a checkpoint at t when it obeys the command: after control has passed t, and
   before it reads on. By rule 1, everything read until then is stamped below t, as the source had seen control at t at
   most. Everything read from then on is stamped with t or more. A part that a command before t took back is no longer
   the source's own. The source reports it first, so the coordinator adds it, or has by then assigned it to another
   worker: see `control.coordinator.checkpoints.checkpoints`. Of Spark's lines that were committed before t, the source
   has the rest written. It reports its positions when that rest is on the disk.
8. A whole batch of Spark enters at one epoch, that of its commit: while the source has some of it to read, it holds its
   capability at that epoch, and obeys no later command. It can, because it held an earlier epoch when control passed
   that of the commit. This holds back time until the batch is read. So nothing that itself waits for time may hold the
   batch back. Of the limits of rule 5 only that of the network counts, because it ends without time. A checkpoint has
   nothing of such a batch as untaken, because the source obeys it afterwards.
9. If the dataflow takes timestamps, reports of rests and positions wait until their maxima are exact: `exact_maxima`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Any

from megaflow.connect.source_protocol import Source
from megaflow.control import reading_messages
from megaflow.control.checkpoint_messages import LeftOut, PositionsAt
from megaflow.control.coordinator.base.job_state import IDLE_SECONDS
from megaflow.control.latency import LatencyMeter
from megaflow.control.launcher_messages import ToldOnce
from megaflow.control.messages import Busy, CommitBatch, EndOfLines, PushedEnded, ReadPushed, Withdraw
from megaflow.control.watermark_messages import MaximaTold, TellMaxima
from megaflow.job.worker.control.connection_handlers import LauncherDoor
from megaflow.job.worker.reading.event_reports import EventReports
from megaflow.job.worker.reading.exact_maxima import ExactMaxima
from megaflow.job.worker.reading.line_queue import LineQueue
from megaflow.job.worker.reading.reading_pace import AHEAD_SECONDS, HeldBack, ReadingPace
from megaflow.job.worker.reading.untaken_lines import LinesCut
from megaflow.megaphone.base.event_inputs import EventTimes
from megaflow.megaphone.base.routing import Checkpoint, Numbered
from megaflow.program import Worker
from megaflow.timely.dataflow.builder import Input, NodeBuilder, Output
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.dataflow.session import BATCH_RECORDS
from megaflow.timely.order import epoch_of
from megaflow.timely.progress.antichain import first_epoch

LAG_LIMIT_EPOCHS = 20  # a fifth of a second under load; more would only lengthen the queues
BATCHES_PER_ACTIVATION = 1  # the results must stay in the cache: 16 cost a third more (measured)
BATCHES_PER_EPOCH = 256  # about 1 MB: bounds an epoch, and what a stalled job buffers
PEER_BYTES_MAX = 8 << 20  # on their way to one process; above that the source waits
WAITING_RECORDS_MAX = 16 * BATCH_RECORDS  # for their time in a stateful operator, while the output lags
BUSY_PERIOD_SECONDS = 0.1
SETTLE_SECONDS = 0.005
RATE_PERIOD_SECONDS = 0.005  # with a rate, the source reads this often: half a tick


@dataclass(eq=False)
class LineSource:
    """The operator that reads the lines of one worker; made while its dataflow is built."""

    control: InitVar[Port[Numbered]]
    worker: Worker
    launcher: LauncherDoor
    queue: LineQueue  # the lines, rows and records to read
    lateness: LatencyMeter  # receives each batch
    probe: ProbeHandle  # at the output of the dataflow
    report: Callable[[Any], None]  # reports to the coordinator what was read
    serve: Callable[[], None] = lambda: None  # makes the launcher's lines come to the queue from now on
    keep: Callable[[LinesCut], None] | None = None  # writes the rest of Spark's lines and reports it
    ships_batches: bool = False  # whether each batch is sent as one record, with the name of its input
    left_out: Callable[[], LeftOut] = LeftOut  # returns what the worker has left out while it read
    idle_seconds: float = IDLE_SECONDS  # without a record: then a partition no longer holds back event time

    def __post_init__(self, control: Port[Numbered]) -> None:
        self._waiting: deque[tuple[int, object]] = deque()  # (epoch, command) that control has not yet passed
        self._ended = False  # no lines will come
        self._returned: reading_messages.SplitsReturned | None = None  # set while the worker leaves
        self._epoch = -1  # of the capability, once the control frontier allows reading
        self._batches = 0  # read in this epoch
        self._whole: int | None = None  # the epoch of a whole batch that is being read
        self._busy_reported = 0.0  # seconds
        self._pace = ReadingPace()
        self.held_back = HeldBack()
        self._limit = ""  # that held back last
        self._took = 0.0  # seconds, when lines were last read
        self._parked = 0.0  # seconds for which the worker had been idle when lines were last refused
        self._timer_due = 0.0  # seconds, when the last timer is due; no other is set before
        self._idle_due = 0.0  # seconds, when idle partitions are looked at
        times = control.scope.graph.extension(EventTimes)
        self._events = EventReports(times, self.report, self.idle_seconds, self._hint)
        self.queue.turns.progress = self._events
        self._maxima = ExactMaxima(times.operators, self.report, self._events.tell_maxima)
        self._settle_due = 0.0  # seconds, when maxima are checked again
        self._outputs: dict[str, tuple[Output[Any], Capability]] = {}  # source read by name -> its output
        self._builder = builder = NodeBuilder(control.scope, "Lines")
        self._commands: Input[Numbered] = builder.new_input(control, Pipeline(), {})  # only the capability holds
        self._output: Output[Any]
        self._output, self.lines = builder.new_output()
        builder.build(self._make, joinable=True)

    def _make(self, capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        self._capability = capabilities[0]
        self._info = info
        return self.run

    def _hint(self, about: str, text: str) -> None:
        self.launcher.send(ToldOnce(self._info.worker, about, text))

    def add_source(self, name: str, source: Source[Any]) -> Port[Any]:
        """Also read this source; return the stream of its records. Call it during the build."""
        output, port, capability = self._builder.add_output()
        self._outputs[name] = output, capability
        self.queue.open_partitions.activate = self.activate
        self.queue.open_partitions.sources[name], self.queue.taken_of[name] = source, 0
        return port

    def activate(self) -> None:
        """Make the source look for new lines. Any thread may call it."""
        self._info.activator.activate()

    def run(self) -> None:
        """Obey commands, advance to the current epoch, read what is allowed, and report."""
        self.queue.now = self.worker.now()  # before any look ahead, which notes since when nothing is found
        if self._events.are_wanted:
            passed = first_epoch(self.probe.frontier)
            self._events.settle(self.worker.now(), passed, self.queue.empty)
            self._maxima.settle(passed)
        tick = first_epoch(self._commands.frontier)
        for time, batch in self._commands.drain():
            self._waiting.extend((epoch_of(time), numbered.command) for numbered in batch)
        if self._capability.absent:
            return  # this worker is joining
        if not self._capability.held:
            self._waiting.clear()
            return
        while self._whole is None and self._waiting and (tick is None or self._waiting[0][0] < tick):
            self._obey(*self._waiting.popleft())
        if self._whole is not None:
            self._read_whole(self._whole)
        elif self._ended or tick is None:
            self._withdraw()
            self._maxima.settle(None)  # no worker will read on
            if self._capability.held:
                self._close()
        else:
            self._go_on(tick)
            if self._maxima.waiting and self._settle_due <= self.queue.now:
                self._settle_due = self.queue.now + SETTLE_SECONDS
                self._info.activator.activate_after(SETTLE_SECONDS)

    def _go_on(self, tick: int) -> None:
        self._advance(tick - 1)
        if self._epoch >= 0:
            self._read(tick)
        if self._returned is not None and not self.queue.ready and not self.queue.expects_pushed:
            self._withdraw()

    def _advance(self, epoch: int) -> None:
        """Hold the capabilities at this epoch from now on, if they are not later."""
        if epoch > self._epoch and epoch >= max(epoch_of(each.time) for each in self._held):
            self._epoch = epoch
            self._batches = 0
            for each in self._held:
                each.downgrade(epoch)

    def _read_whole(self, epoch: int) -> None:
        """Read some of a whole batch at its epoch, and return to it, or to the commands after it, at once."""
        self._advance(epoch)
        assert self._epoch == epoch, f"the source is at {self._epoch}, after the whole batch of {epoch}"
        now = self.worker.now()
        if self.worker.allocator.pending_bytes > PEER_BYTES_MAX:
            return  # the next tick will activate it
        self._take(BATCHES_PER_ACTIVATION, now, now - self.worker.parked_seconds)
        self._report_all()
        if not self.queue.has_staged:
            self._whole = None
        self._info.activator.activate()

    @property
    def _held(self) -> list[Capability]:
        """The capabilities. On a joiner, members gave them, and these may have been ahead of it."""
        return [self._capability, *(capability for _, capability in self._outputs.values())]

    def _obey(self, time: int, command: object) -> None:
        """Obey a command that concerns this worker's lines."""
        match command:
            case reading_messages.AssignSplits(given):
                self.queue.assign(self._maxima.begin(given.get(self._info.worker, ())))
            case reading_messages.RevokeSplits(numbers) if self._info.worker in numbers:
                self._hand_back(reading_messages.SplitsRevoked, self.queue.give_back(numbers[self._info.worker]))
            case reading_messages.ShareRate(workers) if self._info.worker in workers:
                self.queue.share_rate(len(workers))
            case reading_messages.ReadLimits(limits):
                self.queue.turns.limits = limits
            case reading_messages.AssignPartitions(partitions, sights):
                self.queue.add_partitions(self._maxima.begin(partitions.get(self._info.worker, ())), sights)
            case reading_messages.RevokePartitions(worker, numbers) if worker == self._info.worker:
                self._hand_back(reading_messages.PartitionsRevoked, self.queue.give_back_partitions(numbers))
            case reading_messages.StayWithPartition(worker, number) if worker == self._info.worker:
                self.queue.stay(number)
            case CommitBatch():
                self.queue.staging.commit(command)
                self._whole = time if command.is_whole and self.queue.has_staged else None
            case ReadPushed(worker, places, maxima) if worker == self._info.worker:
                self._maxima.begin_pushed(maxima)
                self.queue.expect_pushed(places=places)
                self.serve()
            case Withdraw(workers) if self._info.worker in workers:
                rest = self.queue.give_back(), self.queue.give_back_partitions()
                self._returned = reading_messages.SplitsReturned(*rest)
            case TellMaxima():
                self._events.tell_maxima(MaximaTold())
            case EndOfLines():
                self._ended = True
            case Checkpoint(number, _, False):
                self._tell_position(number, time)

    def _hand_back(self, make: Callable[[Any], Any], rest: tuple[Any, ...]) -> None:
        """Report the rests of parts that are no longer read here."""
        self._report_all()
        self._events.keep(self.queue.partitions())
        self._maxima.hand_back(self._epoch, make, rest)

    def _report_all(self, may_look: bool = True) -> None:
        """Report what was read to its end; `may_look`: also if only a look ahead shows it."""
        for report in self.queue.take_reports(may_look):
            if isinstance(report, reading_messages.SplitRead):
                self._maxima.ended(self._epoch, report, self._events.ended(report.number))
            elif isinstance(report, PushedEnded) and report.elsewhere:
                self._maxima.hand_pushed_on(self._epoch, report, self.queue.pushed.partitions)
            else:
                self.report(report)

    def _tell_position(self, checkpoint: int, time: int) -> None:
        """Report the rests of everything that was assigned or committed here before the checkpoint's time."""
        splits, partitions, lines = self.queue.remainders(), self.queue.partitions_left(), self.queue.lines_taken
        self._report_all(may_look=False)  # first: a commit needs the prints of ended splits
        copy, left_out = None if self.keep is None else self.queue.untaken(), self.left_out()

        def tell(splits: tuple[Any, ...], partitions: tuple[Any, ...]) -> None:
            report = PositionsAt(checkpoint, splits, (), partitions, lines, left_out)
            if copy is None or self.keep is None:
                self.report(report)
            else:
                self.keep(LinesCut(report, time, copy))

        self._maxima.tell(time, splits, partitions, tell)

    def _withdraw(self) -> None:
        """On a leaving worker: hand back everything, then stop reading."""
        rest, self._returned = self._returned, None
        if rest is not None:
            self._report_all()
            make = partial(reading_messages.SplitsReturned, taken=dict(self.queue.taken_of))
            self._maxima.hand_back(self._epoch, make, rest.splits, rest.partitions)
            self._maxima.after(self._epoch, self._close)

    def _close(self) -> None:
        """Stop reading, and release the capabilities."""
        self.held_back.by(None, self.queue.now)
        self.queue.close()
        for each in self._held:
            each.release()

    def _read(self, tick: int) -> None:
        now = self.worker.now()
        busy = now - self.worker.parked_seconds
        slowest = first_epoch(self.probe.frontier)
        self._pace.closed(slowest, busy)
        allowed, before = self._allowed(None if slowest is None else tick - slowest, now, busy), self._batches
        self._take(allowed, now, busy)
        self._report_all()
        self._call_again(now, allowed, self._batches > before)

    def _take(self, batches: int, now: float, busy: float) -> None:
        """Take and send so many batches, or all that are there."""
        for _ in range(batches):
            if (taken := self.queue.take(now, self._pace.batch_lines)) is None:
                break
            lines, since = taken
            self._ship(lines, now)
            self._pace.shipped(self._epoch, len(lines), busy)
            self._took = now
            self.lateness.begin(self._epoch, since, len(lines))
            self._batches += 1

    def _ship(self, lines: list[Any], now: float) -> None:
        """Send the lines that were taken last."""
        output, batch = self._output, lines
        if self._outputs and self.queue.input in self._outputs:
            output = self._outputs[self.queue.input][0]
        elif self.ships_batches:
            batch = [(self.queue.input, lines)]
        if self._events.are_wanted:
            batch = self._events.tagged(batch, self.queue.partition, self._epoch, now - self.queue.waited)
        output.ship(self._epoch, batch)

    def _allowed(self, lag: int | None, now: float, busy: float) -> int:
        """Return how many batches may be read now; `lag`: the epochs by which the output lags, None if it has ended."""
        outputs = self._output, *(output for output, _ in self._outputs.values())
        if self.worker.allocator.pending_bytes > PEER_BYTES_MAX:
            self._limit = "network"
            return 0
        if any(each.is_full() for each in outputs):
            self._limit = "queues"
            return 0
        if not self.launcher.has_room:  # takes precedence: a long step may keep the worker from answering the launcher
            self._limit = "launcher"
            return 0
        self._limit = "epochs"
        if lag is not None and lag > LAG_LIMIT_EPOCHS:
            is_ahead = any(view.waiting > WAITING_RECORDS_MAX for view in self.worker.stateful)
            return 0 if self._batches or is_ahead else 1
        if self._pace.room(busy) <= 0:
            self._limit = "pace"
            parked, self._parked = self._parked, self.worker.parked_seconds
            return int(self._parked > parked or now - self._took >= AHEAD_SECONDS)
        return min(BATCHES_PER_ACTIVATION, BATCHES_PER_EPOCH - self._batches)

    def _call_again(self, now: float, allowed: int, took: bool) -> None:
        """Make the operator run again when there may be work; `took`: it has just read something."""
        wait = self.queue.due_in(now)
        self.held_back.by(self._limit if wait == 0.0 and not allowed else None, now)
        if (took or wait is not None) and now - self._busy_reported >= BUSY_PERIOD_SECONDS:
            self._busy_reported = now
            self.report(Busy(saturated=wait == 0.0 and self.queue.rate is None))
        if wait is None:
            self._wait_for_partitions(now)
            return  # a command, a pushed line or a call that wakes a partition will activate it
        if allowed < BATCHES_PER_ACTIVATION:
            return  # the next tick will: the control frontier moves about every 10 ms while busy
        if wait == 0.0:
            self._info.activator.activate()
        elif self._timer_due <= now:
            wait = max(wait, RATE_PERIOD_SECONDS)
            self._timer_due = now + wait
            self._info.activator.activate_after(wait)

    def _wait_for_partitions(self, now: float) -> None:
        """Look again when an idle partition must be read."""
        wait = self.queue.open_partitions.wait(now)
        if wait == 0.0:
            self._info.activator.activate()
        elif wait is not None and (self._idle_due <= now or now + wait < self._idle_due):
            self._idle_due = now + wait
            self._info.activator.activate_after(wait)
