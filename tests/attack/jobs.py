"""A real job under attack: starting, asking, ending and killing it, and checks of what it leaves behind.

The test finds the job's processes, and the commands that steer it, by their environment. So it misses no process that
was started for the job, directly or by another process.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeVar

from megaflow.control.client.commands import ask_status
from megaflow.control.client.conversation import Conversation
from megaflow.control.reports import JobStatus, WorkerStatus
from megaflow.errors import MegaflowError
from megaflow.timely.communication.client import Client
from tests.attack.chains import Chain, records_of
from tests.attack.tally import COUNTS
from tests.cluster.processes import STATUS_SECONDS, STOP_SECONDS, Ended, Run, wait_until
from tests.results import check_equal, comparing

PATIENCE_SECONDS = 180.0  # for an answer
ENDINGS = ("lines", "stop", "terminate", "interrupt")
KILLS = ("kill a worker", "kill the launcher")

INTERNALS = r'File "(<|[^"]*/megaflow/)'  # in a traceback: the app's own frames may appear

R = TypeVar("R")


class Job:
    """Job that runs in a separate folder."""

    def __init__(self, folder: Path, chain: Chain, ending: str) -> None:
        """`ending` is one of ENDINGS or KILLS."""
        self.folder, self.chain, self.ending = folder, chain, ending
        self.account: list[str] = []  # the log of all actions
        self.frozen: list[threading.Timer] = []  # they resume suspended workers
        self.is_ending = False  # a stop or kill was sent
        self._enough = threading.Event()  # set once enough lines are written
        self._written = 0
        self._begun = time.monotonic()
        aside = folder / "tmp"
        aside.mkdir()
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "TMPDIR": str(aside)}
        self.run = Run(folder, *chain.write(folder), env=environment, stdin=subprocess.PIPE)
        self.run.environment = environment
        self._writer = threading.Thread(target=self._write, daemon=True)
        if chain.is_piped:
            self._writer.start()

    def note(self, what: str) -> None:
        """Note an action for the report of a failure."""
        self.account.append(f"{time.monotonic() - self._begun:6.2f} {what}")

    def _write(self) -> None:
        """Write lines until there are enough."""
        pipe = self.run.process.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError), pipe:
            for line in self.chain.lines_of(*self.chain.sources):
                if self._enough.is_set():
                    break
                pipe.write(line)
                self._written += 1

    @property
    def runs(self) -> bool:
        """Whether its launcher runs."""
        return self.run.process.poll() is None

    def contact(self) -> tuple[tuple[str, int], bytes]:
        """Return its address and secret from its file."""
        [path] = self.run.files()
        file = json.loads(path.read_text())
        return (file["host"], file["port"]), file["secret"].encode()

    def talk(self, ask: Callable[[Conversation], R]) -> R:
        """Send it a request from this process. Raises MegaflowError, OSError or ValueError if the job cannot be
        reached.
        """
        address, secret = self.contact()

        def reach(host: str, port: int) -> Client:
            return Client.connect(host, port, secret, "control", {}, PATIENCE_SECONDS)

        with contextlib.closing(Conversation(reach(*address), PATIENCE_SECONDS, reach)) as talk:
            COUNTS["connections"] += 1
            return ask(talk)

    def status(self) -> JobStatus | None:
        """Return its status, or None if it does not answer."""
        with contextlib.suppress(MegaflowError, OSError, ValueError):
            return self.talk(ask_status)
        return None

    def await_status(self, wanted: Callable[[JobStatus], bool]) -> JobStatus | None:
        """Wait until its status is as wanted, and return it; return None if the job ends."""
        found: list[JobStatus | None] = [None]

        def is_there() -> bool:
            found[0] = self.status()
            return not self.runs or (found[0] is not None and wanted(found[0]))

        wait_until(is_there, STATUS_SECONDS)
        return found[0]

    def freeze(self, worker: WorkerStatus, seconds: float) -> None:
        """Suspend a worker for a while."""
        self.note(f"worker {worker.id} is suspended for {seconds:.1f} s")
        COUNTS["suspensions"] += 1
        send(worker.pid, signal.SIGSTOP)
        self.frozen.append(threading.Timer(seconds, send, (worker.pid, signal.SIGCONT)))
        self.frozen[-1].start()

    # The end

    def end(self, rng: random.Random) -> None:
        """End the job as drawn. Check how it ends and what it prints."""
        self.note(f"ending: {self.ending}")
        self.is_ending = True
        if self.ending in KILLS:
            for timer in self.frozen:
                timer.join()
        match self.ending:
            case "lines":
                self._enough.set()
            case "stop":
                stop = self.run.control("stop")
                assert stop.returncode == 0, stop
            case "terminate":
                self.run.process.send_signal(signal.SIGTERM)
            case "interrupt":
                self.run.process.send_signal(signal.SIGINT)
            case "kill the launcher":
                COUNTS["kills"] += 1
                self.run.process.kill()
            case _:
                self._kill_a_worker(rng)
        ended = self.run.process.end(STATUS_SECONDS)
        self._enough.set()
        self.note(f"the job has ended: {ended.code}")
        assert re.search(INTERNALS, ended.errors) is None, ended.errors
        if self.ending not in KILLS:
            with comparing():  # the app compares states
                assert "AssertionError" not in ended.errors, ended.errors
            assert ended.code == (130 if self.ending == "interrupt" else 0), ended
            self._check_summary(ended)

    def _kill_a_worker(self, rng: random.Random) -> None:
        """Kill a member; the job must end at once and name it."""
        while (status := self.await_status(lambda status: bool(status.workers))) is not None:
            worker = rng.choice(status.workers)
            self.note(f"worker {worker.id} is killed, pid {worker.pid}")
            COUNTS["kills"] += 1
            send(worker.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert self.run.process.wait(STOP_SECONDS) == 1
                break
            now = self.status()
            assert now is not None and worker.id not in {each.id for each in now.workers}, "it lives without a worker"
            self.note("it had left before")
        said = self.run.process.end().errors.splitlines()[-1]
        named = rf"megaflow: workers? {worker.id}\b|megaflow: workers? \d+( to |, | and ){worker.id}\b"
        assert re.match(named, said) or self.chain.workers > 1, said
        assert re.search(r"was killed by SIGKILL|closed its connection", said), said

    def _check_summary(self, ended: Ended) -> None:
        said = ended.errors.splitlines()[-1]
        counted = re.match(r"megaflow: (\d+) lines?, (\d+) records?, ", said)
        assert counted is not None, said
        outputs = self.check_outputs()
        check_equal([int(each) for each in counted.groups()], [outputs, outputs], said, outputs)
        COUNTS["records"] += outputs

    def check_outputs(self) -> int:
        """Fail unless the outputs are exact; return their number."""
        out = self.folder / "out.jsonl"
        is_whole = self.ending == "lines" and not self.chain.is_piped
        records = records_of(out) if out.exists() else ()
        outputs = self.chain.check(records, is_whole=is_whole, is_torn=self.ending in KILLS)
        if self.ending == "lines" and self.chain.is_piped:
            self._writer.join()
            check_equal(outputs, self._written, f"{outputs} outputs of {self._written} lines")
        return outputs

    def check_left(self) -> None:
        """Fail unless everything of the job is gone a few seconds after its end."""
        try:
            wait_until(lambda: processes_of(self.folder) == [], STOP_SECONDS)
        except AssertionError:
            raise AssertionError(f"still there: {[describe(pid) for pid in processes_of(self.folder)]}") from None
        if self.ending == "kill the launcher":  # the next search for the job removes its file
            done = self.run.control("status")
            assert done.returncode == 1 and "no job is running" in done.stderr, done
        left = [path for path in (self.folder / "tmp").rglob("*") if not path.is_dir()]
        assert not left, f"files are left: {left}"
        assert [path for path in self.run.folder.iterdir() if path.suffix != ".ended"] == []

    def let_go(self) -> None:
        """Kill all its remaining processes."""
        self._enough.set()
        self.run.process.finish()
        for pid in processes_of(self.folder):
            send(pid, signal.SIGKILL)


@contextlib.contextmanager
def kept_folder() -> Iterator[Path]:
    """Yield a folder that is removed if the block succeeds."""
    folder = Path(mkdtemp(prefix="megaflow-attack-"))
    yield folder
    shutil.rmtree(folder)


def processes_of(folder: Path) -> list[int]:
    """Return the processes that were started for a job in this folder. They inherit the folder of job files."""
    mark = f"XDG_RUNTIME_DIR={folder}\0".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def describe(pid: int) -> str:
    """Describe a process for the report of a failure."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return f"{pid}, gone"


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal if the process still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
