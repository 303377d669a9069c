"""Real processes for tests: started, steered, read as they write, and always killed at the end.

`Process` is one process, `Cluster` the processes of an engine program, and `Run` a `megaflow run` with the commands
that steer it. `run_processes` runs a function in several processes.
"""

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, TypeVar

from megaflow.durable.incarnation import read_commits
from megaflow.durable.local_folder import open_to_look
from megaflow.durable.store import Store
from megaflow.errors import StoreError
from megaflow.job.job_file import process_start
from megaflow.program import Worker
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parent.parent.parent
WORDCOUNT = str(ROOT / "apps" / "wordcount.py")
END_SECONDS = 180.0  # on a busy machine, for the end of a process or a line that is about to come
PATIENT = {"MEGAFLOW_TIMEOUT": "250", "MEGAFLOW_JOIN_TIMEOUT": "250"}  # for a command, and for a joining process
STATUS_SECONDS = 300.0  # for a job to reach the state that a test wants
STOP_SECONDS = 60.0  # for everything of a failed job or cluster to end, on a busy machine; 5 are promised

R = TypeVar("R")


def spark_environment(runtime: Path, **more: str) -> dict[str, str]:
    """Return the environment of a program with a Spark session of its own, whose jobs have their files in `runtime`."""
    own = {"XDG_RUNTIME_DIR": str(runtime), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    return {**os.environ, **own, **more}


@dataclass(frozen=True)
class Ended:
    """Exit code and output of an ended process."""

    code: int
    output: str
    errors: str


class Process(subprocess.Popen[str]):
    """Process whose output and errors are read as they arrive, each by a thread.

    (After a `readline`, `communicate` would lose lines: it reads the pipe, but not what was read ahead.)
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        """`options` are those of Popen, including `stdout` and `stderr`; a redirected stream is not read."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        super().__init__(command, text=True, **{"cwd": ROOT, "stdin": subprocess.DEVNULL, **pipes, **options})
        self.output: list[str] = []  # lines, with their ends
        self.errors: list[str] = []
        self._seen = 0  # lines of output already awaited
        self._ended = self.stdout is None  # whether all its output is read
        self._came = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, lines), daemon=True)
            for pipe, lines in ((self.stdout, self.output), (self.stderr, self.errors))
            if pipe is not None
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: IO[str], lines: list[str]) -> None:
        with pipe:
            for line in pipe:
                with self._came:
                    lines.append(line)
                    self._came.notify_all()
        with self._came:
            self._ended |= lines is self.output
            self._came.notify_all()

    def read_line(self) -> str:
        """Wait for the next line of output; "" at its end."""
        with self._came:
            came = self._came.wait_for(lambda: self._seen < len(self.output) or self._ended, END_SECONDS)
            assert came, f"no line for {END_SECONDS:g} s, after {self.output}"
            line = "".join(self.output[self._seen : self._seen + 1])
            self._seen += len(line) > 0
        return line

    def await_line(self, wanted: str) -> None:
        """Wait until it prints this line, after the lines awaited before."""
        while line := self.read_line():
            if line.rstrip("\n") == wanted:
                return
        raise AssertionError(f"it never printed {wanted!r}, but {self.output}; {''.join(self.errors)}")

    def write_line(self, line: str) -> None:
        """Send it a line of input."""
        assert self.stdin is not None
        self.stdin.write(f"{line}\n")
        self.stdin.flush()

    def end(self, seconds: float = END_SECONDS) -> Ended:
        """Wait for its end; return its exit code and everything that it wrote."""
        self.wait(seconds)
        for reader in self._readers:
            reader.join(seconds)
        return Ended(self.returncode, "".join(self.output), "".join(self.errors))

    def finish(self) -> None:
        """Kill it, if it still runs, and close its pipes."""
        self.kill()
        self.end()
        if self.stdin is not None:
            with suppress(BrokenPipeError):
                self.stdin.close()


class Cluster:
    """The processes of an engine program; each finds its address in a host file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts = folder / "hosts"
        self.addresses: list[str] = []
        self.processes: list[Process] = []
        self.environment = {**os.environ, "MEGAFLOW_SECRET": "a secret of the tests", "PYTHONPATH": str(ROOT)}

    def script(self, text: str, name: str = "program.py") -> Path:
        """Write a program of the test."""
        path = self.folder / name
        path.write_text(text)
        return path

    def give_addresses(self, count: int) -> None:
        """Write the host file."""
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        self.hosts.write_text("\n".join(self.addresses))

    def start(self, program: Path, *words: Sequence[str]) -> None:
        """Start one process for each list of words; -n, -p and -h are added."""
        self.give_addresses(len(words))
        for index, more in enumerate(words):
            self.run(program, f"-n{len(words)}", f"-p{index}", "-h", str(self.hosts), *more)

    def run(self, program: Path, *words: str, **options: Any) -> Process:
        """Start one process."""
        command = [sys.executable, str(program), *words]
        self.processes.append(Process(command, **{"cwd": self.folder, "env": self.environment, **options}))
        return self.processes[-1]

    def end(self, *processes: Process) -> list[Ended]:
        """Wait for the end of these processes, or of all."""
        return [process.end() for process in processes or self.processes]

    def succeed(self) -> str:
        """Wait for all processes; return their output. Fail if one failed."""
        ended = self.end()
        assert [each.code for each in ended] == [0] * len(ended), "\n".join(each.errors for each in ended)
        return "".join(each.output for each in ended)

    def finish(self) -> None:
        """Kill the processes that still run."""
        with ExitStack() as stack:
            for process in self.processes:
                stack.callback(process.finish)


@contextmanager
def programs(folder: Path, program: Path, *words: str, workers: Sequence[int] = (1, 1)) -> Iterator[Cluster]:
    """Start one process for each number of workers; all are gone when the block ends."""
    cluster = Cluster(folder)
    try:
        cluster.start(program, *([*words, f"-w{count}"] for count in workers))
        yield cluster
    finally:
        cluster.finish()


_CALL = """
import importlib, pickle, sys
from megaflow.program import execute_from_args

