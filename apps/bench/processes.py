"""Processes under measurement: who they are, what memory they hold and what they compute; from /proc, so on Linux.

Elsewhere nothing is found, and figures that need it are left out.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
MEBIBYTE = 1 << 20
KIBIBYTES_PER_MEBIBYTE = 1024
SAMPLE_SECONDS = 0.005  # between looks at the memory of a move
PEAK_SECONDS = 0.05  # between looks at a peak, which the kernel keeps
LOOK_SECONDS = 0.05
START_SECONDS_MAX = 30.0
DRAIN_SECONDS = 10.0  # from the first Ctrl-C to the second
END_SECONDS = 5.0  # and from there to the end


def children_of(parent: int) -> list[int]:
    """Return the processes that this one has started and that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


def resident(statm: Path) -> int:
    """Return the resident bytes that a process's file tells of."""
    return int(statm.read_text(encoding="ascii").split()[1]) * PAGE_BYTES


def resident_mb(pids: Iterable[int]) -> float:
    """Return what processes hold together, in MiB; those that have ended hold nothing."""
    held = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            held += resident(Path(f"/proc/{pid}/statm"))
    return held / MEBIBYTE


def peak_mb(pid: int) -> float:
    """Return the most that a process has ever held, in MiB; 0.0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / KIBIBYTES_PER_MEBIBYTE
    return 0.0


def processor_seconds(pids: Iterable[int]) -> float:
    """Return the processor time that processes have taken so far, all together; 0.0 where that is not told."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # of the user's code and of the system's
    return ticks / TICKS_PER_SECOND


class Looking:
    """A thread that looks at something every so often while the `with` block runs."""

    def __init__(self, look: Callable[[], None], every_seconds: float) -> None:
        self._look = look
        self._every_seconds = every_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looking", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._every_seconds):
            try:
                self._look()
            except OSError:
                return  # no such files on this system, or the job has ended


class Memory(Looking):
    """How much memory the process of each worker holds, looked at every few milliseconds."""

    def __init__(self, pids: dict[int, int]) -> None:
        """`pids` has the process of each worker."""
        super().__init__(self._sample, SAMPLE_SECONDS)
        self._files = {worker: Path(f"/proc/{pid}/statm") for worker, pid in pids.items()}
        self._samples: list[tuple[float, dict[int, int]]] = []  # (second, worker -> bytes), by the thread alone

    def peaks(self, start: float, end: float) -> dict[int, float]:
        """Return the most that each worker's process held in a stretch of time, in MiB."""
        found = [held for moment, held in self._samples if start <= moment <= end]
        return {worker: max((held[worker] for held in found), default=0) / MEBIBYTE for worker in self._files}

    def _sample(self) -> None:
        held = {worker: resident(path) for worker, path in self._files.items()}
        self._samples.append((time.monotonic(), held))


class Peaks(Looking):
    """The most memory that each process started by this one has held, while the block runs."""

    def __init__(self) -> None:
        super().__init__(self._sample, PEAK_SECONDS)
        self.by_pid: dict[int, float] = {}  # MiB; by the thread alone
        self._known = set(children_of(os.getpid()))  # not ours to tell of

    def _sample(self) -> None:
        for pid in set(children_of(os.getpid())) - self._known:
            self.by_pid[pid] = max(peak_mb(pid), self.by_pid.get(pid, 0.0))


@dataclass(frozen=True, slots=True)
class Command:
    """A job that was started by `megaflow run`."""

    launcher: "subprocess.Popen[bytes]"
    workers: list[int]  # processes
    said: IO[bytes]  # what it told on standard error

    def check(self) -> None:
        """Raise ChildProcessError with its last word if it has ended."""
        if self.launcher.poll() is not None:
            self.said.seek(0)
            words = self.said.read().decode(errors="replace").strip().splitlines()
            raise ChildProcessError(f"the job has ended too early: {words[-1] if words else 'it said nothing'}")


@contextlib.contextmanager
def megaflow_run(words: Sequence[str], processes: int, stdin: int | None = None) -> Iterator[Command]:
    """Have `megaflow run` run while the block does.

    It is stopped as a user stops it, by Ctrl-C and then another one. Raises TimeoutError if the workers do not come,
    ChildProcessError if it ends before.
    """
    command = [sys.executable, "-m", "megaflow", "run", *words, "--processes", str(processes), "--output", "none"]
    with tempfile.TemporaryFile() as said:
        launcher = subprocess.Popen(command, stdin=stdin, stderr=said, start_new_session=True)
        job = Command(launcher, [], said)
        try:
            until = time.monotonic() + START_SECONDS_MAX
            while len(found := children_of(launcher.pid)) < processes:
                job.check()
                if time.monotonic() > until:
                    raise TimeoutError(f"the workers of {' '.join(command)} did not come")
                time.sleep(LOOK_SECONDS)
            job.workers.extend(found)
            yield job
        finally:
            end(launcher, job.workers)
            if launcher.stdin is not None:
                launcher.stdin.close()


def end(launcher: "subprocess.Popen[bytes]", workers: Sequence[int]) -> None:
    """End a job: drained if that is soon done, killed if not; nobody survives."""
    for patience in (DRAIN_SECONDS, END_SECONDS):
        launcher.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(patience)
            return
    still = set(children_of(launcher.pid)) & set(workers)
    launcher.kill()
    launcher.wait()
    for pid in still:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
