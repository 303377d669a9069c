"""A slow and obvious computation of frontiers from pointstamps, to compare the trackers with.

It shares only the graph and the order of times with the trackers. It lists the minimal summaries of all paths between
all locations, and applies them to every positive pointstamp. The trackers themselves never compose or compare paths.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from megaflow.timely.order import Product, Time, less_equal
from megaflow.timely.path_summary import Step, Summary, identity
from megaflow.timely.progress.antichain import Antichain
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.progress.reachability import GraphBuilder

# (from, to) -> the minimal summaries of the paths between them; no entry if there is no path
PathSummaries: TypeAlias = Mapping[tuple[int, int], list[Summary]]


def path_summaries(graph: GraphBuilder) -> PathSummaries:
    """Return the minimal path summaries of every pair of locations, by extending paths until no summary is new."""
    paths: dict[tuple[int, int], list[Summary]] = {}
    fresh = [(location, location, identity(depth)) for location, depth in enumerate(graph.depths)]
    while fresh:
        start, end, summary = fresh.pop()
        known = paths.setdefault((start, end), [])
        if any(summary_less_equal(other, summary) for other in known):
            continue
        known[:] = [other for other in known if not summary_less_equal(summary, other)] + [summary]
        for source, target, step in graph.edges:
            if source == end and (longer := then(summary, step)) is not None:
                fresh.append((start, target, longer))
    return paths


def then(first: Summary, second: Summary) -> Summary | None:
    """Return the summary of the first path followed by the second, or None if nothing reaches its end.

    >>> then(Summary((0,), (0,)), Summary((1, 4))) == Summary((1,), (4,))
    True
    """
    kept, passed = len(first.adds), len(second.adds)
    if passed > kept + len(first.tail):
        raise TypeError(f"{second!r} cannot follow {first!r}, which gives only {kept + len(first.tail)} coordinates")
    adds = tuple(_followed_by(a, b) for a, b in zip(first.adds, second.adds, strict=False))
    constants = tuple(a + b for a, b in zip(first.tail, second.adds[kept:], strict=False))
    return None if None in adds else Summary(adds, constants + second.tail)


def _followed_by(a: Step, b: Step) -> Step | None:
    if a == 0 or b == 0:
        return b if a == 0 else a
    if type(a) is int:
        return a + b
    if type(a) is tuple or isinstance(a, Product):
        parts: list[Any] = [_followed_by(x, y) for x, y in zip(a, b, strict=True)]
        if None in parts:
            return None
        return tuple(parts) if type(a) is tuple else Product(parts[0], parts[1])
    return a.followed_by(b)


def summary_less_equal(a: Summary, b: Summary) -> bool:
    """Return whether `a` maps every time to one at most as great as `b` does. Both must lead between the same depths.

    >>> summary_less_equal(Summary((0, 0)), Summary((0, 1))), summary_less_equal(Summary((0,), (3,)), Summary((0, 2)))
    (True, False)
    """
    length = len(a.adds) + len(a.tail)
    if length != len(b.adds) + len(b.tail):
        raise TypeError(f"{a!r} and {b!r} lead to scopes of different depth and cannot be compared")
    # If `a` keeps a coordinate that `b` sets to a constant, the coordinate outgrows the constant. In the opposite case
    # the result of `b` is least where the coordinate is 0. So the constant of `a` is compared with the step of `b`.
    if len(a.adds) > len(b.adds):
        return False
    return all(_step_less_equal(x, y) for x, y in zip(a.adds + a.tail, b.adds + b.tail, strict=True))


def _step_less_equal(a: Step, b: Step) -> bool:
    if type(a) is int and type(b) is int:
        return a <= b
    if a == 0 or b == 0:
        return bool(a == 0)
    if isinstance(a, Product):
        return _step_less_equal(a.outer, b.outer) and _step_less_equal(a.inner, b.inner)
    if type(a) is not tuple:
        return bool(a.less_equal(b))
    for x, y in zip(a, b, strict=True):
        if x == y:
            continue
        if type(x) is int and type(y) is int:
            return bool(x < y)  # for every time, this is the first part that differs
        if not _step_less_equal(x, y):
            return False  # if true, later parts decide only for times at which both steps give the same
    return True


def could_result_in(paths: PathSummaries, l1: int, t1: Time, l2: int, t2: Time) -> bool:
    """Return whether an event at (l1, t1) could lead to an event at (l2, t2)."""
    ends = (summary.apply(t1) for summary in paths.get((l1, l2), []))
    return any(end is not None and less_equal(end, t2) for end in ends)


def frontier_by_brute_force(
    graph: GraphBuilder,
    pointstamps: Iterable[tuple[int, Time, int]],
    location: int,
    paths: PathSummaries | None = None,
) -> Antichain:
    """Return the location's frontier for these (location, time, count); only positive sums matter.

    Frequent callers should pass `path_summaries(graph)` as `paths`, because computing it takes most of the time.
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
