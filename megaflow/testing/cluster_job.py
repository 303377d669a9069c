"""One attempt of a simulated cluster's job: from a command to the job's end, a stop, or a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from megaflow.control.messages import AddProcesses, Reconfigure
from megaflow.durable.store import Store
from megaflow.errors import MegaflowError
from megaflow.job.launcher.inputs.launcher_input import JobInput
from megaflow.job.launcher.outputs.opened_output import Mode
from megaflow.job.launcher.outputs.several_outputs import together
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.spec import Rehearsal, Rehearsed
from megaflow.job.worker.process.program_loading import App
from megaflow.job.worker.process.rehearsal import rehearse
from megaflow.job.worker.process.worker_program import WorkerProgram
from megaflow.megaphone.base.routing import Map, Move
from megaflow.testing.changes import Change, Crash, Join, Kill, Leave, MoveSome, Stop
from megaflow.testing.cluster_files import ClusterFiles
from megaflow.testing.cluster_pace import SLOW_SECONDS, GroupedSchedule, seconds_for
from megaflow.testing.cluster_plan import ClusterPlan, Planned
from megaflow.testing.copied_program import CopiedApp, CopiedProgram
from megaflow.testing.kept_records import KeptOutput, RecordWriter
from megaflow.testing.monitor import Violation, describe_pointstamps
from megaflow.testing.simulated_clients import Talk, Waits, balance, move, remove, status_of
from megaflow.testing.simulated_disk import Crashed
from megaflow.testing.simulated_job import SimulatedJob
from megaflow.testing.simulated_process import SimulatedProcess
from megaflow.testing.simulated_storage import JobStorage

_QUIET_SECONDS = 3.0  # without news, until a job whose files grow is stopped: it looks for files once a second
_PACED_SECONDS = 0.5  # between two looks at how many lines are left
_PACE_SECONDS = 0.006  # that one action takes at most, times workers; else ticks of the clock come without a pause
_SHOWN_MAX = 1_000  # characters shown of a dataflow's pointstamps


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """The parts that all attempts of one run share."""

    seed: int  # of the cluster
    began: float  # seconds of the clock
    program: CopiedProgram
    job_input: JobInput
    files: ClusterFiles
    items: int  # how many there are, of inputs whose length is known
    outputs: Mapping[str, KeptOutput]
    plan: ClusterPlan
    storage: JobStorage | None
    settings: Mapping[str, Any]  # of the JobSpec


class ClusterJob(SimulatedJob):
    """Job with planned changes. `launch.outcome` tells how its attempt ended.

    A change that moves bins takes up to hundreds of steps, each hundreds of actions. So `actions_max` starts anew with
    each request that the job has carried out, and with each kill, crash and stop. These are finite in number.
    """

    def __init__(self, attempt: int, run: ClusterRun, now: float, processes: int, workers: int) -> None:
        super().__init__(
            run.seed * 1000 + attempt, lambda flow: None, processes=processes, workers=workers, storage=run.storage,
            job_input=run.job_input,
        )  # fmt: skip
        self._attempt = attempt
        self._run = run
        self.spec = replace(self.spec, **run.settings)
        if self.spec.rate is None and run.files.count:
            seconds = seconds_for(len(run.plan.left), self.random)
            self.spec = replace(self.spec, rate=run.files.count / seconds if seconds else None)
        self._is_slow, self._paced_at = False, now  # whether lines come slowly, and since when they have this pace
        self._clock = now
        lasts = run.files.growth[-1].seconds if run.files.growth else 0.0  # until the last line is due
        lasts += run.files.count / rate if (rate := run.settings["rate"]) is not None else 0.0
        self.actions_max += 100 * (run.files.count + run.items) + int(20_000 * lasts)
        self.idle_seconds_max += lasts
        self.seconds_max += now + lasts
        self._talk = Talk(self)
        self._progress = 0  # requests carried out, and changes that happened
        self._changed = now, 0  # clock seconds of the last read record, and the count by then
        plan = run.plan
        self.outside.add(self._steer(), None, lambda: self._talk.is_ready or (plan.begun is None and bool(plan.asked)))

    # The job's surroundings

    def program(self) -> App:
        """Return a process's own copy of the program."""
        return CopiedApp(self._run.program)

    def writer(self, mode: Mode) -> Writer:
        """Open the outputs."""
        return together({name: RecordWriter(output, name) for name, output in self._run.outputs.items()})

    def rehearse(self, task: Rehearsal) -> Rehearsed:
        """Build the program, to check whether it can continue with the existing states."""
        assert self.storage is not None, "something is resumed"
        found = rehearse(task, self.program(), Store(self.storage.store.open()))
        if isinstance(found, MegaflowError):
            raise found
        return found

    def built(self, process: SimulatedProcess, program: WorkerProgram) -> None:
        """Make changes possible where a sink prepares or commits."""
        workers = sum(len(each.programs) for each in self.processes if each.exit_code is None)
        self._pace = min(self._pace, _PACE_SECONDS / workers)
        if self._run.settings["rate"] is None and (rate := self.spec.rate) is not None:
            queue = program._queue
            dice, lines = Random(f"pace {self.seed} {program._worker.index}"), self._run.files.count // workers
            queue._schedule = GroupedSchedule(rate * queue.share, self._clock, dice, lines)
        self._set_pace(program)
        for view in program._worker.stateful:
            view.store.in_order = partial(sorted, key=repr)  # independent of this Python process's hashes
        for sink in program._sinks._sinks.values():
            for what, call in (("prepare", sink._prepare), ("commit", sink._commit)):
                setattr(sink, f"_{what}", partial(self._at_sink, process, what, sink, call))

    def _at_sink(self, process: SimulatedProcess, what: str, sink: Any, call: Callable[..., None], *args: Any) -> None:
        is_some = what == "commit" or sink.rows
        planned = self._run.plan.due_at_sink(what, sink.name, self.records, self._seconds) if is_some else None
        if planned is None:
            return call(*args)
        if self.random.random() < 0.5:  # otherwise just before
            call(*args)
        self._carry_out(planned, process)
        if process.exit_code is not None:
            raise Crashed
        return None

    # The run

    @property
    def records(self) -> int:
        """Number of lines, items and records of own sources read in this attempt, including those read again."""
        return sum(program._queue.lines_taken for each in self.processes for program in each.programs.values())

    @property
    def _seconds(self) -> float:
        return self._clock - self._run.began

    def act(self) -> None:
        """Carry out the changes that are due, then take one step of the job."""
        run = self._run
        run.files.grow(self._seconds)
        for planned in run.plan.due(self.records, self._seconds):
            self._carry_out(planned)
        if self._progress != (progress := self._talk.answered + len(run.plan.said)):
            self._progress, self.actions_at_change = progress, self.actions
        is_slow = bool(run.plan.asked) or run.plan.begun is not None
        if self._is_slow != is_slow or (is_slow and self._clock > self._paced_at + _PACED_SECONDS):
            self._is_slow, self._paced_at = is_slow, self._clock
            for program in (program for each in self.processes for program in each.programs.values()):
                self._set_pace(program)
        if not self.launch.is_over:
            super().act()
        if run.files.follows and self._is_quiet():
            self.stop()

    def violation(self, what: str) -> Violation:
        """Return a Violation with this text, the cluster's seed, and what is outstanding."""
        workers = [worker for process in self.processes if process.exit_code is None for worker in process.workers]
        held = [
            f"worker {worker.index} knows these pointstamps: {describe_pointstamps(graph)[:_SHOWN_MAX] or 'none'}"
            for worker in workers[:1]  # all workers know the same, apart from messages under way
            for graph in worker.graphs()
        ]
        attempt = f", attempt {self._attempt}" if self._attempt > 1 else ""
        plan = self._run.plan
        read = f"lines or records read: {plan.records + self.records}"
        found = [what, read, plan.outstanding(), self.running(), *held]
        return Violation(
            f"seed {self._run.seed}{attempt}: {'; '.join(filter(None, found))}. Check that each source and each chain "
            "of timers of the program comes to an end; if so, report the program and the seed as a fault of megaflow."
        )

    def _due(self) -> Iterator[float | None]:
        yield from super()._due()
        run = self._run
        yield from (run.began + seconds for seconds in run.plan.next_seconds(self._seconds))
        yield from (run.began + each.seconds for each in run.files.growth[:1])

    def _set_pace(self, program: WorkerProgram) -> None:
        if (rate := self.spec.rate) is not None:
            left = max(1, self._run.files.count - self._run.plan.records - self.records)
            program._queue.rate = min(rate, left / SLOW_SECONDS) if self._is_slow else rate
            program._queue._scheduled = 0.0  # it follows the new rate from now on

    def _is_quiet(self) -> bool:
        """Return whether growing files have brought nothing new for a while."""
        seconds, count = self._changed
        if self._run.files.growth or self.records != count:
            self._changed = self._clock, self.records
            return False
        return self._clock - seconds > _QUIET_SECONDS

    def reached(self) -> object:
        """Return a value that changes with each progress, also of changes."""
        plan = self._run.plan
        return super().reached(), self._progress, len(plan.left), len(plan.asked), plan.begun, len(plan.refusals)

    def awaits_lines(self) -> bool:
        """Return whether lines are left that will come or be due later."""
        return bool(self._run.files.growth) or super().awaits_lines()

    # Changes

    def _carry_out(self, planned: Planned, process: SimulatedProcess | None = None) -> None:
        plan = self._run.plan
        match planned.do:
            case Kill(worker):
                running = [each for each in self.processes if each.exit_code is None and each.programs]
                of_worker = [each for each in running if worker is None or worker in each.programs]
                of_worker = of_worker if process is None or worker is not None else [process]
                if not of_worker:
                    plan.refusals.append(f"{planned}: there is no worker {worker}")
                    return
                killed = self.random.choice(of_worker)
                plan.says(f"{planned}: workers {sorted(killed.programs)} died", self._seconds)
                self.kill(killed)
            case Crash():
                plan.says(f"{planned}", self._seconds)
                self.crash = planned.do
                self.kill_all()
            case Stop():
                plan.says(f"{planned}", self._seconds)
                self.stopping = planned.do
                self.stop()
            case _:
                plan.asked.append(planned)

    crash: Crash | None = None  # ended this attempt
    stopping: Stop | None = None

    def _steer(self) -> Waits:
        plan = self._run.plan
        while True:
            plan.begun = None
            while not plan.asked:
                yield None
            planned = plan.begun = plan.asked.pop(0)
            try:
                yield from change(self._talk, planned.do)
                plan.says(f"{planned}: done", self._seconds)
            except MegaflowError as error:
                plan.refusals.append(f"{planned}: {error}")


def change(talk: Talk, do: Change) -> Waits:
    """Ask the coordinator for a change, as `megaflow control` does."""
    match do:
        case Join():
            yield from talk.ask(AddProcesses(1))
            if (yield from status_of(talk)).operators:
                yield from balance(talk)
        case Leave(worker):
            if worker is None:
                worker = max(each.id for each in (yield from status_of(talk)).workers)
            yield from remove(talk, worker, talk.world.random.choice(["all-at-once", "optimized"]))
        case MoveSome():
            yield from move(talk)
        case Map(workers):
            yield from talk.ask(Reconfigure((Map(tuple(workers)),)))
        case Move():
            yield from talk.ask(Reconfigure((do,)))
