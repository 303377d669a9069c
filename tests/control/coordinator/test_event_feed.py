"""The feed of a job's events: what it makes of the controller's events, its bounds, and its way to a successor."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.control import job_events
from megaflow.control.checkpoint_messages import CheckpointReady, Committed
from megaflow.control.coordinator.base.events import Asked, Event, Mailed, Reply, StartWorkers, Ticked
from megaflow.control.coordinator.controller import event_feed
from megaflow.control.coordinator.controller.controller import Controller
from megaflow.control.coordinator.controller.event_feed import EventFeed
from megaflow.control.job_events import Body, EventsPart
from megaflow.control.messages import (
    AddProcesses,
    BinsInstalled,
    Done,
    GetState,
    Reconfigure,
    Refused,
    Request,
    StopJob,
    TrialAnswer,
    WatchQuery,
)
from megaflow.control.reports import LedgerEntry
from megaflow.durable.segments import SegmentRef
from megaflow.megaphone.base.routing import Move
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.membership import founding

TABLE = (0, 1, 0, 1)


def new(attempt: int = 0, state: Any = None) -> EventFeed:
    return EventFeed(attempt, 0, (1, 0), TABLE, lambda: 1000.0, state)


def seen(feed: EventFeed, attempt: int = -1, next: int = 1) -> list[Body]:
    part = feed.part(WatchQuery(attempt, next))
    return [] if part is None else [each.body for each in part.events]


def moved(*bins: int, epoch: int = 5, operator: str = "count", worker: int = 1, seconds: float = 0.5) -> Mailed:
    rows = (LedgerEntry(operator, bin, epoch, 0, worker, 10, 2, seconds * (bin + 1)) for bin in bins)
    return Mailed(worker, BinsInstalled(tuple(rows)))


def test_a_feed_begins_with_its_coordinator_and_ticks_add_nothing() -> None:
    feed = new()
    for _ in range(3):
        feed.observe(Ticked(3), [], TABLE, 1.0)
    assert seen(feed) == [job_events.CoordinatorStarted(0, (0, 1))]
    assert feed.part(WatchQuery(0, 2)) is None


def test_a_move_through_the_controller_is_a_step_its_bins_and_its_end() -> None:
    controller = Controller("job", founding([0, 1]), {"count": 4}, pushed=True)
    feed = EventFeed(0, 0, (0, 1), controller.moves.table, lambda: 1000.0)
    events: list[Event] = [Ticked(0), Asked("me", Request(7, Reconfigure((Move(0, 1), Move(2, 1)))))]
    now, epoch = 0.0, None
    while events:
        said = controller.handle(event := events.pop(0), now)
        feed.observe(event, said, controller.moves.table, now)
        for each in said:
            body: Any = getattr(each, "body", None)
            if type(body).__name__ == "TrialAsk":
                events.append(Mailed(0, TrialAnswer(body.by, body.id, None, ())))
            if isinstance(each, Reply) and (at := getattr(each.message, "epoch", None)) is not None:
                epoch = at
                events += [moved(0, 2, epoch=at), Ticked(at + 1)]
        now += 0.01
    assert epoch is not None
    _, begun, arrived, done = seen(feed)
    assert begun == job_events.StepBegun(epoch, ((0, 0, 1), (2, 0, 1)))
    assert arrived == job_events.BinsArrived("count", epoch, 1, (0, 2), 20, 4, 1.5)
    assert isinstance(done, job_events.StepDone) and (done.report.epoch, done.report.bins) == (epoch, 2)


def test_refused_commands_are_named_and_refused_questions_are_not() -> None:
    feed = new()
    for id, body in (1, AddProcesses(2)), (2, GetState("count", "a")), (3, StopJob()):
        refused = [] if id == 3 else [Reply("me", Refused(id, "no"))]
        feed.observe(Asked("me", Request(id, body)), refused, TABLE, 0.0)
    feed.observe(Ticked(1), [Reply("me", Done(3, None))], TABLE, 0.0)
    assert seen(feed)[1:] == [job_events.RequestRefused("add-workers", "no"), job_events.StopRequested()]
    assert not feed._open, "answered requests are forgotten"


def test_a_checkpoint_has_its_duration_and_its_bytes() -> None:
    feed = new()
    begun: Any = object.__new__(event_feed.CheckpointBegun)
    for name, value in (("checkpoint", 4), ("epoch", 9), ("names", ("noon",))):
        object.__setattr__(begun, name, value)
    feed.observe(Ticked(1), [begun], TABLE, 10.0)
    segments = tuple(SegmentRef(f"s{n}", 4, n, 100, 0, 1) for n in range(2))
    feed.observe(Ticked(1), [CheckpointReady(4, segments, (), ())], TABLE, 10.5)
    feed.observe(Committed(4), [], TABLE, 11.0)
    assert seen(feed)[1:] == [
        job_events.CheckpointStarted(4, 9, ("noon",)), job_events.CheckpointCommitted(4, 200, 1.0)
    ]  # fmt: skip


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=60))
def test_watchers_see_each_event_once_and_in_order_or_learn_how_many_are_lost(steps: list[tuple[int, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_feed, "EVENTS_MAX", 8)
        patch.setattr(event_feed, "BINS_MAX", 20)
        feed, attempt, next, numbers, lost = new(3), -1, 1, [], 0
        for bins, asks in [*steps, (1, True)]:
            feed.observe(moved(*range(bins)), [], TABLE, 0.0)
            if bins == 6:  # the next coordinator continues
                feed = new(3, decode(encode(feed.state())))
            assert len(feed._kept) <= 8 and (feed._bins <= 20 or len(feed._kept) == 1)
            if asks and (part := feed.part(WatchQuery(attempt, next))) is not None:
                part = decode(encode(part))
                assert isinstance(part, EventsPart) and part.attempt == 3
                expected = next + part.lost
                assert [each.number for each in part.events] == [*range(expected, part.next)]
                numbers += [each.number for each in part.events]
                attempt, next, lost = part.attempt, part.next, lost + part.lost
        assert feed.part(WatchQuery(attempt, next)) is None
        assert len(numbers) + lost == feed.next - 1 and numbers == sorted(set(numbers))


def test_a_watcher_of_an_earlier_attempt_gets_all_events_of_this_one() -> None:
    feed = new(attempt=2)
    feed.observe(Ticked(1), [StartWorkers(1, 0)], TABLE, 0.0)
    assert len(seen(feed, attempt=1, next=40)) == 2 and len(seen(feed, attempt=2, next=2)) == 1
