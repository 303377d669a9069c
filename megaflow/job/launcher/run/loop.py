"""The launcher's loop: it sends lines to the coordinator, merges all outputs, and notices ends and failures.

The loop has one thread, and one selector over the children's connections, signals, and the wakeups of other threads.
Those threads read the lines, write the outputs, feed Spark's lines, connect to newcomers, and request the end.

1. The loop decides nothing about the stream: lines go to one worker, and outputs come back with their epochs.
2. The coordinator may move to another process. Lines, the job's file, the Spark feed and the launcher's own requests
   follow it.
3. A job ends when all workers have sent `Ended`, including those that joined later (see
   `megaflow.job.launcher.run.newcomers`). It fails when a worker fails or is lost. The other processes notice that by
   themselves and have GRACE_SECONDS to end. `launch` kills processes that are left after that.
4. The loop waits only in its selector. So it notices signals, lost workers and requests at once, even if something else
   hangs: the source of the lines, the reader of the outputs, or a worker in user code that does not read its messages.
   Unsent messages wait in the `Client` of their receiver. LinePusher's window keeps them few.
5. Only the loop writes the state here. The threads have their own state, in LineReader and OutputQueue, and wake the
   loop by `_news`.
6. The loop runs on the thread of `launch`. Only this thread starts processes, because they end with the thread that
   started them, and only this thread learns of signals.
7. After the last process has ended, the loop continues until the outputs are written, so a signal still reaches it.
8. The loop uses its machine only through `Machine`. It yields where it waits (`turns`), so that a simulation can run
   everything else in between.
9. A durable job may have several attempts, each with its own loop: see `megaflow.job.launcher.run.supervision`.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

from megaflow.control import launcher_messages as messages
from megaflow.control.checkpoint_messages import SinksCommitted
from megaflow.control.wording import Notice
from megaflow.errors import (
    ClusterError,
    MegaflowError,
    Outage,
    PeerFailed,
    PeerLost,
    ProtocolError,
    SourceLost,
    StoreUnfit,
)
from megaflow.job.job_file import Job
from megaflow.job.launcher.inputs.launcher_input import JobInput
from megaflow.job.launcher.inputs.line_pusher import LinePusher
from megaflow.job.launcher.outputs.epoch_merge import EpochMerge
from megaflow.job.launcher.processes.busy_workers import is_in_a_step
from megaflow.job.launcher.processes.child_process import EXIT_SECONDS, Child
from megaflow.job.launcher.processes.drain_limit import FORCED
from megaflow.job.launcher.run.checkpointing import Checkpointing
from megaflow.job.launcher.run.machine import JobParts
from megaflow.job.launcher.run.newcomers import Newcomers, Start
from megaflow.job.launcher.run.run_summary import RunSummary
from megaflow.job.spec import Address
from megaflow.spark import launching as spark
from megaflow.timely.communication.address import address_text

GRACE_SECONDS = 3.0  # from the first failure to the end of all processes; 5 s are promised
TOLD_SECONDS = 5.0  # for processes that were started by hand to learn of a stop
SPARK_FAREWELL_SECONDS = 15.0  # for Spark's Java process to end; the feed kills it a little earlier


@dataclass(eq=False)
class Loop:
    """The launcher while one attempt of the job runs."""

    parts: JobParts
    start: InitVar[Start]
    job_input: InitVar[JobInput]
    job: Job  # as published; the loop replaces it when the coordinator moves
    warned: set[str] = field(default_factory=set)  # subjects of the warnings that the user has had

    def __post_init__(self, start: Start, job_input: JobInput) -> None:
        job, report, machine = self.job, self.parts.report, self.parts.machine
        self._merge = EpochMerge(worker for child in self.parts.children.members for worker in child.workers)
        self.summary = RunSummary()
        self._failures: list[MegaflowError] = []  # that workers reported, in order
        self._failing_since: float | None = None  # seconds of the machine's clock
        self._lost: ClusterError | None = None  # why a worker could not be connected to
        self._connect_timeout_seconds = 0.0
        self._drain_timeout: float | None = None  # seconds
        self.selector = machine.selector()  # the caller of `turns` waits in it
        self._news = machine.wakeup()  # from threads
        self._readers = {name: machine.reader(each, self._news.wake) for name, each in job_input.pushed.items()}
        self._pusher = LinePusher(self._readers, self.parts.children.all[0], self._send)
        self._is_holding = False  # the workers must send no outputs
        self._untold: list[Child] = []  # that do not know of the stop
        hands = self.selector, self._answer, self._await, self._lose
        self._newcomers = Newcomers(self.parts.children, start, *hands, machine)
        self._secret = job.secret.encode()
        self._stop = machine.stop(self._secret, report)
        self.parts.drain_limit.wake = self._news.wake
        self._checkpoints = Checkpointing(self.parts, self._merge.mark, self._tell, self._tell_all)
        self._feed: spark.SparkFeed | None = None
        if job_input.spark is not None:
            contact = (job.host, job.port), self._secret, self._news.wake, report, job.name
            self._feed = machine.feed(job_input.spark, *contact)

    def waits_text(self) -> str:
        """Return what the job waits for in Spark; "" for nothing. Any thread."""
        return "" if self._feed is None else self._feed.waits_text()

    def close(self) -> None:
        """Stop the feed and the readers, and close what is open; ends the Spark session."""
        if self._feed is not None:
            self._feed.stop()
            self._feed.join(SPARK_FAREWELL_SECONDS)
        for reader in self._readers.values():
            reader.close()
        self._stop.close()
        self._newcomers.close()
        self.selector.close()
        self._news.close()

    def turns(self, connect_timeout_seconds: float, drain_timeout: float | None) -> Iterator[float | None]:
        """Serve until all children have ended; yield the seconds to wait for the selector, None: without limit.

        The result is in `summary`. Raises the error that made the job fail.
        """
        self._connect_timeout_seconds, self._drain_timeout = connect_timeout_seconds, drain_timeout
        self._connect()
        self.parts.signals.can_drain = self.parts.drain_limit.is_served = True
        for child in self.parts.children.members:
            self._listen(child)  # messages that came with the last bytes of the handshake
        while self._checkpoints.stopped is None and (
            self._newcomers.connecting or any(child.client is not None for child in self.parts.children.all)
        ):
            if (seconds := self._turn()) is not None and seconds < 0:
                break
            yield seconds
            self._attend()
        self._checkpoints.sum_up(self.summary)
        if self.summary.stopped_at is None:
            self._judge()
        else:
            yield from self._tell_of_stop(self.summary.stopped_at)
            self.parts.children.kill(self.parts.children.all)  # the next run reads again what they had
        self._checkpoints.end()
        self.parts.output.finish()
        while not self.parts.output.is_finished or self._checkpoints.is_waiting:
            yield self._turn()
            self._attend()

    def _tell_of_stop(self, checkpoint: int) -> Iterator[float]:
        """Tell the processes that were started by hand, which this one cannot end; yield until they know."""
        deadline = self.parts.machine.now() + TOLD_SECONDS
        self._untold = [child for child in self.parts.children.members if child.process is None]
        for child in self._untold:
            self._send(child, messages.JobStopped(checkpoint))
        while any(child.client is not None for child in self._untold):
            if (left := deadline - self.parts.machine.now()) <= 0:
                break
            yield left
            self._attend()

    def _attend(self) -> None:
        """Handle the events of the selector."""
        for key, _ in self.selector.select(0.0):
            key.data()

    def _turn(self) -> float | None:
        """Do the work that is due; return the seconds to wait, below 0 when the grace time of a failed job is over."""
        now = self.parts.machine.now()
        has_more = self._pusher.push(now)
        if self._pusher.is_drained:
            self.parts.signals.input_ended.set()
        if self.parts.output.is_full is not self._is_holding:
            self._hold(self.parts.output.is_full)
        if self._failing_since is not None:
            grace = self._failing_since + GRACE_SECONDS - now
            return min(0.0, grace) if has_more else grace
        lives = any(child.running for child in self.parts.children.all)
        left = self._pusher.window.lines, self.parts.output.records
        self.parts.drain_limit.turn(now, (self.job.host, self.job.port) if lives else None, left)
        waits = [each.wait_seconds(now) for each in (self.parts.drain_limit, self._pusher)]
        return 0.0 if has_more else min((wait for wait in waits if wait is not None), default=None)

    def _connect(self) -> None:
        """Connect to all children, start the threads and the Spark feed; a child that does not answer fails the job."""
        children = self.parts.children
        for child in children.members:
            try:
                is_at_work = functools.partial(is_in_a_step, child)
                client = child.connect(self._secret, self._connect_timeout_seconds, is_at_work, children.have_lost)
            except ClusterError as error:
                self._lose(error)
                return
            self.selector.register(client, selectors.EVENT_READ, functools.partial(self._listen, child))
            self._newcomers.watch(child)
        self.selector.register(self.parts.signals, selectors.EVENT_READ, self._on_signal)
        self.selector.register(self._news, selectors.EVENT_READ, self._on_news)
        self.parts.output.start(self._news.wake)
        self._checkpoints.start(self._news.wake)
        for reader in self._readers.values():
            reader.start()
        if self._feed is not None:
            self._feed.start()

    def _judge(self) -> None:
        """Wait for the processes to exit; raise the error that made the job fail, if any."""
        children = self.parts.children
        children.kill(child for child in children.all if not child.is_member)  # these come too late to join
        failing = self._failing_since
        timeout = EXIT_SECONDS if failing is None else failing + GRACE_SECONDS - self.parts.machine.now()
        children.wait_for_exit(max(0.0, timeout))
        error = children.blame(self._failures, self._lost)
        if error is not None and self.parts.drain_limit.is_forced:
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
            self.parts.children.forget_ended()

    def _send(self, child: Child, message: object) -> None:
        """Send a message to a child without blocking; nothing happens if the child is gone."""
        if child.client is not None and child not in self._newcomers.connecting:
            with contextlib.suppress(PeerLost):  # noticed where it is read
                child.client.post(message)
            self._await_writable(child)

    def _await_writable(self, child: Child) -> None:
        """Select for writing to a child while it has unsent messages."""
        assert child.client is not None
        events = selectors.EVENT_READ | selectors.EVENT_WRITE if child.client.has_unsent else selectors.EVENT_READ
        key = self.selector.get_key(child.client)
        if key.events != events:
            self.selector.modify(child.client, events, key.data)

    def _hold(self, hold: bool) -> None:
        """Make all workers hold their outputs, or release them."""
        self._is_holding = hold
        self._tell_all(messages.HoldOutput(hold))

    def _take(self, child: Child, message: Any) -> None:
        """Handle a message of a child."""
        match message:
            case messages.OutputBatch():
                self._merge.add(message)
            case messages.OutputClosed():
                self.parts.output.put(self._merge.close(self._checkpoints.counted(message)))
            case messages.LinesTaken(count):
                self._pusher.window.taken(count)
            case messages.Ended(worker, cut=cut, sinks=sinks, deadline=deadline):
                if not self._checkpoints.ended(cut, sinks, worker, deadline):
                    child.running.discard(worker)
                self.summary.add(message)
                self.parts.output.note_end(message)
                self.parts.output.put(self._merge.close(messages.OutputClosed(worker, None)))  # if it has not sent that
                self._checkpoints.end_if_all_have(child.running for child in self.parts.children.members)
            case SinksCommitted(worker):
                if self._checkpoints.sinks_committed(message):
                    child.running.discard(worker)
            case messages.ToldOnce(_, about, text):
                if about not in self.warned:
                    self.warned.add(about)
                    self.parts.report(text)
            case messages.StopNoted():
                self._untold.remove(child)
            case messages.Draining():
                self.parts.drain_limit.drain(self.parts.machine.now(), self._drain_timeout)
            case messages.Failed(_, text, unfit, raised, passes):
                child.failure = text
                failure = StoreUnfit(text) if unfit else Outage(text) if passes else PeerFailed(text, raised)
                self._failures.append(failure)
                self._fail()
            case messages.StartProcesses():
                self._newcomers.start(message)
            case messages.CancelStarts(reason):
                self._newcomers.cancel_waiting(reason)
            case messages.EndProcess():
                self._newcomers.end(message)
            case messages.TryToReach(host, port):
                self._newcomers.reach((host, port))
            case messages.Coordinates(host, port):
                self._move((host, port))
                self._pusher.move(child)
            case messages.ProcessJoined(workers=workers):
                self._merge.join(workers)  # before any output
                child = self._newcomers.joined(message, self._secret, self._connect_timeout_seconds)
                self.parts.report(Notice(f"{child} {'have' if len(workers) > 1 else 'has'} joined"))
            case _ if not self._checkpoints.take(message):
                raise ProtocolError(f"{child} sent {message!r:.100}, which is not for the launcher")

    def _await(self, child: Child) -> None:
        """Start to listen to a child that joined later."""
        assert child.client is not None
        self.selector.register(child.client, selectors.EVENT_READ, functools.partial(self._listen, child))
        if self._is_holding:
            self._send(child, messages.HoldOutput(True))
        self._listen(child)

    def _answer(
        self, answer: messages.Started | messages.StartFailed | messages.StartWaits | messages.Reached
    ) -> None:
        """Answer a request of the coordinator for processes, or about one."""
        if isinstance(answer, messages.StartFailed):
            self.parts.report(f"{answer.reason}; the job continues without it")
        self._tell(answer)

    def _tell(self, message: object) -> None:
        coordinator = self.parts.children.at((self.job.host, self.job.port))
        if coordinator is not None:
            self._send(coordinator, message)

    def _tell_all(self, message: object) -> None:
        for child in self.parts.children.members:
            self._send(child, message)

    def _move(self, address: Address) -> None:
        """Note the new address of the coordinator, and publish it."""
        self.job = replace(self.job, host=address[0], port=address[1])
        self.parts.children.coordinator = address
        if self._feed is not None:
            self._feed.move(address)
            self._check_feed()
        self.parts.published(self.job, f"the coordinator is now at {address_text(address)}, but ")

    def _lose(self, error: ClusterError) -> None:
        self._lost = self._lost or error
        self._fail()

    def _fail(self) -> None:
        if self._failing_since is None:
            self._failing_since = self.parts.machine.now()
            self._pusher.stop()

    # The end

    def _on_news(self) -> None:
        self._news.clear()
        self._check_feed()
        self.parts.output.check()
        self._checkpoints.settle()

    def _check_feed(self) -> None:
        """Raise the feed's error, unless the job is stopped and ends, as it no longer reads it.

        Workers close their connections as they end, and the signal of the stop may also have ended Spark's Java.
        """
        error = None if self._feed is None else self._feed.error
        coordinator = self.parts.children.at((self.job.host, self.job.port))
        done = coordinator is not None and not coordinator.running  # if another one follows, `_move` checks again
        is_left = self.parts.drain_limit.is_draining and isinstance(error, PeerLost | SourceLost)
        if error is not None and self._failing_since is None and not done and not is_left:
            raise error

    def _on_signal(self) -> None:
        with self.parts.signals.held():  # raises afterwards if the job is to end at once
            self.parts.signals.clear()
        self.parts.drain_limit.drain(self.parts.machine.now(), self._drain_timeout)
        if self.parts.signals.ends_input and not self.parts.signals.received:
            self._pusher.end(self.parts.machine.now())
            return
        self._pusher.stop()
        if self._feed is not None:
            self._feed.stop()
        others = [child.address for child in self.parts.children.members if child.client is not None]
        if any(child.running for child in self.parts.children.all):
            self._stop.ask([(self.job.host, self.job.port), *others])
            self.parts.report(Notice(f"stopping: {self._checkpoints.stopping}"))
        else:
            left = "some output is not written yet; a second signal discards it"
            self.parts.report(f"all lines are processed, but {left}")
