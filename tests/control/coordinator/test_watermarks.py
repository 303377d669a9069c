"""Watermarks: each rule of the module header by itself, and random jobs in which no record may be wrongly late.

The transcripts controller_watermarks* show watermarks with ticks, through a hand-over and after a resume.
"""

from collections import deque
from copy import deepcopy
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.control.coordinator.base.events import Asked, Discovered, Inject
from megaflow.control.coordinator.base.job_state import Durable, EventTime, TimedOperator
from megaflow.control.coordinator.base.roster import Roster
from megaflow.control.coordinator.reading import lines_to_read, watermarks
from megaflow.control.coordinator.reading.lines_to_read import LinesToRead
from megaflow.control.coordinator.reading.spark_commits import Commits
from megaflow.control.coordinator.reading.watermarks import KEPT_MIN, PERIOD_SECONDS, Watermarks
from megaflow.control.launcher_messages import ToldOnce
from megaflow.control.messages import CommitBatch, CommitTaken, PushedEnded, Request, SourceEnded, Split
from megaflow.control.reading_messages import (
    AssignSplits,
    PartitionsRevoked,
    RevokeSplits,
    SplitRead,
    SplitsReturned,
    SplitsRevoked,
)
from megaflow.control.watermark_messages import (
    ClockWanted,
    EventTimeReport,
    HoldsBack,
    IdlePartition,
    MaximaSeen,
    MaximaTold,
    Partition,
    PartitionLateness,
    PartitionsIdle,
    TellMaxima,
)
from megaflow.durable.commits import ANEW, SourcePartition
from megaflow.megaphone.base.event_unit import INFINITE
from megaflow.megaphone.base.routing import Clock, Watermark
from megaflow.timely.communication.codec.encode import encode
from tests.control.coordinator.coordination import Coordination, issued
from tests.words import says

A, B = ("split", 0), ("split", 1)


def files(*names: str, input: str = "") -> list[Split]:
    return [Split(number, name, 0, 10, input) for number, name in enumerate(names)]


class Bench(Coordination):
    """A coordinator's knowledge of partitions and event time: two workers, and one operator that follows the lines."""

    def __init__(self, splits: list[Split], late: int = 0, *, inputs: tuple[str, ...] = ("",), **more: Any) -> None:
        super().__init__()
        queries, pushed, sources = more.pop("queries", 0), "pushed" in more, more.pop("sources", ())
        durable = more.pop("durable", None)
        operators = more.pop("operators", {"event_time": TimedOperator(late, frozenset(inputs))})
        event_time = EventTime(operators, **more)
        self.lines = LinesToRead(
            self.roster, self.stream, splits, pushed, sources=sources, ordered=event_time.ordered
        )
        self.commits = Commits(self.roster, self.stream, queries)
        self.all = Watermarks(event_time, self.stream, self.lines, self.commits, self.roster, durable)
        self.out = self.stream.out
        self.lines.go_on()

    def hear(self, worker: int, report: Any) -> None:
        if isinstance(report, EventTimeReport):
            self.all.learn(worker, report, self.now)
            return
        self.all.passed_on(report, self.now)
        if isinstance(report, CommitTaken):
            self.commits.taken(report.query, report.batch, worker)
        else:
            self.lines.learn(worker, report, False)
            self.lines.go_on()

    def see(self, *maxima: tuple[Partition, int], worker: int = 0, first: bool = False) -> None:
        self.hear(worker, MaximaSeen("event_time", maxima, maxima if first else ()))

    def holder(self, number: int) -> int:
        """Return the worker that was given a split."""
        (worker,) = [worker for split, worker in self.lines.unread if split.number == number and worker is not None]
        return worker

    def end(self, number: int) -> None:
        """Report that a split was read to its end."""
        self.hear(self.holder(number), SplitRead(number))

    def hand_back(self, split: Split) -> None:
        """Let a worker hand back the rest of a split; the coordinator gives it to a worker without a split."""
        worker = self.holder(split.number)
        self.lines._revoked = {worker: (split.number,)}
        self.hear(worker, SplitsRevoked((split,)))

    def tick(self, seconds: float = 0.125) -> int | None:
        """Return the watermark that a tick issues, or None."""
        self.now += seconds
        commands = self.end_epoch()
        self.all._check()
        return next((each.micros for each in commands if isinstance(each, Watermark)), None)

    def end_epoch(self, may_issue: bool = True) -> list[Any]:
        """Issue what is due, which begins the next epoch, and return it."""
        commands = self.all.due(may_issue, self.now)
        self.stream.issue(*commands)
        return commands


def hand_over(old: Bench, new: Bench) -> None:
    new.lines.resume(*map(deepcopy, (old.lines.state, old.lines.pool.splits, old.lines.partitions.state)))
    new.commits.state = deepcopy(old.commits.state)


def test_of_two_files_on_one_worker_none_makes_the_other_late() -> None:
    bench = Bench(files("mon", "tue"), late=10)
    bench.see((A, 1000))
    assert bench.tick() is None, "the other one has not begun"
    bench.see((B, 50))
    assert bench.tick() == 40
    bench.see((A, 2000), (B, 60))
    assert bench.tick() == 50
    bench.end(1)
    assert bench.tick() == 1990, "what is read to its end holds nothing back"


def test_a_partition_that_is_only_slow_as_under_backpressure_holds_it_back() -> None:
    bench = Bench(files("fast", "slow"))
    bench.see((A, 100), (B, 7))
    assert bench.tick() == 7
    for micros in range(200, 1000, 100):
        bench.see((A, micros))
        assert bench.tick(60.0) is None


