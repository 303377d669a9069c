"""The launcher's loop: sends lines to the first worker, merges the outputs of all, notices ends and failures.

One thread and one selector over the children's connections, signals, and what other threads have: they read the lines,
write the outputs, feed Spark's lines, connect to newcomers, and ask for the end.

1. The loop decides nothing about the stream: lines go to the first worker, outputs come back with their epochs.
2. The coordinator may move to another process. The job's file, the Spark feed and the launcher's own requests follow
   it.
3. A job ends when all workers have sent `Ended`, those included that joined later (see
   `megaflow.job.launcher.newcomers`). It fails when a worker fails or is lost. The other processes notice that by
   themselves and get a moment to end; `launch` kills those that are left after it.
4. The loop waits in its selector only, so whatever hangs (the source of the lines, who reads the outputs, a worker in
   user code, which does not read what it is sent) it notices signals, lost workers and requests at once. What others
   are sent waits in their `Client` until they take it: with LinePusher's window that is little.
5. All state here is the loop's. The threads have theirs (LineReader, OutputQueue), and wake the loop by `_news`.
6. This thread runs `launch`: it alone starts processes, whose lives depend on its own, and is told of signals.
7. When the last process has ended, the loop goes on until the outputs are written: a signal still reaches it.
8. What it has of the machine it runs on is its `Machine`. Where it waits it yields (`life`), so that a simulation can
   put all else that happens in between.
9. A job that is durable may have several lives, each with a loop of its own: see `megaflow.job.launcher.supervision`.
"""

import contextlib
import functools
import selectors
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

from megaflow.control import launcher_messages as messages
from megaflow.control.checkpoint_messages import SinksCommitted
from megaflow.errors import ClusterError, MegaflowError, PeerFailed, PeerLost, ProtocolError, StoreUnfit
from megaflow.job.job_file import Job, republish
from megaflow.job.launcher.busy_workers import is_in_a_step
from megaflow.job.launcher.checkpointing import Checkpointing
from megaflow.job.launcher.child_process import EXIT_SECONDS, Child
from megaflow.job.launcher.children import Children
from megaflow.job.launcher.early_end import FORCED, EarlyEnd
from megaflow.job.launcher.epoch_merge import EpochMerge
from megaflow.job.launcher.launcher_input import JobInput
from megaflow.job.launcher.line_pusher import LinePusher
from megaflow.job.launcher.machine import Machine
from megaflow.job.launcher.newcomers import Newcomers, Start
from megaflow.job.launcher.output_queue import OutputQueue
from megaflow.job.launcher.run_summary import RunSummary
from megaflow.job.launcher.store_keeper import StoreKeeper
from megaflow.job.launcher.wakeups import Signals
from megaflow.job.spec import Address
from megaflow.spark.source import SparkFeed
from megaflow.timely.communication.tcp import address_text

GRACE_SECONDS = 3.0  # from the first failure to the end of all processes; promised are 5
SPARK_FAREWELL_SECONDS = 15.0  # for its Java process to end; the feed kills that a little earlier


