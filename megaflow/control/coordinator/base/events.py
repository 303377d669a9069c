"""Events that the controller takes in, and instructions that it returns to its caller: two sets of plain values."""

from collections.abc import Hashable
from typing import Any, TypeAlias

from megaflow.control.checkpoint_messages import (
    CheckpointAbandoned,
    CheckpointBegun,
    CheckpointReady,
    CommitFailed,
    Committed,
    UnderWayAtJoin,
)
from megaflow.control.coordinator.base.job_state import JobState
from megaflow.control.launcher_messages import (
    CancelStarts,
    EndProcess,
    Reached,
    Started,
    StartFailed,
    StartWaits,
    ToldOnce,
    TryToReach,
)
from megaflow.control.messages import Accepted, CommandProgress, Done, Moved, Refused, Request, StatusAsk, TrialAsk
from megaflow.megaphone.base.routing import Numbered
from megaflow.quick_dataclass import dataclass
from megaflow.timely.rescale.messages import JoinDue, Joined, LeaveDue, Left

Answer: TypeAlias = Accepted | CommandProgress | Done | Refused | Moved
Launched: TypeAlias = Started | StartFailed | StartWaits  # the launcher's answers to a `StartWorkers`
LauncherWord: TypeAlias = Launched | Reached | Committed | CommitFailed
ForLauncher: TypeAlias = (
    CancelStarts | EndProcess | TryToReach | CheckpointBegun | CheckpointReady | CheckpointAbandoned | ToldOnce
)
"""Instructions that the driver sends to the launcher as messages."""

# Events ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A client has sent a request; the answers go to `client`."""

    client: Hashable
    request: Request

    def accepted(self, epoch: int) -> "Reply":
        """Return the answer that its command is issued at `epoch`."""
        return Reply(self.client, Accepted(self.request.id, epoch))

    def done(self, result: Any) -> "Reply":
        """Return the answer that it is done."""
        return Reply(self.client, Done(self.request.id, result))

    def refused(self, reason: str) -> "Reply":
        """Return the answer that nothing has changed."""
        return Reply(self.client, Refused(self.request.id, reason))


@dataclass(frozen=True, slots=True)
class Gone:
    """A client has closed its connection; a change that it requested and that has begun continues."""

    client: Hashable


@dataclass(frozen=True, slots=True)
class Mailed:
    """A worker has sent a report."""

    source: int
    body: Any


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; the output probe stands at `frontier`, None when it is done."""

    frontier: int | None
    works: bool = False  # records are moving between operators; computed only once all lines are read


@dataclass(frozen=True, slots=True)
class Discovered:
    """A source of the program has answered which partitions it has."""

    input: str  # its name
    partitions: tuple[bytes, ...]  # encoded; some may be known already
    over: bool  # the source will name no others
    bounds: tuple[int | None, ...] = ()  # of each: microseconds of event time before which it has nothing; may be empty
    complete: bool = False  # these are all: a partition that was read to its end and is not among them is gone
    sights: tuple[tuple[bytes, bytes], ...] = ()  # (partition, what its source says of it) of new ones, encoded


@dataclass(frozen=True, slots=True)
class ChangeRefused:
    """The engine has refused or aborted the leave or join of these workers."""

    ids: tuple[int, ...]
    reason: str


# Instructions ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inject:
    """Put this on the control stream, at its present time."""

    command: Numbered


@dataclass(frozen=True, slots=True)
class Advance:
    """Advance the control stream to this time."""

    time: int


@dataclass(frozen=True, slots=True)
class CloseControl:
    """Close the control stream: nothing will follow."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a client; if it is gone, forget it."""

    client: Hashable
    message: Answer


@dataclass(frozen=True, slots=True)
class Mail:
    """Send this to a worker (perhaps this one)."""

    target: int
    body: StatusAsk | TrialAsk | Committed | UnderWayAtJoin


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Tell the launcher to start this many processes, which then join; `Launched` answers with this number."""

    count: int
    number: int
    other_code: bool = False  # whether they may run other code than the job


@dataclass(frozen=True, slots=True)
class AskLeave:
    """Ask the engine to have the process of this worker leave: `LeaveDue`, then `Left` or `ChangeRefused`."""

    worker: int


@dataclass(frozen=True, slots=True)
class Rule:
    """Answer the engine's `JoinDue` or `LeaveDue`: why these workers may not join or leave; None if they may."""

    ids: tuple[int, ...]
    reason: str | None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Tell the engine to deny waiting leaves and abort its change if it still can; `ChangeRefused` answers."""

    reason: str


@dataclass(frozen=True, slots=True)
class CallOff:
    """Tell the engine to abort the join of these workers unless it is committed; `ChangeRefused` answers if it does.

    Nothing happens if the join waits for its turn.
    """

    ids: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Resign:
    """Hand the control stream and all later work to another worker. It is the controller's last instruction.

    The requests in `pending` are unanswered; their clients repeat them at the successor.
    """

    successor: int
    state: JobState
    pending: tuple[Asked, ...]


Event: TypeAlias = (
    Asked | Gone | Mailed | Ticked | JoinDue | LeaveDue | Joined | Left | ChangeRefused | LauncherWord | Discovered
)
Instruction: TypeAlias = (
    Inject | Advance | CloseControl | Reply | Mail | StartWorkers | ForLauncher | AskLeave | Rule | GiveUp | CallOff
    | Resign
)  # fmt: skip