def test_equal_maxima_are_as_one_and_what_does_not_rise_is_not_issued() -> None:
    bench = Bench(files("a", "b"), late=5)
    bench.see((A, 30), (B, 30))
    assert bench.tick() == 25
    bench.see((A, 30), (B, 29))
    assert bench.tick() is None
    bench.see((A, 31))
    assert bench.tick() is None
    bench.see((B, 31))
    assert bench.tick() == 26


def test_a_partition_that_changes_hands_keeps_its_maximum_and_is_idle_no_more() -> None:
    bench = Bench(files("a", "b"))
    bench.see((A, 10), (B, 20))
    assert bench.tick() == 10
    bench.hear(0, PartitionsIdle((A,)))
    assert bench.tick() == 20
    bench.see((B, 500), worker=1)
    bench.hand_back(Split(0, "a", 5, 10))
    assert bench.tick() is None, "it may have more, for whoever reads it now"
    bench.see((A, 15), worker=1)
    assert bench.tick() is None
    bench.see((A, 300), worker=1)
    assert bench.tick() == 300


def test_what_was_handed_back_and_waits_for_a_reader_holds_it_back() -> None:
    bench = Bench(files("a", "b", "c", "d", "e"))
    bench.see(*((("split", number), 100 + number) for number in range(5)))
    assert bench.tick() == 100
    leaver = bench.holder(0)
    bench.roster.leaving = (0, 1)
    given = [split for split, worker in bench.lines.unread if worker == leaver]
    bench.roster.close([leaver])
    bench.hear(leaver, SplitsReturned(tuple(replace(split, start=3) for split in given)))
    assert {split.number for split, worker in bench.lines.unread if worker is None} >= {0}
    bench.see(*((("split", number), 200) for number in range(1, 5)))
    assert bench.tick() is None
    bench.roster.leaving = ()
    bench.lines.go_on()
    bench.end(0)
    assert bench.tick() == 200


def test_one_that_waits_in_the_pool_unread_may_have_anything() -> None:
    bench = Bench([Split(number, f"f{number}", 0, 1 << 30) for number in range(9)])
    given = {split.number for split, worker in bench.lines.unread if worker is not None}
    bench.see(*((("split", number), 100) for number in given))
    assert len(given) < 9 and bench.tick() is None


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_if_all_are_idle_it_is_where_the_greatest_is(order: tuple[Partition, Partition]) -> None:
    bench = Bench(files("a", "b"), late=5)
    bench.see((A, 45), (B, 25))
    assert bench.tick() == 20
    for each in order:
        bench.hear(0, PartitionsIdle((each,)))
        bench.tick()
    assert bench.all.micros == 40, "whichever was idle first"
    assert bench.all.status(bench.now).all_idle_seconds == 0.0  # type: ignore[union-attr]
    bench.see((B, 50))
    assert bench.tick() == 45, "what is idle does not count"
    assert bench.all.status(bench.now).all_idle_seconds is None  # type: ignore[union-attr]


def test_event_time_follows_the_clock_when_all_are_idle() -> None:
    operators = {"event_time": TimedOperator(5, frozenset([""]), advances=True)}
    bench = Bench(files("a"), operators=operators)
    bench.see((A, 105))
    assert bench.tick() == 100
    bench.hear(0, PartitionsIdle((A,)))
    assert bench.tick() is None
    assert bench.tick(2.0) == 100 + 2_000_000
    bench.see((A, 107))
    assert bench.tick() is None, "it never falls"
    bench.hear(0, PartitionsIdle((A,)))
    assert bench.tick() is None
    assert bench.tick(1.0) == 100 + 3_000_000, "it goes on from where it is"


def test_an_operator_that_is_behind_holds_it_back_when_all_are_idle() -> None:
    operators = {"orders": TimedOperator(0, frozenset([""])), "prices": TimedOperator(0, frozenset([""]))}
    bench = Bench(files("a"), operators=operators)
    bench.hear(0, MaximaSeen("orders", ((A, 50),)))
    bench.hear(0, MaximaSeen("prices", ((A, 70),)))
    bench.hear(0, PartitionsIdle((A,)))
    assert bench.tick() == 50


TOPIC = {"inputs": ("topic",), "sources": ("topic",)}
CLICKS = {"clicks": TimedOperator(5, frozenset({"topic"})), "errors": TimedOperator(20, frozenset({"topic"}))}


def found(bench: Bench, *names: str) -> list[Partition]:
    """Let the source of a bench find partitions; return them."""
    bench.lines.partitions.found(Discovered("topic", tuple(map(encode, names)), True))
    bench.lines.go_on()
    return [("partition", each.number) for each, _ in bench.lines.partitions.unread]


def test_a_branch_without_records_counts_as_far_as_the_others() -> None:
    bench = Bench([], operators=CLICKS, **TOPIC)
    a, b = found(bench, "a", "b")
    bench.hear(0, MaximaSeen("clicks", ((a, 100), (b, 300))))
    bench.hear(0, MaximaSeen("errors", ((b, 300),)))
    assert bench.tick() is None, "errors has no record of a"
    bench.hear(0, PartitionsIdle((a,), "errors"))
    assert bench.tick() == 80, "by the greatest out_of_order"
    bench.hear(0, MaximaSeen("clicks", ((a, 150),)))
    assert bench.tick() == 130
    bench.hear(0, MaximaSeen("errors", ((a, 140),)))
    bench.hear(0, MaximaSeen("clicks", ((a, 200),)))
    assert bench.tick() is None, "it is active again"
    bench.hear(0, PartitionsIdle((a,), "errors"))
    assert bench.tick() == 180
    status = bench.all.status(bench.now)
    assert status is not None and status.idle_partitions == (IdlePartition("topic", "'a'", 0.125, 0.00016, "errors"),)
    assert status.held_by is not None and status.held_by.operator == "clicks" and status.idle == ()


