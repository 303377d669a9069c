"""Every plan moves exactly the difference between two tables. Balance and drain move no unnecessary bin."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megaflow.control.client.planner import STRATEGIES, balance, drain, parse_bins, plan, read_map
from megaflow.errors import CommandRefused, UsageError
from megaflow.megaphone.base.routing import Move, RoutingTable, apply, difference, initial_table
from tests.examples import many

BINS_MAX = 4096


@st.composite
def pairs_of_tables(draw: st.DrawFn) -> tuple[RoutingTable, RoutingTable]:
    """Two tables over up to 32 workers. Large ones come from a seed; small ones are drawn bin by bin."""
    ids = draw(st.lists(st.integers(0, 99), min_size=1, max_size=32, unique=True))
    if draw(st.booleans()):
        bins = draw(st.integers(1, 24))
        drawn = st.lists(st.sampled_from(ids), min_size=bins, max_size=bins).map(tuple)
        return draw(drawn), draw(drawn)
    bins = draw(st.sampled_from([64, 256, 1000, BINS_MAX]))
    rng = draw(st.randoms(use_true_random=False))
    few = ids[: draw(st.integers(1, len(ids)))]
    return tuple(rng.choices(few, k=bins)), tuple(rng.choices(ids, k=bins))


def largest_degree(changes: list[tuple[int, int, int]]) -> int:
    sources = Counter(source for _, source, _ in changes)
    targets = Counter(target for _, _, target in changes)
    return max([0, *sources.values(), *targets.values()])


@settings(max_examples=many(150), deadline=None)
@given(pairs_of_tables(), st.sampled_from(sorted(STRATEGIES)), st.integers(1, 40), st.booleans())
@example(((0,) * 8, tuple(i % 4 for i in range(8))), "optimized", 1, False)
@example(((0, 0, 0, 1, 1, 1), (1, 1, 2, 0, 2, 2)), "optimized", 1, False)
@example(((0, 1, 2, 3), (1, 2, 3, 0)), "optimized", 1, False)
def test_a_plan_moves_exactly_the_difference(tables: Any, strategy: str, size: int, weighed: bool) -> None:
    table, target = tables
    batch = size if strategy == "batched" else None
    loads = [(bin * 7919) % 101 for bin in range(len(table))] if weighed or strategy == "hottest-first" else None
    steps = plan(table, target, strategy, batch, loads)
    changes = difference(table, target)
    moves = [move for step in steps for move in step]
    assert sorted((move.bin, move.worker) for move in moves) == [(bin, worker) for bin, _, worker in changes]
    for step in steps:
        assert step
        table = apply(table, step)
    assert table == target
    if strategy == "all-at-once":
        assert len(steps) == bool(changes)
    elif strategy == "optimized":
        check_optimized(tables[0], steps, changes)
    else:
        assert len(steps) == -(-len(changes) // (batch or 1))
        assert all(len(step) == (batch or 1) for step in steps[:-1])


def check_optimized(table: RoutingTable, steps: list[list[Move]], changes: list[tuple[int, int, int]]) -> None:
    assert len(steps) == largest_degree(changes)
    for step in steps:
        sources = [table[move.bin] for move in step]
        targets = [move.worker for move in step]
        assert len(set(sources)) == len(sources) and len(set(targets)) == len(targets)


def test_heavy_bins_move_first() -> None:
    for strategy in ("fluid", "hottest-first"):
        steps = plan((0, 0, 0), (1, 1, 1), strategy, loads=[1.0, 9.0, 5.0])
        assert [[move.bin for move in step] for step in steps] == [[1], [2], [0]]


@pytest.mark.parametrize(("workers", "bins", "steps", "size"), [(16, 4096, 128, 8), (4, 256, 32, 2)])
def test_the_plans_of_the_megaphone_paper_take_as_many_steps(workers: int, bins: int, steps: int, size: int) -> None:
    uniform = tuple(bin % workers for bin in range(bins))
    paired = tuple((bin // 2 * 2 + bin % 2 * (workers // 2)) % workers for bin in range(bins))
    skewed = (*paired[: bins // 2], *uniform[bins // 2 :])
    assert len(plan(skewed, uniform, "fluid")) == bins // 4
    assert [len(step) for step in plan(skewed, uniform, "optimized")] == [size] * steps


def test_an_optimized_plan_of_65536_bins_is_made_in_reasonable_time() -> None:
    bins = 1 << 16
    table, target = initial_table(bins, range(4)), initial_table(bins, range(3))
    assert len(plan(table, target, "optimized")) == largest_degree(difference(table, target))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (((0,), (0, 1), "fluid"), CommandRefused, "has 2 bins, the job has 1"),
        (((0,), (1,), "quick"), UsageError, "no strategy 'quick'; use one of all-at-once, fluid, batched, optimized"),
        (((0,), (1,), "hottest-first"), UsageError, "the loads are missing"),
        (((0,), (1,), "fluid", 3), UsageError, "requires the strategy batched"),
        (((0,), (1,), "batched"), UsageError, "batch=None"),
        (((0,), (1,), "batched", 0), UsageError, "at least one"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        plan(*arguments)


def fewest_moves(table: RoutingTable, members: set[int]) -> int:
    """Return the fewest moves of any balance: workers whose bins this saves most keep one bin more than the others."""
    each, rest = divmod(len(table), len(members))
    counts = Counter(table)
    gain = sorted((min(counts[worker], each + 1) - min(counts[worker], each) for worker in members), reverse=True)
    return len(table) - sum(min(counts[worker], each) for worker in members) - sum(gain[:rest])


@settings(deadline=None)
@given(pairs_of_tables(), st.sets(st.integers(0, 99), min_size=1, max_size=32))
@example(((0,) * 4, (0,) * 4), {0, 1, 2, 3, 4, 5})
@example(((0,) * 256, (0,) * 256), {0})
@example(((0,) * 256, (0,) * 256), {0, 1, 2})
@example(((0, 0, 0, 1, 1, 1, 2, 2), (0,) * 8), {0, 1, 2})
def test_a_balanced_table_is_even_and_moves_as_few_bins_as_possible(tables: Any, members: set[int]) -> None:
    table = tables[0]
    target = balance(table, members)
    counts = Counter(target)
    shares = [counts[worker] for worker in members]
    assert sum(shares) == len(table) and max(shares) - min(shares) <= 1
    assert len(difference(table, target)) == fewest_moves(table, members)
    assert balance(target, members) == target
    assert target == balance(table, sorted(members, reverse=True))


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 2, 16, 256]))
def test_growing_and_shrinking_stays_even(few: int, more: int, bins: int) -> None:
    table = initial_table(bins, range(few))
    for members in (range(few + more), range(more, few + more), [few + more - 1], range(few)):
        table = balance(table, members)
        counts = Counter(table)
        shares = [counts[worker] for worker in members]
        assert max(shares) - min(shares) <= 1 and sum(shares) == bins


def test_growing_takes_bins_from_the_old_workers_alone() -> None:
    table = initial_table(256, range(3))
    changes = difference(table, balance(table, range(4)))
    assert len(changes) == 64 and {target for _, _, target in changes} == {3}


@settings(deadline=None)
@given(pairs_of_tables())
def test_a_drained_worker_owns_nothing_and_no_other_bin_moves(tables: Any) -> None:
    table, other = tables
    members = {*table, *other, 100}
    worker = table[0]
    target = drain(table, worker, members)
    assert worker not in target and set(target) <= members
    assert {bin for bin, _, _ in difference(table, target)} == {b for b, owner in enumerate(table) if owner == worker}
    before, after = Counter(table), Counter(target)
    takers = [member for member in members if after[member] > before[member]]
    if takers:
        lowest = min(after[member] for member in members if member != worker)
        assert max(after[member] for member in takers) - lowest <= 1


def test_a_drain_without_a_taker_or_a_worker_is_refused() -> None:
    with pytest.raises(CommandRefused, match="only worker"):
        drain((3, 3), 3, {3})
    with pytest.raises(CommandRefused, match="no such worker; the workers are 3, 4"):
        drain((3, 3), 5, {3, 4})
    assert drain((3, 3), 4, {3, 4}) == (3, 3)
    with pytest.raises(CommandRefused, match="no worker can own"):
        balance((3, 3), ())


def test_a_list_of_bins_names_each_once() -> None:
    assert parse_bins("0-127,200", 256) == [*range(128), 200]
    assert parse_bins(" 3 - 4 , 3,0", 8) == [0, 3, 4]
    assert parse_bins("7", 8) == [7]


@pytest.mark.parametrize(
    "text",
    ["", ",", "a", "1-", "-1", "1-2-3", "5-3", "1.5", "0x1", "1,,2", "²", "٣", "1 2", "9" * 5000, "0-" + "9" * 30],
)
def test_a_list_of_bins_that_cannot_be_read_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="bins"):
        parse_bins(text, 256)


@pytest.mark.parametrize("text", ["256", "0-256", "0-99999999999", "3,1000"])
def test_a_bin_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(CommandRefused, match="bins are 0 to 255"):
        parse_bins(text, 256)


def test_a_map_is_read_with_its_comments_and_brackets() -> None:
    assert read_map("0 1\n# the rest\n2,3 # end\n", 4) == (0, 1, 2, 3)
    assert read_map("[0, 1,\n 2, 3]\n", 4) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("0 1 2", CommandRefused),
        ("", CommandRefused),
        ("0 1 2 3 4", CommandRefused),
        ("0 1 x 3", UsageError),
        ("0 -1 2 3", UsageError),
    ],
)
def test_a_map_of_wrong_length_or_words_is_refused(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_map(text, 4)
