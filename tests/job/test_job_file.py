"""Job files are private and complete. They are removed or ignored when their launcher has ended."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from megaflow.errors import CommandRefused, JobNotFound, NoPrivateFolder, UsageError
from megaflow.job import job_file
from megaflow.job.job_file import (
    FormerLaunchers,
    Job,
    check_free,
    check_name,
    find,
    is_alive,
    present,
    process_namespace,
    process_start,
    process_state,
    publish,
    publish_numbered,
    read,
    republish,
    withdraw,
)
from tests.rights import without_room


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "megaflow"


def job(name: str = "count", pid: int | None = None, started: str | None = None) -> Job:
    pid = os.getpid() if pid is None else pid
    began = process_start(pid) if started is None else started
    return Job(name, pid, began, "127.0.0.1", 2101, "s3cret", process_namespace())


ELSEWHERE = "pid:[1]"  # the process namespace of a container


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_job_without_room_for_its_file_has_none(runtime_folder: Path) -> None:
    said = f"cannot write files of running jobs to {runtime_folder}: File too large. Name another by --runtime-dir"
    for each in (publish, publish_numbered):
        with without_room(), pytest.raises(NoPrivateFolder, match=said):
            each(job())
    assert list(runtime_folder.iterdir()) == []


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
    assert list(present()) == [(job("a"), True), (job("b"), True)]
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


def test_a_job_that_has_ended_is_told_from_one_that_never_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_file, "ENDED_MAX", 2)
    for name in ("a", "b", "c"):
        withdraw(job(name), publish(job(name)))
    publish(job("d", dead_pid(), "0"))
    for name, what in (("c", "the job 'c' has ended"), ("d", "the job 'd' has ended"), ("a", "no job named 'a'")):
        with pytest.raises(JobNotFound, match=f"{what}; running: none"):
            find(name)
    publish(job("c"))
    assert find("c") == job("c")
    with pytest.raises(JobNotFound, match=r"no job named '\.\./c'"):
        find("../c")


def test_an_error_names_ten_of_many_jobs() -> None:
    for number in range(10, 23):
        publish(job(f"job{number}"))
    listed = ", ".join(f"job{number}" for number in range(10, 20))
    for name in ("nobody", None):
        with pytest.raises(JobNotFound, match=f": {listed}, and 3 more$"):
            find(name)


def test_a_living_jobs_name_is_taken_and_a_numbered_one_is_given() -> None:
    publish(job("a"))
    with pytest.raises(CommandRefused, match="'a' is running already"):
        publish(job("a"))
    assert publish_numbered(job("a"))[0].name == "a-2"
    assert publish_numbered(job("a"))[0].name == "a-3"
    assert publish_numbered(job("b"))[0].name == "b"


def test_whether_a_name_is_free_is_known_before_it_is_taken() -> None:
    path = publish(job("a"))
    with pytest.raises(CommandRefused, match="'a' is running already"):
        check_free("a")
    check_free("a", FormerLaunchers(os.getpid()))  # the job takes its place
    check_free("b")
    assert path.exists()


def test_the_file_of_a_dead_launcher_is_removed_and_its_name_free() -> None:
    path = publish(job("a", dead_pid(), "0"))
    assert list(present()) == [] and not path.exists()
    publish(job("a", dead_pid(), "0"))
    assert publish(job("a")) == path and find("a").pid == os.getpid()


def test_a_launcher_whose_parent_has_not_waited_for_it_is_gone() -> None:
    if process_state(os.getpid()) == "?":
        pytest.skip("this system does not tell whether a process is a zombie")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        path = publish(job("a", child.pid))
        assert find("a").pid == child.pid
        with pytest.raises(CommandRefused, match="running already"):
            publish(job("a"))
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and remains as a zombie
        os.kill(child.pid, 0)
        assert process_state(child.pid) == "" and process_start(child.pid) is not None
        assert is_alive(read(path) or job()) is False
        assert publish(job("a")) == path and find("a").pid == os.getpid()
        publish(job("b", child.pid))
        with pytest.raises(JobNotFound, match="the job 'b' has ended"):
            find("b")
    finally:
        child.communicate()
    assert process_state(child.pid) == ""


def test_a_launcher_that_does_not_answer_leaves_its_name_to_who_takes_its_place() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        path = publish(job("a", child.pid))
        assert publish(job("a"), FormerLaunchers(child.pid)) == path and find("a").pid == os.getpid()
        publish(job("b", child.pid))
        assert publish_numbered(job("b"), FormerLaunchers(child.pid))[0].name == "b"
        named = publish_numbered(job("a"), FormerLaunchers(child.pid))[0].name
        assert named == "a-2", "it has a file of its own by now"
    finally:
        child.communicate(b"\n")


def test_the_lock_of_a_store_decides_about_a_container_that_is_gone() -> None:
    path = publish(replace(job("a"), namespace=ELSEWHERE, lock="first"))
    for replaced in (FormerLaunchers(), FormerLaunchers(locks=("other",)), FormerLaunchers(pid=os.getpid())):
        with pytest.raises(CommandRefused, match="another container"):
            check_free("a", replaced)
    new = replace(job("a"), lock="second")
    assert publish(new, FormerLaunchers(locks=("zeroth", "first"))) == path and read(path) == new


def test_a_job_without_a_lock_is_replaced_by_none() -> None:
    publish(replace(job("a"), namespace=ELSEWHERE))
    with pytest.raises(CommandRefused, match="another container"):
        publish(job("a"), FormerLaunchers(locks=("first",)))


def test_root_finds_jobs_of_other_users_after_its_own(
    runtime_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid():
        pytest.skip("only root reads the folders of other users")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = publish(job("theirs"))
    runtime_folder.rename(other := tmp_path / "megaflow-12345")
    os.chown(other, 12345, 12345)
    found = find(None)
    assert found == replace(job("theirs"), folder=str(other)) and find("theirs") == found
    publish(job("own"))
    assert find(None) == job("own") and find("theirs") == found
    gone = other / path.name
    gone.write_text(json.dumps(asdict(job("theirs", dead_pid(), "0"))))
    assert [each.name for each, _ in present()] == ["own"] and gone.exists(), "root removes nothing of others"


def test_another_process_under_the_same_id_is_not_the_launcher() -> None:
    if process_start(os.getpid()) is None:
        pytest.skip("this system does not tell when a process began")
    assert is_alive(job()) and not is_alive(job(started="1"))
    path = publish(job("a", started="1"))
    assert list(present()) == [] and not path.exists()


def test_a_job_in_another_container_stays_and_is_found_by_its_name_only() -> None:
    other = replace(job("a", dead_pid(), "0"), namespace=ELSEWHERE)
    path = publish(other)
    assert is_alive(other) is None and list(present()) == [(other, False)] and path.exists()
    assert find("a") == other
    with pytest.raises(JobNotFound, match=r"no job is visible from here.*--job: none; in another .* ended: a"):
        find(None)
    with pytest.raises(CommandRefused, match=r"names a job in another container.*choose another --name, or remove"):
        publish(job("a"))
    assert publish_numbered(job("a"))[0].name == "a-2"
    assert find(None) == job("a-2")


def test_a_job_touches_only_its_own_file() -> None:
    first, second = job("a"), replace(job("a"), secret="another")
    path = publish(first)
    path.unlink()  # another program removes it
    publish(second)
    withdraw(first, path)
    with pytest.raises(FileExistsError, match="is another job's by now"):
        republish(replace(first, port=9))
    assert read(path) == second
    republish(replace(second, port=9))
    withdraw(second, path)
    withdraw(second, path)
    assert not path.exists()


WRONG = [
    "", "{", "[]", '{"name": "a"}', '{"pid": []}', "[" * 100_000, "1" * 5000,
    *(
        json.dumps({"name": "a", "pid": 1, "started": None, "host": "h", "port": 1, "secret": "s", **wrong})
        for wrong in (
            {"pid": 10**30}, {"pid": 2**40}, {"pid": -1}, {"pid": 0}, {"pid": True}, {"pid": "1"}, {"port": 70_000},
            {"port": None}, {"host": "ä"}, {"host": 7}, {"secret": None}, {"secret": "\ud800"}, {"started": 7},
            {"name": "b"}, {"name": 7},
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:80])
def test_a_file_that_is_no_job_is_passed_by_and_stays(runtime_folder: Path, text: str) -> None:
    publish(job("b"))
    path = runtime_folder / "a.json"
    path.write_text(text)
    assert read(path) is None and find(None) == job("b")
    with pytest.raises(CommandRefused, match="of another version of megaflow"):
        publish(job("a"))
    assert path.read_text() == text


def of_another_version(path: Path, job: Job) -> None:
    """Write a job's file as a version does that has a field of its own and lacks another one."""
    there = {name: value for name, value in asdict(job).items() if name not in ("attempt", "folder")}
    path.write_text(json.dumps(there | {"shards": 3}))


def test_name_of_a_dead_job_of_another_version_is_free(runtime_folder: Path) -> None:
    path = publish(job("a"))
    of_another_version(path, replace(job("a"), pid=dead_pid()))
    assert read(publish(job("a"))) == job("a")
    of_another_version(path, replace(job("a"), pid=dead_pid()))
    assert not list(present()) and not path.exists()


def test_living_job_of_another_version_is_found_and_keeps_its_name(runtime_folder: Path) -> None:
    of_another_version(publish(job("a")), job("a"))
    assert find(None) == job("a")
    with pytest.raises(CommandRefused, match="is running already"):
        publish(job("a"))


def test_a_folder_that_others_can_enter_is_refused(runtime_folder: Path) -> None:
    runtime_folder.mkdir(mode=0o755)
    runtime_folder.chmod(0o755)
    with pytest.raises(UsageError, match="700"):
        publish(job())


@pytest.mark.parametrize("name", ["", ".a", "-a", "a/b", "../a", "a b", "a" * 65, "ä", "a\n"])
def test_names_that_are_no_plain_words_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--name"):
        check_name(name)
    check_name("a.B-2_")
