"""One life of the job of a simulated cluster: from a command to its end, a stop, or a crash."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from megaflow.control.messages import AddProcesses, Reconfigure
from megaflow.durable.store import FolderStore
from megaflow.errors import MegaflowError
from megaflow.job.launcher.epoch_merge import Writer
from megaflow.job.launcher.launcher_input import JobInput
from megaflow.job.launcher.output_file import Mode
from megaflow.job.launcher.several_outputs import together
from megaflow.job.spec import Rehearsal
from megaflow.job.worker.flow import App
from megaflow.job.worker.rehearsal import rehearse
from megaflow.job.worker.worker_program import WorkerProgram
from megaflow.megaphone.routing import Map, Move
from megaflow.testing.changes import Change, Crash, Join, Kill, Leave, MoveSome, Stop
from megaflow.testing.cluster_files import ClusterFiles
from megaflow.testing.cluster_plan import ClusterPlan, Planned
from megaflow.testing.copied_program import CopiedApp, CopiedProgram
from megaflow.testing.kept_records import KeptOutput, RecordWriter
from megaflow.testing.simulated_clients import Talk, Waits, balance, move, remove, status_of
from megaflow.testing.simulated_disk import Crashed
from megaflow.testing.simulated_job import SimulatedJob
from megaflow.testing.simulated_process import SimulatedProcess
from megaflow.testing.simulated_storage import JobStorage

_QUIET_SECONDS = 3.0  # without anything new, until a job whose files grow is stopped: files are looked for each second
_SECONDS = (0.0, 0.1, 0.3)  # that all lines take to come, by the simulated clock, if nothing is planned
_CHANGE_SECONDS = 0.15  # that they take for each change
_PACED_SECONDS = 0.5  # until it is looked again how many are left
_SLOW_SECONDS = 12.0  # that the rest would take, while a client's change is under way: it takes place among them


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """The parts that all lives of one run share."""

    began: float  # seconds of the clock
    program: CopiedProgram
    job_input: JobInput
    files: ClusterFiles
    outputs: Mapping[str, KeptOutput]
    plan: ClusterPlan
    storage: JobStorage | None
    settings: Mapping[str, Any]  # of the JobSpec


class ClusterJob(SimulatedJob):
    """A job that is changed as it was planned. `outcome` of `launch` says how its life ended."""

    def __init__(self, seed: int, run: ClusterRun, now: float, processes: int, workers: int) -> None:
        super().__init__(
            seed, lambda flow: None, processes=processes, workers=workers, storage=run.storage, job_input=run.job_input
        )
        self._run = run
        self._spec = replace(self._spec, **run.settings)
        if self._spec.rate is None and run.files.count:
            seconds = len(run.plan.left) * _CHANGE_SECONDS or self.random.choice(_SECONDS)
            self._spec = replace(self._spec, rate=run.files.count / seconds if seconds else None)
        self._is_slow, self._paced_at = False, now  # whether lines come slowly, and since when they come as they do
        self._clock = now
        self.actions_max += 100 * run.files.count
        if run.files.growth:
            self.actions_max += int(20_000 * run.files.growth[-1].seconds)
        self.seconds_max += now + (run.files.growth[-1].seconds if run.files.growth else 0.0)
        self._asked: list[Planned] = []  # what a client is to ask for
        self._talk = Talk(self)
        self._is_idle = True  # the client
        self._changed = now, 0  # seconds of the clock when a record was read last, and how many were by then
        self.outside.add(self._steer(), None, lambda: self._talk.is_ready or (self._is_idle and bool(self._asked)))

    # What is around the parts of the job

    def program(self) -> App:
        """Return a process's own copy of the program."""
        return CopiedApp(self._run.program)

    def writer(self, mode: Mode) -> Writer:
        """Open the outputs."""
        return together({name: RecordWriter(output, name) for name, output in self._run.outputs.items()})

    def rehearse(self, task: Rehearsal) -> Collection[str]:
        """Build the program, to see whether it can go on with the states that are there."""
        assert self.storage is not None, "something is resumed"
        found = rehearse(task, self.program(), FolderStore(self.storage.store.open()))
        if isinstance(found, MegaflowError):
            raise found
        return found

    def built(self, process: SimulatedProcess, program: WorkerProgram) -> None:
        """See to it that something can happen where a sink prepares or commits."""
        self._set_pace(program)
        for view in program._worker.stateful:
            view.store.in_order = partial(sorted, key=repr)  # not as the hashes of this Python process have it
        for sink in program._sinks._sinks.values():
            for what, call in (("prepare", sink._prepare), ("commit", sink._commit)):
                setattr(sink, f"_{what}", partial(self._at_sink, process, what, sink, call))

    def _at_sink(self, process: SimulatedProcess, what: str, sink: Any, call: Callable[..., None], *args: Any) -> None:
        is_some = what == "commit" or sink.rows
        planned = self._run.plan.due_at_sink(what, sink.name, self.records, self._seconds) if is_some else None
        if planned is None:
            return call(*args)
        if self.random.random() < 0.5:  # else just before
            call(*args)
        self._carry_out(planned, process)
        if process.exit_code is not None:
            raise Crashed
        return None

    # The run

    @property
    def records(self) -> int:
        """The number of records read in this life, including those that are read again."""
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
        is_slow = bool(self._asked) or not self._is_idle
        if self._is_slow != is_slow or (is_slow and self._clock > self._paced_at + _PACED_SECONDS):
            self._is_slow, self._paced_at = is_slow, self._clock
            for program in (program for each in self.processes for program in each.programs.values()):
                self._set_pace(program)
        if not self.launch.is_over:
            super().act()
        if run.files.follows and self._is_quiet():
            self.stop()

    def _due(self) -> Iterator[float | None]:
        yield from super()._due()
        run = self._run
        yield from (run.began + seconds for seconds in run.plan.next_seconds(self._seconds))
        yield from (run.began + each.seconds for each in run.files.growth[:1])

    def _set_pace(self, program: WorkerProgram) -> None:
        if (rate := self._spec.rate) is not None:
            left = max(1, self._run.files.count - self._run.plan.records - self.records)
            program._queue.rate = min(rate, left / _SLOW_SECONDS) if self._is_slow else rate
            program._queue._scheduled = 0.0  # it follows the new one from now on

    def _is_quiet(self) -> bool:
        """Tell whether nothing more comes from files that grow."""
        seconds, count = self._changed
        if self._run.files.growth or self.records != count:
            self._changed = self._clock, self.records
            return False
        return self._clock - seconds > _QUIET_SECONDS

    # What happens

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
                self._asked.append(planned)

    crash: Crash | None = None  # that has ended this life
    stopping: Stop | None = None

    def _steer(self) -> Waits:
        plan = self._run.plan
        while True:
            self._is_idle = True
            while not self._asked:
                yield None
            self._is_idle = False
            planned = self._asked.pop(0)
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
        case Move() | Map():
            yield from talk.ask(Reconfigure((do,)))
