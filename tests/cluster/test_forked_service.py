"""A service that starts a job, and pools and forks of it that live longer than the job or than the service."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.processes import ROOT, Process, records_of
from tests.ports import free_ports
from tests.results import check_equal

pytestmark = pytest.mark.cluster

SERVICE = """
import concurrent.futures, multiprocessing, os, subprocess, sys
import megaflow

def dataflow(flow):
    return flow.lines().map(str.upper)

def start():
    port = int(sys.argv[2])
    return megaflow.start(
        dataflow, lines="lines.txt", follow=True, state="store", output="jsonl:out.jsonl", web=port
    )

def await_lines(job, count):
    while len(open("out.jsonl").readlines()) < count:
        job.checkpoint()

def pooled(kind):
    if kind == "fork":
        if not os.fork():
            sys.stdin.read()  # until the test ends
            os._exit(0)
    elif kind == "subprocess":
        return subprocess.Popen([sys.executable, "-c", "input()"], close_fds=False)
    elif kind == "executor":
        pool = concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork"))
        assert [*pool.map(len, ["a", "bb"])] == [1, 2]
        return pool
    else:
        pool = multiprocessing.get_context(kind.removesuffix(" pool")).Pool(2)
        assert pool.map(len, ["a", "bb"]) == [1, 2]
        return pool

if __name__ == "__main__":
    job = start()
    await_lines(job, 1)
    pool = pooled(sys.argv[1])
    print("forked", flush=True)
    if sys.argv[3:] == ["killed"]:
        sys.stdin.read()
    job.stop()
    with open("lines.txt", "a") as file:
        file.write("b" + chr(10))
    job = start()
    await_lines(job, 2)
    job.stop()
    print("stopped twice", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Return a function that starts the service: the kind of its forks, and perhaps that it is to be killed."""
    (tmp_path / "service.py").write_text(SERVICE)
    (tmp_path / "lines.txt").write_text("a\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    [port] = free_ports(1)
    with ExitStack() as stack:

        def starting(kind: str, *more: str) -> Process:
            command = [sys.executable, "service.py", kind, str(port), *more]
            service = Process(command, cwd=tmp_path, env=environment, stdin=subprocess.PIPE)
            assert service.stdin is not None
            stack.callback(service.end)  # a pool that was not ended would live on
            stack.callback(service.stdin.close)  # ends the service and its forks
            service.await_line("forked")
            return service

        yield starting


OTHERS = ("fork pool", "executor", "forkserver pool", "subprocess")


@pytest.mark.parametrize("kind", ["fork", *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)])
def test_stopped_job_starts_again_though_forks_live(begin: Callable[..., Process], tmp_path: Path, kind: str) -> None:
    service = begin(kind)
    service.await_line("stopped twice")
    check_equal(records_of(tmp_path / "out.jsonl"), ["A", "B"])


def test_killed_service_starts_again_though_its_fork_lives(begin: Callable[..., Process], tmp_path: Path) -> None:
    begin("fork", "killed").kill()
    begin("fork").await_line("stopped twice")
    check_equal(records_of(tmp_path / "out.jsonl"), ["A", "B"])
