"""Replay: any number of captured sequences on any number of workers form one stream with a correct frontier."""

import io
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from megaflow.errors import BuildError, SourceError, UsageError
from megaflow.program import Worker, execute
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from megaflow.timely import (
    Antichain,
    Capability,
    Config,
    EventLink,
    EventReader,
    EventWriter,
    Exchange,
    InputHandle,
    Messages,
    ProbeHandle,
    Product,
    Progress,
    example,
)
from megaflow.timely.dataflow.capture.event_format import HEADER, Event, encode_event
from tests.timely.workers import EVERY, ByHand, by_hand, run

SHARES = [(5, 3), (3, 5), (4, 1), (1, 3), (2, 2), (0, 2)]  # writers, readers


def per_time(stream: Stream[Any]) -> Stream[tuple[Any, int]]:
    """Emit (time, number of records) on worker 0, once the time is over."""

    def build(capability: Capability, info: Any) -> Callable[[Any, Any], None]:
        capability.release()
        counts: Counter[Capability] = Counter()

        def logic(input: Any, output: Any) -> None:
            for reference, batch in input:
                counts[reference.retain()] += len(batch)
            for held in [held for held in counts if not input.frontier.less_equal(held.time)]:
                with held:
                    output.session(held).give((held.time, counts.pop(held)))

        return logic

    return stream.unary_frontier(Exchange(lambda record: 0), "PerTime", build)


def link_of(events: list[Event]) -> EventLink:
    link = EventLink()
    for event in events:
        link.push(event)
    return link


# From link to link -------------------------------------------------------------------------


@pytest.mark.parametrize("workers", EVERY)
@pytest.mark.parametrize("shift", [0, 1], ids=["on its own worker", "on the next worker"])
def test_what_is_captured_is_replayed_in_another_dataflow_of_the_process(workers: int, shift: int) -> None:
    """Case 34."""
    links = [EventLink() for _ in range(workers)]

    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            scope.to_stream(range(10)).capture_into(links[worker.index])
        with worker.dataflow() as scope:
            replayed = scope.replay([links[(worker.index + shift) % workers]])
            captured, probe = replayed.capture(), replayed.probe()
        assert probe.less_equal(0)
        while worker.step_or_park(None):
            pass
        return captured.extract(), probe.frontier

    assert execute(Config.process(workers), main) == [([(0, list(range(10)))], Antichain())] * workers


