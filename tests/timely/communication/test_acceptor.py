"""Who has time at the door, and who has not."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from megaflow.errors import PeerLost
from megaflow.timely.communication.acceptor import Acceptor
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.poller import Poller
from megaflow.timely.communication.tcp import open_listener

SECONDS = 0.05  # for each message of a handshake


def test_who_answers_at_once_is_let_in_however_long_the_worker_takes_between_its_polls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    admitted = []
    poller, listener = Poller(), open_listener("127.0.0.1", 0)
    admit = lambda link, role, hello: (admitted.append(role), link.close())  # noqa: E731
    acceptor = Acceptor(poller, listener, b"secret", admit, SECONDS)
    with ThreadPoolExecutor(1) as threads:
        coming = threads.submit(Client.connect, "127.0.0.1", listener.getsockname()[1], b"secret", "control", {}, 30)
        end = time.monotonic() + 20
        while not admitted and time.monotonic() < end and not coming.done():
            poller.poll(0)
            threading.Event().wait(3 * SECONDS)  # a long step of the worker's
        acceptor.close()
        poller.close()
        with pytest.raises(PeerLost):
            coming.result(10)
    assert admitted == ["control"] and not caplog.records


def test_who_says_nothing_more_is_shut_out(caplog: pytest.LogCaptureFixture) -> None:
    poller, listener = Poller(), open_listener("127.0.0.1", 0)
    acceptor = Acceptor(poller, listener, b"secret", lambda link, role, hello: None, SECONDS)
    with socket.create_connection(listener.getsockname()):
        end = time.monotonic() + 20
        poller.poll(0.5)
        assert acceptor.pending == 1
        while acceptor.pending and time.monotonic() < end:
            poller.poll(0.5)
    acceptor.close()
    poller.close()
    [record] = caplog.records
    assert "took too long" in record.getMessage()
