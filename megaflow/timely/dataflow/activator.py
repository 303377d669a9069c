"""Activators: how anything outside a dataflow has one of its operators run."""

from dataclasses import dataclass

from megaflow.timely.dataflow.graph import Graph


class Activator:
    """Puts its operator in the run queue; from any thread. Harmless when the dataflow or the worker has ended."""

    __slots__ = ("_graph", "_handed", "_index")

    def __init__(self, graph: Graph, index: int) -> None:
        self._graph = graph
        self._index = index
        self._handed = False  # an activation waits for the worker: another would add nothing

    def activate(self) -> None:
        """Run the operator at the worker's next step; wakes a parked worker."""
        if not self._handed:
            self._handed = True
            self._graph.context.activate(self._add)

    def activate_after(self, seconds: float) -> None:
        """Run the operator once this time has passed; each call counts."""
        self._graph.context.activate_after(seconds, self._add)

    def _add(self) -> None:
        self._handed = False  # first: who activates from now on means a later run
        self._graph.run_queue.add(self._index)


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """What an operator may know of itself."""

    index: int  # within the dataflow, equal on all workers
    name: str
    worker: int
    activator: Activator