@pytest.mark.parametrize(("writers", "readers"), SHARES)
def test_the_parts_of_k_writers_are_one_stream_for_j_readers(writers: int, readers: int) -> None:
    links = [EventLink() for _ in range(writers)]

    def send(worker: Worker) -> None:
        numbers: InputHandle[int] = InputHandle()
        with worker.dataflow() as scope:
            scope.input_from(numbers).capture_into(links[worker.index])
        for number in range(10):
            numbers.send_batch([number] * (number + 1))
            numbers.advance_to(number + 1)

    def receive(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            return per_time(scope.replay(links[worker.index :: readers])).capture()

    if writers:
        run(writers, send)
    wanted = [(number, [(number, writers * (number + 1))]) for number in range(10)] if writers else []
    assert run(readers, receive) == [wanted, *[[]] * (readers - 1)]


@pytest.mark.parametrize("seed", range(40))
def test_every_partition_is_one_stream_in_every_interleaving(seed: int) -> None:
    """The monitor compares each frontier with a brute-force account while capture and replay run side by side."""
    dice = Random(seed)
    links = [EventLink() for _ in range(3)]
    shares = [dice.randrange(3) for _ in links]  # link -> worker that replays it; a worker may get none or all

    def build(worker: Worker, records: Stream[int], commands: Stream[Any]) -> Stream[Any]:
        records.exchange(lambda x: x).capture_into(links[worker.index])
        given = [link for link, share in zip(links, shares) if share == worker.index]
        return per_time(Scope(records.port.scope).replay(given))

    feeds = {w: [(t, dice.randrange(9)) for t in range(8) for _ in range(dice.randrange(3))] for w in range(3)}
    wanted = Counter(t for feed in feeds.values() for t, _ in feed)
    outputs = EngineCluster(seed, workers=3).run(build, feeds)
    assert sorted(outputs) == [(t, (t, count)) for t, count in sorted(wanted.items())]


def test_a_clone_of_a_link_is_a_second_replay() -> None:
    link = EventLink()

    def build(scope: Scope) -> Any:
        first, second = scope.replay([link.clone()]), scope.replay([link])
        scope.to_stream(range(3)).capture_into(link)
        return first.capture(), second.capture()

    assert example(build) == ([(0, [0, 1, 2])], [(0, [0, 1, 2])])


def test_a_link_is_replayed_once() -> None:
    link = EventLink()
    with pytest.raises(BuildError, match=r"test_replay\.py:\d+\).* is already being replayed; replay a clone\(\)"):
        example(lambda scope: (scope.replay([link]), scope.replay([link])))


def test_a_reader_is_replayed_once() -> None:
    reader = EventReader(io.BytesIO())
    with pytest.raises(BuildError, match="BytesIO is already being replayed; open it a second time"):
        example(lambda scope: (scope.replay([reader]), scope.replay([reader])))


def test_what_is_no_source_is_refused() -> None:
    with pytest.raises(UsageError, match=r"replay\(\['numbers'\]\): this is neither an EventLink nor an EventReader"):
        example(lambda scope: scope.replay(["numbers"]))  # type: ignore[list-item]


# Frontiers ---------------------------------------------------------------------------------


def replaying(shares: list[list[Any]], depth: int = 0) -> tuple[ByHand, list[ProbeHandle], list[tuple[Any, Any]]]:
    """Step workers by hand that replay their shares. Return their probes and the counts of worker 0."""
    hand = ByHand(len(shares))
    probes: list[ProbeHandle] = []
    counted: list[tuple[Any, Any]] = []
    for worker, share in zip(hand.workers, shares):
        with worker.dataflow() as scope:
            if depth:
                with scope.iterative() as inner:
                    replayed = inner.replay(share)
                    probes.append(replayed.probe())
                    per_time(replayed).inspect(counted.append)
            else:
                replayed = scope.replay(share)
                probes.append(replayed.probe())
                per_time(replayed).inspect(counted.append)
    hand.settle()
    return hand, probes, counted


@pytest.mark.parametrize("workers", EVERY)
def test_without_sequences_a_replay_ends_at_once(workers: int) -> None:
    hand, probes, _ = replaying([[] for _ in range(workers)])
    assert all(probe.done() for probe in probes)
    assert all(worker.installed_dataflows == {} for worker in hand.workers)


@pytest.mark.parametrize("shares", [[5], [3, 2], [2, 2, 1], [5, 0, 0], [0, 1, 4], [1, 1, 1, 1, 1, 0, 0]])
def test_a_time_is_over_when_the_last_sequence_has_passed_it(shares: list[int]) -> None:
    """Timely's issue 84: the counts of several sequences on several workers, in any order of their ends."""
    for last in range(5):
        links = [EventLink() for _ in range(5)]
        given = iter(links)
        hand, probes, counted = replaying([[next(given) for _ in range(share)] for share in shares])
        for link in [*(link for link in links if link is not links[last]), links[last]]:
            assert all(probe.frontier == Antichain([0]) for probe in probes)
            assert counted == []
            link.push(Messages(0, list(range(10))))
            hand.settle()
            assert counted == []
            link.push(Progress([(7, 1), (0, -1)]))
            hand.settle()
        assert counted == [(0, 50)]
        for link in links:
            assert all(probe.frontier == Antichain([7]) for probe in probes)
            link.push(Progress([(7, -1)]))
            hand.settle()
        assert all(probe.done() for probe in probes)
        assert all(worker.installed_dataflows == {} for worker in hand.workers)


def test_the_frontier_is_that_of_the_slowest_sequence() -> None:
    slow, fast = EventLink(), EventLink()
    hand, [probe], _ = replaying([[fast, slow]])
    steps = [(fast, 9, 0, 0), (slow, 4, 0, 4), (slow, 9, 4, 9), (slow, 12, 9, 9), (fast, 10, 9, 10)]
    for link, new, old, frontier in steps:
        link.push(Progress([(new, 1), (old, -1)]))
        hand.settle()
        assert probe.frontier == Antichain([frontier])
    fast.push(Progress([(10, -1)]))
    hand.settle()
    assert probe.frontier == Antichain([12])


@pytest.mark.parametrize("shares", [[2], [1, 1], [0, 2]])
def test_times_with_rounds_make_a_frontier_of_several_times(shares: list[int]) -> None:
    first, second = EventLink(), EventLink()
    given = iter([first, second])
    hand, probes, counted = replaying([[next(given) for _ in range(share)] for share in shares], depth=1)

    def push(link: EventLink, *changes: tuple[Product, int]) -> None:
        link.push(Progress(list(changes)))
        hand.settle()

    start = Product(0, 0)
    push(first, (Product(0, 5), 1), (Product(2, 2), 1), (start, -1))
    first.push(Messages(Product(2, 3), ["a"]))
    second.push(Messages(Product(2, 3), ["b"]))
    push(second, (Product(1, 3), 1), (start, -1))
    assert all(probe.frontier == Antichain([Product(0, 5), Product(1, 3), Product(2, 2)]) for probe in probes)
    push(first, (Product(2, 2), -1), (Product(2, 4), 1))
    assert counted == []  # the second may still send at (2, 3)
    push(second, (Product(1, 3), -1), (Product(3, 3), 1))
    assert counted == [(Product(2, 3), 2)]
    assert all(probe.frontier == Antichain([Product(0, 5), Product(2, 4), Product(3, 3)]) for probe in probes)
    push(first, (Product(0, 5), -1), (Product(2, 4), -1))
    push(second, (Product(3, 3), -1))
    assert all(probe.done() for probe in probes)
    assert all(worker.installed_dataflows == {} for worker in hand.workers)


def test_a_loop_is_captured_and_replayed_with_its_rounds() -> None:
    file = io.BytesIO()

    def collatz(scope: Scope) -> None:
        with scope.iterative() as loop:
            handle, back = loop.loop_variable(1)
            numbers = scope.to_stream(range(2, 30)).enter(loop).concat(back)
            stepped = numbers.map(lambda x: x // 2 if x % 2 == 0 else 3 * x + 1)
            stepped.filter(lambda x: x != 1).connect_loop(handle)
            stepped.capture_into(EventWriter(file))
            copies.append(stepped.capture())

    def again(scope: Scope) -> Any:
        with scope.iterative() as loop:
            return loop.replay([EventReader(io.BytesIO(file.getvalue()))]).capture()

    copies: list[Any] = []
    example(collatz)
    assert example(again) == copies[0].extract() != []


# Sequences that break the rules ------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([Progress([(3, 1), (0, -1)]), Messages(2, ["x"])], r"records at 2 come after its frontier \[3\]"),
        ([Progress([(3, 1), (0, -1)]), Progress([(2, 1), (3, -1)])], r"its frontier moves back from \[3\] to 2"),
        ([Progress([(0, -1)] * 2)], "gives up more capabilities at 0 than it has; do not mix the parts"),
        ([Progress([(3, -1)])], "gives up more capabilities at 3 than it has"),
        ([Messages(Product(0, 0), ["x"])], r"times are like Product\(0, 0\), but those here are like 0; replay"),
        ([Progress([(Product(0, 0), -1)])], r"times are like Product\(0, 0\), but those here are like 0"),
    ],
)
def test_a_sequence_that_breaks_the_rules_is_refused(events: list[Event], message: str) -> None:
    with pytest.raises(SourceError, match=f"an EventLink: breaks the rules of captured streams: .*{message}") as caught:
        example(lambda scope: scope.replay([link_of(events)]).capture())
    assert any("in operator 'Replay'" in note and __file__ in note for note in caught.value.__notes__)


