"""The two kinds of membership change, and the stages that each passes through. Written by the sequencer.

    a join     ADMITTED ─ Hello from all new workers ─▶ PREPARING ─ Prepared from all members, Ready from all new
               workers ─▶ *commit*: MINTING, one member after another ─▶ SETTLING ─ Settled from all ─▶ DONE
    a leave    ASKING ─ Objections from all members ─▶ CLOSING ─ Retiring from the leaving workers ─▶ *commit*:
               DRAINING ─ Departed from each member for each leaving worker ─▶ DONE

A change can be aborted before its commit: in the stages that have a transition to ABORTED. `silent` holds the workers
that have not answered in the present stage, each with the answer that is due from it.
"""

from collections.abc import Collection, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar

from megaflow.quick_dataclass import dataclass
from megaflow.timely.membership import WorkerId
from megaflow.timely.rescale import messages
from megaflow.timely.rescale.messages import JoinAsk, LeaveAsk

Mail: TypeAlias = list[tuple[WorkerId, object]]  # (receiver, message)
Due: TypeAlias = tuple[WorkerId, str]  # (worker, name of the answer that is due from it)


class ChangeStage(StrEnum):
    """Stage of a membership change."""

    ADMITTED = "admitted"
    PREPARING = "preparing"
    MINTING = "minting"
    SETTLING = "settling"
    ASKING = "asking"
    CLOSING = "closing"
    DRAINING = "draining"
    DONE = "done"
    ABORTED = "aborted"


TRANSITIONS: Final[dict[ChangeStage, tuple[ChangeStage, ...]]] = {
    ChangeStage.ADMITTED: (ChangeStage.PREPARING, ChangeStage.ABORTED),
    ChangeStage.PREPARING: (ChangeStage.MINTING, ChangeStage.ABORTED),
    ChangeStage.MINTING: (ChangeStage.SETTLING,),
    ChangeStage.SETTLING: (ChangeStage.DONE,),
    ChangeStage.ASKING: (ChangeStage.CLOSING, ChangeStage.ABORTED),
    ChangeStage.CLOSING: (ChangeStage.DRAINING, ChangeStage.ABORTED),
    ChangeStage.DRAINING: (ChangeStage.DONE,),
    ChangeStage.DONE: (),
    ChangeStage.ABORTED: (),
}

S = TypeVar("S", bound=StrEnum)


def check_transition(table: Mapping[S, Collection[S]], stage: S, following: S) -> S:
    """Return the stage that follows; raise AssertionError if no transition leads there, which only a bug can cause.

    >>> check_transition(TRANSITIONS, ChangeStage.ASKING, ChangeStage.DRAINING)
    Traceback (most recent call last):
    AssertionError: no transition leads from 'asking' to 'draining'
    """
    assert following in table[stage], f"no transition leads from {stage.value!r} to {following.value!r}"
    return following


def due(what: type, *workers: WorkerId) -> set[Due]:
    """Return one due answer of this kind for each worker.

    >>> sorted(due(messages.Ready, 2, 3))
    [(2, 'Ready'), (3, 'Ready')]
    """
    return {(worker, what.__name__) for worker in workers}


def due_for(leaver: WorkerId, *workers: WorkerId) -> set[Due]:
    """Return the due answers with which these workers report that the leaving worker is gone."""
    return {(worker, f"Departed of worker {leaver}") for worker in workers}


def in_words(silent: set[Due]) -> list[str]:
    """Describe the due answers, one phrase for each kind.

    >>> in_words(due(messages.Ready, 3, 2) | due_for(2, 0))
    ['Departed of worker 2 from worker 0', 'Ready from worker 2, 3']
    """
    kinds = sorted({what for _, what in silent})
    return [
        f"{kind} from worker {', '.join(str(worker) for worker, what in sorted(silent) if what == kind)}"
        for kind in kinds
    ]


@dataclass(slots=True)
class _Change:
    """Base of both kinds of change."""

    change: int  # its number
    process: int  # the one that joins or leaves
    ids: tuple[WorkerId, ...]  # the workers of that process
    began: float
    stage: ChangeStage
    silent: set[Due]

    @property
    def committed(self) -> bool:
        """Whether it can no longer be aborted."""
        return ChangeStage.ABORTED not in TRANSITIONS[self.stage]

    def enter(self, stage: ChangeStage, silent: set[Due]) -> None:
        """Begin the next stage, which waits for these answers."""
        self.stage, self.silent = check_transition(TRANSITIONS, self.stage, stage), silent

    def _check(self) -> None:
        over = self.stage in (ChangeStage.DONE, ChangeStage.ABORTED)
        assert over or self.silent, f"change {self.change} waits for no answer, but is {self.stage}"


