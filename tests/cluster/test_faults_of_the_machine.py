"""Disks that are full, read-only or fail for a while, and a suspended launcher while another one takes its place."""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.processes import ROOT, STATUS_SECONDS, Ended, Process, Run, wait_until
from tests.cluster.test_durable import Counted, end
from tests.results import check_equal
from tests.words import says

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SLOWLY = 20  # lines a second: two minutes for all

# Preloaded into all processes of a job. While READ_ONLY exists, nothing in the folder STORE can be changed. If
# FAIL_ONCE exists, it is removed, and the sync of a file in STORE, or of STORE, fails.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_in_store(int fd) {
    char name[64], path[PATH_MAX];
    const char *store = getenv("STORE");
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length < 0 || !store) return 0;
    path[length] = 0;
    return strncmp(path, store, strlen(store)) == 0;
}

static int (*real_unlinkat)(int, const char *, int);

static int fails(int fd) {
    if (!is_in_store(fd)) return 0;
    if (!real_unlinkat) real_unlinkat = dlsym(RTLD_NEXT, "unlinkat");
    if (real_unlinkat(AT_FDCWD, getenv("FAIL_ONCE"), 0)) return 0;
    errno = EIO;
    return 1;
}

static int is_read_only(int fd) {
    if (!is_in_store(fd) || access(getenv("READ_ONLY"), F_OK)) return 0;
    errno = EROFS;
    return 1;
}

int fsync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    return fails(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    return fails(fd) ? -1 : real(fd);
}

int linkat(int fd, const char *name, int to, const char *new, int flags) {
    int (*real)(int, const char *, int, const char *, int) = dlsym(RTLD_NEXT, "linkat");
    return is_read_only(to) ? -1 : real(fd, name, to, new, flags);
}

int unlinkat(int fd, const char *name, int flags) {
    if (!real_unlinkat) real_unlinkat = dlsym(RTLD_NEXT, "unlinkat");
    return is_read_only(fd) ? -1 : real_unlinkat(fd, name, flags);
}

