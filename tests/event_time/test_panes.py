"""Panes and sessions close the same windows, with the same records, as putting each record into each window."""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow.event_time.accumulators import Accumulators, Collect, Count
from megaflow.event_time.panes import Panes
from megaflow.event_time.record_bounds import timestamp_of, with_bound
from megaflow.event_time.sessions import Sessions
from megaflow.event_time.windows import AlignedWindows, SessionWindows
from megaflow.megaphone.base.event_unit import GREATEST, INFINITE, NEVER
from tests.event_time.naive_windows import NaiveSessions, NaiveWindows, aligned
from tests.examples import many

Record = tuple[int, int]  # a timestamp, and how far its bound is above it, or 0
Steps = list[tuple[list[Record], int]]  # an epoch's records, then by how much the watermark rises

some = st.tuples(st.integers(0, 60), st.one_of(st.just(0), st.integers(0, 40)))
steps = st.lists(st.tuples(st.lists(some, max_size=6), st.integers(0, 20)), max_size=12)


class Collected(Collect):
    """All records of a window, in order of arrival."""

    def result(self, accumulated: Any) -> Any:
        return sorted(accumulated)


def accumulators() -> Accumulators:
    return Accumulators([Count(), Collected()])


def agree(keeper: Any, naive: Any, given: Steps, order: Callable[[list[Any]], list[Any]] = list) -> None:
    """Give both the same records and watermarks, and an infinite watermark twice at the end."""
    several = accumulators()
    state, watermark, number = None, NEVER, 0

    def shown(results: Any) -> list[Any]:
        return [(start, end, several.results(accumulated)) for start, end, accumulated in results]

    def expected(results: Any) -> list[Any]:
        return [(start, end, [len(records), sorted(records)]) for start, end, records in results]

    for times, rise in [*given, ([], 0), ([(1, 0), (30, 0)], 0)]:
        records, stamped, bounds = [], [], {}
        for time, ahead in times:
            number += 1
            records.append((time, number))
            stamped.append((with_bound(time, time + ahead) if ahead else time, number))
            if ahead:
                bounds[number] = time + ahead
        if records:
            state, late, overtaken = keeper.take(state, order(stamped), watermark)
            expected_late, changed = naive.take(records, bounds)
            assert sorted((timestamp_of(stamp), value) for stamp, value in late) == sorted(expected_late)
            _, by_bounds, none = keeper.take(None, stamped, NEVER)
            assert none == 0 and overtaken == len(expected_late) - len(by_bounds)
            assert shown(keeper.so_far(state, stamped, watermark) if state else ()) == expected(changed)
        if (times, rise) == ([], 0) or watermark == INFINITE:
            watermark = INFINITE
        else:
            watermark = max(watermark, 0) + rise
        closed = naive.rise(watermark)
        if state is None:
            assert closed == []
            continue
        deadline = keeper.deadline(state)
        state, made = keeper.close(state, watermark)
        assert shown(made) == expected(closed)
        assert bool(made) == (deadline <= watermark)
        assert state is None or keeper.deadline(state) > watermark
    assert state is None, "a key of which all windows are closed has no state"


@settings(max_examples=many(300), deadline=None)
@given(st.integers(1, 7), st.integers(0, 15), st.integers(0, 6), st.sampled_from([0, 3, 25]), steps)
def test_windows_of_one_size_close_with_the_records_of_each(
    every: int, more: int, offset: int, lateness: int, given: Steps
) -> None:
    windows = AlignedWindows(every + more, every, offset % every)
    agree(Panes(windows, accumulators(), lateness), NaiveWindows(aligned(windows), lateness), given)


@settings(max_examples=many(500), deadline=None)
@given(st.integers(1, 12), st.sampled_from([0, 3, 25]), steps, st.randoms(use_true_random=False))
def test_sessions_close_with_the_records_of_each_in_whatever_order_an_epoch_has_them(
    gap: int, lateness: int, given: Steps, random: Any
) -> None:
    def shuffled(records: list[Any]) -> list[Any]:
        return random.sample(records, len(records))  # type: ignore[no-any-return]

    agree(Sessions(SessionWindows(gap), accumulators(), lateness), NaiveSessions(gap, lateness), given, shuffled)


def test_sessions_that_only_touch_are_two() -> None:
    sessions = Sessions(SessionWindows(5), accumulators(), 0)
    state, *_ = sessions.take(None, [(10, "a"), (0, "b"), (5, "c")], NEVER)
    assert [(start, end) for start, end, _ in state[1]] == [(0, 5), (5, 10), (10, 15)]


def test_late_record_does_not_join_an_open_session() -> None:
    sessions = Sessions(SessionWindows(4), accumulators(), 1)
    state, *_ = sessions.take(None, [(10, "open")], NEVER)
    state, late, overtaken = sessions.take(state, [(11, "a"), (12, "b"), (with_bound(13, 15), "c")], 13)
    assert (late, overtaken) == ([(11, "a"), (with_bound(13, 15), "c")], 1)
    assert state is not None and [(start, end) for start, end, _ in state[1]] == [(10, 16)]


def test_record_counts_from_its_first_window_that_is_not_late() -> None:
    panes = Panes(AlignedWindows(6, 2), accumulators(), 0)
    state, late, _ = panes.take(None, [(5, "a"), (with_bound(5, 8), "b"), (with_bound(5, 10), "c")], NEVER)
    assert late == [(with_bound(5, 10), "c")] and state is not None
    state, closed = panes.close(state, 100)
    found = [(end, [value for _, value in records]) for _, end, (_, records) in closed]
    assert state is None and found == [(6, ["a"]), (8, ["a"]), (10, ["a", "b"])]


def test_pane_of_an_old_state_counts_in_all_its_windows() -> None:
    panes = Panes(AlignedWindows(6, 2), accumulators(), 0)
    old = [None, 6, {4: [1, [(5, "old")]]}]
    state, late, _ = panes.take(old, [(with_bound(5, 8), "new")], 5)
    assert late == [] and state is not None
    _, closed = panes.close(state, 100)
    assert [(end, counted) for _, end, (counted, _) in closed] == [(6, 1), (8, 1), (10, 2)]


def test_what_would_end_after_the_year_9999_ends_with_it() -> None:
    for keeper in (
        Panes(AlignedWindows(10**6, 10**6), accumulators(), 10**9),
        Sessions(SessionWindows(10**6), accumulators(), 10**9),
    ):
        state, late, _ = keeper.take(None, [(GREATEST, "last")], GREATEST - 1)
        assert late == [] and keeper.deadline(state) == GREATEST
        state, closed = keeper.close(state, GREATEST)
        assert state is None and len(closed) == 1


def test_the_panes_of_a_key_are_as_many_as_its_open_windows_need() -> None:
    panes = Panes(AlignedWindows(60, 10), accumulators(), 0)
    state = None
    for time in range(10_000):
        state, *_ = panes.take(state, [(time, time)], time)
        state, _ = panes.close(state, time)
        assert state is None or len(state[2]) <= 7
