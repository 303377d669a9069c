"""The open partitions of a worker's sources: the order of their turns, their wake-ups, and their rest."""

import os
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

import pytest

from megaflow.connect import Exhausted, Idle
from megaflow.connect.source_protocol import Gone, NotHere
from megaflow.control.reading_messages import PartitionMissing, PartitionSeen, SplitRead
from megaflow.control.reports import PartitionLag
from megaflow.durable.commits import ANEW, SourcePartition
from megaflow.errors import CannotTravel, SourceError
from megaflow.job.files.followed_files import FollowedFiles
from megaflow.job.files.splits import plan_splits
from megaflow.job.worker.reading.line_queue import RECORDS_MAX, LineQueue
from megaflow.job.worker.reading.open_partitions import IDLE_SECONDS, OpenPartitions, PartitionReader
from megaflow.job.worker.reading.staging import Staging
from megaflow.timely.communication.codec.encode import encode
from tests.job.worker.scripted_source import Scripted, source_partitions


class Bench:
    """Portions of one source, and those that have ended."""

    def __init__(self, **answers: list[Any]) -> None:
        self.source = Scripted(**answers)
        self.open = OpenPartitions()
        self.open.sources["numbers"] = self.source
        self.ended: list[int] = []
        self.left: list[SourcePartition] = []  # the rest of those that may continue
        self.woken = Event()
        self.open.activate = self.woken.set
        self.open.add(source_partitions(*answers))

    def read(self, now: float = 0.0, limit: int = 10) -> list[Any]:
        found = self.open.read("numbers", limit, now, self.end)
        return [] if found is None else found[1]

    def end(self, report: SplitRead) -> None:
        self.ended.append(report.number)
        self.left += report.left


def test_resumable_end_is_behind_the_last_record() -> None:
    bench = Bench(a=[2, 1, Exhausted(resumable=True)], b=[Exhausted(resumable=True)], c=[1])
    while len(bench.open):
        bench.read()
    assert bench.ended == [-2, -3, -1] and not bench.source.readers
    assert bench.left == [source_partitions("a", "b")[1], replace(*source_partitions("a"), position=encode(3))]


def test_partition_that_is_gone_ends_anew() -> None:
    bench = Bench(a=[2, Gone()], b=[1])
    while len(bench.open):
        bench.read()
    assert bench.ended == [-1, -2] and not bench.source.readers
    assert bench.left == [replace(*source_partitions("a"), ended_in=ANEW)]


def test_reader_compares_what_it_opens_except_at_the_start() -> None:
    expected: list[tuple[str, Any]] = []
    bench = Bench()
    bench.source.answers = {"a": [1], "b": [1], "c": [1], "d": [1]}
    open_before = bench.source.open

    def opened(partition: str, position: Any) -> Any:
        reader: Any = open_before(partition, position)
        if partition != "d":  # a source of a program, which compares nothing
            reader.expect_sight = lambda sight: expected.append((partition, sight))
        return reader

    bench.source.open = opened  # type: ignore[method-assign]
    a, b, c, d = source_partitions("a", "b", "c", "d")
    bench.open.add([a])
    bench.open.add([b, c, d], {b.number: encode("green")})
    assert sorted(record for _ in range(4) for record in bench.read()) == ["a0", "b0", "c0", "d0"]
    assert expected == [("b", "green"), ("c", None)]


def test_that_another_partition_is_found_is_reported() -> None:
    bench = Bench(a=[NotHere(1.0, "it is another", 5, differs=True)])
    reports: list[Any] = []
    bench.open.read("numbers", 9, 0.0, reports.append)
    assert reports == [PartitionMissing(-1, "it is another", 5, differs=True)]


def test_title_of_a_file_is_one_line_whatever_its_name() -> None:
    part = SourcePartition(-1, "lines", encode(7), encode(("/logs/a\n.log", 3, "")))
    assert PartitionReader(part, FollowedFiles("/logs/*")).title.endswith(r"at position byte 3 of /logs/a\n.log")


