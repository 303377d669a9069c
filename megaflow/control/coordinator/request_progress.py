"""Requests about the membership while they are under way: what each has come to so far, and its answers."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final, TypeAlias

from megaflow.control.coordinator.events import Asked, Reply
from megaflow.control.messages import CommandProgress, Done, Refused
from megaflow.control.reports import ChangeStatus, JoinedProcess
from megaflow.timely.rescale.change_stages import check_transition


@dataclass(slots=True)
class Arrival:
    """A process that has joined for an `Add`."""

    ids: tuple[int, ...]
    joined: float  # wall clock, seconds
    seconds: dict[str, float]  # phase -> duration
    bytes: int
    waiting: set[int]  # workers that know no table yet
    asked: bool = False  # their tables are on their way
    paused: float = 0.0  # seconds that records waited for a table

    def report(self) -> JoinedProcess:
        """Return its part of the account."""
        return JoinedProcess(self.ids, self.seconds, self.bytes, self.paused)


@dataclass(slots=True)
class Add:
    """Processes to be added."""

    waits: ClassVar[bool] = False  # for its turn
    asked: list[Asked]
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


class Removal(StrEnum):
    """How far the removal of a process has come."""

    WAITING = "waiting"  # in the engine's queue
    HANDING_OVER = "handing over"
    DRAINING_INGEST = "draining ingest"
    CLOSING = "closing"
    LEAVING = "leaving"


REMOVALS: Final[dict[Removal, tuple[Removal, ...]]] = {
    Removal.WAITING: (Removal.HANDING_OVER, Removal.DRAINING_INGEST),
    Removal.HANDING_OVER: (),  # the successor begins anew
    Removal.DRAINING_INGEST: (Removal.CLOSING,),
    Removal.CLOSING: (Removal.LEAVING,),
    Removal.LEAVING: (),
}


@dataclass(slots=True)
class Remove:
    """A process to be removed."""

    asked: list[Asked]
    worker: int
    start: float  # wall clock, seconds, when it was asked for; then when it was due
    ids: tuple[int, ...] = ()  # of its process, once it was due
    stage: Removal = Removal.WAITING
    done: int = 0
    steps: int = 3  # no new lines, sources closed, gone

    @property
    def waits(self) -> bool:
        """Whether its turn has not come."""
        return self.stage is Removal.WAITING

    @property
    def drains(self) -> bool:
        """Whether its workers are given nothing any more."""
        return self.stage in (Removal.DRAINING_INGEST, Removal.CLOSING, Removal.LEAVING)

    def enter(self, stage: Removal) -> None:
        """Begin the next stage."""
        self.stage = check_transition(REMOVALS, self.stage, stage)

    def status(self, waiting: bool) -> ChangeStatus:
        """Return what a status shows."""
        return ChangeStatus(
            "remove-workers", worker=self.worker, done=self.done, steps=self.steps, waiting=waiting
        )


@dataclass(slots=True)
class TableRequest:
    """A worker to be given its routing table."""

    asked: list[Asked]
    server: int
    worker: int
    start: float
    epoch: int | None = None  # of its Bootstrap; None: not issued yet
    done: int = 0
    steps: int = 1

    @property
    def waits(self) -> bool:
        """Whether its turn has not come."""
        return self.epoch is None

    def status(self, waiting: bool) -> ChangeStatus:
        """Return what a status shows."""
        return ChangeStatus("bootstrap", server=self.server, worker=self.worker, waiting=waiting)


MembershipRequest: TypeAlias = Add | Remove | TableRequest


def done(asked: Asked, result: Any) -> Reply:
    """Return the answer that it is done."""
    return Reply(asked.client, Done(asked.request.id, result))


def refused(request: MembershipRequest, reason: str) -> list[Reply]:
    """Return the answers that nothing has changed."""
    return [Reply(asked.client, Refused(asked.request.id, reason)) for asked in request.asked]


def progress(request: MembershipRequest, what: str, steps: int = 1) -> list[Reply]:
    """Note that so many more steps are done, and return the news for the clients."""
    request.done += steps
    news = request.done, request.steps, what
    return [Reply(asked.client, CommandProgress(asked.request.id, *news)) for asked in request.asked]
