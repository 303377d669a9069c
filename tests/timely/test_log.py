"""The log: typed events of a worker, complete and in order; nothing is logged without a subscriber."""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from megaflow.program import Worker, execute
from megaflow.timely import InputHandle, ProbeHandle
from megaflow.timely.log import (
    ChannelBuilt,
    Event,
    Log,
    MessageReceived,
    MessageSent,
    OperatorBuilt,
    OperatorShut,
    Parked,
    ProgressReceived,
    ProgressSent,
    ScheduleStarted,
    ScheduleStopped,
    Unparked,
)
from megaflow.timely.runtime import Config
from tests.timely.workers import EVERY, by_hand


def collatz(worker: Worker) -> list[Event]:
    """Run a loop with an exchange, and a second dataflow; return every event of the worker, to the end."""
    events: list[Event] = []
    worker.log.subscribe(events.append)
    handle: InputHandle[int] = InputHandle()
    probe = ProbeHandle()
    with worker.dataflow("collatz") as scope:
        loop, back = scope.feedback(1)
        numbers = scope.input_from(handle).concat(back)
        stepped = numbers.map(lambda x: x // 2 if x % 2 == 0 else 3 * x + 1).exchange(lambda x: x)
        stepped.filter(lambda x: x != 1).connect_loop(loop)
        stepped.broadcast().probe_with(probe)
    with worker.dataflow("other") as scope:
        scope.to_stream(range(worker.index, 3000)).exchange(lambda x: x)
    for number in range(1, 10):
        if worker.index == 0:
            handle.send(number)
    handle.close()
    while worker.installed_dataflows:
        worker.step_or_park(None)
    return events


def of(kind: type[Any], events: list[Event]) -> list[Any]:
    """Return the events of a kind."""
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("workers", EVERY)
def test_the_log_is_complete(workers: int) -> None:
    """Case 56."""
    logs = execute(Config.process(workers), collatz)
    for events in logs:
        built = [(event.dataflow, event.operator) for event in of(OperatorBuilt, events)]
        assert len(built) == len(set(built)) == 10
        assert sorted(built) == sorted((event.dataflow, event.operator) for event in of(OperatorShut, events))
        assert built == [(e.dataflow, e.operator) for e in of(OperatorBuilt, logs[0])], "equal on all workers"
        check_alternation(events)
        check_progress(events, workers)
        assert [type(event) for event in events if isinstance(event, Parked | Unparked)][::2] == [Parked] * len(
            of(Unparked, events)
        )
    everything = [event for events in logs for event in events]
    check_messages(everything)


def check_alternation(events: list[Event]) -> None:
    """Check that start and stop alternate for each operator, and nothing else runs in between."""
    running: list[tuple[int, int]] = []
    for event in events:
        if isinstance(event, ScheduleStarted):
            assert not running
            running.append((event.dataflow, event.operator))
        elif isinstance(event, ScheduleStopped):
            assert running.pop() == (event.dataflow, event.operator)
    assert not running


def check_progress(events: list[Event], workers: int) -> None:
    """Check that progress batches are numbered 0, 1, 2, … for each sender and dataflow."""
    numbers: dict[tuple[int, int | None], list[int]] = defaultdict(list)
    for event in events:
        if isinstance(event, ProgressSent):
            numbers[event.dataflow, None].append(event.number)
        elif isinstance(event, ProgressReceived):
            numbers[event.dataflow, event.source].append(event.number)
    assert len({source for _, source in numbers}) == workers
    assert all(found == list(range(len(found))) for found in numbers.values())


def check_messages(events: list[Event]) -> None:
    """Check for each channel and pair of workers that all sent messages were received, numbered 0, 1, 2, …"""
    sent: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    received: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if isinstance(event, MessageSent | MessageReceived):
            which = sent if isinstance(event, MessageSent) else received
            key = (event.dataflow, event.channel, event.source, event.target)
            which[key].append((event.number, event.records))
    assert sent == received
    assert all([number for number, _ in found] == list(range(len(found))) for found in sent.values())
    channels = {(event.dataflow, event.channel): event.pact for event in of(ChannelBuilt, events)}
    assert {key[:2] for key in sent} <= channels.keys()
    crossing = Counter(channels[key[:2]] for key in sent if key[2] != key[3])
    assert set(crossing) <= {"Exchange", "Broadcast"}


def test_a_channel_says_what_it_connects_and_how() -> None:
    hand, worker = by_hand()
    events: list[Event] = []
    worker.log.subscribe(events.append)
    with worker.dataflow("shape") as scope, scope.region("inner") as inner:
        scope.to_stream([1]).enter(inner).exchange(lambda x: x).leave().probe()
    names = {event.operator: event.name for event in of(OperatorBuilt, events)}
    channels = [(names[event.source[0]], names[event.target[0]], event.pact) for event in of(ChannelBuilt, events)]
    assert ("ToStream", "inner/Exchange", "Exchange") in channels
    assert all(event.where.startswith(__file__) for event in of(OperatorBuilt, events))
    assert all(target != "Probe" for _, target, _ in channels), "a probe gets no records"
    hand.settle()


def test_a_dropped_dataflow_shuts_each_operator_once() -> None:
    hand, worker = by_hand()
    events: list[Event] = []
    worker.log.subscribe(events.append)
    with worker.dataflow() as scope:
        scope.new_input()[1].map(abs).probe()
    hand.settle()
    worker.drop_dataflow(0)
    worker.drop_dataflow(0)
    hand.settle()
    assert [event.operator for event in of(OperatorShut, events)] == [0, 1, 2]


def test_who_has_unsubscribed_hears_nothing_and_the_others_go_on() -> None:
    hand, worker = by_hand()
    first: list[Event] = []
    second: list[Event] = []
    stop_first, stop_second = worker.log.subscribe(first.append), worker.log.subscribe(second.append)
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        stream.map(abs)
    hand.settle()
    assert first == second != []
    count = len(first)
    stop_first()
    stop_first()
    handle.send(1)
    handle.flush()
    hand.settle()
    assert len(first) == count < len(second)
    stop_second()
    assert worker.log.emit is None


def test_the_same_callback_may_subscribe_twice_and_each_has_its_own_end() -> None:
    log, seen = Log(), []
    end = log.subscribe(seen.append)
    log.subscribe(seen.append)
    log.moved(MessageSent, (0, 0), 0, 0, 1)
    end()
    log.moved(MessageSent, (0, 0), 0, 0, 1)
    assert len(seen) == 3


def test_what_a_callback_raises_stops_the_worker() -> None:
    _, worker = by_hand()

    def complain(event: Event) -> None:
        raise RuntimeError("no more paper")

    with worker.dataflow() as scope:
        scope.to_stream([1]).map(abs)
    worker.log.subscribe(complain)
    with pytest.raises(RuntimeError, match="no more paper"):
        worker.step()


def test_a_callback_may_end_itself_in_the_middle_of_a_run() -> None:
    hand, worker = by_hand()
    seen: list[Event] = []
    ends: list[Callable[[], None]] = []

    def once(event: Event) -> None:
        seen.append(event)
        ends[0]()

    with worker.dataflow() as scope:
        scope.to_stream([1]).map(abs)
    ends.append(worker.log.subscribe(once))
    hand.settle()
    assert len(seen) == 1
