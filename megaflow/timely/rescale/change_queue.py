"""The one queue of requests to join and to leave, and the one place where they are admitted or refused.

The queue is a value and a part of the sequencer. The sequencer begins the change that `take_next` returns.

1. A request is admitted or refused when its turn has come, because conditions may have changed since it arrived. A
   refused request changes nothing and uses no id.
2. If a program *supervises* (a job does, see `megaflow.control.coordinator.members.membership_requests`), it rules on
   each request when the request's turn has come. This worker sends itself mail that names the process that is due, and
   the program answers with `rule`. The program always learns first how the previous change ended, because that is
   earlier mail of this worker to itself. Otherwise it would rule with members that are gone, or hand over a finished
   request as if it were still under way. If a process is no longer due, the program does not hear of it, and a ruling
   on it is dropped. Its request was denied meanwhile, or was handed over, and then the next coordinator's program is
   asked anew.
3. While a join that is due waits for its ruling, nothing else begins. So a granted join begins under the membership
   that the program ruled on, and before any leave that is granted meanwhile. For the same reason the queue does not
   refuse it after the ruling; the program would not hear of that. A leave that is due waits until the program has done
   the work that must come first. Joins may overtake it, because that work may include waiting for processes that join.
   No leave overtakes another.
4. The coordinator's own process leaves under another coordinator: its request stays in the queue, and the queue is
   handed over. A supervising program hands over when it is at rest; without one, `Role` does so at once (`hands_over`).
"""

from collections.abc import Iterable

from megaflow.timely.membership import Membership, WorkerId
from megaflow.timely.rescale.change_stages import Mail
from megaflow.timely.rescale.messages import Answer, Denied, JoinAsk, JoinDue, LeaveAnswer, LeaveAsk, LeaveDue, Process

WAITING_MAX = 1_000  # requests in the queue


class ChangeQueue:
    """The waiting requests, in order. One writer: the sequencer."""

    def __init__(self, waiting: Iterable[JoinAsk | LeaveAsk] = ()) -> None:
        self.supervised = False  # by a program, which rules on each request
        self.hands_over = False  # the coordinator's own process is to leave, and no program needs to come to rest first
        self.waiting = list(waiting)  # in order; at most WAITING_MAX
        # The first request of each kind that is due -> the ids that the join will have, or the workers that will leave
        self._due: dict[type[JoinAsk | LeaveAsk], tuple[WorkerId, ...]] = {}
        self._granted: set[tuple[WorkerId, ...]] = set()  # the values of `_due` that the program has granted

    def add(self, ask: JoinAsk | LeaveAsk, out: Mail) -> None:
        """Add a request at the end; deny it if the queue is full."""
        if len(self.waiting) >= WAITING_MAX:
            deny(ask, f"{WAITING_MAX} changes are already waiting; try again later", out)
        else:
            self.waiting.append(ask)

    def is_due(self, ids: tuple[WorkerId, ...]) -> bool:
        """Return whether the program must rule, or has ruled, on the process with these workers."""
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
        """Refuse these waiting requests."""
        for ask in tuple(asks):
            deny(ask, reason, out)
            self._take_out(ask)

    def take_next(
        self, membership: Membership, processes: dict[int, Process], next_id: WorkerId, out: Mail
    ) -> JoinAsk | list[LeaveAsk] | None:
        """Take out and return the request that begins now, or None. All leave requests of one process count as one.

        `next_id` is the first id that a new worker would get. Refuses requests that cannot be granted, and asks the
        program to rule on the others.
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
            self.hands_over = membership.coordinator in ids  # never true of a join: its ids are new
            return not self.hands_over
        if type(ask) not in self._due:
            self._due[type(ask)] = ids
            due = JoinDue(ids, (ask.host, ask.port)) if isinstance(ask, JoinAsk) else LeaveDue(ids)
            out.append((membership.coordinator, due))
        return ids in self._granted

    def _leaves_of(self, ids: tuple[WorkerId, ...]) -> list[LeaveAsk]:
        return [ask for ask in self.waiting if isinstance(ask, LeaveAsk) and ask.worker in ids]

    def _take_out(self, ask: JoinAsk | LeaveAsk) -> None:
        """Remove a request, and the ruling that was due or made on it."""
        first = next((each for each in self.waiting if isinstance(each, JoinAsk)), None)
        self.waiting.remove(ask)
        if ask is first or (isinstance(ask, LeaveAsk) and ask.worker in self._due.get(LeaveAsk, ())):
            self._granted.discard(self._due.pop(type(ask), ()))

    def _check(self) -> None:
        assert JoinAsk not in self._due or any(isinstance(ask, JoinAsk) for ask in self.waiting)
        assert LeaveAsk not in self._due or self._leaves_of(self._due[LeaveAsk]), "a leave that is due is in the queue"
        assert self._granted <= set(self._due.values()), "only what is due is granted"


def deny(ask: JoinAsk | LeaveAsk, reason: str, out: Mail) -> None:
    """Send the answer that a request is refused."""
    if isinstance(ask, JoinAsk):
        assert ask.via is not None
        out.append((ask.via, Answer(ask.key, Denied(reason))))
    elif ask.reply_to is not None:
        out.append((ask.reply_to, LeaveAnswer(ask.worker, reason)))


def _against(ask: JoinAsk | LeaveAsk, membership: Membership, processes: dict[int, Process]) -> str | None:
    """Return why this membership cannot grant a request; None if it can."""
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
    """Return the number of the process that runs a member.

    >>> process_of(3, {0: ("localhost", 2101, (0, 1)), 4: ("localhost", 2102, (2, 3))})
    4
    """
    return next(process for process, (_, _, ids) in processes.items() if worker in ids)
