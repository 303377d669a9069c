"""Job files are private, whole, and gone or ignored when their launcher is."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from megaflow.errors import CommandRefused, JobNotFound, UsageError
from megaflow.job.job_file import (
    Job,
    check_name,
    find,
    is_alive,
    process_start,
    publish,
    publish_numbered,
    read,
    republish,
    running,
)


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "megaflow"


def job(name: str = "count", pid: int | None = None, started: str | None = None) -> Job:
    pid = os.getpid() if pid is None else pid
    return Job(name, pid, process_start(pid) if started is None else started, "127.0.0.1", 2101, "s3cret")


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_job_file_is_readable_by_its_user_only(runtime_folder: Path) -> None:
    path = publish(job())
    assert path == runtime_folder / "count.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(runtime_folder.stat().st_mode) == 0o700
    assert list(runtime_folder.iterdir()) == [path]  # nothing half-made is left
    assert json.loads(path.read_text())["port"] == 2101


def test_what_was_published_is_found() -> None:
    publish(job("a"))
    assert find(None) == find("a") == job("a")
    publish(job("b"))
    assert [found.name for found in running()] == ["a", "b"]
    assert find("b") == job("b")


def test_a_job_whose_coordinator_is_elsewhere_has_the_same_file_with_the_new_address(runtime_folder: Path) -> None:
    path = publish(job("a"))
    moved = replace(job("a"), host="10.0.0.7", port=9)
    republish(moved)
    assert find("a") == moved and list(runtime_folder.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_none_or_several_jobs_are_an_error_that_helps() -> None:
    with pytest.raises(JobNotFound, match="no job is running"):
        find(None)
    publish(job("a"))
    publish(job("b"))
    with pytest.raises(JobNotFound, match="--job: a, b"):
        find(None)
    with pytest.raises(JobNotFound, match="no job named 'c'; running: a, b"):
        find("c")


def test_a_living_jobs_name_is_taken_and_a_numbered_one_is_given() -> None:
    publish(job("a"))
    with pytest.raises(CommandRefused, match="'a' is running already"):
        publish(job("a"))
    assert publish_numbered(job("a"))[0].name == "a-2"
    assert publish_numbered(job("a"))[0].name == "a-3"
    assert publish_numbered(job("b"))[0].name == "b"


def test_the_file_of_a_dead_launcher_is_removed_and_its_name_free() -> None:
    path = publish(job("a", dead_pid(), "0"))
    assert list(running()) == [] and not path.exists()
    publish(job("a", dead_pid(), "0"))
    assert publish(job("a")) == path and find("a").pid == os.getpid()


def test_another_process_under_the_same_id_is_not_the_launcher() -> None:
    if process_start(os.getpid()) is None:
        pytest.skip("this system does not tell when a process began")
    assert is_alive(job()) and not is_alive(job(started="1"))
    path = publish(job("a", started="1"))
    assert read(path) is None and not path.exists()


def test_a_file_that_is_no_job_is_removed(runtime_folder: Path) -> None:
    path = publish(job("a"))
    for text in ("", "{", "[]", '{"name": "a"}', '{"pid": []}'):
        path.write_text(text)
        assert read(path) is None and not path.exists()
    assert read(runtime_folder / "never.json") is None


def test_a_folder_that_others_can_enter_is_refused(runtime_folder: Path) -> None:
    runtime_folder.mkdir(mode=0o755)
    runtime_folder.chmod(0o755)
    with pytest.raises(UsageError, match="700"):
        publish(job())


@pytest.mark.parametrize("name", ["", ".a", "-a", "a/b", "../a", "a b", "a" * 65, "ä", "a\n"])
def test_names_that_are_no_plain_words_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--name"):
        check_name(name)
    assert check_name("a.B-2_") == "a.B-2_"
