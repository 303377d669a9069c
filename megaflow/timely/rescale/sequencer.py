"""The one order of membership changes: which process joins or leaves now, and what the change waits for.

The sequencer is a state machine of values: `hear` takes one message and the time, and returns the mail to send. It runs
one change at a time. Later requests wait in its queue. `change_stages` has the stages of a change, `member` the
conditions that hold in each, and `handover` the transfer of all this to another worker.

1. Requests wait in one queue, which admits or refuses them in one place: see `change_queue`. No request overtakes a
   change that has begun.
2. Only this module aborts a change, and only before its commit.
3. A commit names the first dataflow that the new membership founds. That number is above all dataflows that any member
   had begun when it answered, and above all that a worker has asked about since. So no dataflow has two founding
   memberships.
4. A worker that is about to say goodbye asks first. After the answer there are no more changes.
5. A join passes its point of no return when `_commit_join` enters MINTING: all members are prepared and all new workers
   are ready. One thread decides this here, and one `Commit` announces it. Before that point no worker has sent the new
   workers a record, and they have sent no batch and hold no capability, so an abort takes nothing from any worker.
   After it they are members: if one is silent, it holds the job up like any other member. `call_off` therefore looks
   only at the stage. It aborts the join if it comes before the commit, and has no effect if it comes after. A caller
   that needs to know which waits for `Aborted` or `Joined`: each join that has begun produces exactly one of the two.
"""

from dataclasses import replace
from typing import Any

from megaflow.errors import CommandRefused
from megaflow.timely.membership import Membership, WorkerId
from megaflow.timely.rescale import messages
from megaflow.timely.rescale.change_queue import ChangeQueue, deny, process_of
from megaflow.timely.rescale.change_stages import ChangeStage, JoinChange, LeaveChange, Mail, due, in_words
from megaflow.timely.rescale.founders import add_founding, founders_of
from megaflow.timely.rescale.messages import Foundings, JoinAsk, LeaveAnswer, LeaveAsk, Process, Succession

PATIENCE_SECONDS = 60.0  # for each step before a commit; a joiner may have to import much


