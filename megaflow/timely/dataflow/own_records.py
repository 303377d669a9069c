"""Own records: each consumer of a stream may change its records. If there are several, all but one get copies.

Operators of a process pass records by reference. So a function that changes its records would change what a sibling
branch sees, and the schedule would decide whether the sibling looks before or after. When a dataflow starts, it checks
each output:
 1. If several operators read it, each but the last gets copies of the changeable records (`record_copies`). The last
    one gets the records themselves, after the copies are made: it may be another thread that changes them at once.
 2. A probe does not count. An operator that only passes records on, and only to such operators or to none, does not
    count either.
 3. Operators of the engine that divide the records of one output among them (`Node.divides`) count as one reader. They
    get the records themselves, and all other readers get copies.
 4. A broadcast makes copies for each worker that is a thread of this process: see `channels.BroadcastEdge`.
An output with one reader costs nothing. Operators and the program are responsible for records that they keep after
sending them. MEGAFLOW_CHECK=aliasing reports such mistakes in states.
"""

from collections import defaultdict

from megaflow.errors import ProgramError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.channels import AddressedEdge, Edge
from megaflow.timely.dataflow.graph import Graph, Node
from megaflow.timely.dataflow.partition_tag import alike
from megaflow.timely.dataflow.record_copies import copies_of
from megaflow.timely.order import Time


@dataclass(slots=True)
class CopyingEdge(Edge):
    """Edge to a consumer that gets copies."""

    inner: Edge

    def push(self, time: Time, batch: list[object]) -> int:
        """Send copies of the records that can change."""
        return self.inner.push(time, own_copies(self, batch))


def own_copies(edge: Edge, batch: list[object]) -> list[object]:
    """Return another consumer's batch. Raises ProgramError for a record that cannot be copied."""
    try:
        return alike(copies_of(batch), batch)
    except Exception as error:
        queue = edge.end.queue
        record = next((record for record in batch if not _can_be_copied(record)), batch[0])
        raise ProgramError(
            f"the stream that {queue.name!r} ({queue.where}) reads has several consumers, and each gets its own copy "
            f"of a record, but {record!r:.200}, a {type(record).__qualname__}, cannot be copied ({error}); map it to "
            "plain values first, or give its class a method __deepcopy__ (which returns self to share the object)"
        ) from error


def _can_be_copied(record: object) -> bool:
    try:
        copies_of([record])
    except Exception:
        return False
    return True


def give_copies(graph: Graph) -> None:
    """Make all consumers but one of each output of a built dataflow get copies. Cost: linear in its edges."""
    readers = {location: node for node in graph.nodes for location in node.targets}
    idle: dict[int, bool] = {}  # node -> whether no function receives the records that it passes on
    for edges in graph.listeners.values():
        if len(edges) < 2 or any(isinstance(edge, AddressedEdge) for edge in edges):
            continue
        parts: dict[bool, list[int]] = defaultdict(list)  # whether the reader divides records with others -> places
        for place, edge in enumerate(edges):
            node = readers[edge.target]
            if not _is_idle(node, graph, readers, idle):
                parts[node.divides].append(place)
        for place in parts[False] if parts[True] else parts[False][:-1]:
            edges[place] = CopyingEdge(edges[place].target, edges[place].end, edges[place])


def _is_idle(node: Node, graph: Graph, readers: dict[int, Node], known: dict[int, bool]) -> bool:
    """Return whether a node runs no function, and passes records only to such nodes."""
    if node.index not in known:
        known[node.index] = False  # around a loop
        known[node.index] = node.stage is not None and node.stage.kind == "same" and all(
            _is_idle(readers[edge.target], graph, readers, known)
            for source in node.sources
            for edge in graph.listeners[source]
        )  # fmt: skip
    return known[node.index]
