"""Channels: every pact keeps all records, sends each to the right worker, and never sends an empty batch."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.timely import Broadcast, Exchange, Pipeline
from megaflow.timely.communication.channel import Channel, Envelope, Lane
from megaflow.timely.dataflow.operators.movement import broadcast
from megaflow.timely.membership import founding

SELF = 5


class Sent:
    """Transport of worker 5 that notes what is sent and delivers nothing."""

    index = SELF
    neighbours = ()
    pending_bytes = 0

    def __init__(self) -> None:
        self.messages: list[tuple[int, Lane, Any]] = []  # worker, lane, (time, batch)

    def send(self, target: int, channel: Channel, body: Any) -> None:
        if channel.lane is not Lane.PROGRESS:
            self.messages.append((target, channel.lane, body))

    def send_all(self, targets: Iterable[int], channel: Channel, body: Any) -> None:
        for target in targets:
            self.send(target, channel, body)

    def receive(self, busy: bool = False) -> list[Envelope]:
        return []

    def flush(self) -> None:
        """Do nothing: there is nothing to wait for."""


def send(
    batches: list[list[Any]], members: Iterable[int], build: Callable[[Stream[Any]], Stream[Any]]
) -> tuple[Sent, list[list[Any]]]:
    """Return what worker 5 sends to others, and the batches that stay."""
    sent, kept = Sent(), []
    worker: Worker = Worker(sent, founding(members), Scope, (lambda: 0.0, lambda: 0.0))  # type: ignore[arg-type]
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        build(stream).inspect_batch(lambda time, batch: kept.append(batch))
    for batch in batches:
        handle.send_batch(batch)
    worker.step()
    return sent, kept


def passing(pact: Any) -> Callable[[Stream[Any]], Stream[Any]]:
    """Operator with this pact that passes everything on."""

    def build(capability: Any, info: Any) -> Callable[[Any, Any], None]:
        capability.release()

        def logic(input: Any, output: Any) -> None:
            for time, data in input:
                output.session(time).give_batch(data)

        return logic

    return lambda stream: stream.unary(pact, "Pass", build)


def parts(sent: Sent, kept: list[list[Any]]) -> dict[int, list[Any]]:
    """worker -> records in the order sent"""
    found: dict[int, list[Any]] = {}
    for target, _, (time, batch) in sent.messages:
        assert batch, "an empty batch is never sent"
        assert time == 0
        found.setdefault(target, []).extend(batch)
    for batch in kept:
        found.setdefault(SELF, []).extend(batch)
    return found


def test_a_pipeline_stays() -> None:
    sent, kept = send([[1, 2], [3]], [2, 5, 9], passing(Pipeline()))
    assert kept == [[1, 2], [3]] and not sent.messages


BY_VALUE = [passing(Exchange(lambda x: x)), lambda stream: stream.exchange(lambda x: x)]


@given(st.lists(st.lists(st.integers(), min_size=1), max_size=3), st.sets(st.integers(0, 9)), st.sampled_from(BY_VALUE))
def test_an_exchange_keeps_every_record_and_sends_it_to_its_worker(
    batches: list[list[int]], others: set[int], build: Callable[[Stream[Any]], Stream[Any]]
) -> None:
    members = sorted(others | {SELF})
    found, records = parts(*send(batches, members, build)), [x for batch in batches for x in batch]
    assert Counter(x for part in found.values() for x in part) == Counter(records)
    for worker, part in found.items():
        assert part == [x for x in records if members[x % len(members)] == worker]


@pytest.mark.parametrize("lane", [Lane.DATA, Lane.MAIL])
def test_a_broadcast_sends_one_copy_to_each_member(lane: Lane) -> None:
    sent, kept = send([[1, 2]], [2, 5, 9], lambda stream: Stream(broadcast(stream.port, lane)))
    assert parts(sent, kept) == {2: [1, 2], 5: [1, 2], 9: [1, 2]}
    assert {used for _, used, _ in sent.messages} == {lane}


def test_a_pact_broadcasts_as_the_stream_does() -> None:
    assert parts(*send([[1]], [2, 5], passing(Broadcast()))) == {2: [1], 5: [1]}


def test_an_empty_list_is_not_sent() -> None:
    assert parts(*send([[], []], [2, 5], lambda stream: stream.broadcast())) == {}
