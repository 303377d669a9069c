"""The two kinds of membership change, as far as they have come. Written by the coordinator.

Whoever has not answered in a stage is in `silent`, as (worker, what is due from it).
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from megaflow.timely.membership import WorkerId
from megaflow.timely.rescale.messages import (
    Departed,
    Grant,
    Grants,
    Hello,
    JoinAsk,
    LeaveAsk,
    MintAsk,
    Minted,
    Objections,
    Prepare,
    Prepared,
    Ready,
    Retire,
    Retiring,
    Settled,
)

Mail: TypeAlias = list[tuple[WorkerId, object]]  # to whom, what
Due: TypeAlias = tuple[WorkerId, str]  # who, what


def due(what: type, *workers: WorkerId) -> set[Due]:
    """An answer of this kind from each.

    >>> sorted(due(Ready, 2, 3))
    [(2, 'Ready'), (3, 'Ready')]
    """
    return {(worker, what.__name__) for worker in workers}


def due_for(leaver: WorkerId, *workers: WorkerId) -> set[Due]:
    """Word from each that a leaving worker is gone."""
    return {(worker, f"Departed of worker {leaver}") for worker in workers}


def in_words(silent: set[Due]) -> list[str]:
    """What is due, and from whom.

    >>> in_words(due(Ready, 3, 2) | due_for(2, 0))
    ['Departed of worker 2 from worker 0', 'Ready from worker 2, 3']
    """
    kinds = sorted({what for _, what in silent})
    return [
        f"{kind} from worker {', '.join(str(worker) for worker, what in sorted(silent) if what == kind)}"
        for kind in kinds
    ]


@dataclass(slots=True)
class Join:
    """A process on its way in."""

    change: int
    ask: JoinAsk
    process: int
    ids: tuple[WorkerId, ...]
    server: WorkerId
    began: float
    stage: str = "admitted"
    silent: set[Due] = field(default_factory=set)
    built: int = 0  # dataflows that some member has built or begun
    names: tuple[str, ...] = ()  # of the dataflows that the joiner has built
    wanted: list[tuple[int, int, WorkerId]] = field(default_factory=list)  # capabilities still to be minted
    grants: list[Grant] = field(default_factory=list)
    minters: list[WorkerId] = field(default_factory=list)  # members still to be asked
    seconds: dict[str, float] = field(default_factory=dict)  # phase -> duration
    bytes: int = 0

    def lap(self, phase: str, now: float) -> None:
        """Note how long a phase took; the next begins."""
        self.seconds[phase], self.began = now - self.began, now

    def prepare(self, members: tuple[WorkerId, ...], now: float) -> Mail:
        """Have the members tell the new workers of their progress."""
        self.stage = "preparing"
        self.lap("connect", now)
        self.silent = due(Prepared, *members) | due(Ready, *self.ids)
        return [(member, Prepare(self.change, self.ids, self.server)) for member in members]

    def mint(self, members: tuple[WorkerId, ...], now: float) -> Mail:
        """Ask the next member for what is still wanted; when there is none, say who got what."""
        if self.wanted and self.minters:
            minter = self.minters.pop(0)
            self.silent = due(Minted, minter)
            return [(minter, MintAsk(self.change, tuple(self.wanted)))]
        self.stage, self.silent = "settling", due(Settled, *members)
        self.lap("mint", now)
        return [
            (worker, Grants(self.change, tuple(grant for grant in self.grants if grant.worker == worker)))
            for worker in self.ids
        ]

    def note(self, source: WorkerId, message: Any, now: float) -> bool:
        """Take in a message; return whether this stage has all that it waits for."""
        match message:
            case Hello(_, built, wanted):
                self.names = max(self.names, built, key=len)
                self.wanted += [(dataflow, location, source) for dataflow, location in wanted]
            case Prepared(_, built):
                self.built = max(self.built, built)
            case Ready(_, seconds, bytes):
                for phase, duration in seconds.items():
                    self.seconds[phase] = max(duration, self.seconds.get(phase, 0.0))
                self.bytes += bytes
            case Minted(_, grants, rest):
                self.grants += grants
                self.wanted = list(rest)
        self.silent -= due(type(message), source)
        if isinstance(message, Settled) and not self.silent:
            self.lap("settle", now)
        return not self.silent


@dataclass(slots=True)
class Leave:
    """A process on its way out."""

    change: int
    asks: list[LeaveAsk]  # of workers of this process
    process: int
    ids: tuple[WorkerId, ...]
    began: float
    members: tuple[WorkerId, ...]  # before it, the leaving ones included
    stage: str = "asking"
    silent: set[Due] = field(default_factory=set)
    built: dict[WorkerId, int] = field(default_factory=dict)  # member -> dataflows that it has built or begun
    reasons: list[str] = field(default_factory=list)  # why not

    def close(self, fixed: int) -> Mail:
        """Have the leavers close their inputs, if nobody objects: `reasons` tells. `fixed`: dataflows below it count
        as built."""
        begun = max(fixed, *self.built.values())
        for worker in self.ids:
            if self.built[worker] < begun:  # it would be missed there
                self.reasons.append(f"worker {worker} has not built dataflow {self.built[worker]} yet")
        if self.reasons:
            return []
        self.stage, self.silent = "closing", due(Retiring, *self.ids)
        return [(worker, Retire(self.change)) for worker in self.ids]

    def drain(self) -> None:
        """It is committed: all say when each leaver is gone."""
        self.stage = "draining"
        self.silent = set()
        for leaver in self.ids:
            self.silent |= due_for(leaver, *(member for member in self.members if member != leaver))

    def note(self, source: WorkerId, message: Any, now: float) -> bool:
        """Take in a message; return whether this stage has all that it waits for."""
        match message:
            case Objections(_, built, reasons):
                self.built[source] = built
                self.reasons += reasons
            case Departed(_, worker):
                self.silent -= due_for(worker, source)
        self.silent -= due(type(message), source)
        return not self.silent
