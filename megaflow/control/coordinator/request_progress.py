"""Requests about the membership while they are under way: what each has come to so far, and its answers."""

from collections.abc import Iterable
from dataclasses import field
from enum import StrEnum
from typing import Any, Final

from megaflow.control.coordinator.events import Asked, Reply
from megaflow.control.messages import Accepted, CommandProgress, Done, Refused
from megaflow.control.reports import ChangeStatus, JoinedProcess, JoinReport
from megaflow.quick_dataclass import dataclass
from megaflow.timely.rescale.change_stages import check_transition


@dataclass(slots=True)
class Arrival:
    """A process that has joined for an `Add`."""

    address: tuple[str, int]
    ids: tuple[int, ...]
    joined: float  # monotonic clock, seconds
    seconds: dict[str, float]  # phase -> duration
    bytes: int
    waiting: set[int]  # workers that know no table yet
    asked: bool = False  # their tables are on their way
    paused: float = 0.0  # seconds that records waited for a table


@dataclass(slots=True)
class MembershipRequest:
    """What all kinds have in common."""

    asked: list[Asked]
    start: float  # monotonic clock, seconds, when it began; of a removal, once it is due, when that was
    done: int = field(default=0, kw_only=True)
    steps: int = field(default=1, kw_only=True)

    @property
    def waits(self) -> bool:
        """Whether its turn has not come."""
        return False

    def progress(self, what: str, steps: int = 1) -> list[Reply]:
        """Note that so many more steps are done, and return the news for the clients."""
        self.done += steps
        news = self.done, self.steps, what
        return [Reply(asked.client, CommandProgress(asked.request.id, *news)) for asked in self.asked]

    def answers(self, report: Any) -> list[Reply]:
        """Return the answers that it is done."""
        return [done(asked, report) for asked in self.asked]

    def refused(self, reason: str) -> list[Reply]:
        """Return the answers that nothing has changed."""
        return [Reply(asked.client, Refused(asked.request.id, reason)) for asked in self.asked]


@dataclass(slots=True)
class Add(MembershipRequest):
    """Processes to be added; the steps: each process joins, and is given the table."""

    count: int
    addresses: dict[tuple[str, int], int | None] | None = None  # where they listen -> pid; None: not known yet
    waits_for: str = ""  # what those wait for that were not started at once
    started: float = 0.0  # monotonic clock, seconds, when the last that had to wait was
    failures: list[str] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """How many have neither joined nor failed."""
        return self.count - len(self.arrivals) - len(self.failures)

    @property
    def expected(self) -> list[tuple[str, int]]:
        """Where those listen that were started and have not joined."""
        joined = {arrival.address for arrival in self.arrivals}
        return [address for address in self.addresses or () if address not in joined]

    def conclusion(self) -> list[Reply]:
        """Return the answers when nothing is left to wait for."""
        if not self.arrivals:
            return self.refused(f"no process was added: {'; '.join(dict.fromkeys(self.failures))}")
        joins = tuple(JoinedProcess(each.ids, each.seconds, each.bytes, each.paused) for each in self.arrivals)
        return self.answers(JoinReport(joins, tuple(self.failures)))

    def status(self) -> ChangeStatus:
        """Return what a status shows."""
        return ChangeStatus("add-workers", processes=self.count, done=self.done, steps=self.steps)


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
class Remove(MembershipRequest):
    """A process to be removed; the steps: no new lines, sources closed, gone."""

    worker: int
    ids: tuple[int, ...] = ()  # of its process, once it was due
    stage: Removal = Removal.WAITING
    steps: int = field(default=3, kw_only=True)

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

    def status(self) -> ChangeStatus:
        """Return what a status shows."""
        return ChangeStatus("remove-workers", worker=self.worker, done=self.done, steps=self.steps, waiting=self.waits)


@dataclass(slots=True)
class TableRequest(MembershipRequest):
    """A worker to be given its routing table; nobody has asked if the worker has wished for it itself."""

    server: int
    worker: int
    epoch: int | None = None  # of its Bootstrap; None: not issued yet
    wished: bool = field(default=False, kw_only=True)

    @property
    def waits(self) -> bool:
        """Whether its turn has not come."""
        return self.epoch is None

    def accepted(self, asked: Iterable[Asked]) -> list[Reply]:
        """Return the answers to these that the command is issued; none before it is."""
        epoch = self.epoch
        return [] if epoch is None else [Reply(each.client, Accepted(each.request.id, epoch)) for each in asked]

    def status(self) -> ChangeStatus:
        """Return what a status shows."""
        return ChangeStatus("bootstrap", server=self.server, worker=self.worker, waiting=self.waits)


def done(asked: Asked, result: Any) -> Reply:
    """Return the answer that it is done."""
    return Reply(asked.client, Done(asked.request.id, result))
