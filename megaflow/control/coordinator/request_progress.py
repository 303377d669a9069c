"""Requests about the membership while they are under way: what each has come to so far, and its answers."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from megaflow.control.coordinator.events import Asked, Reply
from megaflow.control.messages import CommandProgress, Done, Refused
from megaflow.control.reports import ChangeStatus, JoinedProcess


@dataclass(slots=True)
class Arrival:
    """A process that has joined for an `Add`."""

    ids: tuple[int, ...]
    joined: float  # wall clock, seconds
    seconds: dict[str, float]  # phase -> duration
    bytes: int
    untaught: set[int]  # workers that know no table yet
    paused: float = 0.0  # seconds that records waited for a table

    def report(self) -> JoinedProcess:
        """Return its part of the account."""
        return JoinedProcess(self.ids, self.seconds, self.bytes, self.paused)


@dataclass(slots=True)
class Add:
    """Processes to be added."""

    asked: Asked
    count: int
    start: float  # wall clock, seconds, when it began
    addresses: set[tuple[str, int]] | None = None  # where they listen; None: not known yet, then any will do
    failures: list[str] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    done: int = 0  # steps

    @property
    def steps(self) -> int:
        """How many there are: each process joins, and is given the table."""
        return 2 * self.count

    @property
    def missing(self) -> int:
        """How many have neither joined nor failed."""
        return self.count - len(self.arrivals) - len(self.failures)

    @property
    def what(self) -> str:
        """The number of processes in words."""
        return "1 process" if self.count == 1 else f"{self.count} processes"

    def status(self, waiting: bool) -> ChangeStatus:
        """Return what a status shows."""
        return ChangeStatus(
            "add-workers", processes=self.count, done=self.done, steps=self.steps, waiting=waiting
        )


@dataclass(slots=True)
class Remove:
    """A process to be removed."""

    asked: Asked
    worker: int
    start: float
    ids: tuple[int, ...] = ()  # of its process, once it has begun
    stage: str = "quieting"  # of Spark; then closing its sources, then retiring. Before all, perhaps: handing over
    done: int = 0
    steps: int = 3  # no new lines, sources closed, gone

    def status(self, waiting: bool) -> ChangeStatus:
        """Return what a status shows."""
        return ChangeStatus(
            "remove-workers", worker=self.worker, done=self.done, steps=self.steps, waiting=waiting
        )


@dataclass(slots=True)
class Teach:
    """A worker to be given its routing table."""

    asked: Asked
    server: int
    worker: int
    start: float
    epoch: int = 0
    done: int = 0
    steps: int = 1

    def status(self, waiting: bool) -> ChangeStatus:
        """Return what a status shows."""
        return ChangeStatus("bootstrap", server=self.server, worker=self.worker, waiting=waiting)


Change: TypeAlias = Add | Remove | Teach


def done(asked: Asked, result: Any) -> Reply:
    """Return the answer that it is done."""
    return Reply(asked.client, Done(asked.request.id, result))


def refused(asked: Asked, reason: str) -> Reply:
    """Return the answer that nothing has changed."""
    return Reply(asked.client, Refused(asked.request.id, reason))


def progress(change: Change, what: str, steps: int = 1) -> Reply:
    """Note that so many more steps of a change are done, and return the news for whoever asked."""
    change.done += steps
    return Reply(change.asked.client, CommandProgress(change.asked.request.id, change.done, change.steps, what))
