"""Clients of a role and their handler, over real sockets."""

import itertools
import os
import selectors
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest

from megaflow.errors import CannotTravel, ConfigMismatch, ConnectTimeout, PeerLost, ProtocolError
from megaflow.timely.communication.client import READ_BYTES, Client
from megaflow.timely.communication.rendezvous import PeerAddress
from megaflow.timely.communication.role_handlers import Connection
from megaflow.timely.communication.wire import frames
from tests.ports import closed_port


class Echo:
    """Handler that answers every value and obeys commands."""

    def __init__(self) -> None:
        self.hellos: list[dict[str, Any]] = []
        self.connections: list[Connection] = []
        self.answered = threading.Event()
        self.ended = threading.Event()
        self.threads: set[int] = set()

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        if hello.get("refuse"):
            raise ConfigMismatch("not you")
        self.hellos.append(hello)
        self.connections.append(connection)
        connection.send("welcome")

    def received(self, connection: Connection, value: Any) -> None:
        self.threads.add(threading.get_ident())
        if value == "fail":
            raise RuntimeError("a bug in the handler")
        if value == "nonsense":
            raise ProtocolError("not a request")
        connection.send(value)
        self.answered.set()
        if value == "close":
            connection.close()
            connection.send("unsent")

    def lost(self, connection: Connection) -> None:
        self.ended.set()


class Served:
    """Process whose worker serves the role until the test ends."""

    def __init__(self, cluster: Any, echo: Echo, secret: bytes) -> None:
        self.echo = echo
        self.port = cluster.ports[0]
        self.secret = secret
        self.stop = threading.Event()
        [self.end] = cluster.connect()
        self.run = cluster.run(self._work)

    def _work(self) -> None:
        while not self.stop.is_set():
            self.end.park(None)
            self.end.receive()
        self.end.finish()

    def client(self, **hello: Any) -> Client:
        """Connect as an echo client."""
        return Client.connect("127.0.0.1", self.port, self.secret, "echo", hello, 10)


@pytest.fixture
def served(make_cluster: Callable[..., Any], secret: bytes) -> Iterator[Served]:
    """Give a test a serving process."""
    echo = Echo()
    serving = Served(make_cluster(1, roles={"echo": echo}), echo, secret)
    yield serving
    serving.stop.set()
    serving.end.wake()
    serving.run.exception(60)


def test_values_go_to_and_fro_lossless_and_in_order(served: Served) -> None:
    values = [1, (1, [2]), Decimal("1.10"), {"a": {1}}, None, 2**70, b"x" * 5_000_000, "end"]
    with served.client(name="me") as client:
        for value in values:
            client.send(value)
        assert [client.receive(180) for _ in range(len(values) + 1)] == ["welcome", *values]
    assert served.echo.hellos == [{"name": "me"}]
    assert served.echo.ended.wait(180)
    assert len(served.echo.threads) == 1
    assert served.echo.threads != {threading.get_ident()}


def test_receive_gives_up_after_its_time(served: Served) -> None:
    with served.client() as client:
        assert client.receive(180) == "welcome"
        with pytest.raises(TimeoutError, match=f"127.0.0.1:{served.port}"):
            client.receive(0.01)
        client.send(1)
        assert client.receive(180) == 1


def test_a_selector_loop_takes_what_is_there(served: Served) -> None:
    with served.client() as client, selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ)
        for number in range(100):
            client.send(number)
        found: list[Any] = []
        while len(found) < 101:
            assert selector.select(10)
            found += client.receive_available()
        assert found == ["welcome", *range(100)]
        assert client.receive_available() == []


def test_what_was_sent_before_a_close_is_received_before_the_loss(served: Served) -> None:
    for receive_all in (lambda c: [c.receive(180), c.receive(180)], lambda c: take(c, 2)):
        with served.client() as client:
            client.send("close")
            assert receive_all(client) == ["welcome", "close"]
            with pytest.raises(PeerLost, match="closed"):
                client.receive(180)
            with pytest.raises(PeerLost, match="closed"):
                client.receive_available()


def take(client: Client, count: int) -> list[Any]:
    found: list[Any] = []
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ)
        while len(found) < count and selector.select(10):
            found += client.receive_available()
    return found


def test_a_handler_may_refuse_and_the_client_is_told_why(served: Served) -> None:
    with pytest.raises(ConfigMismatch, match="not you"):
        served.client(refuse=True)
    with served.client() as client:
        assert client.receive(180) == "welcome"


def test_a_role_that_nobody_serves_is_named(served: Served) -> None:
    with pytest.raises(ConfigMismatch, match="'cook'"):
        Client.connect("127.0.0.1", served.port, served.secret, "cook", {}, 10)


