"""Which requests to join or to leave can be granted, as far as the membership tells."""

from collections import deque

from megaflow.timely.membership import Membership, WorkerId
from megaflow.timely.rescale.messages import JoinAsk, LeaveAsk, Process


def against(ask: JoinAsk | LeaveAsk, membership: Membership, processes: dict[int, Process]) -> str | None:
    """Return why a request cannot be granted; None if it can."""
    if isinstance(ask, JoinAsk):
        return _against_join(ask, membership, processes)
    if ask.worker not in membership.workers:
        return f"there is no worker {ask.worker}; the workers are {membership.names}"
    if len(processes) == 1:
        return f"worker {ask.worker} is in the only process; stop the job instead"
    return None


def _against_join(ask: JoinAsk, membership: Membership, processes: dict[int, Process]) -> str | None:
    each = len(next(iter(processes.values()))[2])
    if ask.workers != each:
        return f"it has {ask.workers} workers, but each process of this cluster has {each}: use -w {each}"
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


def take_leaves(waiting: deque[JoinAsk | LeaveAsk], ids: tuple[WorkerId, ...]) -> list[LeaveAsk]:
    """Take out the requests of these workers to leave: they are the workers of one process, so all are one leave.

    >>> waiting = deque([LeaveAsk(3), LeaveAsk(5)])
    >>> take_leaves(waiting, (2, 3)), waiting
    ([LeaveAsk(worker=3, reply_to=None)], deque([LeaveAsk(worker=5, reply_to=None)]))
    """
    taken = [ask for ask in waiting if isinstance(ask, LeaveAsk) and ask.worker in ids]
    for ask in taken:
        waiting.remove(ask)
    return taken
