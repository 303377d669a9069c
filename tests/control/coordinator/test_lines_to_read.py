"""The remaining lines are spread over the workers that read, and always have a reader."""

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.control.coordinator.base.epoch_clock import CommandStream
from megaflow.control.coordinator.base.events import Inject
from megaflow.control.coordinator.base.roster import Roster
from megaflow.control.coordinator.reading.lines_to_read import HELD_MIN, LinesToRead, Stock
from megaflow.control.coordinator.reading.split_pool import SplitPool, spread
from megaflow.control.messages import Split
from megaflow.control.reading_messages import (
    AssignSplits,
    PartitionMissing,
    RevokeSplits,
    SplitRead,
    SplitsReturned,
    SplitsRevoked,
    StayWithPartition,
)
from megaflow.timely.membership import Membership
from tests.control.coordinator.test_controller import founding


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


FILES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 100)), max_size=12)


def named(files: list[tuple[str, int]]) -> list[Split]:
    return [Split(number, f"{input}{number}", 0, size, input) for number, (input, size) in enumerate(files)]


@given(files=FILES, ordered=st.sets(st.sampled_from("abc")), workers=st.sets(st.integers(0, 9), min_size=1, max_size=3))
def test_readers_have_files_of_each_input_while_any_are_left(
    files: list[tuple[str, int]], ordered: set[str], workers: set[int]
) -> None:
    pool, held = SplitPool(named(files), ordered), {worker: Stock(()) for worker in workers}
    loads, taken = dict.fromkeys(workers, 0), list[int]()
    counts = {(worker, input): 0 for worker in workers for input in "abc"}
    for _ in range(2 * len(files) * len(workers)):
        for worker in sorted(workers):
            few = {input for input in "abc" if counts[worker, input] < HELD_MIN}
            split = pool.take(worker, loads, few.__contains__)
            if split is not None:
                assert split.input in few
                taken.append(split.number)
                held[worker].add(split)
                counts[worker, split.input] += 1
                loads[worker] += split.end - split.start
        if all(split is None for split in [pool.take(each, loads, lambda input: False) for each in sorted(workers)]):
            counts = {each: max(0, count - 1) for each, count in counts.items()}  # one file of each input is read
    assert sorted(taken) == list(range(len(files))), "each is given once, and none is left"


def test_lone_reader_is_given_files_of_all_inputs() -> None:
    pool, stock = SplitPool(named([("a", 1 << 20)] * 9 + [("b", 9)] * 3)), Stock(())
    given_ = []
    while (split := pool.take(4, {4: sum(stock.sizes.values())}, stock.is_short)) is not None:
        stock.add(split)
        given_.append(split.number)
    assert sorted(given_) == [0, 1, 9, 10, 11], "two of the one, and all that is small of the other"
    assert not stock.lacks("a") and stock.lacks("b")


class Readers:
    """Workers that obey commands and read nothing by themselves."""

    def __init__(self, splits: list[Split], workers: int, ordered: tuple[str, ...] = ()) -> None:
        self.stream = CommandStream()
        self.roster = Roster(founding([*range(workers)]))
        self.lines = LinesToRead(self.roster, self.stream, splits, False, ordered=ordered)
        self.held: dict[int, dict[int, Split]] = {worker: {} for worker in range(workers)}
        self.given: list[tuple[int, int]] = []  # each (worker, number) that was assigned
        self.stays: list[tuple[int, int]] = []  # each that no process could open, and that its holder must open

    def settle(self) -> int:
        """Obey commands until there are none; return how many times splits were revoked."""
        for revoked in range(200):
            self.lines.go_on()
            out = [*self.stream.out]
            self.stream.out.clear()
            for command in [each.command.command for each in out if isinstance(each, Inject)]:
                match command:
                    case AssignSplits(given_):
                        for worker, splits in given_.items():
                            self.held[worker].update((split.number, split) for split in splits)
                            self.given += [(worker, split.number) for split in splits]
                    case StayWithPartition(worker, number):
                        self.stays.append((worker, number))
                    case RevokeSplits(numbers):
                        for worker, some in numbers.items():
                            back = tuple(self.held[worker].pop(number) for number in some)
                            self.lines.learn(worker, SplitsRevoked(back), False)
            if not out:
                return revoked
        raise AssertionError(f"splits are taken back without an end, from {self.held}")


