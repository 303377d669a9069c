"""Resources that a job still holds after processes have joined and left or failed to join, and clients have come and
gone.

Launcher and founders must have no more descriptors, children and threads than before. Their memory may grow by what
they have to remember, and by fragments of Python's heap. The first rounds do not count, since they load modules and
fill caches.
"""

import os
import random
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from megaflow.control.client import commands
from megaflow.control.client.conversation import Conversation
from megaflow.control.client.move_request import Selection, make_plan
from megaflow.control.messages import ExplainQuery, RemoveWorker, Request, StatusQuery
from megaflow.errors import CommandRefused
from megaflow.timely.communication.client import Client
from tests.attack.chains import BINS, Chain
from tests.attack.jobs import PATIENCE_SECONDS, Job, kept_folder
from tests.attack.tally import COUNTS
from tests.cluster.processes import wait_until

FAILS_EVERY = 5  # a join fails once in this many rounds
WARM_ROUNDS = 3
RATE = 5  # lines a second; few, as a worker remembers how late the lines of its last two busy minutes were
CLIENTS = 100  # in each round
CLIENT_BYTES_MAX = 200  # that a client may leave behind: fragments of the heap only
JOIN_BYTES_MAX = 16_000  # that a joined and left process may leave: its moves in the ledger, and fragments
SPARE_BYTES = 4 << 20  # a heap grows and shrinks by this much at any time


@dataclass(frozen=True)
class Held:
    """The resources of a process."""

    descriptors: int
    children: int  # including zombies
    threads: int

    def is_within(self, first: "Held") -> bool:
        """Return whether there is no more than at first, when one client's connection may still have been closing."""
        return (
            self.descriptors <= first.descriptors
            and self.children <= first.children
            and self.threads <= first.threads
        )

    @classmethod
    def by(cls, pid: int) -> "Held":
        process = Path(f"/proc/{pid}")
        children = sum(len(path.read_text().split()) for path in process.glob("task/*/children"))
        return cls(len(os.listdir(process / "fd")), children, len(os.listdir(process / "task")))


def resident_bytes(pid: int) -> int:
    """Return the memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def check_flat(job: Job, rounds: int, bytes_max: int, act: Callable[[int], None]) -> None:
    """Call `act` `rounds` times after a few rounds that do not count. Fail if launcher or founders hold more than
    before.
    """
    status = job.status()
    assert status is not None
    pids = [job.run.process.pid, *(worker.pid for worker in status.workers)]

    def held() -> list[Held]:
        return [Held.by(pid) for pid in pids]

    before = held()
    for number in range(WARM_ROUNDS):
        act(number)
    memory = list(map(resident_bytes, pids))
    for number in range(WARM_ROUNDS, WARM_ROUNDS + rounds):
        act(number)
    job.note(f"launcher and founders held {before} at first, now {held()}")

    def is_flat() -> bool:
        return all(each.is_within(first) for each, first in zip(held(), before))

    try:
        wait_until(is_flat)  # soon: processes and connections end a little after their command
    except AssertionError as error:
        error.add_note(f"launcher and founders hold {held()} for good")
        raise
    grown = [resident_bytes(pid) - bytes for pid, bytes in zip(pids, memory)]
    job.note(f"launcher and founders have grown by {grown} bytes in {rounds} rounds")
    assert max(grown) <= SPARE_BYTES + rounds * bytes_max, f"bytes that launcher and founders have grown by: {grown}"


def play(act: Callable[[Job, random.Random, int], None], rng: random.Random, rounds: int, bytes_max: int) -> None:
    """Call `act` on a job of two processes. The job must stay flat and end normally."""
    with kept_folder() as folder:
        out = folder / "out.jsonl"
        job = Job(folder, Chain("machine", 200, 60, ("source0",), 10**7, True, True, 2, 1, RATE), "stop")
        try:
            job.await_status(lambda status: len(status.workers) == 2 and all(each.pid for each in status.workers))
            wait_until(lambda: out.exists() and out.stat().st_size > 0)  # by now all connections and threads exist
            check_flat(job, rounds, bytes_max, lambda number: act(job, rng, number))
            job.end(rng)
            job.check_left()
        except BaseException as error:
            error.add_note("\n".join([*job.account, *map(str.rstrip, job.run.said[-20:])]))
            raise
        finally:
            job.let_go()


def join_and_leave(job: Job, rng: random.Random, number: int) -> None:
    """Let a process join, get bins, and leave; every few rounds one fails to join."""
    fails = job.folder / "fail"
    if number % FAILS_EVERY == 0:
        fails.touch()
        with pytest.raises(CommandRefused, match="not today"):
            job.talk(lambda talk: commands.add_processes(talk, 1))
        fails.unlink()
        COUNTS["failed joins"] += 1

    def add_and_remove(talk: Conversation) -> None:
        report = commands.add_processes(talk, 1)
        assert not report.failed, report
        [worker] = report.joins[0].workers
        bins = ",".join(map(str, sorted(rng.sample(range(BINS), 4))))
        selections = [Selection(bins=bins, to=to, strategy="all-at-once") for to in (worker, number % 2)]
        for selection in selections:
            list(commands.run_plan(talk, make_plan(commands.ask_status(talk), selection), time.sleep))
        commands.remove_worker(talk, worker)

    job.talk(add_and_remove)
    COUNTS.update({"joins": 1, "leaves": 1, "moves": 8})


def connect(job: Job, rng: random.Random, number: int) -> None:
    """Connect some clients. Some of them ask a question, and some of these wait for the answer."""
    address, secret = job.contact()
    for _ in range(CLIENTS):
        with Client.connect(*address, secret, "control", {}) as client:
            if rng.random() < 0.3:
                client.send(Request(1, rng.choice([StatusQuery(), ExplainQuery(), RemoveWorker(977)])))
                if rng.random() < 0.5:
                    client.receive(PATIENCE_SECONDS)
    COUNTS["connections"] += CLIENTS


def attack_with_joins(rng: random.Random, rounds: int | None = None) -> None:
    """Let processes join one job and leave it, for `rounds` rounds."""
    play(join_and_leave, rng, rounds or rng.choice([50, 50, 500]), JOIN_BYTES_MAX)


def attack_with_clients(rng: random.Random, rounds: int = 100) -> None:
    """Let CLIENTS clients come and go, for `rounds` rounds."""
    play(connect, rng, rounds, CLIENTS * CLIENT_BYTES_MAX)
