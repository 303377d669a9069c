"""Strangers that send anything to the port are disconnected with one log line, and the job continues."""

import contextlib
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from megaflow.errors import ConfigMismatch, PeerLost
from megaflow.timely.communication.acceptor import STRANGERS_MAX
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.communication.channel import Channel, Lane
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.handshake import NONCE_BYTES, VERSION, ClientHandshake, greeting
from megaflow.timely.communication.wire import FrameDecoder, Kind, frames, pack_record

NONCE = b"n" * NONCE_BYTES


class Traffic:
    """Two processes that exchange numbered messages without pause."""

    def __init__(self, cluster: Any) -> None:
        self.port = cluster.ports[0]
        self._stop = threading.Event()
        self._ends = cluster.connect()
        self._runs = [cluster.run(self._work, end) for end in self._ends]

    def _work(self, end: Allocator) -> tuple[int, int]:
        sent = received = 0
        told = over = False  # whether this process, or the other one, sends nothing more
        dice = random.Random(end.index)
        while not told or not over:
            if not self._stop.is_set():
                end.send(1 - end.index, Channel(Lane.DATA, 0, 0), (sent, "x" * dice.randrange(2000)))
                sent += 1
            elif not told:
                end.send(1 - end.index, Channel(Lane.DATA, 0, 0), (-1, ""))
                told = True
            if told or sent % 10 == 0:
                end.park(0.001)
            for envelope in end.receive():
                over = over or envelope.body[0] == -1
                if not over:
                    assert envelope.body[0] == received
                    received += 1
        end.finish()
        return sent, received

    def stop(self) -> None:
        """End the traffic; check that nothing was lost."""
        self._stop.set()
        (sent_0, received_0), (sent_1, received_1) = (run.result(90) for run in self._runs)
        assert (received_0, received_1) == (sent_1, sent_0)
        assert sent_0 > 0


@pytest.fixture
def traffic(make_cluster: Callable[..., Any], request: pytest.FixtureRequest) -> Iterator[Traffic]:
    """Give a test running traffic and check it afterwards. Parameter: seconds for a message of a handshake."""
    running = Traffic(make_cluster(2, handshake_seconds=getattr(request, "param", 60.0)))
    yield running
    running.stop()


def until_closed(stranger: socket.socket) -> bytes:
    """Return what the port sends before it disconnects; fail if it does not."""
    stranger.settimeout(90)
    said = b""
    try:
        while piece := stranger.recv(4096):
            said += piece
    except ConnectionError:
        pass
    return said


def warnings(caplog: pytest.LogCaptureFixture, count: int) -> list[str]:
    """Wait for `count` log lines of the wire."""
    deadline = time.monotonic() + 90
    while True:
        own = [record for record in caplog.records if record.name == "megaflow.timely.communication"]
        lines = [record.getMessage() for record in own if record.levelno == logging.WARNING]
        if len(lines) >= count or time.monotonic() > deadline:
            return lines
        threading.Event().wait(0.01)


