"""What a test can do to the membership of a simulated cluster: see `SimulatedCluster.at`."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Join:
    """A worker joins, through `server` (None: the coordinator), gets its routing state and a fair share of the bins."""

    server: int | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """A worker's bins move to the others, then it leaves. None: the highest id that may. It is refused if it must."""

    worker: int | None = None


@dataclass(frozen=True, slots=True)
class KillJoiner:
    """The worker that joins just before this dies `after` so many actions, unless it is a member by then.

    To the others it is as if it had never been.
    """

    after: int = 0


Change: TypeAlias = Join | Leave | KillJoiner
