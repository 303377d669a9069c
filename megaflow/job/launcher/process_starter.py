"""What starts the processes of a job, wherever they run: those that found a life of it, and those that join.

A seat is found first (see `place`); what a process is told depends on those of the others. Where seats are had at once,
nothing waits; else who drives a life looks again and again (`settled`), and those that are to join come one by one.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import field

from megaflow.errors import UsageError
from megaflow.job.launcher.child_process import Child
from megaflow.job.launcher.children import Children
from megaflow.job.launcher.file_lines import FileLines
from megaflow.job.launcher.place import ProcessPlace, Search, Seat
from megaflow.job.launcher.resumption import Resumption
from megaflow.job.launcher.wakeups import Signals
from megaflow.job.spec import Address, ChildSpec, Form, Founder, JobSpec, JoiningProcess
from megaflow.quick_dataclass import dataclass

CROWD = 16  # processes, or threads in each, that any machine may have; a process takes some 40 MB
CROWD_PER_CORE = 4
LOOK_SECONDS = 0.1  # until it is looked again whether seats were found
NOWHERE: Address = ("", 0)


@dataclass(eq=False)
class ProcessStarter:
    """Starts the processes of a job. One writer: the launcher's thread."""

    spec: JobSpec
    secret: bytes
    place: ProcessPlace
    children: Children
    received: Signals
    forms: tuple[tuple[str, Form], ...]  # of the outputs, by name
    name: str = ""  # of the job, once it is published
    _search: Search | None = field(init=False, default=None)  # for those that found the next life
    _wanted: int = field(init=False, default=0)
    _seats: list[Seat] = field(init=False, default_factory=list)

    def find_seats(self, begun: Resumption) -> Sequence[Address]:
        """Return where those that found the first life will listen; blocks until that is known.

        Raises MegaflowError or OSError.
        """
        self.seek(begun, [NOWHERE] * self.spec.processes)
        while (addresses := self.settled()) is None:
            self.received.pause(LOOK_SECONDS)
        return addresses

    def seek(self, begun: Resumption, again: Sequence[Address]) -> None:
        """Look for seats for those that found a life, in the place of those that listened there."""
        self._wanted, self._seats = len(again), []
        part = Founder(0, (NOWHERE,) * len(again))
        again = [address for address in again if address != NOWHERE]
        self._search = self.place.find(self._wanted, self._draft(begun, part), lambda: None, again)

    def settled(self) -> Sequence[Address] | None:
        """Return where they will listen, None as long as not all have a seat."""
        assert self._search is not None, "seats were sought"
        self._seats += self._search.found()
        return [seat.address for seat in self._seats] if len(self._seats) == self._wanted else None

    def found(self, begun: Resumption, addresses: Sequence[Address]) -> None:
        """Start the processes that found the job, each to listen at one of these addresses."""
        parts = [Founder(process, tuple(addresses), begun.kept) for process in range(len(addresses))]
        seats, self._seats = self._seats, []
        self.children.start(seats, [self._draft(begun, part) for part in parts])

    def start(
        self, begun: Resumption, count: int, contact: Address, other_code: bool, wake: Callable[[], None]
    ) -> "StartedOneByOne":
        """Start processes that join through a contact, perhaps with other code. Raises UsageError or OSError."""
        if self.spec.on is None:
            living = sum(child.exit_code is None for child in self.children.all)
            check_crowd("add-workers", living + count, self.spec)
        draft = self._draft(begun, JoiningProcess(contact, other_code=other_code))
        with self.received.held():
            return StartedOneByOne(self.place.find(count, draft, wake), draft, self.children, self.received, count)

    def _draft(self, begun: Resumption, part: Founder | JoiningProcess) -> ChildSpec:
        return draft_of(self.spec, self.name, self.secret, self.forms, begun, part)


def draft_of(
    spec: JobSpec, name: str, secret: bytes, forms: Sequence[tuple[str, Form]], begun: Resumption,
    part: Founder | JoiningProcess,
) -> ChildSpec:  # fmt: skip
    """Return what a process is told that does not depend on its seat."""
    job_input = begun.job_input
    return ChildSpec(
        spec, name, part, NOWHERE, -1, secret,
        splits=job_input.splits if isinstance(part, Founder) else (),
        pushed=tuple(job_input.pushed),
        piped=tuple(name for name, each in job_input.pushed.items() if isinstance(each, FileLines)),
        ordered=job_input.ordered,
        unordered=job_input.unordered,
        spark_queries=job_input.spark_queries,
        rows=job_input.rows,
        lines=job_input.lines,
        has_input=job_input.is_given,
        items=job_input.items,
        followed=job_input.followed,
        outputs=tuple(forms),
        durable=begun.part,
    )  # fmt: skip


@dataclass(eq=False)
class StartedOneByOne:
    """Processes that join, each of which is started when its seat is found."""

    search: Search
    draft: ChildSpec
    children: Children
    received: Signals
    left: int  # that were not started

    def started(self) -> list[Child]:
        """Return those that were started since the last call. Raises MegaflowError or OSError if no more will be."""
        with self.received.held():
            seats = self.search.found()
            children = self.children.start(seats, [self.draft] * len(seats))
        self.left -= len(children)
        return children

    def waits_for(self) -> str:
        """Say what those wait for that were not."""
        return self.search.waits_for()


def check_crowd(option: str, count: int, spec: JobSpec) -> None:
    """Raise UsageError for many more processes, or threads in a process, than this machine has cores."""
    cores = os.cpu_count() or 1
    most = max(CROWD, CROWD_PER_CORE * cores)
    if count > most and not spec.oversubscribe:
        raise UsageError(
            f"{option}: {count} is more than {most}, the most that this machine with {cores} cores runs by "
            "default. To lift the limit, give megaflow run --oversubscribe."
        )
