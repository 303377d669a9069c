"""What the controller is told and what it tells its caller to do: two small languages of values."""

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
from megaflow.control.coordinator.job_state import JobState
from megaflow.control.launcher_messages import EndProcess, Started, StartFailed, StartWaits
from megaflow.control.messages import Accepted, CommandProgress, Done, Moved, Refused, Request, StatusAsk, TrialAsk
from megaflow.megaphone.routing import Numbered
from megaflow.quick_dataclass import dataclass
from megaflow.timely.rescale.messages import JoinDue, Joined, LeaveDue, Left

Answer: TypeAlias = Accepted | CommandProgress | Done | Refused | Moved
Launched: TypeAlias = Started | StartFailed | StartWaits  # what the launcher says to a `StartWorkers`
LauncherWord: TypeAlias = Launched | Committed | CommitFailed
ForLauncher: TypeAlias = EndProcess | CheckpointBegun | CheckpointReady | CheckpointAbandoned
"""Instructions that are messages: the launcher is to be told so."""

# Events ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A client asked for something; the answers go to `client`."""

    client: Hashable
    request: Request


@dataclass(frozen=True, slots=True)
class Gone:
    """A client has closed its connection; what it asked for goes on."""

    client: Hashable


@dataclass(frozen=True, slots=True)
class Mailed:
    """A worker reported something."""

    source: int
    body: Any


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; the output probe stands at `frontier`, None when it is done."""

    frontier: int | None
    works: bool = False  # records are on their way between operators; known when all lines are read


@dataclass(frozen=True, slots=True)
class Discovered:
    """A source of the program was asked for partitions."""

    input: str  # its name
    partitions: tuple[bytes, ...]  # encoded; perhaps known ones, too
    over: bool  # no more will ever come
    bounds: tuple[int | None, ...] = ()  # of each: microseconds of event time before which it has nothing; perhaps none
    complete: bool = False  # these are all that there are: what is read to its end and not among them is gone


@dataclass(frozen=True, slots=True)
class ChangeRefused:
    """These workers do not leave, or do not join, after all."""

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
    """Have this many processes started, which then join; answered by `Launched` with this number."""

    count: int
    number: int
    other_code: bool = False  # whether they may run other code than the job


@dataclass(frozen=True, slots=True)
class AskLeave:
    """Ask the engine to have the process of this worker leave: `LeaveDue`, then `Left` or `ChangeRefused`."""

    worker: int


@dataclass(frozen=True, slots=True)
class Rule:
    """Answer the engine's `JoinDue` or `LeaveDue`: why these do not join or leave; None if they may."""

    ids: tuple[int, ...]
    reason: str | None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Have the engine deny the leaves that wait, and abort its change if it still can; answered by `ChangeRefused`."""

    reason: str


@dataclass(frozen=True, slots=True)
class CallOff:
    """Have the engine abort the join of these workers if it is not committed; answered by `ChangeRefused` if it does.

    Nothing happens if the join waits for its turn.
    """

    ids: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Resign:
    """Leave the control stream and all that follows to another worker. It is the controller's last word.

    Nobody has answered `pending`; whoever asked is to ask there.
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
