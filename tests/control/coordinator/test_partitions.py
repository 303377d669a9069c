"""The coordinator assigns each partition of a source once, keeps the assignment, and hands it over."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from megaflow.control.coordinator.base.events import Discovered
from megaflow.control.coordinator.base.job_state import Durable
from megaflow.control.coordinator.reading.partitions import Partitions
from megaflow.control.reading_messages import (
    AssignPartitions,
    PartitionMissing,
    PartitionSeen,
    PartitionsRevoked,
    RevokePartitions,
    SplitRead,
    SplitsReturned,
    StayWithPartition,
)
from megaflow.control.reports import MissingPartition
from megaflow.durable.commits import ANEW, SourcePartition
from megaflow.timely.membership import Membership
from tests.control.coordinator.coordination import Coordination


class Bench(Coordination):
    """The partitions of a job of two workers, with the partitions assigned to each."""

    def __init__(self, *sources: str, durable: Durable | None = None) -> None:
        super().__init__()
        self.all = Partitions(self.roster, self.stream, sources, durable)

    def found(
        self, *partitions: bytes, input: str = "s", over: bool = False, bounds: tuple[int | None, ...] = (),
        complete: bool = False, sights: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:  # fmt: skip
        self.all.found(Discovered(input, partitions, over, bounds, complete, sights))
        self.all._check()

    def learn(self, report: Any, ended: bool = False, source: int = 0) -> None:
        self.all.learn(report, ended, source)
        self.all._check()

    def go_on(self) -> None:
        self.all.go_on()
        self.all._check()

    @property
    def revoked(self) -> list[RevokePartitions]:
        """Partitions revoked since the last read of this or `given`. No other command may be among the outputs."""
        return self.commands()

    @property
    def given(self) -> list[tuple[int, bytes, bytes | None]]:
        commands = self.commands()
        assert all(isinstance(each, AssignPartitions) for each in commands)
        return [
            (worker, partition.partition, partition.position)
            for command in commands
            for worker, some in command.assignments.items()
            for partition in some
        ]


def test_each_is_given_to_a_worker_with_the_fewest_once_however_often_it_is_found() -> None:
    bench = Bench("s", "t")
    bench.found(b"a", b"b", b"c")
    assert sorted(bench.given) == [(0, b"a", None), (0, b"c", None), (1, b"b", None)]
    bench.found(b"a", b"d", b"c", over=True)
    bench.found(b"a", input="t")
    assert bench.given == [(1, b"d", None), (0, b"a", None)], "names of sources are their own"
    for number in range(-1, -6, -1):
        assert not bench.all.over
        bench.learn(SplitRead(number))
    assert not bench.all.over and bench.all.state.asked == {"t"}
    bench.found(b"a", input="t", over=True)
    assert bench.all.over and bench.given == [], "what was read is not given out again"


def test_a_bound_is_known_of_what_is_not_read_to_its_end() -> None:
    bench = Bench("s")
    bench.found(b"a", b"b", bounds=(7, None))
    assert bench.all.state.bounds == {-1: 7}
    bench.found(b"a", b"b", bounds=(7, 8))
    assert bench.all.state.bounds == {-1: 7, -2: 8}
    bench.learn(SplitRead(-1))
    bench.found(b"a", b"b", b"c", bounds=(7, 8, 9))
    assert bench.all.state.bounds == {-2: 8, -3: 9}
    bench.learn(SplitRead(-3))
    assert bench.all.state.bounds == {-2: 8}


def test_what_is_returned_goes_to_others_from_where_it_is_unless_the_job_has_ended() -> None:
    bench = Bench("s")
    bench.found(b"a", b"b", over=True)
    _ = bench.given
    bench.roster.close([0])
    bench.learn(SplitsReturned((), (SourcePartition(-1, "s", b"a", b"7"),)))
    assert bench.given == [(1, b"a", b"7")]
    bench.learn(SplitsReturned((), (SourcePartition(-1, "s", b"a", b"8"),)), ended=True)
    assert bench.given == [] and not bench.all.over


def test_a_job_that_goes_on_has_what_a_checkpoint_has_left_and_knows_what_was_read() -> None:
    left, read = SourcePartition(-2, "s", b"b", b"5"), SourcePartition(-1, "s", b"a")
    bench = Bench("s", durable=Durable((), 1.0, partitions=(left,), finished=(read,)))
    bench.go_on()
    assert bench.given == [(0, b"b", b"5")]
    bench.found(b"a", b"b", b"c", over=True)
    assert bench.given == [(1, b"c", None)]
    assert {(each.number, each.partition, each.position) for each in bench.all.known} == {
        (-2, b"b", None), (-1, b"a", None), (-3, b"c", None),
    }  # fmt: skip


def test_what_is_read_is_forgotten_when_all_are_named_and_it_is_not() -> None:
    bench = Bench("s", "t")
    bench.found(b"a", b"b", b"c", b"d")
    bench.found(b"a", input="t")
    for number in (-1, -2, -5):
        bench.learn(SplitRead(number))
    bench.found(b"d")
    assert len(bench.all.known) == 5, "these are perhaps not all"
    bench.found(b"b", b"d", complete=True)
    assert [(each.input, each.partition) for each in bench.all.known] == [
        ("s", b"b"), ("s", b"c"), ("s", b"d"), ("t", b"a"),
    ], "one is named, one not read, and what another source has is its own"  # fmt: skip
    assert not bench.all.is_known("s", b"a") and bench.all.is_known("s", b"b")
    bench.learn(SplitRead(-3))
    bench.found(b"d", complete=True)
    bench.found(input="t", complete=True)
    assert [(each.input, each.partition) for each in bench.all.known] == [("s", b"d"), ("t", b"a")]


def test_a_number_is_not_given_again_though_all_was_read_and_is_forgotten() -> None:
    bench, next = Bench("s", "t"), Bench("s", "t")
    bench.found(b"a", b"b")
    bench.found(b"c", input="t")
    for number in (-1, -2, -3):
        bench.learn(SplitRead(number))
    for each in "st":
        bench.found(input=each, complete=True)
    assert [each.number for each in bench.all.known] == [-2, -3], "the last one of each source"
    resumed = Bench("s", "t", durable=Durable((), 1.0, finished=bench.all.known))
    next.all.resume(deepcopy(bench.all.state))
    for each in (bench, next, resumed):
        each.found(b"d", b"e", complete=True)
        assert [found.number for found in each.all.known] == [-3, -4, -5]


def test_partitions_that_come_and_go_for_ever_cost_what_there_are_at_a_time() -> None:
    bench = Bench("s")
    for day in range(1_000):
        bench.found(b"%d" % day, b"%d" % (day + 1), complete=True)
        bench.learn(SplitRead(-1 - day))
        assert len(bench.all.known) <= 3 and len(bench.all.state.known) <= 3


def test_next_run_reads_on_where_a_partition_ended_resumably() -> None:
    end = SourcePartition(-1, "s", b"a", b"7", (("clicks", 9),))
    bench = Bench("s", durable=Durable((), 1.0, run=3))
    bench.found(b"a", b"b")
    bench.all.begin_cut()
    bench.learn(SplitRead(-1, (end,)))
    bench.learn(SplitRead(-2))
    kept = replace(end, ended_in=3)
    assert bench.all.ended == (kept,) and bench.all.known == (kept, SourcePartition(-2, "s", b"b"))
    successor = Bench("s", durable=Durable((), 1.0, run=3))
    successor.all.resume(deepcopy(bench.all.state))
    recovered, later = (Bench("s", durable=Durable((), 1.0, finished=bench.all.known, run=run)) for run in (3, 5))
    for each in (bench, successor, recovered):
        _ = each.given
        each.found(b"a", b"b", over=True)
        assert each.given == [] and each.all.over and each.all.known[0] == kept
    later.found(b"b")
    assert later.given == [] and later.all.known[0] == kept, "it is not named yet"
    later.found(b"a", bounds=(8,), over=True)
    assert [(partition, kept.number) for partition, _ in later.all.unread] == [(SourcePartition(-1, "s", b"a"), -1)]
    assert later.given == [(0, b"a", b"7")] and later.all.state.bounds == {-1: 8}
    later.found(b"a")
    assert later.given == [], "once"


def test_forgotten_partition_keeps_no_position() -> None:
    bench = Bench("s", durable=Durable((), 1.0, run=3))
    bench.found(b"a", b"b", complete=True)
    for number, each in ((-1, b"a"), (-2, b"b")):
        bench.learn(SplitRead(number, (SourcePartition(number, "s", each, b"7"),)))
    bench.found(complete=True)
    assert bench.all.known == (SourcePartition(-2, "s", b"b"),), "the last one stays for its number"
    later = Bench("s", durable=Durable((), 1.0, finished=bench.all.known, run=4))
    later.found(b"b", complete=True)
    assert later.given == []


def gone(number: int, partition: bytes) -> SplitRead:
    return SplitRead(number, (SourcePartition(number, "s", partition, ended_in=ANEW),))


@pytest.mark.parametrize("run", [0, 3])
def test_name_of_a_partition_that_is_gone_is_that_of_another(run: int) -> None:
    bench = Bench("s", durable=Durable((), 1.0, run=run))
    bench.found(b"a", b"b", complete=True)
    _ = bench.given
    bench.all.begin_cut()
    bench.learn(gone(-1, b"a"))
    kept = SourcePartition(-1, "s", b"a", ended_in=ANEW)
    assert bench.all.ended == (kept,) and bench.all.known[0] == kept
    bench.found(b"a", b"b", complete=True)
    assert bench.given == [], "the source may have been asked before"
    bench.found(b"a", b"b", complete=True)
    assert bench.given == [(0, b"a", None)]
    assert [(each.number, each.ended_in) for each in bench.all.known] == [(-2, 0), (-3, 0)], "its number is new"
    bench.learn(gone(-3, b"a"))
    bench.found(b"b", complete=True)
    bench.found(b"a", b"b", complete=True)
    assert bench.given == [(0, b"a", None)], "it was left out before"


def test_last_partition_is_another_after_it_was_gone() -> None:
    bench = Bench("s", durable=Durable((), 1.0, run=3))
    bench.found(b"a", complete=True)
    bench.learn(gone(-1, b"a"))
    bench.found(complete=True)
    bench.found(complete=True)
    assert bench.all.known == (SourcePartition(-1, "s", b"a", ended_in=ANEW),)
    successor, *resumed = (Bench("s", durable=Durable((), 1.0, finished=bench.all.known, run=run)) for run in (3, 3, 5))
    successor.all.resume(deepcopy(bench.all.state))
    for each in (bench, successor, *resumed):
        _ = each.given
        each.found(b"a", complete=True)
        assert each.given == [(0, b"a", None)] and [known.number for known in each.all.known] == [-2]


def test_partitions_that_are_gone_cost_nothing() -> None:
    bench = Bench("s", durable=Durable((), 1.0, run=3))
    for round in range(50):
        names = [b"%d %d" % (round, number) for number in range(5)]
        bench.found(*names, complete=True)
        for name in names:
            bench.learn(gone(bench.all.state.known["s", name].number, name))
        bench.found(complete=True)
        assert len(bench.all.known) == 1 and not bench.all.state.holders


def test_without_checkpoints_an_end_is_the_end() -> None:
    bench = Bench("s")
    bench.found(b"a", over=True)
    bench.learn(SplitRead(-1, (SourcePartition(-1, "s", b"a", b"7"),)))
    assert bench.all.over and bench.all.known == (SourcePartition(-1, "s", b"a"),)


@pytest.mark.parametrize("over", [True, False])
def test_who_takes_over_goes_on_without_giving_one_twice(over: bool) -> None:
    bench, next = Bench("s"), Bench("s")
    bench.found(b"a", b"b", over=over)
    bench.learn(SplitRead(-2))
    next.all.resume(deepcopy(bench.all.state))
    assert next.all.state.asked == (set() if over else {"s"})
    next.found(b"a", b"b", b"c", over=True)
    assert next.given == [(1, b"c", None)]
    for number in (-1, -3):
        next.learn(SplitRead(number))
    assert next.all.over


def test_a_worker_that_has_joined_gets_its_share_one_revocation_after_the_other() -> None:
    bench = Bench("s")
    bench.found(*(b"%d" % number for number in range(9)), over=True)
    _ = bench.given
    bench.go_on()
    assert bench.revoked == [], "five and four are as even as it gets"
    bench.roster.joined((2,), Membership(1, frozenset((0, 1, 2)), 0), "h", 1)
    bench.roster.routed(2)
    bench.go_on()
    assert bench.revoked == [RevokePartitions(0, (-9, -7))] and bench.all.revoked
    bench.go_on()
    assert bench.revoked == [], "one at a time"
    bench.learn(PartitionsRevoked((SourcePartition(-9, "s", b"8", b"3"),)))
    assert bench.given == [(2, b"8", b"3")] and not bench.all.revoked
    bench.learn(SplitRead(-7))
    bench.go_on()
    assert bench.revoked == [RevokePartitions(1, (-8,))], "four, three and one"


@pytest.mark.parametrize("order", ["told before", "told after", "back before"])
def test_what_is_on_its_way_back_at_a_checkpoint_is_a_part_of_it_if_its_source_was_told_before(order: str) -> None:
    bench = Bench("s")
    bench.found(b"a", b"b", b"c", b"d", over=True)
    bench.learn(SplitRead(-2))
    bench.learn(SplitRead(-4))
    returned = PartitionsRevoked((SourcePartition(-3, "s", b"c", b"3"),))
    if order == "told after":
        bench.all.begin_cut()
    bench.go_on()
    if order == "back before":
        bench.learn(returned)
    if order != "told after":
        bench.all.begin_cut()
    if order != "back before":
        bench.learn(returned)
    assert bench.all.cut == (returned.partitions if order == "told before" else ())


def test_the_next_coordinator_asks_sources_in_the_same_order_in_every_process() -> None:
    names = [f"source {number}" for number in range(30)]
    assert Bench(*names).all.state.to_ask == sorted(names), "a set has another order in each process"


class Sighted(Bench):
    """Workers that see some partitions each, and report which they miss, find again, or hand back."""

    def __init__(self, sees: Callable[[int, int], bool]) -> None:
        super().__init__("s")
        self.sees = sees  # whether a worker sees the partition of this number
        self.revocations = 0
        self._missed: set[tuple[int, int]] = set()  # (worker, number) that the worker has reported

    def play(self, random: Random) -> None:
        """Let the workers obey and report, until nothing happens any more."""
        moved = True
        while moved:
            self.go_on()
            moved = False
            for command in self.commands():
                moved = True
                if isinstance(command, RevokePartitions):
                    self.revocations += 1
                    self._look(random)
                    self._missed -= {(command.worker, number) for number in command.numbers}
                    self.learn(PartitionsRevoked(tuple(part(number) for number in command.numbers)), False)
            moved = self._look(random) or moved

    def _look(self, random: Random) -> bool:
        """Let each worker look for its partitions; return whether one of them has something to report."""
        holders = list(self.all.state.holders.items())
        random.shuffle(holders)
        before = set(self._missed)
        for number, worker in holders:
            assert worker is not None
            if not self.sees(worker, number) and (worker, number) not in self._missed:
                self._missed.add((worker, number))
                self.learn(PartitionMissing(number, differs=random.random() < 0.5), source=worker)
            elif self.sees(worker, number) and (worker, number) in self._missed:
                self._missed.discard((worker, number))
                self.learn(PartitionSeen(number), source=worker)
        return before != self._missed


def test_unopened_partitions_are_named_with_reasons_and_bytes() -> None:
    bench = Bench("s")
    bench.found(b"a", b"b", b"c", over=True)
    holders = bench.all.state.holders
    for number, unread in ((-1, 5), (-2, None), (-3, 0)):
        for worker in (0, 1):
            report = PartitionMissing(number, f"locked on {worker}", unread if worker == holders[number] else 7)
            bench.learn(report, source=worker)
    assert bench.all.unopened == (
        MissingPartition("s", "locked on 0; locked on 1", 0, (0, 1), 5),
        MissingPartition("s", "locked on 1; locked on 0", 1, (0, 1), 7),
    ), "the last one has nothing to read"
    bench.learn(PartitionSeen(-1), source=1)
    bench.learn(PartitionSeen(-2), source=1)
    assert [each.tried for each in bench.all.unopened] == [(0,)], "worker 1 holds the second one and has found it"


def test_a_worker_that_gets_a_partition_again_reports_anew() -> None:
    bench = Bench("s")
    bench.found(b"a", over=True)
    assert bench.all.state.holders == {-1: 0}
    assert bench.given == [(0, b"a", None)]
    bench.learn(PartitionMissing(-1, "locked", 5), source=0)
    bench.go_on()
    assert bench.revoked == [RevokePartitions(0, (-1,))]
    bench.learn(PartitionsRevoked((SourcePartition(-1, "s", b"a"),)), source=0)
    assert bench.all.state.holders == {-1: 1} and bench.all.unopened == ()
    bench.roster.close([1])
    bench.roster.closed(1)
    bench.roster.left([1], Membership(1, frozenset({0}), 0))
    bench.learn(SplitsReturned((), (SourcePartition(-1, "s", b"a"),)), source=1)
    assert bench.all.state.holders == {-1: 0} and bench.all.unopened == (), "worker 1 may have read it"
    bench.learn(PartitionMissing(-1, "locked", 5), source=0)
    assert [each.tried for each in bench.all.unopened] == [(0,)]


def test_one_that_differs_elsewhere_is_tried_by_the_coordinator_again() -> None:
    bench = Bench("s")
    bench.found(b"a", over=True)
    for worker, differs in ((0, False), (1, True)):
        assert bench.given == [(worker, b"a", None)]
        bench.learn(PartitionMissing(-1, "it is away", differs=differs), source=worker)
        bench.go_on()
        assert bench.revoked == [RevokePartitions(worker, (-1,))]
        bench.learn(PartitionsRevoked((SourcePartition(-1, "s", b"a"),)), source=worker)
    assert bench.given == [(0, b"a", None)]
    bench.learn(PartitionMissing(-1, "it is away"), source=0)
    bench.go_on()
    assert bench.commands() == [StayWithPartition(0, -1)]


def test_readers_learn_what_a_partition_was_like_when_it_was_new() -> None:
    bench = Bench("s", durable=Durable((), 1.0, partitions=(SourcePartition(-1, "s", b"old"),)))
    bench.go_on()
    [start] = bench.commands()
    assert start.sights is None, "nothing is compared at the start"
    bench.found(b"old", b"a", b"b", sights=((b"old", b"x"), (b"a", b"like this")))
    [given] = bench.commands()
    assert given.sights == {-2: b"like this"} and bench.all.state.sights == given.sights
    assert [bench.all.is_unread(*each) for each in (("s", b"a"), ("s", b"c"), ("t", b"a"))] == [True, False, False]
    bench.learn(SplitsReturned((), (SourcePartition(-2, "s", b"a", b"5"), SourcePartition(-1, "s", b"old"))), source=1)
    [again] = bench.commands()
    assert again.sights == given.sights, "it may still have nothing that was read"
    for number in (-1, -2, -3):
        bench.learn(SplitRead(number))
    assert not bench.all.state.sights and not bench.all.is_unread("s", b"a")


def part(number: int) -> SourcePartition:
    return SourcePartition(number, "s", b"%d" % -number)


@pytest.mark.parametrize("seed", range(60))
def test_a_partition_ends_at_a_worker_that_finds_it(seed: int) -> None:
    random, count = Random(seed), 12
    seen = {(worker, -1 - place) for worker in range(4) for place in range(count) if random.random() < 0.5}
    bench = Sighted(lambda worker, number: (worker, number) in seen)
    bench.found(*(b"%d" % (1 + place) for place in range(count)), over=True)
    workers = [0, 1]
    for version, joiner in enumerate((None, 2, 3)):
        if joiner is not None:
            workers.append(joiner)
            bench.roster.joined((joiner,), Membership(version, frozenset(workers), 0), "h", joiner)
            bench.roster.routed(joiner)
        bench.play(random)
        for number, holder in bench.all.state.holders.items():
            if any((worker, number) in seen for worker in workers):
                assert (holder, number) in seen, (number, holder, workers)
            else:
                assert bench.all.state.staying[number] == holder
    late = random.sample(range(-count, 0), 4)
    seen.update((bench.all.state.holders[number], number) for number in late)
    bench.play(random)
    assert all((bench.all.state.holders[number], number) in seen for number in late)
    assert bench.revocations <= 8 * count
    for number in range(-count, 0):
        bench.learn(SplitRead(number))
    assert bench.all.over and not bench.all.state.missing and not bench.all.state.staying
