"""The membership change under way, as one worker follows it: which workers join or leave, and how far the change is.

1. The worker keeps the envelopes of newcomers until it receives their commit. Then it delivers them, each lane in its
   order. It reads mail at once, because no mail message depends on its sender being a member.
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
    """State of the change under way; reused for the next one. One writer: the worker's `Member`."""

    number: int = 0  # 0 if none is under way here
    ids: tuple[WorkerId, ...] = ()  # the workers that join or leave
    is_join: bool = False  # False for a leave
    committed: bool = False
    server: Server | None = None  # on the member that serves a join
    early: dict[WorkerId, list[Envelope]] = field(default_factory=dict)
    """Newcomer -> its envelopes before the commit. With one, every incoming envelope must be offered to `keep`."""
    _open: set[tuple[WorkerId, Lane]] = field(default_factory=set)  # lanes of leaving workers that have not ended

    def begin(self, number: int, ids: tuple[WorkerId, ...], is_join: bool) -> None:
        """Follow this change from now on."""
        self.number = number
        self.ids = ids
        self.is_join = is_join
        self.committed = False

    def end(self) -> None:
        """Stop following: the change is done or was aborted."""
        self.number = 0
        self.ids = ()

    # A join

    def expect(self, ids: Iterable[WorkerId]) -> None:
        """Keep the envelopes of these workers until they are admitted."""
        self.early = {worker: [] for worker in ids}

    def keep(self, envelope: Envelope) -> bool:
        """Keep an envelope that must wait for its sender's commit; return whether it was kept."""
        early = self.early.get(envelope.source)
        if early is None or envelope.channel == MAIL:
            return False
        early.append(envelope)
        return True

    def admit(self) -> list[list[Envelope]]:
        """Return the envelopes kept for newcomers, one list for each newcomer, and stop keeping them."""
        early = list(self.early.values())
        self.early = {}
        return early

    def stop_serving(self) -> None:
        """Stop recording for newcomers."""
        if self.server is not None:
            self.server.stop()
            self.server = None

    # A leave

    def await_lane_ends(self, leavers: Iterable[WorkerId]) -> None:
        """Wait for these workers to end their lanes."""
        self._open = {(worker, lane) for worker in leavers for lane in Lane}

    def has_departed(self, worker: WorkerId, lane: Lane) -> bool:
        """Note that a worker has ended a lane; return whether it was the last one."""
        self._open.discard((worker, lane))
        return not any(each == worker for each, _ in self._open)

    def _check(self) -> None:
        assert not self.number or self.ids, "a change is of some workers"
        assert self.server is None or (self.is_join and not self.committed), "a join takes a snapshot"
