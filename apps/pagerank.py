"""Ranks of the nodes of a changing graph, in whole numbers; what changes goes around a loop until little does.

python apps/pagerank.py [NODES [EDGES [CHANGES]]] [-w WORKERS] [-n PROCESSES -p PROCESS]

The edges come at time 0; then, time by time, the oldest one goes and a new one comes. The loop
shares their axis: a change of rank at one time reaches the nodes that it leads to at the next.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from apps.draws import pairs
from megaflow.timely import (
    Capability,
    Exchange,
    Input,
    InputHandle,
    OperatorInfo,
    Output,
    ProbeHandle,
    Worker,
    execute_from_args,
)

Edge = tuple[int, int]
Change = tuple[int, int]  # node, by how much its rank grows
Logic = Callable[[Input[tuple[Edge, int]], Input[Change], Output[Change]], None]

_FIRST_RANK = 1000
_LEAST_CHANGE = 6  # what is less stays with the node


class Ranks:
    """The nodes of one worker: where their edges lead, their ranks, what is not passed on yet."""

    def __init__(self) -> None:
        self.edges: defaultdict[int, Counter[int]] = defaultdict(Counter)  # node -> target -> how many
        self.ranks: defaultdict[int, int] = defaultdict(lambda: _FIRST_RANK)
        self.kept: Counter[int] = Counter()  # node -> change below the least

    def gifts(self, node: int) -> Counter[int]:
        """Five sixths of the rank, shared evenly by the targets; the first ones get what is left over."""
        targets = [(target, edges) for target, edges in sorted(self.edges[node].items()) if edges]
        share, left_over = divmod(self.ranks[node] * 5 // 6, len(targets) or 1)
        return Counter({target: edges * (share + (i < left_over)) for i, (target, edges) in enumerate(targets)})

    def change_edges(self, node: int, changes: Counter[int]) -> Iterator[Change]:
        """Add and remove edges; return what other nodes get from now on, more or less."""
        before = self.gifts(node)
        self.edges[node].update(changes)
        return difference(before, self.gifts(node))

    def change_rank(self, node: int, change: int) -> Iterator[Change]:
        """Add to a rank; return what other nodes get from now on, more or less."""
        self.kept[node] += change
        if abs(self.kept[node]) < _LEAST_CHANGE:
            return iter(())
        before = self.gifts(node)
        self.ranks[node] += self.kept.pop(node)
        return difference(before, self.gifts(node))


def difference(before: Counter[int], after: Counter[int]) -> Iterator[Change]:
    """Return by how much each is more after than before, where it is."""
    return ((node, after[node] - before[node]) for node in before | after if after[node] != before[node])


def pagerank(state: Ranks, report: Callable[[object, list[int]], object]) -> Callable[[Capability, OperatorInfo], Logic]:
    """The operator: when a time is complete on both inputs, apply its changes, first of edges, then of ranks."""

    def build(capability: Capability, info: OperatorInfo) -> Logic:
        capability.release()
        stash: dict[Capability, tuple[defaultdict[int, Counter[int]], Counter[int]]] = {}

        def logic(edges: Input[tuple[Edge, int]], ranks: Input[Change], output: Output[Change]) -> None:
            for time, edge_batch in edges:
                changed = stash.setdefault(time.retain(), (defaultdict(Counter), Counter()))[0]
                for (node, target), change in edge_batch:
                    changed[node][target] += change
            for time, rank_batch in ranks:
                sums = stash.setdefault(time.retain(), (defaultdict(Counter), Counter()))[1]
                for node, change in rank_batch:
                    sums[node] += change
            for held in [held for held in stash if not any(each.frontier.less_equal(held.time) for each in (edges, ranks))]:
                with held, output.session(held) as session:
                    changed, sums = stash.pop(held)
                    for node, targets in changed.items():
                        session.give_iterator(state.change_edges(node, targets))
                    changes = [(node, change) for node, change in sums.items() if change]
                    for node, change in changes:
                        session.give_iterator(state.change_rank(node, change))
                if changes:
                    report(held.time, [abs(change) for _, change in changes])

        return logic

    return build


def main(worker: Worker) -> tuple[dict[object, list[int]], dict[int, int]]:
    """Return the sizes of this worker's changes of rank, time by time, and its ranks."""
    nodes, edges, changes = [int(word) for word in (*worker.args, "100", "500", "0")[:3]]
    sizes: dict[object, list[int]] = {}
    ...


if __name__ == "__main__":
    execute_from_args(main)
