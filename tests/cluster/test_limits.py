"""A job at the limits of its machine: one sentence without a traceback, at once, and the right exit code."""

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.processes import END_SECONDS, ROOT, WORDCOUNT

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

TEMPFAIL = 75
CONNECT_SECONDS = 30.0  # the time that it once took to notice a dead process

# Ends the worker processes before they connect. With MARK, it ends only the process that creates that file.
DYING = """
import os, sys

if any("worker.process.child" in word for word in sys.orig_argv) and "DIE" in os.environ:
    if "MARK" in os.environ:
        try:
            os.open(os.environ["MARK"], os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            os.environ["DIE"] = ""
    match os.environ["DIE"]:
        case "kill":
            os.kill(os.getpid(), 9)
        case "exit":
            os._exit(3)
"""

EATING = """
kept = []

def eat(line):
    kept.append(b"x" * 1_000_000)
    return len(kept)

def dataflow(flow):
    return flow.lines().map(eat)
"""

Said = tuple[int, list[str]]


@pytest.fixture
def megaflow(tmp_path: Path) -> Callable[..., Said]:
    """Return a function that runs `megaflow run` in a folder and returns its exit code and messages."""
    (tmp_path / "lines.txt").write_text("a\n" * 1000)

    def run(app: str, *words: str, before: tuple[str, ...] = (), prepare: Callable[[], None] | None = None,
            **more: str) -> Said:  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
        environment |= {"XDG_RUNTIME_DIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", **more}
        lines = ("--lines", str(tmp_path / "lines.txt"), "--output", "none")
        done = subprocess.run(
            [*before, sys.executable, "-m", "megaflow", "run", app, *lines, *words], cwd=tmp_path, env=environment,
            preexec_fn=prepare, capture_output=True, text=True, timeout=4 * END_SECONDS, check=False,
        )  # fmt: skip
        said = [line for line in done.stderr.splitlines() if "steer it with" not in line]
        assert all(line.startswith("megaflow: ") for line in said), done.stderr
        return done.returncode, said

    return run


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize(("die", "how"), [("kill", "was killed by SIGKILL"), ("exit", "exited with code 3")])
def test_a_child_that_dies_before_it_connects_is_replaced_at_once(
    megaflow: Callable[..., Said], tmp_path: Path, die: str, how: str, processes: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DYING)
    words = (WORDCOUNT, "--state", "kept", "--processes", processes)
    began = time.monotonic()
    code, said = megaflow(*words, DIE=die, MARK=str(tmp_path / "mark"))
    assert code == 0 and how in said[-2] and "restart 1 of 3" in said[-2], said
    assert time.monotonic() - began < CONNECT_SECONDS


@pytest.mark.parametrize(("die", "code"), [("kill", TEMPFAIL), ("exit", 1)])
def test_only_what_may_help_is_to_be_tried_again(
    megaflow: Callable[..., Said], tmp_path: Path, die: str, code: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DYING)
    ended, said = megaflow(WORDCOUNT, "--state", "kept", "--restarts", "1", DIE=die)
    assert ended == code and "no checkpoint was taken since restart 1 of 1" in said[-1], said
    assert ("run the same command again" in said[-1]) is (code == TEMPFAIL)


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_a_worker_at_a_memory_limit_names_it(
    megaflow: Callable[..., Said], tmp_path: Path, limit: int
) -> None:
    app = tmp_path / "app.py"
    app.write_text(EATING)
    size = 400 << 20
    code, said = megaflow(str(app), "--state", "kept", prepare=lambda: resource.setrlimit(limit, (size, size)))
    flag = "-v" if limit == resource.RLIMIT_AS else "-d"
    assert code == 1 and f"No memory is left: ulimit {flag} is {size // 1024} kB" in said[-1], said
    assert "worker 0" in said[-1]


