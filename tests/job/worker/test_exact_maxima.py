"""Maxima beside positions are those of the records before them, all of them and no others."""

from typing import Any

from megaflow.control.messages import PushedEnded, Split
from megaflow.control.reading_messages import SplitsRevoked
from megaflow.job.worker.exact_maxima import ExactMaxima
from megaflow.megaphone.event_clock import EventTimes, EventTimeSpec
from megaflow.program import example
from megaflow.timely.dataflow.origin import Traced

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
    """Have a batch of a file come to an operator."""
    batch = Traced([*timestamps], ORIGIN)
    to_stamp, greatest, _ = operator.clock.begin(batch)
    operator.clock.end(epoch, batch, max([greatest, *(to_stamp(each, each) for each in timestamps)]), True)


def test_rest_waits_until_all_that_was_read_is_seen() -> None:
    known, said = operators(), list[Any]()
    maxima = ExactMaxima(known, said.append)
    stamp(known["clicks"], 3, 7)
    maxima.hand_back(4, SplitsRevoked, (A, B))
    maxima.settle(4)
    assert said == [] and maxima.are_waited_for
    stamp(known["clicks"], 4, 9, 8)
    maxima.settle(5)
    handed = Split(0, "a", 0, 10, maxima=(("clicks", 9),))
    assert said == [SplitsRevoked((handed, B))] and not maxima.are_waited_for
    assert known["clicks"].clock.running == {}, "it is read elsewhere"
    maxima.begin((handed,))
    assert known["clicks"].clock.running == {ORIGIN: 9}


def test_checkpoint_has_no_maximum_of_what_is_read_after_it() -> None:
    known, told = operators(), list[Any]()
    maxima = ExactMaxima(known, told.append)
    stamp(known["clicks"], 3, 7)
    maxima.tell(5, (A,), (), lambda splits, portions: told.append((splits, portions)))
    stamp(known["clicks"], 4, 8)
    stamp(known["clicks"], 5, 99)
    maxima.settle(4)
    assert told == []
    maxima.settle(5)
    assert told == [((Split(0, "a", 0, 10, maxima=(("clicks", 8),)),), ())]
    assert known["clicks"].clock.running == {ORIGIN: 99}


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
    assert said == [SplitsRevoked((A,))] and not maxima.are_waited_for
