"""All messages between workers and between processes about changes of the membership.

One *change* is a process that joins or leaves. Each change has a number, which all its messages carry. Messages of a
change that is over are dropped. A *hand-over* from one coordinator to the next takes place between changes: see
`handover`.

1. *A joining process and the port of any member* (role "join"): a hello, answered by `Admission` or `Denied`.
2. *Mail* between workers, topic `TOPIC`. The coordinator is the sender or the receiver, unless the message says
   otherwise.
3. *On a lane*, `Channel.membership(lane)`: messages that must keep their place among the other messages of that lane.
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
"""(number of a dataflow, founding membership of that dataflow and those after it), by number; the first number is 0."""

Stamps: TypeAlias = list[tuple[int, Any, int]]  # (location, time, delta)


@dataclass(frozen=True, slots=True)
class OfChange:
    """Message or event of one change."""

    change: int


# 1. The way in ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admission(OfChange):
    """Permission to join, with all that the joining process needs to connect and build."""

    process: int  # number of the joining process
    ids: tuple[WorkerId, ...]  # of its workers
    server: WorkerId  # the worker that sends it the progress state
    membership: Membership  # the present one, without the joiner
    processes: dict[int, Process]  # of the members
    foundings: Foundings


@dataclass(frozen=True, slots=True)
class Denied:
    """Refusal of a request to join, with the reason. Nothing has changed."""

    reason: str


# 2. Mail ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinAsk:
    """Request of a process to join. A worker at the port that it contacted sends it on to the coordinator."""

    key: int  # of the connection at that port
    host: str  # the address on which the process listens
    port: int
    workers: int
    server: WorkerId | None  # None: the coordinator chooses
    via: WorkerId | None = None  # the worker that returns the answer; that worker fills this in


@dataclass(frozen=True, slots=True)
class Answer:
    """The coordinator's answer to a `JoinAsk`; worker `via` returns it to the process."""

    key: int
    answer: Admission | Denied


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The connection between a member's process and a process that is not a member yet has ended.

    The transport sends this to its own workers. A member passes it on to the coordinator. A joining worker raises
    JoinDenied.
    """

    ids: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class Hello(OfChange):
    """From a joining worker: it has its connections and has built its first dataflows, so the join can begin."""

    built: tuple[str, ...]  # the names of its dataflows, by number
    wanted: tuple[tuple[int, int], ...]  # (dataflow, source location) of each capability that it wants


@dataclass(frozen=True, slots=True)
class Prepare(OfChange):
    """To members: send these new workers all progress from now on."""

    ids: tuple[WorkerId, ...]
    server: WorkerId


@dataclass(frozen=True, slots=True)
class Prepared(OfChange):
    """From a member: it sends its progress to the new workers. It has built or begun `built` dataflows."""

    built: int


@dataclass(frozen=True, slots=True)
class Snapshot(OfChange):
    """From the server to a joining worker: the sum of all progress that it has folded."""

    built: int
    unbuilt: tuple[int, ...]  # dataflows below `built` that it is still building
    # dataflow -> (name, signature, changes since the initial counts, sender -> number of its next batch)
    running: dict[int, tuple[str, tuple[str, ...], Stamps, dict[WorkerId, int]]]


@dataclass(frozen=True, slots=True)
class BatchRange(OfChange):
    """Batches `start` to `end - 1` of a sender. The joiner gets them from no other worker than the server."""

    dataflow: int
    sender: WorkerId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RangeAsk(BatchRange):
    """From a joining worker to the server: a request for these batches."""


@dataclass(frozen=True, slots=True)
class RangeAnswer(BatchRange):
    """The sum of these batches; None if the dataflow is complete by now."""

    changes: Stamps | None


@dataclass(frozen=True, slots=True)
class Ready(OfChange):
    """From a joining worker: it knows as much as the members."""

    seconds: dict[str, float]  # phase -> duration
    bytes: int  # of snapshot and ranges


@dataclass(frozen=True, slots=True)
class Abort(OfChange):
    """The change does not take place. It is sent only before the commit of the change."""

    joining: tuple[WorkerId, ...]  # the workers that do not join; empty for a leave
    reason: str


@dataclass(frozen=True, slots=True)
class Commit(OfChange):
    """The change takes place: `membership` is valid from now on and founds the dataflows from number `founds` on."""

    membership: Membership
    founds: int
    processes: dict[int, Process]


@dataclass(frozen=True, slots=True)
class MintAsk(OfChange):
    """To one member after another: mint each of these capabilities at whose location you hold one yourself."""

    wanted: tuple[tuple[int, int, WorkerId], ...]  # (dataflow, source location, receiver)


@dataclass(frozen=True, slots=True)
class Grant:
    """A capability that one worker minted for another."""

    dataflow: int
    location: int
    worker: WorkerId  # the receiver
    time: Any
    minter: WorkerId
    number: int  # of the minter's batch that counts the capability


@dataclass(frozen=True, slots=True)
class Minted(OfChange):
    """From a member: the capabilities that it minted. It holds none of those in `rest`."""

    grants: tuple[Grant, ...]
    rest: tuple[tuple[int, int, WorkerId], ...]


@dataclass(frozen=True, slots=True)
class Grants(OfChange):
    """To a new member: its capabilities. Sources without one are closed."""

    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class Settled(OfChange):
    """From every member, old and new: it has applied the change and has folded every minting batch."""


@dataclass(frozen=True, slots=True)
class Finished(OfChange):
    """To all members, including those that leave: the change is done."""


@dataclass(frozen=True, slots=True)
class FoundersAsk:
    """From a member that builds a dataflow while a change is under way: which membership founds it?"""

    dataflow: int


@dataclass(frozen=True, slots=True)
class FoundersAnswer:
    """The coordinator's answer to `FoundersAsk`."""

    dataflow: int
    founders: Membership


