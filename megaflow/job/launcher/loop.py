"""The launcher's loop: sends lines to the first worker, merges the outputs of all, notices ends and failures.

One thread and one selector over the children's connections, signals, standard input and the Spark feed.

1. The loop decides nothing about the stream: lines go to the first worker, outputs come back with their epochs.
2. The coordinator may move to another process. The job's file, the Spark feed and the launcher's own requests follow
   it.
3. A job ends when all workers have sent `Ended`, those included that joined later (see
   `megaflow.job.launcher.newcomers`). It fails when a worker fails or is lost. The other processes notice that by
   themselves and get a moment to end; `launch` kills those that are left after it.
"""

import contextlib
import functools
import selectors
import time
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

from megaflow.control import launcher_messages as messages
from megaflow.errors import ClusterError, PeerLost, ProtocolError
from megaflow.job.job_file import Job, republish
from megaflow.job.launcher.children import EXIT_SECONDS, Child, Children
from megaflow.job.launcher.epoch_merge import EpochMerge, Writer
from megaflow.job.launcher.launcher_input import JobInput
from megaflow.job.launcher.line_pusher import LinePusher
from megaflow.job.launcher.newcomers import Newcomers, Start
from megaflow.job.launcher.stop_request import Stop
from megaflow.job.launcher.wakeups import Signals, Wakeup
from megaflow.job.spec import Address
from megaflow.spark.source import SparkFeed
from megaflow.timely.communication.tcp import address_text

GRACE_SECONDS = 3.0  # from the first failure to the end of all processes; promised are 5
SPARK_FAREWELL_SECONDS = 15.0  # for its Java process to end; the feed kills that a little earlier


@dataclass(slots=True)
class RunSummary:
    """What a run came to."""

    lines: int = 0
    records: int = 0
    seconds: float = 0.0
    interrupted: bool = False  # by Ctrl-C
    latency: list[messages.LatencyWindow] = field(default_factory=list)  # of all workers
    flows: list[tuple[float, float]] = field(default_factory=list)  # when each worker's lines flowed

    @property
    def flow_seconds(self) -> float:
        """From the first line read to the last epoch closed, on one machine; without the processes' start."""
        return max(end for _, end in self.flows) - min(begin for begin, _ in self.flows) if self.flows else 0.0


