"""What workers and processes say to each other when the membership changes, all in one place.

One *change* is a process that joins or leaves; each has a number, which every message carries. Messages of a change
that is over are dropped. A *hand-over*, from one coordinator to the next, takes place between changes: see `handover`.

1. *A joining process and any member's port* (role "join"): a hello, answered by `Admission` or `Denied`.
2. *Mail* between workers, topic `TOPIC`; to, from or by the coordinator unless it says otherwise.
3. *On a lane*, `Channel.membership(lane)`: what must keep its place among the other messages of that lane.
4. *Events*, for the program on each member: see `Member.subscribe`.
5. *To the program that supervises*, on the coordinating worker: see `Supervisor`.
"""

from dataclasses import field
from typing import Any, TypeAlias

from megaflow.quick_dataclass import dataclass
from megaflow.timely.membership import Membership, WorkerId

TOPIC = "megaflow.rescale"

Process: TypeAlias = tuple[str, int, tuple[WorkerId, ...]]  # host, port, ids of its workers
Foundings: TypeAlias = tuple[tuple[int, Membership], ...]
"""(number of a dataflow, the membership that founded it and those after it), by number; the first number is 0."""

Stamps: TypeAlias = list[tuple[int, Any, int]]  # (location, time, delta)

# 1. The way in ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admission:
    """What a joining process is told, so that it can connect and build."""

    change: int
    process: int  # its number
    ids: tuple[WorkerId, ...]  # of its workers
    server: WorkerId  # who hands it the progress state
    membership: Membership  # present, without it
    processes: dict[int, Process]  # of the members
    foundings: Foundings


@dataclass(frozen=True, slots=True)
class Denied:
    """Nothing has changed, and why."""

    reason: str


# 2. Mail ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinAsk:
    """A process wants in. From the port that it came to, through a worker there, to the coordinator."""

    key: int  # of the connection at that port
    host: str  # where the process listens
    port: int
    workers: int
    server: WorkerId | None  # None: the coordinator chooses
    via: WorkerId | None = None  # the worker that passes the answer back; set by it


@dataclass(frozen=True, slots=True)
class Answer:
    """The coordinator's answer to a `JoinAsk`, for worker `via` to pass back."""

    key: int
    answer: Admission | Denied


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The connection to a process that is no member yet has ended. From the transport to its own workers, and on."""

    ids: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """A joining worker has its connections and has built what it will build first: begin."""

    change: int
    built: tuple[str, ...]  # the names of its dataflows, by number
    wanted: tuple[tuple[int, int], ...]  # (dataflow, source location) where it would like a capability


@dataclass(frozen=True, slots=True)
class Prepare:
    """To members: tell these new workers all progress from now on."""

    change: int
    ids: tuple[WorkerId, ...]
    server: WorkerId


@dataclass(frozen=True, slots=True)
class Prepared:
    """From a member: it does; `built` dataflows it has built or begun."""

    change: int
    built: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """From the server to a joining worker: the sum of all progress that it has folded."""

    change: int
    built: int
    unbuilt: tuple[int, ...]  # of those below `built`, the ones that it is just building
    # dataflow -> (name, signature, changes since the initial counts, sender -> number of its next batch)
    running: dict[int, tuple[str, tuple[str, ...], Stamps, dict[WorkerId, int]]]


@dataclass(frozen=True, slots=True)
class RangeAsk:
    """From a joining worker to the server: batches start to end - 1 of a sender, which nobody else will send it."""

    change: int
    dataflow: int
    sender: WorkerId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """The sum of these batches; None if the dataflow is complete by now."""

    change: int
    dataflow: int
    sender: WorkerId
    start: int
    end: int
    changes: Stamps | None


@dataclass(frozen=True, slots=True)
class Ready:
    """From a joining worker: it knows what the members know."""

    change: int
    seconds: dict[str, float]  # phase -> how long it took
    bytes: int  # of snapshot and ranges


@dataclass(frozen=True, slots=True)
class Abort:
    """The change does not take place; a join only before its commit, a leave only before its own."""

    change: int
    joining: tuple[WorkerId, ...]  # who does not join, then
    reason: str


@dataclass(frozen=True, slots=True)
class Commit:
    """From now on this is the membership. `founds`: the first dataflow that it founds."""

    change: int
    membership: Membership
    founds: int
    processes: dict[int, Process]


@dataclass(frozen=True, slots=True)
class MintAsk:
    """To one member after another: mint a capability for each of these, where you hold one."""

    change: int
    wanted: tuple[tuple[int, int, WorkerId], ...]  # (dataflow, source location, for whom)


@dataclass(frozen=True, slots=True)
class Grant:
    """A capability that one worker minted for another."""

    dataflow: int
    location: int
    worker: WorkerId  # whose it is
    time: Any
    minter: WorkerId
    number: int  # of the minter's batch that counts it


@dataclass(frozen=True, slots=True)
class Minted:
    """From a member: what it minted; `rest` is what it holds no capability for."""

    change: int
    grants: tuple[Grant, ...]
    rest: tuple[tuple[int, int, WorkerId], ...]


@dataclass(frozen=True, slots=True)
class Grants:
    """To a new member: its capabilities; where there is none its sources are closed."""

    change: int
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """From every member, old and new: it has applied the change, and folded every batch that minted for others."""

    change: int


@dataclass(frozen=True, slots=True)
class Finished:
    """To all: the change is done."""

    change: int


@dataclass(frozen=True, slots=True)
class FoundersAsk:
    """From a member that builds a dataflow while a change is under way: which membership founds it?"""

    dataflow: int


@dataclass(frozen=True, slots=True)
class FoundersAnswer:
    """The coordinator's word."""

    dataflow: int
    founders: Membership


