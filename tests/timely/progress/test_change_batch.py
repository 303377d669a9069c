"""ChangeBatch against a Counter."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from megaflow.timely.progress.change_batch import ChangeBatch

changes = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-2, 2)))


def summed(pairs: list[tuple[str, int]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for item, delta in pairs:
        sums[item] += delta
    return {item: total for item, total in sums.items() if total}


@given(changes, changes)
def test_a_batch_holds_the_sums_that_are_not_zero(first: list[tuple[str, int]], second: list[tuple[str, int]]) -> None:
    batch = ChangeBatch(first)
    for item, delta in second:
        batch.update(item, delta)
        batch._check()
    expected = summed(first + second)
    assert dict(batch) == expected
    assert len(batch) == len(expected)
    assert batch.is_empty() == (not expected)


@given(changes, changes)
def test_draining_returns_everything_and_starts_anew(
    first: list[tuple[str, int]], second: list[tuple[str, int]]
) -> None:
    batch: ChangeBatch[str] = ChangeBatch()
    batch.extend(first)
    assert dict(batch.drain()) == summed(first)
    assert batch.is_empty()
    batch.extend(second)
    assert dict(batch.drain()) == summed(second)
    assert batch.drain() == []


@given(changes, changes)
def test_absorbing_adds_everything_and_leaves_nothing_behind(
    first: list[tuple[str, int]], second: list[tuple[str, int]]
) -> None:
    batch, other = ChangeBatch(first), ChangeBatch(second)
    batch.absorb(other)
    batch._check()
    assert dict(batch) == summed(first + second)
    assert other.is_empty()
    other.update("a", 1)
    assert dict(batch) == summed(first + second), "each has books of its own"
