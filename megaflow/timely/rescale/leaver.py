"""A worker on its way out, from the word that it may leave until everybody has all that it ever sent.

1. *Closing.* Its inputs are closed; what it holds it works off. Nothing new is read.
2. *Draining.* Nobody sends it records any more, and each has said so on each lane (`NoMoreRecords`); progress flows
   both ways. When all that had been sent has come and it holds nothing (no capability, no record, nothing untold), it
   can never hold anything again: a capability needs a capability or a record.
3. *Gone.* It ends each of its lanes (`LaneEnd`). Whoever has read the ends of all four has all its batches and
   records. When everybody has said so it is no member in any respect, and its program may end.
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
        self.draining = False  # nobody sends it records any more
        self._change = change
        self._others = others  # the members before the change, without this one
        self._open = {(worker, lane) for worker in others for lane in RECORD_LANES}  # not ended yet
        self._host = host

    def no_more_records(self, source: WorkerId, lane: Lane) -> None:
        """Note that a lane has ended."""
        self._open.discard((source, lane))

    def turn(self) -> None:
        """Go when nothing is left."""
        assert not self.gone or self._holds_nothing(), "a worker that has ended its lanes holds nothing"
        if self.draining and not self.gone and not self._open and self._holds_nothing():
            for graph in self._host.graphs.values():
                graph.progress.send(flush=True)
                graph.gathering.depart()
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
    """What this worker has against it that these leave."""
    views = [view for graph in host.graphs.values() for view in graph.views if host.index in ids]
    reasons = [reason for view in views if (reason := view.objection()) is not None]
    return (*pins(host, ids), *(f"worker {host.index} {reason}" for reason in reasons))


def pins(host: Host, ids: tuple[WorkerId, ...]) -> tuple[str, ...]:
    """Why these may never leave, bins or no bins; every worker knows the same."""
    return tuple(
        f"dataflow {graph.name!r} has operators whose records go to its founding workers: "
        f"{', '.join(dict.fromkeys(graph.pinned))} "
        "(an Exchange pact may hide state; stateful operators move theirs)"
        for graph in host.graphs.values()
        if graph.pinned and set(ids) & graph.founders.workers
    )