# Files -------------------------------------------------------------------------------------

PARTS: list[list[Event]] = [  # batches, each followed by progress
    [Messages(0, ["a", "b"]), Progress([(1, 1), (0, -1)])],
    [Messages(1, ["c"]), Progress([(5, 1), (1, -1)])],
    [Messages(5, ["d"]), Messages(6, ["e"]), Progress([(5, -1)])],
]
EVENTS = [event for part in PARTS for event in part]
FRAMES = [encode_event(event) for event in EVENTS]
STORED = HEADER + b"".join(FRAMES)
ENDS = [len(HEADER) + sum(map(len, FRAMES[:count])) for count in range(len(FRAMES) + 1)]  # count -> bytes


def expected(length: int) -> tuple[list[str], list[int]]:
    """Return the records and the frontier of a file of `length` bytes."""
    complete = [event for event, end in zip(EVENTS, ENDS[1:]) if end <= length]
    records = [record for event in complete if isinstance(event, Messages) for record in event.data]
    counts: Counter[Any] = Counter({0: 1})
    for event in complete:
        if isinstance(event, Progress):
            counts.update(dict(event.changes))
    return records, [time for time, count in counts.items() if count]


def replay_file(file: Any, **more: Any) -> tuple[ByHand, Worker, list[str], ProbeHandle]:
    hand, worker = by_hand()
    seen: list[str] = []
    with worker.dataflow() as scope:
        probe = scope.replay([EventReader(file, **more)]).inspect(seen.append).probe()
    return hand, worker, seen, probe


