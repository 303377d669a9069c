"""The sketch keeps its bounds, and a meter's figures add up to its input at any sampling rate."""

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.folds.load_meter import (
    KEYS_COUNTED,
    SAMPLE_MAX,
    SAMPLE_SHARE,
    SIZED_BINS_MAX,
    SIZED_SECONDS,
    WINDOW_SECONDS,
    LoadMeter,
    SpaceSaving,
    bin_sizes,
)
from megaflow.timely.communication.codec.encode import encode


class Ticking:
    """A clock that advances by `step` each time it is read."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 100.0
        self.step = step
        self.readings = 0

    def __call__(self) -> float:
        self.readings += 1
        self.now += self.step
        return self.now


def modulo(key: int) -> int:
    return key % 4


def pairs(*keys: int) -> list[tuple[int, str]]:
    return [(key, "value") for key in keys]


# The sketch ---------------------------------------------------------------------------------


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=300))
@example(1, [(0, 1), (1, 1), (0, 1)])
@example(2, [(0, 5), (1, 1), (2, 1), (3, 1), (0, 1), (1, 1)])
def test_a_sketch_is_never_too_low_and_too_high_by_its_error_at_most(
    capacity: int, counts: list[tuple[int, int]]
) -> None:
    sketch, exact = SpaceSaving(capacity), Counter[int]()
    for key, count in counts:
        sketch.add(key, count)
        exact[key] += count
        sketch._check()
    assert sketch.total == exact.total()
    for key, (count, error) in enumerate(sketch.estimates(range(31))):
        assert count - error <= exact[key] <= count
        assert error <= sketch.total / capacity
        assert key in sketch.counts or exact[key] <= sketch.floor
        if exact[key] > sketch.total / capacity:
            assert key in sketch.counts
    if len(exact) <= capacity:
        assert list(sketch.estimates(exact)) == [(count, 0) for count in exact.values()]


# The meter ----------------------------------------------------------------------------------


def test_with_a_clock_that_stands_still_every_batch_is_sampled_at_and_counts_are_exact() -> None:
    meter = LoadMeter(modulo, clock := Ticking())
    for batch in (pairs(1, 2, 5), pairs(1), pairs(), pairs(4, 1)):
        meter.note(batch, clock())
    load = meter.load()
    assert {bin: records for bin, (records, _) in load.bins.items()} == {1: 4.0, 2: 1.0, 0: 1.0}
    assert load.keys[0] == (1, 3.0, 0.0) and {key for key, _, _ in load.keys} == {1, 2, 4, 5}
    assert meter.records == 6 and meter.busy_seconds == 0.0


@given(st.lists(st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.floats(0, 2)), max_size=60))
def test_the_bins_add_up_to_what_was_noted_up_to_the_last_sample(batches: list[tuple[list[int], float]]) -> None:
    clock = Ticking(0.001)
    meter = LoadMeter(modulo, clock)
    looks: list[tuple[int, float]] = [(0, 0.0)]
    for keys, seconds in batches:
        began = meter.now()
        clock.now += seconds / 10  # so that all is within one or two windows
        before = clock.readings
        meter.note(pairs(*keys), began)
        if clock.readings > before + 1:
            looks.append((meter.records, meter.busy_seconds))
    records = sum(window.bins[bin][0] for window in (meter._window, meter._previous) for bin in window.bins)
    busy = sum(window.bins[bin][1] for window in (meter._window, meter._previous) for bin in window.bins)
    assert meter.records == sum(len(keys) for keys, _ in batches)
    assert (records, busy) == pytest.approx(looks[-1])


def test_of_an_operator_with_little_to_do_the_rates_of_keys_are_right() -> None:
    """A hundred batches of one record in a second; each takes 20 µs, as long as its sample."""
    clock = Ticking(0.00001)
    meter = LoadMeter(modulo, clock)
    count, seconds, keys = 100, 18, 400
    for number in range(count * seconds):
        clock.now = 100.0 + number / count
        began = meter.now()
        clock.now += 0.00002
        meter.note(pairs(0 if number % 20 == 0 else number % keys), began)
    rates = {key: rate for key, rate, _ in meter.load().keys}
    assert rates.pop(0) == pytest.approx(count / 20 + count / keys, rel=0.2)
    assert max(rates.values()) < 3 * count / keys + count / KEYS_COUNTED


def test_looking_takes_a_small_share_of_the_busy_time() -> None:
    clock = Ticking()
    sampled = 0.0

    def slow(key: int) -> int:
        nonlocal sampled
        clock.now += 0.0001
        sampled += 0.0001
        return modulo(key)

    meter = LoadMeter(slow, clock)
    for _ in range(20_000):
        began = clock()
        clock.now += 0.0005
        meter.note(pairs(1, 2, 3), began)
    assert 0 < sampled <= 1.1 * meter.busy_seconds / SAMPLE_SHARE


def test_a_large_batch_is_sampled_over_its_whole_length() -> None:
    counted: list[int] = []
    meter = LoadMeter(lambda key: counted.append(key) or key % 4, clock := Ticking())
    size = 100 * SAMPLE_MAX + 7
    meter.note(pairs(*range(size)), clock())
    assert SAMPLE_MAX // 2 < len(counted) <= SAMPLE_MAX and max(counted) - min(counted) > 0.99 * size
    assert sum(records for records, _ in meter.load().bins.values()) == pytest.approx(size)


def test_busy_time_goes_to_the_bins_whose_records_took_it() -> None:
    meter = LoadMeter(modulo, clock := Ticking())
    for _ in range(10):
        for keys, seconds in ((1, 1, 1), 0.5), ((2,), 0.25):
            began = clock()
            clock.now += seconds
            meter.note(pairs(*keys), began)
    seconds = clock.now - 100.0
    load = meter.load()
    assert {bin: round(busy * seconds, 6) for bin, (_, busy) in load.bins.items()} == {1: 5.0, 2: 2.5}
    assert {bin: round(records * seconds, 6) for bin, (records, _) in load.bins.items()} == {1: 30.0, 2: 10.0}


def test_what_is_long_ago_is_forgotten() -> None:
    meter = LoadMeter(modulo, clock := Ticking())
    meter.note(pairs(1, 1), clock())
    clock.now += WINDOW_SECONDS
    meter.note(pairs(2), clock())
    assert set(meter.load().bins) == {1, 2}
    assert [key for key, _, _ in meter.load().keys] == [1, 2]
    clock.now += WINDOW_SECONDS
    assert set(meter.load().bins) == {2}
    clock.now += 5 * WINDOW_SECONDS
    assert meter.load().bins == {} and meter.load().keys == []
    meter.note(pairs(3), clock())
    assert meter.load().bins == {3: (pytest.approx(1 / WINDOW_SECONDS), 0.0)}
    assert meter.records == 4


def test_the_heaviest_key_is_found_among_many_and_its_error_is_known() -> None:
    meter = LoadMeter(modulo, clock := Ticking())
    for number in range(1, 51):
        meter.note(pairs(*(7 if place % 4 == 0 else 1000 * number + place for place in range(400))), clock())
    (key, count, error), *others = meter.load().keys
    assert key == 7 and 5000 <= count <= 5000 + error and len(others) < KEYS_COUNTED
    assert error <= 50 * 400 / KEYS_COUNTED


def test_keys_are_ranked_by_the_records_that_they_certainly_have() -> None:
    meter = LoadMeter(modulo, clock := Ticking())
    for key in range(KEYS_COUNTED):
        meter.note(pairs(key, key), clock())
    meter.note(pairs(-1), clock())  # it inherits the count of another key
    keys = meter.load().keys
    assert keys[-1] == (-1, 3.0, 2.0) and all(each[1:] == (2.0, 0.0) for each in keys[:-1])


# Sizes --------------------------------------------------------------------------------------


def test_the_size_of_a_bin_of_like_keys_is_what_they_take_on_the_wire() -> None:
    store = BinStore(4)
    for bin in range(3):
        store.install(bin, [])
    for key in range(3000):
        if store.bin_of_key(key) < 2:
            store.create(key, ["x" * 50, key])
    sizes = bin_sizes(store.bins, store.states, {})
    for bin, held in store.bins.items():
        travelling = len(encode([(key, store.states[key]) for key in held]))
        assert sizes[bin] == pytest.approx(travelling, rel=0.35) if held else sizes[bin] == 0


class Counted(list[int]):
    """The keys of a bin. Counts how often those of one bin are read."""

    read = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        Counted.read += 1
        return super().__iter__()


@pytest.fixture(autouse=True)
def nothing_read() -> None:
    Counted.read = 0


def test_of_many_bins_some_are_measured_and_the_others_taken_for_average() -> None:
    bins = {bin: Counted([bin]) for bin in range(10 * SIZED_BINS_MAX)}
    sizes = bin_sizes(bins, dict.fromkeys(bins, "x" * 100), {})
    assert Counted.read <= SIZED_BINS_MAX and len(sizes) == len(bins)
    assert all(100 < size < 150 for size in sizes.values())


def test_large_states_end_the_measuring_and_what_cannot_travel_is_passed_over() -> None:
    bins = {bin: Counted([bin]) for bin in range(100)}
    sizes = bin_sizes(bins, dict.fromkeys(bins, "x" * 400_000), {})
    assert all(400_000 < size < 401_000 for size in sizes.values()) and Counted.read <= 4
    assert bin_sizes({0: [1], 1: []}, {1: object()}, {}) == {0: 0, 1: 0}


def test_a_measurement_of_sizes_stands_for_some_seconds() -> None:
    meter = LoadMeter(modulo, clock := Ticking())
    bins = {bin: Counted([bin]) for bin in range(4)}
    states = dict.fromkeys(range(5), "x" * 100)
    first = meter.sizes(bins, states)
    assert Counted.read == 4
    bins[4] = Counted([4])  # a bin that arrives is measured at once
    assert meter.sizes(bins, states) == {**first, 4: first[3]} and Counted.read == 5
    states = dict.fromkeys(range(5), "x" * 200)
    clock.now += SIZED_SECONDS - 0.1
    assert meter.sizes(bins, states) == {**first, 4: first[3]} and Counted.read == 5
    clock.now += 0.1
    assert min(meter.sizes(bins, states).values()) > 200 and Counted.read == 10