@dataclass(eq=False)
class Loop:
    """The launcher while the job runs."""

    children: Children
    start: InitVar[Start]
    job_input: InitVar[JobInput]
    writer: Writer
    signals: Signals
    report: Callable[[str], None]  # tells the user
    job: Job  # as it is published; written when the coordinator moves

    def __post_init__(self, start: Start, job_input: JobInput) -> None:
        job, report = self.job, self.report
        self._merge = EpochMerge(worker for child in self.children.members for worker in child.workers)
        self._summary = RunSummary()
        self._failures: list[str] = []  # what workers reported, the first one first
        self._failing_since: float | None = None  # seconds of time.monotonic()
        self._lost: ClusterError | None = None  # a worker that cannot be connected to
        self._connect_timeout_seconds = 0.0
        self._selector = selectors.DefaultSelector()
        self._pusher = LinePusher(job_input.pushed, self.children.all[0], self._selector)
        self._newcomers = Newcomers(self.children, start, self._selector, self._answer, self._await, self._lose)
        self._secret = job.secret.encode()
        self._stop = Stop(self._secret, report)
        self._feed: SparkFeed | None = None
        self._feed_changed = Wakeup()
        if job_input.spark is not None:
            self._feed = SparkFeed(job_input.spark, (job.host, job.port), self._secret, self._feed_changed.wake, report)

    def close(self) -> None:
        """Close what is open; the Spark session ends."""
        if self._feed is not None:
            self._feed.stop()
            self._feed.join(SPARK_FAREWELL_SECONDS)
        self._stop.close()
        self._newcomers.close()
        self._selector.close()
        self._feed_changed.close()

    def run(self, connect_timeout_seconds: float) -> RunSummary:
        """Serve until all children are done. Raises what made the job fail."""
        self._connect_timeout_seconds = connect_timeout_seconds
        self._connect()
        self.signals.can_drain = True
        for child in self.children.members:
            self._listen(child)  # what came with the handshake's last bytes
        while self._newcomers.connecting or any(child.client is not None for child in self.children.all):
            self._pusher.watch()
            timeout = self._timeout()
            if self._failing_since is not None and timeout == 0.0:
                break
            for key, _ in self._selector.select(timeout):
                key.data()
            if self._pusher.is_ready:
                self._pusher.push()
        self._judge()
        return self._summary

    def _connect(self) -> None:
        """Connect to all children, and start the Spark feed; the job fails if a child does not answer."""
        for child in self.children.members:
            try:
                client = child.connect(self._secret, self._connect_timeout_seconds)
            except ClusterError as error:
                self._lose(error)
                return
            self._selector.register(client, selectors.EVENT_READ, functools.partial(self._listen, child))
            self._newcomers.watch(child)
        self._selector.register(self.signals, selectors.EVENT_READ, self._on_signal)
        self._selector.register(self._feed_changed, selectors.EVENT_READ, self._on_feed)
        if self._feed is not None:
            self._feed.start()

    def _timeout(self) -> float | None:
        if self._failing_since is not None:
            return max(0.0, self._failing_since + GRACE_SECONDS - time.monotonic())
        return 0.0 if self._pusher.is_ready else None

    def _judge(self) -> None:
        """Wait for the processes to exit; raise what made the job fail, if it did."""
        self.children.kill(child for child in self.children.all if not child.is_member)  # too late for the job
        timeout = self._timeout() if self._failing_since is not None else EXIT_SECONDS
        self.children.wait_for_exit(timeout or 0.0)
        error = self.children.blame(self._failures) or self._lost
        if error is not None:
            raise error

    # Children

    def _listen(self, child: Child) -> None:
        if child.client is None:
            return
        wrote = False
        try:
            for message in child.client.receive_available():
                wrote |= self._take(child, message)
        except PeerLost:
            self._selector.unregister(child.client)
            child.close()
            if child.running:
                self._fail()
            self.children.forget_ended()
        if wrote:
            self.writer.flush()

    def _take(self, child: Child, message: Any) -> bool:
        """Act on a message of a child; return whether something was written."""
        match message:
            case messages.OutputBatch():
                self._merge.add(message)
            case messages.OutputClosed():
                return self._write_closed(message)
            case messages.LinesTaken(count):
                self._pusher.window.taken(count)
            case messages.Ended(worker, lines, records, latency, flow):
                child.running.discard(worker)
                self._summary.lines += lines
                self._summary.records += records
                self._summary.latency += latency
                if flow is not None:
                    self._summary.flows.append(flow)
                return self._write_closed(messages.OutputClosed(worker, None))  # if the worker had no room for it
            case messages.Failed(_, text):
                child.failure = text
                self._failures.append(text)
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
                self.report(f"{child} has joined")
            case _:
                raise ProtocolError(f"{child} sent {message!r:.100}, which is not for the launcher")
        return False

    def _write_closed(self, closed: messages.OutputClosed) -> bool:
        epochs = self._merge.close(closed)
        for epoch, records in epochs:
            self.writer.write(epoch, records)
        return bool(epochs)

    def _await(self, child: Child) -> None:
        """Listen to a child that joined later."""
        assert child.client is not None
        self._selector.register(child.client, selectors.EVENT_READ, functools.partial(self._listen, child))
        self._listen(child)

    def _answer(self, answer: messages.Started | messages.StartFailed) -> None:
        """Tell the coordinator about processes that it has asked for."""
        if isinstance(answer, messages.StartFailed):
            self.report(f"{answer.reason}; the job goes on without it")
        coordinator = self.children.at((self.job.host, self.job.port))
        client = None if coordinator is None else coordinator.client
        if client is not None:
            with contextlib.suppress(PeerLost):  # noticed where it is read
                client.send(answer)

    def _move(self, address: Address) -> None:
        """Note where the coordinator is from now on, and publish it."""
        self.job = replace(self.job, host=address[0], port=address[1])
        if self._feed is not None:
            self._feed.move(address)
            self._check_feed()
        try:
            with self.signals.held():
                republish(self.job)
        except OSError as error:
            self.report(f"the coordinator is now at {address_text(address)}; the job's file was not updated: {error}")

    def _lose(self, error: ClusterError) -> None:
        self._lost = self._lost or error
        self._fail()

    def _fail(self) -> None:
        if self._failing_since is None:
            self._failing_since = time.monotonic()
            self._pusher.stop()

    # The end

    def _on_feed(self) -> None:
        self._feed_changed.clear()
        self._check_feed()

    def _check_feed(self) -> None:
        """Raise what made the feed fail, but not at the end of a job that was stopped, whose workers have left it.

        The coordinator is done before the job is only if another one follows: `_move` asks again.
        """
        coordinator = self.children.at((self.job.host, self.job.port))
        done = coordinator is not None and not coordinator.running
        if self._feed is not None and self._feed.error is not None and self._failing_since is None and not done:
            raise self._feed.error

    def _on_signal(self) -> None:
        self.signals.clear()
        self.report("stopping: lines that were read are finished; a second signal kills the job")
        self._pusher.stop()
        if self._feed is not None:
            self._feed.stop()
        others = [child.address for child in self.children.members if child.client is not None]
        self._stop.ask([(self.job.host, self.job.port), *others])
