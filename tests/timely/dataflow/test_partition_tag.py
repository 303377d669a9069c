"""Stateless operators pass a batch's tag on to everything that they make from it, fused or not."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow.megaphone.base.event_inputs import carries
from megaflow.stream import EventStream, Stream
from megaflow.timely import Err, InputHandle, Ok
from megaflow.timely.dataflow.capture.event_format import Messages
from megaflow.timely.dataflow.flow_control.handoffs import Bounds
from megaflow.timely.dataflow.operators.linear import linear
from megaflow.timely.dataflow.partition_tag import Tagged, alike, untagged
from tests.examples import many
from tests.timely.workers import ByHand, by_hand

pytestmark = pytest.mark.about_fusion

Record = tuple[str, int]  # the tag, and a number
Step = tuple[str, int, int]  # kind, number of an earlier stream, a number that varies the step
STEPS: dict[str, Callable[[Any, int], Any]] = {
    "map": lambda s, n: s.map(lambda x: (x[0], x[1] + n)),
    "filter": lambda s, n: s.filter(lambda x: x[1] % 4 != n % 4),
    "few": lambda s, n: s.flat_map(lambda x: [x] * (n % 3)),
    "many": lambda s, n: s.flat_map(lambda x: (x for _ in range(3000 if x[1] % 5 == 0 else 1))),
    "inspect": lambda s, n: s.inspect(lambda x: None),
    "inspect_batch": lambda s, n: s.inspect_batch(lambda time, xs: None),
    "map_in_place": lambda s, n: s.map_in_place(lambda x: None),
    "branch": lambda s, n: s.branch(lambda time, x: (x[1] + n) % 2),
    "branch_when": lambda s, n: s.branch_when(lambda time: (time + n) % 2),
    "ok_err": lambda s, n: s.ok_err(lambda x: Ok(x) if x[1] % 2 else Err(x)),
    "partition": lambda s, n: s.partition(n % 3 + 1, lambda x: (x[1] % (n % 3 + 1), x)),
    "event_time": lambda s, n: s.event_time(lambda x: x[1]),
    "plain": lambda s, n: s.plain() if isinstance(s, EventStream) else s,
    "concat": lambda s, n: s.concat(),
    "twice": lambda s, n: (s, s),
}


def outcome(steps: list[Step], batches: list[tuple[str, list[int]]], fusion: bool) -> list[list[Record]]:
    """Return the records at the end of the last streams, in order. Each batch has the tag of its records."""
    hand, worker = by_hand()
    handle: InputHandle[Record] = InputHandle()
    ends: list[list[Record]] = []
    with worker.dataflow(fusion=fusion) as scope:
        scope.ref.graph.handoffs.bounds = Bounds(queue_records=1, window_records=1)
        port = linear(scope.input_from(handle).port, "Read", lambda time, batch: Tagged(batch, batch[0][0]))
        carries(port, "lines")
        streams: list[Any] = [Stream(port)]
        for what, which, n in steps:
            made = STEPS[what](streams[which % len(streams)], n)
            streams += made if isinstance(made, tuple | list) else [made]
        for stream in streams[-3:]:
            ends.append([])
            show(stream, ends[-1])
    for number, (tag, numbers) in enumerate(batches):
        handle.advance_to(number)
        handle.send_batch([(tag, n) for n in numbers])
    handle.close()
    hand.settle()
    return ends


def show(stream: Stream[Record], shown: list[Record]) -> None:
    def check(time: Any, batch: list[Any]) -> list[Any]:
        assert type(batch) is Tagged
        records = [record for _, record in batch] if isinstance(stream, EventStream) else list(batch)
        assert {tag for tag, _ in records} == {batch.tag}
        shown.extend(records)
        return []

    linear(stream.pairs if isinstance(stream, EventStream) else stream.port, "Show", check)


@settings(max_examples=many(150))
@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(-3, 8), st.integers(0, 8)), min_size=1, max_size=10),
    st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 20), min_size=1, max_size=4)), max_size=4),
)
def test_batches_keep_their_origin_through_any_tree_of_stateless_operators(
    steps: list[Step], batches: list[tuple[str, list[int]]]
) -> None:
    many = 0
    for number, (what, which, n) in enumerate(steps):  # an operator that multiplies records must not follow another
        many += what in ("many", "few")
        steps[number] = ("map" if what == "many" and many > 1 else what, -1 if which < 0 else which, n)
    assert outcome(steps, batches, True) == outcome(steps, batches, False)


def note(seen: list[Any], index: int, time: Any, batch: list[Any]) -> list[Any]:
    seen.append((index, type(batch), list(batch)))
    return []


def test_what_goes_to_other_workers_has_no_origin() -> None:
    hand = ByHand(2)
    handles: list[InputHandle[Record]] = []
    seen: list[tuple[int, type, Any]] = []
    events: list[Any] = []

    class Pusher:
        def push(self, event: Any) -> None:
            events.append(event)

    for worker in hand.workers:
        handles.append(InputHandle())
        with worker.dataflow() as scope:
            port = linear(scope.input_from(handles[-1]).port, "Read", lambda time, batch: Tagged(batch, "here"))
            stream: Stream[Record] = Stream(port)
            stream.capture_into(Pusher())
            for moved in (stream.broadcast(), stream.exchange(lambda record: 1), stream.distribute()):
                linear(moved.port, "Show", partial(note, seen, worker.index))
    handles[0].send(("here", 1))
    for handle in handles:
        handle.close()
    hand.settle()
    assert {index for index, *_ in seen} == {0, 1} and {kind for index, kind, _ in seen if index} == {list}
    assert [batch for *_, batch in seen] == [[("here", 1)]] * len(seen)
    assert [type(event.data) for event in events if isinstance(event, Messages)] == [list]


def test_a_batch_without_an_origin_is_passed_on_as_it_is() -> None:
    records, traced = [1, 2], Tagged([1], "here")
    assert alike(records, [0]) is records and untagged(records) is records
    assert alike(traced, traced) is traced
    assert alike(records, traced) == records == untagged(alike(records, traced))
