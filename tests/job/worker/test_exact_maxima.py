"""The maxima stored beside a position cover all records before it, and no others."""

from dataclasses import replace
from typing import Any

from megaflow.control.messages import PushedEnded, Split
from megaflow.control.reading_messages import SplitRead, SplitsRevoked
from megaflow.durable.commits import SourcePartition
from megaflow.job.worker.reading.exact_maxima import ExactMaxima
from megaflow.megaphone.base.event_inputs import EventTimes, EventTimeSpec
from megaflow.program import example
from megaflow.timely.dataflow.partition_tag import Tagged

A, B = Split(0, "a", 0, 10), Split(1, "b", 0, 10)
ORIGIN = ("split", 0)


def operators() -> dict[str, EventTimeSpec]:
    """One operator, `clicks`, whose records are timestamps in microseconds."""
    found: dict[str, EventTimeSpec] = {}

    def build(scope: Any) -> None:
        scope.to_stream([]).event_time(lambda record: record, unit="us", name="clicks")
        found.update(scope.ref.graph.extension(EventTimes).operators)

    example(build)
    return found


def stamp(operator: EventTimeSpec, epoch: int, *timestamps: int) -> None:
    """Pass a batch of a file to an operator."""
    batch = Tagged([*timestamps], ORIGIN)
    to_stamp, greatest, _ = operator.clock.begin(batch)
    operator.clock.end(epoch, batch, max([greatest, *(to_stamp(each, each) for each in timestamps)]), True)


def test_rest_waits_until_all_that_was_read_is_seen() -> None:
    known, said = operators(), list[Any]()
    maxima = ExactMaxima(known, said.append)
    stamp(known["clicks"], 3, 7)
    maxima.hand_back(4, SplitsRevoked, (A, B))
    maxima.settle(4)
    assert said == [] and maxima.waiting
    stamp(known["clicks"], 4, 9, 8)
    maxima.settle(5)
    handed = Split(0, "a", 0, 10, maxima=(("clicks", 9),))
    assert said == [SplitsRevoked((handed, B))] and not maxima.waiting
    assert known["clicks"].clock.running == {}, "it is read elsewhere"
    maxima.begin((handed,))
    assert known["clicks"].clock.running == {ORIGIN: 9}


def test_checkpoint_has_no_maximum_of_what_is_read_after_it() -> None:
    known, told = operators(), list[Any]()
    maxima = ExactMaxima(known, told.append)
    stamp(known["clicks"], 3, 7)
    maxima.tell(5, (A,), (), lambda splits, partitions: told.append((splits, partitions)))
    stamp(known["clicks"], 4, 8)
    stamp(known["clicks"], 5, 99)
    maxima.settle(4)
    assert told == []
    maxima.settle(5)
    assert told == [((Split(0, "a", 0, 10, maxima=(("clicks", 8),)),), ())]
    assert known["clicks"].clock.running == {ORIGIN: 99}


def test_end_that_the_next_run_reads_on_has_its_maxima() -> None:
    known, said = operators(), list[Any]()
    maxima = ExactMaxima(known, said.append)
    maxima.begin((SourcePartition(-1, "a", b"p", maxima=(("clicks", 9),)), SourcePartition(-2, "a", b"q")))
    left = SourcePartition(-1, "a", b"p", b"5")
    maxima.ended(4, SplitRead(-1, (left,)), ("partition", -1))
    maxima.ended(4, SplitRead(-2), ("partition", -2))
    maxima.tell(5, (), (), lambda splits, partitions: said.append((splits, partitions)))
    assert said == [SplitRead(-2)]
    maxima.settle(5)
    assert said == [SplitRead(-2), SplitRead(-1, (replace(left, maxima=(("clicks", 9),)),)), ((), ())]
    assert known["clicks"].clock.running == {}


def test_pushed_lines_go_on_elsewhere_with_their_maxima() -> None:
    known, said = operators(), list[Any]()
    maxima = ExactMaxima(known, said.append)
    maxima.begin_pushed((("clicks", ("pushed", ""), 5), ("gone", ("pushed", ""), 7)))
    maxima.hand_pushed_on(2, PushedEnded(True), (("pushed", ""),))
    maxima.settle(None)
    assert said == [PushedEnded(True, maxima=(("clicks", ("pushed", ""), 5),))]


def test_nothing_waits_where_nothing_takes_timestamps() -> None:
    said: list[Any] = []
    maxima = ExactMaxima({}, said.append)
    maxima.hand_back(4, SplitsRevoked, (A,))
    assert said == [SplitsRevoked((A,))] and not maxima.waiting
