"""Later times: delay, delay_batch, reclock."""

from collections import Counter
from typing import Any

import pytest

from megaflow.errors import TimeError
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.testing import EngineCluster
from megaflow.timely import InputHandle, Product, example
from tests.timely.workers import EVERY, by_hand, run


@pytest.mark.parametrize("workers", EVERY)
def test_delay_gives_each_record_its_own_time(workers: int) -> None:
    """Case 31."""

    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            return scope.to_stream(range(10)).delay(lambda x, time: x).capture()

    assert run(workers, main) == [[(x, [x]) for x in range(10)]] * workers


@pytest.mark.parametrize("workers", EVERY)
def test_delay_batch_gives_a_whole_time_another(workers: int) -> None:
    """Case 31."""

    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            return scope.to_stream(range(10)).delay_batch(lambda time: time + 1).capture()

    assert run(workers, main) == [[(1, list(range(10)))]] * workers


def delayed(verb: str, to: Any) -> Any:
    """A dataflow that sends the records of time 5 at `to`."""

    def build(scope: Scope) -> Any:
        stream = scope.to_stream(["r"]).delay_batch(lambda time: 5)
        return stream.delay(lambda x, time: to) if verb == "delay" else stream.delay_batch(lambda time: to)

    return build


@pytest.mark.parametrize("verb", ["delay", "delay_batch"])
def test_a_delay_to_an_earlier_time_is_an_error_with_both_times(verb: str) -> None:
    """Case 31."""
    with pytest.raises(TimeError, match=rf"{verb}: the function returned 4 for a record at 5; time only") as caught:
        example(delayed(verb, 4))
    assert "time 5" in caught.value.__notes__[0]


@pytest.mark.parametrize("verb", ["delay", "delay_batch"])
@pytest.mark.parametrize("to", [None, 6.0, "6", [6], Product(6, 0)])
def test_a_delay_to_what_is_no_time_there_is_an_error(verb: str, to: Any) -> None:
    with pytest.raises(TimeError, match=rf"{verb}\(.*\): an? {type(to).__name__} is not a time of this scope"):
        example(delayed(verb, to))


def test_a_delay_to_the_present_is_none() -> None:
    assert example(lambda scope: delayed("delay", 5)(scope).capture()) == [(5, ["r"])]


def test_delayed_records_are_passed_on_at_once_and_hold_nothing_back() -> None:
    """If delay waited, it would keep the records of a nested scope until the time outside is over."""
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    seen: list[Any] = []
    with worker.dataflow() as scope:
        stream = scope.input_from(handle).delay(lambda x, time: time + x).inspect_time(lambda *pair: seen.append(pair))
        probe = stream.probe()
    handle.send(100)
    handle.flush()
    hand.settle()
    assert seen == [(100, 100)] and probe.frontier.elements == (0,)
    handle.advance_to(50)
    hand.settle()
    assert probe.frontier.elements == (50,)


def test_in_a_nested_scope_a_delay_goes_by_the_partial_order() -> None:
    def build(scope: Scope, to: Any) -> Any:
        with scope.iterative() as inner:
            stream = scope.to_stream([0, 1, 2]).delay(lambda x, time: x).enter(inner)
            return stream.delay(to).capture()

    later = example(lambda scope: build(scope, lambda x, time: Product(time.outer + 1, x)))
    assert later == [(Product(1, 0), [0]), (Product(2, 1), [1]), (Product(3, 2), [2])]
    with pytest.raises(TimeError, match=r"returned Product\(0, 9\) for a record at Product\(1, 0\)"):
        example(lambda scope: build(scope, lambda x, time: Product(0, 9)))


# Reclock ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", EVERY)
def test_reclock_sends_records_at_the_next_tick(workers: int) -> None:
    """Case 32. The record 9 is not sent, as no tick follows it."""

    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            clock = scope.to_stream([8, 3, 5]).delay(lambda x, time: x)
            return scope.to_stream(range(10)).delay(lambda x, time: x).reclock(clock).capture()

    assert run(workers, main) == [[(3, [0, 1, 2, 3]), (5, [4, 5]), (8, [6, 7, 8])]] * workers


def test_reclock_waits_until_neither_stream_can_have_more_up_to_the_tick() -> None:
    hand, worker = by_hand()
    data, clock = InputHandle[int](), InputHandle[str]()
    seen: list[Any] = []
    with worker.dataflow() as scope:
        stream = scope.input_from(data).reclock(scope.input_from(clock))
        probe = stream.inspect_time(lambda *pair: seen.append(pair)).probe()
    data.send(1)
    data.advance_to(3)
    data.send(2)
    clock.advance_to(3)
    clock.send("tick")
    clock.flush()
    hand.settle()
    data.advance_to(9)
    hand.settle()
    assert seen == [], "a tick at 3 may still come"
    assert probe.frontier.elements == (3,)
    clock.advance_to(20)
    hand.settle()
    assert seen == [(3, 1), (3, 2)]
    assert probe.frontier.elements == (20,), "records alone hold nothing back"
    data.send(3)
    clock.close()
    data.close()
    hand.settle()
    assert len(seen) == 2 and probe.done() and not worker.installed_dataflows


def test_reclock_keeps_the_order_of_times_whatever_that_of_arrival() -> None:
    hand, worker = by_hand()
    data, clock = InputHandle[int](), InputHandle[str]()
    seen: list[int] = []
    with worker.dataflow() as scope:
        later = scope.input_from(data).delay(lambda x, time: x)
        later.reclock(scope.input_from(clock)).inspect(seen.append)
    for x in (4, 2, 3, 2):
        data.send(x)
    data.close()
    clock.advance_to(9)
    clock.send("tick")
    clock.send("tick")
    clock.close()
    hand.settle()
    assert seen == [2, 2, 3, 4]


def test_reclock_in_a_nested_scope_takes_what_is_at_or_before_the_tick() -> None:
    def build(scope: Scope) -> Any:
        with scope.iterative() as inner:
            times = [(0, 3), (1, 1), (2, 0), (3, 3)]
            data = scope.to_stream(times).enter(inner).delay(lambda pair, time: Product(*pair))
            clock = scope.to_stream([(1, 2), (2, 3)]).enter(inner).delay(lambda pair, time: Product(*pair))
            return data.reclock(clock).capture()

    assert example(build) == [(Product(1, 2), [(1, 1)]), (Product(2, 3), [(0, 3), (2, 0)])]


@pytest.mark.parametrize("seed", range(4))
def test_delays_and_clocks_are_exact_whatever_the_delivery(seed: int) -> None:
    feeds = {worker: [(time, time) for time in range(10)] for worker in range(3)}

    def build(worker: Worker, records: Any, commands: Any) -> Any:
        clock = records.filter(lambda x: x % 3 == 2 and worker.index == 0).broadcast()
        return records.exchange(lambda x: x).delay(lambda x, time: time + 1).reclock(clock)

    outputs = EngineCluster(seed).run(build, feeds)
    ticks = {x: next((tick for tick in (2, 5, 8) if x + 1 <= tick), None) for x in range(10)}
    assert Counter(outputs) == Counter({(tick, x): 3 for x, tick in ticks.items() if tick is not None})
