"""S15 and S16: time without output: at a restart by hand, and when one or both of two processes are killed.

A job has read a million numbers, each once, without any output. Its state is in a store. Then its file grows by
numbers that it already knows.

S15 gives the same command again, with as many processes and with more, and measures the time to the first new count in
the output. In S16 the job reads slowly and takes a checkpoint each second. One worker process is killed, and another
one then reads its states, or both are killed. The launcher recovers the job by itself. The time without output is from
the last record before the loss until the output is longer than ever before. In between, the output is cut back to the
checkpoint, and the lines after it are written again, at the rate of the input. *Again* is the time to the first of
these.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from apps.bench.processes import children_of
from apps.bench.report import Found, Goal
from apps.bench.workload import ROOT, Absent, Setting, Step, Workload, check_count, one, peer, usual_environment

STILL, AGAIN, START = "s without new output", "s to the first output again", "s to the first new output"
KEYS, KEYS_QUICK = 1_000_000, 20_000
TAIL = 1000  # lines of known numbers
RATE, RATE_QUICK = 5_000, 1_000  # lines a second, when a process is killed
KINDS = ("ints", "dicts")
BYTEWAX = "Bytewax, a tenth of the ints, one process, then one"
BYTEWAX_SHARE = 10  # Bytewax took more than 15 minutes to store a million
PROCESSES = (2, 3)  # that continue from the store of two processes
KILLED, BOTH = "killed, one of two processes", "killed, both processes"
LOOK_SECONDS = 0.002
PATIENCE_SECONDS = 120.0
TAIL_SECONDS = 60  # of lines, for the runs in which a process is killed
BEFORE_SECONDS = 2.5  # of output before a process is killed


class Kept:
    """A store with its job's input and output. Each turn finds them as they were after a million numbers."""

    def __init__(self, folder: Path, kind: str, keys: int, processes: int) -> None:
        self._kind, self.keys = kind, keys
        self.lines, self.out, self.store, self._saved = (
            folder / f"{kind}.{name}" for name in ("txt", "jsonl", "store", "saved")
        )
        self._write(range(keys), "w")
        with self.run(processes) as job:
            check(job, job.wait(PATIENCE_SECONDS))
        self._length = self.lines.stat().st_size
        shutil.copytree(self.store, self._saved)

    def again(self, tail: Sequence[int]) -> None:
        """Restore the files, and append a tail of numbers to the input."""
        shutil.rmtree(self.store)
        shutil.copytree(self._saved, self.store)
        os.truncate(self.lines, self._length)
        os.truncate(self.out, 0)
        self._write(tail, "a")

    def _write(self, numbers: Sequence[int], mode: str) -> None:
        with self.lines.open(mode, encoding="ascii") as lines:
            lines.writelines(f"{number}\n" for number in numbers)

    @contextmanager
    def run(self, processes: int, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Run the command during the `with` block."""
        app = ROOT / "apps" / "bench" / "durable_apps.py"
        command = [
            sys.executable, "-m", "megaflow", "run", f"{app}:{self._kind}", "--lines", str(self.lines), "--state",
            str(self.store), "--output", f"jsonl:{self.out}", "--processes", str(processes), *words,
        ]  # fmt: skip
        with tempfile.TemporaryFile() as said:
            job = subprocess.Popen(command, stderr=said, env=usual_environment(), start_new_session=True)
            try:
                yield job
            except BaseException as error:
                said.seek(0)
                error.add_note(said.read().decode(errors="replace"))
                raise
            finally:
                job.kill()
                job.wait()

    def await_output(self, job: "subprocess.Popen[bytes]", length: int) -> None:
        """Wait until the output is longer than `length`. Raises ChildProcessError if the job ends before."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.out.exists() or self.out.stat().st_size <= length:
            if job.poll() is not None and self.out.stat().st_size <= length:
                raise ChildProcessError(f"the job has ended without output: exit code {job.returncode}")
            if time.monotonic() > until:
                raise TimeoutError("no output came")
            time.sleep(LOOK_SECONDS)


def check(job: "subprocess.Popen[bytes]", code: int) -> None:
    """Raise ChildProcessError unless the exit code is 0."""
    if code:
        raise ChildProcessError(f"{job.args!r} has failed: exit code {code}")


def restart(kept: Kept, row: str, processes: int) -> Found:
    """Give the command again; return the time to the first new output."""
    kept.again([number % kept.keys for number in range(TAIL)])
    began = time.monotonic()
    with kept.run(processes) as job:
        kept.await_output(job, 0)
        seconds = time.monotonic() - began
        check(job, job.wait(PATIENCE_SECONDS))
    return one(row, {START: seconds})


def restart_bytewax(setting: Setting, keys: int) -> Found:
    """Let Bytewax store `keys` numbers, each read once. Run it again, and measure the time to the first output."""
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        lines, tail, store = (Path(folder) / name for name in ("all.txt", "tail.txt", "store"))
        store.mkdir()
        for path, numbers in (lines, keys), (tail, TAIL):
            path.write_text("".join(f"{number}\n" for number in range(numbers)), encoding="ascii")
        for path in lines, tail:
            began = time.time()
            record = peer(setting.peers, "bytewax_wordcount.py", "Bytewax", path, "numbers", "1", "1", f"state={store}")
        check_count(BYTEWAX, record["records"], TAIL)
    return one(BYTEWAX, {START: record["first"] - began})


def kill_some(kept: Kept, row: str, killed: int, rate: int, *words: str) -> Found:
    """Kill `killed` of two processes; return the time without output. `words` are further flags."""
    kept.again([number % kept.keys for number in range(rate * TAIL_SECONDS)])
    with kept.run(2, "--rate", str(rate), *words) as job:
        kept.await_output(job, 0)
        time.sleep(BEFORE_SECONDS)
        for process in sorted(children_of(job.pid))[-killed:]:
            os.kill(process, signal.SIGKILL)
        again, still = stillness(kept.out, job)
    return one(row, {AGAIN: again, STILL: still})


def stillness(out: Path, job: "subprocess.Popen[bytes]") -> tuple[float, float]:
    """Return the seconds from the last output before a loss to the first one after it, and to the first that is new.

    Raises ChildProcessError if the job ends before, and Absent if this version does not recover it.
    """
    began = last = time.monotonic()
    longest, least, again = out.stat().st_size, None, None
    while (now := time.monotonic()) < began + PATIENCE_SECONDS:
        length = out.stat().st_size
        if length > longest and least is not None:
            return (again or now) - last, now - last
        if length > longest:  # it was being written when the process was killed
            longest, last = length, now
        elif length < (longest if least is None else least):
            least = length
        elif least is not None and again is None and length > least:
            again = now
        if (code := job.poll()) == os.EX_TEMPFAIL:
            raise Absent("the launcher does not bring a job back by itself")
        if code is not None:
            raise ChildProcessError(f"the job has ended without output: exit code {code}")
        time.sleep(LOOK_SECONDS)
    raise TimeoutError("no output came")


def restart_row(kind: str, processes: int) -> str:
    """Return the name of a contender."""
    return f"{kind}, two processes, then {processes}"


def open_restarts(setting: Setting) -> Sequence[Step]:
    """Store a million states of each kind; return the contenders."""
    steps = []
    for kind in KINDS:
        kept = Kept(setting.folder, kind, setting.size(KEYS, KEYS_QUICK), 2)
        for processes in PROCESSES:
            steps.append(step(restart, kept, restart_row(kind, processes), processes))
    return [
        *steps,
        Step(BYTEWAX, partial(restart_bytewax, setting, setting.size(KEYS, KEYS_QUICK) // BYTEWAX_SHARE), times_max=1),
    ]


def open_killed(setting: Setting) -> Sequence[Step]:
    """Store a million ints; return the contenders, whose processes are killed."""
    kept = Kept(setting.folder, "ints", setting.size(KEYS, KEYS_QUICK), 2)
    rate = setting.size(RATE, RATE_QUICK)
    return [step(kill_some, kept, KILLED, 1, rate), step(kill_some, kept, BOTH, 2, rate)]


def step(run: Callable[..., Found], kept: Kept, row: str, *numbers: int) -> Step:
    """Return a step that kills processes in this way."""
    return Step(row, lambda: run(kept, row, *numbers))


S15 = Workload(
    "S15",
    "a restart with a million keys: from the command to the first new output",
    open_restarts,
    tuple(Goal(restart_row("ints", processes), START, 3.0) for processes in PROCESSES),
    base=None,
    notes=("the store is in the system's memory, as it is when a process has just been killed",),
)
S16 = Workload(
    "S16",
    "processes are killed, a million keys: how long the output stands still",
    open_killed,
    (Goal(KILLED, STILL, 1.5), Goal(BOTH, STILL, 3.0)),
    base=None,
    notes=("what the file had behind the checkpoint comes again first, at the rate of the lines: 0 to 1 s of it",),
)
