"""The reference itself, on cases worked out by hand."""

from megaflow.testing.reference import could_result_in, frontier_by_brute_force, path_summaries
from megaflow.timely.order import Product
from megaflow.timely.path_summary import Summary, enter, feedback, identity, leave
from megaflow.timely.progress.antichain import Antichain
from megaflow.timely.progress.reachability import GraphBuilder


def loop_in_a_scope() -> GraphBuilder:
    graph = GraphBuilder()
    for depth in (0, 1, 1, 0):
        graph.add_location(depth)
    for edge in [(0, 1, enter(0)), (1, 2, identity(1)), (2, 1, feedback(1, 2)), (2, 3, leave(1))]:
        graph.add_edge(*edge)
    return graph


def test_the_minimal_summaries_of_a_nested_loop() -> None:
    paths = path_summaries(loop_in_a_scope())
    assert paths[0, 3] == [identity(0)]
    assert paths[0, 2] == [Summary((0,), (0,))]
    assert paths[1, 1] == [identity(1)]
    assert paths[2, 1] == [feedback(1, 2)]
    assert (3, 0) not in paths


def test_several_summaries_are_kept_when_none_is_less() -> None:
    graph = loop_in_a_scope()
    graph.add_edge(3, 0, feedback(0, 1))
    assert set(path_summaries(graph)[2, 1]) == {feedback(1, 2), Summary((1,), (0,))}


def test_could_result_in() -> None:
    paths = path_summaries(loop_in_a_scope())
    assert could_result_in(paths, 2, Product(3, 1), 1, Product(3, 3))
    assert not could_result_in(paths, 2, Product(3, 1), 1, Product(3, 2))
    assert could_result_in(paths, 2, Product(3, 9), 3, 3)
    assert not could_result_in(paths, 3, 0, 0, 9)


def test_only_sums_above_zero_hold_a_frontier() -> None:
    stamps = [(0, 1, 1), (0, 1, -1), (0, 2, -3), (1, Product(4, 4), 1), (2, Product(5, 0), 2)]
    graph = loop_in_a_scope()
    assert frontier_by_brute_force(graph, stamps, 0).is_empty()
    assert frontier_by_brute_force(graph, stamps, 2) == Antichain([Product(4, 4), Product(5, 0)])
    assert frontier_by_brute_force(graph, stamps, 3) == Antichain([4])
