"""The attempts of a job: a durable job that loses processes begins a new attempt; every other job ends with its first.

An attempt is the time from the start of processes to their end, with the launcher's `Loop` beside them. Name, job file,
admin socket, signals, store and output belong to the job and outlast its attempts.

1. A new attempt follows only a loss, not an error of the program or of megaflow, which would come again. It also does
   not follow if the job was asked to stop or is ended by force. After a loss, the first new attempt in a row begins at
   once. The second waits for WAIT_SECONDS, and each further wait doubles, up to WAIT_SECONDS_MAX. A committed
   checkpoint ends the row. Two limits end the job:
   - `restarts` new attempts in a row. If in all these losses the processes ended by themselves (they exited, crashed,
     or exhausted a memory limit), the job raises KeepsFailing, because the same command would fail again.
   - More than OFTEN losses per unit of `restarts` within OFTEN_SECONDS. Otherwise a process that is killed again and
     again, each time after another checkpoint, would restart forever.
2. Attempts do not overlap. First every process that the launcher has started has ended and was waited for, or it stays.
   A process that stays has closed everything of the old attempt, and waits for a part in the next one (see
   `megaflow.job.worker.snapshots.local_recovery`). Processes stay only after the first loss in a row, and only if Spark
   does not feed the job. Then the store finishes the commit in progress and begins a new incarnation, by a commit. Then
   the output is cut back to the length in that commit; the output's queue does this before it writes anything of the
   next attempt. Only then are processes started or given their parts.
3. A process that was started by hand has lost its connections, and ends by itself. Everything that it still writes has
   the old incarnation, so no commit names it.
4. The new attempt has as many processes as the old one, without those that were started by hand or had left the job. On
   the launcher's own machine they have the same addresses (see `provisioner`). The first is at the coordinator's
   address, if the coordinator was one of them. Requests that arrive there meanwhile are answered when it runs. The
   job's file shows that the job recovers until the launcher has connected to all processes. A shrinking job does not
   replace lost processes, unless it lost all: then it starts as many as before. If Spark has fewer slots for longer
   than FIT_SECONDS, it starts those that fit. Any other job waits for slots. This counts like any other restart.
   Processes that were not lost but do not stay are replaced: the slow ones, and all of them at the second loss in a
   row.
5. Ctrl-C during recovery is final, because everything worth keeping is already in the store. For the same reason, a
   stop during the wait for processes ends the job at once, as a stop at the checkpoint in the store.
6. `turns` yields wherever it waits, as the loop does. So a simulation can run everything else in between.
"""

from __future__ import annotations

import errno
import selectors
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Final

from megaflow import errors
from megaflow.control.wording import quantity
from megaflow.durable.commits import Commit
from megaflow.errors import ClusterError, KeepsFailing, LimitReached, MegaflowError, OutputError, StoreError, notes_of
from megaflow.job.job_file import Job
from megaflow.job.launcher import store
from megaflow.job.launcher.inputs.launcher_input import Resumption
from megaflow.job.launcher.processes.children import STOPPED
from megaflow.job.launcher.processes.drain_limit import FORCED
from megaflow.job.launcher.run.loop import Loop
from megaflow.job.launcher.run.machine import JobParts
from megaflow.job.launcher.run.process_starter import ProcessStarter
from megaflow.job.launcher.run.run_summary import RunSummary, unfinished_texts
from megaflow.job.log_records import LogPlace, places
from megaflow.job.spec import Address, JobSpec

WAIT_SECONDS: Final = 0.2  # before a second restart in a row: the cause may last a moment
WAIT_SECONDS_MAX: Final = 5.0
SEEK_SECONDS: Final = 0.1  # between two checks whether processes can be started
FIT_SECONDS: Final = 5.0  # for another executor to take the place of a lost one
OFTEN: Final = 10  # losses per unit of `restarts`; by default one every 20 seconds
OFTEN_SECONDS: Final = 600.0

