"""The change of the membership that is under way, as one worker follows it: who joins or leaves, and how far it is.

1. What newcomers send is kept until their commit has come here; then it is delivered, lane by lane in order. Mail is
   read at once: nothing in it counts as a member's word.
2. One member serves a join: it records progress for the newcomers until the commit or the abort.
3. A leaving worker ends each of its lanes. It has departed for this worker when the last of them has ended.
"""

from collections.abc import Iterable
from dataclasses import field

from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.channel import MAIL, Envelope, Lane
from megaflow.timely.membership import WorkerId
from megaflow.timely.rescale.bootstrap_server import Server


@dataclass(slots=True)
class FollowedChange:
    """One change after the other, and what there is between them: nothing. One writer: the worker's `Member`."""

    number: int = 0  # 0: none is under way here
    ids: tuple[WorkerId, ...] = ()  # who joins or leaves
    is_join: bool = False  # or a leave
    committed: bool = False
    server: Server | None = None  # of a join, where it is served from
    _early: dict[WorkerId, list[Envelope]] = field(default_factory=dict)  # newcomer -> what it sent before its commit
    _open: set[tuple[WorkerId, Lane]] = field(default_factory=set)  # lanes of leaving workers that have not ended

    def begin(self, number: int, ids: tuple[WorkerId, ...], is_join: bool) -> None:
        """Follow this one from now on."""
        self.number = number
        self.ids = ids
        self.is_join = is_join
        self.committed = False

    def end(self) -> None:
        """Follow none: it is done, or was given up."""
        self.number = 0
        self.ids = ()

    # A join

    def expect(self, ids: Iterable[WorkerId]) -> None:
        """Keep what these send until they are admitted."""
        self._early = {worker: [] for worker in ids}

    @property
    def is_expecting(self) -> bool:
        """Whether `keep` must see what arrives."""
        return bool(self._early)

    def keep(self, envelope: Envelope) -> bool:
        """Keep it if it must wait for its sender's commit; tell whether it must."""
        early = self._early.get(envelope.source)
        if early is None or envelope.channel == MAIL:
            return False
        early.append(envelope)
        return True

    def admit(self) -> list[list[Envelope]]:
        """Return what newcomers have sent, which are members now; keep no more of it."""
        early = list(self._early.values())
        self._early = {}
        return early

    def serve(self, server: Server) -> None:
        """Serve the newcomers from here."""
        self.server = server

    def stop_serving(self) -> None:
        """Record no more for newcomers."""
        if self.server is not None:
            self.server.stop()
            self.server = None

    # A leave

    def await_lane_ends(self, leavers: Iterable[WorkerId]) -> None:
        """Wait for these to end their lanes."""
        self._open = {(worker, lane) for worker in leavers for lane in Lane}

    def has_departed(self, worker: WorkerId, lane: Lane) -> bool:
        """Note that a worker has ended a lane; tell whether it was its last."""
        self._open.discard((worker, lane))
        return not any(each == worker for each, _ in self._open)

    def _check(self) -> None:
        assert not self.number or self.ids, "a change is of some workers"
        assert self.server is None or (self.is_join and not self.committed), "a join takes a snapshot"