@dataclass(slots=True)
class JoinChange(_Change):
    """A process on its way in."""

    ask: JoinAsk
    server: WorkerId
    built: int = 0  # the most dataflows that a member has built or begun
    names: tuple[str, ...] = ()  # names of the dataflows that the joiner has built
    wanted: list[tuple[int, int, WorkerId]] = field(default_factory=list)  # capabilities not minted yet
    grants: list[messages.Grant] = field(default_factory=list)
    minters: list[WorkerId] = field(default_factory=list)  # members not asked yet
    seconds: dict[str, float] = field(default_factory=dict)  # phase -> duration
    bytes: int = 0

    def lap(self, phase: str, now: float) -> None:
        """Record the duration of a phase, and start timing the next."""
        self.seconds[phase], self.began = now - self.began, now

    def prepare(self, members: tuple[WorkerId, ...], now: float) -> Mail:
        """Return the mail that makes the members send their progress to the new workers."""
        self.enter(ChangeStage.PREPARING, due(messages.Prepared, *members) | due(messages.Ready, *self.ids))
        self.lap("connect", now)
        return [(member, messages.Prepare(self.change, self.ids, self.server)) for member in members]

    def mint(self, members: tuple[WorkerId, ...], now: float) -> Mail:
        """Return the mail to the next minter; when no capability or minter is left, the mail with all grants."""
        if self.wanted and self.minters:
            minter = self.minters.pop(0)
            self.silent = due(messages.Minted, minter)
            return [(minter, messages.MintAsk(self.change, tuple(self.wanted)))]
        self.enter(ChangeStage.SETTLING, due(messages.Settled, *members))
        self.lap("mint", now)
        return [
            (worker, messages.Grants(self.change, tuple(grant for grant in self.grants if grant.worker == worker)))
            for worker in self.ids
        ]

    def note(self, source: WorkerId, message: Any, now: float) -> bool:
        """Take a message into account; return whether this stage has everything that it waits for."""
        match message:
            case messages.Hello(_, built, wanted):
                self.names = max(self.names, built, key=len)
                self.wanted += [(dataflow, location, source) for dataflow, location in wanted]
            case messages.Prepared(_, built):
                self.built = max(self.built, built)
            case messages.Ready(_, seconds, bytes):
                for phase, duration in seconds.items():
                    self.seconds[phase] = max(duration, self.seconds.get(phase, 0.0))
                self.bytes += bytes
            case messages.Minted(_, grants, rest):
                self.grants += grants
                self.wanted = list(rest)
        self.silent -= due(type(message), source)
        if isinstance(message, messages.Settled) and not self.silent:
            self.lap("settle", now)
        return not self.silent


@dataclass(slots=True)
class LeaveChange(_Change):
    """A process on its way out."""

    asks: list[LeaveAsk]  # requests of workers of this process
    members: tuple[WorkerId, ...]  # before the change, including the leaving workers
    built: dict[WorkerId, int] = field(default_factory=dict)  # member -> dataflows that it has built or begun
    reasons: list[str] = field(default_factory=list)  # objections of members

    def close(self, fixed: int) -> Mail:
        """Return the mail that makes the leaving workers close their inputs; none if there are `reasons` against it.

        A leaving worker must have built each dataflow that any member has built or begun, and those below `fixed`,
        whose founders the coordinator has already named. Otherwise this adds a reason.
        """
        begun = max(fixed, *self.built.values())
        for worker in self.ids:
            if self.built[worker] < begun:  # the dataflow would miss this founder
                self.reasons.append(f"worker {worker} has not built dataflow {self.built[worker]} yet")
        if self.reasons:
            return []
        self.enter(ChangeStage.CLOSING, due(messages.Retiring, *self.ids))
        return [(worker, messages.Retire(self.change)) for worker in self.ids]

    def drain(self) -> None:
        """After the commit, wait until each member has received the lane ends of each leaving worker."""
        silent: set[Due] = set()
        for leaver in self.ids:
            silent |= due_for(leaver, *(member for member in self.members if member != leaver))
        self.enter(ChangeStage.DRAINING, silent)

    def note(self, source: WorkerId, message: Any, now: float) -> bool:
        """Take a message into account; return whether this stage has everything that it waits for."""
        match message:
            case messages.Objections(_, built, reasons):
                self.built[source] = built
                self.reasons += reasons
            case messages.Departed(_, worker):
                self.silent -= due_for(worker, source)
        self.silent -= due(type(message), source)
        return not self.silent
