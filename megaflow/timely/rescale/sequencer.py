"""The one order of membership changes: who may join or leave next, and what is waited for.

A state machine of values: `hear` takes one message and the time and returns the mail to send. One change at a time;
later requests wait. What must hold at each step: see `member`. Before its own process leaves it hands over: see `role`.

A join:   admitted ─ Hello from all new workers ─▶ preparing ─ Prepared from all members, Ready from all new
          workers ─▶ *commit* ─ minting: one member after another ─▶ settling ─ Settled from all ─▶ done
A leave:  asking ─ Objections from all ─▶ closing ─ Retiring from the leavers ─▶ *commit* ─ draining: Departed
          from everybody for each leaver ─▶ done

1. Only this module aborts, and only before a commit.
2. A commit names the first dataflow that the new membership founds: above all that some member had begun when it
   answered, and all that was asked about since. So no dataflow is founded by two memberships.
3. Whoever is about to say goodbye asks first: after the answer there are no changes any more.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from megaflow.errors import CommandRefused
from megaflow.timely.membership import Membership, WorkerId
from megaflow.timely.rescale.admission import against, process_of, take_leaves
from megaflow.timely.rescale.change_stages import Join, Leave, Mail, due, in_words
from megaflow.timely.rescale.founders import add_founding, founders_of
from megaflow.timely.rescale.messages import (
    Abort,
    Admission,
    Answer,
    Commit,
    Denied,
    Departed,
    Ending,
    Finished,
    FoundersAnswer,
    FoundersAsk,
    Foundings,
    Hello,
    JoinAsk,
    LeaveAnswer,
    LeaveAsk,
    LinkLost,
    MayEnd,
    MayLeave,
    Minted,
    Objections,
    Prepared,
    Process,
    Ready,
    Retiring,
    Settled,
    Succession,
)

PATIENCE_SECONDS = 60.0  # for each step before a commit; a joiner may have to import much
WAITING_MAX = 1_000  # requests in the queue


class Coordinator:
    """Orders the changes. One writer: the coordinating worker's thread."""

    def __init__(self, membership: Membership, processes: dict[int, Process], foundings: Foundings) -> None:
        self.membership = membership
        self.processes = dict(processes)
        self.foundings = foundings
        self.leaves = False  # its own process is the next to leave: it hands over first
        self.veto: Callable[[str, tuple[WorkerId, ...]], str | None] = _nothing_against
        self._next_change = 1
        self._next_id = max(membership.ids) + 1  # never below what was used: see `_admit`
        self._next_process = max(processes, default=0) + 1
        self._waiting: deque[JoinAsk | LeaveAsk] = deque()
        self.last: Join | None = None  # that is done
        self._change: Join | Leave | None = None
        self._deadline = float("inf")
        self._ending = False
        self._ended = False
        self._asking: list[tuple[WorkerId, FoundersAsk]] = []  # not answered yet
        self._fixed = 0  # dataflows below this one were asked about during the present change

    @classmethod
    def resume(cls, succession: Succession) -> "Coordinator":
        """The coordinator that goes on where another one stopped, once it is told to `begin`."""
        made = cls(succession.membership, succession.processes, succession.foundings)
        made._next_change, made._next_id, made._next_process = succession.change, succession.worker, succession.process
        made._waiting.extend(succession.waiting)
        return made

    def succession(self, cargo: object | None) -> Succession:
        """All that the next coordinator needs: the lowest id outside this process. Raises CommandRefused if not now."""
        members, change = self.membership, self._change
        others = members.workers - set(self.processes[process_of(members.coordinator, self.processes)][2])
        if change is not None:
            names = ", ".join(map(str, change.ids))
            what = f"worker {names} {'joins' if isinstance(change, Join) else 'leaves'}"
            raise CommandRefused(f"hand over: {what} just now ({change.stage}); try again when that is done")
        if self._ending:
            raise CommandRefused("hand over: too late: the cluster is ending")
        if not others:
            raise CommandRefused(f"hand over: worker {members.coordinator} is in the only process")
        assert not self._asking, "questions wait only for changes"
        successor = replace(members, version=members.version + 1, coordinator=min(others))
        numbers = self._next_change, self._next_id, self._next_process
        return Succession(successor, dict(self.processes), self.foundings, *numbers, tuple(self._waiting), cargo)

    @property
    def change(self) -> Join | Leave | None:
        """The change that is under way."""
        return self._change

    def hear(self, source: WorkerId, message: object, now: float) -> Mail:
        """Take in one message; return what to send."""
        out: Mail = []
        match message:
            case JoinAsk() | LeaveAsk():
                self._enqueue(message, out)
            case FoundersAsk():
                self._asking.append((source, message))
                self._tell_founders(out)
            case Ending():
                self._end(out)
            case LinkLost(ids):
                if isinstance(self._change, Join) and set(ids) & set(self._change.ids):
                    self._abort("the connection to it ended", out)
            case Hello() | Prepared() | Ready() | Minted() | Settled() | Objections() | Retiring() | Departed():
                self._step(source, message, out, now)
            case _:
                raise AssertionError(f"worker {source} sent the coordinator {message!r:.100}")
        self._begin(out, now)
        return out

    def begin(self, now: float) -> Mail:
        """Start the next change that waits, if none is under way."""
        out: Mail = []
        self._begin(out, now)
        return out

    def tick(self, now: float) -> Mail:
        """Give up what takes too long; to be called about once a second while a change is under way."""
        out: Mail = []
        if self._change is not None and now > self._deadline and not self._committed:
            names = ", ".join(map(str, sorted({worker for worker, _ in self._change.silent})))
            self._abort(f"no answer from worker {names} for {PATIENCE_SECONDS:g} s ({self._change.stage})", out)
            self._begin(out, now)
        return out

    def take_warning(self, now: float) -> str | None:
        """What of a committed change has taken too long, in words, and once in that time; nothing else is done."""
        change = self._change
        if change is None or not self._committed or now <= self._deadline:
            return None
        self._deadline = now + PATIENCE_SECONDS
        kind, names = type(change).__name__.lower(), ", ".join(map(str, change.ids))
        return (
            f"change {change.change} ({kind} of worker {names}) has been {change.stage} for more than "
            f"{PATIENCE_SECONDS:g} s and goes on waiting: no {'; no '.join(in_words(change.silent))}"
        )

    def give_up(self, reason: str, now: float) -> Mail:
        """Abort the change that is under way, if it can still be aborted."""
        out: Mail = []
        if self._change is not None and not self._committed:
            self._abort(reason, out)
            self._begin(out, now)
        return out

    @property
    def _committed(self) -> bool:
        return self._change is not None and self._change.stage in ("minting", "settling", "draining")

    # Requests

    def _enqueue(self, ask: JoinAsk | LeaveAsk, out: Mail) -> None:
        change = self._change
        if isinstance(change, Leave) and isinstance(ask, LeaveAsk) and ask.worker in change.ids:
            change.asks.append(ask)  # it is on its way, with another worker of its process
        elif self._ending:
            self._deny(ask, "too late: the cluster is ending", out)
        elif len(self._waiting) >= WAITING_MAX:
            self._deny(ask, f"{WAITING_MAX} changes are waiting already; try again later", out)
        else:
            self._waiting.append(ask)

    def _deny(self, ask: JoinAsk | LeaveAsk, reason: str, out: Mail) -> None:
        if isinstance(ask, JoinAsk):
            assert ask.via is not None
            out.append((ask.via, Answer(ask.key, Denied(reason))))
        elif ask.reply_to is not None:
            out.append((ask.reply_to, LeaveAnswer(ask.worker, reason)))

    def _end(self, out: Mail) -> None:
        self._ending = True
        for ask in self._waiting:
            self._deny(ask, "too late: the cluster is ending", out)
        self._waiting.clear()
        if self._change is not None and not self._committed:
            self._abort("the cluster is ending", out)
        if self._change is None:
            self._say_goodbye(out)

    def _say_goodbye(self, out: Mail) -> None:
        if not self._ended:
            self._ended = True
            out += [(member, MayEnd()) for member in self.membership.ids]

    def _begin(self, out: Mail, now: float) -> None:
        """Start the next change, if none is under way."""
        while self._change is None and self._waiting and not self.leaves:
            ask = self._waiting.popleft()
            reason = against(ask, self.membership, self.processes) or self._veto(ask)
            if reason is not None:
                self._deny(ask, reason, out)
            elif isinstance(ask, JoinAsk):
                self._admit(ask, out, now)
            elif self.membership.coordinator in self.processes[process_of(ask.worker, self.processes)][2]:
                self._waiting.appendleft(ask)  # the next coordinator begins with it
                self.leaves = True
                return
            else:
                self._ask_members(ask, out, now)

    def _veto(self, ask: JoinAsk | LeaveAsk) -> str | None:
        if isinstance(ask, JoinAsk):
            return self.veto("join", ())
        return self.veto("leave", self.processes[process_of(ask.worker, self.processes)][2])

    def _admit(self, ask: JoinAsk, out: Mail, now: float) -> None:
        ids = tuple(range(self._next_id, self._next_id + ask.workers))
        self._next_id += ask.workers
        server = self.membership.coordinator if ask.server is None else ask.server
        join = Join(self._next_change, ask, self._next_process, ids, server, now, silent=due(Hello, *ids))
        self._next_change += 1
        self._next_process += 1
        self._start(join, now)
        present = self.membership, dict(self.processes), self.foundings
        admission = Admission(join.change, join.process, ids, server, *present)
        assert ask.via is not None
        out.append((ask.via, Answer(ask.key, admission)))

    def _ask_members(self, ask: LeaveAsk, out: Mail, now: float) -> None:
        process = process_of(ask.worker, self.processes)
        ids, members = self.processes[process][2], self.membership.ids
        asks = [ask, *take_leaves(self._waiting, ids)]
        leave = Leave(self._next_change, asks, process, ids, now, members, silent=due(Objections, *members))
        self._next_change += 1
        self._start(leave, now)
        out += [(member, MayLeave(leave.change, ids)) for member in members]

    def _start(self, change: Join | Leave, now: float) -> None:
        self._change = change
        self._deadline = now + PATIENCE_SECONDS
        self._fixed = 0

    def _tell_founders(self, out: Mail) -> None:
        """Answer who founds what, which fixes it. A leaver that closes its inputs builds nothing more: it is waited
        for, and only the commit tells whether it is a founder."""
        if self._change is not None and self._change.stage == "closing":
            return
        for source, ask in self._asking:
            if self._change is not None and not self._committed:
                self._fixed = max(self._fixed, ask.dataflow + 1)
            out.append((source, FoundersAnswer(ask.dataflow, founders_of(self.foundings, ask.dataflow))))
        self._asking.clear()

    # The steps of a change

    def _step(self, source: WorkerId, message: Any, out: Mail, now: float) -> None:
        change: Any = self._change  # the stage tells which of the two it is
        if change is None or message.change != change.change:
            return  # of a change that was aborted
        if not change.note(source, message, now):
            return
        self._deadline = now + PATIENCE_SECONDS
        match change.stage:
            case "admitted":
                out += change.prepare(self.membership.ids, now)
            case "preparing":
                self._commit_join(change, out, now)
            case "minting":
                out += change.mint(self.membership.ids, now)
            case "asking":
                out += change.close(self._fixed)
                if change.reasons:
                    self._abort("; ".join(dict.fromkeys(change.reasons)), out)
            case "closing":
                self._commit_leave(change, out)
            case "settling":
                self._finish(self.membership.ids, out)
            case "draining":
                self._finish(change.members, out)

    def _commit_join(self, join: Join, out: Mail, now: float) -> None:
        if len(join.names) > max(join.built, self._fixed):
            name = join.names[max(join.built, self._fixed)]
            self._abort(f"it has built dataflow {name!r}, which no member has built", out)
            return
        join.began = now
        join.stage, join.minters = "minting", list(self.membership.ids)
        membership = self.membership
        workers = membership.workers | set(join.ids)
        self.processes[join.process] = (join.ask.host, join.ask.port, join.ids)
        self._commit(join, replace(membership, version=membership.version + 1, workers=workers), join.built, out)
        out += join.mint(self.membership.ids, now)

    def _commit(self, change: Join | Leave, membership: Membership, built: int, out: Mail) -> None:
        founds = max(built, self._fixed)
        everybody = sorted(self.membership.workers | membership.workers)
        self.membership = membership
        self.foundings = add_founding(self.foundings, founds, membership)
        out += [(worker, Commit(change.change, membership, founds, dict(self.processes))) for worker in everybody]
        self._tell_founders(out)

    def _commit_leave(self, leave: Leave, out: Mail) -> None:
        leave.drain()
        del self.processes[leave.process]
        rest = self.membership.workers - set(leave.ids)
        membership = replace(self.membership, version=self.membership.version + 1, workers=rest)
        self._commit(leave, membership, max(leave.built.values()), out)

    def _abort(self, reason: str, out: Mail) -> None:
        change = self._change
        if change is None or self._committed:
            return
        told, joining = set(self.membership.ids), change.ids if isinstance(change, Join) else ()
        if isinstance(change, Leave):
            for ask in change.asks:
                self._deny(ask, reason, out)
        elif change.stage == "preparing":
            told |= set(joining)
        out += [(worker, Abort(change.change, joining, reason)) for worker in sorted(told)]
        self._over(out)

    def _finish(self, told: tuple[WorkerId, ...], out: Mail) -> None:
        assert self._change is not None
        out += [(worker, Finished(self._change.change)) for worker in told]
        if isinstance(self._change, Join):
            self.last = self._change
        if isinstance(self._change, Leave):
            out += [(a.reply_to, LeaveAnswer(a.worker, None)) for a in self._change.asks if a.reply_to is not None]
        self._over(out)

    def _over(self, out: Mail) -> None:
        self._change = None
        self._tell_founders(out)
        if self._ending:
            self._say_goodbye(out)


def _nothing_against(kind: str, ids: tuple[WorkerId, ...]) -> str | None:
    return None
