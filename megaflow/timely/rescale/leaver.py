"""A leaving worker, from the permission to leave until every member has received all that it ever sent.

1. *Closing.* It closes its inputs and reads nothing new. It processes what it holds.
2. *Draining.* No member sends it records any longer. Each ends its record lanes to the leaver with `NoMoreRecords`.
   Progress still flows both ways. When all record lanes have ended and it holds nothing (no capability, no record, no
   unsent progress), it can never hold anything again: a capability comes only from a capability or a record.
3. *Gone.* It ends each of its four lanes (`LaneEnd`). A member that has read all four ends has received all batches and
   records of the leaver. When every member has reported this, the leaver is no longer a member in any respect, and its
   program may end.
"""

from megaflow.timely.communication.channel import Channel, Lane
from megaflow.timely.membership import WorkerId
from megaflow.timely.rescale.host import Host
from megaflow.timely.rescale.messages import LaneEnd

RECORD_LANES = (Lane.MAIL, Lane.STATE, Lane.DATA)


class Leaver:
    """One leaving worker's state. One writer: the worker's thread."""

    def __init__(self, change: int, others: tuple[WorkerId, ...], host: Host) -> None:
        self.gone = False  # it has ended its lanes
        self.draining = False  # no member sends it records any longer
        self._change = change
        self._others = others  # the other members before the change
        self._open = {(worker, lane) for worker in others for lane in RECORD_LANES}  # lanes that have not ended
        self._host = host

    def no_more_records(self, source: WorkerId, lane: Lane) -> None:
        """Note that a lane has ended."""
        self._open.discard((source, lane))

    def turn(self) -> None:
        """End all lanes once nothing is left to process."""
        assert not self.gone or self._holds_nothing(), "a worker that has ended its lanes holds nothing"
        if self.draining and not self.gone and not self._open and self._holds_nothing():
            for graph in self._host.graphs.values():
                graph.progress.send(flush=True)
                graph.batch_coalescer.depart()
            for lane in Lane:
                self._host.allocator.send_all(self._others, Channel.membership(lane), LaneEnd(self._change))
            self.gone = True

    def _holds_nothing(self) -> bool:
        for graph in self._host.graphs.values():
            if any(queue.batches for queue in graph.queues) or not graph.changes.is_empty():
                return False
            if any(count for _, count in graph.progress.caster.capabilities()):
                return False
        return True


def objections(host: Host, ids: tuple[WorkerId, ...]) -> tuple[str, ...]:
    """Return this worker's objections to the leave of these workers."""
    views = [view for graph in host.graphs.values() for view in graph.views if host.index in ids]
    reasons = [reason for view in views if (reason := view.objection()) is not None]
    return (*pins(host, ids), *(f"worker {host.index} {reason}" for reason in reasons))


def pins(host: Host, ids: tuple[WorkerId, ...]) -> tuple[str, ...]:
    """Return why these workers may never leave, with or without bins. The answer is the same on every worker."""
    return tuple(
        f"dataflow {graph.name!r} has operators whose records go to its founding workers: "
        f"{', '.join(dict.fromkeys(graph.pinned))} "
        "(an Exchange pact may hide state; stateful operators move theirs)"
        for graph in host.graphs.values()
        if graph.pinned and set(ids) & graph.founders.workers
    )
