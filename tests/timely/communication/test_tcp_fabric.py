"""Workers of several processes exchange messages over real sockets."""

import random
import selectors
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from megaflow.errors import CannotTravel, ProtocolError
from megaflow.timely.communication.allocator import Allocator, FailureReport
from megaflow.timely.communication.channel import Channel, Envelope, Lane
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.tcp import is_silent
from megaflow.timely.communication.tcp_fabric import TcpFabric
from megaflow.timely.communication.wire import EVERYBODY, MAX_FRAME_BYTES, pack_message

Collect = Callable[[Allocator, int], list[Envelope]]


def test_messages_keep_their_order_per_source_target_and_lane(make_cluster: Any, collect: Collect) -> None:
    cluster = make_cluster(3, workers=2)
    ends = cluster.connect()
    count = 200

    def work(end: Allocator) -> dict[tuple[int, Lane], list[int]]:
        dice = random.Random(end.index)
        numbers: dict[tuple[int, Lane], int] = defaultdict(int)
        found: list[Envelope] = []
        for _ in range(count):
            for target in range(6):
                lane = dice.choice(list(Lane))
                body = (numbers[target, lane], "x" * dice.choice([1, 1, 1, 3 * MAX_FRAME_BYTES if target == 0 else 9]))
                end.send(target, Channel(lane, 7, end.index), body)
                numbers[target, lane] += 1
            if dice.random() < 0.2:
                end.flush()
                found += end.receive()
        found += collect(end, 6 * count - len(found))
        order: dict[tuple[int, Lane], list[int]] = defaultdict(list)
        for envelope in found:
            assert envelope.channel[1:] == (7, envelope.source)
            order[envelope.source, envelope.channel.lane].append(envelope.body[0])
        end.finish()
        return order

    for future in [cluster.run(work, end) for end in ends]:
        for order in future.result(180).values():
            assert order == list(range(len(order)))


def test_a_body_stays_a_reference_within_a_process_and_equals_across(make_cluster: Any, collect: Collect) -> None:
    ends = make_cluster(2, workers=2).connect()
    body = [(1, "a"), (2, "b")]
    ends[0].send_all([0, 1, 2, 3], Channel(Lane.PROGRESS, 0, 1), body)
    ends[0].flush()
    assert next(e.body for e in ends[0].receive()) is body
    assert next(e.body for e in ends[1].receive()) is body
    assert collect(ends[2], 1) == [Envelope(Channel(Lane.PROGRESS, 0, 1), 0, body)]
    assert collect(ends[3], 1) == [Envelope(Channel(Lane.PROGRESS, 0, 1), 0, body)]


def progress_bytes(cluster: Any, target: int) -> int:
    """Return the bytes that the first process has queued for the process of this worker."""
    return int(cluster.fabrics[0].peers.links[target].pending[Lane.PROGRESS])


@pytest.mark.parametrize(("targets", "copies"), [((3, 4, 5), 1), ((3, 5), 2), ((4,), 1), ((5, 3, 4), 1)])
def test_progress_for_all_workers_of_another_process_travels_there_once(
    make_cluster: Any, collect: Collect, targets: tuple[int, ...], copies: int
) -> None:
    cluster = make_cluster(2, workers=3)
    ends = cluster.connect()
    ends[1].send(4, Channel.progress(0), (0, [(1, 2, 3)]))
    one = progress_bytes(cluster, 4)
    ends[1].send_all((0, *targets, 2), Channel.progress(0), (1, [(1, 2, 3)]))
    assert progress_bytes(cluster, 4) == one + copies * one
    for target in (3, 4, 5):
        ends[1].send(target, Channel.progress(0), (2, []))
    ends[0].flush()
    for end in ends:
        numbers = [0] * (end.index == 4) + [1] * (end.index in (0, 2, *targets)) + [2] * (end.index > 2)
        found = [(each.source, each.channel, each.body[0]) for each in collect(end, len(numbers))]
        assert found == [(1, Channel.progress(0), number) for number in numbers]


def test_records_for_all_workers_of_another_process_are_a_copy_for_each(make_cluster: Any, collect: Collect) -> None:
    ends = make_cluster(2, workers=2).connect()
    ends[0].send_all([2, 3], Channel(Lane.DATA, 0, 0), [[1]])
    ends[0].flush()
    [mine], [others] = collect(ends[2], 1), collect(ends[3], 1)
    assert mine == others
    assert mine.body[0] is not others.body[0], "what user code may change is no other worker's"