HOSTILE = {
    "random": bytes(random.Random(1).randbytes(5000)),
    "text": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "oversized length": b"\x7f\xff\xff\xff\x10",
    "large frame before the proof": frames(Kind.GREETING, b"x" * 2000)[0],
    "never-ending message": frames(Kind.GREETING | 0x80, b"x" * 400)[0] * 3,
    "parts of nothing": frames(Kind.GREETING | 0x80, b"")[0] * 100_000,
    "wrong version": greeting(NONCE, VERSION + 1),
    "wrong proof": greeting(NONCE) + frames(Kind.PROOF, b"p" * 32)[0],
    "hello without a proof": greeting(NONCE) + frames(Kind.HELLO, pack_record(["peer", {}]))[0],
    "worker message": frames(Kind.DATA, b"x" * 40)[0],
    "goodbye": frames(Kind.GOODBYE, b"")[0],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_close_their_connection_with_one_line(
    traffic: Traffic, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    with socket.create_connection(("127.0.0.1", traffic.port)) as stranger:
        stranger.sendall(HOSTILE[name])
        until_closed(stranger)
        where = f"{stranger.getsockname()[0]}:{stranger.getsockname()[1]}"
    [line] = warnings(caplog, 1)
    assert where in line


@pytest.mark.parametrize("length", [0, 1, 4, 5, 20])
def test_a_stranger_that_hangs_up_is_no_warning(
    traffic: Traffic, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    caplog.set_level(logging.DEBUG, "megaflow.timely.communication")
    with socket.create_connection(("127.0.0.1", traffic.port)) as stranger:
        stranger.sendall(greeting(NONCE)[:length])
    deadline = time.monotonic() + 90
    while not any("during the handshake" in each.getMessage() for each in caplog.records):
        assert time.monotonic() < deadline, caplog.records
        time.sleep(0.001)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("traffic", [0.2], indirect=True)
def test_a_slow_stranger_is_closed_when_its_time_is_up(traffic: Traffic, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_connection(("127.0.0.1", traffic.port)) as stranger:
        closed = threading.Event()
        sender = threading.Thread(target=dribble, args=(stranger, greeting(NONCE)[:-1], closed))
        sender.start()
        assert until_closed(stranger) == b""
        closed.set()
        sender.join()
    [line] = warnings(caplog, 1)
    assert "too long" in line


def dribble(stranger: socket.socket, data: bytes, closed: threading.Event) -> None:
    """Send a byte now and then until the other side hangs up."""
    with contextlib.suppress(ConnectionError):
        for byte in data:
            stranger.send(bytes([byte]))
            closed.wait(0.02)


def test_strangers_beyond_the_limit_keep_nobody_out(traffic: Traffic, secret: bytes) -> None:
    crowd = [socket.create_connection(("127.0.0.1", traffic.port)) for _ in range(STRANGERS_MAX + 20)]
    with pytest.raises(ConfigMismatch, match="does not serve the role"):  # it succeeds all the same
        Client.connect("127.0.0.1", traffic.port, secret, "no such role", {}, 60)
    for stranger in crowd:
        stranger.close()


def test_a_client_with_the_wrong_secret_is_told_so(traffic: Traffic, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigMismatch, match=rf"127.0.0.1:{traffic.port} refuses.*same MEGAFLOW_SECRET"):
        Client.connect("127.0.0.1", traffic.port, b"guess", "control", {}, 60)
    [line] = warnings(caplog, 1)
    assert "secrets differ" in line


def test_a_stranger_who_passes_as_a_peer_of_a_complete_cluster_stops_nothing(
    traffic: Traffic, caplog: pytest.LogCaptureFixture, secret: bytes
) -> None:
    for hello in ({}, {"process": 1, "processes": 9, "workers": 9, "ids": [0]}, {"process": "x"}):
        with pytest.raises((ConfigMismatch, PeerLost), match=r"refuses|closed|reset"):
            Client.connect("127.0.0.1", traffic.port, secret, "peer", hello, 60)
    assert len(warnings(caplog, 3)) == 3


def test_strangers_while_the_cluster_meets_do_not_disturb(make_cluster: Any) -> None:
    cluster = make_cluster(2)
    crowd = [socket.create_connection(("127.0.0.1", port)) for port in cluster.ports]
    for stranger in crowd:
        stranger.sendall(HOSTILE["random"])
    assert len(cluster.connect()) == 2
    for stranger in crowd:
        stranger.close()


@pytest.mark.parametrize("traffic", [0.2], indirect=True)
def test_two_hundred_strangers_with_random_bytes_change_nothing(traffic: Traffic) -> None:
    dice = random.Random(5)
    openings = [b"", greeting(NONCE), *(HOSTILE[name] for name in HOSTILE)]
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", traffic.port)) as stranger:
            try:
                stranger.sendall(dice.choice(openings) + dice.randbytes(dice.choice([0, 1, 10, 3000])))
            except ConnectionError:
                continue  # already disconnected
            if dice.random() < 0.3:
                until_closed(stranger)


def test_the_port_says_nothing_that_depends_on_the_secret_to_a_stranger(traffic: Traffic) -> None:
    with socket.create_connection(("127.0.0.1", traffic.port)) as stranger:
        stranger.sendall(HOSTILE["wrong proof"])
        kinds = [kind for kind, _ in FrameDecoder().feed(until_closed(stranger))]
    assert kinds in ([Kind.GREETING, Kind.REFUSED], [Kind.GREETING])
    assert ClientHandshake(b"", "", {}, NONCE).start() == greeting(NONCE)