def test_those_that_have_something_are_read_in_turn_a_batch_each() -> None:
    bench = Bench(a=[2, 2], b=[1, Idle(after_seconds=9.0), 1], c=[0, 1])
    read = [bench.read() for _ in range(7)]
    assert read == [["a0", "a1"], ["b0"], ["a2", "a3"], ["c0"], [], [], []] and bench.ended == [-1, -3]
    assert bench.open.wait(1.0) == 8.0 and [*bench.source.readers] == ["b"]
    assert bench.read(9.0) == ["b1"] and bench.read(9.0) == [] and bench.ended == [-1, -3, -2]
    assert bench.open.wait(9.0) is None and len(bench.open) == 0


def test_one_that_does_not_say_what_wakes_it_is_read_again_soon() -> None:
    bench = Bench(a=[Idle(), 1])
    assert bench.read(0.0) == [] and bench.open.wait(0.0) == IDLE_SECONDS
    assert bench.read(0.0) == [] and bench.read(IDLE_SECONDS) == ["a0"]


def test_one_that_is_held_is_not_idle() -> None:
    held = Idle(after_seconds=2.0, is_held=True)
    bench = Bench(a=[held, held, 1, Idle(after_seconds=2.0)])
    assert bench.read(0.0) == [] and [*bench.open.empty(1.0)] == [] and bench.open.wait(1.0) == 1.0
    assert bench.read(2.0) == [] and [*bench.open.empty(9.0)] == []
    assert bench.read(9.0) == ["a0"] and bench.read(9.0) == [] and [*bench.open.empty(10.0)] == [(-1, 9.0)]


@pytest.mark.parametrize("exists", [True, False])
def test_missing_one_is_not_idle_while_a_process_may_open_it(exists: bool) -> None:
    def missing(unread: int) -> NotHere:
        return NotHere(1.0, "it is locked", unread, exists)

    bench = Bench(a=[missing(5), missing(5), missing(5), missing(7), 1, Idle()])
    reports: list[Any] = []

    def read(now: float) -> Any:
        return bench.open.read("numbers", 9, now, reports.append)

    read(0.0), read(1.0)
    assert [*bench.open.empty(9.0)] == []
    bench.open.stay(-1)
    read(2.0), read(3.0)
    assert [*bench.open.empty(9.0)] == ([] if exists else [(-1, 8.0)]), "no process finds it, or it is there"
    assert reports == [PartitionMissing(-1, "it is locked", 5), PartitionMissing(-1, "it is locked", 7)]
    assert read(4.0)[1] == ["a0"] and reports[2:] == [PartitionSeen(-1)]
    read(5.0)
    assert len(reports) == 3


def test_one_has_nothing_since_it_said_so_first_unless_it_may_have_something_by_now() -> None:
    future: Future[None] = Future()
    idle = Idle(after_seconds=2.0)
    bench = Bench(a=[1, idle, idle, 1, Idle(on_ready=future.add_done_callback)])
    assert [*bench.open.empty(0.0)] == [], "nobody has asked"
    assert bench.read(0.0) and bench.read(1.0) == [] and [*bench.open.empty(1.5)] == [(-1, 1.0)]
    assert [*bench.open.empty(3.0)] == [(-1, 3.0)], "it is its turn, and nobody has asked for 2 s"
    assert bench.read(3.0) == [] and [*bench.open.empty(4.0)] == [(-1, 1.0)]
    assert [*bench.open.empty(9.0)] == [(-1, 7.0)], "it is known of 2 s"
    assert bench.read(5.0) == ["a1"] and [*bench.open.empty(5.0)] == []
    assert bench.read(6.0) == [] and [*bench.open.empty(7.0)] == [(-1, 6.0)]
    future.set_result(None)
    assert [*bench.open.empty(8.0)] == [(-1, 8.0)], "it was woken, and nobody has asked since"


def test_one_is_woken_by_a_call_and_too_many_calls_do_no_harm() -> None:
    future: Future[None] = Future()
    bench = Bench(a=[Idle(on_ready=future.add_done_callback), 1, Idle(on_ready=future.add_done_callback), 1])
    assert bench.read() == [] and bench.open.wait(0.0) is None and not bench.woken.is_set()
    future.set_result(None)
    assert bench.woken.is_set() and bench.open.wait(0.0) == 0.0 and bench.read() == ["a0"]
    assert bench.read() == [] and bench.read() == ["a1"], "what is there already wakes at once"
    bench.open._wake(-1)
    assert bench.read() == [] and bench.ended == [-1]


