"""Capabilities for workers that have joined. A member that holds such a capability mints them, and gates guard them.

A gate says: fold the batch that minted a capability for this newcomer before you fold any batch of the newcomer. The
gate travels on the newcomer's own progress lane, ahead of its first batch. `megaflow.timely.progcaster` explains why
gates are needed.
"""

from collections.abc import Iterable
from typing import Any

from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.membership import WorkerId
from megaflow.timely.order import sort_key
from megaflow.timely.rescale.host import Host
from megaflow.timely.rescale.messages import Grant, MintAsk, Minted


def mint(host: Host, ask: MintAsk) -> Minted:
    """Mint each wanted capability at a location where this worker holds one itself, at its least time there."""
    grants, rest = [], []
    for dataflow, location, worker in ask.wanted:
        graph = host.graphs.get(dataflow)
        least = _least_capability(graph, location) if graph is not None else None
        if graph is None or least is None:
            rest.append((dataflow, location, worker))
        else:
            number = graph.progress.mint_for_another(location, least)
            grants.append(Grant(dataflow, location, worker, least, host.index, number))
    return Minted(ask.change, tuple(grants), tuple(rest))


def _least_capability(graph: Graph, location: int) -> Any:
    held = graph.progress.caster.capabilities()
    held.extend(graph.changes)
    times = [time for (place, time), count in held if place == location and count > 0]
    return min(times, key=sort_key, default=None)


class Gates:
    """Gates of the new members, on one worker. One writer: the worker's thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._silent: set[WorkerId] = set()  # new members that have not sent their gates
        self._gates: list[tuple[int, WorkerId, WorkerId, int]] = []  # (dataflow, newcomer, minter, number)

    def begin(self, newcomers: set[WorkerId]) -> None:
        """Wait for the gates of these newcomers. Older gates remain for dataflows that this worker has yet to build."""
        built, unbuilt = self._host.built(), self._host.unbuilt()
        self._silent = newcomers
        self._gates = [gate for gate in self._gates if gate[0] >= built or gate[0] in unbuilt]

    def hear(self, newcomer: WorkerId, minted: Iterable[tuple[int, WorkerId, int]]) -> None:
        """Set a newcomer's gates."""
        self._silent.discard(newcomer)
        for dataflow, minter, number in minted:
            self._gates.append((dataflow, newcomer, minter, number))
            graph = self._host.graphs.get(dataflow)
            if graph is not None:
                graph.progress.caster.gate(newcomer, minter, number)

    def started(self, graph: Graph) -> None:
        """Set the gates of a dataflow that has just been built."""
        for dataflow, newcomer, minter, number in self._gates:
            if dataflow == graph.number:
                graph.progress.caster.gate(newcomer, minter, number)

    def are_passed(self) -> bool:
        """Return whether all gates have arrived, and all their batches are folded in the dataflows that run here."""
        if self._silent:
            return False
        for dataflow, _, minter, number in self._gates:
            graph = self._host.graphs.get(dataflow)
            if graph is not None and not graph.progress.caster.has_folded(minter, number):
                return False
        return True
