"""Processes that join by hand and see other files than the job: they are refused, and the job goes on.

`/proc/self/cwd` stands for the working directory of each process. So processes with different ones see different files
under the same paths, as on two machines.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import Process, Run, records_of, wait_until
from tests.results import check_equal
from tests.rights import give_up_rights
from tests.words import says

pytestmark = pytest.mark.cluster

WORDS = "def dataflow(flow):\n    return flow.lines()\n"
AWAY = """
import os

def dataflow(flow):
    try:
        os.close(os.open("away", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        pass
    else:
        {how}
    return flow.lines()
"""
SINK = """
import os
from megaflow.connect import Sink

class File(Sink):
    def open(self, place):
        self.file = open("/proc/self/cwd/out/rows", "a")

    def write(self, epoch, batch):
        self.file.writelines(f"{each}\\n" for each in batch)

    def prepare(self, number):
        self.file.flush()

    def commit(self, number, token):
        pass

    def close(self):
        self.file.close()

def dataflow(flow):
    return flow.lines().write(File(), name="rows")
"""
COUNT = """
def add(word, one, count):
    count = (count or 0) + 1
    return count, [(word, count)]

def dataflow(flow):
    return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(add, bins=8)
"""
TABLE = """
from megaflow.connect import DatabaseSink

def dataflow(flow):
    made = "CREATE TABLE IF NOT EXISTS rows (word TEXT)"
    sink = DatabaseSink("sqlite:/proc/self/cwd/out/shop.db", "rows", ["word"], create=made)
    return flow.lines().map(lambda word: (word,)).write(sink, name="rows")
"""
SOURCE = """
import os
from megaflow.connect import Exhausted, Found, Idle

class Shelf:
    def discover(self):
        return Found(["a"], 3600.0)

    def open(self, partition, position):
        return self

    def read(self, limit):
        return ([], 1) if os.path.exists("/proc/self/cwd/done") else Idle(after_seconds=0.05)

    def close(self):
        pass

    def check(self, partitions):
        for each in partitions:
            if not os.path.exists(f"/proc/self/cwd/{each}"):
                raise FileNotFoundError(f"no shelf {each}")

def dataflow(flow):
    return flow.read(Shelf(), "shelf")
"""


def lines(status: dict[str, Any]) -> int:
    return sum(worker["lines"] for worker in status["workers"])


def read_by(status: dict[str, Any]) -> int:
    """The number of partitions that workers have."""
    return sum(len(worker.get("partitions", ())) for worker in status["workers"])


class Machines:
    """Two folders that stand for two machines, and a job on the first."""

    def __init__(self, start: Callable[..., Run], folder: Path, app: str, **files: str) -> None:
        self._start = start
        self.here, self.there = folder / "here", folder / "there"
        self.app = folder / "app.py"
        self.app.write_text(app)
        for machine in (self.here, self.there):
            (machine / "in").mkdir(parents=True)
        for name, text in files.items():
            (self.here / "in" / f"{name}.log").write_text(text)

    def start(self, *words: str) -> Run:
        return self._start(str(self.app), "--name", "job", *words, cwd=self.here)

    def run(self, *words: str) -> Run:
        job = self.start(*words)
        job.status_when(lambda status: status["state"] == "running")
        return job

    def join(self) -> tuple[int, str, list[str]]:
        return self._start(str(self.app), "--join", "job", cwd=self.there).end()


@pytest.mark.parametrize("there, why", [
    (None, "is not there"),
    pytest.param("a", "has 1 bytes here", marks=pytest.mark.slow),
    pytest.param("other\n" * 9, "it has other bytes", marks=pytest.mark.slow),
    pytest.param("a\nb\n", "its inode is", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_process_without_the_followed_file_may_not_join(
    start: Callable[..., Run], tmp_path: Path, there: str | None, why: str
) -> None:
    machines = Machines(start, tmp_path, WORDS, a="a\nb\n")
    job = machines.run("--lines", "/proc/self/cwd/in/*.log", "--follow")
    if there is not None:
        (machines.there / "in" / "a.log").write_text(there)
    code, _, said = machines.join()
    assert code == 1 and says(said[-1], "does not find", "/in/a.log", why, "mount"), said
    assert len(job.status()["workers"]) == 1
    with (machines.here / "in" / "a.log").open("a") as file:
        file.write("c\n")
    job.status_when(lambda status: lines(status) == 3)
    assert job.control("stop").returncode == 0
    code, output, said = job.end()
    assert code == 0, said
    check_equal(output.split(), ["a", "b", "c"], said)


def test_a_process_that_sees_the_same_files_joins(start: Callable[..., Run], tmp_path: Path) -> None:
    machines = Machines(start, tmp_path, WORDS, a="a\nb\n")
    job = machines.run("--lines", "/proc/self/cwd/in/*.log", "--follow")
    (machines.there / "in").rmdir()
    (machines.there / "in").symlink_to(machines.here / "in")
    start(str(machines.app), "--join", "job", cwd=machines.there)
    job.status_when(lambda status: len(status["workers"]) == 2)
    assert job.control("stop").returncode == 0
    code, output, said = job.end()
    assert code == 0, said
    check_equal(output.split(), ["a", "b"], said)


@pytest.mark.slow
def test_a_process_without_the_rest_of_a_file_may_not_join(start: Callable[..., Run], tmp_path: Path) -> None:
    machines = Machines(start, tmp_path, WORDS, a="a\n" * 30)
    job = machines.run("--lines", "/proc/self/cwd/in", "--rate", "2")
    code, _, said = machines.join()
    assert code == 1 and says(said[-1], "does not find", "/in/a.log", "is not there"), said
    assert len(job.status()["workers"]) == 1
    assert job.control("stop").returncode == 0
    assert job.end()[0] == 0


def test_a_process_that_cannot_open_a_sink_may_not_join(start: Callable[..., Run], tmp_path: Path) -> None:
    machines = Machines(start, tmp_path, SINK, a="a\n")
    (machines.here / "out").mkdir()
    (machines.there / "in").rmdir()
    (machines.there / "in").symlink_to(machines.here / "in")
    job = machines.run("--lines", "/proc/self/cwd/in/*.log", "--follow")
    job.status_when(lambda status: lines(status) == 1)
    code, _, said = machines.join()
    assert code == 1 and any("FileNotFoundError" in line for line in said), said
    assert len(job.status()["workers"]) == 1
    assert job.control("stop").returncode == 0
    code, _, said = job.end()
    assert code == 0, said
    check_equal((machines.here / "out" / "rows").read_text(), "a\n", said)


def test_a_source_says_which_of_its_partitions_are_missing(start: Callable[..., Run], tmp_path: Path) -> None:
    machines = Machines(start, tmp_path, SOURCE)
    (machines.here / "a").write_text("")
    job = machines.run()
    code, _, said = machines.join()
    assert code == 1 and says(said[-1], "'shelf'", "no shelf a"), said
    assert len(job.status()["workers"]) == 1
    (machines.there / "a").write_text("")
    start(str(machines.app), "--join", "job", cwd=machines.there)
    job.status_when(lambda status: len(status["workers"]) == 2)
    assert job.control("stop").returncode == 0
    assert job.end()[0] == 0


def test_new_files_are_read_by_a_process_that_sees_them(start: Callable[..., Run], tmp_path: Path) -> None:
    machines = Machines(start, tmp_path, WORDS)
    job = machines.run("--lines", "/proc/self/cwd/in/*.log", "--follow")
    joiner = start(str(machines.app), "--join", "job", cwd=machines.there)
    job.status_when(lambda status: len(status["workers"]) == 2)
    wanted = [*"abcd"]
    for name in wanted:
        (machines.here / "in" / f"{name}.log").write_text(f"{name}\n")
    job.status_when(lambda status: lines(status) == len(wanted))
    assert job.control("stop").returncode == 0
    code, output, said = job.end()
    assert code == 0, said
    check_equal(sorted(output.split()), wanted, said)
    assert not any("disappeared" in line for line in [*said, *joiner.said]), [*said, *joiner.said]


@pytest.mark.parametrize("how", ["os.chdir('../there')", "os.seteuid(65534)"])
def test_files_that_a_process_cannot_open_are_read_by_the_other(
    start: Callable[..., Run], tmp_path: Path, how: str
) -> None:
    if os.geteuid() and "seteuid" in how:
        pytest.skip("this takes root, to take rights away from one process")
    machines = Machines(start, tmp_path, AWAY.format(how=how), **{name: f"{name}\n" * 9 for name in "abcdefgh"})
    for path in (machines.here / "in").iterdir():
        path.chmod(0o600)
    code, output, said = machines.start("--lines", "/proc/self/cwd/in", "--processes", "2").end()
    assert code == 0, said
    check_equal(sorted(output.split()), sorted([*"abcdefgh"] * 9), said)
    assert (machines.here / "away").exists()


def test_followed_file_is_read_by_a_process_with_the_right(start: Callable[..., Run], tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("this takes root, to take rights away from one process")
    names = [*"abcdefgh"]
    machines = Machines(start, tmp_path, AWAY.format(how="os.seteuid(65534)"), **{each: f"{each}\n" for each in names})
    for path in (machines.here / "in").iterdir():
        path.chmod(0o600)
    job = machines.run("--lines", "/proc/self/cwd/in/*.log", "--follow", "--processes", "2")
    job.status_when(lambda status: lines(status) == len(names))
    assert job.control("stop").returncode == 0
    code, output, said = job.end()
    assert code == 0, said
    check_equal(sorted(output.split()), names, said)


class Locked(Machines):
    """A job of two processes that follows a file which none of them may open."""

    def follow(self, *words: str) -> Run:
        self.file = self.here / "in" / "a.log"
        self.file.chmod(0)
        self._start = partial(self._start, preexec_fn=give_up_rights)
        job = self.run("--lines", f"{self.here}/in/*.log", "--follow", "--processes", "2", *words)
        [missing] = job.status_when(lambda status: len(status.get("missing", [{}])[0].get("tried", "")) == 2)["missing"]
        assert says(missing["why"], str(self.file), "Permission denied") and missing["unread"] == 8, missing
        return job


@pytest.mark.parametrize("how", ["stop", pytest.param("interrupt", marks=pytest.mark.slow)])
def test_stop_with_an_unread_followed_file_fails(
    start: Callable[..., Run], tmp_path: Path, how: str
) -> None:
    machines = Locked(start, tmp_path, WORDS, a="one\ntwo\n", b="three\n")
    job = machines.follow()
    for command in ("explain", "status"):
        told = job.control(command).stdout.splitlines()
        wanted = str(machines.file), "Permission denied", "workers 0, 1", "8 bytes"
        assert any(says(line, *wanted) for line in told), told
    if how == "stop":
        assert job.control("stop").returncode == 0
    else:
        job.process.send_signal(signal.SIGINT)
    code, output, said = job.end()
    assert code == 1 and says(said[-1], str(machines.file), "Permission denied", "8 bytes are not read"), said
    check_equal(output.split(), ["three"], said)


def test_a_followed_file_that_can_be_opened_at_last_is_read(start: Callable[..., Run], tmp_path: Path) -> None:
    machines = Locked(start, tmp_path, WORDS, a="one\ntwo\n", b="three\n")
    job = machines.follow()
    machines.file.chmod(0o600)
    assert "missing" not in job.status_when(lambda status: lines(status) == 3)
    assert job.control("stop").returncode == 0
    code, output, said = job.end()
    assert code == 0, said
    check_equal(sorted(output.split()), ["one", "three", "two"], said)


@pytest.mark.slow
def test_stop_that_keeps_the_position_of_a_file_succeeds(start: Callable[..., Run], tmp_path: Path) -> None:
    machines = Locked(start, tmp_path, WORDS, a="one\ntwo\n", b="three\n")
    words = "--state", str(tmp_path / "kept"), "--output", f"jsonl:{tmp_path}/out"
    job = machines.follow(*words)
    assert job.control("stop").returncode == 0
    code, _, said = job.end()
    assert code == 0, said
    machines.file.chmod(0o600)
    job = machines.run("--lines", f"{machines.here}/in/*.log", "--follow", *words)
    job.status_when(lambda status: lines(status) == 2)
    assert job.control("stop").returncode == 0
    code, _, said = job.end()
    assert code == 0, said
    check_equal(sorted(records_of(tmp_path / "out")), ["one", "three", "two"], said)


def test_a_file_that_no_process_can_open_ends_the_job(start: Callable[..., Run], tmp_path: Path) -> None:
    machines = Machines(start, tmp_path, "import os\nos.chdir('../there')\n" + WORDS, a="a\n")
    code, _, said = machines.start("--lines", "/proc/self/cwd/in", "--processes", "2").end()
    assert code == 1 and any(says(line, "Cannot read", "/in/a.log", "No such file or directory") for line in said), said


@pytest.mark.slow
def test_a_process_that_sees_another_state_folder_may_not_join(start: Callable[..., Run], tmp_path: Path) -> None:
    machines = Machines(start, tmp_path, WORDS, a="a\nb\n")
    job = machines.run("--lines", "/proc/self/cwd/in/*.log", "--follow", "--state", "/proc/self/cwd/kept")
    (machines.there / "in").rmdir()
    (machines.there / "in").symlink_to(machines.here / "in")
    (machines.there / "kept").mkdir()
    code, _, said = machines.join()
    assert code == 1 and any(says(line, "this process sees no store there", "mount it here") for line in said), said
    assert len(job.status()["workers"]) == 1
    assert job.control("stop").returncode == 0
    assert job.end()[0] == 0


@pytest.mark.slow
def test_a_process_that_sees_a_copy_of_the_store_may_not_join(start: Callable[..., Run], tmp_path: Path) -> None:
    machines = Machines(start, tmp_path, WORDS, a="a\nb\n")
    job = machines.run("--lines", "/proc/self/cwd/in/*.log", "--follow", "--state", "/proc/self/cwd/kept")
    job.status_when(lambda status: status["checkpoint"]["number"] is not None)
    shutil.copytree(machines.here / "kept", machines.there / "kept")
    (machines.there / "in").rmdir()
    (machines.there / "in").symlink_to(machines.here / "in")
    code, _, said = machines.join()
    assert code == 1 and any(says(line, "is not seen by the job", "mount it here") for line in said), said
    assert len(job.status()["workers"]) == 1
    shutil.rmtree(machines.there / "kept")
    (machines.there / "kept").symlink_to(machines.here / "kept")
    start(str(machines.app), "--join", "job", cwd=machines.there)
    job.status_when(lambda status: len(status["workers"]) == 2)
    assert not [*(machines.here / "kept").glob("*-000000.seg")], "the probe is removed"
    assert job.control("stop").returncode == 0
    assert job.end()[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_process_that_sees_another_database_may_not_join(
    start: Callable[..., Run], tmp_path: Path, is_kept: bool
) -> None:
    machines = Machines(start, tmp_path, TABLE, a="")
    (machines.there / "in").rmdir()
    for folder in (machines.here / "out", machines.there / "out"):
        folder.mkdir()
    (machines.there / "in").symlink_to(machines.here / "in")
    kept = ["--state", str(tmp_path / "kept")] if is_kept else []
    job = machines.run("--lines", "/proc/self/cwd/in/*.log", "--follow", *kept)
    ours, other = machines.here / "out" / "shop.db", machines.there / "out" / "shop.db"

    def rows(path: Path, query: str) -> list[str]:
        with closing(sqlite3.connect(path)) as connection:
            return sorted(word for (word,) in connection.execute(query))

    probes = "SELECT token FROM megaflow_marks WHERE token LIKE 'probe%'"
    wait_until(lambda: ours.exists() and rows(ours, "SELECT name FROM sqlite_master WHERE name = 'rows'"), 60)
    code, _, said = machines.join()
    assert code == 1 and any(says(line, "no file", "shop.db", "nothing creates it") for line in said), said
    assert not other.exists()
    for text in ("", "a\n"):  # also before the first delivery
        with (machines.here / "in" / "a.log").open("a") as file:
            file.write(text)
        wait_until(lambda text=text: rows(ours, "SELECT word FROM rows") == text.split(), 60)
        with closing(sqlite3.connect(ours)) as found, closing(sqlite3.connect(other)) as copy:
            found.backup(copy)
        code, _, said = machines.join()
        assert code == 1 and any(says(line, "does not see", "'rows'", "shop.db", "localhost") for line in said), said
        assert len(job.status()["workers"]) == 1 and rows(other, probes) == []
    other.unlink()
    (machines.there / "out").rmdir()
    (machines.there / "out").symlink_to(machines.here / "out")
    start(str(machines.app), "--join", "job", cwd=machines.there)
    job.status_when(lambda status: len(status["workers"]) == 2)
    assert job.control("stop").returncode == 0
    code, _, said = job.end()
    assert code == 0, said
    check_equal(rows(ours, "SELECT word FROM rows"), ["a"], said)
    assert rows(ours, probes) == [], "they are removed"


@pytest.fixture
def own_volume(tmp_path: Path) -> Iterator[list[str]]:
    """Mount a tmpfs at here/in. Return the words before a command that sees another one there, with other files."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("this takes root and unshare, to mount file systems")
    folder = tmp_path / "here" / "in"
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True, timeout=60).returncode:
        pytest.skip("no tmpfs can be mounted here")
    files = f"for name in a b c d e f g h; do echo other >{folder}/$name.log; done"
    script = f'{" ".join(mount)} && {files}; exec "$@"'
    yield ["unshare", "--mount", "sh", "-c", script, "sh"]
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=60)


