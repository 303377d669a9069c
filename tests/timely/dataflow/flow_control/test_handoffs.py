"""Handoffs: a full queue stops the sources upstream, here and on other workers, and nothing waits without end."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from megaflow.errors import ProtocolError
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.timely import EventLink, Exchange, InputHandle, Messages, Pipeline, Progress
from megaflow.timely.communication.channel import Channel, Envelope, Lane
from megaflow.timely.dataflow.builder import BATCH_RECORDS
from megaflow.timely.dataflow.flow_control.handoffs import Bounds
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.dataflow.operators.movement import broadcast
from megaflow.timely.dataflow.probe import ProbeHandle
from tests.timely.cases import taking
from tests.timely.workers import ByHand

SMALL = Bounds(queue_records=4, window_records=6)


class Valve:
    """Operator that takes nothing until it is opened."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.is_open = False
        self.activate: Callable[[], None] = lambda: None

    def on(self, stream: Stream[Any], pact: Any = None) -> Stream[Any]:
        def build(capability: Any, info: Any) -> Any:
            capability.release()
            self.activate = info.activator.activate

            def logic(source: Any, output: Any) -> None:
                if self.is_open:
                    for time, batch in source:
                        self.taken += batch
                        output.session(time).give_batch(batch)

            return logic

        return stream.unary(pact or Pipeline(), "Valve", build)

    def open(self) -> None:
        """Let the operator run from now on."""
        self.is_open = True
        self.activate()


def counting(scope: Scope, sent: list[int], last: int = 1000) -> Stream[int]:
    """Source of numbers, one per batch, that stops when its output is full."""

    def build(capability: Any, info: Any) -> Any:
        def logic(output: Any) -> None:
            while len(sent) < last and not output.is_full():
                with output.session(capability) as session:
                    session.give(len(sent))
                sent.append(len(sent))
            if len(sent) == last and capability.held:
                capability.release()

        return logic

    return scope.source("Count", build)


def always_taking(stream: Stream[Any], pact: Any = None) -> Stream[Any]:
    """User operator that passes everything on and never asks whether there is room."""
    return stream.unary(pact or Pipeline(), "Pass", taking)


def build_on(hand: ByHand, make: Callable[[Worker, Scope], None]) -> list[Graph]:
    for worker in hand.workers:
        with worker.dataflow() as scope:
            make(worker, scope)
            scope.ref.graph.handoffs.bounds = SMALL
    return [worker.graphs()[0] for worker in hand.workers]


def rest(worker: Worker, steps: int = 200) -> None:
    """Step until the worker has nothing to do. A closed valve keeps its operator in the run queue."""
    for _ in range(steps):
        worker.step()


def waiting(graph: Graph) -> int:
    return sum(queue.records for queue in graph.queues)


@pytest.mark.parametrize("between", [0, 1, 3])
def test_a_source_stops_though_what_comes_first_takes_everything(between: int) -> None:
    hand, valve, sent, probe = ByHand(), Valve(), list[int](), ProbeHandle()

    def make(worker: Worker, scope: Scope) -> None:
        stream: Stream[Any] = counting(scope, sent)
        for _ in range(between):
            stream = always_taking(stream)
        valve.on(stream).probe_with(probe)

    [graph] = build_on(hand, make)
    rest(hand.workers[0])
    # The source stops only after the records of one run have reached the full queue.
    assert len(sent) <= SMALL.queue_records * (between + 1) and waiting(graph) == len(sent)
    valve.open()
    hand.settle()
    assert valve.taken == list(range(1000)) and probe.done()