#define OPENAT(NAME)                                                          \
    int NAME(int fd, const char *name, int flags, ...) {                      \
        int (*real)(int, const char *, int, ...) = dlsym(RTLD_NEXT, #NAME);   \
        va_list more;                                                         \
        va_start(more, flags);                                                \
        int mode = flags & O_CREAT ? va_arg(more, int) : 0;                   \
        va_end(more);                                                         \
        if (flags & O_CREAT && is_read_only(fd)) return -1;                   \
        return real(fd, name, flags, mode);                                   \
    }
OPENAT(openat)
OPENAT(openat64)
"""


@pytest.fixture
def counted(tmp_path: Path, start: Callable[..., Run]) -> Counted:
    return Counted(tmp_path, start)


def await_failing(run: Run, prepare: Callable[[], object] = lambda: None) -> None:
    """Wait until the status reports failing checkpoints, with time and reason; call `prepare` before each request."""
    run.status_when(lambda status: prepare() is None and status["checkpoint"]["failing_seconds"] is not None)


def await_kept(run: Run) -> None:
    """Wait until a checkpoint has been committed after the failed ones."""
    before = run.status()["checkpoint"]["number"] or 0

    def is_kept(checkpoint: dict[str, int | None]) -> bool:
        return checkpoint["failing_seconds"] is None and (checkpoint["number"] or 0) > before

    run.status_when(lambda status: is_kept(status["checkpoint"]))


def warnings(run: Run) -> list[str]:
    return [line for line in run.said if "the job continues and will try the next one" in line]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder with a separate file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip(f"no disk can be filled up, as none can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(ballast: Path) -> None:
    """Let this file take all the room of its disk."""
    with ballast.open("ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass


def test_a_disk_that_is_full_for_a_while_costs_nothing_but_checkpoints(counted: Counted, small_disk: Path) -> None:
    counted.store = small_disk / "store"
    ballast = small_disk / "ballast"
    run = counted.run("--processes", "2", rate=SLOWLY)
    counted.await_more()
    await_failing(run, partial(fill, ballast))
    ballast.unlink()
    await_kept(run)
    run.process.kill()
    run.process.end()
    assert warnings(run) and all("No space left on device" in each for each in warnings(run)), run.said
    end(counted.run("--processes", "2"), 0)
    counted.check()


@dataclass(frozen=True, slots=True)
class Restarted:
    """A word count that starts again and again, with a new file of two words each time."""

    folder: Path
    store: Path
    output: Path

    def start(self, name: str, *more: str) -> Ended:
        (self.folder / "words").mkdir(exist_ok=True)
        (self.folder / "words" / name).write_text("a b\n")
        command = ["run", str(ROOT / "apps" / "wordcount.py"), "--lines", str(self.folder / "words"), *more]
        places = ["--state", str(self.store), "--output", f"jsonl:{self.output}"]
        return Process([sys.executable, "-m", "megaflow", *command, *places]).end()

    def check_refused(self, name: str, *more: str, words: str) -> None:
        """Check that a start is worth another try, because of these words."""
        ended = self.start(name, *more)
        assert ended.code == 75 and says(ended.errors, words, "did not start"), ended.errors

    def check_counts(self, name: str, words: int, *more: str) -> None:
        ended = self.start(name, *more)
        assert ended.code == 0, ended.errors
        check_equal(self.output.read_text().count("\n"), words, ended.errors)


@pytest.mark.parametrize("is_new", [False, True], ids=["resumed", "new"])
def test_start_on_a_full_disk_is_worth_another_try(small_disk: Path, tmp_path: Path, is_new: bool) -> None:
    job, ballast = Restarted(tmp_path, small_disk / "store", tmp_path / "out"), small_disk / "ballast"
    if not is_new:
        job.check_counts("1.txt", 2)
    fill(ballast)
    job.check_refused("2.txt", words="No space left on device")
    ballast.unlink()
    job.check_counts("2.txt", 2 if is_new else 4)


@pytest.mark.parametrize("is_new", [False, True], ids=["resumed", "new"])
@pytest.mark.parametrize("on_disk", ["store", "out"])
def test_start_on_a_read_only_disk_is_worth_another_try(
    small_disk: Path, tmp_path: Path, on_disk: str, is_new: bool
) -> None:
    places = {name: (small_disk if name == on_disk else tmp_path) / name for name in ("store", "out")}
    job = Restarted(tmp_path, places["store"], places["out"])
    if not is_new:
        job.check_counts("1.txt", 2)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    job.check_refused("2.txt", words="Read-only file system")
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    job.check_counts("2.txt", 2 if is_new else 4)


@pytest.mark.parametrize("option", ["--metrics", "--web", "--listen"])
def test_start_at_a_taken_port_is_worth_another_try(tmp_path: Path, option: str) -> None:
    if option != "--listen":
        pytest.importorskip("aiohttp", reason="the page needs megaflow[web]")
    job = Restarted(tmp_path, tmp_path / "store", tmp_path / "out")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        job.check_refused("1.txt", option, f"127.0.0.1:{port}", words="Address already in use")
    job.check_counts("1.txt", 2, option, f"127.0.0.1:{port}")


def test_a_disk_that_fails_to_sync_or_is_read_only_for_a_while_costs_nothing_but_checkpoints(
    counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, shim = shutil.which("cc"), tmp_path / "shim.so"
    if compiler is None:
        pytest.skip("no disk can be made to fail: there is no C compiler (cc)")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", "-o", shim, "-x", "c", "-"], input=SHIM, text=True, check=True
    )  # fmt: skip
    fail_once, read_only = tmp_path / "fail_once", tmp_path / "read_only"
    told = {"LD_PRELOAD": shim, "STORE": counted.store, "FAIL_ONCE": fail_once, "READ_ONLY": read_only}
    for name, path in told.items():
        monkeypatch.setenv(name, str(path))
    run = counted.run("--processes", "2", rate=SLOWLY)
    for _ in range(6):  # of any file: a segment, a commit, or the folder
        counted.await_more()
        fail_once.touch()
        wait_until(lambda: not fail_once.exists(), STATUS_SECONDS)
    await_kept(run)
    read_only.touch()
    await_failing(run)
    read_only.unlink()
    await_kept(run)
    run.process.kill()
    run.process.end()
    assert sum("Read-only file system" in each for each in warnings(run)) == 1, run.said
    monkeypatch.delenv("LD_PRELOAD")
    end(counted.run("--processes", "2"), 0)
    counted.check()


def test_a_launcher_that_was_asleep_ends_when_it_finds_another_one_in_its_place(counted: Counted) -> None:
    first = counted.run("--processes", "2", rate=SLOWLY)
    counted.await_more()
    first.process.send_signal(signal.SIGSTOP)
    try:
        second = counted.run("--processes", "2", "--take-over", rate=SLOWLY)
        counted.await_more()
        wait_until(lambda: f"takes the place of process {first.process.pid} on " in "".join(second.said))
        assert len(second.files()) == 1 and second.status()["state"] == "running", "its name is the older one's"
    finally:
        first.process.send_signal(signal.SIGCONT)
    said = end(first, 1)
    assert "another launcher has taken over the store and continues the job" in said, said
    assert "its state is kept in" not in said
    counted.await_more()
    assert second.control("stop").returncode == 0
    end(second, 0)
    end(counted.run("--processes", "2"), 0)
    counted.check()
