"""The tracker, against the brute force reference."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow.errors import BuildError
from megaflow.testing.reference import could_result_in, frontier_by_brute_force, path_summaries
from megaflow.timely.order import Product, Time, from_coordinates
from megaflow.timely.path_summary import Summary, enter, feedback, leave
from megaflow.timely.progress.antichain import Antichain
from megaflow.timely.progress.reachability import GraphBuilder
from tests.examples import many


def graph_of(depths: list[int], *edges: tuple[int, int] | tuple[int, int, Summary]) -> GraphBuilder:
    graph = GraphBuilder()
    for depth in depths:
        graph.add_location(depth)
    for edge in edges:
        graph.add_edge(*edge)
    return graph


def diamond() -> GraphBuilder:
    return graph_of([0] * 5, (0, 1), (0, 2, feedback(0, 2)), (1, 3), (2, 3), (3, 4), (0, 4, feedback(0, 1)))


def loop() -> GraphBuilder:
    return graph_of([0] * 5, (0, 1), (1, 2), (2, 3), (3, 1, feedback(0, 1)), (2, 4))


def two_loops_of_different_stride() -> GraphBuilder:
    return graph_of([0] * 4, (0, 1), (1, 2), (2, 1, feedback(0, 3)), (2, 0, feedback(0, 2)), (1, 3))


def nested() -> GraphBuilder:
    return graph_of([0, 1, 1, 1, 0], (0, 1, enter(0)), (1, 2), (2, 3), (3, 1, feedback(1, 1)), (2, 4, leave(1)))


def nested_in_an_outer_loop() -> GraphBuilder:
    graph = nested()
    graph.add_edge(4, 0, feedback(0, 1))
    return graph


def scopes_in_a_row_in_a_loop() -> GraphBuilder:
    graph = nested_in_an_outer_loop()
    for depth in (1, 1, 0):
        graph.add_location(depth)
    for edge in [(4, 5, enter(0)), (5, 6), (6, 5, feedback(1, 2)), (6, 7, leave(1)), (7, 0, feedback(0, 2))]:
        graph.add_edge(*edge)
    return graph


def twice_nested() -> GraphBuilder:
    return graph_of(
        [0, 1, 2, 2, 1, 0],
        (0, 1, enter(0)),
        (1, 2, enter(1)),
        (2, 3),
        (3, 2, feedback(2, 1)),
        (3, 4, leave(2)),
        (4, 1, feedback(1, 1)),
        (4, 5, leave(1)),
        (5, 0, feedback(0, 1)),
    )


SHAPES: list[Callable[[], GraphBuilder]] = [
    diamond,
    loop,
    two_loops_of_different_stride,
    nested,
    nested_in_an_outer_loop,
    scopes_in_a_row_in_a_loop,
    twice_nested,
]


@st.composite
def random_graphs(draw: st.DrawFn) -> GraphBuilder:
    """Draw any locations, with those fitting edges that close no cycle without advancing."""
    graph = GraphBuilder()
    for depth in draw(st.lists(st.integers(0, 2), min_size=2, max_size=6)):
        graph.add_location(depth)
    location = st.integers(0, len(graph.depths) - 1)
    for a, b in draw(st.lists(st.tuples(location, location), max_size=10)):
        kept = draw(st.integers(1, min(graph.depths[a], graph.depths[b]) + 1))
        adds = draw(st.tuples(*[st.sampled_from([0, 0, 1, 2])] * kept))
        graph.add_edge(a, b, Summary(adds, (0,) * (graph.depths[b] + 1 - kept)))
        try:
            graph.build()
        except BuildError:
            graph.edges.pop()
    return graph


Update = tuple[int, Time, int]


def times(depth: int) -> st.SearchStrategy[Time]:
    return st.tuples(*[st.integers(0, 4)] * (depth + 1)).map(from_coordinates)


def updates_of(graph: GraphBuilder, deltas: st.SearchStrategy[int]) -> st.SearchStrategy[Update]:
    return st.integers(0, len(graph.depths) - 1).flatmap(
        lambda location: st.tuples(st.just(location), times(graph.depths[location]), deltas)
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[GraphBuilder, list[Update], list[list[Update]]]:
    """Draw a graph, its initial counts, and rounds of updates with a propagation after each."""
    graph = draw(st.one_of(st.sampled_from(SHAPES).map(lambda make: make()), random_graphs()))
    update = updates_of(graph, st.sampled_from([-2, -1, -1, 1, 1, 2]))
    initial = draw(st.lists(updates_of(graph, st.just(1)), max_size=4))
    return graph, initial, draw(st.lists(st.lists(update, max_size=6), max_size=8))


@st.composite
def shuffled_runs(draw: st.DrawFn) -> tuple[GraphBuilder, list[Update], list[list[Update]]]:
    """Draw counts that all go up by one and down again, in any order: negative for a while, all gone at the end."""
    graph = draw(st.one_of(st.sampled_from(SHAPES).map(lambda make: make()), random_graphs()))
    stamps = draw(st.lists(updates_of(graph, st.just(1)), max_size=8))
    order = draw(st.permutations(stamps + [(location, time, -1) for location, time, _ in stamps]))
    size = draw(st.integers(1, 5))
    return graph, [], [order[start : start + size] for start in range(0, len(order), size)]


@settings(max_examples=many(300), deadline=None)
@given(st.one_of(runs(), shuffled_runs()))
def test_every_frontier_is_that_of_brute_force_after_every_prefix(
    run: tuple[GraphBuilder, list[Update], list[list[Update]]],
) -> None:
    graph, initial, rounds = run
    paths = path_summaries(graph)
    everywhere = range(len(graph.depths))
    tracker = graph.build(initial)
    counts: Counter[tuple[int, Time]] = Counter()
    before = [Antichain() for _ in everywhere]
    for number, updates in enumerate([initial, *rounds]):
        for location, time, delta in updates:
            counts[location, time] += delta
            if number:
                tracker.extend([(location, time, delta)])
        changed = tracker.propagate()
        tracker._check()
        stamps = {(location, time, count) for (location, time), count in counts.items() if count}
        after = [frontier_by_brute_force(graph, stamps, location, paths) for location in everywhere]
        assert [tracker.frontier(location) for location in everywhere] == after
        if number:
            assert changed == [location for location in everywhere if before[location] != after[location]]
        assert set(tracker.pointstamps()) == stamps
        assert tracker.is_complete() == (not stamps)
        for location, time in counts:
            others = [(l1, t1) for l1, t1, count in stamps if count > 0 and (l1, t1) != (location, time)]
            behind = any(could_result_in(paths, l1, t1, location, time) for l1, t1 in others)
            assert tracker.is_behind_another(location, time) == behind
        before = after


@settings(deadline=None)
@given(runs())
def test_one_propagation_is_as_good_as_many(run: tuple[GraphBuilder, list[Update], list[list[Update]]]) -> None:
    graph, initial, rounds = run
    at_once, bit_by_bit = graph.build(initial), graph.build(initial)
    for updates in rounds:
        for update in updates:
            at_once.extend([update])
            bit_by_bit.extend([update])
            bit_by_bit.propagate()
    at_once.propagate()
    for location in range(len(graph.depths)):
        assert at_once.frontier(location) == bit_by_bit.frontier(location)


def test_what_circulates_in_a_ring_is_implied_once_round_and_withdrawn_whole() -> None:
    # Three operators, one input and one output each, in a ring; the last one adds 1.
    graph = graph_of([0] * 6, (0, 1), (2, 3), (4, 5, feedback(0, 1)), (1, 2), (3, 4), (5, 0))
    tracker = graph.build()
    tracker.extend([(1, 17, 1)])
    assert tracker.propagate() == [0, 1, 2, 3, 4, 5]
    assert [tracker.frontier(target) for target in (0, 2, 4)] == [Antichain([18]), Antichain([17]), Antichain([17])]
    tracker.extend([(1, 17, -1)])
    assert tracker.propagate() == [0, 1, 2, 3, 4, 5]
    assert all(tracker.frontier(location).is_empty() for location in range(6))
    tracker._check()


def test_frontiers_are_right_before_the_first_propagate() -> None:
    tracker = nested().build([(0, 0, 3)])
    assert [tracker.frontier(location) for location in range(5)] == [
        Antichain([0]),
        *[Antichain([Product(0, 0)])] * 3,
        Antichain([0]),
    ]
    assert tracker.propagate() == []
    assert not tracker.is_complete()


def test_a_closed_input_lets_go_only_once_its_records_left_the_loop() -> None:
    tracker = nested().build([(0, 0, 1)])
    tracker.extend([(0, 0, -1)])
    tracker.extend([(0, 1, 1)])
    tracker.extend([(2, Product(0, 4), 2)])
    assert tracker.propagate() == [0, 1, 2, 3]
    assert tracker.frontier(1) == Antichain([Product(0, 5), Product(1, 0)])
    assert tracker.frontier(2) == Antichain([Product(0, 4), Product(1, 0)])
    assert tracker.frontier(4) == Antichain([0])
    tracker.extend([(2, Product(0, 4), -2)])
    assert tracker.propagate() == [1, 2, 3, 4]
    assert tracker.frontier(4) == Antichain([1])


def test_a_frontier_handed_out_stays_as_it_was() -> None:
    tracker = loop().build([(0, 0, 1)])
    kept = tracker.frontier(2)
    tracker.extend([(0, 0, -1)])
    tracker.propagate()
    assert kept == Antichain([0])
    assert tracker.frontier(2).is_empty()


def test_updates_count_as_work_to_do_from_the_moment_they_are_buffered() -> None:
    tracker = loop().build()
    assert tracker.is_complete()
    tracker.extend([(2, 5, -1)])
    assert not tracker.is_complete()
    assert tracker.propagate() == []
    assert not tracker.is_complete(), "a negative count is still owed its increment"
    tracker.extend([(2, 5, 1)])
    assert tracker.propagate() == []
    assert tracker.is_complete()


def test_a_change_behind_the_frontier_touches_no_other_location() -> None:
    tracker = loop().build([(0, 0, 1)])
    tracker.extend([(2, 7, 1)])
    tracker.extend([(0, 0, 4)])
    assert tracker.propagate() == []


def test_the_same_capability_of_many_workers_counts_until_the_last_is_gone() -> None:
    tracker = loop().build([(0, 0, 3)])
    for left in (2, 1, 0):
        tracker.extend([(0, 0, -1)])
        assert tracker.propagate() == ([] if left else [0, 1, 2, 3, 4])


def test_a_withdrawal_from_a_long_loop_ends() -> None:
    tracker = nested_in_an_outer_loop().build([(2, Product(0, 0), 1), (3, Product(50, 1000), 1)])
    tracker.extend([(2, Product(0, 0), -1)])
    tracker.propagate()
    tracker._check()
    assert tracker.frontier(1) == Antichain([Product(50, 1001), Product(51, 0)])


def test_two_workers_counts_at_one_place_are_not_behind_each_other() -> None:
    tracker = diamond().build([(3, 5, 2)])
    assert not tracker.is_behind_another(3, 5)
    assert tracker.is_behind_another(4, 5)
    tracker.extend([(0, 3, 1)])
    tracker.propagate()
    assert tracker.is_behind_another(3, 5)


def test_an_edge_has_to_fit_the_depths_of_its_ends() -> None:
    graph = GraphBuilder()
    outside, inside = graph.add_location(name="outside"), graph.add_location(1, "inside")
    with pytest.raises(BuildError, match=r"outside → inside has .* does not lead from times of depth 0 to .* depth 1"):
        graph.add_edge(outside, inside)
    with pytest.raises(BuildError, match="inside → outside"):
        graph.add_edge(inside, outside)
    with pytest.raises(BuildError, match="outside → outside"):
        graph.add_edge(outside, outside, Summary((0, 0)))
    with pytest.raises(BuildError, match="0 → 2 needs locations among the 2"):
        graph.add_edge(0, 2)
    assert graph.edges == []


def test_the_builder_may_grow_after_a_tracker_was_built() -> None:
    graph = loop()
    tracker = graph.build([(0, 0, 1)])
    graph.add_edge(4, graph.add_location())
    assert tracker.frontier(4) == Antichain([0])
    assert graph.build([(0, 2, 1)]).frontier(5) == Antichain([2])
