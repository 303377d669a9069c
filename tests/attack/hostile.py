"""Hostile visitors at a job's port: strangers, and clients that know the secret.

Each visit is a function of the port and of a random generator. It blocks for a few seconds at most, and tolerates that
the job hangs up. The oracle needs no times. During the visits and after them, the job counts each word, answers a
well-behaved client, keeps its memory and descriptors within bounds, and prints little.
"""

import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from megaflow.control.messages import ExplainQuery, Request, SettingsQuery, StatusQuery
from megaflow.errors import ClusterError
from megaflow.timely.communication.acceptor import LINES_MAX, PERIOD_SECONDS
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.handshake import NONCE_BYTES, VERSION, greeting
from megaflow.timely.communication.wire import MAX_FRAME_BYTES, MORE, Kind, frames, pack_record
from tests.attack.tally import COUNTS
from tests.cluster.processes import wait_until
from tests.cluster.test_flooded import Target, resident_bytes
from tests.results import check_equal

VISITORS = 4  # at a time
WAIT_SECONDS = 3.0  # for the job to hang up on a visitor
MEMORY_BYTES = 48 << 20  # that the job's processes may have grown since the first round
DESCRIPTORS_MAX = 60  # of one process, once all visitors are gone
LINES_BESIDE = 30  # that a job prints without visitors

GREETING = greeting(b"n" * NONCE_BYTES)
HEAD = struct.Struct("!IB")


# Strangers


def send_and_wait(target: Target, data: bytes, rng: random.Random) -> None:
    """Send bytes. Then wait until the job hangs up, or hang up, or reset the connection."""
    with socket.create_connection(target.address) as stranger, contextlib.suppress(OSError):
        stranger.settimeout(WAIT_SECONDS)
        stranger.sendall(data)
        end = rng.randrange(3)
        if end == 0:
            while stranger.recv(4096):
                pass
        elif end == 1:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def garbage(target: Target, rng: random.Random) -> None:
    """Random bytes, or the beginning of another protocol."""
    http = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * rng.choice([1, 5000]))
    tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(505)
    other = [rng.randbytes(rng.randrange(5000)), b"\0" * 100_000, b"\xff" * 9]
    send_and_wait(target, rng.choice([http, tls, *other]), rng)


def handshakes(target: Target, rng: random.Random) -> None:
    """Part of a handshake, or a wrong one."""
    wrong = [
        GREETING[: rng.randrange(len(GREETING))],
        greeting(b"n" * NONCE_BYTES, VERSION + 1),
        GREETING + frames(Kind.PROOF, rng.randbytes(32))[0],
        GREETING + frames(Kind.HELLO, pack_record(["control", {}]))[0],
        GREETING * 5,
        frames(Kind.VALUE, encode(Request(1, StatusQuery())))[0],
    ]
    send_and_wait(target, rng.choice(wrong), rng)