class Sequencer:
    """Orders the changes. One writer: the coordinating worker's thread."""

    def __init__(self, membership: Membership, processes: dict[int, Process], foundings: Foundings) -> None:
        self.membership = membership
        self.processes = dict(processes)
        self.foundings = foundings
        self.queue = ChangeQueue()
        self.last: JoinChange | None = None  # the last join that was completed
        self._next_change = 1
        self._next_id = max(membership.ids) + 1  # above every id ever used: see `_admit`
        self._next_process = max(processes, default=0) + 1
        self.change: JoinChange | LeaveChange | None = None  # the one under way
        self._deadline = float("inf")
        self._ending = False
        self._ended = False
        self._asking: list[tuple[WorkerId, messages.FoundersAsk]] = []  # not answered yet
        self._fixed = 0  # dataflows below this one were asked about during the present change

    @classmethod
    def resume(cls, succession: Succession) -> "Sequencer":
        """Return a sequencer that continues where another one stopped, once `begin` is called."""
        made = cls(succession.membership, succession.processes, succession.foundings)
        made._next_change, made._next_id, made._next_process = succession.change, succession.worker, succession.process
        made.queue = ChangeQueue(succession.waiting)
        return made

    def succession(self, luggage: object | None, reports: tuple[tuple[WorkerId, Any], ...]) -> Succession:
        """Return all that the next coordinator needs; that is the worker with the lowest id outside this process.

        Raises CommandRefused if a change is under way, if the cluster is ending, or if there is no other process.
        """
        members, change = self.membership, self.change
        others = members.workers - set(self.processes[process_of(members.coordinator, self.processes)][2])
        if change is not None:
            names = ", ".join(map(str, change.ids))
            what = f"worker {names} {'joins' if isinstance(change, JoinChange) else 'leaves'}"
            raise CommandRefused(f"hand over: {what} just now ({change.stage}); try again when that has ended")
        if self._ending:
            raise CommandRefused("hand over: too late: the cluster is ending")
        if not others:
            raise CommandRefused(f"hand over: worker {members.coordinator} is in the only process")
        assert not self._asking, "questions wait only for changes"
        successor = replace(members, version=members.version + 1, coordinator=min(others))
        numbers = self._next_change, self._next_id, self._next_process
        places, waiting = dict(self.processes), tuple(self.queue.waiting)
        return Succession(successor, places, self.foundings, *numbers, waiting, luggage, reports)

    def hear(self, source: WorkerId, message: object, now: float) -> Mail:
        """Process one message; return the mail to send."""
        out: Mail = []
        match message:
            case JoinAsk() | LeaveAsk():
                self._enqueue(message, out)
            case messages.FoundersAsk():
                self._asking.append((source, message))
                self._tell_founders(out)
            case messages.EndAsk():
                self._end(out)
            case messages.LinkLost(ids):
                if isinstance(self.change, JoinChange) and set(ids) & set(self.change.ids):
                    self._abort_if_possible("the connection to it ended", out)
            case messages.Hello() | messages.Prepared() | messages.Ready() | messages.Minted() | messages.Settled():
                self._step(source, message, out, now)
            case messages.Objections() | messages.Retiring() | messages.Departed():
                self._step(source, message, out, now)
            case _:
                raise AssertionError(f"worker {source} sent the coordinator {message!r:.100}")
        return self.begin(out, now)

    def begin(self, out: Mail, now: float) -> Mail:
        """Start the next waiting change, if none is under way; return all the mail, after that in `out`."""
        if self.change is None:
            match self.queue.take_next(self.membership, self.processes, self._next_id, out):
                case JoinAsk() as ask:
                    self._admit(ask, out, now)
                case list(asks):
                    self._ask_members(asks, out, now)
        return out

    def tick(self, now: float) -> Mail:
        """Abort a change that takes too long. To be called about once a second while a change is under way."""
        if self.change is None or now <= self._deadline or self.change.committed:
            return []
        if isinstance(self.change, JoinChange) and self.queue.supervised:
            return []  # its program calls it off
        out: Mail = []
        names = ", ".join(map(str, sorted({worker for worker, _ in self.change.silent})))
        self._abort(f"no answer from worker {names} for {PATIENCE_SECONDS:g} s ({self.change.stage})", out)
        return self.begin(out, now)

    def take_warning(self, now: float) -> str | None:
        """Return a warning if a committed change has taken too long, at most once per PATIENCE_SECONDS; else None."""
        change = self.change
        if change is None or not change.committed or now <= self._deadline:
            return None
        self._deadline = now + PATIENCE_SECONDS
        kind = "join" if isinstance(change, JoinChange) else "leave"
        return (
            f"change {change.change} ({kind} of worker {', '.join(map(str, change.ids))}) has been {change.stage} for "
            f"more than {PATIENCE_SECONDS:g} s and goes on waiting: no {'; no '.join(in_words(change.silent))}"
        )

    def rule(self, ids: tuple[WorkerId, ...], reason: str | None, now: float) -> Mail:
        """Take the program's ruling on the process that is due: a reason denies its request, None grants it."""
        out: Mail = []
        self.queue.rule(ids, reason, out)
        return self.begin(out, now)

    def give_up(self, reason: str, now: float) -> Mail:
        """Deny all waiting leaves, and abort the change under way if it can still be aborted."""
        out: Mail = []
        self.queue.deny([ask for ask in self.queue.waiting if isinstance(ask, LeaveAsk)], reason, out)
        self._abort_if_possible(reason, out)
        return self.begin(out, now)

    def call_off(self, ids: tuple[WorkerId, ...], reason: str, now: float) -> Mail:
        """Abort the join of these workers if it is under way and not committed; the reason names the silent workers."""
        out: Mail = []
        if isinstance(self.change, JoinChange) and self.change.ids == ids:
            silent = ", ".join(map(str, sorted({worker for worker, _ in self.change.silent})))
            self._abort_if_possible(f"{reason} (no answer from worker {silent}: {self.change.stage})", out)
        return self.begin(out, now)

    def stage_of(self, ids: tuple[WorkerId, ...]) -> tuple[ChangeStage, tuple[WorkerId, ...]] | None:
        """Return the stage of the join of these workers and the workers that it waits for; None if not under way."""
        change = self.change
        if not isinstance(change, JoinChange) or change.ids != ids:
            return None
        return change.stage, tuple(sorted({worker for worker, _ in change.silent}))

    def _enqueue(self, ask: JoinAsk | LeaveAsk, out: Mail) -> None:
        change = self.change
        if isinstance(change, LeaveChange) and isinstance(ask, LeaveAsk) and ask.worker in change.ids:
            change.asks.append(ask)  # it already leaves, with another worker of its process
        elif self._ending:
            deny(ask, "too late: the cluster is ending", out)
        else:
            self.queue.add(ask, out)

    def _end(self, out: Mail) -> None:
        self._ending = True
        self.queue.deny(self.queue.waiting, "too late: the cluster is ending", out)
        self._abort_if_possible("the cluster is ending", out)
        if self.change is None:
            self._say_goodbye(out)

    def _say_goodbye(self, out: Mail) -> None:
        if not self._ended:
            self._ended = True
            out += [(member, messages.MayEnd()) for member in self.membership.ids]

    # The beginning of a change

    def _admit(self, ask: JoinAsk, out: Mail, now: float) -> None:
        ids = tuple(range(self._next_id, self._next_id + ask.workers))
        self._next_id += ask.workers
        server = self.membership.coordinator if ask.server is None else ask.server
        begun = now, ChangeStage.ADMITTED, due(messages.Hello, *ids)
        join = JoinChange(self._next_change, self._next_process, ids, *begun, ask, server)
        self._next_process += 1
        self._start(join, now)
        present = self.membership, dict(self.processes), self.foundings
        admission = messages.Admission(join.change, join.process, ids, server, *present)
        assert ask.via is not None
        out.append((ask.via, messages.Answer(ask.key, admission)))

    def _ask_members(self, asks: list[LeaveAsk], out: Mail, now: float) -> None:
        process, members = process_of(asks[0].worker, self.processes), self.membership.ids
        ids = self.processes[process][2]
        begun = now, ChangeStage.ASKING, due(messages.Objections, *members)
        leave = LeaveChange(self._next_change, process, ids, *begun, asks, members)
        self._start(leave, now)
        out += [(member, messages.MayLeave(leave.change, ids)) for member in members]

    def _start(self, change: JoinChange | LeaveChange, now: float) -> None:
        self._next_change += 1
        self.change = change
        self._deadline = now + PATIENCE_SECONDS
        self._fixed = 0

    def _tell_founders(self, out: Mail) -> None:
        """Answer which membership founds which dataflow; an answer is final.

        While leaving workers close their inputs, the answer waits: they build nothing more, and only the commit decides
        whether they are founders.
        """
        if self.change is not None and self.change.stage is ChangeStage.CLOSING:
            return
        for source, ask in self._asking:
            if self.change is not None and not self.change.committed:
                self._fixed = max(self._fixed, ask.dataflow + 1)
            out.append((source, messages.FoundersAnswer(ask.dataflow, founders_of(self.foundings, ask.dataflow))))
        self._asking.clear()

    # The steps of a change

    def _step(self, source: WorkerId, message: Any, out: Mail, now: float) -> None:
        change: Any = self.change  # the stage decides which of the two kinds it is
        if change is None or message.change != change.change:
            return  # it belongs to a change that was aborted
        if not change.note(source, message, now):
            return
        self._deadline = now + PATIENCE_SECONDS
        match change.stage:
            case ChangeStage.ADMITTED:
                out += change.prepare(self.membership.ids, now)
            case ChangeStage.PREPARING:
                self._commit_join(change, out, now)
            case ChangeStage.MINTING:
                out += change.mint(self.membership.ids, now)
            case ChangeStage.ASKING:
                out += change.close(self._fixed)
                if change.reasons:
                    self._abort("; ".join(dict.fromkeys(change.reasons)), out)
            case ChangeStage.CLOSING:
                self._commit_leave(change, out)
            case ChangeStage.SETTLING:
                self._finish(self.membership.ids, out)
            case ChangeStage.DRAINING:
                self._finish(change.members, out)

    def _commit_join(self, join: JoinChange, out: Mail, now: float) -> None:
        if len(join.names) > max(join.built, self._fixed):
            name = join.names[max(join.built, self._fixed)]
            self._abort(f"it has built dataflow {name!r}, which no member has built", out)
            return
        join.began = now
        join.enter(ChangeStage.MINTING, set())
        join.minters = list(self.membership.ids)
        self.processes[join.process] = (join.ask.host, join.ask.port, join.ids)
        self._commit(join, self.membership.workers | set(join.ids), join.built, out)
        out += join.mint(self.membership.ids, now)

    def _commit(self, change: JoinChange | LeaveChange, workers: frozenset[WorkerId], built: int, out: Mail) -> None:
        founds = max(built, self._fixed)
        everybody = sorted(self.membership.workers | workers)
        membership = replace(self.membership, version=self.membership.version + 1, workers=workers)
        self.membership = membership
        self.foundings = add_founding(self.foundings, founds, membership)
        commit = messages.Commit(change.change, membership, founds, dict(self.processes))
        out += [(worker, commit) for worker in everybody]
        self._tell_founders(out)

    def _commit_leave(self, leave: LeaveChange, out: Mail) -> None:
        leave.drain()
        del self.processes[leave.process]
        self._commit(leave, self.membership.workers - set(leave.ids), max(leave.built.values()), out)

    def _abort_if_possible(self, reason: str, out: Mail) -> None:
        if self.change is not None and not self.change.committed:
            self._abort(reason, out)

    def _abort(self, reason: str, out: Mail) -> None:
        change = self.change
        assert change is not None
        told, joining = set(self.membership.ids), change.ids if isinstance(change, JoinChange) else ()
        if isinstance(change, LeaveChange):
            for ask in change.asks:
                deny(ask, reason, out)
        elif change.stage is ChangeStage.PREPARING:
            told |= set(joining)
        out += [(worker, messages.Abort(change.change, joining, reason)) for worker in sorted(told)]
        self._over(ChangeStage.ABORTED, out)

    def _finish(self, told: tuple[WorkerId, ...], out: Mail) -> None:
        change = self.change
        assert change is not None
        out += [(worker, messages.Finished(change.change)) for worker in told]
        if isinstance(change, LeaveChange):
            out += [(ask.reply_to, LeaveAnswer(ask.worker, None)) for ask in change.asks if ask.reply_to is not None]
        else:
            self.last = change
        self._over(ChangeStage.DONE, out)

    def _over(self, how: ChangeStage, out: Mail) -> None:
        assert self.change is not None
        self.change.enter(how, set())
        self.change = None
        self._tell_founders(out)
        if self._ending:
            self._say_goodbye(out)

    def _check(self) -> None:
        self.queue._check()
        if self.change is not None:
            self.change._check()
        assert max(self.membership.ids) < self._next_id and max(self.processes, default=0) < self._next_process
        assert not self._asking or (self.change is not None and self.change.stage is ChangeStage.CLOSING)
        assert {id for _, _, ids in self.processes.values() for id in ids} == self.membership.workers
