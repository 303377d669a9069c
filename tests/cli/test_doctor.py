"""`megaflow doctor` reports what works here, and finds a machine on which no job runs."""

import functools
import json
import os
import resource
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from megaflow.cli.doctor import EXTRAS
from megaflow.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]


def doctor(*before: str, prepare: Callable[[], None] | None = None, **environment: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the findings by name of a process."""
    words = [*before, sys.executable, "-m", "megaflow", "doctor", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=prepare, env={**os.environ, **environment})
    record = json.loads(done.stdout)
    assert record["job_runs"] is (done.returncode == 0)
    return done.returncode, {each["name"]: each for each in record["checks"]}


def broken(found: dict[str, Any]) -> list[str]:
    return [name for name, each in found.items() if each["needed"] and not each["works"]]


@pytest.mark.cluster
def test_a_machine_without_java_runs_jobs(tmp_path: Path) -> None:
    code, found = doctor(PATH=str(tmp_path), JAVA_HOME="", XDG_RUNTIME_DIR=str(tmp_path))
    assert code == 0 and broken(found) == []
    assert not found["Java"]["works"] and "Install one" in found["Java"]["text"]
    assert found["folder of jobs"]["text"] == str(tmp_path / "megaflow") and not list((tmp_path / "megaflow").iterdir())


@pytest.mark.cluster
def test_a_limit_on_files_fails_with_its_remedy() -> None:
    code, found = doctor(prepare=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20)))
    assert code == 1 and broken(found) == ["open files"]
    assert "20 files" in found["open files"]["text"] and "ulimit -n" in found["open files"]["text"]


@pytest.mark.cluster
def test_a_machine_without_a_loopback_address_fails() -> None:
    unshare = shutil.which("unshare")
    if os.getuid() or unshare is None:
        pytest.skip("a network without loopback takes root and unshare")
    code, found = doctor(unshare, "-n")
    assert code == 1 and broken(found) == ["ports"] and "127.0.0.1" in found["ports"]["text"]


@pytest.mark.cluster
def test_a_folder_that_others_can_enter_fails_and_no_folder_does_not(tmp_path: Path) -> None:
    (tmp_path / "megaflow").mkdir(mode=0o755)
    code, found = doctor(MEGAFLOW_RUNTIME_DIR=str(tmp_path))
    assert code == 1 and broken(found) == ["folder of jobs"]
    code, found = doctor(MEGAFLOW_RUNTIME_DIR="/proc")
    assert code == 0 and not found["folder of jobs"]["works"]
    no_room = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (0, 0))
    code, found = doctor(prepare=no_room, MEGAFLOW_RUNTIME_DIR=str(tmp_path / "other"))
    assert code == 0 and "File too large" in found["folder of jobs"]["text"]


@pytest.mark.cluster
def test_a_python_that_cannot_run_workers_fails() -> None:
    code, found = doctor(MEGAFLOW_PYTHON="/bin/false")
    assert code == 1 and broken(found) == ["Python", "processes"] and "/bin/false" in found["Python"]["text"]
    code, found = doctor(MEGAFLOW_PYTHON=sys.executable)
    assert code == 0 and found["Python"]["text"].endswith(sys.executable)


def test_each_line_begins_with_its_outcome(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor"], env={"MEGAFLOW_RUNTIME_DIR": str(tmp_path)})
    assert done.exit_code == 0, done.output
    *lines, empty, last = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "-"} and (empty, last) == ("", "A job runs here.")
    assert any(line.startswith("-     terminal ") for line in lines)


def test_every_extra_for_users_is_examined() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"dev", "plots"}  # of which no job uses one
    for name, (packages, _) in EXTRAS.items():
        named = " ".join(extras[name]).replace("-", "_")
        assert all(package.replace("compression", "backports") in named for package in packages)
