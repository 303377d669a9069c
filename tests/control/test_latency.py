"""Latencies and rates are additive, and within the promised error of the exact figures."""

import math

from hypothesis import given
from hypothesis import strategies as st

from megaflow.control.latency import (
    BUCKET_RATIO,
    WINDOW_SECONDS,
    WINDOWS_MAX,
    DurationLog,
    Histogram,
    LatencyLog,
    LatencyMeter,
    RateMeter,
    merged,
)
from megaflow.control.reports import Durations

latencies = st.lists(st.tuples(st.floats(0.01, 1e6), st.integers(1, 50)), min_size=1, max_size=50)


@given(samples=latencies, q=st.floats(0.01, 1.0))
def test_a_quantile_is_at_most_one_bucket_above_the_exact_one(samples: list[tuple[float, int]], q: float) -> None:
    histogram = Histogram()
    for latency_ms, lines in samples:
        histogram.add(latency_ms, lines)
    every = sorted(latency_ms for latency_ms, lines in samples for _ in range(lines))
    exact = every[max(0, math.ceil(q * len(every) - 1e-9) - 1)]
    assert exact <= histogram.quantile(q) * (1 + 1e-9)
    assert histogram.quantile(q) <= exact * BUCKET_RATIO * (1 + 1e-9)
    assert histogram.max_ms == every[-1]


@given(samples=st.lists(st.tuples(st.floats(0, 0.05), st.floats(0.01, 1e6), st.integers(1, 9)), max_size=40))
def test_windows_add_up_to_the_whole(samples: list[tuple[float, float, int]]) -> None:
    log, whole = LatencyLog(), Histogram()
    now = 100.0
    for pause, latency_ms, lines in samples:
        now += pause
        log.add(now, latency_ms, lines)
        whole.add(latency_ms, lines)
    total = merged(log.windows())
    assert (total.buckets, total.lines, total.max_ms) == (whole.buckets, whole.lines, whole.max_ms)


@given(samples=st.lists(st.tuples(st.floats(0, 0.05), st.floats(0.01, 1e6), st.integers(1, 9)), max_size=40))
def test_durations_are_those_of_all_windows(samples: list[tuple[float, float, int]]) -> None:
    log, exact, last = LatencyLog(), DurationLog(), Durations()
    now = 100.0
    for pause, latency_ms, lines in samples:
        now += pause
        log.add(now, latency_ms, lines)
        exact.add(latency_ms / 1000, lines)
        durations = log.durations()
        assert durations.seconds > last.seconds and sum(durations.counts) == sum(last.counts) + lines
        assert all(before <= after for before, after in zip(last.counts, durations.counts)), "no count falls"
        last = durations
    wanted = exact.durations()
    assert wanted.seconds * (1 - 1e-9) <= last.seconds <= wanted.seconds * BUCKET_RATIO * (1 + 1e-9)
    assert sum(last.counts) == sum(wanted.counts)
    for place in range(len(last.counts)):
        assert sum(last.counts[:place]) <= sum(wanted.counts[:place]), "no latency counts as lower than it is"


def test_a_log_that_is_never_asked_keeps_all_durations() -> None:
    log = LatencyLog()
    for window in range(WINDOWS_MAX * 2):
        log.add(window * WINDOW_SECONDS, 3.0, 1)
    assert sum(log.durations().counts) == WINDOWS_MAX * 2


def test_windows_tell_one_tenth_of_a_second_from_the_next() -> None:
    log = LatencyLog()
    log.add(5.01, 3.0, 10)
    log.add(5.09, 4.0, 10)
    log.add(5.11, 50.0, 1)
    windows = log.windows()
    assert [(round(w.start, 3), sum(w.buckets.values()), w.max_ms) for w in windows] == [(5.0, 20, 4.0), (5.1, 1, 50.0)]


def test_a_batch_is_late_until_its_epoch_is_closed() -> None:
    lateness = LatencyMeter()
    lateness.begin(3, 10.0, 7)
    lateness.begin(4, 10.5, 2)
    lateness.settle(3, 11.0)
    assert lateness.done == 0
    assert merged(lateness.log.windows()).lines == 0
    lateness.settle(4, 11.0)
    assert (lateness.log.recent().lines, lateness.log.recent().max_ms) == (7, 1000.0)
    assert lateness.done == 7
    lateness.settle(None, 12.5)
    assert (lateness.log.recent().lines, lateness.log.recent().max_ms) == (9, 2000.0)


def test_a_rate_falls_to_nothing_when_nothing_happens() -> None:
    meter = RateMeter()
    assert meter.per_second() == 0.0
    for quarter in range(9):
        meter.observe(quarter / 4, quarter * 100)
    assert meter.per_second() == 400.0
    for quarter in range(9, 20):
        meter.observe(quarter / 4, 800)
    assert meter.per_second() == 0.0
