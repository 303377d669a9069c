"""A job with a store as its user has it: commands in a folder, their processes, and what they leave behind."""

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
from megaflow.durable.store import FolderStore
from megaflow.errors import StoreError
from megaflow.job.job_file import process_start

NAME = "crashes"
COMMAND = (sys.executable, "-m", "megaflow")


@dataclass
class Command:
    """A command that was started, and the file of what it said."""

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
        """Return what it has said so far."""
        return self.said_path.read_text(encoding="utf-8", errors="replace")

    def last_word(self) -> str:
        """Return the last line of that."""
        return (self.said().strip().splitlines() or ["nothing"])[-1]


class UsersJob:
    """The commands of one job. One thread."""

    def __init__(self, folder: Path, app: str, documents: Sequence[Path], checkpoint_every: float) -> None:
        self.folder = folder
        self.output = folder / "out.jsonl"
        self.store = folder / "store"
        self.kinds: dict[int, str] = {}  # process -> what it is, of those of the launcher that were seen in this run
        self.starts: dict[int, str | None] = {}  # process -> what tells it from a later one of its number
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
        """Start the job, or have it go on."""
        self.kinds.clear()
        self.starts.clear()
        self.launcher = self._command("run", self._app, *self._words, *words)
        return self.launcher

    def join(self) -> Command:
        """Start a process by hand."""
        joining = self._command("run", self._app, "--join", NAME)
        self.joined.append(joining)
        return joining

    def control(self, *words: str) -> Command:
        """Start a command that steers the job."""
        return self._command("control", *words, "--job", NAME)

    def back_up(self) -> Command:
        """Start a copy of the store; `keep_backup` is to be called when it is there."""
        return self._command("state", "copy", str(self.store), str(self._backup / f"new-{self._started}"))

    def keep_backup(self, made: Command) -> None:
        """Copy the output, too, which has at least what the store's copy says; the backup before is not needed."""
        shutil.rmtree(self._backup / "store", ignore_errors=True)
        Path(made.words[-1]).rename(self._backup / "store")
        shutil.copy(self.output, self._backup)

    def restore(self) -> bool:
        """Put the backup in the place of store and output, if there is one; return whether. The job does not run."""
        if not (self._backup / "store").exists():
            return False
        shutil.rmtree(self.store)
        (self._backup / "store").rename(self.store)
        (self._backup / self.output.name).rename(self.output)
        return True

    def look(self, is_growing: bool) -> None:
        """Note which processes the launcher has; new ones were added, if the job `is_growing`."""
        assert self.launcher is not None, "it was started"
        for pid in children_of(self.launcher.pid):
            if pid not in self.kinds:
                self.kinds[pid] = "added" if is_growing else "worker"
                self.starts[pid] = process_start(pid)

    def living(self, kind: str) -> list[int]:
        """Return the processes of a kind: worker, added, by hand or launcher."""
        assert self.launcher is not None, "it was started"
        if kind == "launcher":
            return [self.launcher.pid]
        if kind == "by hand":
            return [each.pid for each in self.joined if each.poll() is None]
        return [pid for pid in children_of(self.launcher.pid) if self.kinds.get(pid, "worker") == kind]

    def has_own(self) -> bool:
        """Whether the launcher has processes that it has started."""
        return bool(self.living("worker") or self.living("added"))

    def newest_commit(self) -> int:
        """Return the number of the newest commit file."""
        with contextlib.suppress(FileNotFoundError):
            return max(commit_numbers(os.listdir(self.store)), default=0)
        return 0

    def output_bytes(self) -> int:
        """Return how long the output is."""
        return self.output.stat().st_size if self.output.exists() else 0

    def committed(self) -> Commit | None:
        """Return the newest commit, once the whole store is verified; None if there is none. Raises StoreError."""
        if not self.newest_commit():
            return None
        folder = open_to_look(self.store)
        try:
            content = verify(FolderStore(folder))
            if content.damage:
                raise StoreError("; ".join(content.damage))
            return read_commits(FolderStore(folder))[0]
        finally:
            folder.close_folder()

    def newest(self) -> Commit | None:
        """Return the newest commit, also while the job runs; None if there is none. Raises StoreError."""
        if not self.newest_commit():
            return None
        folder = open_to_look(self.store)
        try:
            return read_commits(FolderStore(folder))[0]
        finally:
            folder.close_folder()

    def processes(self) -> list[tuple[str, int]]:
        """Return what each living process is, and its number."""
        return [(kind, pid) for kind in ("launcher", "worker", "added", "by hand") for pid in self.living(kind)]

    def finish(self) -> None:
        """Kill all that was started and lives."""
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
    """Kill processes with SIGKILL, as far as they live."""
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
