"""Starter of a job's processes, wherever they run: the founders of each attempt, and processes that join.

The provisioner first finds slots (see `provisioner`), because each founder gets the addresses of the others. On this
machine slots are available at once. On Spark the caller polls `settled` for the founders of an attempt, and joining
processes start one by one.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import field

from megaflow.errors import UsageError
from megaflow.job.launcher.inputs.file_lines import FileLines
from megaflow.job.launcher.inputs.launcher_input import Resumption
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.children import Children
from megaflow.job.launcher.processes.provisioner import ProcessSlot, Provisioner, Search
from megaflow.job.launcher.processes.wakeups import Signals
from megaflow.job.spec import Address, ChildSpec, Form, Founder, JobSpec, JoiningProcess
from megaflow.quick_dataclass import dataclass

CROWD = 16  # processes, or threads per process, that any machine may have; a process takes some 40 MB
CROWD_PER_CORE = 4
LOOK_SECONDS = 0.1  # between two looks for found slots
NOWHERE: Address = ("", 0)


@dataclass(eq=False)
class ProcessStarter:
    """Starter of a job's processes. One writer: the launcher's thread."""

    spec: JobSpec
    secret: bytes
    place: Provisioner
    children: Children
    received: Signals
    forms: Callable[[], Sequence[tuple[str, Form]]]  # of the outputs, with their names; final once Spark has started
    name: str = ""  # of the job, once published
    _search: Search = field(init=False)  # for the founders of the next attempt
    _wanted: int = field(init=False, default=0)
    _slots: list[ProcessSlot] = field(init=False, default_factory=list)

    def find_slots(self, begun: Resumption) -> Sequence[Address]:
        """Return the addresses at which the founders of the first attempt will listen; block until they are known.

        Raises MegaflowError or OSError.
        """
        self.seek(begun, [NOWHERE] * self.spec.processes)
        while (addresses := self.settled()) is None:
            self.received.pause(LOOK_SECONDS)
        return addresses

    def seek(self, begun: Resumption, again: Sequence[Address]) -> None:
        """Begin to look for slots for the founders of an attempt, in place of the processes at these addresses.

        Raises MegaflowError or OSError, as `settled` does.
        """
        self._wanted, self._slots = len(again), []
        part = Founder(0, (NOWHERE,) * len(again))
        again = [address for address in again if address != NOWHERE]
        self._search = self.place.find(self._wanted, self._draft(begun, part), lambda: False, again)

    def settled(self) -> Sequence[Address] | None:
        """Return the founders' addresses; None until all have a slot."""
        self._slots += self._search.found()
        return [slot.address for slot in self._slots] if len(self._slots) == self._wanted else None

    def give_up(self) -> None:
        """Stop looking for slots for the founders of an attempt, and give back those that were found."""
        self._search.close()
        for slot in self._slots:
            slot.close()

    def room(self, count: int) -> int:
        """Return how many of `count` processes of a new attempt there is room for now, at least one."""
        return self.place.room(count)

    def waits_for(self) -> str:
        """Return what the founders of an attempt wait for, before `settled` returns their addresses."""
        return self._search.waits_for()

    def found(self, begun: Resumption, addresses: Sequence[Address]) -> None:
        """Start the processes that found an attempt, one at each of these addresses. Raises OSError."""
        parts = [Founder(process, tuple(addresses), begun.kept) for process in range(len(addresses))]
        slots, self._slots = self._slots, []
        self.children.start(slots, [self._draft(begun, part) for part in parts])

    def start(
        self, begun: Resumption, count: int, contact: Address, other_code: bool, wake: Callable[[], bool]
    ) -> "StartedOneByOne":
        """Start processes that join through a contact, perhaps with other code. Raises UsageError or OSError.

        If some cannot start at once, `wake` is called, from any thread, when there is news of them.
        """
        if self.spec.on is None:
            living = sum(child.exit_code is None for child in self.children.all)
            check_crowd("add-workers", living + count, self.spec)
        draft = self._draft(begun, JoiningProcess(contact, other_code=other_code))
        with self.received.held():
            return StartedOneByOne(self.place.find(count, draft, wake), draft, self.children, self.received, count)

    def _draft(self, begun: Resumption, part: Founder | JoiningProcess) -> ChildSpec:
        return draft_of(self.spec, self.name, self.secret, self.forms(), begun, part)


def draft_of(
    spec: JobSpec, name: str, secret: bytes, forms: Sequence[tuple[str, Form]], begun: Resumption,
    part: Founder | JoiningProcess,
) -> ChildSpec:  # fmt: skip
    """Return the part of a process's spec that does not depend on its slot."""
    job_input = begun.job_input
    return ChildSpec(
        spec, name, part, NOWHERE, -1, secret,
        splits=job_input.splits if isinstance(part, Founder) else (),
        pushed=tuple(job_input.pushed),
        piped=tuple(name for name, each in job_input.pushed.items() if isinstance(each, FileLines)),
        spark_queries=job_input.spark_queries,
        inputs=job_input.names,
        outputs=tuple(forms),
        durable=begun.part,
    )  # fmt: skip


@dataclass(eq=False)
class StartedOneByOne:
    """Joining processes; each starts when its slot is found."""

    search: Search
    draft: ChildSpec
    children: Children
    received: Signals
    left: int  # not started yet

    def started(self) -> list[Child]:
        """Return the processes started since the last call. Raises MegaflowError or OSError if the rest cannot."""
        with self.received.held():
            slots = self.search.found()
            children = self.children.start(slots, [self.draft] * len(slots))
        self.left -= len(children)
        return children

    def cancel(self) -> int:
        """Give up those that are not started; return their number."""
        left, self.left = self.left, 0
        self.search.close()
        return left

    def waits_for(self) -> str:
        """Return what the other processes wait for."""
        return self.search.waits_for()


def check_crowd(option: str, count: int, spec: JobSpec) -> None:
    """Raise UsageError if there are many more processes, or threads per process, than this machine has cores."""
    cores = os.cpu_count() or 1
    most = max(CROWD, CROWD_PER_CORE * cores)
    if count > most and not spec.oversubscribe:
        raise UsageError(
            f"{option}: {count} is more than {most}, the most that this machine with {cores} cores runs by "
            "default. To lift the limit, give --oversubscribe."
        )