def test_of_three_branches_the_least_that_is_not_idle_decides() -> None:
    operators = {name: TimedOperator(0, frozenset({"topic"})) for name in ("a", "b", "c")}
    bench = Bench([], operators=operators, **TOPIC)
    (only,) = found(bench, "only")
    for name, micros in (("a", 100), ("b", 70), ("c", 5)):
        bench.hear(0, MaximaSeen(name, ((only, micros),)))
    assert bench.tick() == 5
    bench.hear(0, PartitionsIdle((only,), "c"))
    assert bench.tick() == 70
    bench.hear(0, PartitionsIdle((only,), "b"))
    assert bench.tick() == 100
    bench.hear(0, PartitionsIdle((only,), "a"))
    bench.hear(0, MaximaSeen("b", ((only, 120),)))
    assert bench.tick() == 120


def test_branches_that_were_idle_before_their_partition_do_not_hold_back_the_job() -> None:
    advancing = {name: replace(each, advances=True) for name, each in CLICKS.items()}
    bench = Bench([], operators=advancing, **TOPIC)
    (only,) = found(bench, "only")
    bench.hear(0, MaximaSeen("errors", ((only, 50),)))
    bench.hear(0, MaximaSeen("clicks", ((only, 1_000),)))
    bench.hear(0, PartitionsIdle((only,), "errors"))
    assert bench.tick() == 980
    bench.hear(0, PartitionsIdle((only,)))
    assert bench.tick() is None
    assert bench.tick(0.125) == 125_980, "the clock, from the greatest bound of the least operator"


@pytest.mark.parametrize("both", [True, False])
def test_a_job_that_resumes_follows_the_clock_without_a_record(both: bool) -> None:
    operators = {name: replace(each, advances=both or name == "clicks") for name, each in CLICKS.items()}
    bench = Bench([], operators=operators, durable=Durable((), 1.0, 7, 40, watermark=980), **TOPIC)
    (only,) = found(bench, "only")
    bench.hear(0, PartitionsIdle((only,)))
    bench.tick()
    assert bench.tick(0.5) == (500_980 if both else None), "an operator without the argument may have had records"


def test_an_operator_that_does_not_follow_the_clock_is_named() -> None:
    bench = Bench([], operators={**CLICKS, "clicks": replace(CLICKS["clicks"], advances=True)}, **TOPIC)
    (only,) = found(bench, "only")
    bench.hear(0, MaximaSeen("clicks", ((only, 1_000),)))
    bench.hear(0, MaximaSeen("errors", ((only, 500),)))
    bench.hear(0, PartitionsIdle((only,)))
    assert bench.tick() == 980, "all that was read is processed"
    assert bench.tick(60.0) is None
    status = bench.all.status(bench.now)
    assert status is not None and status.stands_at == "errors"
    bench.hear(0, MaximaSeen("errors", ((only, 600),)))
    bench.tick()
    assert bench.all.status(bench.now).stands_at is None  # type: ignore[union-attr]


def test_a_branch_is_active_again_when_its_partition_changes_hands() -> None:
    bench = Bench([], operators=CLICKS, **TOPIC)
    (only,) = found(bench, "only")
    bench.hear(0, MaximaSeen("clicks", ((only, 1_000),)))
    bench.hear(0, PartitionsIdle((only,), "errors"))
    successor = Bench([], operators=CLICKS, **TOPIC)
    hand_over(bench, successor)
    successor.all.resume(deepcopy(bench.all.state(bench.now)))
    assert successor.tick() == 980, "the next coordinator knows it"
    (partition,) = [each for each, _ in bench.lines.partitions.unread]
    bench.all.passed_on(PartitionsRevoked((partition,)), bench.now)
    assert bench.tick() is None


def test_a_branch_of_a_query_is_idle_when_its_batches_bring_no_record_for_the_timeout() -> None:
    bench = Bench([], operators=CLICKS, inputs=("topic",), queries=1, spark=("topic",), idle_seconds=2.0)
    for batch in range(6):
        bench.commits.issue(CommitBatch("topic-q", "run", batch, {0: (0, 1, 10)}))
        for name in CLICKS if batch == 0 else ("clicks",):
            bench.hear(0, MaximaSeen(name, ((("spark", "topic-q"), 100 * (batch + 1)),)))
        bench.hear(0, CommitTaken("topic-q", batch))
        assert bench.tick(1.0) == {0: 80, 2: 280, 3: 380, 4: 480, 5: 580}.get(batch), batch
    status = bench.all.status(bench.now)
    assert status is not None and [each.operator for each in status.idle_partitions] == ["errors"]


def test_one_that_was_never_read_and_is_idle_does_not_count() -> None:
    bench = Bench(files("a", "empty but for what a filter drops"))
    bench.see((A, 10))
    bench.hear(1, PartitionsIdle((B,)))
    assert bench.tick() == 10