@pytest.mark.parametrize("length", range(len(STORED)))
def test_of_a_file_cut_anywhere_all_complete_events_are_replayed_and_then_the_cut_is_named(
    length: int, tmp_path: Path
) -> None:
    """Case 36."""
    (tmp_path / "cut").write_bytes(STORED[:length])
    with (tmp_path / "cut").open("rb") as file:
        hand, _, seen, probe = replay_file(file)
        with pytest.raises(SourceError, match=rf"cut: ended at byte {length}, .*stream is not complete") as caught:
            hand.settle()
    records, frontier = expected(length)
    assert seen == records
    assert probe.frontier == Antichain(frontier)
    assert f"replay: nothing after {frontier} of this stream is complete" in caught.value.__notes__


@pytest.mark.parametrize("length", range(len(STORED)))
def test_a_growing_file_cut_anywhere_is_waited_for(length: int, tmp_path: Path) -> None:
    (tmp_path / "growing").write_bytes(STORED[:length])
    with (tmp_path / "growing").open("rb") as file:
        hand, worker, seen, probe = replay_file(file, growing=True)
        for _ in range(5):
            hand.now += 0.02
            worker.step()
            hand.settle()
            records, frontier = expected(length)
            assert (seen, probe.frontier) == (records, Antichain(frontier))
        with (tmp_path / "growing").open("ab") as rest:
            rest.write(STORED[length:])
        hand.now += 0.02
        worker.step()
        hand.settle()
        assert (seen, probe.frontier) == (["a", "b", "c", "d", "e"], Antichain())
        assert worker.installed_dataflows == {}
        assert file.closed


@pytest.mark.parametrize("position", range(0, len(STORED), 3))
def test_of_a_damaged_file_only_what_stands_before_the_damage_is_replayed(position: int) -> None:
    damaged = bytearray(STORED)
    damaged[position] ^= 0x10
    hand, _, seen, probe = replay_file(io.BytesIO(damaged))
    with pytest.raises(SourceError, match=r"^BytesIO: "):
        hand.settle()
    records, frontier = expected(position)
    assert seen == records
    assert probe.frontier == Antichain(frontier)


