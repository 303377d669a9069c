"""The rule by which the watched job has grown or not, on made-up series."""

import random

import pytest

from tests.attack.watched import LIMITS, Sample, leaks_of

MINUTES = 60


def samples(name: str, by_the_minute: float, until: int = MINUTES) -> list[Sample]:
    """Return samples of an hour in which one series grows until a minute, and all tremble."""
    rng = random.Random(1)
    found = []
    for minute in range(MINUTES):
        held = {each: 1000 + rng.uniform(-0.2, 0.2) * limit for each, limit in LIMITS.items()}
        held[name] += by_the_minute * min(minute, until)
        found.append(Sample(minute, held))
    return found


@pytest.mark.parametrize("name", LIMITS)
def test_a_series_that_grows_is_found(name: str) -> None:
    [found] = leaks_of(samples(name, 3 * LIMITS[name] / MINUTES))
    assert found.startswith(f"{name} has grown by")


@pytest.mark.parametrize("name", LIMITS)
def test_trembling_series_are_flat(name: str) -> None:
    assert leaks_of(samples(name, 0.0)) == []


def test_growth_of_the_first_quarter_is_the_warm_up() -> None:
    assert leaks_of(samples("heap", 100.0, until=MINUTES // 4)) == []


def test_descriptors_for_a_process_that_comes_and_goes_do_not_count() -> None:
    found = samples("descriptors", 0.0)
    for number, sample in enumerate(found):
        is_there = number % 2 if number < MINUTES // 2 else number % 8
        assert isinstance(sample.held, dict)
        sample.held["descriptors"] += 2 * LIMITS["descriptors"] * bool(is_there)
    assert leaks_of(found) == []
