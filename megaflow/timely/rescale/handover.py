"""The hand-over: another worker becomes the coordinator, with the queue of changes, the program's state and all mail.

Messages for the coordinator, from the engine (`JoinAsk`, `FoundersAsk` …) or from a program (`Report`), go to the
coordinating *role*: `Member` sends them to the worker that it knows as the coordinator. A hand-over gives the role to a
worker of another process and changes nothing else: every member stays a member. One fence covers both kinds of mail.
 1. The role is handed over only while no change is under way. The old coordinator sends `Succession`: its queue, the
    luggage of its program (which is at rest then), and the reports that its program has not processed. From then on it
    no longer coordinates. It passes on all later messages in order (`PassedOn`), over the same FIFO connection.
 2. The successor answers that it keeps all messages for the coordinator from now on (`Succeeding`). Only then does the
    old coordinator inform all members (`Handover`). Otherwise a member's message could reach a successor that does not
    know of its role yet.
 3. A member answers the old coordinator with a `Fence`, which is passed on like any message. Then the member addresses
    the new one. Mail is FIFO, so the fence comes after everything that this member ever sent to the old coordinator.
 4. The new coordinator keeps a member's direct messages until that member's fence has come. Otherwise a later message
    could overtake one that is passed on. So it hears each member's messages in the order in which they were sent.
 5. When all fences have come, no message is on its way to the old coordinator. Only then does the program receive
    `Succeeded` with the luggage, and only then can the next change begin. A supervising program receives all kept
    reports before it rules on that change. If the program acted before the last fence, it could lack a report to its
    predecessor, and could hand over again while messages are still passed on to a worker that has no role.
A worker that never had the role raises an error for each message to the coordinator: no message is lost silently.

`Role` is a state machine of values, like the sequencer itself. `Coordination` carries out its decisions: it sends the
mail, calls the program, reads the clock and warns. `tests/model/handover.pml` checks rules 1 to 5 in all interleavings.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from megaflow.errors import CommandRefused, ProtocolError
from megaflow.timely.membership import Membership, WorkerId
from megaflow.timely.rescale import messages
from megaflow.timely.rescale.change_stages import ChangeStage, Due, Mail, due, in_words
from megaflow.timely.rescale.host import Host, Supervisor
from megaflow.timely.rescale.messages import TOPIC, Event, Fence, JoinDue, LeaveDue, Succeeding, Succession
from megaflow.timely.rescale.sequencer import PATIENCE_SECONDS, Sequencer

TICK_SECONDS = 1.0  # between checks for a step that takes too long
# The most reports kept for a program that does not supervise yet. A successor counts all the messages that it keeps
# towards this limit. A worker of a job sends a `Busy` report ten times a second, and other reports besides.
REPORTS_MAX = 10_000

_log = logging.getLogger("megaflow.timely.rescale")


class Successor:
    """Messages that a successor keeps until it is the coordinator."""

    def __init__(self, succession: Succession) -> None:
        self.succession = succession
        self.silent: set[Due] = due(Fence, *succession.membership.ids)
        self.heard: list[tuple[WorkerId, Any]] = []  # passed on, or direct and after a fence; in order
        self._kept: dict[WorkerId, list[Any]] = {}  # member without a fence -> its direct messages
        self._room = REPORTS_MAX - len(succession.reports)  # for messages, so that `begin` has room for each report

    def take(self, source: WorkerId, message: Any, forwarded: bool) -> None:
        """Keep a message, or note a fence. Raises ProtocolError if too many messages are kept."""
        if isinstance(message, Fence):
            self.silent -= due(Fence, source)
            self.heard += [(source, kept) for kept in self._kept.pop(source, [])]
            return
        if self._room <= 0:
            raise ProtocolError(
                f"worker {source} sent {message!r:.100} during a hand-over of the coordinator's role: {REPORTS_MAX} "
                "messages are already kept for the successor"
            )
        self._room -= 1
        if not forwarded and (source, Fence.__name__) in self.silent:
            self._kept.setdefault(source, []).append(message)
        else:
            self.heard.append((source, message))


class Role:
    """One worker's part in the coordinator's role, as values. One writer: the worker's thread."""

    def __init__(self, own: WorkerId, sequencer: Sequencer | None) -> None:
        self.sequencer = sequencer  # None on a worker without the role
        # Set when the last fence has come and the role is here. The caller then emits `Succeeded` and calls `begin`.
        self.come_over: Succession | None = None
        self.reports: deque[tuple[WorkerId, Any]] = deque()  # (sender, body) for the program here, which drains them
        self._own = own
        self._successor: Successor | None = None
        self._handed_to: WorkerId | None = None  # the successor, if this worker has handed over
        self._leaving_to: Membership | None = None  # after the hand-over; announced once the successor answers
        self._deadline = 0.0

    @property
    def waits(self) -> bool:
        """Whether `tick` is to be called about once a second."""
        busy = self.sequencer is not None and self.sequencer.change is not None
        return busy or self._successor is not None or self._leaving_to is not None

    def hear(self, source: WorkerId, message: Any, now: float) -> Mail:
        """Process a message for the coordinator; return what to send. Raises ProtocolError if it is misdirected."""
        match message:
            case Succession():
                self._successor, self._handed_to = Successor(message), None
                self._deadline = now + PATIENCE_SECONDS
                return [(source, Succeeding())]
            case Succeeding() if self._leaving_to is not None:
                membership, self._leaving_to = self._leaving_to, None
                return [(member, messages.Handover(membership)) for member in membership.ids]
            case messages.PassedOn(sender, inner):
                return self._take(sender, inner, True, now)
        return self._take(source, message, False, now)

    def begin(self, now: float) -> Mail:
        """Process the messages that were kept. By now the program knows that it coordinates."""
        assert self._successor is not None and self.sequencer is not None
        successor, self._successor, self.come_over = self._successor, None, None
        self.reports += successor.succession.reports
        out: Mail = self.sequencer.begin([], now) + self._hand_over_if_it_leaves(now)
        for source, message in successor.heard:
            out += self._take(source, message, True, now)
        return out

    def rule(self, ids: tuple[WorkerId, ...], reason: str | None, now: float) -> Mail:
        """Take the program's ruling; a ruling that comes after a hand-over is dropped."""
        return [] if self.sequencer is None else self.sequencer.rule(ids, reason, now)

    def hand_over(self, luggage: object | None, reports: tuple[tuple[WorkerId, Any], ...], now: float) -> Mail:
        """Give the role away. Raises CommandRefused if it is not here, or cannot be handed over now."""
        if self.sequencer is None or self._successor is not None:
            raise CommandRefused(f"hand over: worker {self._own} is not the coordinator of the cluster")
        succession = self.sequencer.succession(luggage, (*reports, *self.reports))
        self.sequencer = None
        self.reports.clear()
        self._leaving_to, self._handed_to = succession.membership, succession.membership.coordinator
        self._deadline = now + PATIENCE_SECONDS
        return [(self._handed_to, succession)]

    def give_up(self, reason: str, now: float) -> Mail:
        """On the coordinator: deny all waiting leaves, and abort the change under way if it can still be aborted."""
        if self.sequencer is None:
            return []
        return self.sequencer.give_up(reason, now) + self._hand_over_if_it_leaves(now)

    def call_off(self, ids: tuple[WorkerId, ...], reason: str, now: float) -> Mail:
        """Abort the join of these workers, if this is the coordinator and the join can still be aborted."""
        return [] if self.sequencer is None else self.sequencer.call_off(ids, reason, now)

    def tick(self, now: float) -> Mail:
        """Abort a change that takes too long, if it can still be aborted."""
        if self.sequencer is None:
            return []
        return self.sequencer.tick(now) + self._hand_over_if_it_leaves(now)

    def take_warning(self, now: float) -> str | None:
        """Return a warning about a step that takes too long and cannot be aborted, once in PATIENCE_SECONDS."""
        if self.sequencer is not None and self._successor is None:
            return self.sequencer.take_warning(now)
        silent = self._successor.silent if self._successor is not None else due(Succeeding, self._handed_to or 0)
        if not self.waits or now <= self._deadline:
            return None
        self._deadline = now + PATIENCE_SECONDS
        return (
            f"the hand-over of the coordinator's role has taken more than {PATIENCE_SECONDS:g} s and goes on waiting: "
            f"no {'; no '.join(in_words(silent))}"
        )

    def _take(self, source: WorkerId, message: Any, forwarded: bool, now: float) -> Mail:
        if self._successor is not None:
            self._successor.take(source, message, forwarded)
            if not self._successor.silent and self.sequencer is None:
                self.come_over = self._successor.succession
                self.sequencer = Sequencer.resume(self.come_over)
            return []
        if self.sequencer is not None and isinstance(message, messages.Report):
            self._keep(source, message.body)
            return []
        if self.sequencer is not None:
            return self.sequencer.hear(source, message, now) + self._hand_over_if_it_leaves(now)
        if self._handed_to is not None:
            return [(self._handed_to, messages.PassedOn(source, message))]
        raise ProtocolError(
            f"worker {source} sent worker {self._own} a {type(message).__name__}, which is for the coordinator, but "
            f"worker {self._own} never was the coordinator"
        )

    def _keep(self, source: WorkerId, body: Any) -> None:
        if len(self.reports) >= REPORTS_MAX:
            raise ProtocolError(
                f"worker {source} reported {body!r:.100} to worker {self._own}, whose program takes no reports: "
                f"{REPORTS_MAX} are already kept for it"
            )
        self.reports.append((source, body))

    def _check(self) -> None:
        assert self.come_over is None or (self._successor is not None and not self._successor.silent)
        assert self.sequencer is not None or not self.reports, "only a coordinator keeps reports"
        if self.sequencer is not None:
            self.sequencer._check()

    def _hand_over_if_it_leaves(self, now: float) -> Mail:
        if self.sequencer is None or not self.sequencer.queue.hands_over:
            return []
        return self.hand_over(None, (), now)


