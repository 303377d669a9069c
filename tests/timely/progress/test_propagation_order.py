"""The propagation order: idle cycles are refused, and every edge leads forward."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import BuildError
from megaflow.testing.reference import path_summaries, then
from megaflow.timely.order import from_coordinates
from megaflow.timely.path_summary import Summary, enter, feedback, identity, leave
from megaflow.timely.progress.product_tracker import _place
from megaflow.timely.progress.propagation_order import Edge, positions
from megaflow.timely.progress.reachability import GraphBuilder


@st.composite
def graphs(draw: st.DrawFn) -> GraphBuilder:
    """Draw any locations, and any edges whose summaries fit the depths."""
    graph = GraphBuilder()
    for depth in draw(st.lists(st.integers(0, 2), min_size=1, max_size=6)):
        graph.add_location(depth)
    location = st.integers(0, len(graph.depths) - 1)
    for a, b in draw(st.lists(st.tuples(location, location), max_size=9)):
        kept = draw(st.integers(1, min(graph.depths[a], graph.depths[b]) + 1))
        adds = draw(st.tuples(*[st.sampled_from([0, 0, 1, 2])] * kept))
        tail = draw(st.tuples(*[st.integers(0, 1)] * (graph.depths[b] + 1 - kept)))
        graph.add_edge(a, b, Summary(adds, tail))
    return graph


@given(graphs())
def test_a_graph_is_refused_exactly_when_some_time_comes_round_a_cycle_unchanged(graph: GraphBuilder) -> None:
    paths = path_summaries(graph)
    cycles = [then(edge, back) for a, b, edge in graph.edges for back in paths.get((b, a), [])]
    stuck = any(not any(cycle.adds) for cycle in cycles)
    try:
        positions(graph.names, graph.edges)
    except BuildError as error:
        assert stuck, error
    else:
        assert not stuck


@given(graphs(), st.tuples(*[st.integers(0, 3)] * 3))
def test_every_edge_of_an_accepted_graph_leads_to_a_later_place(graph: GraphBuilder, values: tuple[int, ...]) -> None:
    try:
        where = positions(graph.names, graph.edges)
    except BuildError:
        return
    for a, b, summary in graph.edges:
        time = from_coordinates(values[: graph.depths[a] + 1])
        if len(where[a]) == 1 or len(where[b]) == 1:
            assert where[a][0] < where[b][0]
        else:
            assert _place(where[a], time) < _place(where[b], summary.apply(time))


def node(*edges: Edge, locations: int) -> list[tuple[int, ...]]:
    return positions([f"n{i}" for i in range(locations)], edges)


def test_a_chain_has_no_cycle_and_closing_it_makes_one() -> None:
    """Case 12."""
    chain = [(0, 1, identity(0)), (1, 2, identity(0))]
    assert node(*chain, locations=3) == [(0,), (1,), (2,)]
    with pytest.raises(BuildError, match="does not advance the time"):
        node(*chain, (2, 0, identity(0)), locations=3)
    assert all(len(position) == 2 for position in node(*chain, (2, 0, feedback(0, 1)), locations=3))


def test_a_cycle_is_judged_port_by_port() -> None:
    """Case 12."""
    # Two inputs 0, 1 and two outputs 2, 3: 0 → 2 keeps the time, 1 → 3 adds 1, and the outputs are crossed.
    node((0, 2, identity(0)), (1, 3, feedback(0, 1)), (2, 1, identity(0)), (3, 0, identity(0)), locations=4)
    # An input that reaches no output closes no cycle.
    node((0, 2, identity(0)), (2, 1, identity(0)), locations=4)


def test_a_cycle_is_named_location_by_location() -> None:
    names = ["input.out", "map.in", "map.out", "filter.in"]
    edges = [(0, 1, identity(0)), (1, 2, identity(0)), (2, 1, identity(0)), (2, 3, identity(0))]
    with pytest.raises(BuildError, match=r"the cycle map\.in → map\.out → map\.in does not advance"):
        positions(names, edges)
    with pytest.raises(BuildError, match=r"the cycle filter\.in → filter\.in does not advance"):
        positions(names, [(3, 3, identity(0))])


def test_an_outer_cycle_needs_an_outer_feedback() -> None:
    # 0 outside → 1 and 2 in the scope, with a feedback there → 3 outside → 0 again.
    inner = [(0, 1, enter(0)), (1, 2, identity(1)), (2, 1, feedback(1, 1)), (2, 3, leave(1))]
    assert [len(position) for position in node(*inner, locations=4)] == [1, 3, 3, 1]
    with pytest.raises(BuildError, match="n0 → n1 → n2 → n3 → n0"):
        node(*inner, (3, 0, identity(0)), locations=4)
    node(*inner, (3, 0, feedback(0, 1)), locations=4)


def test_leaving_and_entering_again_in_one_step_does_not_advance() -> None:
    with pytest.raises(BuildError, match="does not advance"):
        node((0, 1, feedback(1, 1)), (1, 0, Summary((0,), (0,))), locations=2)


def test_ten_thousand_locations_in_a_row_or_a_ring_are_no_trouble() -> None:
    count = 10_000
    row = [(i, i + 1, identity(0)) for i in range(count - 1)]
    assert node(*row, locations=count) == [(i,) for i in range(count)]
    ring = node(*row, (count - 1, 0, feedback(0, 1)), locations=count)
    assert ring == [(0, i) for i in range(count)]