def test_a_reading_order_tells_that_files_to_come_have_nothing_before_the_first_record_of_one_before() -> None:
    names = [f"2026-01-{day:02}" for day in range(1, 9)]
    bench = Bench([Split(number, name, 0, 1 << 30) for number, name in enumerate(names)], late=2, ordered=("",))
    given = [split.number for split, worker in bench.lines.unread if worker is not None]
    assert sorted(given) == [0, 1, 2, 3], "the first ones, to each of the two workers the next"
    reader = bench.holder(0)
    bench.see((A, 105), worker=1 - reader, first=True)
    assert bench.tick() is None, "this worker was not given its beginning"
    bench.hear(reader, MaximaSeen("event_time", ((A, 107),), ((A, 100),)))
    assert bench.tick() == 98
    status = bench.all.status(bench.now)
    assert status is not None and isinstance(held := status.held_by, HoldsBack)
    assert (held.maximum, held.bound, held.in_order) == (None, 98, True) and held.partition in names[1:3]
    bench.hear(bench.holder(1), MaximaSeen("event_time", ((B, 300),), ((B, 200),)))
    bench.see((A, 250))
    assert bench.tick() == 198, "the second one has begun"
    bench.hear(bench.holder(3), MaximaSeen("event_time", ((("split", 3), 900),), ((("split", 3), 800),)))
    bench.see((A, 700), (B, 700))
    assert bench.tick() is None, "the third one may have what is later than the first record of the second"


def test_files_in_an_order_that_have_not_begun_are_one_for_event_time() -> None:
    bench = Bench([Split(number, f"{number:05}", 0, 1 << 30) for number in range(5000)], ordered=("",))
    seen = list(bench.all._unread.all(bench.all._has_begun))
    assert len(seen) == 5, "four are given, one stands for all that follow"


def test_a_source_may_tell_a_bound_and_until_it_has_told_its_partitions_nothing_is_known() -> None:
    bench = Bench([], inputs=("topic",), sources=("topic",))
    assert bench.tick() is None
    bench.lines.partitions.found(Discovered("topic", (b"a", b"b"), False, (70, 40)))
    assert bench.tick() == 40
    bench.see((("partition", -2), 90))
    assert bench.tick() == 70
    bench.see((("partition", -1), 95))
    assert bench.tick() == 90
    bench.hear(0, PartitionsRevoked((SourcePartition(-1, "topic", b"a"),)))
    bench.lines.partitions.found(Discovered("topic", (b"c",), True))
    assert bench.tick() is None, "the new one may have anything"
    for number in (-1, -2, -3):
        bench.hear(0, SplitRead(number))  # from the worker that has it
    assert bench.tick() is None and bench.all.status(bench.now).held_by is None  # type: ignore[union-attr]


def leave(bench: Bench, number: int, **maxima: int) -> None:
    """Report that a partition is gone, with the maxima of its operators."""
    end = SourcePartition(number, "topic", encode(number), maxima=tuple(maxima.items()), ended_in=ANEW)
    bench.hear(0, SplitRead(number, (end,)))


def test_partitions_that_are_gone_count_as_idle_ones() -> None:
    bench, other = (Bench([], late=5, idle_seconds=2.0, **TOPIC) for _ in range(2))
    found(bench, "a", "b", "c")
    bench.see((("partition", -1), 105), (("partition", -2), 55), (("partition", -3), 25))
    assert bench.tick() == 20
    leave(bench, -3, event_time=35)
    assert bench.tick() == 50, "others are not idle"
    leave(bench, -2, event_time=65)
    assert bench.tick() == 100
    bench.hear(0, PartitionsIdle((("partition", -1),)))
    assert bench.tick() is None
    leave(bench, -1, event_time=115)
    state = bench.all.state(bench.now)
    hand_over(bench, other)
    other.all.resume(state)
    for each in (bench, other):
        assert each.tick(0.0) is None
        assert each.tick(1.0) is None, "the second one was not idle, and its source may go on"
        assert each.tick(1.0) == 110, "the greatest bound, though no partition is left"
    assert bench.all.status(bench.now).held_by is None  # type: ignore[union-attr]


def test_event_time_follows_the_clock_when_all_partitions_are_gone() -> None:
    bench = Bench([], operators={"clicks": TimedOperator(0, frozenset({"topic"}), advances=True)}, sources=("topic",))
    found(bench, "a")
    bench.hear(0, MaximaSeen("clicks", ((("partition", -1), 100),)))
    assert bench.tick() == 100
    bench.hear(0, PartitionsIdle((("partition", -1),)))
    leave(bench, -1, clicks=100)
    assert bench.tick() is None
    assert bench.tick(2.0) == 100 + 2_000_000


def test_branch_of_a_partition_that_is_gone_has_come_as_far_as_the_others() -> None:
    bench = Bench([], operators=CLICKS, sources=("topic",))
    found(bench, "a", "b")
    for operator, a, b in (("clicks", 100, 50), ("errors", 30, 40)):
        bench.hear(0, MaximaSeen(operator, ((("partition", -1), a), (("partition", -2), b))))
    assert bench.tick() == 10
    leave(bench, -1, clicks=100, errors=30)
    bench.hear(0, PartitionsIdle((("partition", -2),)))
    bench.tick()
    assert bench.tick(5.0) == 80


