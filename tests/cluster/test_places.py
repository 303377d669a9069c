"""The folders of job files: read-only ones, folders of other users, containers that share a volume."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import ROOT, WORDCOUNT, Process, committed, wait_until
from tests.results import comparing

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CONTAINER = ("unshare", "-p", "-f", "--mount-proc", "--kill-child")


def is_possible(*command: str) -> bool:
    """Return whether a command succeeds on this machine."""
    exists = shutil.which(command[0]) is not None
    return exists and subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_namespaces = pytest.mark.skipif(
    not is_possible(*CONTAINER, "true"), reason="this machine allows no PID namespace: unshare -p -f --mount-proc fails"
)

Starter = Callable[..., Process]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Starter]:
    """Start `megaflow` commands, prefixed by the words in `before`."""
    with ExitStack() as stack:

        def started(*words: str, before: tuple[str, ...] = (), runtime: Path | None = tmp_path, **more: str) -> Process:
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **more}
            environment.pop("XDG_RUNTIME_DIR", None)
            if runtime is not None:
                environment["MEGAFLOW_RUNTIME_DIR"] = str(runtime)
            command = [*before, sys.executable, "-m", "megaflow", *words]
            process = Process(command, env=environment, cwd=tmp_path, stdin=subprocess.PIPE)
            stack.callback(process.finish)
            return process

        yield started


def of_container(process: Process) -> int:
    """Return the first process of a container, as this machine sees it."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: bool(children.read_text().split()))
    return int(children.read_text().split()[0])


@needs_namespaces
def test_a_container_that_was_killed_restarts_under_its_name(begin: Starter, tmp_path: Path) -> None:
    volume, store = tmp_path / "volume", tmp_path / "kept"
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.txt").write_text("a b a\n")
    words = ("run", WORDCOUNT, "--lines", str(tmp_path / "lines"), "--follow", "--name", "count", "--state", str(store))
    words += ("--output", "none")
    first = begin(*words, before=CONTAINER, runtime=volume)
    wait_until(lambda: committed(store) > 0)
    assert (volume / "megaflow" / "count.json").exists()
    other = begin(*words[:-4], "--state", str(tmp_path / "other"), before=CONTAINER, runtime=volume).end()
    assert other.code == 1 and "names a job in another container" in other.errors, "it lives, and has another store"
    os.kill(of_container(first), 9)
    first.end()
    assert (volume / "megaflow" / "count.json").exists(), "nothing has withdrawn it"
    second = begin(*words, before=CONTAINER, runtime=volume)
    wait_until(lambda: any("steer it with" in line for line in second.errors) or second.poll() is not None)
    assert second.poll() is None, second.errors
    assert any("resumes from checkpoint" in line for line in second.errors), second.errors


# Makes the temporary folders read-only, with all their content except the folder that is named first.
READ_ONLY = """
for each in /tmp /var/tmp "$0"; do
    mount --bind "$each" "$each" && mount -o remount,bind,ro "$each" || exit 9
done
mount --bind "$1" "$1" && mount -o remount,bind,rw "$1" || exit 9
shift
exec "$@"
"""


def test_only_the_folder_of_the_store_has_to_be_writable(begin: Starter, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (tmp_path / "in.txt").write_text("a b a\n")
    before = ("unshare", "-m", "sh", "-c", READ_ONLY, str(tmp_path), str(state))
    if not is_possible(*before, "true"):
        pytest.skip("this machine allows no mount namespace: unshare -m fails, so no folder can be read-only for root")
    more = {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    words = ("run", WORDCOUNT, "--lines", "in.txt", "--state", str(state / "kept"))
    ended = begin(*words, before=before, runtime=None, **more).end()
    assert ended.code == 0, ended.errors
    with comparing():
        assert "('a', 2)" in ended.output, ended.errors
    assert "commands do not find job 'wordcount' by its name" in ended.errors


def test_a_job_without_a_folder_is_steered_by_its_address(begin: Starter, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    more: dict[str, Any] = {"runtime": tmp_path / "file" / "below", "MEGAFLOW_SECRET": "of this test"}
    run = begin("run", WORDCOUNT, "--lines", "-", **more)
    wait_until(lambda: any("steer it with" in line for line in run.errors))
    assert any("cannot make" in line and "MEGAFLOW_RUNTIME_DIR" in line for line in run.errors)
    [line] = [line for line in run.errors if "steer it with" in line]
    address = line.split("--connect ")[1].strip()
    status = begin("control", "status", "--connect", address, **more).end()
    assert status.code == 0 and "running" in status.output, status.errors
    stop = begin("control", "stop", "--connect", address, **more).end()
    assert stop.code == 0 and run.end().code == 0, stop.errors


def test_runtime_dir_is_an_option_of_jobs_and_commands(begin: Starter, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "runtime"
    run = begin("run", WORDCOUNT, "--lines", "-", "--runtime-dir", str(folder), runtime=None)
    wait_until(lambda: any("steer it with" in line for line in run.errors))
    assert (folder / "megaflow" / "wordcount.json").exists()
    assert any(f"--job wordcount --runtime-dir {folder}" in line for line in run.errors)
    stop = begin("control", "stop", "--runtime-dir", str(folder), runtime=None).end()
    assert stop.code == 0 and run.end().code == 0, stop.errors
