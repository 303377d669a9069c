"""Strangers and clients send anything to a job's ports; it continues and answers. One job serves all tests."""

import json
import resource
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from megaflow.control.messages import CommitBatch, CommitRequest, Done, Refused, RemoveWorker, Request, StatusQuery
from megaflow.control.staging_messages import StageEnd
from megaflow.errors import PeerLost
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.handshake import NONCE_BYTES, greeting
from megaflow.timely.communication.wire import MORE, Kind
from tests.cluster.processes import WORDCOUNT, Run, wait_until

pytestmark = pytest.mark.cluster


class Target:
    """Job of two processes that counts the words of standard input."""

    def __init__(self, folder: Path) -> None:
        self.run = Run(folder, WORDCOUNT, "--lines", "-", "--processes", "2", stdin=subprocess.PIPE)
        self.counted = 0
        wait_until(lambda: bool(self.run.files()))
        self._file = json.loads(self.run.files()[0].read_text())
        self.address = ("127.0.0.1", self._file["port"])

    def client(self, role: str = "control") -> Client:
        """Connect a client that knows the secret."""
        return Client.connect(*self.address, self._file["secret"].encode(), role, {})

    def check(self) -> None:
        """Fail unless the job takes a line and answers."""
        self.counted += 1
        self.run.process.write_line("word")
        self.run.process.await_line(f"('word', {self.counted})")
        assert [each["id"] for each in self.run.status()["workers"]][:2] == [0, 1]

    def said(self, words: str) -> int:
        """Return how often its messages contain these words."""
        return sum(words in line for line in self.run.said)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Yield the job; at the end it must end normally."""
    job = Target(tmp_path_factory.mktemp("flooded"))
    try:
        job.check()
        yield job
        assert job.run.process.stdin is not None
        job.run.process.stdin.close()
        code, _, said = job.run.end()
        assert code == 0, said
    finally:
        job.run.process.finish()


def until_closed(stranger: socket.socket) -> None:
    """Wait until the port disconnects."""
    stranger.settimeout(180)
    try:
        while stranger.recv(4096):
            pass
    except ConnectionError:
        pass


def test_parts_of_nothing_are_shut_out_at_the_first(target: Target) -> None:
    for _ in range(5):
        with socket.create_connection(target.address) as stranger:
            try:
                stranger.sendall(struct.pack("!IB", 0, Kind.GREETING | MORE) * 50_000)
            except ConnectionError:
                continue
            until_closed(stranger)
    wait_until(lambda: target.said("is marked as part of a longer message but is not full") > 0)
    assert target.said("took too long") == 0
    target.check()


def test_what_a_client_with_the_secret_may_not_say_is_refused_or_shuts_it_out(target: Target) -> None:
    digits = 10**5000  # more than Python prints
    with target.client() as client:
        client.send(Request(1, RemoveWorker(digits)))
        assert "of a wrong type" in refusal(client)
        client.send(Request(2, CommitRequest(CommitBatch("q", "r", 0, {0: (0, 7, 5), 1: (1, 8, 5)}))))
        assert "attempt 7 (query q, batch 0, partition 0), but it has none; worker 1 had" in refusal(client)
        client.send(Request(3, digits))
        assert "of a wrong type" in refusal(client)
    for role, message in (
        ("control", digits),
        ("control", Request(digits, RemoveWorker(0))),
        ("ingest", StageEnd("q", "r", 0, 0, 1, 0, digits)),
        ("ingest", StageEnd("q", "r", 0, 0, 1, digits, 0)),
    ):
        with target.client(role) as client, pytest.raises(PeerLost, match="closed"):
            client.send(message)
            client.receive(180)
    target.check()


def refusal(client: Client) -> str:
    """Return the reason of the next answer, which must be a refusal."""
    answer = client.receive(180)
    assert isinstance(answer, Refused), answer
    return answer.reason


@pytest.mark.slow
def test_thousands_of_clients_that_come_and_go_leave_nothing_behind(target: Target) -> None:
    pids = [each["pid"] for each in target.run.status()["workers"]]
    held: list[int] = []  # bytes
    for _ in range(4):
        for _ in range(500):
            target.client().close()
        wait_until(lambda: all(len(list(Path(f"/proc/{pid}/fd").iterdir())) < 40 for pid in pids))
        held.append(sum(resident_bytes(pid) for pid in pids))
    assert held[-1] - held[0] < 8 << 20, held
    target.check()


def resident_bytes(pid: int) -> int:
    """Return the memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_client_that_asks_a_thousand_things_at_once_keeps_no_other_waiting(target: Target) -> None:
    with target.client() as flooding, target.client() as other:
        for id in range(1000):
            flooding.send(Request(id, StatusQuery(bins=True, loads=True)))
        for id in range(10):
            other.send(Request(id, StatusQuery()))
            assert isinstance(other.receive(180), Done)
        assert all(isinstance(flooding.receive(180), Done) for _ in range(1000))
    target.check()


@pytest.mark.slow
def test_hundreds_of_silent_strangers_keep_neither_clients_nor_joiners_out(target: Target) -> None:
    crowd = [socket.create_connection(target.address) for _ in range(400)]
    try:
        assert target.run.control("add-workers", "1", "--timeout", "60").returncode == 0
        wait_until(lambda: target.said("it sent nothing while others waited") > 0)
        assert len(target.run.status()["workers"]) == 3
        target.check()
    finally:
        for stranger in crowd:
            stranger.close()


def test_a_flood_of_greetings_leaves_a_few_lines_and_no_memory(target: Target) -> None:
    pids = [each["pid"] for each in target.run.status()["workers"]]
    before, lines = sum(map(resident_bytes, pids)), len(target.run.said)
    for _ in range(500):
        with socket.create_connection(target.address) as stranger:
            stranger.sendall(greeting(b"n" * NONCE_BYTES))
    target.run.status()
    assert sum(map(resident_bytes, pids)) - before < 16 << 20
    assert len(target.run.said) - lines < 200
    target.check()
