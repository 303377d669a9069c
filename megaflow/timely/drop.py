"""Dropping a dataflow in two phases, so that no worker frees what another still feeds.

1. *Stop.* A worker that is asked to drop a dataflow, or hears that another has stopped it, runs it no more and tells
   all workers, joining and leaving ones included. Its inputs, inside and outside, lead nowhere from then on.
2. *Free.* A worker that has heard from all others frees what it kept. What still comes for the dataflow, now or later,
   is discarded: lanes overtake one another, so a record may come long after its sender said that it has stopped.

One worker that asks is enough. A worker that hears of it before it has built the dataflow stops it when it is built.
"""

from collections.abc import Callable
from typing import Any

from megaflow.timely.dataflow.context import Context
from megaflow.timely.dataflow.graph import Graph

TOPIC = "megaflow.drop"  # of the mail between workers; the body is the dataflow's number


class Dropping:
    """What one worker knows of the dataflows that are being dropped. One writer: the worker's thread."""

    def __init__(self, context: Context, post: Callable[[int, str, Any], None]) -> None:
        self._own = context.allocator.index
        self._context = context
        self._post = post
        self._stopped: dict[int, set[int]] = {}  # dataflow not yet freed -> workers that have stopped it
        self._kept: dict[int, Graph] = {}  # stopped here, not yet freed
        self._done: set[int] = set()  # stopped by all and freed

    def __contains__(self, dataflow: int) -> bool:
        """Tell whether this worker has stopped the dataflow: what comes for it is discarded."""
        return dataflow in self._done or self._own in self._stopped.get(dataflow, ())

    def is_wanted(self, dataflow: int) -> bool:
        """Tell whether another worker has stopped a dataflow that this one has not."""
        return dataflow in self._stopped and dataflow not in self

    def stop(self, dataflow: int, graph: Graph | None) -> None:
        """Stop it here; None: there is nothing (any more) to stop."""
        if graph is not None:
            graph.stop()
            self._kept[dataflow] = graph
        self.hear(self._own, dataflow)
        for worker in self._context.audience():  # all that may have it
            if worker != self._own:
                self._post(worker, TOPIC, dataflow)

    def hear(self, source: int, dataflow: int) -> None:
        """Note that a worker has stopped it."""
        if dataflow not in self._done:
            self._stopped.setdefault(dataflow, set()).add(source)

    def free(self) -> None:
        """Free what all have stopped; between steps only, because an operator may have dropped its own dataflow."""
        if not self._stopped:
            return
        members = self._context.membership().workers  # those that may feed it
        for dataflow in [each for each, workers in self._stopped.items() if workers.issuperset(members)]:
            del self._stopped[dataflow]
            self._done.add(dataflow)
            graph = self._kept.pop(dataflow, None)
            if graph is not None:
                graph.free()