def test_progress_is_fanned_out_to_those_only_who_have_not_forgotten_the_sender(run_cluster: Any) -> None:
    _, workers = run_cluster(2, workers=2)
    teller, forgetful, other = workers[0], workers[2], workers[3]
    forgetful.do(forgetful.end.forget, [0, 1])
    teller.do(lambda: (teller.end.send_all([2, 3], Channel.progress(0), "told"), teller.end.flush()))
    assert other.next().body == "told"
    assert forgetful.arrived.empty()
    teller.do(teller.end.forget, [2, 3])
    teller.do(lambda: (teller.end.send_all([2, 3], Channel.progress(0), "not told"), teller.end.flush()))
    another = workers[1]
    another.do(lambda: (another.end.send_all([2, 3], Channel.progress(0), "by another"), another.end.flush()))
    assert other.next().body == "by another"


@pytest.mark.parametrize(("lane", "target"), [(Lane.DATA, EVERYBODY), (Lane.MAIL, EVERYBODY), (Lane.PROGRESS, -2)])
def test_only_progress_may_be_addressed_to_everybody(
    make_cluster: Any, serve: Callable[[Allocator], None], lane: Lane, target: int
) -> None:
    cluster = make_cluster(2, workers=2)
    ends = cluster.connect()
    cluster.fabrics[0].peers.links[2].queue(lane, pack_message(0, target, Channel(lane, 0, 0), encode(1)))
    ends[0].flush()
    with pytest.raises(ProtocolError, match=f"worker {target}, which is not in this process"):
        serve(ends[2])


def test_a_busy_worker_polls_the_sockets_all_the_same(make_cluster: Any) -> None:
    ends = make_cluster(2).connect()
    for number in range(3):
        ends[0].send(1, Channel(Lane.DATA, 0, 0), number)
        ends[0].flush()
        found: list[Envelope] = []
        deadline = time.monotonic() + 90.0
        while not found and time.monotonic() < deadline:
            found = ends[1].receive(busy=True)
        assert [each.body for each in found] == [number]


def test_a_body_is_encoded_when_it_is_sent(make_cluster: Any, collect: Collect) -> None:
    ends = make_cluster(2).connect()
    body = [1]
    ends[0].send(1, Channel(Lane.DATA, 0, 0), body)
    body.append(2)
    with pytest.raises(CannotTravel, match="lock"):
        ends[0].send(1, Channel(Lane.DATA, 0, 0), threading.Lock())
    ends[0].flush()
    assert collect(ends[1], 1)[0].body == [1]


def test_a_message_of_fifty_megabytes_arrives_and_urgent_ones_overtake_it(make_cluster: Any, collect: Collect) -> None:
    cluster = make_cluster(2)
    a, b = cluster.connect()
    large = b"0123456789" * 5_000_000
    a.send(1, Channel(Lane.DATA, 0, 0), large)
    assert a.pending_bytes > 30_000_000
    a.send(1, Channel.progress(0), "urgent")
    sending = cluster.run(a.finish)
    first, second = collect(b, 2)
    assert (first.body, second.body == large) == ("urgent", True)
    b.finish()
    sending.result(90)
    assert a.pending_bytes == 0


def test_of_two_workers_that_finish_at_once_only_the_last_takes_leave(make_cluster: Any, monkeypatch: Any) -> None:
    """The other worker overtakes the first one just after it took itself out. The first must not close twice."""
    cluster = make_cluster(2, workers=2)
    ends = cluster.connect()
    fabric = cluster.fabrics[0]
    out = threading.Event()
    rest: list[Future[None]] = []

    class Window:
        """Lock under which workers take themselves out. When it is released, the other worker proceeds first."""

        lock = threading.Lock()

        def __enter__(self) -> None:
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            mine = threading.current_thread() is threading.main_thread()
            left = len(fabric._unfinished)
            self.lock.release()
            if not mine and left == 0:
                out.set()
            elif mine and left == 1 and not rest:
                rest.append(cluster.run(ends[1].finish))
                assert out.wait(90)

    def poll(seconds: float | None, flush: bool = True) -> None:
        """Show the first worker nothing of the others' end except that it is over."""
        if threading.current_thread() is threading.main_thread():
            end_others()
        else:
            TcpFabric.poll(fabric, seconds, flush)

    def end_others() -> None:
        rest.extend(cluster.run(end.finish) for end in ends[2:])
        for each in rest:
            each.result(90)

    monkeypatch.setattr(fabric, "_state", Window())
    monkeypatch.setattr(fabric, "poll", poll)
    ends[0].finish()
    end_others()