def test_a_query_of_sparks_counts_when_its_batches_are_wholly_taken_in() -> None:
    query, both = "orders-07f3", {0: (0, 1, 10), 1: (1, 2, 10)}
    bench = Bench([], inputs=("orders",), spark=("orders",), queries=1)

    def commit(batch: int) -> None:
        bench.commits.issue(CommitBatch(query, "run", batch, both))

    commit(0)
    bench.see((("spark", query), 100), worker=0)
    bench.hear(0, CommitTaken(query, 0))
    assert bench.tick() is None, "the other worker may have less"
    bench.see((("spark", query), 60), worker=1)
    bench.hear(1, CommitTaken(query, 0))
    assert bench.tick() == 100
    commit(1)
    bench.see((("spark", query), 200), worker=0)
    commit(2)
    bench.see((("spark", query), 300), worker=0)
    for worker in (0, 1):
        bench.hear(worker, CommitTaken(query, 1))
    assert bench.tick() == 200, "of the third batch it does not count yet, though it may be of the second"
    bench.commits.ask(Asked("spark", Request(1, SourceEnded(query))))
    assert bench.tick() is None
    for worker in (0, 1):
        bench.hear(worker, CommitTaken(query, 2))
    assert bench.commits.over and bench.tick() is None, "it is over: nothing is left that counts"


def test_a_query_is_idle_once_it_has_begun_and_nothing_is_to_be_taken_in_for_the_timeout() -> None:
    bench = Bench(files("a"), inputs=("", "orders"), spark=("orders",), queries=1, idle_seconds=5.0)
    bench.see((A, 10))
    assert bench.tick(3600.0) is None, "Spark has not begun"
    bench.commits.issue(CommitBatch("orders-1", "run", 0, {0: (1, 1, 10)}))
    bench.see((("spark", "orders-1"), 3), worker=1)
    assert bench.tick(60.0) is None, "a worker is still to take the batch in"
    bench.hear(1, CommitTaken("orders-1", 0))
    assert bench.tick(4.0) == 3
    assert bench.tick(2.0) == 10
    status = bench.all.status(bench.now)
    assert status is not None and status.idle_partitions == (IdlePartition("orders", "the query", 1.0, 7e-06),)


def test_whoever_goes_on_knows_what_was_seen_and_how_long_the_job_has_run() -> None:
    inputs = ("", "orders")
    bench = Bench(files("a", "b"), inputs=inputs, spark=("orders",), queries=1, idle_seconds=5.0)
    bench.all.begin(0.0)
    bench.see((A, 10), (B, 20), (("spark", "orders-1"), 7))
    bench.hear(1, MaximaSeen("event_time", ((B, 20),), late=((B, ((4, 2),), 4),)))
    bench.commits.issue(CommitBatch("orders-1", "run", 0, {}))
    bench.hear(1, PartitionsIdle((B,)))
    bench.hear(1, ClockWanted(True))
    assert bench.tick(1.0) == 7
    state = bench.all.state(2.0)
    other = Bench([], inputs=inputs)
    hand_over(bench, other)
    other.all.resume(state)
    other.now = 100.0
    assert other.tick(0.0) is None and other.all.clock(100.0) == 2_000_000, "its clock begins where that one ended"
    status = other.all.status(101.0)
    assert status is not None and status.idle_partitions == (IdlePartition("", "b", 3.0, 0.0),), "in both parts"
    assert status.lateness == (PartitionLateness("event_time", "", "b", 2, 4e-06, 4e-06, 4e-06),)
    assert other.tick(6.0) == 10, "the query is idle by now"


def test_of_partitions_that_come_and_go_for_ever_a_bounded_number_is_kept_and_the_greatest_of_all() -> None:
    bench = Bench(files("slow", "short"), inputs=("", "topic"), sources=("topic",))
    bench.see((A, 7), (B, 3))
    bench.end(1)
    bench.lines.partitions.found(Discovered("topic", (encode("open"),), False, (50,)))
    bench.see((("partition", -1), 90))
    bench.hear(1, PartitionsIdle((("partition", -1),)))
    for number in range(-2, -10_002, -1):
        partition = "partition", number
        bench.lines.partitions.found(Discovered("topic", (encode(number),), False, (60,)))
        bench.see((partition, 1_000 - number))
        bench.hear(0, SplitRead(number))
        bench.see((partition, 1_000))
        bench.hear(0, PartitionsIdle((partition,)))
        bench.out.clear()
    kept = len(bench.all._maxima), len(bench.all._idle), len(bench.lines.partitions.state.bounds)
    assert sum(kept) <= KEPT_MIN + 10, f"maxima, idle ones and bounds: {kept}"
    assert bench.tick() == 7
    state = bench.all.state(0.0)
    assert state.maxima == {("event_time", A): 7, ("event_time", ("partition", -1)): 90}
    assert (state.greatest, state.idle) == (11_001, {("partition", -1): 0.0})
    assert bench.all.status(0.0).lag_seconds == (11_001 - 7) / 1_000_000  # type: ignore[union-attr]
    other = Bench([], inputs=("", "topic"))
    hand_over(bench, other)
    other.all.resume(state)
    assert other.all.status(0.0).lag_seconds == (11_001 - 7) / 1_000_000  # type: ignore[union-attr]
    bench.end(0)
    assert bench.tick() == 90, "the other one is idle, so all are"
    bench.see((("partition", -1), 80), worker=1)
    assert bench.tick() is None and bench.all.micros == 90, "its greatest was kept"


def test_what_the_launcher_reads_is_a_partition_until_it_has_ended() -> None:
    bench = Bench([], inputs=("", "clicks"), pushed=(("pushed", ""), ("items", "clicks")))
    bench.see((("pushed", ""), 50))
    assert bench.tick() is None
    bench.see((("items", "clicks"), 40))
    assert bench.tick() == 40
    bench.hear(0, PartitionsIdle((("items", "clicks"),)))
    assert bench.tick() == 50
    bench.hear(0, PushedEnded())
    assert bench.tick() is None