FINAL: Final = (
    errors.PeerFailed, errors.ProtocolError, errors.ConfigMismatch, errors.GraphMismatch, KeepsFailing,
    errors.StoreFenced,  # another launcher has the job
    errors.StoreUnfit, errors.StoreDamaged, errors.RecordRefused,
)  # fmt: skip
LASTING: Final = (errno.EFBIG, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR)  # until a user changes something


def is_loss(error: BaseException) -> bool:
    """Return whether a job may succeed if it resumes after this error. It cannot after a program error or a bug."""
    if isinstance(error, FINAL):
        return False
    if isinstance(error, OutputError | StoreError) and isinstance(error.__cause__, OSError):
        return error.__cause__.errno not in LASTING
    return isinstance(error, ClusterError | StoreError | OutputError)


def no_other_process(loss: ClusterError, error: Exception) -> ClusterError:
    """Return the error for a loss after which the next attempt cannot start its processes.

    >>> print(no_other_process(ClusterError("worker 0 was lost: Spark ended"), ClusterError("Spark ended.")))
    worker 0 was lost: Spark ended; no other process can be started
    >>> print(no_other_process(ClusterError("worker 0 was lost: it was killed"), ClusterError("Spark ended.")))
    worker 0 was lost: it was killed; no other process can be started: Spark ended
    """
    reason = str(error).rstrip(".")
    why = "" if reason in str(loss) else f": {reason}"
    return ClusterError(f"{loss}; no other process can be started{why}")


