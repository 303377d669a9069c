"""Random schedules of control commands on a real job, whose outputs an oracle checks.

A schedule is drawn from a seed before it begins: the commands, their times, and which of them are killed, suspended or
interrupted. The workers that a command names depend on the members at that time. So a seed does not determine
everything, and a failure reports all actions.

In a careful schedule, commands follow one after the other, nothing disturbs them, and each must succeed and show its
effect. In the other schedules, a command may be refused, in one line, because another one is in its way.
"""

import random
import re
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from megaflow.control.client.planner import STRATEGIES
from megaflow.control.reports import JobStatus
from tests.attack.chains import BINS, Chain
from tests.attack.jobs import ENDINGS, KILLS, Job, kept_folder
from tests.attack.tally import COUNTS
from tests.cluster.processes import STATUS_SECONDS, Ended, Process

PROCESSES_MAX = 5  # of a job, as two cores bear
READING_SECONDS = 9.0  # of a job whose lines end by themselves
STEP_SECONDS = 6.0  # a command's average on a crowded machine, at most; other jobs have lines for this long per command

WEIGHTS = {
    "move": 6, "balance": 3, "drain": 3, "map": 2, "dry-run": 1, "add": 4, "remove": 4, "join": 2, "leave": 2,
    "status": 2, "explain": 1, "bootstrap": 1, "resume": 2, "recommend": 1, "freeze": 1, "wrong": 1,
}  # fmt: skip
FATES = {"": 12, "kill": 2, "suspend": 2, "interrupt": 1}
FATE_SIGNALS = {
    "": [],
    "kill": [(0.0, signal.SIGKILL)],
    "suspend": [(0.0, signal.SIGSTOP), (1.0, signal.SIGCONT)],
    "interrupt": [(0.0, signal.SIGINT)],
}

# Reasons to refuse a command although no other one is under way,
ALWAYS = r"no plan to resume|bootstrap itself|no load was measured|[Nn]o recommendation|is the only worker"
# because another command is under way,
BUSY = (
    r"carr\w+ (out )?a? ?plan|is being carried out|bins have moved since|the plan moves no bin|another one was begun|"
    r"(is|are) leaving|there is no (such )?worker|in the only process|gives bins to worker|no routing table|"
    r"giving worker|receiving the routing table|know the routing table|could read the lines|read the launcher's lines|"
    r"changes are already under way|(still )?owns|may own bins|is not complete|[Nn]o job answers"
)
# or because the job is ending.
OVER = (
    r"no job is running|there is no job named|has ended|job ended|a stop was requested|does not answer|is ending|"
    r"is stopping|[Nn]o job answers|the lines"
)

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """One command of a schedule: its kind, its time after the previous one, and its fate."""

    kind: str
    after: float  # seconds
    dice: tuple[float, ...]  # 0 <= each < 1, for choices that depend on the members
    fate: str = ""
    fate_after: float = 0.0  # seconds since its start

    @classmethod
    def draw(cls, rng: random.Random, careful: bool) -> "Step":
        [kind], [fate] = rng.choices(list(WEIGHTS), WEIGHTS.values()), rng.choices(list(FATES), FATES.values())
        dice = tuple(rng.random() for _ in range(6))
        after, fate_after = rng.choice([0.0, 0.0, 0.1, 0.4]), rng.uniform(0.0, 0.8)
        return cls(kind, after, dice, "" if careful else fate, fate_after)


class Command:
    """A command that was given."""

    def __init__(self, step: Step, words: tuple[str, ...], process: Process, before: JobStatus) -> None:
        self.step, self.words, self.process, self.before = step, words, process, before
        self.begun = time.monotonic()
        self.timers = [
            threading.Timer(step.fate_after + after, process.send_signal, (number,))
            for after, number in FATE_SIGNALS[step.fate]
        ]
        for timer in self.timers:
            timer.start()

    def __str__(self) -> str:
        return " ".join((*self.words, *filter(None, [self.step.fate])))


