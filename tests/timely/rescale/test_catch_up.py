"""Catching up of a joiner: in any order of messages, each batch counts once and in order, and none is missing."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.rescale.catch_up import DataflowProgress, Intake
from megaflow.timely.rescale.messages import Marker, RangeAnswer, RangeAsk, Snapshot, Stamps
from tests.examples import many

CHANGE = 3
MAIL = -1  # as a lane


@dataclass(frozen=True)
class Flow:
    """One dataflow during a join: which batches of each member the snapshot and the markers contain."""

    sent: dict[int, int]  # member -> number of batches that it sends in all
    folded: dict[int, int] | None  # member -> number in the snapshot; None: the server has yet to build it
    marked: dict[int, int | None]  # member -> number before its marker; None: it has yet to build it
    complete_at_server: bool  # when the snapshot is cut; then it holds everything
    complete_at: frozenset[int]  # members that know at their marker that the dataflow is complete
    complete_soon: bool = False  # so the server answers when it is asked for a range

    def batch(self, number: int, sender: int, index: int) -> Stamps:
        """Return the changes of a batch: a unique one, one that the next batch takes back, and one that is the same in
        all.
        """
        return [(sender, (number, index), 1), (9, sender, 1 if index % 2 == 0 else -1), (8, 0, 1)]


@st.composite
def flows(draw: Any, members: int) -> Flow:
    sent = {member: draw(st.integers(0, 6)) for member in range(members)}
    kind = draw(st.sampled_from(["running", "running", "complete", "unbuilt", "completing"]))
    up_to = {member: st.integers(0, count) for member, count in sent.items()}
    marked: dict[int, int | None] = {member: draw(st.one_of(st.none(), up_to[member])) for member in range(members)}
    if kind == "unbuilt":
        return Flow(sent, None, marked, False, frozenset())
    folded = {member: draw(up_to[member]) for member in range(members)}
    marked = {member: 0 if before is None else before for member, before in marked.items()}
    if kind == "running":
        for member in range(members):
            if marked[member] == 0 and folded[member] == 0:
                marked[member] = draw(st.sampled_from([0, None]))
        return Flow(sent, folded, marked, False, frozenset())
    if kind == "complete":
        return Flow(sent, dict(sent), marked, True, frozenset(draw(st.sets(st.integers(0, members - 1)))))
    knows = frozenset(draw(st.sets(st.integers(0, members - 1), min_size=1)))
    return Flow(sent, folded, marked, False, knows, draw(st.booleans()))


@dataclass
class World:
    """The lanes to a joiner. `lanes[member]` begins with its marker; the mail comes from the server."""

    flows: list[Flow]
    members: int
    lanes: dict[int, deque[Any]] = field(default_factory=dict)
    mail: deque[Any] = field(default_factory=deque)

    def __post_init__(self) -> None:
        for member in range(self.members):
            running = {n: flow.marked[member] for n, flow in enumerate(self.flows) if self.runs(flow, member)}
            unbuilt = tuple(n for n, flow in enumerate(self.flows) if flow.marked[member] is None)
            marker = Marker(CHANGE, len(self.flows), unbuilt, {n: m for n, m in running.items() if m is not None})
            rest = [
                (number, index)
                for number, flow in enumerate(self.flows)
                if member not in flow.complete_at
                for index in range(flow.marked[member] or 0, flow.sent[member])
            ]
            self.lanes[member] = deque([marker, *sorted(rest, key=lambda entry: entry[1])])
        running_there: dict[int, tuple[str, tuple[str, ...], Stamps, dict[int, int]]] = {}
        for number, flow in enumerate(self.flows):
            if flow.folded is not None and not flow.complete_at_server:
                total = self.total(number, {member: (0, count) for member, count in flow.folded.items()})
                running_there[number] = (f"flow {number}", ("shape",), stamps(total), dict(flow.folded))
        unbuilt = tuple(n for n, flow in enumerate(self.flows) if flow.folded is None)
        self.mail.append(Snapshot(CHANGE, len(self.flows), unbuilt, running_there))

    def runs(self, flow: Flow, member: int) -> bool:
        return flow.marked[member] is not None and member not in flow.complete_at

    def total(self, number: int, parts: dict[int, tuple[int, int]]) -> "ChangeBatch[Any]":
        """Return the sum of batches start to end - 1 of each member."""
        flow = self.flows[number]
        return ChangeBatch(
            ((location, time), delta)
            for member, (start, end) in parts.items()
            for index in range(start, end)
            for location, time, delta in flow.batch(number, member, index)
        )

    def answer(self, ask: RangeAsk) -> RangeAnswer:
        """Return the server's answer once it has seen the range, or the end of the dataflow."""
        flow = self.flows[ask.dataflow]
        changes: Stamps | None = None
        if not flow.complete_soon:
            changes = stamps(self.total(ask.dataflow, {ask.sender: (ask.start, ask.end)}))
        return RangeAnswer(CHANGE, ask.dataflow, ask.sender, ask.start, ask.end, changes)


def stamps(changes: "ChangeBatch[Any]") -> Stamps:
    return [(location, time, delta) for (location, time), delta in changes]


@st.composite
def worlds(draw: Any) -> World:
    members = draw(st.integers(1, 3))
    return World(draw(st.lists(flows(members), min_size=1, max_size=3)), members)


