"""The shipped image: its command as process 1 of a fresh PID namespace, stopped, killed and started again."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.processes import ROOT, Process, wait_until
from tests.ports import free_ports
from tests.results import check_equal
from tests.test_docs import parse

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

IMAGE = ROOT / "deploy" / "Dockerfile"
ISOLATED = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile with their arguments."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines.splitlines())]


def exec_form(name: str) -> list[str]:
    """Return the words of an instruction in its exec form."""
    [given] = [rest for each, rest in instructions(IMAGE.read_text("utf-8")) if each == name]
    words = json.loads(given.removeprefix("CMD "))
    assert isinstance(words, list)
    return words


class Container:
    """Starts the image's command as a container runtime would: in a PID namespace, with the volumes of one folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._stack = stack
        self.state, self.words = folder / "state", folder / "words"
        self.state.mkdir()
        self.words.mkdir()
        [port] = free_ports(1)
        places = {"/state": str(self.state), "/words": str(self.words), "0.0.0.0:9100": f"127.0.0.1:{port}"}
        pattern = re.compile("|".join(map(re.escape, places)))
        self._command = [pattern.sub(lambda found: places[found[0]], word) for word in exec_form("CMD")]
        self._probe = [word.replace(":9100", f":{port}") for word in exec_form("HEALTHCHECK")]
        [runtime] = [rest for name, rest in instructions(IMAGE.read_text("utf-8")) if name == "ENV"]
        name, _, where = runtime.partition("=")
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), name: where.replace("/state", str(self.state))}

    def start(self) -> Process:
        """Start a container, and wait until it is healthy."""
        program, *arguments = self._command
        assert program == "megaflow"
        command = [*ISOLATED, sys.executable, "-m", "megaflow", *arguments]
        process = Process(command, cwd=ROOT / "apps", env=self._environment)
        self._stack.callback(process.finish)
        wait_until(lambda: self.is_healthy() or process.poll() is not None)
        assert process.poll() is None, process.errors
        return process

    def is_healthy(self) -> bool:
        program, *arguments = self._probe
        assert program == "python"
        return subprocess.run([sys.executable, *arguments], capture_output=True, check=False).returncode == 0

    def counted(self) -> int:
        output = self.state / "counts.jsonl"
        return output.read_bytes().count(b"\n") if output.exists() else 0


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    if shutil.which("unshare") is None or subprocess.run([*ISOLATED, "true"], check=False).returncode:
        pytest.skip("this user cannot make a PID namespace")
    if not all(map(find_spec, ("aiohttp", "prometheus_client"))):
        pytest.skip("needs megaflow[web] for the probe")
    with ExitStack() as stack:
        yield Container(tmp_path, stack)


def child_of(pid: int) -> int:
    """Return the only child of a process."""
    [child] = [int(each) for task in Path(f"/proc/{pid}/task").glob("*/children") for each in task.read_text().split()]
    return child


def first_of(process: Process) -> int:
    """Return the process that is the first in its namespace."""
    pid = child_of(process.pid)
    [numbers] = re.findall(r"^NSpid:(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert numbers.split()[-1] == "1"
    return pid


def test_the_image_stops_resumes_and_survives_kills(container: Container) -> None:
    (container.words / "1.txt").write_text("a b a\n")
    run = container.start()
    wait_until(lambda: container.counted() == 3)
    os.kill(first_of(run), signal.SIGTERM)
    ended = run.end()
    assert ended.code == 0 and "stopped at checkpoint" in ended.errors, ended.errors

    run = container.start()
    launcher = first_of(run)
    os.kill(child_of(launcher), signal.SIGKILL)
    wait_until(lambda: any("restart 1 of 3" in line for line in run.errors))
    (container.words / "2.txt").write_text("c a\n")
    wait_until(lambda: container.counted() == 5 and container.is_healthy())

    os.kill(launcher, signal.SIGKILL)
    run.end()
    (container.words / "3.txt").write_text("b\n")
    run = container.start()
    assert any("resumes from checkpoint" in line for line in run.errors), run.errors
    wait_until(lambda: container.counted() == 6)
    os.kill(first_of(run), signal.SIGTERM)
    assert run.end().code == 0
    counts = Counter(re.findall(r'\["(\w)", \d+\]', (container.state / "counts.jsonl").read_text()))
    check_equal(counts, {"a": 3, "b": 2, "c": 1}, "each count once")


def test_the_page_shows_the_image() -> None:
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"^```dockerfile\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert instructions(shown) == instructions(IMAGE.read_text("utf-8"))
    parse(shlex.join(exec_form("CMD")))
