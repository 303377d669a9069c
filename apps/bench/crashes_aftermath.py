"""Checks of the crash test after each end of a launcher: remaining processes, their messages, the committed output."""

import math
import time

from apps.bench.crashes_job import Command, UsersJob, lives
from apps.bench.crashes_text import Checker
from megaflow.errors import StoreError

COMMAND_SECONDS_MAX = 100.0  # a command gives up after 60
ORPHAN_SECONDS_MAX = 30.0  # 5 are promised


class Unexpected(Exception):
    """A failure that the crash test must never see."""


class Aftermath:
    """Watch over processes that must end, checks of the committed output, and the log. One thread."""

    def __init__(self, job: UsersJob, checker: Checker) -> None:
        self._job = job
        self._checker = checker
        self._began = time.monotonic()
        self._log_path = job.folder / "log.txt"
        self._stragglers: list[tuple[Command, float]] = []  # (command to a job that has ended, deadline)
        self._orphans: list[tuple[int, str | None, float]] = []  # (process, its start, deadline), without a launcher

    def log(self, what: str) -> None:
        """Write an action or its result to the log."""
        with self._log_path.open("a", encoding="utf-8") as log:
            log.write(f"{time.monotonic() - self._began:8.2f} {what}\n")

    def must_end(self, command: Command) -> None:
        """Expect that the command ends within COMMAND_SECONDS_MAX. Does not block; `watch` checks it."""
        self._stragglers.append((command, time.monotonic() + COMMAND_SECONDS_MAX))

    def has_ended(self, launcher: Command, code: int) -> None:
        """Note that the launcher has ended, and expect its processes to end."""
        self.take_end(launcher, code)
        until = time.monotonic() + ORPHAN_SECONDS_MAX
        self._orphans += [(pid, start, until) for pid, start in self._job.starts.items()]

    def take_end(self, command: Command, code: int) -> None:
        """Log a command's exit code and last line. Raises Unexpected if it printed a traceback."""
        self.log(f"  {command}: {code}, {command.last_word()[:300]}")
        if "Traceback" in command.said():
            raise Unexpected(f"{command} shows a traceback")

    def watch(self) -> None:
        """Check which processes and commands have ended. Raises Unexpected if one has passed its deadline."""
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
        """Whether everything has ended that must end. For use when the job is over. Raises Unexpected."""
        self.watch()
        for command in self._job.joined:
            self.must_end(command)
        self._job.joined = []
        return not self._orphans and not self._stragglers

    def look_at_output(self, has_stopped: bool = False) -> bool:
        """Check the committed output; return whether the job has committed its end. Raises Unexpected.

        The job must not be running. If it `has_stopped`, its output must end with the committed bytes.
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