def test_splits_are_not_taken_back_for_a_reader_of_a_large_file() -> None:
    sizes = [("a", 100 << 20), *(2 * [("a", 2 << 20), ("b", 2 << 20)])]
    readers = Readers(named(sizes), 2)
    readers.settle()
    assert sorted(map(len, readers.held.values())) == [1, 4]
    [large] = [worker for worker, some in readers.held.items() if len(some) == 1]
    readers.held[large].clear()
    readers.lines.learn(large, SplitRead(0), False)
    readers.settle()
    assert [len(some) for some in readers.held.values()] == [2, 2], "it has read its file, so it gets a share"


@given(
    sizes=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([9, 1 << 18, 1 << 20, 9 << 20])), max_size=12),
    workers=st.integers(1, 4),
    reads=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 11)), max_size=20),
)
def test_there_is_an_end_to_taking_back(
    sizes: list[tuple[str, int]], workers: int, reads: list[tuple[int, int]]
) -> None:
    readers = Readers(named(sizes), workers)
    readers.settle()
    for worker, place in reads:
        held = readers.held[worker % workers]
        if held:
            number = [*held][place % len(held)]
            del held[number]
            readers.lines.learn(worker % workers, SplitRead(number), False)
            readers.settle()
    idle = [worker for worker, some in readers.held.items() if not some]
    assert not idle or max(map(len, readers.held.values())) < 2, f"{idle} have nothing: {readers.held}"


@pytest.mark.parametrize("seed", range(40))
def test_each_process_tries_a_split_that_another_cannot_open(seed: int) -> None:
    random, workers, count = Random(seed), Random(seed).randint(1, 4), 14
    ordered = random.choice(((), ("a",)))
    sees = {(worker, number) for worker in range(workers) for number in range(count) if random.random() < 0.5}
    readers = Readers([Split(number, f"a{number:02}", 5, 1 << 20, "a") for number in range(count)], workers, ordered)
    missed: set[tuple[int, int]] = set()
    failed: set[int] = set()
    readers.settle()
    while any(readers.held.values()):
        held = [(worker, number) for worker, some in readers.held.items() for number in some]
        able = [each for each in held if each in sees or each not in missed or each in readers.stays]
        worker, number = random.choice(able)
        if (worker, number) in sees or (worker, number) in readers.stays:
            failed |= set() if (worker, number) in sees else {number}
            assert readers.held[worker].pop(number).start == 5, "its position is kept"
            readers.lines.learn(worker, SplitRead(number), False)
        else:
            missed.add((worker, number))
            readers.lines.learn(worker, PartitionMissing(number), False)
        readers.settle()
        readers.lines._check()
    assert failed == {number for number in range(count) if not any((each, number) in sees for each in range(workers))}
    assert missed.isdisjoint(sees) and readers.lines.over and not readers.lines.state.missing
    assert max(map(readers.given.count, missed), default=1) == 1, "each process gets it once"


def test_lines_that_workers_read_count_after_they_have_left() -> None:
    roster = Roster(founding(range(4)))
    lines = LinesToRead(roster, CommandStream(), [], False)
    counts = {1: {"a": 5, "b": 0}, 2: {"a": 2}, 3: {"b": 7}}
    members = roster.members
    for worker, taken in counts.items():
        roster.close((worker,))
        lines.learn(worker, SplitsReturned((), taken=taken), False)
        present = [each for each in members.ids if each != worker]
        assert lines.taken_before(members.ids).get("a", 0) == sum(counts[each].get("a", 0) for each in range(1, worker))
        members = Membership(members.version + 1, frozenset(present), 0)
        roster.left([worker], members)
    assert lines.taken_before([0]) == {"a": 7, "b": 7} and len(lines.state.taken) <= 2
    successor = LinesToRead(roster, CommandStream(), [], False)
    successor.resume(lines.state, (), lines.partitions.state)
    assert successor.taken_before([0]) == {"a": 7, "b": 7}


def test_split_returns_to_a_tried_process_if_the_other_leaves() -> None:
    readers = Readers([Split(0, "a", 0, 9)], 2)
    readers.settle()
    readers.lines.learn(0, PartitionMissing(0), False)
    readers.settle()
    assert [*readers.held[1]] == [0]
    readers.roster.close((1,))
    readers.lines.learn(1, SplitsReturned((readers.held[1].pop(0),)), False)
    readers.settle()
    assert [*readers.held[0]] == [0] and not readers.stays
    readers.lines.learn(0, PartitionMissing(0), False)
    readers.settle()
    assert readers.stays == [(0, 0)]
