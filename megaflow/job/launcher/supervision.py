"""The lives of a job: it ends with the first, unless it is durable; then lost processes are followed by a next life.

A life is what runs from the start of processes to their end, and the launcher's `Loop` beside them. Name, job file,
side door, signals, store and output are the job's, through all lives.

1. A next life follows only a loss: not an error of the program's or of ours, which would come again; not if the job was
   told to stop, or is ended by force; and not if `restarts` of them have followed each other without a checkpoint
   between that was committed. The first comes at once; the wait before the others doubles with each. What kills a
   process again and again, but later than the next checkpoint, is no reason to go on for ever: OFTEN times as many
   losses end the job, if they come within OFTEN_SECONDS.
2. Nothing of two lives overlaps. First all processes that the launcher has started are dead, and waited for; or they
   stay: all that they were is over, and they wait for a part in the next life (see `megaflow.job.worker.memory`). They
   are kept after the first of losses in a row, if Spark does not feed the job. Then the store begins a new incarnation,
   by a commit, after what was being committed. Then the output is cut back to what that commit says; this stands in its
   queue before anything of the next life. Only then are processes started, or told their parts.
3. A process that was started by hand has lost its connections, and ends by itself. Whatever it still writes bears the
   incarnation that is over, so no commit names it.
4. As many processes go on, or are started, as the launcher had at that moment, on its own machine at the same
   addresses (see `place`); the first of them is where the job was coordinated, if that is one of these. Whoever asks
   there meanwhile is served then. The job's file says that the job recovers, until the launcher is connected to all.
   If the job is to shrink, those that are lost do not count, unless all are: as many as before are started then. That
   is a restart as any other. Who was not lost and does not stay is replaced: too slow, or the second loss in a row.
5. Ctrl-C in between is final: what is to be kept is kept already.
6. As the loop, it yields where it waits (`lives`), so that a simulation can put all else that happens in between.
"""

import selectors
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from megaflow.control.wording import quantity
from megaflow.errors import (
    ClusterError,
    MegaflowError,
    OutputError,
    PeerFailed,
    ProtocolError,
    StoreDamaged,
    StoreError,
    StoreFenced,
    StoreUnfit,
)
from megaflow.job.job_file import Job, republish
from megaflow.job.launcher.children import Children
from megaflow.job.launcher.early_end import FORCED, EarlyEnd
from megaflow.job.launcher.loop import Loop
from megaflow.job.launcher.machine import Machine
from megaflow.job.launcher.newcomers import Arrivals
from megaflow.job.launcher.output_queue import OutputQueue
from megaflow.job.launcher.resumption import Resumption, go_on, resumption_text
from megaflow.job.launcher.run_summary import RunSummary, unfinished_texts
from megaflow.job.launcher.store_keeper import StoreKeeper
from megaflow.job.launcher.wakeups import Signals
from megaflow.job.spec import Address, JobSpec

WAIT_SECONDS: Final = 0.2  # before a second restart in a row: what has killed a process may last a moment
WAIT_SECONDS_MAX: Final = 5.0
SEEK_SECONDS: Final = 0.1  # until it is looked again whether processes can be started
OFTEN: Final = 10  # losses for each of `restarts`; by default one every 20 seconds
OFTEN_SECONDS: Final = 600.0


def is_loss(error: BaseException) -> bool:
    """Tell whether a job that ended by this may succeed if it goes on: it is no error of the program's, or of ours."""
    if isinstance(error, StoreFenced):
        return False  # another launcher goes on
    is_any = isinstance(error, ClusterError | StoreError | OutputError)
    return is_any and not isinstance(error, PeerFailed | ProtocolError | StoreUnfit | StoreDamaged)


class Starter(Protocol):
    """Starts the processes of a life, which has begun with `begun`."""

    def seek(self, begun: Resumption, again: Sequence[Address]) -> None:
        """Look for seats of those that found the job, in the place of those that listened there. Raises OSError."""

    def settled(self) -> Sequence[Address] | None:
        """Return where they will listen, None as long as that is not known. Raises MegaflowError or OSError."""

    def found(self, begun: Resumption, addresses: Sequence[Address]) -> None:
        """Start those that found the job, each to listen at one of these addresses. Raises OSError."""

    def start(
        self, begun: Resumption, count: int, contact: Address, other_code: bool, wake: Callable[[], None]
    ) -> Arrivals:
        """Start so many that join through a contact, perhaps with other code. Raises MegaflowError or OSError.

        `wake` is called, by any thread, when there is something new of those that could not be started at once.
        """