class Schedule:
    """One job and its commands."""

    def __init__(self, rng: random.Random, steps: int, ending: str | None = None) -> None:
        """Draw the whole schedule. `ending` is one of ENDINGS or KILLS; by default it is drawn from ENDINGS."""
        self.ending = rng.choice(ENDINGS) if ending is None else ending
        self.chain = Chain.draw(rng, READING_SECONDS if self.ending == "lines" else 30 + steps * STEP_SECONDS)
        self.at_a_time = rng.choice([0, 1, 2, 4])  # commands; 0: one, carefully
        self.careful = self.at_a_time == 0
        self.steps = [Step.draw(rng, self.careful) for _ in range(steps)]
        self.rng = rng
        self._commands: list[Command] = []  # those under way
        self._joined: list[Process] = []  # started by hand
        self._told_to_leave: set[int] = set()  # pids

    def play(self, folder: Path) -> None:
        """Run the job, attack it, end it, and check all promises."""
        self.folder = folder
        self.job = Job(folder, self.chain, self.ending)
        with ExitStack() as stack:
            stack.callback(self._let_go)
            try:
                self.job.await_status(lambda status: len(status.workers) == self.chain.processes * self.chain.workers)
                for step in self.steps:
                    time.sleep(step.after)
                    self._collect(max(self.at_a_time - 1, 0))
                    if not self.job.runs:
                        break
                    self._give(step)
                if self.careful:
                    self._collect(0)
                self.job.end(self.rng)
                self._collect(0)
                self._end_by_hand()
                self.job.check_left()
                self.job.check_outputs()
            except BaseException as error:
                error.add_note(self.story())
                raise

    def story(self) -> str:
        """Everything that was done and printed."""
        return "\n".join([
            f"{self.chain}, {self.at_a_time} at a time", f"folder: {self.folder}", *self.job.account,
            *(f"under way: {command} {command.process.errors}" for command in self._commands),
            "the job said:", *map(str.rstrip, self.job.run.said), *(f"by hand: {each.errors}" for each in self._joined),
        ])  # fmt: skip

    # Giving commands

    def _give(self, step: Step) -> None:
        status = self.job.status()
        if status is None or status.state not in ("starting", "running"):
            return
        match step.kind:
            case "freeze":
                self.job.freeze(pick(status.workers, step.dice[0]), 0.1 + 2 * step.dice[1])
            case "leave":
                self._leave(step)
            case "join":
                self._join(step, status)
            case _:
                words = words_of(step, status, self.chain.workers, self.folder)
                command = Command(step, words, self.job.run.megaflow("control", *words), status)
                self._commands.append(command)
                self.job.note(str(command))
                COUNTS["operations"] += 1

    def _join(self, step: Step, status: JobStatus) -> None:
        """Start a process by hand."""
        if len(status.workers) // self.chain.workers >= PROCESSES_MAX:
            return
        server = ("--server", str(pick(status.workers, step.dice[0]).id)) if step.dice[1] < 0.3 else ()
        late = ("--no-bootstrap",) if not (server or self.careful) and step.dice[2] < 0.2 else ()
        app = str(self.folder / "chained.py")
        words = ("run", app, "--join", status.job, *server, *late, "--", *self.chain.arguments)
        self.job.note(" ".join(words))
        process = self.job.run.megaflow(*words)
        self._joined.append(process)
        if self.careful:
            self.job.await_status(
                lambda status: process.poll() is not None
                or sum(each.pid == process.pid and each.state == "running" for each in status.workers)
                == self.chain.workers
            )
            assert process.poll() is None or self._may_be_over, process.errors
        COUNTS["joins by hand"] += 1

    def _leave(self, step: Step) -> None:
        """Send Ctrl-C to a process that was started by hand, but only once: twice would end the job."""
        here = [each for each in self._joined if each.poll() is None and each.pid not in self._told_to_leave]
        here = [each for each in here if any("of job" in line for line in each.errors)]  # else it is still starting
        if here:
            process = pick(here, step.dice[0])
            self.job.note(f"Ctrl-C at process {process.pid}")
            self._told_to_leave.add(process.pid)
            process.send_signal(signal.SIGINT)
            if self.careful:
                process.wait(STATUS_SECONDS)
            COUNTS["leaves by hand"] += 1

    # Their results

    @property
    def _may_be_over(self) -> bool:
        return self.ending == "lines" or self.job.is_ending

    def _collect(self, most: int) -> None:
        """Wait until at most `most` commands are under way; judge those that have ended."""
        deadline = time.monotonic() + STATUS_SECONDS
        while True:
            for command in [each for each in self._commands if each.process.poll() is not None]:
                ended = command.process.end()
                self._commands.remove(command)
                self._judge(command, ended)
            if len(self._commands) <= most:
                return
            assert time.monotonic() < deadline, f"{len(self._commands)} commands do not end"
            time.sleep(0.02)

    def _judge(self, command: Command, ended: Ended) -> None:
        """Fail unless a command did its task or gives a good reason why not."""
        said = ended.errors.splitlines()[-1:]
        self.job.note(f"  -> {command}: {ended.code} after {time.monotonic() - command.begun:.1f} s {said}")
        for timer in command.timers:
            timer.cancel()
        fate = command.step.fate
        if fate == "interrupt" and (ended.code == -signal.SIGINT or "KeyboardInterrupt" in ended.errors):
            return  # Python itself was still starting
        assert "Traceback" not in ended.errors, ended.errors
        if ended.code == 0:
            count(command.words, ended.output)
            if self.careful:
                self._check_effect(command)
            return
        if (fate == "kill" and ended.code == -signal.SIGKILL) or (fate == "interrupt" and ended.code == 130):
            return
        assert ended.code == 1 and said[0].startswith("megaflow: "), (str(command), ended)
        if command.step.kind == "wrong" or re.search(ALWAYS, said[0]):
            return
        if not self.careful and re.search(BUSY, said[0]):
            return
        assert re.search(OVER, said[0]), f"{command} was refused for no good reason: {said[0]}"
        assert self._may_be_over, f"the job goes on, but {command} was told: {said[0]}"

    def _check_effect(self, command: Command) -> None:
        """Fail unless the command had its effect on the job."""
        status = self.job.status()
        if status is None or status.state != "running":
            assert self._may_be_over
            return
        before, there = command.before, {each.id for each in status.workers}
        table = status.operators[0].table
        assert table is not None and len(table) == BINS and set(table) <= there
        match command.words:
            case ("move-bins", "--bins", bins, "--to", worker, *_):
                first, last = map(int, bins.split("-"))
                assert set(table[first : last + 1]) == {int(worker)}, (str(command), table)
            case ("move-bins", "--drain", worker, *_):
                assert int(worker) not in table, (str(command), table)
            case ("move-bins", "--map", path, *_):
                assert table == tuple(map(int, Path(path).read_text().split())), (str(command), table)
            case ("remove-workers", "--id", worker):
                assert int(worker) not in there and len(there) == len(before.workers) - self.chain.workers
            case ("add-workers", number, *_):
                assert len(there) == len(before.workers) + int(number) * self.chain.workers
            case ("move-bins", "--balance", *_) if not {"--dry-run", "load"}.intersection(command.words):
                shares = [table.count(worker) for worker in there]
                assert max(shares) - min(shares) <= 1, (str(command), table)

    def _end_by_hand(self) -> None:
        """Fail unless the processes that were started by hand ended as the job did."""
        for process in self._joined:
            ended = process.end()
            said = ended.errors.splitlines()[-1:]
            self.job.note(f"  -> process {process.pid} by hand: {ended.code} {said}")
            assert "Traceback" not in ended.errors, ended.errors
            if ended.code != 0:
                killed = self.ending in KILLS and ended.code in (1, -signal.SIGKILL)
                assert killed or (ended.code == 1 and re.search(f"{OVER}|{BUSY}", said[0])), ended

    def _let_go(self) -> None:
        """Kill everything that still runs."""
        with ExitStack() as stack:
            stack.callback(self.job.let_go)
            for process in (*self._joined, *(each.process for each in self._commands)):
                stack.callback(process.finish)


