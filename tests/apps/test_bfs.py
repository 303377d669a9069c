"""The levels of apps/bfs.py, compared with a search that uses a queue."""

from collections import Counter, deque

import pytest

from apps.bfs import main
from tests.timely.cases import edges, run_threads
from tests.timely.workers import EVERY


def levels(nodes: int, count: int) -> dict[int, int]:
    targets: dict[int, list[int]] = {}
    for source, target in edges(nodes, count):
        targets.setdefault(source, []).append(target)
    found, queue = {0: 0}, deque([0])
    while queue:
        node = queue.popleft()
        for target in targets.get(node, []):
            if target not in found:
                found[target] = found[node] + 1
                queue.append(target)
    return found


@pytest.mark.parametrize("workers", EVERY)
def test_978_nodes_are_reached_in_nine_levels(workers: int) -> None:
    """Case 20."""
    found = run_threads(workers, main)
    together = {node: level for part, _ in found for node, level in part.items()}
    assert sum(len(part) for part, _ in found) == len(together) == 978, "no node is reached twice"
    assert all(node % workers == index for index, (part, _) in enumerate(found) for node in part)
    histogram = Counter(together.values())
    assert [histogram[level] for level in range(9)] == [1, 5, 20, 78, 230, 388, 224, 29, 3]
    assert sum(together.values()) == 4710
    assert sum(candidates for _, candidates in found) == 3916
    assert together == levels(1000, 4000)


@pytest.mark.parametrize("workers", EVERY)
def test_a_root_without_edges_is_alone(workers: int) -> None:
    found = run_threads(workers, main, "3000000000", "2")
    assert [part for part, _ in found] == [{0: 0}] + [{}] * (workers - 1)
