"""A slow and obvious account of what pointstamps imply, to compare the tracker with.

It shares nothing with the tracker but the graph and the order of times: it lists the minimal
summaries of all paths between all locations and applies them to every positive pointstamp.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from megaflow.timely.order import Time, less_equal
from megaflow.timely.path_summary import Summary, identity, summary_less_equal
from megaflow.timely.progress.antichain import Antichain
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.progress.reachability import GraphBuilder

# (from, to) -> the minimal summaries of the paths between them; no entry when there is none
PathSummaries: TypeAlias = Mapping[tuple[int, int], list[Summary]]


def path_summaries(graph: GraphBuilder) -> PathSummaries:
    """Return the minimal path summaries for every pair of locations, by extending paths until none is new."""
    paths: dict[tuple[int, int], list[Summary]] = {}
    fresh = [(location, location, identity(depth)) for location, depth in enumerate(graph.depths)]
    while fresh:
        start, end, summary = fresh.pop()
        known = paths.setdefault((start, end), [])
        if any(summary_less_equal(other, summary) for other in known):
            continue
        known[:] = [other for other in known if not summary_less_equal(summary, other)] + [summary]
        for source, target, step in graph.edges:
            if source == end and (longer := summary.then(step)) is not None:
                fresh.append((start, target, longer))
    return paths


def could_result_in(paths: PathSummaries, l1: int, t1: Time, l2: int, t2: Time) -> bool:
    """Tell whether something at (l1, t1) could lead to something at (l2, t2)."""
    ends = (summary.apply(t1) for summary in paths.get((l1, l2), []))
    return any(end is not None and less_equal(end, t2) for end in ends)


def frontier_by_brute_force(
    graph: GraphBuilder,
    pointstamps: Iterable[tuple[int, Time, int]],
    location: int,
    paths: PathSummaries | None = None,
) -> Antichain:
    """Return the location's frontier given (location, time, count), where only positive sums matter.

    Whoever asks often passes `path_summaries(graph)`, which takes most of the time.
    """
    known = path_summaries(graph) if paths is None else paths
    sums = ChangeBatch(((place, time), count) for place, time, count in pointstamps)
    return Antichain(
        end
        for (place, time), count in sums
        if count > 0
        for summary in known.get((place, location), [])
        if (end := summary.apply(time)) is not None
    )


def summaries_to(graph: GraphBuilder, target: int) -> Mapping[int, list[Summary]]:
    """Return, for every location from which the target can be reached, the minimal summaries of the paths to it."""
    incoming: dict[int, list[tuple[int, Summary]]] = {}
    for source, end, step in graph.edges:
        incoming.setdefault(end, []).append((source, step))
    found: dict[int, list[Summary]] = {}
    fresh = [(target, identity(graph.depths[target]))]
    while fresh:
        location, summary = fresh.pop()
        known = found.setdefault(location, [])
        if any(summary_less_equal(other, summary) for other in known):
            continue
        known[:] = [other for other in known if not summary_less_equal(summary, other)] + [summary]
        for source, step in incoming.get(location, []):
            if (longer := step.then(summary)) is not None:
                fresh.append((source, longer))
    return found
