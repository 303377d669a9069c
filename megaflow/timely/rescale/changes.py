"""The two kinds of membership change, as far as they have come. Written by the coordinator."""

from dataclasses import dataclass, field
from typing import Any

from megaflow.timely.membership import WorkerId
from megaflow.timely.rescale.messages import (
    Departed,
    Grant,
    Hello,
    JoinAsk,
    LeaveAsk,
    Minted,
    Objections,
    Prepared,
    Ready,
    Retiring,
    Settled,
)


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
    silent: set[Any] = field(default_factory=set)  # who has not answered in this stage
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

    def note(self, source: WorkerId, message: Any, now: float) -> bool:
        """Take in a message; return whether this stage has all that it waits for."""
        match message:
            case Hello(_, built, wanted):
                self.names = max(self.names, built, key=len)
                self.wanted += [(dataflow, location, source) for dataflow, location in wanted]
                self.silent.discard(source)
            case Prepared(_, built):
                self.built = max(self.built, built)
                self.silent.discard(("prepared", source))
            case Ready(_, seconds, bytes):
                for phase, duration in seconds.items():
                    self.seconds[phase] = max(duration, self.seconds.get(phase, 0.0))
                self.bytes += bytes
                self.silent.discard(("ready", source))
            case Minted(_, grants, rest):
                self.grants += grants
                self.wanted = list(rest)
            case Settled():
                self.silent.discard(source)
                if not self.silent:
                    self.lap("settle", now)
        return not self.silent


@dataclass(slots=True)
class Leave:
    """A process on its way out."""

    change: int
    ask: LeaveAsk
    process: int
    ids: tuple[WorkerId, ...]
    began: float
    members: tuple[WorkerId, ...]  # before it, the leaving ones included
    stage: str = "asking"
    silent: set[Any] = field(default_factory=set)
    built: dict[WorkerId, int] = field(default_factory=dict)  # member -> dataflows that it has built or begun
    reasons: list[str] = field(default_factory=list)

    def note(self, source: WorkerId, message: Any, now: float) -> bool:
        """Take in a message; return whether this stage has all that it waits for."""
        match message:
            case Objections(_, built, reasons):
                self.built[source] = built
                self.reasons += reasons
                self.silent.discard(source)
            case Retiring():
                self.silent.discard(source)
            case Departed(_, worker):
                self.silent.discard((source, worker))
        return not self.silent
