"""Ranks of the nodes of a changing graph, in whole numbers. Changes go around a loop until they are small.

python apps/pagerank.py [NODES [EDGES [CHANGES]]] [-w WORKERS] [-n PROCESSES -p PROCESS]

The edges come at time 0. After that, each time removes the oldest edge and adds a new one. The loop uses the same
times: a change of rank at one time reaches the neighbors at the next.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

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
Report = Callable[[object, list[int]], object]  # time, sizes of the changes

_FIRST_RANK = 1000
_LEAST_CHANGE = 6  # what is less stays with the node


class Ranks:
    """The nodes of one worker: their edges, their ranks, and the changes that are not passed on yet."""

    def __init__(self) -> None:
        self.edges: defaultdict[int, Counter[int]] = defaultdict(Counter)  # node -> target -> how many
        self.ranks: defaultdict[int, int] = defaultdict(lambda: _FIRST_RANK)
        self.kept: Counter[int] = Counter()  # node -> change below the least

    def gifts(self, node: int) -> Counter[int]:
        """Share five sixths of the rank evenly among the targets; the first ones get the remainder."""
        targets = [(target, edges) for target, edges in sorted(self.edges[node].items()) if edges]
        share, left_over = divmod(self.ranks[node] * 5 // 6, len(targets) or 1)
        return Counter({target: edges * (share + (i < left_over)) for i, (target, edges) in enumerate(targets)})

    def change_edges(self, node: int, changes: Counter[int]) -> Iterator[Change]:
        """Add and remove edges; return the changes for other nodes."""
        before = self.gifts(node)
        self.edges[node].update(changes)
        return difference(before, self.gifts(node))

    def change_rank(self, node: int, change: int) -> Iterator[Change]:
        """Add to a rank; return the changes for other nodes."""
        self.kept[node] += change
        if abs(self.kept[node]) < _LEAST_CHANGE:
            return iter(())
        before = self.gifts(node)
        self.ranks[node] += self.kept.pop(node)
        return difference(before, self.gifts(node))


def difference(before: Counter[int], after: Counter[int]) -> Iterator[Change]:
    """Return the change of each value from before to after, where there is one."""
    return ((node, after[node] - before[node]) for node in {**before, **after} if after[node] != before[node])


class Pending:
    """The changes of one time, added up, while the time is not complete."""

    def __init__(self) -> None:
        self.edges: defaultdict[int, Counter[int]] = defaultdict(Counter)  # node -> target -> how many more
        self.ranks: Counter[int] = Counter()  # node -> how much more

    def apply(self, state: Ranks) -> Iterator[Change]:
        """Change first edges, then ranks; yield the changes for other nodes."""
        for node, targets in self.edges.items():
            yield from state.change_edges(node, targets)
        for node, change in self.ranks.items():
            yield from state.change_rank(node, change)


def pagerank(state: Ranks, report: Report) -> Callable[[Capability, OperatorInfo], Logic]:
    """The operator: when a time is complete on both inputs, apply its changes."""

    def build(capability: Capability, info: OperatorInfo) -> Logic:
        capability.release()
        stash: defaultdict[Capability, Pending] = defaultdict(Pending)

        def logic(edges: Input[tuple[Edge, int]], ranks: Input[Change], output: Output[Change]) -> None:
            for time, edge_batch in edges:
                pending = stash[time.retain()]
                for (node, target), change in edge_batch:
                    pending.edges[node][target] += change
            for time, rank_batch in ranks:
                pending = stash[time.retain()]
                for node, change in rank_batch:
                    pending.ranks[node] += change
            for held in list(stash):
                if edges.frontier.less_equal(held.time) or ranks.frontier.less_equal(held.time):
                    continue
                with held, output.session(held) as session:
                    pending = stash.pop(held)
                    session.give_iterator(pending.apply(state))
                    report(held.time, [abs(change) for change in pending.ranks.values() if change])

        return logic

    return build


def main(worker: Worker) -> tuple[dict[object, list[int]], dict[int, int]]:
    """Return the sizes of this worker's changes of rank, time by time, and its ranks."""
    nodes, edges, changes = (int(word) for word in (*worker.args, *("100", "500", "0")[len(worker.args) :]))
    drawn = pairs(edges + changes, nodes)
    handle: InputHandle[tuple[Edge, int]] = InputHandle()
    probe = ProbeHandle()
    state = Ranks()
    sizes: dict[object, list[int]] = {}

    def report(time: object, changed: list[int]) -> None:
        if changed:
            sizes[time] = changed
            print(f"time {time}: {len(changed)} ranks changed by {sum(changed)}, at most {max(changed)}", flush=True)

    by_source, by_node = Exchange(lambda change: change[0][0]), Exchange(lambda change: change[0])
    with worker.dataflow("pagerank") as scope:
        loop, back = scope.feedback(1)
        edges_in = scope.input_from(handle)
        changed = edges_in.binary_frontier(back, by_source, by_node, "PageRank", pagerank(state, report))
        changed.probe_with(probe).connect_loop(loop)
    handle.send_batch([(edge, 1) for edge in drawn[worker.index : edges : worker.peers]])
    for time in range(1, changes + 1):
        handle.advance_to(time)
        if time % worker.peers == worker.index:
            handle.send_batch([(drawn[time - 1], -1), (drawn[edges + time - 1], 1)])
    handle.close()
    worker.step_while(lambda: not probe.done())
    print(f"worker {worker.index}: {len(state.ranks)} nodes, sum of ranks {sum(state.ranks.values())}", flush=True)
    return sizes, dict(state.ranks)


if __name__ == "__main__":
    execute_from_args(main)