def test_each_operator_counts_by_the_inputs_that_it_follows() -> None:
    operators = {"orders": TimedOperator(0, frozenset(["o"])), "prices": TimedOperator(5, frozenset(["p"]))}
    splits = [Split(0, "o.json", 0, 10, "o"), Split(1, "p.json", 0, 10, "p"), Split(2, "x.json", 0, 10, "x")]
    bench = Bench(splits, operators=operators)
    bench.hear(0, MaximaSeen("orders", ((A, 100),)))
    assert bench.tick() is None
    bench.hear(0, MaximaSeen("prices", ((B, 90),)))
    assert bench.tick() == 85, "what nobody takes timestamps of does not count"


def test_at_most_one_is_issued_each_period_and_none_while_it_may_not_be() -> None:
    bench = Bench(files("a"))
    bench.see((A, 10))
    assert bench.tick() == 10
    bench.see((A, 20))
    assert bench.tick(PERIOD_SECONDS / 2) is None
    assert bench.end_epoch(may_issue=False) == []
    assert bench.tick(10.0) == 20


def test_the_clock_is_read_while_a_worker_that_is_there_has_timers_by_it() -> None:
    bench = Bench(files("a"))
    bench.all.begin(0.0)

    def read(seconds: float) -> list[int]:
        bench.now += seconds
        return [each.micros for each in bench.end_epoch() if isinstance(each, Clock)]

    assert read(1.0) == []
    bench.hear(1, ClockWanted(True))
    bench.hear(0, ClockWanted(True))
    assert read(0.5) == [1_500_000] and read(0.05) == [] and read(0.05) == [1_600_000]
    assert read(0.05) == [] and bench.all.told == 1_600_000, "a checkpoint that began now would have what was told"
    assert bench.all.state(bench.now).told == 1_600_000 and bench.all.clock(bench.now) == 1_650_000
    bench.now += 1.0
    bench.end_epoch(may_issue=False)
    assert bench.all.clock_due > bench.now, "it is put off while it may not be told, and no epoch ends for it"
    bench.hear(0, ClockWanted(False))
    assert read(1.0) == [3_650_000]
    bench.roster.left([1], replace_members(bench.roster, 0))
    assert read(1.0) == [], "who has gone wants nothing"


def replace_members(roster: Roster, *ids: int) -> Any:
    return replace(roster.members, version=1, workers=frozenset(ids))


def test_the_end_closes_everything_also_without_timestamps() -> None:
    assert Bench(files("a")).all.at_end(False) == [Watermark(INFINITE)]
    bench = Bench(files("a"), operators={})
    assert bench.all.at_end(False) == [Watermark(INFINITE)] and bench.all.status(0.0) is None
    assert bench.all.has_all(), "no source has seen a timestamp"


def test_at_the_end_the_watermark_is_the_greatest_bound() -> None:
    bench = Bench(files("a", "b"), late=5)
    bench.see((A, 300), worker=0)
    bench.see((B, 100), worker=1)
    assert bench.tick() == 95
    bench.out.clear()
    assert not bench.all.has_all() and issued(bench.out) == [TellMaxima()]
    for worker in (0, 1):
        assert not bench.all.has_all()
        bench.hear(worker, MaximaTold())
    assert bench.all.has_all() and len(issued(bench.out)) == 1, "it is asked once"
    bench.out.clear()
    assert bench.all.at_end(False) == [Watermark(INFINITE, 300)]
    assert issued(bench.out) == [Watermark(295)] and bench.all.micros == 295


def test_a_stop_does_not_raise_the_watermark_before_it_closes_all() -> None:
    bench = Bench(files("a", "b"), late=5)
    bench.see((A, 300), worker=0)
    bench.out.clear()
    assert bench.all.at_end(True) == [Watermark(INFINITE, 300, by_stop=True)] and not bench.out
    bench.all.end.drains = False
    assert bench.all.at_end(True) == [] and not bench.all.is_over


def test_with_a_store_the_end_closes_nothing_unless_it_is_told_to() -> None:
    for closes in (False, True):
        bench = Bench(files("a"), durable=Durable((), 1.0, 7, 40, watermark=1000, bound=1200), closes=closes)
        bench.out.clear()
        assert bench.all.at_end(False) == ([Watermark(INFINITE)] if closes else [])
        assert issued(bench.out) == [Watermark(1200)], "the greatest bound of all attempts"


def test_a_watermark_that_a_query_gives_is_shown_and_kept() -> None:
    bench = Bench([], operators={}, queries=1)
    assert bench.all.status(0.0) is None and bench.all.micros is None
    bench.stream.now = 3.0
    bench.commits.issue(CommitBatch("rows-q", "run", 0, {}, is_whole=True, watermark=5_000_000))
    bench.commits.issue(CommitBatch("rows-q", "run", 1, {}, is_whole=True, watermark=4_000_000))
    status = bench.all.status(5.0)
    assert status is not None and (status.micros, status.age_seconds, status.held_by) == (5_000_000, 2.0, None)
    assert bench.all.state(5.0).micros == 5_000_000, "a checkpoint has it"
    assert bench.all.at_end(False) == [], "timers stay, because the query may continue"


