"""What a test can do to the membership of a simulated cluster: see `SimulatedCluster.at`."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Join:
    """A worker joins, through `server` (None: the coordinator), gets its routing state and a fair share of the bins."""

    server: int | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """A worker's bins move to the others, then it leaves; the coordinator hands over first. None: the highest other id.

    It is refused if it must.
    """

    worker: int | None = None


@dataclass(frozen=True, slots=True)
class KillJoiner:
    """The worker that joins just before this dies `after` so many actions, unless it is a member by then.

    To the others it is as if it had never been.
    """

    after: int = 0


@dataclass(frozen=True, slots=True)
class HandOver:
    """The worker with the lowest id but the coordinator's coordinates from now on, and commands are injected there."""


Change: TypeAlias = Join | Leave | KillJoiner | HandOver