def test_a_store_at_a_limit_of_files_is_not_tried_again(megaflow: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("".join(f"word{number}\n" for number in range(10_000)))
    limit = 8 << 10
    code, said = megaflow(
        WORDCOUNT, "--state", "kept", prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )
    assert code == 1 and "File too large" in said[-1] and "ulimit -f" in said[-1], said


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """Yield a separate control group with a limit that a job of a few words does not need."""
    for root, name in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        group = Path(root, f"megaflow-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                if (limit := group / name).exists():
                    limit.write_text(str(200 << 20))
                    yield group
                    return
            finally:
                group.rmdir()
    pytest.skip("no control group with a memory limit can be made here: that takes root and a writable /sys/fs/cgroup")


@pytest.mark.parametrize("state", [(), ("--state", "kept", "--restarts", "1")], ids=["no state", "state"])
def test_a_kill_at_the_memory_limit_of_a_control_group_says_so(
    megaflow: Callable[..., Said], tmp_path: Path, memory_group: Path, state: tuple[str, ...]
) -> None:
    app = tmp_path / "app.py"
    app.write_text(EATING)

    def enter() -> None:
        (memory_group / "cgroup.procs").write_text(str(os.getpid()))

    code, said = megaflow(str(app), *state, prepare=enter)
    reason = "was killed by SIGKILL because the memory limit of its control group, 200 MiB, was exhausted (raise the"
    assert code == 1 and reason in said[-1], said


@pytest.mark.parametrize(("limit", "what"), [(3, "process"), (6, "thread"), (8, "thread")])
def test_a_limit_on_processes_is_one_sentence(
    megaflow: Callable[..., Said], tmp_path: Path, limit: int, what: str
) -> None:
    setpriv = shutil.which("setpriv")
    if os.getuid() or setpriv is None:
        pytest.skip("a limit on processes does not hold for root: this takes root and setpriv, to be another user")
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[: len(tmp_path.parents) - 2]:
        folder.chmod(folder.stat().st_mode | 0o055)
    other = str(60_000 + limit)  # a user of no other process
    reads = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    code, said = megaflow(
        WORDCOUNT, "--processes", "2", before=(setpriv, "--reuid", other, "--regid", other, "--clear-groups", *reads),
        prepare=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit)), HOME=str(tmp_path),
    )  # fmt: skip
    assert code == 1 and f"Cannot start another {what}: the limit on processes and threads is reached" in said[-1], said
    assert f"(ulimit -u is {limit}" in said[-1]


def test_the_files_of_the_store_count_for_the_limit_on_files(megaflow: Callable[..., Said]) -> None:
    def files(limit: int) -> Callable[[], None]:
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    code, said = megaflow(WORDCOUNT, "--state", "kept", prepare=files(23))
    assert code == 1 and said[-1].startswith("megaflow: Too few file descriptors: --processes 1 needs 32"), said
    assert megaflow(WORDCOUNT, "--state", "kept", prepare=files(32))[0] == 0


def as_root(words: str) -> tuple[str, ...]:
    """Return the beginning of a command that runs the rest after a command of the shell, with mounts of its own."""
    unshare = shutil.which("unshare")
    if os.getuid() or unshare is None:
        pytest.skip("mounts and networks of one's own take root and unshare")
    return unshare, "--mount", "--net", "sh", "-ec", f'{words}; exec "$@"', "sh"


FULL = """
ip link set lo up
mount -t tmpfs -o size=16k tmpfs {folder}
mkdir -m 700 {folder}/megaflow
head -c 64k /dev/zero >{folder}/other 2>{folder}/said || true
"""


def test_a_job_without_room_for_its_file_runs(megaflow: Callable[..., Said], tmp_path: Path) -> None:
    before = as_root(FULL.strip().replace("\n", "; ").format(folder=tmp_path / "full"))
    if shutil.which("ip") is None:
        pytest.skip("a network of one's own takes ip")
    (tmp_path / "full").mkdir()
    code, said = megaflow(WORDCOUNT, before=before, MEGAFLOW_RUNTIME_DIR=str(tmp_path / "full"))
    assert code == 0 and f"to {tmp_path}/full/megaflow: No space left on device. Name another by" in said[0], said


@pytest.mark.parametrize("processes", ["1", "2"])
def test_without_a_loopback_the_error_has_the_cause(megaflow: Callable[..., Said], processes: str) -> None:
    code, said = megaflow(WORDCOUNT, "--processes", processes, before=as_root("true"))
    assert code == 1 and "Cannot connect to worker 0 (127.0.0.1:" in said[-1], said
    assert "Network is unreachable; bring up the network interface" in said[-1]
