"""The bounds of windows follow from size, step and offset. Invalid lengths are refused, with their name and line."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import BuildError
from megaflow.event_time.windows import AlignedWindows, session, sliding, tumbling


@st.composite
def aligned(draw: st.DrawFn) -> AlignedWindows:
    every = draw(st.integers(1, 12))
    return AlignedWindows(draw(st.integers(every, 30)), every, draw(st.integers(0, every - 1)))


@given(aligned(), st.integers(-60, 60))
def test_the_ends_of_the_windows_of_a_time_are_those_of_all_windows_that_have_it(
    windows: AlignedWindows, time: int
) -> None:
    starts = [windows.offset + number * windows.every for number in range(-100, 100)]
    ends = [start + windows.size for start in starts if start <= time < start + windows.size]
    assert ends, "each time is in a window"
    assert [windows.first_end_after(time), windows.last_end_of(time)] == [ends[0], ends[-1]]


@given(aligned(), st.integers(-60, 60))
def test_no_bound_of_a_window_lies_within_a_pane(windows: AlignedWindows, time: int) -> None:
    start = time - (time - windows.offset) % windows.pane
    later = start + windows.pane - 1
    assert windows.first_end_after(start) == windows.first_end_after(later)
    assert windows.last_end_of(start) == windows.last_end_of(later)


def test_lengths_are_seconds_or_timedeltas() -> None:
    assert tumbling(0.5) == tumbling(timedelta(milliseconds=500)) == AlignedWindows(500_000, 500_000)
    assert sliding(60, timedelta(seconds=10), offset=25) == AlignedWindows(60_000_000, 10_000_000, 5_000_000)
    assert tumbling(10, offset=-3).offset == 7_000_000
    assert session(timedelta(minutes=1)).gap == 60_000_000


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tumbling(0), "tumbling(size=0)"),
        (lambda: tumbling(-1), "tumbling(size=-1)"),
        (lambda: tumbling(1e-7), "at least a microsecond"),
        (lambda: tumbling(float("nan")), "tumbling(size=nan)"),
        (lambda: tumbling(float("inf")), "tumbling(size=inf)"),
        (lambda: tumbling(1e300), "tumbling(size=1e+300)"),
        (lambda: tumbling(10**400), "tumbling(size=1000"),
        (lambda: tumbling(True), "tumbling(size=True)"),
        (lambda: tumbling("1 hour"), "tumbling(size='1 hour')"),
        (lambda: tumbling(timedelta(0)), "above 0, or such a timedelta"),
        (lambda: tumbling(60, offset=None), "tumbling(offset=None)"),
        (lambda: sliding(10, 0), "sliding(every=0)"),
        (lambda: sliding(10, 11), "every must be at most size"),
        (lambda: session(0), "session(gap=0)"),
        (lambda: session(-5), "session(gap=-5)"),
    ],
)
def test_what_is_no_length_is_refused(make: Any, said: str) -> None:
    with pytest.raises(BuildError) as refused:
        make()
    assert said in str(refused.value) and "test_windows.py:" in str(refused.value)
