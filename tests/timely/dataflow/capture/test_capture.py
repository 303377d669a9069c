"""Captured streams: the events that they produce, and how these reach files, sockets and links."""

import gc
import io
import os
import socket
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from megaflow.errors import BuildError, CannotTravel, PeerLost, UsageError
from megaflow.program import Worker
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from megaflow.timely import EventLink, EventReader, EventWriter, InputHandle, Messages, Product, Progress, example
from megaflow.timely.dataflow.capture.event_format import HEADER, Event, encode_event
from megaflow.timely.dataflow.capture.event_link import EventSource
from megaflow.timely.order import Time
from megaflow.timely.progress.antichain import MutableAntichain
from tests.timely.workers import EVERY, by_hand, run


class Recorder:
    """Pusher that checks each event against the rules of captured streams."""

    def __init__(self, least: Time = 0) -> None:
        self.events: list[Event] = []
        self.counts = MutableAntichain([(least, 1)])

    def push(self, event: Event) -> None:
        before = self.counts.frontier
        assert not before.is_empty(), f"{event} comes after the end"
        if isinstance(event, Messages):
            assert before.less_equal(event.time)
        else:
            self.counts.update_iter(event.changes)
            assert all(count > 0 for _, count in self.counts.counts())
            assert all(before.less_equal(time) for time in self.counts.frontier)
        self.events.append(event)

    def records(self) -> list[tuple[Time, Any]]:
        return [(event.time, record) for event in self.events if isinstance(event, Messages) for record in event.data]


def events_of(source: EventSource) -> list[Event]:
    """Return all events that can be read now."""
    found = []
    while (event := source.read()) is not None:
        found.append(event)
    return found


# Which events ------------------------------------------------------------------------------


def test_a_stream_of_three_times_makes_messages_and_then_progress() -> None:
    hand, worker = by_hand()
    link, numbers = EventLink(), InputHandle[str]()
    with worker.dataflow() as scope:
        scope.input_from(numbers).capture_into(link)
    hand.settle()
    assert events_of(link) == []  # the capability at 0 is implied
    numbers.send("a")
    numbers.advance_to(4)
    hand.settle()
    assert events_of(link) == [Messages(0, ["a"]), Progress([(4, 1), (0, -1)])]
    numbers.send("b")
    numbers.close()
    hand.settle()
    assert events_of(link) == [Messages(4, ["b"]), Progress([(4, -1)])]
    assert worker.installed_dataflows == {}


@pytest.mark.parametrize("workers", EVERY)
def test_every_workers_events_obey_the_rules(workers: int) -> None:
    recorders = [Recorder() for _ in range(workers)]

    def main(worker: Worker) -> None:
        numbers: InputHandle[int] = InputHandle()
        with worker.dataflow() as scope:
            scope.input_from(numbers).exchange(lambda x: x).capture_into(recorders[worker.index])
        for number in range(30):
            numbers.send_batch(list(range(number)))
            numbers.advance_to(number + 1)
            worker.step()

    run(workers, main)
    for index, recorder in enumerate(recorders):
        assert recorder.counts.is_empty()
        wanted = [(t, x) for t in range(30) for x in range(t) if x % workers == index for _ in range(workers)]
        assert sorted(recorder.records()) == wanted


@pytest.mark.parametrize("seed", range(30))
def test_events_obey_the_rules_in_every_interleaving(seed: int) -> None:
    recorders: dict[int, Recorder] = {}

    def build(worker: Worker, records: Stream[int], commands: Stream[Any]) -> Stream[int]:
        moved = records.exchange(lambda x: x)
        moved.capture_into(recorders.setdefault(worker.index, Recorder()))
        return moved

    feeds = {worker: [(time, worker + time) for time in range(8)] for worker in range(3)}
    outputs = EngineCluster(seed, workers=3).run(build, feeds)
    captured = [pair for recorder in recorders.values() for pair in recorder.records()]
    assert sorted(captured) == sorted(outputs)
    assert all(recorder.counts.is_empty() for recorder in recorders.values())


