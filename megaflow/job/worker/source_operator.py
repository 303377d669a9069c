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
   It reads no more than about a second of this worker's own work ahead (`reading_pace`).
   All of this ends by itself, for time goes on: what waits for the others' epochs gets them.
6. A partition (a file, unless it was cut; what the launcher pushes; a Spark partition of a batch) is read by one worker
   in any one epoch, in its order, and changes hands only between epochs.
   What has a successor: the rest of a split or of a source's partition that `Withdraw` or `RevokeSplits` made a source
   hand back, what the launcher pushes when another process coordinates, and an ordered batch of Spark's (its successor
   is the next one). A source stamps with f-1 while it sees control at f. It reports the end of its part
   (`SplitsReturned`, `SplitsRevoked`, `PushedEnded`, `CommitTaken`) after the last lines of it, so with some such f in
   its past; when the coordinator hears that, control is at f or later, as the frontier that the source saw had come
   from there. The command that begins the successor's part (`AssignSplits`, `AssignPortions`, `ReadPushed`,
   `CommitBatch`) is issued then, at some e >= f, and who obeys it has seen control pass e (rule 2) and stamps with e or
   more: later than f-1. A coordinator that takes over goes on with the time of the one before.
7. A source says where it is for a checkpoint at t when it obeys the command, so when control has passed t and before it
   reads on. By rule 1 all that it has read until then is stamped below t, as it saw control at t at most; what it reads
   from then on is stamped with t or more. What it was told before t to hand back is no longer its own, and its report
   of that comes first: the coordinator adds it, or has by then given it to another, see
   `control.coordinator.checkpoints`. Of Spark's lines that were committed before t it has what is left written, and
   says where it is when that is on the disk.
8. Where timestamps are taken, what it says of rests and positions waits until their maxima are exact: `exact_maxima`.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass
from typing import Any

