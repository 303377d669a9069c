"""A job with a store as its user runs it: commands in a folder, their processes, and the files that they leave."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from apps.bench.processes import children_of
from apps.bench.workload import ROOT
from megaflow.durable.commits import Commit, commit_numbers
from megaflow.durable.incarnation import read_commits
from megaflow.durable.inspection import verify
from megaflow.durable.local_folder import open_to_look
from megaflow.durable.store import Store
from megaflow.errors import StoreError
from megaflow.job.job_file import process_start

NAME = "crashes"
COMMAND = (sys.executable, "-m", "megaflow")


@dataclass
class Command:
    """A started command, with a file of its output."""

    words: Sequence[str]
    process: "subprocess.Popen[bytes]"
    said_path: Path

    def __str__(self) -> str:
        return f"{' '.join(self.words[:3])} … ({self.said_path})"

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        return self.process.poll()

    def said(self) -> str:
        """Return its output so far."""
        return self.said_path.read_text(encoding="utf-8", errors="replace")

    def last_word(self) -> str:
        """Return the last line of its output."""
        return (self.said().strip().splitlines() or ["nothing"])[-1]


class UsersJob:
    """The commands of one job. One thread."""

    def __init__(self, folder: Path, app: str, documents: Sequence[Path], checkpoint_every: float) -> None:
        self.folder = folder
        self.output = folder / "out.jsonl"
        self.store = folder / "store"
        self.kinds: dict[int, str] = {}  # process -> its kind, for processes of the launcher seen in this run
        self.starts: dict[int, str | None] = {}  # process -> its start; tells it from a later one with this id
        self.launcher: Command | None = None  # of the last run
        self.joined: list[Command] = []  # by hand
        self._app = app
        self._words = (
            "--lines", f"{documents[0].parent}/*.txt", "--output", f"jsonl:{self.output}", "--state", str(self.store),
            "--checkpoint-every", f"{checkpoint_every:g}", "--name", NAME,
        )  # fmt: skip
        self._environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        self._started = 0  # commands
        self._backup = folder / "backup"
        self._backup.mkdir()

    def run(self, *words: str) -> Command:
        """Start or resume the job."""
        self.kinds.clear()
        self.starts.clear()
        self.launcher = self._command("run", self._app, *self._words, *words)
        return self.launcher

    def join(self) -> Command:
        """Start a process that joins by hand."""
        joining = self._command("run", self._app, "--join", NAME)
        self.joined.append(joining)
        return joining

    def control(self, *words: str) -> Command:
        """Start a command that steers the job."""
        return self._command("control", *words, "--job", NAME)

    def back_up(self) -> Command:
        """Start a copy of the store. Call `keep_backup` when the command has ended."""
        return self._command("state", "copy", str(self.store), str(self._backup / f"new-{self._started}"))

    def keep_backup(self, made: Command) -> None:
        """Keep this copy as the backup instead of the previous one. Also copy the output.

        The output holds at least all that the copied store has committed.
        """
        shutil.rmtree(self._backup / "store", ignore_errors=True)
        Path(made.words[-1]).rename(self._backup / "store")
        shutil.copy(self.output, self._backup)

    def restore(self) -> bool:
        """Replace store and output by the backup; return False if there is none. The job must not be running."""
        if not (self._backup / "store").exists():
            return False
        shutil.rmtree(self.store)
        (self._backup / "store").rename(self.store)
        (self._backup / self.output.name).rename(self.output)
        return True

    def look(self, is_growing: bool) -> None:
        """Note the launcher's processes. New ones count as added if the job `is_growing`."""
        assert self.launcher is not None, "it was started"
        for pid in children_of(self.launcher.pid):
            if pid not in self.kinds:
                self.kinds[pid] = "added" if is_growing else "worker"
                self.starts[pid] = process_start(pid)

    def living(self, kind: str) -> list[int]:
        """Return the living processes of a kind: worker, added, by hand or launcher."""
        assert self.launcher is not None, "it was started"
        if kind == "launcher":
            return [self.launcher.pid]
        if kind == "by hand":
            return [each.pid for each in self.joined if each.poll() is None]
        return [pid for pid in children_of(self.launcher.pid) if self.kinds.get(pid, "worker") == kind]

    def has_own(self) -> bool:
        """Whether the launcher has processes that it started itself."""
        return bool(self.living("worker") or self.living("added"))

    def newest_commit(self) -> int:
        """Return the number of the newest commit file."""
        with contextlib.suppress(FileNotFoundError):
            return max(commit_numbers(os.listdir(self.store)), default=0)
        return 0

    def output_bytes(self) -> int:
        """Return the length of the output."""
        return self.output.stat().st_size if self.output.exists() else 0

    def committed(self) -> Commit | None:
        """Verify the whole store; return the newest commit, or None. Raises StoreError."""
        if not self.newest_commit():
            return None
        folder = open_to_look(self.store)
        try:
            content = verify(Store(folder))
            if content.damage:
                raise StoreError("; ".join(content.damage))
            return read_commits(Store(folder))[0]
        finally:
            folder.close_folder()

    def newest(self) -> Commit | None:
        """Return the newest commit, or None. The job may be running. Raises StoreError."""
        if not self.newest_commit():
            return None
        folder = open_to_look(self.store)
        try:
            return read_commits(Store(folder))[0]
        finally:
            folder.close_folder()

    def processes(self) -> list[tuple[str, int]]:
        """Return the kind and the id of each living process."""
        return [(kind, pid) for kind in ("launcher", "worker", "added", "by hand") for pid in self.living(kind)]

    def finish(self) -> None:
        """Kill all living processes that were started."""
        launcher = () if self.launcher is None else (self.launcher,)
        for command in (*self.joined, *launcher):
            command.process.kill()
            command.process.wait()

    def _command(self, *words: str) -> Command:
        self._started += 1
        said = self.folder / f"said-{self._started:04}-{words[0]}.txt"
        with said.open("wb") as file:
            process = subprocess.Popen(
                [*COMMAND, *words], cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return Command(words, process, said)


def kill(pids: Iterable[int]) -> None:
    """Kill those of the processes that are alive, with SIGKILL."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def lives(pid: int, start: str | None) -> bool:
    """Whether a process has not ended."""
    try:
        ended = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].startswith(" Z")
    except OSError:
        return False
    return not ended and process_start(pid) == start
