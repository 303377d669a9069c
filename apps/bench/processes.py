"""Processes under measurement: their ids, memory and CPU time, read from /proc, so only on Linux.

Other systems have no such files, and figures that need them are left out.
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
SAMPLE_SECONDS = 0.005  # between samples of the memory during a move
PEAK_SECONDS = 0.05  # between reads of a peak, which the kernel keeps
LOOK_SECONDS = 0.05
START_SECONDS_MAX = 30.0
DRAIN_SECONDS = 10.0  # from the first Ctrl-C to the second
END_SECONDS = 5.0  # and from there to the end


def children_of(parent: int) -> list[int]:
    """Return the living processes that this one has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


def resident(statm: Path) -> int:
    """Return the resident bytes that a process's file reports."""
    return int(statm.read_text(encoding="ascii").split()[1]) * PAGE_BYTES


def resident_mb(pids: Iterable[int]) -> float:
    """Return the total memory of processes, in MiB. An ended process counts as 0."""
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
    """Return the total CPU time of processes so far; 0.0 where the system does not report it."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # user and system time
    return ticks / TICKS_PER_SECOND


class Looking:
    """A thread that takes samples at an interval during the `with` block."""

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
                return  # the system has no such files, or the job has ended


class Memory(Looking):
    """Memory of each worker's process, sampled every few milliseconds."""

    def __init__(self, pids: dict[int, int]) -> None:
        """`pids` maps each worker to its process."""
        super().__init__(self._sample, SAMPLE_SECONDS)
        self._files = {worker: Path(f"/proc/{pid}/statm") for worker, pid in pids.items()}
        self._samples: list[tuple[float, dict[int, int]]] = []  # (second, worker -> bytes); only the thread writes

    def peaks(self, start: float, end: float) -> dict[int, float]:
        """Return the most that each worker's process held between two moments, in MiB."""
        found = [held for moment, held in self._samples if start <= moment <= end]
        return {worker: max((held[worker] for held in found), default=0) / MEBIBYTE for worker in self._files}

    def _sample(self) -> None:
        held = {worker: resident(path) for worker, path in self._files.items()}
        self._samples.append((time.monotonic(), held))


class Peaks(Looking):
    """Peak memory of each process that this one starts, during the block."""

    def __init__(self) -> None:
        super().__init__(self._sample, PEAK_SECONDS)
        self.by_pid: dict[int, float] = {}  # MiB; only the thread writes
        self._known = set(children_of(os.getpid()))  # older processes, which do not count

    def _sample(self) -> None:
        for pid in set(children_of(os.getpid())) - self._known:
            self.by_pid[pid] = max(peak_mb(pid), self.by_pid.get(pid, 0.0))


@dataclass(frozen=True, slots=True)
class Command:
    """A job that was started by `megaflow run`."""

    launcher: "subprocess.Popen[bytes]"
    workers: list[int]  # process ids
    said: IO[bytes]  # its standard error

    def check(self) -> None:
        """Raise ChildProcessError with the job's last message if it has ended."""
        if self.launcher.poll() is not None:
            self.said.seek(0)
            words = self.said.read().decode(errors="replace").strip().splitlines()
            raise ChildProcessError(f"the job has ended too early: {words[-1] if words else 'it said nothing'}")


@contextlib.contextmanager
def megaflow_run(words: Sequence[str], processes: int, stdin: int | None = None) -> Iterator[Command]:
    """Run `megaflow run` during the block.

    Afterwards the job is stopped by Ctrl-C, and then by a second one. Raises TimeoutError if the workers do not come,
    and ChildProcessError if the job ends before.
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
    """Stop a job: drain it if this is fast enough, otherwise kill it. No process survives."""
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