def test_one_is_woken_by_a_descriptor_each_by_its_own_and_not_when_it_was_woken_before() -> None:
    (near, far), (other, end) = os.pipe(), os.pipe()
    then = [Idle(fd=other, after_seconds=3.0), 1]
    bench = Bench(a=[Idle(fd=near), 1, *then], b=[Idle(fd=near), 1, Idle(after_seconds=99.0)])
    assert bench.read() == [] and bench.open.wait(0.0) is None
    os.write(far, b"x")
    bench.woken.wait(180)
    read: list[Any] = []
    while len(read) < 2:
        bench.woken.wait(180)
        bench.woken.clear()
        read += bench.read() + bench.read()
    assert sorted(read) == ["a0", "b0"]
    assert bench.read(1.0) == [] and bench.open.wait(1.0) == 3.0
    assert bench.read(4.0) == ["a1"] and not bench.open._watch._calls, "nobody waits for a descriptor any more"
    bench.open.end()
    for fd in (near, far, other, end):
        os.close(fd)


def test_what_is_left_is_from_before_the_batch_that_was_not_taken() -> None:
    bench = Bench(a=[2, 3], b=[1])
    bench.read()
    bench.read()
    found = bench.open.read("numbers", 10, 0.0, bench.end)
    assert found is not None and found[1] == ["a2", "a3", "a4"]
    a, b = source_partitions("a", "b")
    at = partial(lambda each, position: SourcePartition(each.number, each.input, each.partition, encode(position)))
    assert bench.open.rest(None) == (at(a, 5), at(b, 1)) and bench.open.rest(found[0]) == (at(a, 2), at(b, 1))
    other = Bench(a=[1], b=[])
    other.open.close([-1, -2])
    other.open.add(bench.open.rest(found[0]))
    assert other.read() == ["a2"] and other.source.opened == [("a", 2)], "it is opened when it is its turn"
    assert other.open.lags() == (
        PartitionLag("numbers", "'a'", "3", 0),
        PartitionLag("numbers", "'b'", "1", None),
    )


@pytest.mark.parametrize(
    ("answers", "said", "place"),
    [
        ([1, ValueError("no such page")], "no such page", "in source 'numbers', partition 'a', at position 1"),
        ([ValueError("no such page")], "no such page", "in source 'numbers', partition 'a', at its beginning"),
    ],
)
def test_what_a_source_raises_is_named_with_its_place(answers: list[Any], said: str, place: str) -> None:
    bench = Bench(a=answers)
    with pytest.raises(ValueError, match=said) as caught:
        for _ in range(2):
            bench.read()
    assert caught.value.__notes__ == [place] and caught.value.__cause__ is caught.value.__context__ is None


def test_source_describes_its_positions() -> None:
    class Pages(Scripted):
        def describe_position(self, position: int) -> str:
            return f"page {position}"

    opened = OpenPartitions()
    opened.sources["numbers"] = Pages(a=[1, ValueError("no such page")])
    opened.add(source_partitions("a"))
    opened.read("numbers", 10, 0.0, lambda number: None)
    assert opened.lags() == (PartitionLag("numbers", "'a'", "page 1", 0),)
    with pytest.raises(ValueError, match="no such page") as caught:
        opened.read("numbers", 10, 0.0, lambda number: None)
    assert caught.value.__notes__ == ["in source 'numbers', partition 'a', at position page 1"]


def test_what_opening_closing_and_waiting_raise_is_named_too() -> None:
    def fail(*_: object) -> Any:
        raise KeyError("x")

    for name in ("open", "on_ready", "close"):
        bench = Bench(a=[1, Idle(on_ready=fail)] if name == "on_ready" else [1])
        if name == "open":
            bench.source.open = fail  # type: ignore[method-assign]
        with pytest.raises(KeyError) as caught:
            bench.read()
            if name == "close":
                bench.source.readers["a"].close = fail  # type: ignore[method-assign]
            bench.read()
        assert caught.value.__notes__[0].startswith("in source 'numbers', partition 'a', at "), name


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, r"read\(2\) must return a list of records and the position after them, .* but it returned None"),
        (["a"], r"but it returned \['a'\]"),
        ((["a"], None), r"but it returned \(\['a'\], None\)"),
        ((("a",), 1), r"but it returned \(\('a',\), 1\)"),
        ((["a", "b", "c"], 3), r"read\(2\) returned 3 records"),
        (Exhausted, "but it returned <class"),
    ],
)
def test_what_is_no_answer_is_said(answer: Any, said: str) -> None:
    bench = Bench(a=[answer])
    with pytest.raises(SourceError, match="in source 'numbers', partition 'a', at its beginning: .*" + said):
        bench.read(limit=2)


