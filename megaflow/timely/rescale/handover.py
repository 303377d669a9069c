"""What one worker has to do with coordinating: it is the coordinator, was it, is to be it, or none of these.

A state machine of values, like the coordinator itself; `megaflow.timely.rescale.coordination` acts on its word.

The coordinator hands its role to a worker of another process, which changes nothing else: who was a member stays one.
 1. It does so only while no change is under way. It sends `Succession`, all that it knows, and coordinates no more:
    what it still hears as coordinator it passes on, in order (`Forwarded`).
 2. When the successor keeps what it is sent (`Succeeding`) the old one tells all members (`Handover`). So nobody speaks
    to a successor that knows nothing of it, and everybody has heard all that the old one ever said: mail is FIFO.
 3. A member answers the old one with a `Fence`, which is passed on like the rest; then it speaks to the new one.
 4. The new one keeps what a member sends it until that member's fence has come. So of each member it hears everything
    in the order in which it was sent, though on two ways.
 5. When all fences are there nobody speaks to the old one any more. The new one tells its program, hears what it has
    kept, and only then begins the next change.
A message for the coordinator that comes to a worker that never had to do with it is an error: nothing is lost unseen.
"""

from typing import Any

from megaflow.errors import CommandRefused, ProtocolError
from megaflow.timely.membership import Membership, WorkerId
from megaflow.timely.rescale.change_stages import Due, Mail, due, in_words
from megaflow.timely.rescale.messages import Fence, Forwarded, Handover, Succeeding, Succession
from megaflow.timely.rescale.sequencer import PATIENCE_SECONDS, Coordinator


class Heir:
    """What a successor hears until it is the coordinator."""

    def __init__(self, succession: Succession) -> None:
        self.succession = succession
        self.silent: set[Due] = due(Fence, *succession.membership.ids)
        self.heard: list[tuple[WorkerId, Any]] = []  # in order
        self._kept: dict[WorkerId, list[Any]] = {}  # member without a fence -> what it has sent directly

    def take(self, source: WorkerId, message: Any, forwarded: bool) -> None:
        """Keep a message, or take note of a fence."""
        if isinstance(message, Fence):
            self.silent -= due(Fence, source)
            self.heard += [(source, kept) for kept in self._kept.pop(source, [])]
        elif not forwarded and (source, Fence.__name__) in self.silent:
            self._kept.setdefault(source, []).append(message)
        else:
            self.heard.append((source, message))


class Role:
    """One writer: the worker's thread."""

    def __init__(self, own: WorkerId, coordinator: Coordinator | None) -> None:
        self.coordinator = coordinator  # present, and here
        self.come_over: Succession | None = None  # it is the coordinator's from now on: tell the program, then `begin`
        self._own = own
        self._heir: Heir | None = None
        self._successor: WorkerId | None = None  # to whom it has handed over
        self._leaving_to: Membership | None = None  # not told yet, for the successor has not answered
        self._deadline = 0.0

    @property
    def waits(self) -> bool:
        """Whether `tick` is to be called about once a second."""
        busy = self.coordinator is not None and self.coordinator.change is not None
        return busy or self._heir is not None or self._leaving_to is not None

    def hear(self, source: WorkerId, message: Any, now: float) -> Mail:
        """Take in a message for the coordinator; return what to send. Raises ProtocolError if it is astray."""
        match message:
            case Succession():
                self._heir, self._successor = Heir(message), None
                self._deadline = now + PATIENCE_SECONDS
                return [(source, Succeeding())]
            case Succeeding() if self._leaving_to is not None:
                membership, self._leaving_to = self._leaving_to, None
                return [(member, Handover(membership)) for member in membership.ids]
            case Forwarded(sender, inner):
                return self._take(sender, inner, True, now)
        return self._take(source, message, False, now)

    def begin(self, now: float) -> Mail:
        """Hear what was kept; the program knows that it coordinates."""
        assert self._heir is not None and self.coordinator is not None
        heir, self._heir, self.come_over = self._heir, None, None
        out: Mail = self.coordinator.begin(now) + self._hand_over_if_it_leaves(now)
        for source, message in heir.heard:
            out += self._take(source, message, True, now)
        return out

    def hand_over(self, cargo: object | None, now: float) -> Mail:
        """Give the role away. Raises CommandRefused if it is not here, or cannot be given now."""
        if self.coordinator is None or self._heir is not None:
            raise CommandRefused(f"hand over: worker {self._own} does not coordinate the cluster, so it cannot")
        succession = self.coordinator.succession(cargo)
        self.coordinator = None
        self._leaving_to, self._successor = succession.membership, succession.membership.coordinator
        self._deadline = now + PATIENCE_SECONDS
        return [(self._successor, succession)]

    def give_up(self, reason: str, now: float) -> Mail:
        """Abort the change that is under way, if this is the coordinator and it can still be aborted."""
        if self.coordinator is None:
            return []
        return self.coordinator.give_up(reason, now) + self._hand_over_if_it_leaves(now)

    def tick(self, now: float) -> Mail:
        """Give up what takes too long, and can be given up."""
        if self.coordinator is None:
            return []
        return self.coordinator.tick(now) + self._hand_over_if_it_leaves(now)

    def take_warning(self, now: float) -> str | None:
        """What takes too long and cannot be given up, in words, and once in that time."""
        if self.coordinator is not None and self._heir is None:
            return self.coordinator.take_warning(now)
        silent = self._heir.silent if self._heir is not None else due(Succeeding, self._successor or 0)
        if not self.waits or now <= self._deadline:
            return None
        self._deadline = now + PATIENCE_SECONDS
        return (
            f"the hand-over of the coordinator's role has taken more than {PATIENCE_SECONDS:g} s and goes on waiting: "
            f"no {'; no '.join(in_words(silent))}"
        )

    def _take(self, source: WorkerId, message: Any, forwarded: bool, now: float) -> Mail:
        if self._heir is not None:
            self._heir.take(source, message, forwarded)
            if not self._heir.silent and self.coordinator is None:
                self.come_over = self._heir.succession
                self.coordinator = Coordinator.resume(self.come_over)
            return []
        if self.coordinator is not None:
            return self.coordinator.hear(source, message, now) + self._hand_over_if_it_leaves(now)
        if self._successor is not None:
            return [(self._successor, Forwarded(source, message))]
        raise ProtocolError(
            f"worker {source} sent worker {self._own} a {type(message).__name__}, which is for the coordinator; "
            f"worker {self._own} is not and was not"
        )

    def _hand_over_if_it_leaves(self, now: float) -> Mail:
        if self.coordinator is None or not self.coordinator.leaves:
            return []
        return self.hand_over(None, now)