def test_a_status_shows_who_holds_it_back_and_why() -> None:
    bench = Bench(files("a", "b"), late=1_000_000)
    bench.see((A, 10_000_000), worker=0)
    status = bench.all.status(2.5)
    assert status is not None and status.micros is None and status.lag_seconds is None
    (reader,) = [worker for split, worker in bench.lines.unread if split.number == 1]
    assert status.held_by == HoldsBack("event_time", "", "b", None, reader)
    bench.see((B, 4_000_000), worker=1)
    assert bench.tick() == 3_000_000
    bench.hear(0, PartitionsIdle((A,)))
    status = bench.all.status(bench.now + 2.0)
    assert status is not None and (status.micros, status.age_seconds, status.lag_seconds) == (3_000_000, 2.0, 7.0)
    assert status.held_by == HoldsBack("event_time", "", "b", 4_000_000, reader, lag_seconds=6.0)
    assert status.idle_partitions == (IdlePartition("", "a", 2.0, 0.0),) and status.idle == ("a",)
    shown = Bench([], inputs=("topic",), sources=("topic",))
    found = Discovered("topic", (encode(("orders", 3)),), False)
    assert shown.all.status(0.0).held_by.partition == "partitions that it has not reported yet"  # type: ignore[union-attr]
    shown.lines.partitions.found(found)
    assert shown.all.status(0.0).held_by.partition == "('orders', 3)"  # type: ignore[union-attr]


# Random jobs ---------------------------------------------------------------------------


@dataclass
class Reader:
    """A worker: its splits, the control frontier that it sees, and what its operator has seen but not reported."""

    sees: int = 0  # the control frontier
    splits: deque[Split] = field(default_factory=deque)
    unseen: deque[tuple[int, int]] = field(default_factory=deque)  # (split, timestamp) on the way to the operator
    maxima: dict[int, int] = field(default_factory=dict)
    firsts: dict[int, int] = field(default_factory=dict)  # of splits without an earlier report; not yet reported
    known: set[int] = field(default_factory=set)
    mail: deque[Any] = field(default_factory=deque)  # to the coordinator, in order


class RandomJob:
    """Two workers that read files, obey commands and report with delays, in an order drawn by dice."""

    def __init__(self, seed: int, ordered: bool, late: int) -> None:
        self.dice, self.late = Random(seed), late
        apart = self.dice.choice((0, 20)) if ordered else 0
        self.records = [self._timestamps(number * apart) for number in range(self.dice.randint(2, 8))]
        splits = [Split(n, f"{n}", 0, len(each)) for n, each in enumerate(self.records)]
        self.rotates = self.dice.random() < 0.7
        self.revokes = self.dice.choice((0.0, 0.2, 1.0))
        more = {"ordered": ("",)} if ordered else {}
        self.bench = Bench(splits, late, **more)
        self.readers = [Reader(), Reader()]
        self.commands: list[tuple[int, Any]] = []  # (epoch, command)
        self.obeyed = [0, 0]
        self.issued: list[tuple[int, int]] = []  # (epoch, watermark)
        self._note(self.bench.out, 0)

    def _timestamps(self, start: int) -> list[int]:
        """Draw a file's timestamps: each is at most `late` below an earlier one; the first is the least, `start`."""
        now, found = start + self.late, [start]
        for _ in range(self.dice.randint(0, 50)):
            now += self.dice.choice((0, 1, 5))
            found.append(now - self.dice.choice((0, self.late)))
        return found

    def _note(self, said: list[Any], epoch: int) -> None:
        for each in said:
            if isinstance(each, Inject):
                self.commands.append((epoch, each.command.command))
                if isinstance(each.command.command, Watermark):
                    self.issued.append((epoch, each.command.command.micros))
        said.clear()

    def step(self) -> None:
        index = self.dice.randrange(2)
        reader, choice = self.readers[index], self.dice.randrange(10)
        if choice == 0:
            self._obey(index, reader)
        elif choice in (1, 2):
            self._read(index, reader)
        elif choice == 3:
            self._operate(reader, self.dice.randint(1, 10))
        elif choice in (4, 5):
            self._report(reader)
        elif choice in (6, 7) and reader.mail:
            self._hear(index, reader)
        elif choice == 8:
            self._tick()
        elif choice == 9 and self.dice.random() < self.revokes:
            self._revoke(index)

    def _obey(self, index: int, reader: Reader) -> None:
        reader.sees = self.dice.randint(reader.sees, self.bench.stream.epoch)
        while self.obeyed[index] < len(self.commands) and self.commands[self.obeyed[index]][0] < reader.sees:
            command = self.commands[self.obeyed[index]][1]
            self.obeyed[index] += 1
            match command:
                case AssignSplits(given):
                    reader.splits.extend(given.get(index, ()))
                case RevokeSplits(numbers) if index in numbers:
                    back = [each for each in reader.splits if each.number in numbers[index]]
                    reader.splits = deque(each for each in reader.splits if each not in back)
                    reader.mail.append(SplitsRevoked(tuple(back)))

    def _read(self, index: int, reader: Reader) -> None:
        if not reader.splits or not reader.sees:
            return
        if self.rotates:  # as partitions of a source are read; files are read one after the other
            reader.splits.rotate(self.dice.randrange(3))
        split = reader.splits.popleft()
        end = min(split.end, split.start + self.dice.randint(1, 3))
        stamp = reader.sees - 1
        w = max((micros for epoch, micros in self.issued if epoch < stamp), default=None)
        for micros in self.records[split.number][split.start : end]:
            assert w is None or micros >= w, f"{micros} of file {split.number} at epoch {stamp} is late: {self.issued}"
            reader.unseen.append((split.number, micros))
        if end == split.end:
            reader.mail.append(SplitRead(split.number))
        else:
            reader.splits.appendleft(replace(split, start=end))

    def _revoke(self, index: int) -> None:
        """Let a worker hand back some of its splits, as if another worker lacked one."""
        lines, held = self.bench.lines, [*self.bench.lines.state.held.get(index, ())]
        if held and index not in lines._revoked:
            lines._revoked[index] = numbers = tuple(self.dice.sample(held, self.dice.randint(1, len(held))))
            epoch = self.bench.stream.issue(RevokeSplits({index: numbers}))
            self._note(self.bench.out, epoch)

    def _operate(self, reader: Reader, count: int) -> None:
        for _ in range(min(count, len(reader.unseen))):
            number, micros = reader.unseen.popleft()
            if number not in reader.known:
                reader.known.add(number)
                reader.firsts[number] = micros
            reader.maxima[number] = max(micros, reader.maxima.get(number, micros))

    def _report(self, reader: Reader) -> None:
        if reader.maxima:
            maxima = tuple((("split", number), micros) for number, micros in reader.maxima.items())
            firsts = tuple((("split", number), micros) for number, micros in reader.firsts.items())
            reader.mail.append(MaximaSeen("event_time", maxima, firsts))
            reader.maxima, reader.firsts = {}, {}

    def _hear(self, index: int, reader: Reader) -> None:
        epoch = self.bench.stream.epoch
        self.bench.hear(index, reader.mail.popleft())
        self._note(self.bench.out, epoch)
        self.bench.lines._check()

    def _tick(self) -> None:
        self.bench.now += 2 * PERIOD_SECONDS
        epoch = self.bench.stream.epoch
        self.bench.end_epoch()
        self._note(self.bench.out, epoch)

    def settle(self) -> None:
        """Report all that the operators have seen."""
        for index, reader in enumerate(self.readers):
            self._operate(reader, len(reader.unseen))
            self._report(reader)
            while reader.mail:
                self._hear(index, reader)
        self._tick()
        self._tick()