def test_a_position_that_cannot_travel_is_named() -> None:
    bench = Bench(a=[(["x"], object())])
    bench.read()
    with pytest.raises(CannotTravel) as caught:
        bench.open.rest(None)
    assert caught.value.__notes__[0].startswith("in source 'numbers', partition 'a', at position <object")


# As a part of a worker's input


def queue_of(source: Scripted, *partitions: str, rate: float | None = None) -> LineQueue:
    queue = LineQueue(Staging(0), rate=rate)
    queue.open_partitions.sources["numbers"] = source
    queue.add_partitions(source_partitions(*partitions))
    return queue


def taken(queue: LineQueue, now: float = 0.0) -> list[Any]:
    found = queue.take(now)
    return [] if found is None else found[0]


def test_lines_and_partitions_are_read_by_turns_and_ends_are_reported(tmp_path: Any) -> None:
    (tmp_path / "a").write_text("one\n")
    queue = queue_of(Scripted(a=[2, 1]), "a")
    queue.assign(plan_splits([str(tmp_path / "a")]))
    queue.push(["pushed"])
    read = []
    while queue.ready:
        read.append((taken(queue), queue.input))
    assert sorted(read) == [(["a0", "a1"], "numbers"), (["a2"], "numbers"), (["one"], ""), (["pushed"], "")]
    assert len({input for _, input in read[:2]}) == 2, "neither waits for the end of the other"
    assert sorted(report.number for report in queue.take_reports() if isinstance(report, SplitRead)) == [-1, 0]
    assert queue.lines_taken == 5 and queue.taken_of == {"numbers": 3}


def test_a_batch_is_taken_whole_also_with_a_rate() -> None:
    source = Scripted(a=[1, 1, 1])
    queue = queue_of(source, "a", rate=1000.0)
    assert [taken(queue, 7.0), taken(queue, 7.0)] == [["a0"], []] and source.readers["a"].limits == [5, 5]
    assert queue.due_in(7.0) == pytest.approx(0.001) and taken(queue, 7.002) == ["a1"]
    assert queue_of(Scripted(a=[1]), "a").ready and RECORDS_MAX > 5


def test_partitions_are_handed_back_from_the_first_record_on_that_was_not_taken() -> None:
    source = Scripted(a=[2, 3], b=[1])
    queue = queue_of(source, "a", "b")
    assert taken(queue) == ["a0", "a1"] and queue.ready
    assert queue.remainders() == () and queue.partitions_left() == queue.give_back_partitions()
    assert queue.partitions_left() == () and not queue.ready and not source.readers
    queue = queue_of(Scripted(a=[2, 3], b=[1]), "a", "b")
    assert taken(queue) == ["a0", "a1"] and taken(queue) == ["b0"]
    [a, b] = queue.give_back_partitions()
    assert (a.position, b.position) == (encode(2), encode(1))


def test_only_those_are_handed_back_that_are_wanted() -> None:
    source = Scripted(a=[2, 3], b=[Idle(after_seconds=9.0)], c=[1, 1])
    queue = queue_of(source, "a", "b", "c")
    assert taken(queue) == ["a0", "a1"] and taken(queue) == ["c0"] and queue.ready
    [a, b] = queue.give_back_partitions((-1, -2))
    assert (a.number, a.position, b.number, b.position) == (-1, encode(2), -2, None) and [*source.readers] == ["c"]
    assert taken(queue) == ["c1"] and queue.give_back_partitions((-7,)) == ()


def test_one_that_is_idle_holds_nobody_back() -> None:
    queue = queue_of(Scripted(a=[Idle(after_seconds=50.0), 1], b=[1, 1]), "a", "b")
    assert [taken(queue), taken(queue), taken(queue)] == [["b0"], ["b1"], []]
    assert queue.due_in(1.0) is None and queue.open_partitions.wait(1.0) == 49.0
    assert queue.due_in(50.0) == 0.0 and taken(queue, 50.0) == ["a0"]
    queue.close()