def test_who_waits_for_room_is_not_run_in_vain() -> None:
    hand, valve, sent = ByHand(), Valve(), list[int]()
    runs: list[int] = []

    def make(worker: Worker, scope: Scope) -> None:
        stream = counting(scope, sent)

        def build(capability: Any, info: Any) -> Any:
            capability.release()

            def logic(source: Any, output: Any) -> None:
                runs.append(1)
                while source.is_waiting() and not output.is_full():
                    output.ship(*source.take())

            return logic

        valve.on(stream.unary(Pipeline(), "Asks", build))

    build_on(hand, make)
    rest(hand.workers[0], 50)
    before = len(runs)
    rest(hand.workers[0], 50)
    assert len(runs) == before, "room is what runs it, nothing else"
    valve.open()
    hand.settle()
    assert valve.taken == list(range(1000))


@pytest.mark.parametrize("hops", [1, 2])
def test_a_worker_that_does_not_run_stops_the_source_of_another_and_is_sent_no_more_than_its_window(hops: int) -> None:
    hand, sent, arrived, probe = ByHand(hops + 1), list[int](), list[int](), ProbeHandle()

    def make(worker: Worker, scope: Scope) -> None:
        stream: Stream[Any] = counting(scope, sent, 1000) if worker.index == 0 else counting(scope, [], 0)
        for hop in range(1, hops + 1):
            stream = always_taking(stream, Exchange(lambda number, hop=hop: hop))
        stream.inspect(arrived.append).probe_with(probe)

    graphs = build_on(hand, make)
    for _ in range(300):
        for worker in hand.workers[:-1]:
            worker.step()
    assert len(sent) < 1000
    for graph in graphs:
        for handoff in graph.handoffs._all:
            credits = handoff.end.credits
            assert credits is None or credits.used(hops) <= SMALL.window_records + SMALL.queue_records
    held = len(sent)
    assert held <= hops * (SMALL.window_records + 2 * SMALL.queue_records)
    hand.settle()
    assert sorted(arrived) == list(range(1000)) and probe.done()


def test_the_full_source_moves_time_on_when_it_likes_and_its_capability_waits_with_it() -> None:
    hand, valve, probe = ByHand(), Valve(), ProbeHandle()
    handle: InputHandle[int] = InputHandle()

    def make(worker: Worker, scope: Scope) -> None:
        valve.on(scope.input_from(handle)).probe_with(probe)

    build_on(hand, make)
    handle.send_batch([1, 2, 3, 4])
    assert handle.is_full()
    handle.advance_to(5)
    handle.send(5)
    handle.flush()
    rest(hand.workers[0], 20)
    assert not probe.less_than(0) and probe.less_equal(0), "what waits holds its time"
    valve.open()
    hand.settle()
    assert valve.taken == [1, 2, 3, 4, 5] and not probe.less_than(5) and not handle.is_full()


def test_a_cycle_is_never_full_but_what_it_feeds_is() -> None:
    hand, full = ByHand(), list[bool]()
    handle: InputHandle[int] = InputHandle()

    def make(worker: Worker, scope: Scope) -> None:
        def build(capability: Any, info: Any) -> Any:
            capability.release()

            def logic(source: Any, output: Any) -> None:
                for time, batch in source:
                    with output.session(time) as session:
                        session.give_iterator(x - 1 for x in batch for _ in range(2))
                    full.append(output.is_full())

            return logic

        loop, back = scope.feedback(1)
        around = scope.input_from(handle).concat(back).unary(Pipeline(), "Around", build)
        around.filter(lambda x: x > 0).connect_loop(loop)

    [graph] = build_on(hand, make)
    handle.send(7)
    handle.close()
    hand.settle()
    assert len(full) == 7 and not any(full)
    assert hand.workers[0].installed_dataflows == {}
    assert any(queue.mark == SMALL.queue_records for queue in graph.queues), "what leads into the cycle is bounded"


