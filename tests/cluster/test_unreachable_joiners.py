"""Processes that ask to join at an address that the job cannot reach: they are refused, and the job continues."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from megaflow.errors import JoinDenied
from megaflow.timely.rescale.join_door import ask_to_join
from tests.cluster.processes import Process, Run
from tests.ports import free_ports
from tests.results import check_equal
from tests.words import says

pytestmark = pytest.mark.cluster

SECRET = "a secret of the tests"
WORDS = "def dataflow(flow):\n    return flow.lines()\n"
NET = f"10.{150 + os.getpid() // 250 % 50}.{os.getpid() % 250}"


@pytest.fixture
def job(start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    monkeypatch.setenv("MEGAFLOW_SECRET", SECRET)
    (tmp_path / "app.py").write_text(WORDS)
    (tmp_path / "in").mkdir()

    def starting(listen: str) -> Run:
        words = "--name", "job", "--lines", str(tmp_path / "in" / "*.log"), "--follow", "--listen", listen
        run = start(str(tmp_path / "app.py"), *words)
        run.status_when(lambda status: status["state"] == "running")
        return run

    return starting


def check_unchanged(run: Run, folder: Path) -> None:
    """Check that the job has one worker, which still works, and stop it."""
    record = run.status()
    assert len(record["workers"]) == 1 and not record["joining"], record
    (folder / "in" / "a.log").write_text("a\n")
    run.status_when(lambda status: status["workers"][0]["lines"] == 1)
    assert run.control("stop").returncode == 0
    code, output, said = run.end()
    assert code == 0, said
    check_equal(output.split(), ["a"], said)


@pytest.mark.slow
def test_one_at_whose_address_no_process_listens_may_not_join(job: Callable[..., Run], tmp_path: Path) -> None:
    run = job("127.0.0.1")
    [contact] = [json.loads(path.read_text()) for path in run.files()]
    [port] = free_ports(1)
    with pytest.raises(JoinDenied) as denied:
        ask_to_join([(contact["host"], contact["port"])], SECRET.encode(), ("127.0.0.1", port), 1, None, 250.0)
    wanted = "cannot connect to it at", f"127.0.0.1:{port}", "Connection refused", "--listen HOST:PORT"
    assert says(str(denied.value), socket.gethostname(), *wanted)
    check_unchanged(run, tmp_path)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=180)


@pytest.fixture
def space() -> Iterator[str]:
    """A network namespace at NET.2, to which NET.1 is the machine of the tests. It also has an address of its own."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("this takes root and ip, to make a network namespace")
    name = f"mf{os.getpid() % 100_000}"
    space, near, far = f"{name}s", f"{name}e", f"{name}f"
    with ExitStack() as stack:
        try:
            ip("netns", "add", space)
            stack.callback(ip, "netns", "del", space)
            ip("link", "add", near, "type", "veth", "peer", "name", far)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace can be made here: {error.stderr!r:.200}")
        ip("link", "set", far, "netns", space)
        ip("addr", "add", f"{NET}.1/30", "dev", near)
        ip("link", "set", near, "up")
        for words in (f"{NET}.2/30 dev {far}", f"{NET}.9/32 dev lo"):
            ip("-n", space, "addr", "add", *words.split())
        for link in (far, "lo"):
            ip("-n", space, "link", "set", link, "up")
        yield space


def test_one_at_an_address_that_the_job_cannot_reach_may_not_join(
    job: Callable[..., Run], tmp_path: Path, space: str
) -> None:
    [port] = free_ports(1)
    run = job(f"{NET}.1:{port}")
    command = ["ip", "netns", "exec", space, sys.executable, "-m", "megaflow", "run", str(tmp_path / "app.py")]
    for listen, why in ((f"{NET}.9", "cannot connect to it at"), (f"{NET}.2", "")):
        with Process([*command, "--join", f"{NET}.1:{port}", "--listen", listen], env=run.environment) as joiner:
            try:
                if why:
                    ended = joiner.end()
                    assert ended.code == 1 and says(ended.errors, socket.gethostname(), why, listen, "--listen"), ended
                    assert len(run.status()["workers"]) == 1
                else:
                    run.status_when(lambda status: len(status["workers"]) == 2)
                    assert run.control("remove-workers", "--id", "1").returncode == 0
                    assert joiner.end().code == 0
            finally:
                joiner.finish()
    check_unchanged(run, tmp_path)
