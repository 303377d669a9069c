"""The one queue of requests to join and to leave, and the one place where they are admitted or refused.

A value, a part of the sequencer, which begins what `take_next` returns.

1. A request is admitted or refused when its turn has come: what holds then may have been different when it came. A
   refused request changes nothing, and uses no id up.
2. Where a program *supervises* (a job does, see `megaflow.control.coordinator.membership_requests`) it rules on each
   request at that place. Mail of this worker to itself tells it which process is due, and it answers with `rule`. So
   it hears how the change before has ended, of which this worker's mail to itself tells, too, before what is due next:
   else it would rule with members that are gone, or hand over a request as under way that is done. A process that is
   not due any more it is not told of, and a ruling on one is dropped: the request was denied in between, or handed
   over, and the next coordinator's program is asked anew.
3. A join that is due waits for its ruling alone: nothing else begins, so it begins under the membership that was ruled
   on, also before a leave that is granted meanwhile; it is not refused any more, of which the program would not hear. A
   leave that is due waits for as long as the program has work to do for it first, and joins pass it: that work may be
   to wait for processes that join. No leave passes another.
4. The coordinator's own process leaves under another coordinator: its request stays in the queue, and the queue is
   handed over. A program that supervises does that when it is at rest; without one it is done at once (`hands_over`).
"""

from collections.abc import Iterable

from megaflow.timely.membership import Membership, WorkerId
from megaflow.timely.rescale.change_stages import Mail
from megaflow.timely.rescale.messages import Answer, Denied, JoinAsk, JoinDue, LeaveAnswer, LeaveAsk, LeaveDue, Process

WAITING_MAX = 1_000  # requests in the queue


