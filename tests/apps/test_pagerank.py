"""The incremental ranks of apps/pagerank.py, compared with a loop over whole arrays."""

from collections import Counter
from collections.abc import Iterator

import pytest

from apps.pagerank import main
from tests.timely.cases import edges, run_threads
from tests.timely.workers import EVERY

Edge = tuple[int, int]
Line = tuple[int, int, int]  # changes of rank: their number, the sum of their sizes, the largest


def gifts(rank: int, targets: dict[int, int]) -> dict[int, int]:
    """Return what a node gives to each of its targets; `targets` maps a target to its number of edges."""
    wanted = sorted(target for target, count in targets.items() if count)
    total = rank * 5 // 6
    return {
        target: targets[target] * (total // len(wanted) + (i < total % len(wanted))) for i, target in enumerate(wanted)
    }


def one_by_one(nodes: int, count: int, changes: int) -> tuple[dict[int, Line], list[int]]:
    """Compute the ranks in one loop: all messages of a time, then all nodes, then the next time."""
    drawn = edges(nodes, count + changes)
    graph: list[Counter[int]] = [Counter() for _ in range(nodes)]
    ranks, kept = [1000] * nodes, [0] * nodes
    lines: dict[int, Line] = {}
    messages: Counter[int] = Counter()
    time = 0
    while time <= changes or any(messages.values()):
        arrived = {node: change for node, change in messages.items() if change}
        if arrived:
            sizes = [abs(change) for change in arrived.values()]
            lines[time] = (len(sizes), sum(sizes), max(sizes))
        messages = Counter()
        before = [gifts(rank, targets) for rank, targets in zip(ranks, graph)]
        for (source, target), change in changes_at(time, drawn, count, changes):
            graph[source][target] += change
        for node, change in arrived.items():
            kept[node] += change
            if abs(kept[node]) >= 6:
                ranks[node], kept[node] = ranks[node] + kept[node], 0
        for old, rank, targets in zip(before, ranks, graph):
            messages.update(gifts(rank, targets))
            messages.subtract(old)
        time += 1
    return lines, ranks


def changes_at(time: int, drawn: list[Edge], count: int, changes: int) -> Iterator[tuple[Edge, int]]:
    if time == 0:
        yield from ((edge, 1) for edge in drawn[:count])
    elif time <= changes:
        yield drawn[time - 1], -1
        yield drawn[count + time - 1], 1


def together(found: list[tuple[dict[int, list[int]], dict[int, int]]]) -> tuple[dict[int, Line], list[int]]:
    sizes: dict[int, list[int]] = {}
    ranks: dict[int, int] = {}
    for some, part in found:
        for time, changed in some.items():
            sizes.setdefault(time, []).extend(changed)
        assert not set(part) & set(ranks)
        ranks.update(part)
    lines = {time: (len(changed), sum(changed), max(changed)) for time, changed in sorted(sizes.items())}
    return lines, [ranks[node] for node in sorted(ranks)]


@pytest.mark.parametrize("workers", EVERY)
def test_ranks_settle_as_in_the_original_after_50_rounds(workers: int) -> None:
    """Case 22."""
    lines, ranks = together(run_threads(workers, main, "100", "500"))
    assert sorted(lines) == list(range(1, 51))
    assert [lines[time] for time in (1, 2, 50)] == [(100, 85553, 2768), (100, 73430, 1861), (6, 10, 2)]
    assert (sum(count for count, _, _ in lines.values()), sum(size for _, size, _ in lines.values())) == (4066, 581329)
    assert (sum(ranks), max(ranks), ranks.index(max(ranks))) == (681083, 16346, 72)
    assert (lines, ranks) == one_by_one(100, 500, 0)


@pytest.mark.parametrize("workers", EVERY)
def test_edges_that_change_while_ranks_go_round_share_their_axis(workers: int) -> None:
    assert together(run_threads(workers, main, "60", "300", "40")) == one_by_one(60, 300, 40)
