"""Actions of the crash test on its job, drawn from a seed: one thread that looks at the job every 30 ms.

1. Only one steering command runs at a time. Strikes do not wait for it.
2. Most strikes come in the seconds after a commit of the run, some during the start.
3. The strikes determine the allowed exit codes of the launcher: 75 after the loss of a process (from which the job
   usually recovers by itself), 0 after a stop, and 130 after a Ctrl-C, which a shell also reports for -2.
4. After the launcher has ended, all its processes and commands must end by themselves soon: see `crashes_aftermath`.
"""

import json
import math
import os
import random
import signal
import time
from collections import Counter

from apps.bench.crashes_aftermath import COMMAND_SECONDS_MAX, Aftermath, Unexpected
from apps.bench.crashes_draws import CRASHES, STRIKE_SECONDS_MAX, WORKERS_MAX, Pace, drawn, steering_words
from apps.bench.crashes_job import Command, UsersJob, kill, lives
from apps.bench.crashes_text import Checker

LOOK_SECONDS = 0.03
STILL_SECONDS_MAX = 60.0  # without a commit or an action
END_SECONDS_MAX = 600.0
LOST, STOPPED, INTERRUPTED = 75, 0, 130


class Storm:
    """Actions on one job."""

    def __init__(self, job: UsersJob, checker: Checker, rng: random.Random, rate: float, pace: Pace = CRASHES) -> None:
        self._job = job
        self._pace = pace
        self._aftermath = Aftermath(job, checker)
        self._checker = checker
        self._rng = rng
        self._rate = rate
        self._done: Counter[str] = Counter()  # action or result -> how often
        self._ids: list[int] = []  # of workers; empty if they are not known
        self._wanted: str | None = None  # action to take once they are known
        self._paused: list[tuple[int, str | None, float]] = []  # (process, its start, when it continues)
        self._may_end: set[int] = set()  # allowed exit codes
        self._steering: tuple[str, Command, float] | None = None  # action, command, deadline
        self._next_steering = self._next_strike = 0.0  # seconds of the clock
        self._alive_at = 0.0  # last commit or action
        self._commit = 0  # newest commit seen so far
        self._begun_at = 0  # newest commit when this run started

    def start(self) -> None:
        """Start or resume the job."""
        processes, workers = self._rng.choice(self._pace.sizes)
        now = time.monotonic()
        self._may_end, self._ids, self._wanted = set(), [], None
        words = [
            "--processes", str(processes), "--workers", str(workers), "--rate", f"{self._rate:g}",
            "--restarts", str(self._rng.choice(self._pace.restarts)),
        ]  # fmt: skip
        self._job.run(*words)
        self._aftermath.log(" ".join(words))
        self._alive_at = now
        self._begun_at = self._job.newest_commit()
        self._next_steering = now + self._rng.uniform(0.5, 1.5)
        self._next_strike = now + self._pace.until_first_strike(self._rng)

    def turn(self, now: float) -> bool:
        """Do all that is due; return whether all lines are read. Raises Unexpected."""
        job, launcher = self._job, self._job.launcher
        assert launcher is not None, "it was started"
        time.sleep(self._pace.look_seconds)
        job.look(self._steering is not None and self._steering[0] == "add")
        code = launcher.poll()
        if code is not None:
            if self._has_ended(launcher, code):
                return True
            self.start()
        self._steer(now)
        if now >= self._next_strike:
            self._strike(now)
        self._watch(now)
        return False

    def calm_down(self) -> None:
        """Let the job read the remaining lines undisturbed, and check all of its output.

        Then do the same from the last backup.
        """
        launcher = self._job.launcher
        assert launcher is not None, "it was started"
        self._wake(math.inf)
        if launcher.poll() is None:
            self._aftermath.log("is killed for the last time")
            self._may_end.add(-signal.SIGKILL)
            kill([launcher.pid])
            launcher.process.wait()
            self._has_ended(launcher, -signal.SIGKILL)
        self._run_to_the_end("lines")
        self._run_to_the_end("all lines were read before")
        while not self._aftermath.is_over():
            time.sleep(LOOK_SECONDS)
        self._aftermath.look_at_output()
        self._checker.finish()
        if not self._checker.wrong_count and self._job.restore():
            self._run_to_the_end("lines")
            self._checker.begin_anew()
            self._checker.finish()

    def _run_to_the_end(self, wanted: str) -> None:
        last = self._job.run("--processes", "2")
        if (code := last.process.wait(END_SECONDS_MAX)) != 0 or wanted not in last.said():
            raise Unexpected(f"the last run ended with {code}, and said {last.last_word()!r}")

    def text(self) -> str:
        """Return a summary of the actions so far."""
        done = ", ".join(f"{count} {what}" for what, count in sorted(self._done.items()))
        return (
            f"{done}; commit {self._commit}, {self._checker.lines} lines looked at, {self._checker.wrong_count} wrong"
        )

    # Actions

    def _steer(self, now: float) -> None:
        if self._steering is not None:
            what, command, until = self._steering
            code = command.poll()
            if code is None:
                if now > until:
                    raise Unexpected(f"{command} does not end")
                return
            self._steering = None
            self._next_steering = now + self._pace.until_steering(self._rng)
            self._take_answer(what, command, code)
        elif now >= self._next_steering:
            self._next_steering = now + 0.2
            what, self._wanted = self._wanted or drawn(self._rng, self._pace.steering), None
            words = steering_words(self._rng, what, self._ids)
            if words is None:
                self._wanted, words = what, ["status", "--json"]  # when the workers are known
            if words:
                self._aftermath.log(" ".join(words))
                command = self._job.back_up() if what == "backup" else self._job.control(*words)
                self._steering = what, command, now + COMMAND_SECONDS_MAX
            elif what == "join" and len(self._job.joined) < 2 and len(self._ids) < WORKERS_MAX:
                self._aftermath.log("joins by hand")
                self._done["joined by hand"] += 1
                self._job.join()

    def _take_answer(self, what: str, command: Command, code: int) -> None:
        said = command.said()
        self._aftermath.take_end(command, code)
        self._done[f"{what if command.words[1] != 'status' else 'status'} {'refused' if code else 'done'}"] += 1
        if command.words[1] == "status" and code == 0:
            self._ids = [each["id"] for each in json.loads(said)["workers"]]
        elif what in ("add", "remove"):
            self._ids = []
        elif what == "backup" and code == 0 and self._job.output.exists():
            self._job.keep_backup(command)

    def _strike(self, now: float) -> None:
        """Kill a process or several, or stop the job."""
        job = self._job
        assert job.launcher is not None, "it was started"
        self._next_strike = now + self._pace.until_strike(self._rng)
        what = drawn(self._rng, self._pace.strikes)
        if what == "all":
            victims = [job.launcher.pid, *job.living("worker"), *job.living("added"), *job.living("by hand")]
            self._may_end.add(-signal.SIGKILL)
        elif what == "pause":
            self._pause(now)
            return
        elif what in ("stop", "Ctrl-C"):
            if self._may_end & {STOPPED, INTERRUPTED} or not job.launcher.said():
                return  # a second signal ends the job at once; before its first message, Python may still be starting
            victims = []
        elif what == "command":
            victims = [] if self._steering is None else [self._steering[1].pid]
            if not victims:
                return
        else:
            living = job.living(what)
            if what == "by hand" and self._pace.strike_seconds is not None and not job.has_own():
                living = []  # otherwise the job would end, as the launcher would have no process left
            victims = self._rng.sample(living, min(1, len(living)))
            if not victims:
                if self._pace.strike_seconds is not None:
                    self._next_strike = now  # choose another victim
                return
            self._may_end.add(-signal.SIGKILL if what == "launcher" else LOST)
        self._alive_at = now
        self._done[what if what in ("stop", "Ctrl-C") else f"killed {what}"] += 1
        self._ids = []
        self._aftermath.log(f"{what}: {victims}")
        kill(victims)
        if what == "stop":
            self._may_end.add(STOPPED)
            self._aftermath.must_end(job.control("stop"))
        elif what == "Ctrl-C":
            self._may_end |= {INTERRUPTED, -signal.SIGINT}  # the latter if it was ending
            os.kill(job.launcher.pid, signal.SIGINT)

    def _pause(self, now: float) -> None:
        """Suspend a worker process for a while. It becomes slow, and the others must not consider it lost."""
        if awake := [(pid, start) for pid, start in self._job.starts.items() if lives(pid, start)]:
            pid, start = self._rng.choice(awake)
            seconds = self._rng.uniform(0.1, 2.5)
            self._aftermath.log(f"pause: {pid} for {seconds:.1f} s")
            self._done["pause"] += 1
            os.kill(pid, signal.SIGSTOP)
            self._paused.append((pid, start, now + seconds))

    def _wake(self, now: float) -> None:
        for pid, start, until in self._paused:
            if now >= until and lives(pid, start):
                os.kill(pid, signal.SIGCONT)
        self._paused = [each for each in self._paused if now < each[2]]

    # Results

    def _has_ended(self, launcher: Command, code: int) -> bool:
        """Handle the end of the launcher; return whether all lines are read."""
        self._done[f"runs ended with {code}"] += 1
        self._done["restarts in place"] += launcher.said().count("; restart ")
        if self._steering is not None:
            self._aftermath.must_end(self._steering[1])
            self._steering = None
        self._aftermath.has_ended(launcher, code)
        is_over = self._aftermath.look_at_output(has_stopped=code in (STOPPED, INTERRUPTED))
        if code not in self._may_end and not (is_over and code == 0):
            raise Unexpected(f"a run ended with {code}, of {sorted(self._may_end)}: {launcher}")
        return is_over

    def _watch(self, now: float) -> None:
        """Check that the job makes progress and that everything ends that must end."""
        self._wake(now)
        self._aftermath.watch()
        if (newest := self._job.newest_commit()) > self._commit:
            self._commit, self._alive_at = newest, now
            if self._next_strike == math.inf and newest >= self._begun_at + 2:  # the first commit only names the writer
                self._next_strike = now + self._rng.uniform(0.05, STRIKE_SECONDS_MAX)
        if now - self._alive_at > STILL_SECONDS_MAX:
            for words in (("status", "--bins"), ("explain",)):
                command = self._job.control(*words)
                command.process.wait()
                self._aftermath.log(command.said())
            raise Unexpected(f"no commit for {STILL_SECONDS_MAX:g} s")