from megaflow.control.checkpoint_messages import PositionsAt
from megaflow.control.coordinator.job_state import IDLE_SECONDS
from megaflow.control.latency import Lateness
from megaflow.control.messages import Busy, CommitBatch, EndOfLines, ParserPlace, PushedEnded, ReadPushed, Withdraw
from megaflow.control.reading_messages import (
    AssignPortions,
    AssignSplits,
    PortionsRevoked,
    RevokePortions,
    RevokeSplits,
    ShareRate,
    SplitRead,
    SplitsReturned,
    SplitsRevoked,
)
from megaflow.control.watermark_messages import MaximaTold, TellMaxima
from megaflow.control.worker.port_roles import LauncherDoor
from megaflow.job.worker.event_reports import EventReports
from megaflow.job.worker.exact_maxima import ExactMaxima
from megaflow.job.worker.line_queue import LineQueue
from megaflow.job.worker.reading_pace import AHEAD_SECONDS, ReadingPace
from megaflow.job.worker.untaken_lines import LinesCut
from megaflow.megaphone.event_clock import EventTimes
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
SETTLE_SECONDS = 0.005
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
    ships_batches: bool = False  # whether each goes out as one record, with the name of its input
    idle_seconds: float = IDLE_SECONDS  # without a record, until a partition holds event time back no longer

    def __post_init__(self, control: Port[Numbered]) -> None:
        self._waiting: deque[tuple[int, object]] = deque()  # (epoch, command) that control has not passed
        self._ended = False  # all lines have
        self._returned: SplitsReturned | None = None  # if the worker leaves
        self._epoch = -1  # of the capability, once the control frontier allows to read
        self._batches = 0  # read in this epoch
        self._busy_reported = 0.0  # seconds
        self._pace = ReadingPace()
        self._took = 0.0  # seconds: when lines were read last
        self._parked = 0.0  # seconds that the worker had been idle when lines were refused last
        self._timer_due = 0.0  # seconds; a later moment is already on the worker's timers
        self._idle_due = 0.0  # seconds; then partitions that are idle are looked at
        times = control.scope.graph.extension(EventTimes)
        self._events = EventReports(times, self.report, self.idle_seconds)
        self._maxima = ExactMaxima(times.operators, self.report, self._events.tell_maxima)
        self._settle_due = 0.0  # seconds; then it is looked whether maxima are exact
        self._outputs: dict[str, tuple[Output[Any], Capability]] = {}  # source that is read by its name -> where to
        self._builder = builder = NodeBuilder(control.scope, "Lines")
        self._commands: Input[Numbered] = builder.new_input(control, Pipeline(), {})  # only the capability holds
        self._output: Output[Any]
        self._output, self.lines = builder.new_output()
        builder.build(self._make, joinable=True)

    def _make(self, capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        self._capability = capabilities[0]
        self._info = info
        return self.run

    def add_source(self, name: str) -> Port[Any]:
        """Return where the records come out of a source that the queue knows by this name; while it is built."""
        output, port, capability = self._builder.add_output()
        self._outputs[name] = output, capability
        self.queue.portions.activate = self.activate
        return port

    def activate(self) -> None:
        """Have the source look for new lines; any thread."""
        self._info.activator.activate()

    def take_pushed(self, places: Iterable[ParserPlace]) -> None:
        """Read the launcher's lines from now on; this thread polls."""
        self.queue.expect_pushed(places=places)
        self.launcher.serve(self.queue, self.activate)

    def run(self) -> None:
        """Obey commands, move to the present epoch, read what may be read, report."""
        self.queue.now = self.worker.now()  # before all that may look for what comes next, and find nothing since then
        if self._events.are_wanted:
            self._report_events()
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
            self._withdraw()
            self._maxima.settle(None)  # nobody is to read on
            if self._capability.held:
                self._close()
        else:
            self._go_on(tick)
            if self._maxima.are_waited_for and self._settle_due <= self.queue.now:
                self._settle_due = self.queue.now + SETTLE_SECONDS
                self._info.activator.activate_after(SETTLE_SECONDS)

    def _go_on(self, tick: int) -> None:
        epoch = tick - 1
        if epoch > self._epoch and epoch >= self._given:
            self._epoch = epoch
            self._batches = 0
            self._capability.downgrade(epoch)
            for _, capability in self._outputs.values():
                capability.downgrade(epoch)
        if self._epoch >= 0:
            self._read(tick)
        if self._returned is not None and not self.queue.ready and not self.queue.expects_pushed:
            self._withdraw()

    @property
    def _given(self) -> int:
        """The epoch of the capabilities: on a worker that joined, given by members that may have been ahead of it."""
        held = [self._capability, *(capability for _, capability in self._outputs.values())]
        return max(epoch_of(each.time) for each in held)

    def _obey(self, time: int, command: object) -> None:
        """Take what concerns this worker's lines."""
        match command:
            case AssignSplits(given):
                self.queue.assign(self._maxima.begin(given.get(self._info.worker, ())))
            case RevokeSplits(numbers) if self._info.worker in numbers:
                self._hand_back(SplitsRevoked, self.queue.give_back(numbers[self._info.worker]))
            case ShareRate(workers) if self._info.worker in workers:
                self.queue.share_rate(len(workers))
            case AssignPortions(portions):
                self.queue.portions.add(self._maxima.begin(portions.get(self._info.worker, ())))
            case RevokePortions(worker, numbers) if worker == self._info.worker:
                self._hand_back(PortionsRevoked, self.queue.give_back_portions(numbers))
            case CommitBatch():
                self.queue.staging.commit(command)
            case ReadPushed(worker, places, maxima) if worker == self._info.worker:
                self._maxima.begin_pushed(maxima)
                self.take_pushed(places)
            case Withdraw(workers) if self._info.worker in workers:
                self._returned = SplitsReturned(self.queue.give_back(), self.queue.give_back_portions())
            case TellMaxima():
                self._events.tell_maxima(MaximaTold())
            case EndOfLines():
                self._ended = True
            case Checkpoint(number, _, False):
                self._tell_position(number, time)

    def _hand_back(self, make: Callable[[Any], Any], rest: tuple[Any, ...]) -> None:
        """Read these no further, and report it."""
        self._report_all()
        self._events.keep(self.queue.partitions())
        self._maxima.hand_back(self._epoch, make, rest)

    def _report_all(self) -> None:
        """Tell what has been read to its end."""
        for report in self.queue.take_reports():
            if isinstance(report, SplitRead):
                self._maxima.ended(self._epoch, self._events.ended(report.number))
            if isinstance(report, PushedEnded) and report.elsewhere:
                self._maxima.hand_pushed_on(self._epoch, report, self.queue.pushed.partitions)
            else:
                self.report(report)

    def _tell_position(self, checkpoint: int, time: int) -> None:
        """Say what is left of what was assigned or committed here before the checkpoint's time."""
        splits, portions = self.queue.remainders(), self.queue.portions_left()
        copy = None if self.keep is None else self.queue.untaken()

        def tell(splits: tuple[Any, ...], portions: tuple[Any, ...]) -> None:
            if copy is None or self.keep is None:
                self.report(PositionsAt(checkpoint, splits, (), portions))
            else:
                self.keep(LinesCut(checkpoint, time, splits, copy, portions))
        self._maxima.tell(time, splits, portions, tell)

    def _withdraw(self) -> None:
        """Hand all back, on a worker that leaves, and read nothing any more."""
        rest, self._returned = self._returned, None
        if rest is not None:
            self._report_all()
            self._maxima.hand_back(self._epoch, SplitsReturned, rest.splits, rest.portions)
            self._maxima.after(self._epoch, self._close)

    def _close(self) -> None:
        """Read nothing any more."""
        self.queue.close()
        self._capability.release()
        for _, capability in self._outputs.values():
            capability.release()

    def _read(self, tick: int) -> None:
        now = self.worker.now()
        busy = now - self.worker.parked_seconds
        slowest = self.probe.frontier.elements
        self._pace.closed(epoch_of(slowest[0]) if slowest else None, busy)
        allowed, before = self._allowed(tick, now, busy), self._batches
        for _ in range(allowed):
            taken = self.queue.take(now, self._pace.batch_lines)
            if taken is None:
                break
            lines, since = taken
            self._ship(lines, now)
            self._pace.shipped(self._epoch, len(lines), busy)
            self._took = now
            self.lateness.begin(self._epoch, since, len(lines))
            self._batches += 1
        self._report_all()
        self._call_again(now, allowed, self._batches > before)

    def _ship(self, lines: list[Any], now: float) -> None:
        """Send what was taken last."""
        output, batch = self._output, lines
        if self._outputs and self.queue.input in self._outputs:
            output = self._outputs[self.queue.input][0]
        elif self.ships_batches:
            batch = [(self.queue.input, lines)]
        if self._events.are_wanted:
            batch = self._events.traced(batch, self.queue.partition, self._epoch, now)
        output.ship(self._epoch, batch)

    def _report_events(self) -> None:
        """Tell how far event time is, and what has waited for maxima."""
        slowest = self.probe.frontier.elements
        passed = epoch_of(slowest[0]) if slowest else None
        self._events.settle(self.worker.now(), passed, self.queue.empty)
        self._maxima.settle(passed)

    def _allowed(self, tick: int, now: float, busy: float) -> int:
        """Return how many batches may be read now."""
        if self.worker.allocator.pending_bytes > PEER_BYTES_MAX or self._output.is_full():
            return 0
        if self._outputs and any(output.is_full() for output, _ in self._outputs.values()):
            return 0
        if not self.launcher.has_room:  # it comes first: a long step may keep the worker from answering it
            return 0
        slowest = self.probe.frontier.elements
        if slowest and tick - epoch_of(slowest[0]) > LAG_LIMIT_EPOCHS:
            return 0 if self._batches or self._is_ahead() else 1
        if self._pace.room(busy) <= 0:
            parked, self._parked = self._parked, self.worker.parked_seconds
            return int(self._parked > parked or now - self._took >= AHEAD_SECONDS)
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
            self._wait_for_portions(now)
            return  # a command, a pushed line or a call that wakes a partition will activate it
        if allowed < BATCHES_PER_ACTIVATION:
            return  # the next tick will: the control frontier moves, about every 10 ms while busy
        if wait == 0.0:
            self._info.activator.activate()
        elif self._timer_due <= now:
            wait = max(wait, RATE_PERIOD_SECONDS)
            self._timer_due = now + wait
            self._info.activator.activate_after(wait)

    def _wait_for_portions(self, now: float) -> None:
        """Look again when a partition is to be read that is idle."""
        wait = self.queue.portions.wait(now)
        if wait == 0.0:
            self._info.activator.activate()
        elif wait is not None and (self._idle_due <= now or now + wait < self._idle_due):
            self._idle_due = now + wait
            self._info.activator.activate_after(wait)