@dataclass(frozen=True, slots=True)
class LeaveAsk:
    """The process of this worker wants to leave."""

    worker: WorkerId
    reply_to: WorkerId | None = None  # who is told with `LeaveAnswer`


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """None: it has left; otherwise why it stays."""

    worker: WorkerId
    reason: str | None


@dataclass(frozen=True, slots=True)
class MayLeave:
    """To members: has anybody something against it that these leave?"""

    change: int
    ids: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class Objections:
    """From a member: none, or why not; `built` as in `Prepared`."""

    change: int
    built: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retire:
    """To the leaving workers: read nothing new, close your inputs."""

    change: int


@dataclass(frozen=True, slots=True)
class Retiring:
    """From a leaving worker: its inputs are closed."""

    change: int


@dataclass(frozen=True, slots=True)
class Departed:
    """From a member: it has folded all batches and received all records of this leaving worker."""

    change: int
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class EndAsk:
    """From a worker whose dataflows are complete: it would like to say goodbye."""


@dataclass(frozen=True, slots=True)
class MayEnd:
    """To all: no change is under way, and none will come."""


@dataclass(frozen=True, slots=True)
class Report:
    """For the program that coordinates, wherever it is: see `Member.report`."""

    body: Any


@dataclass(frozen=True, slots=True)
class Succession:
    """From the coordinator to its successor: all that it knows. No change is under way, no question unanswered."""

    membership: Membership  # the next version, with the successor as its coordinator
    processes: dict[int, Process]
    foundings: Foundings
    change: int  # number of the next one
    worker: WorkerId  # the next one's id
    process: int  # number of the next one
    waiting: tuple[JoinAsk | LeaveAsk, ...]  # in order
    luggage: Any  # from the program of the one to that of the other; None: nothing
    reports: tuple[tuple[WorkerId, Any], ...]  # to that program, by whom, that it has not heard; in order


@dataclass(frozen=True, slots=True)
class Succeeding:
    """The successor's answer: it keeps what is for the coordinator."""


@dataclass(frozen=True, slots=True)
class Handover:
    """From the coordinator to all members, its last word: there is another one."""

    membership: Membership


@dataclass(frozen=True, slots=True)
class Fence:
    """A member's answer, its last word to that coordinator: it speaks to the new one from now on."""


@dataclass(frozen=True, slots=True)
class PassedOn:
    """From the old coordinator to the new one: what came to the old one."""

    source: WorkerId
    message: Any


# 3. On a lane -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Marker:
    """First on a member's progress lane to a joining worker: where its batches begin."""

    change: int
    built: int
    unbuilt: tuple[int, ...]  # as in `Snapshot`
    running: dict[int, int]  # dataflow -> number of the next batch


@dataclass(frozen=True, slots=True)
class CapabilityGate:
    """First on a new member's progress lanes: fold these batches of others before any of mine."""

    change: int
    minted: tuple[tuple[int, WorkerId, int], ...]  # (dataflow, minter, number)


@dataclass(frozen=True, slots=True)
class NoMoreRecords:
    """Last on a member's record lanes to a leaving worker."""

    change: int


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """Last on each lane of a leaving worker."""

    change: int


# 4. Events ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """These workers have become members."""

    change: int
    ids: tuple[WorkerId, ...]
    membership: Membership
    process: Process
    seconds: dict[str, float] = field(default_factory=dict)  # phase -> duration; on the coordinator only
    bytes: int = 0  # of snapshots and ranges; on the coordinator only


@dataclass(frozen=True, slots=True)
class Left:
    """These workers are members no more, and gone."""

    change: int
    ids: tuple[WorkerId, ...]
    membership: Membership


@dataclass(frozen=True, slots=True)
class Aborted:
    """A change did not take place."""

    change: int
    ids: tuple[WorkerId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Another worker coordinates: on every member, when it has been told."""

    membership: Membership


@dataclass(frozen=True, slots=True)
class Succeeded:
    """This worker coordinates from now on: only here, before it hears or decides anything as the coordinator."""

    luggage: Any  # what the program of the one before gave along; None: nothing
    membership: Membership


# 5. To the program that supervises ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinDue:
    """A process is to join, and its workers are to have these ids."""

    ids: tuple[WorkerId, ...]
    address: tuple[str, int] = ("", 0)  # where it listens


@dataclass(frozen=True, slots=True)
class LeaveDue:
    """The process with these workers is to leave."""

    ids: tuple[WorkerId, ...]


Event: TypeAlias = Joined | Left | Aborted | HandedOver | Succeeded