def test_a_loops_events_have_its_times() -> None:
    recorder = Recorder(Product(0, 0))

    def build(scope: Any) -> None:
        with scope.iterative() as loop:
            handle, back = loop.loop_variable(1)
            numbers = scope.to_stream([1, 3]).enter(loop).concat(back).map(lambda x: x + 1)
            numbers.filter(lambda x: x < 5).connect_loop(handle)
            numbers.capture_into(recorder)

    example(build)
    rounds = [(0, 2), (0, 4), (1, 3), (1, 5), (2, 4), (3, 5)]
    assert sorted((time.inner, x) for time, x in recorder.records() if isinstance(time, Product)) == rounds
    assert recorder.counts.is_empty()


def test_of_a_frontier_of_several_times_only_what_changes_is_told() -> None:
    first, second, third = Product(0, 5), Product(1, 2), Product(1, 3)
    told: list[Event] = [
        Progress([(first, 1), (second, 1), (Product(0, 0), -1)]),
        Progress([(third, 1), (second, -1)]),
        Progress([(first, -1)]),
        Progress([(third, -1)]),
    ]
    hand, worker = by_hand()
    link, recorder = EventLink(), Recorder(Product(0, 0))
    with worker.dataflow() as scope, scope.iterative() as inner:
        inner.replay([link]).capture_into(recorder)
    for event in told:
        hand.settle()
        link.push(event)
    hand.settle()
    assert recorder.events == told
    assert recorder.counts.is_empty()


def test_any_object_passes_a_link() -> None:  # it stays in the process
    link, lock = EventLink(), threading.Lock()
    example(lambda scope: scope.to_stream([lock]).capture_into(link))
    assert events_of(link)[0] == Messages(0, [lock])


@pytest.mark.slow
def test_a_million_events_in_a_link_are_dropped_without_recursion() -> None:
    """Case 53."""
    link = EventLink()
    clone = link.clone()
    for _ in range(1_000_000):
        link.push(Progress([]))
    assert clone.read() == Progress([])
    del link, clone
    gc.collect()


# Files -------------------------------------------------------------------------------------


def write(file: Any, records: Any = range(3)) -> None:
    """Run a dataflow that captures some records into the file."""
    example(lambda scope: scope.to_stream(records).capture_into(EventWriter(file)))


STORED = HEADER + encode_event(Messages(0, [0, 1, 2])) + encode_event(Progress([(0, -1)]))


def test_a_file_holds_the_header_and_the_events_and_is_closed(tmp_path: Path) -> None:
    file = (tmp_path / "numbers.events").open("wb")
    write(file)
    assert file.closed
    assert (tmp_path / "numbers.events").read_bytes() == STORED


def test_a_file_in_memory_stays_open() -> None:
    file = io.BytesIO()
    write(file)
    assert file.getvalue() == STORED


def test_an_unbuffered_file_is_written_to_the_end(tmp_path: Path) -> None:
    class Slow(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data)[:7])

    write(Slow(tmp_path / "numbers.events", "w"))
    assert (tmp_path / "numbers.events").read_bytes() == STORED


def test_what_is_captured_can_be_read_at_once_while_the_stream_goes_on(tmp_path: Path) -> None:
    hand, worker = by_hand()
    numbers: InputHandle[str] = InputHandle()
    with worker.dataflow() as scope:
        scope.input_from(numbers).capture_into(EventWriter((tmp_path / "live").open("wb")))
    reader = EventReader((tmp_path / "live").open("rb"), growing=True)
    for number in range(3):
        numbers.send("a")
        numbers.advance_to(number + 1)
        hand.settle()
        assert events_of(reader) == [Messages(number, ["a"]), Progress([(number + 1, 1), (number, -1)])]
    numbers.close()
    hand.settle()
    assert events_of(reader) == [Progress([(3, -1)])]
    reader.close()


def test_a_record_that_cannot_be_stored_is_named_with_the_operator() -> None:
    with pytest.raises(CannotTravel, match=r"type _thread\.lock") as caught:
        write(io.BytesIO(), [threading.Lock()])
    assert any("in operator 'CaptureInto'" in note and __file__ in note for note in caught.value.__notes__)


