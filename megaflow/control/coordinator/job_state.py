"""What one controller leaves to the next: all that the next one cannot ask for.

The part changes hands only when it is at rest:

1. Nothing that was begun is unfinished: no change of the membership, no reconfiguration, no commit that a source has
   not taken in, no Spark batch that is being staged, no worker yet to be told to read the launcher's lines, no
   checkpoint that is neither committed nor given up. So no
   answer is owed but to requests that have not begun, and those are asked again; a commit that was answered already is
   known by its batch.
2. The probe behind the outputs has passed the epoch of the last command. As each source holds its capability until it
   has obeyed the commands before it, and each stateful operator until it has read them, all workers have read all that
   the old writer wrote. What the new one writes comes by another way and could overtake it otherwise.
3. Reports that are still under way to the old coordinator are passed on by the engine's hand-over, which carries this
   state, too: see `megaflow.timely.rescale.handover`.
"""

from dataclasses import dataclass
from typing import Final

from megaflow.control.messages import CommitRequest, KeptPlan, SourceEnded, StatusQuery, StopJob
from megaflow.control.reports import CheckpointStatus, LedgerEntry
from megaflow.megaphone.routing import RoutingTable

BEFORE_HAND_OVER: Final = (StatusQuery, StopJob, CommitRequest, SourceEnded)
"""Requests that are answered while all others are held back: what begins nothing, and what ends what was begun."""
HELD_MAX: Final = 1_000
"""Requests that are held back."""


@dataclass(frozen=True, slots=True)
class RosterState:
    """What `Roster` knows beside the membership; no process is leaving, no table on its way."""

    processes: tuple[tuple[int, ...], ...]  # the workers of each
    ports: tuple[tuple[int, str, int], ...]  # worker, host, port
    routed: tuple[int, ...]  # know the routing table
    closing: tuple[int, ...]  # were told to close their sources
    closed: tuple[int, ...]  # have said that they did


@dataclass(frozen=True, slots=True)
class CommitsState:
    """What `Commits` knows when every commit is taken in and answered."""

    queries: int  # still to end
    ended: tuple[str, ...]  # queries
    epochs: tuple[tuple[str, int, int], ...]  # query, batch, epoch; oldest first
    newest: tuple[tuple[str, int], ...]  # query, newest batch that was issued
    durable: tuple[tuple[str, int], ...] | None = None  # query, newest durable batch; None: nothing is durable


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What `Checkpoints` knows when none is under way."""

    next: int  # the number of the next one
    since: int | None  # the last that was committed
    next_worker: int  # the lowest id that no worker has had, when one was begun last
    status: CheckpointStatus  # ages count from the moment when it is received


@dataclass(frozen=True, slots=True)
class JobState:
    """What a `Controller` knows when nothing is under way."""

    epoch: int  # of the control stream
    command: int  # the next number
    question: int  # the next id; answers to earlier ones still come
    table: RoutingTable
    unread: tuple[int, ...]  # numbers of splits
    pushed: bool  # the launcher has more lines
    roster: RosterState
    commits: CommitsState
    ledger: tuple[LedgerEntry, ...]
    starts: int  # the number of the next `StartWorkers`; answers to earlier ones still come
    plan: KeptPlan | None  # its runner comes with its next step
    checkpoints: CheckpointState | None = None  # None: nothing is durable
