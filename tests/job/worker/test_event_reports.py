"""A worker's reports of event time: maxima by partition, and whether a partition is idle or only held back."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow.control.messages import InputNames
from megaflow.control.watermark_messages import MaximaSeen, Partition, PartitionsIdle
from megaflow.errors import BuildError
from megaflow.event_time.lateness import bucket_of
from megaflow.job.spec import ChildSpec, Founder, JobSpec, PickledFunction
from megaflow.job.worker.reading.event_reports import LAST_MAX, EventReports, event_time_of
from megaflow.megaphone.base.event_inputs import EventTimes, carries
from megaflow.megaphone.base.event_unit import EventUnit
from megaflow.program import example
from megaflow.timely.dataflow.partition_tag import Tagged
from tests.examples import many
from tests.words import says

A: Partition = ("split", 1)
B: Partition = ("partition", -2)
C: Partition = ("split", 3)
SECOND = 1_000_000


class Bench:
    """The reports of a source whose lines are timestamps. Two operators take those from 0 and from 100 upwards.

    The test sets the clock. The timeout is one second.
    """

    def __init__(self) -> None:
        self.now = 10.0
        self.epoch = 0
        self.said: list[Any] = []
        self.empty: dict[Partition, float] = {}
        times = EventTimes()

        def build(scope: Any) -> None:
            stream = scope.to_stream([])
            for name in ("all", "late"):
                stream.event_time(lambda x: x, name=name)
            times.operators.update(scope.ref.graph.extension(EventTimes).operators)

        example(build)
        self.operators = times.operators
        self.reports = EventReports(times, self.said.append, 1.0)

    def read(self, partition: Partition, *timestamps: int) -> list[Any]:
        """Read a batch, which then waits in a queue."""
        return self.reports.tagged(list(timestamps), partition, self.epoch, self.now)

    def work_off(self, batch: list[Any]) -> None:
        """Let the operators see the batch."""
        for name, least in (("all", 0), ("late", 100)):
            clock = self.operators[name].clock
            to_stamp, greatest, below = clock.begin(batch)
            stamps = [to_stamp(record, record) for record in batch if record >= least]
            for stamp in stamps:
                if stamp < greatest:
                    below(stamp, greatest)
                greatest = max(stamp, greatest)
            clock.end(self.epoch, batch, greatest, bool(stamps))

    def settle(self, seconds: float = 0.05, frontier: int | None = None, is_held: bool = False) -> list[Any]:
        """Let time pass; return the reports. The dataflow is empty, unless it is held."""
        self.now += seconds
        self.said.clear()
        self.reports.settle(self.now, 0 if is_held else self.epoch + 1, self._empty)
        return list(self.said)

    def _empty(self, now: float) -> Iterable[tuple[Partition, float]]:
        return self.empty.items()


def test_the_greatest_of_each_partition_is_told_once_and_the_first_of_a_file_with_it() -> None:
    bench = Bench()
    for partition, timestamps in ((A, (3, 5, 4)), (B, (200, 1)), (C, (201, 2)), (A, (2,))):
        bench.work_off(bench.read(partition, *timestamps))
    late = (A, ((bucket_of(SECOND), 1), (bucket_of(3 * SECOND), 1)), 3 * SECOND), *(
        (each, ((bucket_of(199 * SECOND), 1),), 199 * SECOND) for each in (B, C)
    )
    assert bench.settle() == [
        MaximaSeen(
            "all", ((A, 5 * SECOND), (B, 200 * SECOND), (C, 201 * SECOND)), ((A, 3 * SECOND), (C, 201 * SECOND)), late
        ),
        MaximaSeen("late", ((B, 200 * SECOND), (C, 201 * SECOND)), ((C, 201 * SECOND),)),
    ]
    assert bench.settle() == []
    bench.work_off(bench.read(A, 1))
    late = ((A, ((bucket_of(4 * SECOND), 1),), 4 * SECOND),)
    assert bench.settle() == [MaximaSeen("all", ((A, 5 * SECOND),), (), late)], "whether greater than before or not"


def test_reports_keep_their_distance() -> None:
    bench = Bench()
    bench.work_off(bench.read(A, 1))
    assert len(bench.settle()) == 1
    bench.work_off(bench.read(A, 2))
    assert bench.settle(0.04) == []
    assert bench.settle(0.02) == [MaximaSeen("all", ((A, 2 * SECOND),))]


def test_what_has_no_origin_is_not_told_of() -> None:
    bench = Bench()
    bench.work_off([1, 2])
    assert bench.settle() == []


def test_one_that_had_nothing_to_read_for_the_timeout_is_idle_and_that_is_said_once() -> None:
    bench = Bench()
    bench.empty[B] = bench.now
    assert bench.settle(0.9) == []
    assert bench.settle(0.2) == [PartitionsIdle((B,))]
    assert bench.settle(5.0) == []


def test_one_is_idle_again_after_a_record_of_it_has_come() -> None:
    bench = Bench()
    bench.empty[B] = bench.now
    assert bench.settle(1.0) == [PartitionsIdle((B,))]
    del bench.empty[B]
    bench.work_off(bench.read(B, 7))
    assert bench.settle() == [MaximaSeen("all", ((B, 7 * SECOND),))]
    bench.empty[B] = bench.now
    assert bench.settle(0.9) == []
    assert bench.settle(0.2) == [PartitionsIdle((B,))]


def test_one_of_which_no_record_comes_to_an_operator_is_idle() -> None:
    bench = Bench()
    for _ in range(10):
        bench.work_off(bench.read(A, -1))
        assert bench.settle(0.1) == []
    bench.work_off(bench.read(A, -1))
    assert bench.settle() == []
    bench.work_off(bench.read(A, -1))
    assert bench.settle() == [PartitionsIdle((A,))]


def test_one_of_which_records_come_to_one_of_two_operators_is_not_idle() -> None:
    bench = Bench()
    for _ in range(30):
        bench.work_off(bench.read(A, 1))
        assert [type(each) for each in bench.settle(0.1)] == [MaximaSeen], "a file that ends"


def test_one_of_which_records_come_to_one_of_two_operators_is_idle_at_the_other() -> None:
    bench = Bench()
    bench.work_off(bench.read(B, 1))
    bench.settle(0.125)
    for _ in range(7):
        bench.work_off(bench.read(B, 2))
        assert [type(each) for each in bench.settle(0.125)] == [MaximaSeen]
    bench.work_off(bench.read(B, 3))
    assert bench.settle(0.125)[1:] == [PartitionsIdle((B,), "late")]
    bench.work_off(bench.read(B, 4))
    assert [type(each) for each in bench.settle(0.125)] == [MaximaSeen], "this is reported once"
    bench.work_off(bench.read(B, 100))
    bench.settle(0.125)
    bench.read(B, 101)
    for _ in range(30):
        assert bench.settle(0.1) == [], "the partition was read for a moment only"
    bench.empty[B] = bench.now - 1.0
    assert bench.settle() == [PartitionsIdle((B,))], "as a whole, so not at an operator"


def test_a_branch_that_is_idle_begins_anew_when_its_partition_is_handed_back_or_ends() -> None:
    for how in ("handed back", "ended"):
        bench = Bench()
        for _ in range(15):
            bench.work_off(bench.read(B, 2))
            bench.settle(0.1)
        assert bench.reports._idle == {("late", B)}
        if how == "ended":
            bench.reports.ended(-2)
        else:
            bench.reports.keep([])
        assert not bench.reports._idle and not bench.reports._unseen


def test_one_that_the_source_holds_back_is_not_idle() -> None:
    bench = Bench()
    bench.work_off(bench.read(A, -1))
    assert bench.settle(100.0) == [], "it was read for a moment only"


def test_one_that_is_held_back_behind_the_source_is_not_idle() -> None:
    bench = Bench()
    held = []
    for _ in range(30):
        held.append(bench.read(A, 1))
        assert bench.settle(0.1, is_held=True) == []
    for batch in held:
        bench.work_off(batch)
    assert [type(each) for each in bench.settle()] == [MaximaSeen]


def test_of_spark_the_coordinator_knows_who_is_idle() -> None:
    bench = Bench()
    for _ in range(30):
        bench.work_off(bench.read(("spark", "query"), -1))
        assert bench.settle(0.1) == []


def test_one_that_was_handed_back_and_came_again_begins_anew() -> None:
    bench = Bench()
    bench.empty[B] = bench.now
    bench.read(A, -1)
    assert bench.settle(1.0) == [PartitionsIdle((B,))]
    bench.reports.keep([])
    assert bench.settle(1.0) == [PartitionsIdle((B,))]


def test_of_partitions_that_come_and_go_for_ever_nothing_stays() -> None:
    bench = Bench()
    told = set()
    for number in range(-1, -5_001, -1):
        partition: Partition = ("partition", number)
        batches = [bench.read(partition, 200, -1), bench.read(partition, -1)]
        bench.work_off(batches[0])
        told.update(each for said in bench.settle(0.0625) if isinstance(said, MaximaSeen) for each, _ in said.maxima)
        bench.empty = {partition: 0.0}
        assert bench.settle(0.0625) == [PartitionsIdle((partition,))]
        bench.empty = {}
        bench.read(partition, -1)
        bench.reports.ended(number)
        bench.work_off(batches[1])
    assert len(told) == 5_000 and not bench.reports._unseen and not bench.reports._idle
    clocks = [each.clock for each in bench.operators.values()]
    assert not any(clock._met or clock._fresh or clock._firsts for clock in clocks)


@settings(max_examples=many(200))
@given(
    st.lists(st.tuples(st.sampled_from([A, B, C]), st.lists(st.integers(-3, 120), max_size=4), st.floats(0.0, 0.1)))
)
def test_what_is_told_of_a_partition_is_the_greatest_that_came_and_of_a_file_the_first(steps: Any) -> None:
    bench = Bench()
    said: list[Any] = []
    came: dict[tuple[str, Partition], list[int]] = {}
    for partition, timestamps, seconds in steps:
        bench.work_off(bench.read(partition, *timestamps))
        for name, least in (("all", 0), ("late", 100)):
            came.setdefault((name, partition), []).extend(each * SECOND for each in timestamps if each >= least)
        said += bench.settle(seconds)
    said += bench.settle(1.0)
    maxima: dict[tuple[str, Partition], int] = {}
    firsts: dict[tuple[str, Partition], int] = {}
    for report in said:
        for partition, micros in report.maxima if isinstance(report, MaximaSeen) else ():
            maxima[report.operator, partition] = max(micros, maxima.get((report.operator, partition), micros))
        for partition, micros in report.firsts if isinstance(report, MaximaSeen) else ():
            assert firsts.setdefault((report.operator, partition), micros) == micros, "once"
    assert maxima == {key: max(each) for key, each in came.items() if each}
    assert firsts == {key: each[0] for key, each in came.items() if each and key[1] != B}


def test_a_batch_is_traced_to_its_partition() -> None:
    bench = Bench()
    batch = bench.read(A, 1, 2)
    assert type(batch) is Tagged and batch == [1, 2] and batch.tag == A
    assert bench.reports.are_wanted and not EventReports(EventTimes(), bench.said.append, 1.0).are_wanted
    assert EventUnit.SECONDS.micros(1) == SECOND


def test_the_bound_of_a_partition_outlives_it_for_a_while() -> None:
    bench = Bench()
    assert bench.reports.bound(A) is None
    bench.work_off(bench.read(A, 3, 50))
    assert bench.reports.bound(A) == 50 * SECOND
    bench.work_off(bench.read(B, 300))
    bench.settle()
    for clock in (each.clock for each in bench.operators.values()):
        clock.forget(A)
    assert bench.reports.bound(A) == 50 * SECOND and bench.reports.bound(B) == 300 * SECOND, "it is read to its end"
    for number in range(LAST_MAX):
        bench.work_off(bench.read(("split", 100 + number), 400))
        bench.settle()
    assert bench.reports.bound(A) is None, "so many are kept"


def test_max_skew_needs_timestamps_of_two_inputs_of_files() -> None:
    def build(scope: Any) -> None:
        for name in names:
            stream = scope.to_stream([])
            carries(stream.port, name)
            stream.event_time(lambda x: x, name=name)
        graphs.append(scope.ref.graph)

    graphs: list[Any] = []
    job = JobSpec(PickledFunction(b"", (), "dataflow"), max_skew=60.0)
    spec = ChildSpec(job, "job", Founder(0, ()), ("host", 1), 0, b"", inputs=InputNames(lines=("a", "b", "c")))
    for names in ("ab", "a", ""):
        example(build)
        if names == "ab":
            assert event_time_of(graphs[-1], spec).max_skew == 60 * SECOND
            followed = replace(spec.inputs, followed=(("a", "a/*", ""),))
            for other in (replace(spec, pushed=("b",)), replace(spec, inputs=followed)):
                with pytest.raises(BuildError, match="timestamps of fewer than two inputs of files"):
                    event_time_of(graphs[-1], other)
        else:
            with pytest.raises(BuildError, match="Call event_time on the streams of both, or leave out --max-skew"):
                event_time_of(graphs[-1], spec)
            assert event_time_of(graphs[-1], replace(spec, job=replace(job, max_skew=None))).max_skew is None


@pytest.mark.parametrize("unit, at, is_meant", [
    ("ms", 1_700_000_000, True), ("us", 1_700_000_000, True), ("ms", 1_700_000_000_000, False), ("ms", 5, False),
    (None, 1_700_000_000, False),
])  # fmt: skip
def test_seconds_in_another_unit_are_pointed_out_once(unit: Any, at: int, is_meant: bool) -> None:
    times, hints = EventTimes(), list[tuple[str, str]]()

    def build(scope: Any) -> None:
        scope.to_stream([]).event_time(lambda x: x, name="clicks", unit=unit)
        times.operators.update(scope.ref.graph.extension(EventTimes).operators)

    example(build)
    reports = EventReports(times, lambda report: None, 1.0, lambda about, text: hints.append((about, text)))
    clock = times.operators["clicks"].clock
    for _ in range(2):
        batch = Tagged([at], A)
        to_stamp, _, _ = clock.begin(batch)
        clock.end(0, batch, to_stamp(at, at), True)
        reports.tell_maxima()
    assert len(hints) == is_meant
    assert not is_meant or says(hints[0][1], "clicks", str(at), "January 1970", f'unit="{unit}"')