@dataclass(frozen=True, slots=True)
class LeaveAsk:
    """Request that the process of this worker leaves."""

    worker: WorkerId
    reply_to: WorkerId | None = None  # the worker that receives the `LeaveAnswer`


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """Answer to a `LeaveAsk`: None if the process has left, otherwise the reason why it stays."""

    worker: WorkerId
    reason: str | None


@dataclass(frozen=True, slots=True)
class MayLeave(OfChange):
    """To members: do you object to the leave of these workers?"""

    ids: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class Objections(OfChange):
    """From a member: its objections, if any. `built` as in `Prepared`."""

    built: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retire(OfChange):
    """To the leaving workers: read nothing new, and close your inputs."""


@dataclass(frozen=True, slots=True)
class Retiring(OfChange):
    """From a leaving worker: its inputs are closed."""


@dataclass(frozen=True, slots=True)
class Departed(OfChange):
    """From a member: it has folded all batches and received all records of this leaving worker."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class EndAsk:
    """From a worker whose program has ended: the cluster is to end. `MayEnd` answers when no change is under way."""


@dataclass(frozen=True, slots=True)
class MayEnd:
    """To all members: no change is under way, and none will come."""


@dataclass(frozen=True, slots=True)
class Report:
    """For the coordinator's program, wherever it runs: see `Member.report`."""

    body: Any


@dataclass(frozen=True, slots=True)
class Succession:
    """From the coordinator to its successor: all that it knows. No change is under way, and no question is open."""

    membership: Membership  # the next version, with the successor as its coordinator
    processes: dict[int, Process]
    foundings: Foundings
    change: int  # number of the next change
    worker: WorkerId  # id of the next new worker
    process: int  # number of the next new process
    waiting: tuple[JoinAsk | LeaveAsk, ...]  # in order
    luggage: Any  # from the old coordinator's program to the successor's; None: nothing
    reports: tuple[tuple[WorkerId, Any], ...]  # (sender, body), not processed by the old program; in order


@dataclass(frozen=True, slots=True)
class Succeeding:
    """The successor's answer: it keeps messages for the coordinator from now on."""


@dataclass(frozen=True, slots=True)
class Handover:
    """The coordinator's last message to all members: the role has moved to the coordinator of this membership."""

    membership: Membership


@dataclass(frozen=True, slots=True)
class Fence:
    """A member's answer to `Handover`, its last message to the old coordinator: it now addresses the new one."""


@dataclass(frozen=True, slots=True)
class PassedOn:
    """A message that the old coordinator received and passes on to the new one."""

    source: WorkerId
    message: Any


# 3. On a lane -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Marker(OfChange):
    """First on a member's progress lane to a joining worker: the numbers at which its batches begin."""

    built: int
    unbuilt: tuple[int, ...]  # as in `Snapshot`
    running: dict[int, int]  # dataflow -> number of its next batch


@dataclass(frozen=True, slots=True)
class CapabilityGate(OfChange):
    """First on a new member's progress lanes: fold these batches of others before any of this sender's."""

    minted: tuple[tuple[int, WorkerId, int], ...]  # (dataflow, minter, number)


@dataclass(frozen=True, slots=True)
class NoMoreRecords(OfChange):
    """Last on a member's record lanes to a leaving worker."""


@dataclass(frozen=True, slots=True)
class LaneEnd(OfChange):
    """Last on each lane of a leaving worker."""


# 4. Events ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined(OfChange):
    """These workers have become members."""

    ids: tuple[WorkerId, ...]
    membership: Membership
    process: Process
    seconds: dict[str, float] = field(default_factory=dict)  # phase -> duration; on the coordinator only
    bytes: int = 0  # of snapshots and ranges; on the coordinator only


@dataclass(frozen=True, slots=True)
class Left(OfChange):
    """These workers are no longer members; every member has received all that they sent."""

    ids: tuple[WorkerId, ...]
    membership: Membership


@dataclass(frozen=True, slots=True)
class Aborted(OfChange):
    """A change did not take place."""

    ids: tuple[WorkerId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Another worker coordinates. Emitted on every member, when it receives the `Handover`."""

    membership: Membership


@dataclass(frozen=True, slots=True)
class Succeeded:
    """This worker coordinates from now on.

    Emitted only on this worker, before it hears or decides anything as the coordinator.
    """

    luggage: Any  # from the program of the coordinator before it; None: nothing
    membership: Membership


# 5. To the program that supervises ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinDue:
    """A process asks to join, and its workers would get these ids."""

    ids: tuple[WorkerId, ...]
    address: tuple[str, int] = ("", 0)  # the address on which it listens


@dataclass(frozen=True, slots=True)
class LeaveDue:
    """The process with these workers asks to leave."""

    ids: tuple[WorkerId, ...]


Event: TypeAlias = Joined | Left | Aborted | HandedOver | Succeeded
