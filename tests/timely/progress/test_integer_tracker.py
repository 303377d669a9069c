"""The tracker for root times, against the tracker for all times and against the brute force reference."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow.errors import BuildError
from megaflow.testing.reference import could_result_in, frontier_by_brute_force, path_summaries
from megaflow.timely.path_summary import Summary, feedback
from megaflow.timely.progress.antichain import Antichain
from megaflow.timely.progress.integer_tracker import IntegerTracker
from megaflow.timely.progress.product_tracker import ProductTracker
from megaflow.timely.progress.propagation_order import positions
from megaflow.timely.progress.reachability import GraphBuilder
from tests.examples import many

Update = tuple[int, int, int]  # location, time, delta


def graph_of(size: int, *edges: tuple[int, int, int]) -> GraphBuilder:
    graph = GraphBuilder()
    for _ in range(size):
        graph.add_location()
    for a, b, add in edges:
        graph.add_edge(a, b, Summary((add,)))
    return graph


@st.composite
def graphs(draw: st.DrawFn) -> GraphBuilder:
    """Draw a root graph with any permitted edges, including double edges and loops to the same place."""
    graph = graph_of(draw(st.integers(1, 8)))
    location = st.integers(0, len(graph.depths) - 1)
    for a, b, add in draw(st.lists(st.tuples(location, location, st.sampled_from([0, 0, 1, 1, 2, 5])), max_size=14)):
        graph.add_edge(a, b, feedback(0, add))
        try:
            graph.build()
        except BuildError:
            graph.edges.pop()
    return graph


@st.composite
def runs(draw: st.DrawFn) -> tuple[GraphBuilder, list[list[Update]]]:
    """Draw a graph, and rounds of updates that go up and down, also below zero; all cancel in the end."""
    graph = draw(graphs())
    place = st.tuples(st.integers(0, len(graph.depths) - 1), st.integers(0, 6))
    update = st.tuples(place, st.sampled_from([-2, -1, -1, 1, 1, 1, 2])).map(lambda u: (*u[0], u[1]))
    rounds = draw(st.lists(st.lists(update, max_size=6), max_size=8))
    left = Counter[tuple[int, int]]()
    for location, time, delta in (update for updates in rounds for update in updates):
        left[location, time] -= delta
    return graph, [*rounds, [(location, time, delta) for (location, time), delta in left.items()]]


@settings(max_examples=many(400), deadline=None)
@given(runs())
def test_it_says_what_the_tracker_for_all_times_and_brute_force_say_after_every_propagation(
    run: tuple[GraphBuilder, list[list[Update]]],
) -> None:
    graph, rounds = run
    where, paths = positions(graph.names, graph.edges), path_summaries(graph)
    tracker, oracle = IntegerTracker(where, graph.edges), ProductTracker(graph.depths, where, graph.edges)
    places: dict[tuple[int, int], None] = {}
    for number, updates in enumerate(rounds):
        if number % 2:
            tracker.extend(updates)
            oracle.extend(updates)
        else:
            for update in updates:
                tracker.extend([update])
                oracle.extend([update])
        assert tracker.is_complete() == oracle.is_complete()
        assert tracker.propagate() == oracle.propagate()
        tracker._check()
        oracle._check()
        assert set(tracker.pointstamps()) == set(oracle.pointstamps())
        assert tracker.is_complete() == oracle.is_complete()
        stamps = list(tracker.pointstamps())
        for location in range(len(graph.depths)):
            known = frontier_by_brute_force(graph, stamps, location, paths)
            assert tracker.frontier(location) == oracle.frontier(location) == known
        places.update(((location, time), None) for location, time, _ in updates)
        for location, time in places:
            others = [(l1, t1) for l1, t1, count in stamps if count > 0 and (l1, t1) != (location, time)]
            behind = any(could_result_in(paths, l1, t1, location, time) for l1, t1 in others)
            assert tracker.is_behind_another(location, time) == oracle.is_behind_another(location, time) == behind
    assert tracker.is_complete()


def test_root_graphs_get_it_and_nested_ones_do_not() -> None:
    graph = graph_of(2, (0, 1, 0), (1, 0, 1))
    assert isinstance(graph.build(), IntegerTracker)
    graph.add_location(1)
    assert isinstance(graph.build(), ProductTracker)


def test_a_loop_does_not_hold_itself_up() -> None:
    tracker = graph_of(4, (0, 1, 0), (1, 2, 0), (2, 1, 1), (2, 3, 0)).build([(0, 3, 1)])
    assert tracker.frontier(3) == Antichain([3])
    tracker.extend([(0, 3, -1)])
    assert tracker.propagate() == [0, 1, 2, 3]
    assert tracker.frontier(3).is_empty()
    assert tracker.is_complete()


def test_a_location_may_lead_to_itself() -> None:
    tracker = graph_of(2, (0, 0, 2), (0, 1, 0)).build([(0, 1, 1)])
    assert not tracker.is_behind_another(0, 1), "what it leads to itself comes later"
    assert tracker.is_behind_another(0, 3)


def test_a_frontier_that_has_not_moved_is_the_same_object() -> None:
    tracker = graph_of(2, (0, 1, 0)).build([(0, 0, 1)])
    before = tracker.frontier(1)
    tracker.extend([(0, 5, 1)])
    tracker.propagate()
    assert tracker.frontier(1) is before
    tracker.extend([(0, 0, -1)])
    tracker.propagate()
    assert (before, tracker.frontier(1)) == (Antichain([0]), Antichain([5]))


@pytest.mark.parametrize("time", [10**400])
def test_times_may_be_as_large_as_ints(time: int) -> None:
    tracker = graph_of(2, (0, 1, 1)).build([(0, time, 1)])
    assert tracker.frontier(1) == Antichain([time + 1])


def test_a_long_chain_is_crossed_once_for_each_move() -> None:
    """Diamonds in a row have 2 to the 40th paths, but each location is visited once."""
    size = 40
    edges = [(2 * i + a, 2 * i + b, 0) for i in range(size) for a in (0, 1) for b in (2, 3)]
    tracker = graph_of(2 * size + 2, *edges).build([(0, 0, 1), (1, 0, 1)])
    tracker.extend([(0, 9, 1), (0, 0, -1), (1, 9, 1), (1, 0, -1)])
    assert tracker.propagate() == list(range(2 * size + 2))
