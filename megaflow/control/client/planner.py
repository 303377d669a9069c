"""Plans from one routing table to another: the bins that move, and the steps.

A plan is a list of steps. Each step is a list of moves that are issued together, after the step before is done. Every
plan moves exactly the bins whose workers differ between the two tables, each bin once.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from typing import Final, TypeAlias

from megaflow.errors import CommandRefused, UsageError
from megaflow.megaphone.base.routing import Move, RoutingTable, difference, initial_table
from megaflow.timely.membership import WorkerId

Change: TypeAlias = tuple[int, WorkerId, WorkerId]  # bin, from, to
Step: TypeAlias = list[Move]

HOTTEST_FIRST: Final = "hottest-first"


def plan(
    table: RoutingTable,
    target: RoutingTable,
    strategy: str,
    batch: int | None = None,
    loads: Sequence[float] | None = None,
) -> list[Step]:
    """Return the steps that lead from one table to the other; none if the tables are equal.

    `all-at-once` is one step, `fluid` moves one bin a step, and `batched` moves `batch` bins a step. In each step,
    `optimized` takes at most one bin out of each worker and puts at most one into it; it needs the fewest such steps.
    With `loads`, one figure per bin, the heaviest bins move first; without, the order is that of the bins.
    `hottest-first` is `fluid` with loads.

    >>> plan((0, 0, 0), (1, 2, 0), "fluid")
    [[Move(bin=0, worker=1)], [Move(bin=1, worker=2)]]
    """
    if len(table) != len(target):
        raise CommandRefused(f"the wanted table has {len(target)} bins, the job has {len(table)}: name every bin once")
    if strategy not in STRATEGIES:
        raise UsageError(f"there is no strategy {strategy!r}; use one of {', '.join(STRATEGIES)}")
    if (batch is not None) != (strategy == "batched"):
        raise UsageError(
            f"batch={batch!r} with strategy {strategy!r}: a number of bins per step requires the strategy batched"
        )
    if batch is not None and batch < 1:
        raise UsageError(f"batch={batch}: a step moves at least one bin")
    if strategy == HOTTEST_FIRST and loads is None:
        raise UsageError(f"{HOTTEST_FIRST} needs the load of each bin, and the loads are missing")
    changes = difference(table, target)
    if loads is not None:
        weights = loads
        changes.sort(key=lambda change: -weights[change[0]])
    steps = STRATEGIES[strategy](changes, batch or 1)
    return [[Move(bin, worker) for bin, _, worker in step] for step in steps]


def _batched(changes: list[Change], batch: int) -> list[list[Change]]:
    return [changes[start : start + batch] for start in range(0, len(changes), batch)]


def _optimized(changes: list[Change], batch: int) -> list[list[Change]]:
    """Colour the edges of the bipartite multigraph of senders and receivers: each colour is a step.

    By König's theorem, the largest degree is a sufficient number of colours. Each edge gets the lowest colour that is
    free at its sender. If the receiver has used this colour, swapping two colours along a path frees it there.
    """
    senders: dict[WorkerId, _Vertex] = {}
    receivers: dict[WorkerId, _Vertex] = {}
    colours: dict[int, int] = {}  # number of the change -> its step
    for number, (_, source, target) in enumerate(changes):
        sender = senders.setdefault(source, _Vertex())
        receiver = receivers.setdefault(target, _Vertex())
        colour, other = sender.lowest_free(), receiver.lowest_free()
        # Step 1: walk from the receiver along edges that alternate between `colour` and `other`. The path cannot reach
        # the sender: it would arrive there by an edge of `colour`, which is free there.
        path = []
        vertex, wanted, at_receiver = receiver, colour, True
        while (edge := vertex.edges.get(wanted)) is not None:
            path.append(edge)
            _, edge_source, edge_target = changes[edge]
            vertex = senders[edge_source] if at_receiver else receivers[edge_target]
            wanted, at_receiver = (other if wanted == colour else colour), not at_receiver
        # Step 2: swap the two colours on it. The path's edges share vertices, so free all colours before reusing any.
        for edge in path:
            senders[changes[edge][1]].free(colours[edge])
            receivers[changes[edge][2]].free(colours[edge])
        for edge in path:
            colours[edge] = other if colours[edge] == colour else colour
            senders[changes[edge][1]].edges[colours[edge]] = edge
            receivers[changes[edge][2]].edges[colours[edge]] = edge
        # Step 3: the colour is now free at both ends of the new edge.
        colours[number] = colour
        sender.edges[colour] = receiver.edges[colour] = number
    steps: list[list[Change]] = [[] for _ in range(max(colours.values(), default=-1) + 1)]
    for number, change in enumerate(changes):
        steps[colours[number]].append(change)
    return steps


class _Vertex:
    """A worker as sender or as receiver. Invariant: each free colour is in `_freed`, or is not below `_next`."""

    def __init__(self) -> None:
        self.edges: dict[int, int] = {}  # colour -> number of the change
        self._freed: list[int] = []  # heap of freed colours; `lowest_free` drops those that are in use again
        self._next = 0

    def lowest_free(self) -> int:
        """Return the lowest colour that no edge here has. Cost: a few steps, amortized over the edges."""
        while self._freed and self._freed[0] in self.edges:
            heappop(self._freed)
        while self._next in self.edges:
            self._next += 1
        return min(self._freed[0], self._next) if self._freed else self._next

    def free(self, colour: int) -> None:
        """Remove the colour from its edge."""
        del self.edges[colour]
        heappush(self._freed, colour)


STRATEGIES: Final[dict[str, Callable[[list[Change], int], list[list[Change]]]]] = {
    "all-at-once": lambda changes, batch: [changes] if changes else [],
    "fluid": _batched,  # batches of one
    "batched": _batched,
    "optimized": _optimized,
    HOTTEST_FIRST: _batched,
}  # name -> (changes, batch) -> steps


def balance(table: RoutingTable, members: Collection[WorkerId]) -> RoutingTable:
    """Return a table in which the members own equally many bins, plus or minus one, and that moves the fewest bins.

    Bins of workers that are not members move to members.

    >>> balance((0, 0, 0, 0, 1), {0, 1, 2})
    (0, 0, 1, 2, 1)
    """
    if not members:
        raise CommandRefused("no worker can own the bins")
    counts = Counter(table)
    each, rest = divmod(len(table), len(members))
    # Members that own most get the larger shares: they keep bins that would otherwise have to move.
    by_count = sorted(members, key=lambda worker: (-counts[worker], worker))
    left = {worker: each + (place < rest) for place, worker in enumerate(by_count)}  # -> bins that it still lacks
    result = list(table)
    homeless = []  # each member keeps its lowest bins; the rest go in turn to members that lack some
    for bin, owner in enumerate(table):
        if left.get(owner, 0) > 0:
            left[owner] -= 1
        else:
            homeless.append(bin)
    takers = deque(worker for worker in sorted(left) if left[worker] > 0)
    for bin in homeless:
        taker = takers.popleft()
        result[bin] = taker
        left[taker] -= 1
        if left[taker] > 0:
            takers.append(taker)
    return tuple(result)


def drain(table: RoutingTable, worker: WorkerId, members: Collection[WorkerId]) -> RoutingTable:
    """Return a table in which the worker owns nothing: each of its bins goes to the member with the fewest bins.

    >>> drain((0, 1, 2, 2), 2, {0, 1, 2})
    (0, 1, 0, 1)
    """
    if worker not in members and worker not in table:
        listed = ", ".join(map(str, sorted(members)))
        raise CommandRefused(f"drain {worker}: there is no such worker; the workers are {listed}")
    others = sorted(set(members) - {worker})
    if not others:
        raise CommandRefused(
            f"drain {worker}: this is the only worker, so no other can take its bins; add workers first"
        )
    kept = defaultdict[WorkerId, list[int]](list)
    for bin, owner in enumerate(table):
        if owner != worker:
            kept[owner].append(bin)
    return initial_table(len(table), others, kept)


def parse_bins(text: str, bins: int) -> list[int]:
    """Return the bins in a list of numbers and ranges, each once, in increasing order.

    Raises UsageError for an unreadable list, CommandRefused for a bin that does not exist.

    >>> parse_bins("0-3,200, 2", 256)
    [0, 1, 2, 3, 200]
    """
    found: set[int] = set()
    for part in text.split(","):
        ends = [_number(end.strip(), f"bins {text!r}") for end in part.split("-")]
        if len(ends) > 2 or ends[0] > ends[-1]:
            raise UsageError(
                f"bins {text!r}: {part.strip()!r} is not a range; write a range such as 0-127, the lower bin first"
            )
        if ends[-1] >= bins:
            raise CommandRefused(f"bins {text!r}: there is no bin {ends[-1]}; the bins are 0 to {bins - 1}")
        found.update(range(ends[0], ends[-1] + 1))
    return sorted(found)


def read_map(text: str, bins: int) -> RoutingTable:
    """Return the table in a text: one worker id per bin, in order, separated by spaces, commas or line ends.

    Brackets are skipped, so the text can be a table from `status --json`; `#` begins a comment.

    >>> read_map("[0, 1, 0, 1]  # every other bin", 4)
    (0, 1, 0, 1)
    """
    words: list[str] = []
    for line in text.splitlines():
        words.extend(line.partition("#")[0].translate(_SEPARATORS).split())
    table = tuple(_number(word, "map") for word in words)
    if len(table) != bins:
        raise CommandRefused(
            f"the map names {len(table)} workers, but the job has {bins} bins: name one worker for each bin"
        )
    return table


_SEPARATORS: Final = str.maketrans(",[]", "   ")


def _number(word: str, where: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 20):
        raise UsageError(f"{where}: {word!r} is not a number; write bins and workers as numbers such as 17")
    return int(word)