@given(seed=st.integers(0, 1 << 32), ordered=st.booleans(), late=st.sampled_from((0, 7)), steps=st.integers(0, 600))
def test_no_record_is_late_that_comes_within_its_bound_whatever_changes_hands_and_is_reported_late(
    seed: int, ordered: bool, late: int, steps: int
) -> None:
    issued = []
    for kept in (0, KEPT_MIN):  # splits read to their ends are forgotten soon, or never; some are in the pool
        with patch.object(lines_to_read, "HELD_BYTES", 1), patch.object(watermarks, "KEPT_MIN", kept):
            issued.append(play(seed, ordered, late, steps))
    assert issued[0] == issued[1], "nothing is forgotten that counts"


def play(seed: int, ordered: bool, late: int, steps: int) -> list[tuple[int, int]]:
    """Return the watermarks that are issued, with their epochs."""
    job = RandomJob(seed, ordered, late)
    for _ in range(steps):
        job.step()
    job.settle()
    assert [micros for _, micros in job.issued] == sorted({micros for _, micros in job.issued}), "each is higher"
    read: dict[int, int] = dict.fromkeys(range(len(job.records)), 0)
    for split, _ in job.bench.lines.unread:
        read[split.number] = split.start
    for reader in job.readers:
        for split in reader.splits:
            read[split.number] = max(split.start, read[split.number])
    unread = [split.number for split, _ in job.bench.lines.unread]
    if unread and not ordered and all(read[number] for number in unread):
        w = min(max(job.records[number][: read[number]]) for number in unread) - late
        issued = max((micros for _, micros in job.issued), default=None)
        assert issued is not None and issued >= w, "what all partitions have passed is known"
    return job.issued


def in_parts(natural: bool) -> "Bench":
    """Return a job that reads part-1 to part-12 in an order, each from its number times 100 on."""
    splits = [Split(number, f"part-{number}", 0, 1 << 30, natural=natural) for number in range(1, 13)]
    return Bench(splits, late=2, ordered=("",))


def begin(bench: "Bench", number: int) -> None:
    """Report the first record of a file."""
    seen = ((("split", number), 100 * number),)
    bench.hear(bench.holder(number), MaximaSeen("event_time", seen, seen))


@pytest.mark.parametrize("natural", [False, True])
def test_files_that_break_their_order_are_reported_once(natural: bool) -> None:
    bench, begun, told = in_parts(natural), list[int](), list[ToldOnce]()
    while len(begun) < 12:
        given = [split.number for split, worker in bench.lines.unread if worker is not None]
        begin(bench, given[0])
        told += [each for each in bench.out if isinstance(each, ToldOnce)]
        bench.out.clear()
        bench.end(given[0])
        begun.append(given[0])
    assert len({each.about for each in told}) == (not natural)
    assert natural or says(told[0].text, "begins earlier than 'part-1", "before it in the order", "?ordered-by=natural")


def test_numbers_in_names_bound_files_to_come() -> None:
    bench = in_parts(natural=True)
    given = sorted(split.number for split, worker in bench.lines.unread if worker is not None)
    assert given == [1, 2, 3, 4]
    for number in given:
        begin(bench, number)
    bench.see(*((("split", number), 1000) for number in given))
    assert bench.tick() == 398, "the fifth one has nothing before the first record of the fourth"
