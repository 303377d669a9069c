"""A job's worker processes as the launcher sees them: started, watched, ended, blamed.

1. However the launcher dies, its children end with it (see `megaflow.job.worker.lifeline`). The pipe through which a
   child got its `ChildSpec` closes with the launcher, and the thread that starts children ends only after they have. A
   process elsewhere ends with its agent, which ends with its connection (see `megaflow.job.process_agent`).
2. A child leads its own process group: Ctrl-C at a terminal reaches only the launcher, which drains the job.
3. A child's prints go to the launcher's standard error: standard output is for records.
4. The launcher notices a dead child by the end of its connection or of the pipe for its exit report. The kernel closes
   these however the child died.
5. A child that joins the running job becomes part of it when the coordinator announces it. If it ends before, the job
   is not affected. A process that was started by hand also becomes a child when it has joined, but the launcher can
   neither kill it nor see it die.
6. The launcher waits for a child that has ended, and closes its files at once. It forgets members that ended well. Of
   children that never joined it keeps the last ENDED_KEPT, as the news of a join may arrive after the end of the
   process.
7. Their `ProcessPlace` decides where they run, and what is kept there after they end.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Self

from megaflow.errors import ClusterError, MegaflowError
from megaflow.job.exit_report import ExitReport
from megaflow.job.launcher.child_process import EXIT_SECONDS, Child
from megaflow.job.launcher.place import ProcessPlace, Seat, SeatHere
from megaflow.job.spec import Address, ChildSpec, Founder

ENDED_KEPT = 100  # many more than can be on their way
STOPPED = "all other workers have been stopped"
RESTART = "no other worker has that state: run the job again from its first line"


class Children:
    """All worker processes of a job; a context manager that leaves none running."""

    def __init__(self, place: ProcessPlace | None = None, is_durable: bool = False) -> None:
        """`place` is where they run; without one they can only be looked at. `is_durable`: nothing is lost with one."""
        self.all: list[Child] = []
        self.coordinator: Address = ("", 0)  # where the one that coordinates the job listens
        self._place = place
        self._is_durable = is_durable
        self._staying: dict[Address, Child] = {}  # those that wait for a part in the next life
        self._workers_at: dict[Address, tuple[int, ...]] = {}  # in the life before, of those that it had
        self._blamed: Child | None = None  # for the loss that ended the life

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill([*self.all, *self._staying.values()])

    @property
    def members(self) -> list[Child]:
        """Those that are part of the job, or were."""
        return [child for child in self.all if child.is_member]

    @property
    def own(self) -> list[Child]:
        """Those of them that the launcher has started, and that have not left."""
        return [child for child in self.members if child.process is not None and not child.has_left]

    def at(self, address: Address) -> Child | None:
        """Return the newest child that listens at this address."""
        return next((child for child in reversed(self.all) if child.address == address), None)

    def start(self, seats: Sequence[Seat], specs: Sequence[ChildSpec]) -> list[Child]:
        """Start a process in each seat, with its spec; founders are part of the job at once.

        Where one has stayed it goes on instead. Raises OSError; then none is started, and the seats are closed.
        """
        started: list[Child] = []
        try:
            for seat, spec in zip(seats, specs):
                if isinstance(seat, SeatHere) and (stayed := self.take_staying(seat.address)) is not None:
                    child = seat.go_on(stayed, spec)
                else:
                    child = seat.start(spec)
                started.append(child)
                if isinstance(spec.part, Founder):
                    first = spec.part.process * spec.job.workers
                    child.join(range(first, first + spec.job.workers))
        except BaseException:  # all or none
            self.kill(started)
            for child in started:
                self._let_go(child)
            for seat in seats[len(started) :]:
                seat.close()
            raise
        self.all += started
        return started

    def bury(self, child: Child) -> None:
        """Let go of one that has closed its pipe, and so ends."""
        child.wait(EXIT_SECONDS)
        if child.exit_code is not None:
            child.release()
        if not child.is_member:
            self._let_go(child)
        self.forget_ended()

    def forget_ended(self) -> None:
        """Forget those that nobody will ask for."""
        left = {child for child in self.all if child.has_left}
        late = [child for child in self.all if not child.is_member and child.exit_code is not None][:-ENDED_KEPT]
        self.all = [child for child in self.all if child not in left and child not in late]
        for child in left:
            self._let_go(child)

    def begin_anew(self, keeping: bool, shrinking: bool = False) -> list[Address]:
        """End all, and forget them; return where those listened that the launcher had started and the job still had.

        The address of the one that coordinated the job comes first. With `keeping`, members that stay are not ended.
        With `shrinking`, those that are lost do not count, unless all are.
        """
        had = self.own
        going_on = [child for child in had if not self._is_lost(child)] if shrinking else had
        addresses = sorted((child.address for child in going_on or had), key=lambda each: each != self.coordinator)
        self._workers_at = {child.address: child.workers for child in had}
        self._staying = {child.address: child for child in going_on if keeping and child.stays}
        self.kill(child for child in self.all if self._staying.get(child.address) is not child)
        for child in self.all:
            if child.address not in addresses:
                self._let_go(child)
        self.all, self._blamed = [], None
        return addresses

    def kept(self, addresses: Sequence[Address], workers: int) -> tuple[tuple[int, ...] | None, ...]:
        """Return which bins those that stay have, of a life whose processes, of so many workers, listen there.

        It is None for the workers of other processes.
        """
        staying = map(self._staying.get, addresses)
        return tuple(bins for child in staying for bins in (child and child.kept) or (None,) * workers)

    def places(self, addresses: Sequence[Address]) -> dict[int, int]:
        """Return the place that each worker of the life before has in one whose processes listen there."""
        before = (worker for address in addresses for worker in self._workers_at[address])
        return {worker: place for place, worker in enumerate(before)}

    def _is_lost(self, child: Child) -> bool:
        """Tell whether a member was lost: it was killed, or is blamed, and not for what a new process may do."""
        is_to_be_new = child.report is not None and child.report.kind == "anew"
        return (child.exit_code or 0) < 0 or (child is self._blamed and not is_to_be_new)

    def take_staying(self, address: Address) -> Child | None:
        """Return the process that listens there and has stayed, once; None: a new one is to be started."""
        child = self._staying.pop(address, None)
        if child is not None and not child.stays:
            self.kill([child])
            return None
        return child

    def _let_go(self, child: Child) -> None:
        if self._place is not None:
            self._place.let_go(child.address)

    def wait_for_exit(self, seconds: float) -> None:
        """Wait until all have exited, or stay, but no longer than that."""
        deadline = time.monotonic() + seconds
        for child in self.all:
            if child.pipe is None or not child.pipe.wait(deadline - time.monotonic()):
                child.wait(deadline - time.monotonic())

    def kill(self, children: Iterable[Child]) -> None:
        """End these at once, as far as they still run, and wait for that."""
        children = list(children)
        for child in children:
            child.kill()
        for child in children:
            child.release()

    def blame(self, failures: Sequence[MegaflowError], unreached: ClusterError | None = None) -> MegaflowError | None:
        """Return why the job failed, judging by those that have exited by themselves; None if it did not.

        A process that was killed is the cause of all that the others report. Next comes the first failure that was
        reported (`failures`), then a process that others have lost, then one that ended early without a report, then
        one that could not be connected to (`unreached`).
        """
        for child in self.all:
            if child.pipe is not None:
                child.pipe.read()
        reports = [report for child in self.all if (report := child.report) is not None and report.kind == "lost"]
        lost = max(reports, key=lambda report: (len(report.workers), len(report.bins)), default=None)  # that says most
        ended = [child for child in self.members if child.exit_code is not None]
        for child in ended:
            if (child.exit_code or 0) < 0 and child.failure is None:
                return self._loss_of(child, lost)
        if failures:
            return failures[0]
        if lost is not None:
            dead = next((child for child in self.all if set(child.workers) & set(lost.workers)), None)
            return ClusterError(lost.text) if dead is None else self._loss_of(dead, lost)
        for child in ended:
            if child.running or child.exit_code:
                return self._loss_of(child, lost)
        for child in self.members if unreached is None else ():
            if child.running and child.client is None:
                return self._loss_of(child, lost)
        return unreached

    def _loss_of(self, child: Child, lost: ExitReport | None) -> ClusterError:
        """Note who is blamed, and return the error that says so."""
        self._blamed = child
        bins = remedy = ""
        if lost is not None and set(lost.workers) & set(child.workers) and not self._is_durable:
            bins = f", and with it the state of {lost.bins}" if lost.bins else "; it owned no bins"
            remedy = f"; {RESTART}" if lost.bins else ""
        return ClusterError(f"{child} {child.how_it_ended()}{bins}; {STOPPED}{remedy}")