def main(worker):
    module, function = worker.args
    return getattr(importlib.import_module(module), function)(worker)

sys.stdout.write(pickle.dumps(execute_from_args(main)).hex())
"""


def run_processes(main: Callable[[Worker], R], processes: int = 2, workers: int = 1) -> list[R]:
    """Run `main`, a function of a module, on the workers of real processes; return their results."""
    with TemporaryDirectory() as folder:
        program = Path(folder) / "call.py"
        program.write_text(_CALL)
        words = (main.__module__, main.__qualname__)
        with programs(Path(folder), program, *words, workers=[workers] * processes) as cluster:
            ended = cluster.end()
    assert [each.code for each in ended] == [0] * processes, "\n".join(each.errors for each in ended)
    return [result for each in ended for result in pickle.loads(bytes.fromhex(each.output))]


class Run:
    """A `megaflow run`, and the commands that find it by its folder."""

    def __init__(self, folder: Path, *words: str, **options: Any) -> None:
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), **PATIENT}
        self.folder = folder / "megaflow"
        self.process = self.megaflow("run", *words, **options)
        self.said = self.process.errors

    def megaflow(self, *words: str, python: Sequence[str] = (), **options: Any) -> Process:
        """Start another command with its environment. `python`: options of the interpreter."""
        return Process([sys.executable, *python, "-m", "megaflow", *words], **{"env": self.environment, **options})

    def end(self) -> tuple[int, str, list[str]]:
        """Wait for its end; return exit code, output, and lines of standard error."""
        ended = self.process.end(STATUS_SECONDS)
        return ended.code, ended.output, ended.errors.splitlines()

    def control(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "megaflow", "control", *words]
        return subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)

    def status(self) -> dict[str, Any]:
        """Return the status of all workers, once none of them is in a long step."""
        deadline = time.monotonic() + STATUS_SECONDS
        while True:
            done = self.control("status", "--json")
            assert done.returncode == 0, done.stderr
            record: dict[str, Any] = json.loads(done.stdout)
            if not record["silent"]:
                return record
            assert time.monotonic() < deadline, done.stdout

    def status_when(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask until the status is as wanted; return it."""
        wait_until(lambda: any(self.folder.glob("*.json")))
        found: list[dict[str, Any]] = []

        def as_wanted() -> bool:
            found[:] = [self.status()]
            return wanted(found[0])

        wait_until(as_wanted, STATUS_SECONDS)
        return found[0]

    def reading(self) -> dict[str, Any]:
        """Return the status once all workers have read or applied something."""
        return self.status_when(lambda record: all(each["lines"] or each["records"] for each in record["workers"]))

    def files(self) -> list[Path]:
        return list(self.folder.glob("*.json"))


# Touches the file that a line names, then stays busy for longer than a test takes.
ASLEEP = """
import pathlib, time

def slow(line):
    pathlib.Path(line).touch()
    time.sleep(600)
    return line

def dataflow(flow):
    return flow.lines().map(slow)
"""


def fall_asleep(start: Callable[..., Run], folder: Path, *options: str) -> Run:
    """Start a job of two processes and keep one of them in a very long step."""
    app, asleep = folder / "slow.py", folder / "asleep"
    app.write_text(ASLEEP)
    run = start(str(app), "--lines", "-", "--processes", "2", *options, stdin=subprocess.PIPE)
    run.process.write_line(str(asleep))
    wait_until(asleep.exists)
    return run


def committed(store: Path) -> int:
    """Return the number of a store's newest checkpoint, or 0."""
    try:
        folder = open_to_look(store)
    except StoreError:
        return 0
    try:
        return read_commits(Store(folder))[0].checkpoint
    finally:
        folder.close_folder()


def wait_until(true: Callable[[], bool], seconds: float = END_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def records_of(path: Path) -> list[Any]:
    """Return the records of a JSON Lines output so far, without an incomplete last line."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line)["record"] for line in text.rpartition("\n")[0].splitlines()]


def children_of(pid: int) -> list[int]:
    """Return the processes that any thread of this process has started."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, (task / "children").read_text().split())
    return found


def tree_of(pid: int) -> list[int]:
    """Return a process and all processes below it. A process stands before its parent."""
    return [each for child in children_of(pid) for each in tree_of(child)] + [pid]


def signal_all(pid: int, number: int) -> None:
    """Send a signal to a process and all processes below it, the parents last, as a service manager may."""
    for each in tree_of(pid):
        with suppress(ProcessLookupError):
            os.kill(each, number)


def lives(pid: int, start: str | None) -> bool:
    return process_start(pid) == start and not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")
