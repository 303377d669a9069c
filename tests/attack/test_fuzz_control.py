"""Requests to a real job with any value in any field are refused or answered, and the job continues."""

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from megaflow.control import messages
from megaflow.control.messages import Done, Refused, Request, StatusQuery
from megaflow.control.shapes import conforms
from megaflow.errors import PeerLost
from tests.attack.hostile import Besieged
from tests.attack.tally import COUNTS
from tests.cluster.test_flooded import Target
from tests.control.worker.test_hostile_clients import requests

LAST = 1 << 60  # id of the last question
WAIT_SECONDS = 180


def is_harmless(value: Any) -> bool:
    """Return whether a request neither ends the job nor starts or ends its processes."""
    body = value.body if conforms(value, Request) else None
    if isinstance(body, messages.AddProcesses):
        return not conforms(body, messages.AddProcesses) or body.count < 1
    if isinstance(body, messages.RemoveWorker):
        return not conforms(body, messages.RemoveWorker) or body.ask_only
    return not isinstance(body, messages.StopJob)


lists_of_requests = st.lists(requests.filter(is_harmless), min_size=1, max_size=8)


def ask(target: Target, sent: list[Any]) -> None:
    """Send these values on one connection. Fail unless each request is answered, up to one that ends the connection."""
    asked = []
    answered = set()
    with target.client() as client:
        try:
            for value in sent:
                client.send(value)
                asked += [value.id] if conforms(value, Request) else []
            client.send(Request(LAST, StatusQuery()))
            while not (answered.issuperset(asked) and LAST in answered):
                answer = client.receive(WAIT_SECONDS)
                answered |= {answer.id} if isinstance(answer, Done | Refused) else set()
        except PeerLost:
            assert not all(conforms(value, Request) for value in sent), sent
    COUNTS["requests"] += len(sent)


def ask_many(job: Besieged, examples: int, rng: random.Random | None = None) -> None:
    """Send `examples` lists of requests, drawn from the generator or always the same. The job must not suffer."""
    quiet = settings(max_examples=examples, database=None, deadline=None, derandomize=rng is None,
                     suppress_health_check=list(HealthCheck))  # fmt: skip
    test = quiet(given(lists_of_requests)(lambda sent: ask(job.target, sent)))
    (test if rng is None else seed(rng.getrandbits(64))(test))()
    job.check()


def attack(rng: random.Random) -> None:
    """Send some thousand requests to one job."""
    with TemporaryDirectory() as folder:
        job = Besieged(Path(folder))
        try:
            for _ in range(3):
                ask_many(job, 200, rng)
            job.end()
        finally:
            job.target.run.process.finish()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Besieged]:
    """Yield a job that must end normally."""
    besieged = Besieged(tmp_path)
    try:
        yield besieged
        besieged.end()
    finally:
        besieged.target.run.process.finish()


@pytest.mark.cluster
@pytest.mark.slow
def test_a_job_answers_or_refuses_whatever_its_clients_ask(job: Besieged) -> None:
    ask_many(job, 20)
    ask_many(job, 200)