class ChangeQueue:
    """The requests that wait, in order. One writer: the sequencer."""

    def __init__(self, waiting: Iterable[JoinAsk | LeaveAsk] = ()) -> None:
        self.supervised = False  # by a program, which rules on each request
        self.hands_over = False  # the coordinator's own process is to leave, and no program has to be at rest before
        self.waiting = list(waiting)  # in order; at most WAITING_MAX
        # by kind of request, for the first of it: the ids that the join is to have, or the workers that are to leave
        self._due: dict[type[JoinAsk | LeaveAsk], tuple[WorkerId, ...]] = {}
        self._granted: set[tuple[WorkerId, ...]] = set()  # of those two

    def add(self, ask: JoinAsk | LeaveAsk, out: Mail) -> None:
        """Let a request wait for its turn."""
        if len(self.waiting) >= WAITING_MAX:
            deny(ask, f"{WAITING_MAX} changes are already waiting; try again later", out)
        else:
            self.waiting.append(ask)

    def is_due(self, ids: tuple[WorkerId, ...]) -> bool:
        """Whether the program is to rule, or has ruled, on the process with these workers."""
        return ids in self._due.values()

    def rule(self, ids: tuple[WorkerId, ...], reason: str | None, out: Mail) -> None:
        """Take the program's ruling on the process that is due: a reason denies its request, None grants it."""
        if not self.is_due(ids):
            return
        if reason is None:
            self._granted.add(ids)
        elif ids == self._due.get(JoinAsk):
            self.deny([next(ask for ask in self.waiting if isinstance(ask, JoinAsk))], reason, out)
        else:
            self.deny(self._leaves_of(ids), reason, out)

    def deny(self, asks: Iterable[JoinAsk | LeaveAsk], reason: str, out: Mail) -> None:
        """Refuse requests that wait."""
        for ask in tuple(asks):
            deny(ask, reason, out)
            self._take_out(ask)

    def deny_leaves(self, reason: str, out: Mail) -> None:
        """Refuse all that want to leave."""
        self.deny([ask for ask in self.waiting if isinstance(ask, LeaveAsk)], reason, out)

    def take_next(
        self, membership: Membership, processes: dict[int, Process], next_id: WorkerId, out: Mail
    ) -> JoinAsk | list[LeaveAsk] | None:
        """Take the request out that begins now; None if there is none. All requests of one process to leave are one.

        `next_id` is the first that a new worker would have. Refuses what cannot be, and asks the program about the
        rest.
        """
        joins = [ask for ask in self.waiting if isinstance(ask, JoinAsk)]
        granted = joins[:1] if self._due.get(JoinAsk) in self._granted else []
        for ask in (*granted, *self.waiting):
            if self.hands_over or (JoinAsk in self._due and self._due[JoinAsk] not in self._granted):
                break
            if ask not in self.waiting:
                continue  # another worker of its process was refused
            reason = _against(ask, membership, processes)
            if reason is not None:
                self.deny([ask], reason, out)
            elif isinstance(ask, JoinAsk):
                if self._may_begin(ask, tuple(range(next_id, next_id + ask.workers)), membership, out):
                    self._take_out(ask)
                    return ask
            else:
                ids = processes[process_of(ask.worker, processes)][2]
                if self._may_begin(ask, ids, membership, out):
                    leaves = self._leaves_of(ids)
                    for each in leaves:
                        self._take_out(each)
                    return leaves
        return None

    def _may_begin(self, ask: JoinAsk | LeaveAsk, ids: tuple[WorkerId, ...], membership: Membership, out: Mail) -> bool:
        if not self.supervised:
            self.hands_over = membership.coordinator in ids  # which no worker that joins is
            return not self.hands_over
        if type(ask) not in self._due:
            self._due[type(ask)] = ids
            due = JoinDue(ids, (ask.host, ask.port)) if isinstance(ask, JoinAsk) else LeaveDue(ids)
            out.append((membership.coordinator, due))
        return ids in self._granted

    def _leaves_of(self, ids: tuple[WorkerId, ...]) -> list[LeaveAsk]:
        return [ask for ask in self.waiting if isinstance(ask, LeaveAsk) and ask.worker in ids]

    def _take_out(self, ask: JoinAsk | LeaveAsk) -> None:
        """Forget a request, and what was due for it."""
        first = next((each for each in self.waiting if isinstance(each, JoinAsk)), None)
        self.waiting.remove(ask)
        if ask is first or (isinstance(ask, LeaveAsk) and ask.worker in self._due.get(LeaveAsk, ())):
            self._granted.discard(self._due.pop(type(ask), ()))

    def _check(self) -> None:
        assert JoinAsk not in self._due or any(isinstance(ask, JoinAsk) for ask in self.waiting)
        assert LeaveAsk not in self._due or self._leaves_of(self._due[LeaveAsk]), "a leave that is due is in the queue"
        assert self._granted <= set(self._due.values()), "only what is due is granted"


def deny(ask: JoinAsk | LeaveAsk, reason: str, out: Mail) -> None:
    """Answer a request that it is refused."""
    if isinstance(ask, JoinAsk):
        assert ask.via is not None
        out.append((ask.via, Answer(ask.key, Denied(reason))))
    elif ask.reply_to is not None:
        out.append((ask.reply_to, LeaveAnswer(ask.worker, reason)))


def _against(ask: JoinAsk | LeaveAsk, membership: Membership, processes: dict[int, Process]) -> str | None:
    """Return why a request cannot be granted, as far as the membership tells; None if it can."""
    if isinstance(ask, LeaveAsk):
        if ask.worker not in membership.workers:
            return f"there is no worker {ask.worker}; the workers are {membership.names}"
        return f"worker {ask.worker} is in the only process; stop the job instead" if len(processes) == 1 else None
    each = len(next(iter(processes.values()))[2])
    if ask.workers != each:
        return f"it has {ask.workers} workers, but each process of this cluster has {each}: give -w {each}"
    if ask.server is not None and ask.server not in membership.workers:
        return f"there is no worker {ask.server} to join through; the workers are {membership.names}"
    for process, (host, port, _) in processes.items():
        if (host, port) == (ask.host, ask.port):
            return f"process {process} of this cluster listens on {host}:{port} already"
    return None


def process_of(worker: WorkerId, processes: dict[int, Process]) -> int:
    """Return the process in which a member works.

    >>> process_of(3, {0: ("localhost", 2101, (0, 1)), 4: ("localhost", 2102, (2, 3))})
    4
    """
    return next(process for process, (_, _, ids) in processes.items() if worker in ids)