@dataclass(eq=False)
class Supervision:
    """The attempts of one job. Only the launcher's thread uses it."""

    spec: JobSpec
    parts: JobParts
    starter: ProcessStarter
    begun: Resumption  # with this the present attempt began
    job: InitVar[Job]
    loop: Loop = field(init=False)  # of the present attempt
    selector: selectors.BaseSelector = field(init=False)  # the driver of `turns` waits on it

    def __post_init__(self, job: Job) -> None:
        self._warned: set[str] = set()  # warnings already given
        self._job = job  # at the start of the present attempt
        self._input_waits: Callable[[], str] = str  # of the present attempt
        self._losses = 0  # without a committed checkpoint between
        self._by_itself = True  # in all these losses processes ended by themselves
        self._lost_at: deque[float] = deque()  # clock seconds of losses in the last OFTEN_SECONDS
        keeper = self.parts.keeper
        self._since = 0 if keeper is None else keeper.latest.checkpoint  # at the start of this attempt

    def begin(self, addresses: Sequence[Address]) -> None:
        """Start the processes of an attempt at these addresses; the first coordinates the job."""
        part = self.begun.part
        places.here = LogPlace(self._job.name, None, 0 if part is None else part.incarnation)
        with self.parts.signals.held():
            self.parts.children.coordinator = addresses[0]
            self.starter.found(self.begun, addresses)
            start = partial(self.starter.start, self.begun)
            self.loop = Loop(self.parts, start, self.begun.job_input, self._job, self._warned)
            self.selector, self._input_waits = self.loop.selector, self.loop.waits_text

    def waits_text(self) -> str:
        """Return what the input of the present attempt waits for; "" for nothing. Any thread."""
        return self._input_waits()

    def close(self) -> None:
        """Close the loop."""
        self.loop.close()

    def run(self) -> RunSummary:
        """Serve until the job has ended. Raises the error that made it fail."""
        for seconds in self.turns():
            self.selector.select(seconds)
        self.loop.summary.since = (self._since or None) if self._job.attempt > 1 else None
        self.loop.summary.restarts = max(0, self._job.attempt - 1)
        self.parts.signals.can_drain = False  # nothing is left to drain: the next signal is final
        return self.loop.summary

    def turns(self) -> Iterator[float | None]:
        """Do what `run` does, but yield seconds to wait on `selector`; None: without limit."""
        while True:
            try:
                for seconds in self.loop.turns(self.spec.connect_timeout_seconds, self.spec.drain_timeout):
                    if self.loop.job.recovering:
                        self.loop.job = self.parts.published(replace(self.loop.job, recovering=""))
                    yield seconds
                is_kept, stopped = self.parts.keeper is not None, self.parts.drain_limit.is_draining
                for text in unfinished_texts(self.loop.summary, is_kept, stopped):
                    self.parts.report(text)
                return
            except ClusterError as error:
                if self.parts.keeper is None or not self._may_go_on(error):
                    raise
                loss = error
            yield from self._recover(loss, self.parts.keeper)
            if self.parts.drain_limit.is_stopped:
                return

    def _may_go_on(self, error: ClusterError) -> bool:
        """Return whether a new attempt may follow the error that ended the present one."""
        limit = self.parts.drain_limit
        told = bool(self.parts.signals.received) or limit.is_draining or limit.has_come
        return is_loss(error) and not told and self.spec.restarts > 0

    def _recover(self, loss: ClusterError, keeper: store.StoreKeeper) -> Iterator[float | None]:
        """End an attempt, and begin the next one. Raises the error that prevents it."""
        with self.parts.signals.held():
            self.parts.signals.can_drain = self.parts.drain_limit.is_served = False
            is_first = self._losses == 0 or keeper.latest.checkpoint > self._since
            keeping = is_first and not self.begun.job_input.spark_queries
            had = len(self.parts.children.own)
            by_itself = self.parts.children.blamed_itself
            addresses = self.parts.children.begin_anew(keeping, self.spec.shrink)
            kept, places = self._kept_at(addresses)
        self.loop.close()
        if not addresses:
            raise loss
        self.selector, news = self.parts.machine.selector(), self.parts.machine.wakeup()
        try:
            self.selector.register(news, selectors.EVENT_READ, news.clear)
            for part in (keeper, self.parts.output):
                part.start(news.wake)
            self.parts.drain_limit.wake = news.wake
            keeper.begin_anew()
            while (commit := keeper.begun_anew()) is None:
                yield from self._wait(None)
            self._count(loss, commit.checkpoint, by_itself)
            self.parts.output.cut_back(keeper.length)
            if self.spec.shrink and self.spec.on is not None:
                addresses = yield from self._fitting(addresses)
                kept, places = self._kept_at(addresses)
            try:
                self.begun = store.go_on(self.begun, keeper, self._since, self.spec, self.parts.report, kept, places)
            except MegaflowError as error:
                raise type(error)(f"{loss}; {error}") from loss
            self._since = commit.checkpoint
            restart = f"restart {self._losses} of {self.spec.restarts}"
            if len(addresses) < had:
                restart += f" with {quantity(len(addresses), 'process')}"
            job, cause = self.loop.job, str(loss).partition("; ")[0]  # without what is done about it
            self._job = self.parts.published(
                replace(
                    job, host=addresses[0][0], port=addresses[0][1], attempt=job.attempt + 1,
                    recovering=f"{restart}: {cause}",
                )
            )  # fmt: skip
            text = store.resumption_text(commit, commit.written_at, 0, self.parts.machine.wall())
            for note in notes_of(loss):
                self.parts.report(note)
            lost = str(loss).replace(f"; {STOPPED}", "")  # the others stay, if they can
            self.parts.report(f"{lost}; {restart}: {text}{self.begun.gone}")
            wait = min(WAIT_SECONDS * 2 ** (self._losses - 2), WAIT_SECONDS_MAX) if self._losses > 1 else 0.0
            due = self.parts.machine.now() + wait
            while (left := due - self.parts.machine.now()) > 0:
                yield from self._wait(left)
            try:
                settled = yield from self._found(addresses, f"{restart}: {cause}")
            except (ClusterError, OSError) as error:
                raise no_other_process(loss, error) from error
            if self.parts.drain_limit.is_stopped:
                yield from self._stop_here(commit)
                return
            if list(settled) != addresses:
                host, port = settled[0]
                self._job = self.parts.published(replace(self._job, host=host, port=port))
        finally:
            self.selector.close()
            news.close()
        try:
            self.begin(settled)
        except (LimitReached, OSError) as error:
            raise no_other_process(loss, error) from error

    def _fitting(self, addresses: list[Address]) -> Generator[float | None, None, list[Address]]:
        """Return the first of these addresses, as many as there is room for after FIT_SECONDS at most."""
        due = self.parts.machine.now() + FIT_SECONDS
        while (room := self.starter.room(len(addresses))) < len(addresses) and self.parts.machine.now() < due:
            yield from self._wait(SEEK_SECONDS)
        return addresses[:room]

    def _found(self, addresses: list[Address], restart: str) -> Generator[float | None, None, Sequence[Address]]:
        """Return the addresses of the processes of the next attempt once each has a slot. A stop ends the wait."""
        limit, now = self.parts.drain_limit, self.parts.machine.now
        limit.wait_for_processes(True)
        try:
            self.starter.seek(self.begun, addresses)
            due = now() + FIT_SECONDS
            while (settled := self.starter.settled()) is None and not limit.is_stopped:
                if now() > due:
                    self._tell_waits(f"{restart}; {self.starter.waits_for()}")
                yield from self._wait(SEEK_SECONDS)
            return settled or ()
        finally:
            limit.wait_for_processes(False)

    def _stop_here(self, commit: Commit) -> Iterator[float | None]:
        """End the job at the checkpoint in the store, with the output cut back to it."""
        self.starter.give_up()
        if commit.tokens:  # no worker is left to deliver them
            sinks = " and ".join(sorted({repr(each.sink) for each in commit.tokens}))
            self.parts.report(
                f"the rows of checkpoint {commit.checkpoint} may not have reached {sinks}; the next run delivers them "
                "again, and their marks decide"
            )
        self.loop.summary = RunSummary(stopped_at=commit.checkpoint)
        self.parts.output.finish()
        while not self.parts.output.is_finished:
            yield from self._wait(SEEK_SECONDS)

    def _kept_at(self, addresses: list[Address]) -> tuple[tuple[tuple[int, ...] | None, ...], dict[int, int]]:
        """Return what processes at these addresses have kept, and the places of the workers."""
        return self.parts.children.kept(addresses, self.spec.workers), self.parts.children.places(addresses)

    def _tell_waits(self, text: str) -> None:
        """Publish what a restart waits for, if it has changed."""
        if text != self._job.recovering:
            self._job = self.parts.published(replace(self._job, recovering=text))

    def _wait(self, seconds: float | None) -> Iterator[float | None]:
        yield seconds
        for key, _ in self.selector.select(0.0):
            key.data()
        self.parts.output.check()
        if self.parts.drain_limit.is_forced:
            raise ClusterError(FORCED)

    def _count(self, loss: ClusterError, checkpoint: int, by_itself: bool) -> None:
        """Count a loss; `by_itself`: the processes ended by themselves. Raises ClusterError if it is one too many."""
        if checkpoint > self._since:
            self._losses, self._by_itself = 0, True
        self._by_itself = self._by_itself and by_itself
        if self._losses == self.spec.restarts:
            text = f"{loss}; no checkpoint was taken since restart 1 of {self._losses}"
            raise (KeepsFailing if self._by_itself else ClusterError)(text) from loss
        now = self.parts.machine.now()
        self._lost_at.append(now)
        while self._lost_at[0] < now - OFTEN_SECONDS:
            self._lost_at.popleft()
        if (often := len(self._lost_at)) > OFTEN * self.spec.restarts:
            within = f"{often} times within {OFTEN_SECONDS / 60:g} minutes"
            raise ClusterError(f"{loss}; processes were lost {within}, so the job does not restart by itself")
        self._losses += 1
