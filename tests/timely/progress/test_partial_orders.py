"""The general tracker at times of any partial order, and at ints, against brute force and against the integer one."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow.errors import BuildError
from megaflow.testing.reference import could_result_in, frontier_by_brute_force, path_summaries
from megaflow.timely.order import Time, from_coordinates
from megaflow.timely.path_summary import Summary, advancing
from megaflow.timely.progress.integer_tracker import IntegerTracker
from megaflow.timely.progress.product_tracker import ProductTracker
from megaflow.timely.progress.reachability import GraphBuilder
from tests.examples import many
from tests.timely.times import LEASTS, Divisor, Times, steps_like, times_like

Update = tuple[int, Time, int]


@st.composite
def graphs(draw: st.DrawFn, least: Time) -> GraphBuilder:
    """Draw locations in the root scope and in inner scopes, with those fitting edges that close no idle cycle."""
    graph = GraphBuilder(least)
    for rounds in draw(st.lists(st.integers(0, 2), min_size=2, max_size=6)):
        graph.add_location(graph.root_depth + rounds)
    location = st.integers(0, len(graph.depths) - 1)
    for a, b in draw(st.lists(st.tuples(location, location), max_size=10)):
        kept = draw(st.integers(graph.root_depth, min(graph.depths[a], graph.depths[b]))) - graph.root_depth
        root = advancing(draw(steps_like(least)), least)
        inner = draw(st.tuples(*[st.sampled_from([0, 0, 1, 2])] * kept))
        tail = (0,) * (graph.depths[b] - graph.root_depth - kept)
        graph.add_edge(a, b, Summary(root.adds + inner, tail))
        try:
            graph.build()
        except BuildError:
            graph.edges.pop()
    return graph


@st.composite
def runs(draw: st.DrawFn) -> tuple[GraphBuilder, list[list[Update]]]:
    """Draw a graph, and rounds of updates up and down, also below zero."""
    least = draw(st.sampled_from(LEASTS))
    graph = draw(graphs(least))

    def updates(location: int) -> st.SearchStrategy[Update]:
        inner = st.tuples(*[st.integers(0, 3)] * (graph.depths[location] - graph.root_depth))
        time = st.tuples(times_like(least), inner).map(lambda pair: from_coordinates((pair[0], *pair[1])))
        return st.tuples(st.just(location), time, st.sampled_from([-1, -1, 1, 1, 1, 2]))

    update = st.integers(0, len(graph.depths) - 1).flatmap(updates)
    return graph, draw(st.lists(st.lists(update, max_size=6), max_size=6))


@settings(max_examples=many(250), deadline=None)
@given(runs())
def test_its_frontiers_are_those_of_brute_force(run: tuple[GraphBuilder, list[list[Update]]]) -> None:
    graph, rounds = run
    paths, tracker = path_summaries(graph), graph.build()
    counts: Counter[tuple[int, Time]] = Counter()
    for updates in rounds:
        for location, time, delta in updates:
            counts[location, time] += delta
        tracker.extend(updates)
        tracker.propagate()
        tracker._check()
        stamps = {(location, time, count) for (location, time), count in counts.items() if count}
        assert set(tracker.pointstamps()) == stamps
        assert tracker.is_complete() == (not stamps)
        for location in range(len(graph.depths)):
            assert tracker.frontier(location) == frontier_by_brute_force(graph, stamps, location, paths)
        for location, time in counts:
            others = [(l1, t1) for l1, t1, count in stamps if count > 0 and (l1, t1) != (location, time)]
            behind = any(could_result_in(paths, l1, t1, location, time) for l1, t1 in others)
            assert tracker.is_behind_another(location, time) == behind


def test_ints_in_the_root_scope_get_the_integer_tracker_and_all_other_times_the_general_one() -> None:
    for least in LEASTS:
        graph = GraphBuilder(least)
        graph.add_location(graph.root_depth)
        assert isinstance(graph.build(), IntegerTracker if least == 0 else ProductTracker)


def test_what_a_path_ends_is_implied_no_farther() -> None:
    """The book: a path may bring some times nowhere, such as one that adds to the largest of all numbers."""
    graph = GraphBuilder(Divisor(1))
    here, there = graph.add_location(), graph.add_location()
    graph.add_edge(here, there, Summary((Times(1000),)))
    tracker = graph.build([(here, Divisor(3), 1)])
    assert tracker.frontier(there).elements == (Divisor(3000),)
    tracker.extend([(here, Divisor(3), -1), (here, Divisor(5), 1)])
    tracker.propagate()
    assert tracker.frontier(there).is_empty() and not tracker.is_complete()


@pytest.mark.parametrize("least", LEASTS[1:])
def test_a_cycle_whose_steps_all_change_nothing_is_refused(least: Time) -> None:
    graph = GraphBuilder(least)
    here, there = (graph.add_location(graph.root_depth, name) for name in ("here", "there"))
    graph.add_edge(here, there)
    graph.add_edge(there, here, advancing(0, least))
    with pytest.raises(BuildError, match="here → there → here does not advance the time"):
        graph.build()