@pytest.mark.parametrize("workers", EVERY)
def test_files_of_two_workers_are_replayed_later_by_any_number(workers: int, tmp_path: Path) -> None:
    def write(worker: Worker) -> None:
        numbers: InputHandle[int] = InputHandle()
        with worker.dataflow() as scope:
            file = (tmp_path / f"part{worker.index}").open("wb")
            scope.input_from(numbers).exchange(lambda x: x).capture_into(EventWriter(file))
        for number in range(20):
            numbers.send_batch(list(range(50 * number)))
            numbers.advance_to(number + 1)

    def read(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            parts = range(worker.index, 2, worker.peers)
            return scope.replay([EventReader((tmp_path / f"part{part}").open("rb")) for part in parts]).capture()

    run(2, write)
    together: Counter[tuple[Any, int]] = Counter()
    for captured in run(workers, read):
        together.update((time, x) for time, records in captured for x in records)
    assert together == Counter((t, x) for t in range(20) for x in range(50 * t) for _ in range(2))


def test_a_file_that_the_program_closed_is_named(tmp_path: Path) -> None:
    (tmp_path / "closed").write_bytes(STORED)
    with (tmp_path / "closed").open("rb") as file:
        hand, _, _, _ = replay_file(file)
    with pytest.raises(SourceError, match="closed: cannot be read after byte 0: read of closed file"):
        hand.settle()


# Sockets and pipes -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["socket", "pipe", "buffered pipe"])
def test_bytes_that_dribble_in_never_block_and_never_make_half_an_event(kind: str) -> None:
    """Timely's issue 695."""
    near: Any
    far: Any
    if kind == "socket":
        near, far = socket.socketpair()
        send = near.sendall
    else:
        descriptor, near = os.pipe()
        far, send = os.fdopen(descriptor, "rb", 0 if kind == "pipe" else -1), lambda data: os.write(near, data)
    hand, worker, seen, probe = replay_file(far)
    for length in range(1, len(STORED) + 1):
        send(STORED[length - 1 : length])
        hand.now += 0.02
        worker.step()
        hand.settle()
        records, frontier = expected(length)
        assert (seen, probe.frontier) == (records, Antichain(frontier))
    assert worker.installed_dataflows == {}
    assert far.fileno() == -1 if kind == "socket" else far.closed
    near.close() if kind == "socket" else os.close(near)


@pytest.mark.parametrize("count", range(len(ENDS) - 1))
def test_a_socket_that_ends_early_is_an_error_even_between_events(count: int) -> None:
    near, far = socket.socketpair()
    with near:
        near.sendall(STORED[: ENDS[count]])
    hand, _, seen, probe = replay_file(far, growing=False)
    with pytest.raises(SourceError, match=rf"socket: ended at byte {ENDS[count]}, before the next event; its stream"):
        hand.settle()
    records, frontier = expected(ENDS[count])
    assert (seen, probe.frontier) == (records, Antichain(frontier))
    far.close()


def test_a_connection_that_breaks_is_an_error_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, address = listener.accept()
    hand, _, _, _ = replay_file(far)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    near.close()  # with a reset
    with pytest.raises(SourceError, match=f"socket to 127.0.0.1:{address[1]}: cannot be read after byte 0: .*reset"):
        hand.settle()
    far.close()


def test_a_dataflow_replays_what_itself_sends_through_a_socket() -> None:
    near, far = socket.socketpair()

    def build(scope: Scope) -> Any:
        scope.to_stream(range(300_000)).capture_into(EventWriter(near))  # far more than the socket holds
        return scope.replay([EventReader(far)]).capture()

    assert example(build) == [(0, list(range(300_000)))]


# Rest --------------------------------------------------------------------------------------


class Counting:
    """Empty source that counts how often it is read."""

    def __init__(self, announces: bool) -> None:
        self.asked = 0
        self._announces = announces

    def attach(self, wake: Callable[[], None]) -> bool:
        return self._announces

    def read(self) -> Event | None:
        self.asked += 1
        return None

    def close(self) -> None: ...


def test_an_idle_file_is_looked_at_fifty_times_a_second() -> None:
    source = Counting(announces=False)
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        scope.replay([source])
    hand.settle()
    assert source.asked == 1
    for _ in range(10_000):
        hand.now += 0.0001
        worker.step()
        hand.settle()
    assert 45 <= source.asked <= 60


def test_an_idle_link_is_not_looked_at() -> None:
    source = Counting(announces=True)
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        scope.replay([source])
    hand.settle()
    hand.now += 1000
    worker.step()
    assert source.asked == 1


def test_an_idle_replay_costs_almost_no_time() -> None:
    near, far = socket.socketpair()

    def main(worker: Worker) -> float:
        with worker.dataflow() as scope:
            scope.replay([EventReader(far)])
        worker.step()
        start, used = time.monotonic(), time.thread_time()
        while time.monotonic() < start + 0.5:
            worker.step_or_park(0.5)
        near.sendall(STORED)
        return time.thread_time() - used

    [used] = execute(Config.thread(), main)
    assert used < 0.25  # of half a second; really some thousandths
    near.close()


def test_a_full_sequence_leaves_the_others_their_turn() -> None:
    class Endless(Counting):
        def read(self) -> Event | None:
            self.asked += 1
            return Messages(0, [self.asked])

    endless, link = Endless(announces=True), link_of([Messages(0, ["x"])])
    seen: list[Any] = []
    _, worker = by_hand()
    with worker.dataflow() as scope:
        scope.replay([endless, link]).inspect(seen.append)
    worker.step()
    assert "x" in seen
    assert endless.asked < 1000