def test_control_goes_on_while_data_is_full() -> None:
    hand, valve, seen = ByHand(), Valve(), list[int]()
    data: InputHandle[int] = InputHandle()
    control: InputHandle[int] = InputHandle()

    def make(worker: Worker, scope: Scope) -> None:
        commands = Stream(broadcast(scope.input_from(control).port, Lane.MAIL))

        def build(capability: Any, info: Any) -> Any:
            capability.release()

            def logic(left: Any, right: Any, output: Any) -> None:
                for time, batch in left:
                    output.session(time).give_batch(batch)
                for _, batch in right:
                    seen.extend(batch)

            return logic

        both = scope.input_from(data).binary(commands, Pipeline(), Pipeline(), "Both", build)
        valve.on(both)

    build_on(hand, make)
    data.send_batch(list(range(20)))
    rest(hand.workers[0], 5)
    assert data.is_full()
    for number in range(50):
        control.send(number)
        control.flush()
        assert not control.is_full()
        rest(hand.workers[0], 2)
    assert seen == list(range(50))


def test_a_dropped_dataflow_is_never_full() -> None:
    hand, valve = ByHand(), Valve()
    handle: InputHandle[int] = InputHandle()
    build_on(hand, lambda worker, scope: valve.on(scope.input_from(handle)) and None)
    handle.send_batch([1] * 10)
    assert handle.is_full()
    hand.workers[0].drop_dataflow(0)
    assert not handle.is_full()


def test_an_input_is_not_full_before_the_dataflow_runs_nor_when_it_is_closed() -> None:
    hand = ByHand()
    handle: InputHandle[int] = InputHandle()
    asked: list[bool] = []

    def make(worker: Worker, scope: Scope) -> None:
        Valve().on(scope.input_from(handle))
        asked.append(handle.is_full())

    build_on(hand, make)
    handle.send_batch([1] * 10)
    handle.close()
    assert asked == [False] and not handle.is_full()


def test_an_iterable_is_read_no_farther_than_there_is_room() -> None:
    hand, valve, read = ByHand(), Valve(), list[int]()

    def numbers() -> Iterator[int]:
        for number in range(20 * BATCH_RECORDS):
            read.append(number)
            yield number

    build_on(hand, lambda worker, scope: valve.on(scope.to_stream(numbers())) and None)
    rest(hand.workers[0], 20)
    assert len(read) == BATCH_RECORDS
    valve.open()
    hand.settle()
    assert valve.taken == list(range(20 * BATCH_RECORDS))


def test_a_replay_reads_no_farther_than_there_is_room() -> None:
    hand, valve, link = ByHand(), Valve(), EventLink()
    for number in range(100):
        link.push(Messages(0, [number]))
    link.push(Progress(((0, -1),)))
    read: list[int] = []

    def make(worker: Worker, scope: Scope) -> None:
        stream = always_taking(scope.replay([link]).inspect(read.append))
        valve.on(stream)

    build_on(hand, make)
    for _ in range(30):
        hand.workers[0].step()
        hand.now += 1
    assert len(read) <= 3 * SMALL.queue_records
    valve.open()
    for _ in range(200):
        hand.workers[0].step()
        hand.now += 1
    assert valve.taken == list(range(100)) and hand.workers[0].installed_dataflows == {}


def test_credit_for_a_channel_that_has_none_is_a_broken_protocol_and_for_what_is_complete_nothing() -> None:
    hand = ByHand(2)
    build_on(hand, lambda worker, scope: scope.empty().exchange(lambda x: 0) and None)
    hand.workers[0].allocator.send(1, Channel.credit(0), ((17, 5),))
    with pytest.raises(ProtocolError, match="worker 0 gives credit back on channel 17, which needs none"):
        hand.workers[1].step()
    done = ByHand(2)
    build_on(done, lambda worker, scope: scope.empty() and None)
    done.settle()
    assert done.workers[1].installed_dataflows == {}
    done.workers[1]._take_in([Envelope(Channel.credit(0), 0, ((0, 5),))])


def test_the_usual_bounds_are_many_batches_and_a_window_is_more_than_a_queue() -> None:
    assert BATCH_RECORDS < Bounds().queue_records < Bounds().window_records < 100 * BATCH_RECORDS
