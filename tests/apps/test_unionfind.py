"""The forest of apps/unionfind.py, compared with sets that are merged one by one."""

import pytest

from apps.unionfind import main
from tests.timely.cases import edges, run_threads
from tests.timely.workers import EVERY


def components(nodes: int, graph: list[tuple[int, int]]) -> set[frozenset[int]]:
    part_of = {node: frozenset([node]) for node in range(nodes)}
    for left, right in graph:
        both = part_of[left] | part_of[right]
        part_of.update(dict.fromkeys(both, both))
    return set(part_of.values())


@pytest.mark.parametrize("workers", EVERY)
def test_1000_edges_make_838_merges(workers: int) -> None:
    """Case 21."""
    forest, *others = run_threads(workers, main)
    assert others == [[]] * (workers - 1)
    assert len(forest) == 838
    graph = edges(1000, 1000)
    assert set(forest) <= set(graph)
    assert components(1000, forest) == components(1000, graph)
    assert len(components(1000, graph)) == 1000 - 838, "an edge too many would close a circle"


@pytest.mark.parametrize("workers", EVERY)
def test_a_dense_graph_is_one_tree(workers: int) -> None:
    forest = run_threads(workers, main, "40", "5000")[0]
    assert len(forest) == 39
    assert components(40, forest) == {frozenset(range(40))}