def taken_in(world: World, choices: Iterator[int]) -> Intake:
    """Return an intake that has read messages in a chosen order until it is ready."""
    intake = Intake(CHANGE, frozenset(range(world.members)))
    marked: set[int] = set()
    while not intake.is_ready:
        ready = [name for name, lane in [*world.lanes.items(), (MAIL, world.mail)] if lane]
        assert ready, "all has come, and yet it waits"
        name = ready[next(choices) % len(ready)]
        message: Any = world.mail.popleft() if name == MAIL else world.lanes[name].popleft()
        asks: list[RangeAsk] = []
        match message:
            case Marker():
                asks = intake.take_marker(name, message)
                marked.add(name)
            case Snapshot():
                asks = intake.take_snapshot(message)
            case RangeAnswer():
                intake.take_range(message)
            case (number, index):
                intake.take_batch(number, name, index, world.flows[number].batch(number, name, index))
        answers = [world.answer(ask) for ask in asks]
        world.mail.extend(answers if next(choices) % 2 else reversed(answers))
    assert intake.snapshot is not None and len(marked) == world.members
    return intake


@settings(max_examples=many(400), deadline=None)
@given(worlds(), st.lists(st.integers(0, 11), max_size=60))
def test_whatever_overtakes_what_the_sum_is_that_of_a_prefix_of_each_sender_and_the_rest_follows(
    world: World, order: list[int]
) -> None:
    intake = taken_in(world, iter([*order, *[0] * 500]))
    for number, flow in enumerate(world.flows):
        if number in intake.complete:
            assert flow.complete_at_server or flow.complete_at
            continue
        stream = intake.streams.get(number, DataflowProgress())
        following = {member: stream.following.get(member, 0) for member in range(world.members)}
        prefixes = world.total(number, {member: (0, end) for member, end in following.items()})
        assert sorted(stream.sum) == sorted(prefixes)
        assert not any(stream.waiting.values()), "nothing waits for what will never come"
        for member, due in following.items():
            assert due >= (flow.marked[member] or 0), "what is before the marker nobody sends again"
            rest = [index for flow_number, index in world.lanes[member] if flow_number == number and index >= due]
            assert rest == list(range(due, flow.sent[member])), "the rest comes by itself, without a gap"


@settings(max_examples=many(200), deadline=None)
@given(st.permutations(range(6)), st.integers(0, 6), st.integers(0, 6))
def test_a_stream_folds_ranges_and_batches_in_order_each_once(order: list[int], cut: int, end: int) -> None:
    stream = DataflowProgress()
    stream.begin([(number, 0, 1) for number in range(cut)], {7: cut})
    if end > cut:
        order.append(-1)
    for number in order:
        if number == -1:
            stream.take(7, cut, end, [(each, 0, 1) for each in range(cut, end)])
        elif number >= end:  # the marker is at `end`
            stream.take(7, number, number + 1, [(number, 0, 1)])
        due = stream.following[7]
        assert sorted(stream.sum) == [((each, 0), 1) for each in range(due)], "always the sum of a prefix"
    assert stream.following[7] == max(6, cut, end)


def marker(running: dict[int, int], built: int = 1, unbuilt: tuple[int, ...] = ()) -> Marker:
    return Marker(CHANGE, built, unbuilt, running)


def snapshot(following: dict[int, int], changes: Stamps) -> Snapshot:
    return Snapshot(CHANGE, 1, (), {0: ("flow", (), changes, following)})


def test_only_what_lies_between_the_snapshot_and_a_marker_is_asked_for() -> None:
    intake = Intake(CHANGE, frozenset([0, 1, 2]))
    assert intake.take_marker(0, marker({0: 4})) == []
    assert intake.take_snapshot(snapshot({0: 2, 1: 5, 2: 5}, [])) == [RangeAsk(CHANGE, 0, 0, 2, 4)]
    assert intake.take_marker(1, marker({0: 5})) == []
    assert intake.take_marker(2, marker({0: 3})) == [], "it holds more than the marker says"
    waits = not intake.is_ready
    intake.take_range(RangeAnswer(CHANGE, 0, 0, 2, 4, []))
    assert waits and intake.is_ready and intake.streams[0].following == {0: 4, 1: 5, 2: 5}


def test_a_dataflow_that_is_complete_for_anybody_is_asked_for_no_more() -> None:
    intake = Intake(CHANGE, frozenset([0, 1]))
    intake.take_snapshot(snapshot({0: 1, 1: 1}, []))
    assert intake.take_marker(1, marker({0: 2})) == [RangeAsk(CHANGE, 0, 1, 1, 2)]
    assert intake.take_marker(0, marker({})) == []
    waits = not intake.is_ready
    intake.take_range(RangeAnswer(CHANGE, 0, 1, 1, 2, None))
    assert waits and intake.is_ready and intake.complete == {0}


def test_a_dataflow_that_the_server_is_building_is_not_taken_for_complete() -> None:
    intake = Intake(CHANGE, frozenset([0]))
    intake.take_snapshot(Snapshot(CHANGE, 2, (1,), {}))
    assert intake.complete == {0}
    assert intake.take_marker(0, marker({1: 3}, built=2)) == [RangeAsk(CHANGE, 1, 0, 0, 3)]


def test_a_dataflow_that_nobody_has_built_yet_begins_with_its_first_batches() -> None:
    intake = Intake(CHANGE, frozenset([0]))
    intake.take_marker(0, marker({}, built=0))
    intake.take_batch(0, 0, 0, [(1, 0, 1)])
    intake.take_snapshot(Snapshot(CHANGE, 0, (), {}))
    intake.take_batch(0, 0, 1, [(1, 0, 1)])
    assert intake.is_ready and intake.complete == set()
    assert list(intake.streams[0].sum) == [((1, 0), 2)] and intake.streams[0].following == {0: 2}