@pytest.mark.parametrize("broken", [b"\xff" * 9, frames(0, b"x" * 40)[0], frames(4, b"\xc1")[0], None])
def test_a_client_that_breaks_the_protocol_loses_its_connection_alone(
    served: Served, caplog: pytest.LogCaptureFixture, broken: bytes | None
) -> None:
    with served.client() as good, served.client() as bad:
        if broken is None:
            bad.send("nonsense")
        else:
            os.write(bad.fileno(), broken)
        assert bad.receive(180) == "welcome"
        with pytest.raises(PeerLost):
            bad.receive(180)
        good.send("still here")
        assert (good.receive(180), good.receive(180)) == ("welcome", "still here")
    [line] = [record.getMessage() for record in caplog.records if record.name == "megaflow.timely.communication"]
    assert "closed the connection from 127.0.0.1:" in line


def test_an_exception_in_a_handler_reaches_the_worker(served: Served) -> None:
    with served.client() as client:
        client.send("fail")
        with pytest.raises(RuntimeError, match="a bug in the handler"):
            served.run.result(180)


def test_answers_still_queued_when_the_last_worker_finishes_arrive(served: Served) -> None:
    with served.client() as client:
        client.send(b"x" * 3_000_000)
        assert client.receive(180) == "welcome"
        assert served.echo.answered.wait(180)
        served.stop.set()
        served.end.wake()
        assert len(client.receive(180)) == 3_000_000


def test_a_value_that_cannot_travel_is_named_and_the_connection_lives(served: Served) -> None:
    with served.client() as client:
        with pytest.raises(CannotTravel):
            client.send(threading.Lock())
        assert client.receive(180) == "welcome"


def test_nobody_at_the_address_is_an_oserror() -> None:
    with closed_port() as address, pytest.raises(ConnectionRefusedError):
        Client.connect(*address, b"", "echo", {}, 30)


class Narcissus(socket.socket):
    """Socket that gets the port that it dials, as may happen with a free port from the system's range."""

    def connect(self, address: Any) -> None:
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind(address)
        super().connect(address)


def test_a_connection_to_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with reserved_port() as address:
        monkeypatch.setattr(socket, "socket", Narcissus)
        with pytest.raises(ConnectionRefusedError, match="Connection refused"):
            Client.connect(*address, b"", "echo", {}, 30)


def test_who_dials_itself_dials_again(monkeypatch: pytest.MonkeyPatch, make_cluster: Any) -> None:
    cluster = make_cluster(2)
    with reserved_port() as address:
        cluster.peers[0] = PeerAddress(0, *address, (0,))
        monkeypatch.setattr(socket, "socket", Narcissus)
        with pytest.raises(ConnectTimeout, match=r"process 0 at .* \(Connection refused"):
            cluster.fabrics[1].connect(cluster.peers, 1, 1, 0.3)


@contextmanager
def reserved_port() -> Iterator[tuple[str, int]]:
    """Yield an address that only a socket with SO_REUSEADDR can get."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()


def test_a_port_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(TimeoutError):
        Client.connect("127.0.0.1", listener.getsockname()[1], b"", "echo", {}, 0.1)


def test_a_port_that_answers_too_late_is_given_up_with_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.count()
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr("megaflow.timely.communication.client.time.monotonic", lambda: float(next(times)))
        with pytest.raises(TimeoutError, match=r"sent nothing for 0\.5 s$"):
            Client.connect(*server.getsockname()[:2], b"s", "control", {}, 0.5)


def test_a_port_of_something_else_is_a_protocol_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = threading.Thread(target=lambda: listener.accept()[0].sendall(b"220 mail ready\r\n" * 40))
        other.start()
        with pytest.raises(ProtocolError):
            Client.connect("127.0.0.1", listener.getsockname()[1], b"", "echo", {}, 10)
        other.join()


def test_what_is_posted_blocks_nobody_and_arrives_in_order() -> None:
    ours, theirs = socket.socketpair()
    with Client(ours, "them") as client, Client(theirs, "us") as other:
        texts = [f"{number} {'x' * 100_000}" for number in range(100)]
        for text in texts:
            client.post(text)
        assert client.has_unsent, "nobody has read"
        got: list[Any] = []
        while len(got) < len(texts):
            client.flush()
            got += other.receive_available()
        assert got == texts and not client.has_unsent


def test_what_is_posted_to_one_that_has_left_is_lost() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with Client(ours, "them") as client, pytest.raises(PeerLost, match="lost them while sending"):
        client.post("word")


def test_a_read_takes_no_more_memory_than_what_has_come() -> None:
    ours, theirs = socket.socketpair()
    with Client(ours, "them") as client, Client(theirs, "us") as other:
        client.send("warm")
        other.receive(10)
        client.send("word")
        tracemalloc.start()
        try:
            assert other.receive(10) == "word"
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < READ_BYTES / 2
