"""The worker processes of a job: how the launcher starts, watches, ends and blames them.

`Child` is one such process. A member is a child that is, or was, part of the job.

1. However the launcher dies, its children end with it (see `megaflow.job.worker.process.lifeline`). The pipe that
   brought a child its `ChildSpec` closes with the launcher, and the thread that starts children ends only after they
   have ended. A process elsewhere ends with its agent, which ends with its connection (see
   `megaflow.job.process_agent`).
2. A child leads its own process group. So Ctrl-C at a terminal reaches only the launcher, which drains the job.
3. A child's prints go to the launcher's standard error, because standard output is for records (see `print_reader`).
   The error about a dead child has its last lines as a note.
4. The launcher notices a dead child by the end of its connection or of the pipe for its exit report. The kernel closes
   both however the child died.
5. A child that joins the running job becomes part of it when the coordinator announces it. If it ends before that, the
   job is not affected. A process that was started by hand becomes a child when it joins, but the launcher can neither
   kill it nor see it die.
6. The launcher waits for a child that has ended, and closes its files at once. It forgets members that ended well. Of
   children that never joined it keeps the last ENDED_KEPT, because the news of a join may arrive after the end of the
   process.
7. The `Provisioner` of the children decides where they run, and what is kept there after they end.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Self

from megaflow.errors import ClusterError, LimitReached, MegaflowError, Outage
from megaflow.job.exit_report import ExitReport
from megaflow.job.launcher.processes.child_process import EXIT_SECONDS, Child
from megaflow.job.launcher.processes.provisioner import LocalSlot, ProcessSlot, Provisioner
from megaflow.job.spec import Address, ChildSpec, Founder

ENDED_KEPT = 100  # far more than can be joining at once
STOPPED = "all other workers have been stopped"
RESTART = "no other worker has that state: run the job again from its first line"
KEEP = "with --state DIR, a job goes on by itself"


class Children:
    """All worker processes of a job; a context manager that leaves none running."""

    def __init__(self, place: Provisioner | None = None, is_durable: bool = False) -> None:
        """`place` finds their slots; without it none can start. `is_durable`: the loss of a child loses no state."""
        self.all: list[Child] = []
        self.coordinator: Address = ("", 0)  # where the process of the coordinator listens
        self._place = place
        self._is_durable = is_durable
        self._staying: dict[Address, Child] = {}  # processes that wait for a part in the next attempt
        self._workers_at: dict[Address, tuple[int, ...]] = {}  # of the launcher's processes in the last attempt
        self._blamed: Child | None = None  # for the loss that ended this attempt

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill([*self.all, *self._staying.values()])

    @property
    def members(self) -> list[Child]:
        """The children that are, or were, part of the job."""
        return [child for child in self.all if child.is_member]

    @property
    def own(self) -> list[Child]:
        """The members that the launcher has started and that have not left."""
        return [child for child in self.members if child.process is not None and not child.has_left]

    def have_lost(self) -> bool:
        """Return whether a member's process has ended. Before the job begins, the others would wait for it forever."""
        return any(child.exit_code is not None for child in self.members)

    @property
    def blamed_itself(self) -> bool:
        """Whether the process that is blamed for the loss ended by itself."""
        return self._blamed is not None and self._blamed.ended_by_itself

    @property
    def blamed_elsewhere(self) -> bool:
        """Whether the process that is blamed for the loss ran on an executor."""
        return self._blamed is not None and bool(self._blamed.host)

    def at(self, address: Address) -> Child | None:
        """Return the newest child that listens at this address."""
        return next((child for child in reversed(self.all) if child.address == address), None)

    def start(self, slots: Sequence[ProcessSlot], specs: Sequence[ChildSpec]) -> list[Child]:
        """Start a process in each slot, with its spec; founders are part of the job at once.

        If a process has stayed at the address of a slot, it continues there instead. If this raises OSError or
        MegaflowError, no process is left running, and all slots are closed.
        """
        started: list[Child] = []
        try:
            for slot, spec in zip(slots, specs):
                if isinstance(slot, LocalSlot) and (stayed := self.take_staying(slot.address)) is not None:
                    child = slot.go_on(stayed, spec)
                else:
                    child = slot.start(spec)
                started.append(child)
                if isinstance(spec.part, Founder):
                    first = spec.part.process * spec.job.workers
                    child.join(range(first, first + spec.job.workers))
        except BaseException:  # all or none
            self.kill(started)
            for child in started:
                self._let_go(child)
            for slot in slots[len(started) :]:
                slot.close()
            raise
        self.all += started
        return started

    def bury(self, child: Child) -> None:
        """Wait for a child that has closed its pipe, and release it."""
        child.wait(EXIT_SECONDS)
        if child.exit_code is not None:
            child.release()
        if not child.is_member:
            self._let_go(child)
        self.forget_ended()

    def forget_ended(self) -> None:
        """Forget members that have left, and all but the last ENDED_KEPT that ended without joining; see rule 6."""
        left = {child for child in self.all if child.has_left}
        late = [child for child in self.all if not child.is_member and child.exit_code is not None][:-ENDED_KEPT]
        self.all = [child for child in self.all if child not in left and child not in late]
        for child in [*left, *late]:
            child.printed = None  # its lines know the child: without this, both would stay until the collector runs
        for child in left:
            self._let_go(child)

    def begin_anew(self, keeping: bool, shrinking: bool = False) -> list[Address]:
        """End and forget all children; return the addresses of the launcher's processes that had not left the job.

        The coordinator's address comes first. With `keeping`, members that stay are not ended. With `shrinking`, lost
        processes do not count, unless all are lost.
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
        """Return the bins that each worker of the next attempt already holds; None for a worker of a new process.

        The processes of that attempt listen at `addresses`, and each has `workers` workers.
        """
        staying = map(self._staying.get, addresses)
        return tuple(bins for child in staying for bins in (child and child.kept) or (None,) * workers)

    def places(self, addresses: Sequence[Address]) -> dict[int, int]:
        """Return the place of each worker of the last attempt in an attempt whose processes listen at `addresses`."""
        before = (worker for address in addresses for worker in self._workers_at[address])
        return {worker: place for place, worker in enumerate(before)}

    def _is_lost(self, child: Child) -> bool:
        """Return whether a process was lost: killed, or blamed without a report that a new process may succeed."""
        is_to_be_new = child.report is not None and child.report.kind == "anew"
        return (child.exit_code or 0) < 0 or (child is self._blamed and not is_to_be_new)

    def take_staying(self, address: Address) -> Child | None:
        """Remove and return the process that has stayed at an address; None if a new one must be started."""
        child = self._staying.pop(address, None)
        if child is not None and not child.stays:
            self.kill([child])
            return None
        return child

    def _let_go(self, child: Child) -> None:
        if self._place is not None:
            self._place.let_go(child.address)

    def wait_for_exit(self, seconds: float) -> None:
        """Wait until all children have exited, or stay, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        for child in self.all:
            if child.pipe is None or not child.pipe.wait(deadline - time.monotonic()):
                child.wait(deadline - time.monotonic())

    def kill(self, children: Iterable[Child]) -> None:
        """End these children at once, and wait for their ends."""
        children = list(children)
        for child in children:
            child.kill()
        for child in children:
            child.release()

    def blame(self, failures: Sequence[MegaflowError], unreached: ClusterError | None = None) -> MegaflowError | None:
        """Return why the job failed, judging by the processes that have exited by themselves; None if it did not fail.

        A process that was killed is the cause of everything that the others report. After that, the causes in order:
        the first failure that was reported (`failures`), a limit that a process reached or an external system out of
        its reach, a process that others lost, a process that ended early without a report, and a process that the
        launcher could not connect to (`unreached`).
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
        for child in ended:
            if child.report is not None and child.report.kind == "limit":
                return LimitReached(f"{child}: {child.report.text}")
            if child.report is not None and child.report.kind == "outage":
                return Outage(child.report.text)
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
        """Blame a child, and return the error that names it."""
        self._blamed = child
        bins = remedy = stopped = ""
        others = [each for each in self.members if each is not child and not each.has_left]
        if others and all(each.process is not None for each in others):  # else some end by themselves
            stopped = f"; {STOPPED}"
        if lost is not None and set(lost.workers) & set(child.workers) and not self._is_durable:
            bins = f", and with it the state of {lost.bins}" if lost.bins else "; it owned no bins"
            remedy = f"; {RESTART}; {KEEP}" if lost.bins else f"; {KEEP}"
        return child.with_last_lines(ClusterError(f"{child} {child.how_it_ended()}{bins}{stopped}{remedy}"))
