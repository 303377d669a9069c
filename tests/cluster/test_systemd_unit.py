"""The shipped systemd unit: its restart policy, with real kills, and systemd's own verdict."""

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
from pathlib import Path

import pytest

from tests.cluster.processes import END_SECONDS, ROOT, Process, committed, wait_until
from tests.results import check_equal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

UNIT = ROOT / "deploy" / "wordcount.service"
CLEAN = (0, -signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM, -signal.SIGPIPE)  # for systemd, by default


def settings(text: str) -> dict[str, str]:
    """Return the settings of a unit; none may appear twice."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if "=" in line and not line.startswith("#")]
    found = [line.split("=", 1) for line in lines]
    assert len({name for name, _ in found}) == len(found)
    return {name: value.strip() for name, value in found}


class Systemd:
    """Starts the unit's command and decides on restarts, as systemd.service(5) specifies."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._stack = stack
        self.unit = settings(UNIT.read_text())
        self.state, runtime, self.words = folder / "state", folder / "run", folder / "words"
        for made in (self.state, runtime, self.words):
            made.mkdir()
        assert self.unit["Environment"] == f"MEGAFLOW_RUNTIME_DIR=%t/{self.unit['RuntimeDirectory']}"
        self.environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "STATE_DIRECTORY": str(self.state), "MEGAFLOW_RESTARTS": "0",
            "MEGAFLOW_RUNTIME_DIR": str(runtime),
        }  # fmt: skip
        command = self.unit["ExecStart"].replace("${STATE_DIRECTORY}", str(self.state))
        program, *self.arguments = shlex.split(command.replace("/srv/words", str(self.words)))
        assert program == f"{self.unit['WorkingDirectory']}/.venv/bin/megaflow"

    def start(self) -> Process:
        """Start the command, and wait until the job runs."""
        command = [sys.executable, "-m", "megaflow", *self.arguments]
        process = Process(command, cwd=ROOT / "apps", env=self.environment)
        self._stack.callback(process.finish)
        wait_until(lambda: any("steer it with" in line for line in process.errors) or process.poll() is not None)
        return process

    def restarts(self, code: int) -> bool:
        """Return whether systemd starts the unit again after this exit code or signal."""
        clean = code in (*CLEAN, *map(int, self.unit["SuccessExitStatus"].split()))
        prevented = code in map(int, self.unit["RestartPreventExitStatus"].split())
        assert self.unit["Restart"] == "on-failure"
        return not clean and not prevented

    def stop(self, process: Process) -> None:
        """Act as `systemctl stop`: KillMode=mixed sends SIGTERM to the main process only."""
        assert self.unit["KillMode"] == "mixed"
        process.terminate()

    def write(self, name: str, text: bytes) -> None:
        """Give the job more input, and wait until a checkpoint contains it."""
        (self.words / name).write_bytes(text)

    def counted(self) -> int:
        output = self.state / "counts.jsonl"
        return output.read_bytes().count(b"\n") if output.exists() else 0


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    with ExitStack() as stack:
        yield Systemd(tmp_path, stack)


def worker_of(launcher: Process) -> int:
    tasks = Path(f"/proc/{launcher.pid}/task").glob("*/children")
    [pid] = {int(pid) for task in tasks for pid in task.read_text().split()}
    return pid


def test_the_unit_restarts_a_lost_job_and_no_failed_one(systemd: Systemd) -> None:
    text = b"a b a\nc a\n"
    kept = systemd.state / "kept"
    run, codes = systemd.start(), []
    for number, victim in enumerate(("launcher", "worker", "launcher", "worker")):
        systemd.write(f"{number}.txt", text)
        wait_until(lambda: systemd.counted() >= 5 * (number + 1))  # noqa: B023
        before = committed(kept)
        wait_until(lambda: committed(kept) > before or number == 3)  # noqa: B023
        os.kill(run.pid if victim == "launcher" else worker_of(run), signal.SIGKILL)
        codes.append(run.end().code)
        assert systemd.restarts(codes[-1]), run.errors
        run = systemd.start()
        assert any("resumes from checkpoint" in line for line in run.errors), run.errors
    assert codes == [-signal.SIGKILL, 75, -signal.SIGKILL, 75]

    wait_until(lambda: systemd.counted() >= 20)
    systemd.stop(run)
    assert run.end().code == 0 and not systemd.restarts(0)
    counts = Counter(re.findall(r'\["(\w)", \d+\]', (systemd.state / "counts.jsonl").read_text()))
    check_equal(counts, {"a": 12, "b": 4, "c": 4}, "each count once, whatever was killed")

    run = systemd.start()
    systemd.write("broken.txt", b"\xff\n")
    ended = run.end()
    assert ended.code == 1 and not systemd.restarts(1), ended.errors
    (systemd.words / "broken.txt").unlink()
    run = systemd.start()
    run.send_signal(signal.SIGINT)
    ended = run.end()
    assert ended.code == 130 and not systemd.restarts(130), ended.errors
    assert not systemd.restarts(129) and not systemd.restarts(143)


def test_the_page_shows_the_unit() -> None:
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"^```ini\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    unit = settings(UNIT.read_text())
    assert settings(shown).items() <= unit.items()
    assert {"Restart", "RestartPreventExitStatus", "KillMode", "OOMPolicy", "ExecStart"} <= settings(shown).keys()


def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("this machine has no systemd-analyze, which checks units")
    unit = tmp_path / UNIT.name
    program = f"{settings(UNIT.read_text())['WorkingDirectory']}/.venv/bin/megaflow"
    unit.write_text(UNIT.read_text().replace(program, sys.executable))  # it has to exist
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False,
        timeout=END_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0 and UNIT.name not in done.stderr, done.stderr