@pytest.mark.parametrize("how", ["new", *(pytest.param(each, marks=pytest.mark.slow) for each in ("empty", "moved"))])
def test_files_are_not_taken_for_others_of_their_inodes(
    start: Callable[..., Run], tmp_path: Path, own_volume: list[str], how: str
) -> None:
    (app := tmp_path / "app.py").write_text(WORDS)
    folder = tmp_path / "here" / "in"
    job = start(str(app), "--name", "job", "--lines", f"{folder}/*.log", "--follow", "--processes", "2")
    job.status_when(lambda status: status["state"] == "running")
    command = [*own_volume, sys.executable, "-m", "megaflow", "run", str(app), "--join", "job"]
    with Process(command, env=job.environment) as joiner:
        try:
            job.status_when(lambda status: len(status["workers"]) == 3)
            names = [*"abcdefgh"]
            for name in names:
                (folder / f"{name}.log").write_text("" if how == "empty" else f"{name}\n")
            if how == "empty":
                job.status_when(lambda status: read_by(status) == len(names))
                for name in names:
                    (folder / f"{name}.log").write_text(f"{name}\n")
            job.status_when(lambda status: lines(status) == len(names))
            if how == "moved":
                lost = next(worker["lines"] for worker in job.status()["workers"] if worker["id"] == 1)
                assert lost and job.control("remove-workers", "--id", "1").returncode == 0
                for name in names:
                    with (folder / f"{name}.log").open("a") as file:
                        file.write(f"{name}\n")
                names = sorted(names * 2)
                job.status_when(lambda status: lines(status) == len(names) - lost)
            assert job.control("stop").returncode == 0
            code, output, said = job.end()
            assert code == 0, said
            check_equal(sorted(output.split()), names, said)
        finally:
            joiner.finish()
