"""The lines that are left: spread over those who read, and never left to nobody."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from megaflow.control.coordinator.split_pool import spread
from megaflow.control.messages import Split


@given(
    ranges=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 100)), max_size=6),
    workers=st.sets(st.integers(0, 9), min_size=1, max_size=3),
)
def test_bytes_are_balanced_as_well_as_whole_splits_allow(ranges: list[tuple[int, int]], workers: set[int]) -> None:
    splits = [Split(number, "f", start, start + size) for number, (start, size) in enumerate(ranges)]
    given_ = spread(splits, sorted(workers))
    assert sorted(split.number for some in given_.values() for split in some) == list(range(len(splits)))
    assert given_.keys() <= workers and all(given_.values()), "workers without a split have none"
    assert all(list(some) == sorted(some, key=lambda split: split.number) for some in given_.values())

    def highest(owners: tuple[int, ...]) -> int:
        loads = dict.fromkeys(workers, 0)
        for split, owner in zip(splits, owners):
            loads[owner] += split.end - split.start
        return max(loads.values())

    owner = {split.number: worker for worker, some in given_.items() for split in some}
    found = highest(tuple(owner[split.number] for split in splits))
    assert found <= 4 / 3 * min(map(highest, product(sorted(workers), repeat=len(splits))))
