"""Any content of the folder of job files: other jobs are still found, and files that cannot be judged stay."""

import contextlib
import json
import os
import random
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from megaflow.errors import CommandRefused, JobNotFound
from megaflow.job.job_file import (
    FILE_BYTES_MAX,
    Job,
    find,
    present,
    process_namespace,
    process_start,
    publish,
    publish_numbered,
    read,
    republish,
    withdraw,
)

SEEDS = 40

STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 0.5, float("nan"), float("inf"), "", "a", "..", "../a", "ä",
    "\0", "\udc80", "a" * 5000, [], {}, [[]], {"a": 1}, os.getpid(), str(os.getpid()),
]  # fmt: skip


def a_job(name: str, pid: int | None = None) -> Job:
    """Return a job whose launcher is this process."""
    pid = os.getpid() if pid is None else pid
    return Job(name, pid, process_start(pid), "127.0.0.1", 2101, "s3cret", process_namespace())


def over(name: str) -> Job:
    """Return a job whose launcher is gone: another process has its id."""
    return replace(a_job(name), started="1")


def changed(record: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return the record with a few invalid values, and some values too many or too few."""
    record = dict(record)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice([*record, "more"])
        if rng.random() < 0.2:
            record.pop(name, None)
        else:
            record[name] = rng.choice(STRANGE)
    return record


def mutated(text: bytes, rng: random.Random) -> bytes:
    """Return the bytes with some cut, repeated or replaced."""
    data = bytearray(text)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        data[place : place + rng.randrange(4)] = rng.choice([b"", rng.randbytes(3), b'"', b"{", b"9" * 30, b"\xff"])
    return bytes(data)


def lay(path: Path, job: Job, rng: random.Random) -> str:
    """Put something other than the job's file at its path; return its kind. The content may name a running job."""
    record = asdict(job)
    text = json.dumps(record).encode()
    outside = path.parent.parent / f"outside-{path.name}"
    contents: dict[str, Callable[[], bytes]] = {
        "values": lambda: json.dumps(changed(record, rng)).encode("utf-8", "surrogatepass"),
        "bytes": lambda: mutated(text, rng),
        "a part": lambda: text[: rng.randrange(len(text))],
        "foreign": lambda: json.dumps(rng.choice(STRANGE)).encode(),
        "deep": lambda: rng.choice([b"[", b'{"a":']) * (FILE_BYTES_MAX // 8),
        "long": lambda: b" " * (FILE_BYTES_MAX + 1) + text,
        "digits": lambda: text.replace(str(job.pid).encode(), b"1" * 5000),
        "another name": lambda: json.dumps(record | {"name": "another"}).encode(),
    }
    kinds = [*contents, "folder", "pipe", "socket", "link", "dangling link", "link to a device", "unreadable"]
    kind = rng.choice(kinds)
    if kind in contents:
        path.write_bytes(contents[kind]())
    elif kind == "folder":
        (path / "inside").mkdir(parents=True)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(path.parent):
            bound.bind(path.name)
    elif kind == "link":
        outside.write_bytes(text)
        path.symlink_to(outside)
    elif kind == "dangling link":
        path.symlink_to(path.parent / "nothing")
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(text[:-1])
        path.chmod(0)
    return kind


def inventory(folder: Path) -> dict[str, tuple[int, int]]:
    """Return name -> number and kind of each file."""
    found = ((path.name, path.lstat()) for path in folder.iterdir())
    return {name: (status.st_ino, stat.S_IFMT(status.st_mode)) for name, status in found}


def attack_folder(rng: random.Random) -> None:
    """Check one folder with two jobs, one that is over, and many other files."""
    with contextlib.ExitStack() as stack:
        runtime = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))
        paths = {name: publish(a_job(name)) for name in ("mine", "other")}
        folder = paths["mine"].parent
        laid = {}
        for number in range(rng.randint(1, 6)):
            path = folder / f"odd{number}.json"
            laid[path] = lay(path, rng.choice([over, a_job])(path.stem), rng)
        unjudged = [path for path in laid if (job := read(path)) is None or job.namespace != process_namespace()]
        gone = publish(over("gone"))
        if rng.random() < 0.3:
            gone.with_suffix(".sock").mkdir()
        before = inventory(folder)

        jobs = {job.name: alive for job, alive in present()}
        assert jobs["mine"] and jobs["other"] and "gone" not in jobs, (jobs, laid)
        assert find("mine") == a_job("mine")
        with pytest.raises(JobNotFound):
            find("gone")
        for path in unjudged:
            with pytest.raises(CommandRefused, match=r"running already|may still be running|the same moment"):
                publish(a_job(path.stem))
            named, numbered = publish_numbered(a_job(path.stem))
            assert named.name != path.stem
            with pytest.raises(OSError):
                republish(a_job(path.stem))
            withdraw(a_job(path.stem), path)
            withdraw(named, numbered)
        after = inventory(folder)
        kept = {path.name for path in unjudged} | {"mine.json", "other.json"}
        assert {name: before[name] for name in kept} == {name: after.get(name) for name in kept}, laid
        assert not {name for name in after if name.endswith(".new")} and "gone.json" not in after
        withdraw(a_job("mine"), paths["mine"])
        assert [job.name for job, alive in present() if alive and not job.name.startswith("odd")] == ["other"]
        for path in folder.iterdir():  # so that the folder can be removed
            with contextlib.suppress(OSError):
                path.chmod(0o700)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_other_jobs_are_found_and_nothing_goes_that_cannot_be_judged(seed: int) -> None:
    attack_folder(random.Random(seed))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "megaflow").mkdir(mode=0o700)
    yield tmp_path / "megaflow"


def test_a_pipe_among_the_job_files_does_not_hang_the_command(folder: Path) -> None:
    os.mkfifo(folder / "pipe.json")
    (folder / "zeros.json").symlink_to("/dev/zero")
    done = subprocess.run(
        [sys.executable, "-m", "megaflow", "control", "status"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "no job is running" in done.stderr and "Traceback" not in done.stderr
    assert sorted(each.name for each in folder.iterdir()) == ["pipe.json", "zeros.json"]
