"""However a process ends, the others notice within seconds, and a normal end loses nothing."""

from typing import Any

import pytest

from megaflow.errors import PeerFailed, PeerLost, ProtocolError
from megaflow.timely.communication import tcp_fabric
from megaflow.timely.communication.allocator import Allocator, FailureReport
from megaflow.timely.communication.channel import Channel, Lane
from megaflow.timely.communication.wire import frames

PATIENCE_SECONDS = 90.0  # for the end of a cluster on a busy machine; on a quiet one it takes some hundredths


def test_nothing_queued_is_lost_when_workers_finish_at_once(make_cluster: Any, collect: Any) -> None:
    cluster = make_cluster(3, workers=2)
    ends = cluster.connect()
    count, block = 40, b"x" * 100_000

    def work(end: Allocator) -> int:
        for number in range(count):
            end.send_all(range(6), Channel(Lane.DATA, 0, 0), (number, block))
        if end.index % 2:
            end.finish()
            return 0
        found = collect(end, 6 * count)
        assert sorted(e.body[0] for e in found) == sorted(6 * list(range(count)))
        end.finish()
        return len(found)

    assert [future.result(180) for future in [cluster.run(work, end) for end in ends]] == [240, 0, 240, 0, 240, 0]


def test_the_last_message_before_finish_arrives(make_cluster: Any, collect: Any) -> None:
    for _ in range(20):
        cluster = make_cluster(2)
        a, b = cluster.connect()
        a.send(1, Channel(Lane.DATA, 0, 0), "last")
        leaving = cluster.run(a.finish)
        assert collect(b, 1)[0].body == "last"
        b.send(0, Channel(Lane.DATA, 0, 0), "to one who has finished")
        b.finish()
        leaving.result(PATIENCE_SECONDS)


def test_finish_waits_for_the_slowest_peer_and_the_poller_may_finish_first(make_cluster: Any, collect: Any) -> None:
    cluster = make_cluster(2, workers=2)
    zero, one, two, three = cluster.connect()
    zero.finish()  # it polled; now worker 1 does
    answering = cluster.run(lambda: (collect(one, 1), one.send(3, Channel(Lane.DATA, 0, 0), "answer"), one.finish()))
    two.finish()
    three.send(1, Channel(Lane.DATA, 0, 0), "question")
    three.flush()
    assert collect(three, 1)[0].body == "answer"
    assert not answering.done()
    three.finish()
    answering.result(PATIENCE_SECONDS)


def test_a_worker_that_waits_takes_over_polling(make_cluster: Any) -> None:
    cluster = make_cluster(2, workers=2)
    zero, one, two, _ = cluster.connect()

    def wait() -> Any:
        while True:
            one.park(None)
            for envelope in one.receive():
                return envelope.body

    waiting = cluster.run(wait)
    zero.finish()
    two.send(1, Channel(Lane.DATA, 0, 0), "found")
    two.flush()
    assert waiting.result(PATIENCE_SECONDS) == "found"


def test_a_killed_process_is_named_by_every_worker_of_the_others(make_cluster: Any, serve: Any) -> None:
    cluster = make_cluster(3, workers=2)
    ends = cluster.connect()
    serving = [cluster.run(serve, end) for end in ends[:4]]
    cluster.fabrics[2].close()
    for future in serving:
        with pytest.raises(PeerLost) as raised:
            future.result(PATIENCE_SECONDS)
        text = str(raised.value)
        assert f"lost process 2 at 127.0.0.1:{cluster.ports[2]} (workers 4, 5)" in text
        assert "without a goodbye" in text


def test_a_process_killed_before_it_read_everything_is_named(make_cluster: Any) -> None:
    cluster = make_cluster(2)
    a, _ = cluster.connect()
    a.send(1, Channel(Lane.DATA, 0, 0), b"x" * 20_000_000)
    a.flush()
    cluster.fabrics[1].close()  # with unread bytes: the kernel resets the connection
    with pytest.raises(PeerLost, match="process 1 at"):
        while True:
            a.park(5)


def test_a_process_killed_while_others_say_goodbye_is_named(make_cluster: Any) -> None:
    cluster = make_cluster(3)
    a, b, _ = cluster.connect()
    leaving = [cluster.run(a.finish), cluster.run(b.finish)]
    cluster.fabrics[2].close()
    for future in leaving:
        with pytest.raises(PeerLost, match="process 2 at"):
            future.result(PATIENCE_SECONDS)


@pytest.mark.parametrize("failing", [0, 1, 4])
def test_a_report_reaches_every_worker(make_cluster: Any, serve: Any, failing: int) -> None:
    cluster = make_cluster(3, workers=2)
    ends = cluster.connect()
    serving = [cluster.run(serve, end) for end in ends if end.index != failing]
    ends[failing].send_all(range(6), Channel(Lane.DATA, 0, 0), b"x" * 5_000_000)  # queued data does not hold it up
    ends[failing].abort(FailureReport(failing, "here:1", "Traceback\nValueError: boom"))
    for future in serving:
        with pytest.raises(PeerFailed, match=f"worker {failing} at here:1 failed:\nTraceback\nValueError: boom"):
            future.result(PATIENCE_SECONDS)
    ends[failing].abort(FailureReport(failing, "here:1", "again"))


def test_a_failure_is_raised_from_finish_too(make_cluster: Any) -> None:
    cluster = make_cluster(2, workers=2)
    zero, one, two, _ = cluster.connect()
    zero.finish()
    leaving = cluster.run(one.finish)
    two.abort(FailureReport(2, "", "boom"))
    with pytest.raises(PeerFailed, match="boom"):
        leaving.result(PATIENCE_SECONDS)


def test_a_peer_that_does_not_read_does_not_hold_up_the_one_that_fails(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_fabric, "LINGER_SECONDS", 0.5)
    cluster = make_cluster(2)
    a, b = cluster.connect()
    a.send(1, Channel(Lane.DATA, 0, 0), b"x" * 20_000_000)
    a.flush()
    a.abort(FailureReport(0, "", "boom"))
    with pytest.raises((PeerLost, PeerFailed)):
        while True:
            b.park(1)


@pytest.mark.parametrize(
    "stream",
    [
        b"\xff" * 100,
        frames(99, b"unknown kind")[0],
        frames(Lane.DATA, b"short")[0],
        frames(Lane.DATA, b"\0" * 8 + b"\0\0\0\7" * 2 + b"\xc1")[0],
    ],
)
def test_a_peer_that_breaks_the_protocol_stops_the_job(make_cluster: Any, stream: bytes) -> None:
    a, b = make_cluster(2).connect()
    link = a._fabric.peers.links[1]
    link.queue(0, [stream])
    a.flush()
    with pytest.raises(ProtocolError, match=r"process 0 at .* broke the protocol"):
        while True:
            b.park(5)
    with pytest.raises(PeerFailed, match=r"process 0 at .* broke the protocol"):
        while True:
            a.park(5)


def test_threads_of_one_process_learn_of_a_failure_without_peers(make_cluster: Any, serve: Any) -> None:
    cluster = make_cluster(1, workers=3)
    ends = cluster.connect()
    serving = [cluster.run(serve, end) for end in ends[:2]]
    ends[2].abort(FailureReport(2, "", "boom"))
    for future in serving:
        with pytest.raises(PeerFailed, match="boom"):
            future.result(PATIENCE_SECONDS)
