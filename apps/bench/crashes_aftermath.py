"""What must hold after each end in the crash test: of what was running, of what it has said, of what is committed."""

import math
import time

from apps.bench.crashes_job import Command, UsersJob, lives
from apps.bench.crashes_text import Checker
from megaflow.errors import StoreError

COMMAND_SECONDS_MAX = 100.0  # a command gives up after 60
ORPHAN_SECONDS_MAX = 30.0  # promised are 5


class Unexpected(Exception):
    """Something has happened that must not."""


class Aftermath:
    """What is to end by itself, what is committed, and the log. One thread."""

    def __init__(self, job: UsersJob, checker: Checker) -> None:
        self._job = job
        self._checker = checker
        self._began = time.monotonic()
        self._log_path = job.folder / "log.txt"
        self._stragglers: list[tuple[Command, float]] = []  # commands to a job that has ended; until when
        self._orphans: list[tuple[int, str | None, float]] = []  # processes whose launcher has; until when

    def log(self, what: str) -> None:
        """Note what was done, or what came of it."""
        with self._log_path.open("a", encoding="utf-8") as log:
            log.write(f"{time.monotonic() - self._began:8.2f} {what}\n")

    def must_end(self, command: Command) -> None:
        """Wait for the end of a command, while other things are done."""
        self._stragglers.append((command, time.monotonic() + COMMAND_SECONDS_MAX))

    def has_ended(self, launcher: Command, code: int) -> None:
        """Take in that the launcher has ended, so that its processes are to end."""
        self.take_end(launcher, code)
        until = time.monotonic() + ORPHAN_SECONDS_MAX
        self._orphans += [(pid, start, until) for pid, start in self._job.starts.items()]

    def take_end(self, command: Command, code: int) -> None:
        """Look at what a command has said. Raises Unexpected for a traceback."""
        self.log(f"  {command}: {code}, {command.last_word()[:300]}")
        if "Traceback" in command.said():
            raise Unexpected(f"{command} shows a traceback")

    def watch(self) -> None:
        """Look at who has ended. Raises Unexpected for one that should have."""
        now = time.monotonic()
        self._orphans = [each for each in self._orphans if lives(*each[:2])]
        for pid, _, until in self._orphans:
            if now > until:
                raise Unexpected(f"process {pid} outlives its launcher")
        self._stragglers = self._running(self._stragglers)
        for command, until in self._stragglers:
            if now > until:
                raise Unexpected(f"{command} does not end")
        joined = [(each, math.inf) for each in self._job.joined]
        self._job.joined = [command for command, _ in self._running(joined)]

    def is_over(self) -> bool:
        """Whether all is ended that was to end; the job is over. Raises Unexpected as `watch`."""
        self.watch()
        for command in self._job.joined:
            self.must_end(command)
        self._job.joined = []
        return not self._orphans and not self._stragglers

    def look_at_output(self, has_stopped: bool = False) -> bool:
        """Look at what is committed; return whether that is all. The job does not run. Raises Unexpected.

        One that `has_stopped` has left no more than that.
        """
        try:
            commit = self._job.committed()
        except StoreError as error:
            raise Unexpected(f"the store is damaged: {error}") from error
        if commit is None or not commit.outputs:
            return False
        length = commit.outputs[0].length
        if has_stopped and (size := self._job.output_bytes()) != length:
            raise Unexpected(f"the job has stopped with an output of {size} bytes, of which {length} are committed")
        self._checker.look(length)
        if self._checker.wrong_count:
            raise Unexpected("a committed line is wrong")
        return commit.ended

    def _running(self, commands: list[tuple[Command, float]]) -> list[tuple[Command, float]]:
        ended = [(command, command.poll()) for command, _ in commands]
        for command, code in ended:
            if code is not None:
                self.take_end(command, code)
        return [each for each, (_, code) in zip(commands, ended, strict=True) if code is None]