@dataclass(eq=False)
class Supervision:
    """The lives of one job. All is the launcher's thread's."""

    spec: JobSpec
    children: Children
    starter: Starter
    begun: Resumption  # what the present life began with
    output: OutputQueue
    signals: Signals
    report: Callable[[str], None]  # tells the user
    job: InitVar[Job]
    early_end: EarlyEnd
    machine: Machine = field(default_factory=Machine)
    keeper: StoreKeeper | None = None  # None: nothing is durable
    loop: Loop = field(init=False)  # of the present life
    selector: selectors.BaseSelector = field(init=False)  # for whoever drives `lives`, to wait

    def __post_init__(self, job: Job) -> None:
        self._warned: set[str] = set()  # what the user was told once
        self._job = job  # as it was when the present life began
        self._losses = 0  # without a committed checkpoint between
        self._lost_at: deque[float] = deque()  # seconds of the clock, of the last OFTEN_SECONDS
        self._since = 0 if self.keeper is None else self.keeper.latest.checkpoint  # that the present life began with

    def begin(self, addresses: Sequence[Address]) -> None:
        """Start the processes of a life, at these addresses; the first coordinates the job."""
        with self.signals.held():
            self.children.coordinator = addresses[0]
            self.starter.found(self.begun, addresses)
            start = partial(self.starter.start, self.begun)
            self.loop = Loop(
                self.children, start, self.begun.job_input, self.output, self.signals, self.report, self._job,
                self.early_end, self.machine, self.keeper, self._warned,
            )  # fmt: skip
            self.selector = self.loop.selector

    def close(self) -> None:
        """Close what is open; the Spark session ends."""
        self.loop.close()

    def run(self) -> RunSummary:
        """Serve until the job has ended. Raises what made it fail."""
        for seconds in self.lives():
            self.selector.select(seconds)
        self.loop.summary.since = (self._since or None) if self._job.life > 1 else None
        self.signals.can_drain = False  # nothing is left to be drained: the next signal is final
        return self.loop.summary

    def lives(self) -> Iterator[float | None]:
        """Do what `run` does, but yield how long to wait for what `selector` tells; None for without limit."""
        while True:
            try:
                for seconds in self.loop.life(self.spec.connect_timeout_seconds, self.spec.drain_timeout):
                    if self.loop.job.recovering:
                        self.loop.job = self._published(replace(self.loop.job, recovering=""))
                    yield seconds
                is_kept, stopped = self.keeper is not None, self.early_end.is_draining
                for text in unfinished_texts(self.loop.summary, is_kept, stopped):
                    self.report(text)
                return
            except ClusterError as error:
                if self.keeper is None or not self._may_go_on(error):
                    raise
                loss = error
            yield from self._recover(loss, self.keeper)

    def _may_go_on(self, error: ClusterError) -> bool:
        """Tell whether a next life may follow what has ended the present one."""
        told = bool(self.signals.received) or self.early_end.is_draining or self.early_end.has_come
        return is_loss(error) and not told and self.spec.restarts > 0

    def _recover(self, loss: ClusterError, keeper: StoreKeeper) -> Iterator[float | None]:
        """End a life, and begin the next one. Raises what keeps that from being."""
        with self.signals.held():
            self.signals.can_drain = self.early_end.is_served = False
            is_first = self._losses == 0 or keeper.latest.checkpoint > self._since
            keeping = is_first and not self.begun.job_input.spark_queries
            had = len(self.children.own)
            addresses = self.children.begin_anew(keeping, self.spec.shrink)
            kept, places = self.children.kept(addresses, self.spec.workers), self.children.places(addresses)
        self.loop.close()
        if not addresses:
            raise loss
        self.selector, news = self.machine.selector(), self.machine.wakeup()
        try:
            self.selector.register(news, selectors.EVENT_READ, news.clear)
            for part in (keeper, self.output):
                part.start(news.wake)
            self.early_end.wake = news.wake
            keeper.begin_anew()
            while (commit := keeper.begun_anew()) is None:
                yield from self._wait(None)
            self._count(loss, commit.checkpoint)
            self.output.cut_back(keeper.length)
            try:
                self.begun = go_on(self.begun, keeper, self._since, self.spec, kept, places)
            except MegaflowError as error:
                raise type(error)(f"{loss}; {error}") from loss
            self._since = commit.checkpoint
            restart = f"restart {self._losses} of {self.spec.restarts}"
            if len(addresses) < had:
                restart += f" with {quantity(len(addresses), 'process')}"
            job = self.loop.job
            self._job = self._published(
                replace(job, host=addresses[0][0], port=addresses[0][1], life=job.life + 1, recovering=restart)
            )
            text = resumption_text(commit, commit.written_at, 0, self.machine.wall())
            self.report(f"{loss}; {restart}: {text}{self.begun.gone}")
            wait = min(WAIT_SECONDS * 2 ** (self._losses - 2), WAIT_SECONDS_MAX) if self._losses > 1 else 0.0
            due = self.machine.now() + wait
            while (left := due - self.machine.now()) > 0:
                yield from self._wait(left)
            try:
                self.starter.seek(self.begun, addresses)
                while (settled := self.starter.settled()) is None:
                    yield from self._wait(SEEK_SECONDS)
            except (ClusterError, OSError) as error:
                raise ClusterError(f"{loss}; no other process can be started: {error}") from error
            if list(settled) != addresses:
                host, port = settled[0]
                self._job = self._published(replace(self._job, host=host, port=port))
        finally:
            self.selector.close()
            news.close()
        try:
            self.begin(settled)
        except OSError as error:
            raise ClusterError(f"{loss}; no other process can be started: {error}") from error

    def _wait(self, seconds: float | None) -> Iterator[float | None]:
        yield seconds
        for key, _ in self.selector.select(0.0):
            key.data()
        self.output.check()
        if self.early_end.is_forced:
            raise ClusterError(FORCED)

    def _count(self, loss: ClusterError, checkpoint: int) -> None:
        """Count a loss. Raises ClusterError if it is one too many."""
        if checkpoint > self._since:
            self._losses = 0
        if self._losses == self.spec.restarts:
            raise ClusterError(f"{loss}; no checkpoint was taken since restart 1 of {self._losses}") from loss
        now = self.machine.now()
        self._lost_at.append(now)
        while self._lost_at[0] < now - OFTEN_SECONDS:
            self._lost_at.popleft()
        if (often := len(self._lost_at)) > OFTEN * self.spec.restarts:
            within = f"{often} times within {OFTEN_SECONDS / 60:g} minutes"
            raise ClusterError(f"{loss}; processes were lost {within}, so the job does not restart by itself")
        self._losses += 1

    def _published(self, job: Job) -> Job:
        """Publish where the job is, and whether it recovers; return it."""
        try:
            with self.signals.held():
                (self.machine.publish or republish)(job)
        except OSError as error:
            self.report(f"the job's file could not be updated: {error}")
        return job