@dataclass(eq=False)
class Loop:
    """The launcher while the job runs."""

    children: Children
    start: InitVar[Start]
    job_input: InitVar[JobInput]
    output: OutputQueue
    signals: Signals
    report: Callable[[str], None]  # tells the user
    job: Job  # as it is published; written when the coordinator moves
    early_end: EarlyEnd
    machine: Machine = field(default_factory=Machine)
    keeper: StoreKeeper | None = None  # None: nothing is durable
    warned: set[str] = field(default_factory=set)  # what the user was told once

    def __post_init__(self, start: Start, job_input: JobInput) -> None:
        job, report, machine = self.job, self.report, self.machine
        self._merge = EpochMerge(worker for child in self.children.members for worker in child.workers)
        self.summary = RunSummary()
        self._failures: list[MegaflowError] = []  # what workers reported, the first one first
        self._failing_since: float | None = None  # seconds of the machine's clock
        self._lost: ClusterError | None = None  # a worker that cannot be connected to
        self._connect_timeout_seconds = 0.0
        self._drain_timeout: float | None = None  # seconds
        self.selector = machine.selector()  # for whoever drives `life`, to wait
        self._news = machine.wakeup()  # of threads
        self._readers = {name: machine.reader(each, self._news.wake) for name, each in job_input.pushed.items()}
        self._pusher = LinePusher(self._readers, self.children.all[0], self._send)
        self._is_holding = False  # the workers are to send no outputs
        hands = self.selector, self._answer, self._await, self._lose
        self._newcomers = Newcomers(self.children, start, *hands, machine)
        self._secret = job.secret.encode()
        self._stop = machine.stop(self._secret, report)
        self.early_end.wake = self._news.wake
        self._checkpoints = Checkpointing(
            self.keeper, self.output, self._merge.mark, self._tell, report, machine, self._tell_all
        )
        self._feed: SparkFeed | None = None
        if job_input.spark is not None:
            self._feed = machine.feed(job_input.spark, (job.host, job.port), self._secret, self._news.wake, report)

    def close(self) -> None:
        """Close what is open; the Spark session ends."""
        if self._feed is not None:
            self._feed.stop()
            self._feed.join(SPARK_FAREWELL_SECONDS)
        for reader in self._readers.values():
            reader.close()
        self._stop.close()
        self._newcomers.close()
        self.selector.close()
        self._news.close()

    def life(self, connect_timeout_seconds: float, drain_timeout: float | None) -> Iterator[float | None]:
        """Serve until all children are done; yield how long to wait for what the selector tells, None: without limit.

        `summary` has what came of it. Raises what made the job fail.
        """
        self._connect_timeout_seconds, self._drain_timeout = connect_timeout_seconds, drain_timeout
        self._connect()
        self.signals.can_drain = self.early_end.is_served = True
        for child in self.children.members:
            self._listen(child)  # what came with the handshake's last bytes
        while self._checkpoints.stopped_at is None and (
            self._newcomers.connecting or any(child.client is not None for child in self.children.all)
        ):
            if (seconds := self._turn()) is not None and seconds < 0:
                break
            yield seconds
            self._attend()
        self.summary.stopped_at = self._checkpoints.stopped_at
        if self.summary.stopped_at is None:
            self._judge()
        else:
            self.children.kill(self.children.all)  # what they have is read again by the next run
        self._checkpoints.end()
        self.output.finish()
        while not self.output.is_finished or self._checkpoints.is_waiting:
            yield self._turn()
            self._attend()

    def _attend(self) -> None:
        """Do what the selector tells."""
        for key, _ in self.selector.select(0.0):
            key.data()

    def _turn(self) -> float | None:
        """Do what there is to do; return how long to wait for more: below 0 once a job that fails had time to end."""
        now = self.machine.now()
        has_more = self._pusher.push(now)
        if self._pusher.is_drained:
            self.signals.input_ended.set()
        if self.output.is_full is not self._is_holding:
            self._hold(self.output.is_full)
        if self._failing_since is not None:
            grace = self._failing_since + GRACE_SECONDS - now
            return min(0.0, grace) if has_more else grace
        lives = any(child.running for child in self.children.all)
        left = self._pusher.window.lines, self.output.records
        self.early_end.turn(now, (self.job.host, self.job.port) if lives else None, left)
        waits = [each.wait_seconds(now) for each in (self.early_end, self._pusher)]
        return 0.0 if has_more else min((wait for wait in waits if wait is not None), default=None)

    def _connect(self) -> None:
        """Connect to all children, and start the Spark feed; one that neither answers nor works fails the job."""
        for child in self.children.members:
            try:
                is_at_work = functools.partial(is_in_a_step, child)
                client = child.connect(self._secret, self._connect_timeout_seconds, is_at_work)
            except ClusterError as error:
                self._lose(error)
                return
            self.selector.register(client, selectors.EVENT_READ, functools.partial(self._listen, child))
            self._newcomers.watch(child)
        self.selector.register(self.signals, selectors.EVENT_READ, self._on_signal)
        self.selector.register(self._news, selectors.EVENT_READ, self._on_news)
        self.output.start(self._news.wake)
        self._checkpoints.start(self._news.wake)
        for reader in self._readers.values():
            reader.start()
        if self._feed is not None:
            self._feed.start()

    def _judge(self) -> None:
        """Wait for the processes to exit; raise what made the job fail, if it did."""
        self.children.kill(child for child in self.children.all if not child.is_member)  # too late for the job
        failing = self._failing_since
        timeout = EXIT_SECONDS if failing is None else failing + GRACE_SECONDS - self.machine.now()
        self.children.wait_for_exit(max(0.0, timeout))
        error = self.children.blame(self._failures, self._lost)
        if error is not None and self.early_end.is_forced:
            raise ClusterError(FORCED) from error
        if error is not None:
            raise error

    # Children

    def _listen(self, child: Child) -> None:
        if child.client is None:
            return
        try:
            with contextlib.suppress(PeerLost):  # noticed where it is read
                child.client.flush()
            self._await_writable(child)
            for message in child.client.receive_available():
                self._take(child, message)
        except PeerLost:
            self.selector.unregister(child.client)
            child.close()
            if child.running:
                self._fail()
            self.children.forget_ended()

    def _send(self, child: Child, message: object) -> None:
        """Send a message to a child as soon as it takes it; nothing happens if it is gone."""
        if child.client is not None and child not in self._newcomers.connecting:
            with contextlib.suppress(PeerLost):  # noticed where it is read
                child.client.post(message)
            self._await_writable(child)

    def _await_writable(self, child: Child) -> None:
        """Have the selector tell when a child takes more, if something waits for that."""
        assert child.client is not None
        events = selectors.EVENT_READ | selectors.EVENT_WRITE if child.client.has_unsent else selectors.EVENT_READ
        key = self.selector.get_key(child.client)
        if key.events != events:
            self.selector.modify(child.client, events, key.data)

    def _hold(self, hold: bool) -> None:
        """Have all workers hold their outputs, or go on."""
        self._is_holding = hold
        self._tell_all(messages.HoldOutput(hold))

    def _take(self, child: Child, message: Any) -> None:
        """Act on a message of a child."""
        match message:
            case messages.OutputBatch():
                self._merge.add(message)
            case messages.OutputClosed():
                self.output.put(self._merge.close(message))
            case messages.LinesTaken(count):
                self._pusher.window.taken(count)
            case messages.Ended(worker, cut=cut, sinks=sinks, deadline=deadline):
                if not self._checkpoints.ended(cut, sinks, worker, deadline):
                    child.running.discard(worker)
                self.summary.add(message)
                self.output.put(self._merge.close(messages.OutputClosed(worker, None)))  # if it had no room for that
                self._checkpoints.end_if_all_have(child.running for child in self.children.members)
            case SinksCommitted(worker):
                if self._checkpoints.sinks_committed(message):
                    child.running.discard(worker)
            case messages.ToldOnce(_, about, text):
                if about not in self.warned:
                    self.warned.add(about)
                    self.report(text)
            case messages.Draining():
                self.early_end.drain(self.machine.now(), self._drain_timeout)
            case messages.Failed(_, text, unfit):
                child.failure = text
                self._failures.append(StoreUnfit(text) if unfit else PeerFailed(text))
                self._fail()
            case messages.StartProcesses():
                self._newcomers.start(message)
            case messages.EndProcess():
                self._newcomers.end(message)
            case messages.Coordinates(host, port):
                self._move((host, port))
                self._pusher.move(child)
            case messages.ProcessJoined(workers=workers):
                self._merge.join(workers)  # first
                child = self._newcomers.joined(message, self._secret, self._connect_timeout_seconds)
                self.report(f"{child} {'have' if len(workers) > 1 else 'has'} joined")
            case _ if not self._checkpoints.take(message):
                raise ProtocolError(f"{child} sent {message!r:.100}, which is not for the launcher")

    def _await(self, child: Child) -> None:
        """Listen to a child that joined later."""
        assert child.client is not None
        self.selector.register(child.client, selectors.EVENT_READ, functools.partial(self._listen, child))
        if self._is_holding:
            self._send(child, messages.HoldOutput(True))
        self._listen(child)

    def _answer(self, answer: messages.Started | messages.StartFailed | messages.StartWaits) -> None:
        """Tell the coordinator about processes that it has asked for."""
        if isinstance(answer, messages.StartFailed):
            self.report(f"{answer.reason}; the job continues without it")
        self._tell(answer)

    def _tell(self, message: object) -> None:
        coordinator = self.children.at((self.job.host, self.job.port))
        if coordinator is not None:
            self._send(coordinator, message)

    def _tell_all(self, message: object) -> None:
        for child in self.children.members:
            self._send(child, message)

    def _move(self, address: Address) -> None:
        """Note where the coordinator is from now on, and publish it."""
        self.job = replace(self.job, host=address[0], port=address[1])
        self.children.coordinator = address
        if self._feed is not None:
            self._feed.move(address)
            self._check_feed()
        try:
            with self.signals.held():
                (self.machine.publish or republish)(self.job)
        except OSError as error:
            self.report(
                f"the coordinator is now at {address_text(address)}, but the job's file could not be updated: {error}"
            )

    def _lose(self, error: ClusterError) -> None:
        self._lost = self._lost or error
        self._fail()

    def _fail(self) -> None:
        if self._failing_since is None:
            self._failing_since = self.machine.now()
            self._pusher.stop()

    # The end

    def _on_news(self) -> None:
        self._news.clear()
        self._check_feed()
        self.output.check()
        self._checkpoints.settle()

    def _check_feed(self) -> None:
        """Raise what made the feed fail, unless a stopped job is at its end: workers that end close connections."""
        error = None if self._feed is None else self._feed.error
        coordinator = self.children.at((self.job.host, self.job.port))
        done = coordinator is not None and not coordinator.running  # if another one follows, `_move` asks again
        is_left = self.early_end.is_draining and isinstance(error, PeerLost)
        if error is not None and self._failing_since is None and not done and not is_left:
            raise error

    def _on_signal(self) -> None:
        self.signals.clear()
        self.early_end.drain(self.machine.now(), self._drain_timeout)
        if self.signals.ends_input and not self.signals.received:
            self._pusher.end(self.machine.now())
            return
        self._pusher.stop()
        if self._feed is not None:
            self._feed.stop()
        others = [child.address for child in self.children.members if child.client is not None]
        if any(child.running for child in self.children.all):
            self._stop.ask([(self.job.host, self.job.port), *others])
            self.report(f"stopping: {self._checkpoints.stopping}")
        else:
            self.report("all lines are processed, but some output is not written yet; a second signal discards it")