class Coordination:
    """Connection of one worker's role with the program above it. One writer: the worker's thread."""

    def __init__(self, host: Host, sequencer: Sequencer | None, emit: Callable[[Event], None]) -> None:
        """`emit` calls every program on this worker with an event."""
        self._host = host
        self._role = Role(host.index, sequencer)
        self._emit = emit
        self._supervisor: Supervisor | None = None  # None unless this worker coordinates
        self._ticking = False

    @property
    def sequencer(self) -> Sequencer | None:
        """The sequencer, if this worker coordinates."""
        return self._role.sequencer

    def hear(self, source: int, message: Any) -> None:
        """Process a message for the coordinator, or its mail to itself about the process that is due."""
        if isinstance(message, JoinDue | LeaveDue):
            self._tell_due(message)
            return
        self._send(self._role.hear(source, message, self._host.now()))
        if self._role.come_over is not None:
            self._emit(messages.Succeeded(self._role.come_over.luggage, self._role.come_over.membership))
            self._send(self._role.begin(self._host.now()))

    def supervise(self, supervisor: Supervisor) -> None:
        """On the coordinator: let this program rule on each request and receive the reports, until it hands over.

        It receives at once the reports that have already come.
        """
        sequencer = self._role.sequencer
        assert sequencer is not None, f"worker {self._host.index} does not coordinate the cluster"
        self._supervisor, sequencer.queue.supervised = supervisor, True
        self._send([])

    def rule(self, ids: tuple[WorkerId, ...], reason: str | None) -> None:
        """On the coordinator: rule on the process that is due. A reason denies its request, None grants it."""
        self._send(self._role.rule(ids, reason, self._host.now()))

    def hand_over(self, luggage: object | None, reports: tuple[tuple[WorkerId, Any], ...]) -> None:
        """See `Member.hand_over`."""
        self._send(self._role.hand_over(luggage, reports, self._host.now()))

    def give_up(self, reason: str) -> None:
        """On the coordinator: deny the leaves that wait, and abort the change under way unless it is committed."""
        self._send(self._role.give_up(reason, self._host.now()))

    def call_off(self, ids: tuple[WorkerId, ...], reason: str) -> None:
        """On the coordinator: abort the join of these workers if it has begun and is not committed yet.

        `Aborted` announces the abort, as always.
        """
        self._send(self._role.call_off(ids, reason, self._host.now()))

    def stage_of(self, ids: tuple[WorkerId, ...]) -> tuple[ChangeStage, tuple[WorkerId, ...]] | None:
        """See `Sequencer.stage_of`."""
        return None if self.sequencer is None else self.sequencer.stage_of(ids)

    def _send(self, mail: Mail) -> None:
        role = self._role
        if role.sequencer is None:
            self._supervisor = None
        for worker, message in mail:
            self._host.post(worker, TOPIC, message)
        while self._supervisor is not None and role.reports:  # one by one: it may rule or hand over in each call
            self._supervisor.reported(*role.reports.popleft())
        if role.waits and not self._ticking:
            self._ticking = True
            self._host.after(TICK_SECONDS, self._tick)

    def _tell_due(self, message: JoinDue | LeaveDue) -> None:
        if self._supervisor is None or self.sequencer is None or not self.sequencer.queue.is_due(message.ids):
            return  # its request was denied, or the queue was handed over: the next program is asked anew
        if isinstance(message, JoinDue):
            self._supervisor.join_due(message.ids, message.address)
        else:
            self._supervisor.leave_due(message.ids)

    def _tick(self) -> None:
        self._ticking = False
        warning = self._role.take_warning(self._host.now())
        if warning is not None:
            _log.warning("%s", warning)
        self._send(self._role.tick(self._host.now()))

    def _check(self) -> None:
        self._role._check()
        assert (self._supervisor is not None) == (self.sequencer is not None and self.sequencer.queue.supervised)