@pytest.mark.parametrize("kind", [EventLink, lambda: EventWriter(io.BytesIO())], ids=["link", "writer"])
def test_two_captures_into_one_are_refused(kind: Any) -> None:
    def build(scope: Any) -> None:
        pusher = kind()
        scope.to_stream([1]).capture_into(pusher)
        scope.to_stream([2]).capture_into(pusher)

    with pytest.raises(BuildError, match=r"test_capture\.py:\d+.*already receives the events of another capture"):
        example(build)


def test_a_file_open_as_text_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "text").open("w") as file, pytest.raises(UsageError, match=r"text is open as text; .*'wb'"):
        EventWriter(file)
    with (tmp_path / "text").open("r") as file, pytest.raises(UsageError, match=r"text is open as text; .*'rb'"):
        EventReader(file)


def test_a_path_is_refused_with_the_way_to_open_it() -> None:
    for kind, mode in [(EventWriter, "wb"), (EventReader, "rb")]:
        with pytest.raises(UsageError) as caught:
            kind("numbers")
        name = kind.__name__
        assert str(caught.value).startswith(f"{name}('numbers'): this is neither a file")
        assert str(caught.value).endswith(f"use {name}(open(PATH, '{mode}'))")


# Sockets and pipes -------------------------------------------------------------------------


def socket_pair() -> tuple[Any, Any]:
    return socket.socketpair()


def pipe_pair() -> tuple[BinaryIO, BinaryIO]:
    far, near = os.pipe()
    return os.fdopen(near, "wb"), os.fdopen(far, "rb")


@pytest.mark.parametrize("pair", [socket_pair, pipe_pair])
def test_a_slow_receiver_blocks_no_worker_and_loses_nothing(pair: Any) -> None:
    near, far = pair()
    hand, worker = by_hand()
    writer = EventWriter(near)
    with worker.dataflow() as scope:
        scope.to_stream(range(500_000)).capture_into(writer)
    hand.settle()
    assert writer.pending_bytes > 1_000_000  # nothing was read, and yet the steps are over
    assert worker.installed_dataflows  # the end waits for unsent bytes
    reader, found = EventReader(far), Recorder()
    while not found.counts.is_empty():
        event = reader.read()
        if event is not None:
            found.push(event)
            continue
        hand.now += 0.02
        worker.step()
    hand.settle()
    assert worker.installed_dataflows == {}
    assert [x for _, x in found.records()] == list(range(500_000))
    assert writer.pending_bytes == 0
    assert near.fileno() == -1 if isinstance(near, socket.socket) else near.closed
    far.close()


def test_a_slow_receiver_is_tried_fifty_times_a_second_however_much_comes() -> None:
    class Counted(EventWriter):
        tried = 0

        def flush(self) -> bool:
            self.tried += 1
            return super().flush()

    near, far = socket.socketpair()
    writer, numbers = Counted(near), InputHandle[str]()
    hand, worker = by_hand()
    with worker.dataflow() as scope:
        scope.input_from(numbers).capture_into(writer)
    numbers.send("x" * 10_000_000)
    for number in range(100):
        numbers.advance_to(number + 1)
        hand.now += 0.0007
        hand.settle()
    before = writer.tried
    for _ in range(1000):
        hand.now += 0.001
        worker.step()
        hand.settle()
    assert 45 <= writer.tried - before <= 60
    near.close()
    far.close()


@pytest.mark.parametrize("pair", [socket_pair, pipe_pair])
def test_a_receiver_that_is_gone_is_reported_with_the_operator(pair: Any) -> None:
    near, far = pair()
    far.close()
    with pytest.raises(PeerLost, match="the receiver closed the connection before the stream was complete") as caught:
        write(near)
    assert any("in operator 'CaptureInto'" in note for note in caught.value.__notes__)
    near.close()


def test_a_socket_is_called_by_its_peers_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as near:
            assert str(EventWriter(near)) == f"socket to 127.0.0.1:{port}"
            assert str(EventReader(near)) == f"socket to 127.0.0.1:{port}"
