"""Gathering: small parts leave together, in order, at one time, and never too late."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import CannotTravel
from megaflow.megaphone.router.splitting import Pairs
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.batch_coalescer import HELD_SECONDS, MESSAGE_RECORDS, PART_RECORDS, BatchCoalescer
from megaflow.timely.rescale.leaver import RECORD_LANES, Leaver
from megaflow.timely.rescale.messages import LaneEnd, NoMoreRecords
from tests.timely.workers import ByHand

MEMBERS = 4


class Sent:
    """Channel that notes what leaves."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, Any, Any]] = []  # worker, time, batch

    def post(self, worker: int, time: Any, batch: Any) -> None:
        self.messages.append((worker, time, batch))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


parts = st.tuples(st.integers(0, 1), st.integers(1, 3), st.integers(0, 2), st.integers(1, PART_RECORDS + 1))
busy = st.booleans()


@given(st.lists(st.one_of(parts, busy), max_size=30))
def test_every_part_leaves_in_its_order_and_at_its_time(acts: list[Any]) -> None:
    channels, sent = [Sent(), Sent()], defaultdict[tuple[int, int], list[tuple[int, int]]](list)
    batch_coalescer, number = BatchCoalescer(Clock()), 0
    for act in acts:
        if isinstance(act, bool):
            batch_coalescer.settle(act)
            assert act or not batch_coalescer
            continue
        channel, worker, time, records = act
        part = list(range(number, number + records))
        number += records
        before = part.copy()
        batch_coalescer.add(channels[channel], worker, time, part)
        assert part == before, "others may have it, too"
        sent[channel, worker] += [(time, record) for record in before]
    batch_coalescer.settle(False)
    assert not batch_coalescer
    for (channel, worker), records in sent.items():
        left = [(time, record) for to, time, batch in channels[channel].messages if to == worker for record in batch]
        assert left == records
    sizes = [len(batch) for each in channels for _, _, batch in each.messages]
    assert all(0 < size <= MESSAGE_RECORDS + PART_RECORDS for size in sizes)


def test_small_parts_leave_together_and_a_large_one_leaves_at_once() -> None:
    channel, batch_coalescer = Sent(), BatchCoalescer(Clock())
    for first in range(0, MESSAGE_RECORDS, MESSAGE_RECORDS // 8):
        assert not channel.messages
        batch_coalescer.add(channel, 1, 0, list(range(first, first + MESSAGE_RECORDS // 8)))
    assert channel.messages == [(1, 0, list(range(MESSAGE_RECORDS)))] and not batch_coalescer
    batch_coalescer.add(channel, 2, 0, [7] * PART_RECORDS)
    assert channel.messages[1:] == [(2, 0, [7] * PART_RECORDS)] and not batch_coalescer


def test_a_busy_worker_keeps_parts_for_a_while_and_no_longer() -> None:
    channel, clock = Sent(), Clock()
    batch_coalescer = BatchCoalescer(clock)
    batch_coalescer.add(channel, 1, 0, Pairs(["a"], [1]))
    batch_coalescer.settle(busy=True)
    batch_coalescer.add(channel, 1, 0, Pairs(["b"], [2]))
    clock.now += HELD_SECONDS / 2
    batch_coalescer.settle(busy=True)
    assert not channel.messages
    clock.now += HELD_SECONDS
    batch_coalescer.settle(busy=True)
    [(worker, time, batch)] = channel.messages
    assert (worker, time, batch.keys, batch.values) == (1, 0, ["a", "b"], [1, 2])


def test_what_is_kept_leaves_when_the_worker_has_nothing_else_to_do() -> None:
    hands = ByHand(MEMBERS)
    seen: dict[int, list[list[int]]] = defaultdict(list)
    handles = []
    for worker in hands.workers:
        with worker.dataflow() as scope:
            handle, stream = scope.new_input()

            def note(time: object, batch: list[int], at: int = worker.index) -> None:
                seen[at].append(batch)

            stream.exchange(lambda number: number).inspect_batch(note)
        handles.append(handle)
    for number in range(MEMBERS):
        handles[0].send_batch([number])
        handles[0].send_batch([number + MEMBERS])
    hands.workers[0].step()
    assert not hands.workers[0].graphs()[0].batch_coalescer
    hands.settle()
    assert seen == {index: [[index, index + MEMBERS]] for index in range(1, MEMBERS)} | {0: seen[0]}


def test_a_dataflow_whose_kept_records_cannot_travel_is_over() -> None:
    hands = ByHand(2)
    worker = hands.workers[0]
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        stream.exchange(lambda number: 1)
    [graph] = worker.graphs()

    def refuse(target: int, channel: Any, body: Any) -> None:
        raise CannotTravel("a value that cannot travel")

    handle.send_batch([1])
    worker.allocator.send = refuse  # type: ignore[method-assign]
    with pytest.raises(CannotTravel) as caught:
        worker.step()
    assert graph.over and any("'Exchange'" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("leaves", [0, 1])
def test_what_is_kept_leaves_before_the_word_that_it_was_all(leaves: int) -> None:
    worker = ByHand(2).workers[0]
    channel, told = Sent(), []
    with worker.dataflow() as scope:
        handle, _ = scope.new_input()
    handle.close()
    worker.step()  # it holds nothing; the other worker does
    [graph] = worker.graphs()

    def tell(targets: Any, channel_of: Any, body: Any) -> None:
        told.append((len(channel.messages), type(body)))

    worker.allocator.send_all = tell  # type: ignore[method-assign]
    graph.batch_coalescer.add(channel, 1, 0, [1])
    if leaves == worker.index:
        leaver = Leaver(1, (1,), worker.rescaling._host)
        leaver.draining = True
        for lane in RECORD_LANES:
            leaver.no_more_records(1, lane)
        leaver.turn()
    else:
        worker.rescaling._begin_leave((leaves,), (0, 1))
    assert told == ([(1, LaneEnd)] * len(Lane) if leaves == worker.index else [(1, NoMoreRecords)] * len(RECORD_LANES))