def test_a_parked_worker_is_woken_by_a_message_well_under_ten_ms(make_cluster: Any) -> None:
    cluster = make_cluster(2, workers=2)
    ends = cluster.connect()
    rounds = 300

    def play(end: Allocator, other: int) -> list[float]:
        turn, seconds = 0, []
        if end.index < 2:
            end.send(other, Channel(Lane.DATA, 0, 0), 1)
        while turn < rounds:
            start = time.perf_counter()
            end.park(None)
            for envelope in end.receive():
                seconds.append(time.perf_counter() - start)
                turn = envelope.body
                end.send(other, Channel(Lane.DATA, 0, 0), turn + 1)
                end.flush()
        end.finish()
        return seconds

    games = [cluster.run(play, end, other) for end, other in zip(ends, (3, 2, 1, 0))]
    for game in games:
        seconds = sorted(game.result(180))
        assert seconds[len(seconds) // 10] < 0.01  # so is the median, if nothing else runs on the machine


@pytest.mark.parametrize("index", [0, 1])
def test_wake_ends_the_present_or_the_next_park_of_any_worker(make_cluster: Any, index: int) -> None:
    cluster = make_cluster(2, workers=2)
    end = cluster.connect()[index]
    end.wake()
    end.park(None)
    for _ in range(200):
        parked = cluster.run(end.park, None)
        end.wake()
        parked.result(180)


def test_park_ends_when_the_time_is_up(make_cluster: Any) -> None:
    for end in make_cluster(2, workers=2).connect()[:2]:
        start = time.monotonic()
        end.park(0.05)
        assert 0.04 <= time.monotonic() - start < 30


def test_an_idle_cluster_uses_next_to_no_processor(make_cluster: Any) -> None:
    cluster = make_cluster(2, workers=2)
    ends = cluster.connect()
    ready, stop = threading.Barrier(5), threading.Event()

    def idle(end: Allocator) -> int:
        ready.wait(180)
        steps = 0
        while not stop.is_set():
            steps += 1
            end.receive()
            end.park(None)
        return steps

    idlers = [cluster.run(idle, end) for end in ends]
    ready.wait(180)
    began, start = time.process_time(), time.monotonic()
    stop.wait(1.0)
    used = (time.process_time() - began) / (time.monotonic() - start)
    stop.set()
    for end in ends:
        end.wake()
    assert sum(idler.result(180) for idler in idlers) < 50
    assert used < 0.5  # really below 0.002; polling would use all of it


def test_a_watched_pipe_calls_back_on_the_polling_thread(make_cluster: Any) -> None:
    cluster = make_cluster(1)
    [end] = cluster.connect()
    near, far = socket.socketpair()
    with near, far:
        seen: list[bytes] = []
        cluster.fabrics[0].poller.watch(near, selectors.EVENT_READ, lambda _mask: seen.append(near.recv(100)))
        far.send(b"hello")
        end.park(None)
        cluster.fabrics[0].poller.watch(near, 0, lambda _mask: None)
        far.send(b"unheard")
        end.park(0)
        assert seen == [b"hello"]


def test_each_connection_is_reported(make_cluster: Any) -> None:
    cluster = make_cluster(2, workers=2)
    cluster.connect()
    assert sorted(cluster.reports) == sorted(
        f"connected to process {i} at 127.0.0.1:{cluster.ports[i]} (workers {2 * i}, {2 * i + 1})" for i in (0, 1)
    )


def test_the_allocators_keep_the_protocol(make_cluster: Any) -> None:
    [end] = make_cluster(1).connect()
    checked: Allocator = end
    assert checked.index == 0
    assert FailureReport(0, "", "x").error().args


def test_silence_is_told_from_a_shut_window() -> None:
    def info(retransmits: int, probes: int, last_ack_ms: int) -> bytes:
        return struct.pack("=BBBB52xI", 1, 0, retransmits, probes, last_ack_ms)

    assert is_silent(info(5, 0, 40_000))
    assert is_silent(info(0, 3, 40_000))
    assert not is_silent(info(0, 1, 100_000))  # the probe that is on its way
    assert not is_silent(info(0, 0, 1_000_000))  # idle: keepalive's business
    assert not is_silent(info(5, 0, 1_000))