def words_of(step: Step, status: JobStatus, workers_of_a_process: int, folder: Path) -> tuple[str, ...]:
    """Return the command line for this step in the job's present state."""
    first, second, third, fourth, fifth, sixth = step.dice
    workers = [each.id for each in status.workers]
    routed = [each.id for each in status.workers if each.state == "running"] or workers
    worker, other = pick(routed, first), pick(routed, second)
    strategy = ["--strategy", pick(list(STRATEGIES), third)]
    strategy += ["--batch", str(1 + int(fourth * 8))] if "batched" in strategy else []
    strategy += ["--gap", "0.05"] if fifth < 0.1 else []
    processes = len(workers) // workers_of_a_process
    match step.kind:
        case "move":
            low, high = sorted((int(second * BINS), int(fourth * BINS)))
            return "move-bins", "--bins", f"{low}-{high}", "--to", str(worker), *strategy
        case "balance":
            return "move-bins", "--balance", *(["--by", "load"] if fourth < 0.3 else []), *strategy
        case "dry-run":
            return "move-bins", "--balance", "--dry-run"
        case "drain":
            return "move-bins", "--drain", str(worker), *strategy
        case "map":
            dice, path = random.Random(second), folder / f"map{second}"
            path.write_text(" ".join(str(dice.choice(routed)) for _ in range(BINS)))
            return "move-bins", "--map", str(path), *strategy
        case "remove" if processes > 1:
            return "remove-workers", "--id", str(worker)
        case "add" if processes < PROCESSES_MAX:
            return "add-workers", "2" if sixth < 0.2 else "1", *(["--balance"] if fourth < 0.5 else [])
        case "bootstrap":
            return "bootstrap", "--server", str(worker), "--worker", str(pick(workers, sixth))
        case "explain" | "resume":
            return (step.kind,)
        case "recommend":
            return "recommend", "--over", "0.3"
        case "wrong":
            return pick([("move-bins", "--bins", f"0-{BINS}", "--to", str(other)), ("remove-workers", "--id", "977"),
                         ("move-bins", "--drain", "977")], sixth)  # fmt: skip
    return "status", *pick([("--bins",), ("--json",), ()], sixth)


def count(words: tuple[str, ...], output: str) -> None:
    """Count a command's effects."""
    COUNTS["moves"] += sum(map(int, re.findall(r"moved (\d+) bins?", output)))
    COUNTS["joins"] += int(words[1]) if words[0] == "add-workers" else 0
    COUNTS["leaves"] += words[0] == "remove-workers"


def pick(choices: Sequence[T], dice: float) -> T:
    """Choose by a number that was drawn before the choices were known."""
    return choices[int(dice * len(choices))]


def play(rng: random.Random, steps: int, ending: str | None = None) -> None:
    """Play a schedule of `steps` commands in a new folder, which is kept if the attack finds something."""
    with kept_folder() as folder:
        Schedule(rng, steps, ending).play(folder)
    COUNTS["schedules"] += 1


def attack(rng: random.Random) -> None:
    """Play a schedule of any length."""
    play(rng, rng.choice([15, 30, 60]))


def attack_to_death(rng: random.Random) -> None:
    """Play a schedule in which a process is killed midway."""
    play(rng, rng.choice([3, 8, 15]), rng.choice(KILLS))