def parts(target: Target, rng: random.Random) -> None:
    """Endless parts of messages: empty ones, small ones, and full ones of a message that never ends."""
    length = rng.choice([0, 0, 1, 400, MAX_FRAME_BYTES])
    part = HEAD.pack(length, rng.choice(list(Kind)) | MORE) + bytes(length)
    send_and_wait(target, part * max(2, 250_000 // len(part)), rng)


def byte_by_byte(target: Target, rng: random.Random) -> None:
    """Handshake, one byte at a time."""
    with socket.create_connection(target.address) as stranger, contextlib.suppress(OSError):
        for byte in GREETING * 5:
            stranger.send(bytes([byte]))
            time.sleep(rng.choice([0.0, 0.01, 0.05]))


def crowd(target: Target, rng: random.Random) -> None:
    """Two hundred silent strangers."""
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(target.address))
        time.sleep(rng.random())


# Clients that know the secret


def questions(target: Target, rng: random.Random) -> None:
    """Hundreds of questions at once; the visitor reads all answers, some of them, or none."""
    with target.client() as client:
        count = rng.choice([10, 300, 1000])
        bodies = [StatusQuery(True, True), StatusQuery(), ExplainQuery(), SettingsQuery()]
        for id in range(count):
            client.send(Request(id, rng.choice(bodies)))
        for _ in range(rng.choice([0, 5, min(count, 300)])):
            client.receive(60)
        time.sleep(rng.random() * WAIT_SECONDS)


def connection_of(client: Client) -> socket.socket:
    """Return another socket object of a client's connection."""
    return socket.socket(fileno=os.dup(client.fileno()))


def torn(target: Target, rng: random.Random) -> None:
    """Request that breaks off, perhaps with a reset, while an earlier one is being answered."""
    with target.client() as client:
        client.send(Request(1, StatusQuery(True, True)))
        data = frames(Kind.VALUE, encode(Request(2, StatusQuery())))[0]
        with connection_of(client) as connection:
            connection.sendall(data[: rng.randrange(len(data))])
            if rng.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def giants(target: Target, rng: random.Random) -> None:
    """Message of many megabytes, whole or not, or a frame that is too long."""
    with target.client(rng.choice(["control", "ingest"])) as client, connection_of(client) as connection:
        full = HEAD.pack(MAX_FRAME_BYTES, Kind.VALUE | MORE) + bytes(MAX_FRAME_BYTES)
        for _ in range(rng.choice([1, 8, 40])):
            connection.sendall(full)
        last = [b"", HEAD.pack(1, Kind.VALUE) + b"\0", HEAD.pack(MAX_FRAME_BYTES + 1, Kind.VALUE)]
        connection.sendall(rng.choice(last))
        time.sleep(rng.random())


def nonsense(target: Target, rng: random.Random) -> None:
    """Frames and values that no client may send."""
    values: list[Any] = [None, [], {"a": [1] * 9999}, "x" * 99_999, 10**5000, Request(10**50, None), Request(1, [[[]]])]
    with target.client(rng.choice(["control", "ingest", "join"])) as client, connection_of(client) as connection:
        if rng.random() < 0.5:
            client.send(rng.choice(values))
        else:
            connection.sendall(frames(rng.choice(list(Kind)), rng.randbytes(rng.randrange(50)))[0])
        with contextlib.suppress(TimeoutError):
            client.receive(WAIT_SECONDS)


def unknown_roles(target: Target, rng: random.Random) -> None:
    """Roles that do not exist or are taken, and many clients that come and go."""
    role = rng.choice(["", "nobody", "launcher", "\u202e" * 100, "control"])
    for _ in range(rng.choice([1, 50])):
        target.client(role).close()


VISITS: dict[str, Callable[[Target, random.Random], None]] = {
    visit.__name__: visit
    for visit in (garbage, handshakes, parts, byte_by_byte, crowd, questions, torn, giants, nonsense, unknown_roles)
}


# The job


class Besieged:
    """A job, and its memory before the visits."""

    def __init__(self, folder: Path) -> None:
        self.target = Target(folder)
        self.target.check()
        self._pids = [each["pid"] for each in self.target.run.status()["workers"]]
        self._memory: int | None = None  # bytes, after the first round
        self._begun = time.monotonic()

    def siege(self, rng: random.Random, visits: int, kinds: Sequence[str] = tuple(VISITS)) -> None:
        """Let `visits` visitors come, some at a time. Raise AssertionError if the job suffers from them."""
        names = [rng.choice(kinds) for _ in range(visits)]
        seeds = [rng.getrandbits(64) for _ in names]
        with ThreadPoolExecutor(VISITORS) as pool:
            running = [pool.submit(come, self.target, name, seed) for name, seed in zip(names, seeds)]
            while not all(each.done() for each in running):
                self.target.check()
        for each in running:
            each.result()
        COUNTS["visits"] += visits
        self.check()

    def check(self) -> None:
        """Fail unless the job is as it was, and all visitors are gone."""
        self.target.check()
        wait_until(lambda: max(self._descriptors()) < DESCRIPTORS_MAX)
        if self._memory is None:
            self._memory = self._resident()
        most = self._memory + MEMORY_BYTES
        wait_until(lambda: self._resident() < most)
        said = self.target.run.said
        periods = (time.monotonic() - self._begun) / PERIOD_SECONDS + 2
        assert len(said) < LINES_BESIDE + len(self._pids) * (LINES_MAX + 1) * periods, said[-50:]
        assert not any("Traceback" in line for line in said), said[-50:]

    def _descriptors(self) -> list[int]:
        return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self._pids]

    def _resident(self) -> int:
        return sum(map(resident_bytes, self._pids))

    def end(self) -> None:
        """Close the input; the job must end normally."""
        assert self.target.run.process.stdin is not None
        self.target.run.process.stdin.close()
        code, output, said = self.target.run.end()
        assert code == 0, said
        check_equal(output.count("\n"), self.target.counted, said)


def come(target: Target, name: str, seed: int) -> None:
    """Visit once; the job may hang up."""
    with contextlib.suppress(ClusterError, OSError):
        VISITS[name](target, random.Random(seed))


def attack(rng: random.Random) -> None:
    """Attack one job with some rounds of visitors."""
    with TemporaryDirectory() as folder:
        job = Besieged(Path(folder))
        try:
            for _ in range(4):
                job.siege(rng, 25)
            job.end()
        finally:
            job.target.run.process.finish()
