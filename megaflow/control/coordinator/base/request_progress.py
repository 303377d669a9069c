"""Requests about the membership while they are under way: the progress of each so far, and its answers."""

from collections.abc import Iterable
from dataclasses import field
from enum import StrEnum
from typing import Any, Final

from megaflow.control.coordinator.base.events import Asked, Reply
from megaflow.control.messages import CommandProgress
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
    asked: bool = False  # whether their tables are on their way
    paused: float = 0.0  # seconds that records waited for a table


@dataclass(slots=True)
class MembershipRequest:
    """Base of all requests about the membership."""

    asked: list[Asked]
    start: float  # monotonic clock, seconds: when it began; for a removal that is due, when it became due
    done: int = field(default=0, kw_only=True)
    steps: int = field(default=1, kw_only=True)

    @property
    def waits(self) -> bool:
        """Whether its turn has not come."""
        return False

    def progress(self, what: str, steps: int = 1) -> list[Reply]:
        """Record that this many more steps are done; return the progress messages for the clients."""
        self.done += steps
        news = self.done, self.steps, what
        return [Reply(asked.client, CommandProgress(asked.request.id, *news)) for asked in self.asked]

    def answers(self, report: Any) -> list[Reply]:
        """Return the answers that the request is done."""
        return [asked.done(report) for asked in self.asked]

    def refused(self, reason: str) -> list[Reply]:
        """Return the answers that nothing has changed."""
        return [asked.refused(reason) for asked in self.asked]


@dataclass(slots=True)
class Add(MembershipRequest):
    """Processes to be added. Each has two steps: it joins, and it receives the table."""

    count: int
    addresses: dict[tuple[str, int], int | None] = field(default_factory=dict)  # where they listen -> pid
    is_launched: bool = False  # whether the launcher has reported these
    waits_for: str = ""  # why processes were not started at once
    started: float = 0.0  # monotonic clock, seconds: when the last delayed process was started
    failures: list[str] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """Number of processes that have neither joined nor failed."""
        return self.count - len(self.arrivals) - len(self.failures)

    @property
    def to_start(self) -> int:
        """Number of processes that the launcher has not started, and may start."""
        return self.missing - len(self.expected)

    @property
    def expected(self) -> list[tuple[str, int]]:
        """The addresses of processes that were started and have not joined."""
        joined = {arrival.address for arrival in self.arrivals}
        return [address for address in self.addresses if address not in joined]

    def conclusion(self) -> list[Reply]:
        """Return the answers once nothing is left to wait for."""
        if not self.arrivals:
            return self.refused(f"no process was added: {'; '.join(dict.fromkeys(self.failures))}")
        joins = tuple(JoinedProcess(each.ids, each.seconds, each.bytes, each.paused) for each in self.arrivals)
        return self.answers(JoinReport(joins, tuple(self.failures)))

    def status(self) -> ChangeStatus:
        """Return what a status shows."""
        return ChangeStatus("add-workers", processes=self.count, done=self.done, steps=self.steps)


class Removal(StrEnum):
    """Stage of the removal of a process."""

    WAITING = "waiting"  # in the engine's queue
    HANDING_OVER = "handing over"
    DRAINING_INGEST = "draining ingest"
    CLOSING = "closing"
    LEAVING = "leaving"


REMOVALS: Final[dict[Removal, tuple[Removal, ...]]] = {
    Removal.WAITING: (Removal.HANDING_OVER, Removal.DRAINING_INGEST),
    Removal.HANDING_OVER: (),  # the successor begins it anew
    Removal.DRAINING_INGEST: (Removal.CLOSING,),
    Removal.CLOSING: (Removal.LEAVING,),
    Removal.LEAVING: (),
}


@dataclass(slots=True)
class Remove(MembershipRequest):
    """A process to be removed, in three steps: no new lines, sources closed, left."""

    worker: int
    ids: tuple[int, ...] = ()  # the workers of its process, once it is due
    stage: Removal = Removal.WAITING
    steps: int = field(default=3, kw_only=True)

    @property
    def waits(self) -> bool:
        """Whether its turn has not come."""
        return self.stage is Removal.WAITING

    @property
    def drains(self) -> bool:
        """Whether its workers no longer receive bins or lines."""
        return self.stage in (Removal.DRAINING_INGEST, Removal.CLOSING, Removal.LEAVING)

    def enter(self, stage: Removal) -> None:
        """Begin the next stage."""
        self.stage = check_transition(REMOVALS, self.stage, stage)

    def status(self) -> ChangeStatus:
        """Return what a status shows."""
        return ChangeStatus("remove-workers", worker=self.worker, done=self.done, steps=self.steps, waiting=self.waits)


@dataclass(slots=True)
class TableRequest(MembershipRequest):
    """A worker that needs its routing table. No client has asked for it if the worker itself has `wished` for it."""

    server: int
    worker: int
    epoch: int | None = None  # of its Bootstrap; None: not issued yet
    wished: bool = field(default=False, kw_only=True)

    @property
    def waits(self) -> bool:
        """Whether its turn has not come."""
        return self.epoch is None

    def accepted(self, asked: Iterable[Asked]) -> list[Reply]:
        """Return the answers that the command is issued; none before that."""
        epoch = self.epoch
        return [] if epoch is None else [each.accepted(epoch) for each in asked]

    def status(self) -> ChangeStatus:
        """Return what a status shows."""
        return ChangeStatus("bootstrap", server=self.server, worker=self.worker, waiting=self.waits)

