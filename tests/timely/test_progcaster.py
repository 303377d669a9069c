"""Progress batches: numbered, in order, whole, and applied by every worker."""

from collections.abc import Callable
from typing import Any

import pytest

from megaflow.errors import ProtocolError
from megaflow.timely import Capability, Exchange, InputHandle
from megaflow.timely.communication.channel import Channel
from tests.timely.workers import EVERY, ByHand


def inputs_by_value(hand: ByHand, build: Callable[[Any], object]) -> list[InputHandle[int]]:
    """Build the same dataflow on every worker; return their inputs."""
    handles = []
    for worker in hand.workers:
        with worker.dataflow() as scope:
            handle, stream = scope.new_input()
            handles.append(handle)
            build(stream)
    return handles


@pytest.mark.parametrize("workers", EVERY)
def test_the_batches_of_each_worker_are_numbered_from_0_and_cancel_the_initial_counts(workers: int) -> None:
    hand = ByHand(workers)
    handles = inputs_by_value(hand, lambda stream: stream.exchange(lambda x: x).probe())
    [first, *_] = [worker.graphs()[0] for worker in hand.workers]
    for number in range(5):
        for handle in handles:
            handle.send(number)
            handle.advance_to(number + 1)
        hand.settle()
    for handle in handles:
        handle.close()
    hand.settle()
    total = {(location, time): count for location, time, count in first.initial}
    for worker in range(workers):
        numbers = [number for _, sender, number, _ in hand.batches if sender == worker]
        assert numbers == list(range(len(numbers)))
    for _, _, _, batch in hand.batches:
        for location, time, delta in batch:
            total[location, time] = total.get((location, time), 0) + delta
    assert workers == 1 or not any(total.values())
    assert not any(worker.installed_dataflows for worker in hand.workers)


def test_a_lone_worker_tells_nobody() -> None:
    hand = ByHand(1)
    [handle] = inputs_by_value(hand, lambda stream: stream.exchange(lambda x: x))
    handle.send(1)
    handle.close()
    hand.settle()
    assert hand.batches == []


@pytest.mark.parametrize("number", [0, 2])
def test_a_missing_or_doubled_batch_breaks_the_protocol(number: int) -> None:
    hand = ByHand(2)
    inputs_by_value(hand, lambda stream: stream)
    other = hand.fabric.allocator(1)
    other.send(0, Channel.progress(0), (0, []))
    hand.workers[0].step()
    other.send(0, Channel.progress(0), (number, []))
    with pytest.raises(ProtocolError, match=rf"worker 1 sent progress batch {number} of dataflow 0; 1 was due"):
        hand.workers[0].step()


def test_what_a_step_produced_and_consumed_itself_is_never_told() -> None:  # engine case 43
    """Input, exchange, probe; four records at 0, then time 1, all in one step: only capability changes remain to be
    sent.
    """
    hand = ByHand(2)
    handles = inputs_by_value(hand, lambda stream: stream.exchange(lambda x: 0).probe())
    for x in range(4):
        handles[0].send(x)
    handles[0].advance_to(1)
    hand.workers[0].step()
    [graph] = hand.workers[0].graphs()
    source, exchanged = graph.nodes[0].sources[0], graph.nodes[1].sources[0]
    [(_, sender, number, batch)] = hand.batches
    assert (sender, number) == (0, 0)
    assert sorted(batch) == sorted([(source, 0, -1), (source, 1, 1), (exchanged, 0, -1)])


def test_a_record_consumed_and_the_capability_minted_from_it_are_told_together() -> None:
    hand = ByHand(2)
    kept: list[Capability] = []

    def build(capability: Capability, info: Any) -> Callable[[Any, Any], None]:
        capability.release()
        return lambda input, output: kept.extend(time.retain() for time, _ in input)

    handles = inputs_by_value(hand, lambda stream: stream.unary(Exchange(lambda x: 1), "Keep", build))
    for handle in handles:
        handle.advance_to(3)
    hand.settle()
    handles[0].send(5)
    handles[0].flush()
    hand.settle()
    [graph] = hand.workers[1].graphs()
    [node] = [node for node in graph.nodes if node.name == "Keep"]
    for handle in handles:
        handle.advance_to(4)
    hand.settle()
    [batch] = [batch for _, sender, _, batch in hand.batches if sender == 1 and (node.targets[0], 3, -1) in batch]
    assert (node.sources[0], 3, 1) in batch
    assert kept[0].held and kept[0].time == 3
