"""A whole job in one thread: launcher, processes, workers, controller, clients, Spark query; dice, clock and network.

`SimulatedJob(seed, dataflow, files=…).run()` runs the code of a job as `megaflow run` does. Simulated are the machines:
clock, connections, starts and ends of processes, the threads of the launcher, and what is asked from outside. Whoever
can do something does it when the dice say so, one after the other, so a seed that fails fails again.

1. What runs is the real code: `WorkerProgram` with its sources, staging, outputs and agents, `Controller` and
   `ControllerDriver`, the engine with joins, leaves and hand-overs, the doors of a process, the transport above its
   sockets (`TcpAllocator`, `Peers`, frames), and in the launcher `Loop`, `Newcomers`, `Children`, `EpochMerge` and the
   queue of outputs. See `simulated_process` and `simulated_launch` for what they are given in place of the machine.
2. A process that is killed leaves some of what it has sent, and all others notice the ends of their connections at
   different times. With the launcher all its processes end, as their lifelines do.
3. The files that are read are real ones, which nobody changes.
4. After each step the controller checks itself, and now and then it is checked that no bin has two owners and that
   what is staged is accounted for. Raises Violation, which names the seed, also if nothing can happen any more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from megaflow.job.launcher.epoch_merge import Writer
from megaflow.job.launcher.launcher_input import JobInput, find_input
from megaflow.job.launcher.output_file import Mode, TextWriter
from megaflow.job.spec import Address, ChildSpec, JobSpec, JoiningProcess, PickledFunction, Rehearsal
from megaflow.job.splits import plan_splits
from megaflow.job.worker.flow import App
from megaflow.job.worker.worker_program import WorkerProgram
from megaflow.testing.monitor import Violation
from megaflow.testing.simulated_clients import SimulatedQuery, Talk, Waits
from megaflow.testing.simulated_disk import Crashed
from megaflow.testing.simulated_launch import SimulatedLaunch
from megaflow.testing.simulated_life import GivenApp
from megaflow.testing.simulated_links import SimulatedClient, Wires
from megaflow.testing.simulated_outside import Outside
from megaflow.testing.simulated_process import SimulatedProcess
from megaflow.testing.simulated_storage import STORE, JobStorage

_PACES = (0.0001, 0.001, 0.003)
"""Seconds that an action takes at most; a run draws which."""
_CHECKED_SHARE = 0.05  # how often what belongs to whom is checked: it costs more than a step


class SimulatedJob:
    """One run of one job. `lines` come from exactly one of `files`, `job_input`, `pushed` and `batches`.

    `files` is name -> lines, `pushed` what the launcher reads itself, `batches` those of a Spark query: lists of
    partitions, `job_input` those of files that are there. Each process has `workers` workers. `rate` is in lines
    per second of the simulated clock. With a `storage` it is durable there; with `shrink` nobody replaces a lost one.
    """

    actions_max = 30_000  # ten times what the longest take
    seconds_max = 3_600.0  # of the simulated clock

    def __init__(
        self,
        seed: int,
        dataflow: Callable[[Any], Any],
        *,
        processes: int = 2,
        workers: int = 1,
        files: Mapping[str, Sequence[str]] | None = None,
        pushed: Sequence[str] | None = None,
        batches: Sequence[Sequence[Sequence[str]]] | None = None,
        rate: float | None = None,
        storage: JobStorage | None = None,
        shrink: bool = False,
        job_input: JobInput | None = None,
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.wires = Wires(self.random)
        self.processes: list[SimulatedProcess] = []  # all that ever were
        self.actions = 0
        self.killed: list[SimulatedProcess] = []
        self.killed_members: list[SimulatedProcess] = []  # those that the launcher would miss
        self._clock, self._ports = 0.0, 5000
        self._pace = self.random.choice(_PACES)
        self._dataflow = dataflow
        self._files, self._pushed, self._batches, self._job_input = files, pushed, batches, job_input
        self._spec = JobSpec(PickledFunction(b"", (), "dataflow"), processes, workers, rate=rate, name="job")
        self.storage = storage
        if storage is not None:
            self._spec = replace(self._spec, state=STORE, checkpoint_every=storage.every_seconds, shrink=shrink)
        self.outside = Outside(self.random, self.now)
        self.refusals = self.outside.refusals  # of what clients have asked for
        self._planned: list[tuple[int, Callable[[], None]]] = []  # (actions, what is done then)
        self._weights: dict[tuple[int, int], float] = {}  # life of a process -> how eager
        self.launch: SimulatedLaunch

    # What a test plans

    def client(self, *scripts: Callable[[Talk], Waits], seconds: float = 0.0) -> None:
        """Have a client follow scripts, one after the other, some seconds after the job's begin; refusals are noted."""
        self.outside.client(Talk(self), scripts, seconds)

    def at(self, action: int, do: Callable[[], None]) -> None:
        """Do something, like `kill_one` and `stop`, once so many actions were taken."""
        self._planned.append((action, do))
        self._planned.sort(key=lambda each: each[0])

    def kill_one(self) -> None:
        """Kill one of the processes that run."""
        running = [process for process in self.processes if process.exit_code is None]
        if running:
            self.kill(self.random.choice(running))

    def kill(self, process: SimulatedProcess) -> None:
        """Kill this one."""
        child = self.launch.children.at(process.address)
        self.killed.append(process)
        if child is not None and child.running:
            self.killed_members.append(process)
        process.kill()

    def kill_all(self) -> None:
        """Kill the launcher, and with it all."""
        self.launch.kill()

    def lose_power(self) -> None:
        """Kill all; the disk loses what it may lose."""
        assert self.storage is not None
        self.kill_all()
        self.storage.lose_power()

    def stop(self) -> None:
        """Press Ctrl-C once."""
        if not self.launch.signals.received:
            self.launch.stop()

    def join_by_hand(self) -> None:
        """Start a process as `megaflow run --join` does."""
        part = JoiningProcess(self.published, wishes=True)
        forms, durable = self.launch.output.forms, self.launch.lives.begun.part
        self.start(ChildSpec(self._spec, "job", part, self.address(), -1, b"secret", outputs=forms, durable=durable))

    # The run

    def run(self) -> SimulatedLaunch:
        """Run to the end; return the launcher, with the outputs in `file.content` and what failed in `error`."""
        with self._input() as job_input:
            self.begin(job_input)
            while not self.launch.is_over:
                self.act()
        return self.launch

    def begin(self, job_input: JobInput) -> None:
        """Start the launcher, and the processes that found the job."""
        self.launch = SimulatedLaunch(self, self._spec, job_input)
        self.launch.begin()

    @contextmanager
    def _input(self) -> Iterator[JobInput]:
        if self._batches is not None:
            yield JobInput(spark=self._query)
        elif self._job_input is not None:
            yield self._job_input
        elif self._pushed is not None:
            yield find_input(self._pushed, 1, "replace")
        else:
            with tempfile.TemporaryDirectory(prefix="megaflow-simulated-") as folder:
                for name, lines in (self._files or {}).items():
                    Path(folder, name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
                yield JobInput(splits=tuple(plan_splits(str(Path(folder, name)) for name in self._files or ())))

    def _query(self, coordinator: Address, change: Callable[[], None]) -> SimulatedQuery:
        query = SimulatedQuery(self, self._batches or (), change)
        self.outside.add(query.waits, self._clock, lambda: query.is_ready)
        return query

    def act(self) -> None:
        """Have somebody do something."""
        self.actions += 1
        self._clock += self.random.random() * self._pace / (1 + self.wires.under_way / 8)  # ticks are not to pile up
        while self._planned and self._planned[0][0] <= self.actions:
            self._planned.pop(0)[1]()
        if self.actions > self.actions_max or self._clock > self.seconds_max:
            raise self.violation(f"no end after {self.actions} actions and {self._clock:.0f} simulated seconds")
        actions, weights = self._possible()
        if actions:
            with suppress(Crashed):  # whoever has done it has ended
                self.random.choices(actions, weights)[0]()
            if self.random.random() < _CHECKED_SHARE:
                self._check()
            return
        due = [time for time in self._due() if time is not None]
        if not due and self.launch.is_over:  # it was killed a moment ago
            return
        if not due:
            raise self.violation("nothing can happen any more, and the job has not ended")
        self._clock = max(self._clock, min(due))

    def _possible(self) -> tuple[list[Callable[[], None]], list[float]]:
        now = self._clock
        actions: list[Callable[[], None]] = []
        weights: list[float] = []
        for (_, lane), (link, eager) in sorted(self.wires.ready.items()):  # not in an order that a set may decide
            actions.append(partial(link.deliver, lane))
            weights.append(eager)
        for number, process in enumerate(self.processes):
            for index, life in process.lives.items():
                if life.can_go_on(now, process.inbox(index)):
                    actions.append(partial(self._step, process, index))
                    weights.append(self._weight(number, index))
        launch = self.launch
        if launch.can_go_on(now):
            actions.append(launch.step)
            weights.append(self._weight(-1, 0))
        if launch.output.has_work:
            actions.append(launch.output.step)
            weights.append(self._weight(-1, 1))
        if launch.keeper is not None and launch.keeper.can_go_on(now):
            actions.append(launch.keeper.step)
            weights.append(self._weight(-1, 2))
        for go_on in self.outside.possible(now):
            actions.append(go_on)
            weights.append(0.5)
        return actions, weights

    def _weight(self, process: int, life: int) -> float:
        if (process, life) not in self._weights:
            self._weights[process, life] = self.random.random() ** 2 + 0.02
        return self._weights[process, life]

    def _due(self) -> Iterator[float | None]:
        for process in self.processes:
            for life in process.lives.values():
                yield life.due_at(self._clock)
        yield self.launch.due
        if self.launch.keeper is not None:
            yield self.launch.keeper.due
        yield from self.outside.due()

    def _step(self, process: SimulatedProcess, index: int) -> None:
        process.step(index)
        program = process.programs.get(index)
        if program is not None and program._coordinator is not None:
            program._coordinator._controller._check()

    def _check(self) -> None:
        owners: dict[tuple[int, int], int] = {}
        for process in self.processes:
            for worker in process.workers:
                for place, view in enumerate(worker.stateful):
                    for bin in view.owned():
                        other = owners.setdefault((place, bin), worker.index)
                        if other != worker.index:
                            raise self.violation(f"bin {bin} of {view.name!r} is owned by {other} and {worker.index}")
            for program in process.programs.values():
                program._queue.staging._check()

    def violation(self, what: str) -> Violation:
        """Return the error that says so, with what is left."""
        lives = [f"{process}: {sorted(process.lives)}" for process in self.processes if process.exit_code is None]
        return Violation(f"seed {self.seed}: {what}; running processes: {'; '.join(lives) or 'none'}")

    # What the parts of the job ask of their surroundings

    def now(self) -> float:
        """Return the time, in seconds."""
        return self._clock

    @property
    def published(self) -> Address:
        """Where the job's file says that the coordinator is."""
        return self.launch.address

    def address(self) -> Address:
        """Return one that nobody has."""
        self._ports += 1
        return "simulated", self._ports

    def start(self, spec: ChildSpec) -> SimulatedProcess:
        """Start a process; those that found the job wait for `found`."""
        process = SimulatedProcess(self, spec)
        self.processes.append(process)
        if isinstance(spec.part, JoiningProcess):
            process.join()
        return process

    def program(self) -> App:
        """Return what a new process has of the program."""
        return GivenApp(self._dataflow)

    def writer(self, mode: Mode) -> Writer:
        """Open the output, a file of JSON lines."""
        if self.storage is not None:
            return self.storage.writer(self.launch.views[1], mode)
        writer = TextWriter(self.launch.file, "simulated")
        writer.form = "jsonl"
        return writer

    def rehearse(self, task: Rehearsal) -> Collection[str]:
        """Have nothing against the program, which is always the same."""
        return ()

    def built(self, process: SimulatedProcess, program: WorkerProgram) -> None:
        """Learn that a worker of a process has built its part of the job."""

    def found(self, processes: Sequence[SimulatedProcess]) -> None:
        """Have these found a job, once all have met."""
        for place, process in enumerate(processes):
            process.meet(processes[:place])
        for process in processes:
            process.found()

    def process_at(self, address: Address) -> SimulatedProcess | None:
        """Return the process that listens there, if one does."""
        found = (process for process in self.processes if process.address == address and process.exit_code is None)
        return next(found, None)

    def dial(self, address: Address, role: str, hello: dict[str, Any]) -> SimulatedClient:
        """Connect to a process. Raises OSError if none listens there, ConfigMismatch if it refuses."""
        process = self.process_at(address)
        if process is None:
            raise ConnectionRefusedError(f"nothing listens at {address}")
        here, there = self.wires.connect("a client", f"{address[0]}:{address[1]}")
        client = SimulatedClient(here)
        try:
            process.admit(there, role, hello)
        except BaseException:
            there.leave()
            raise
        return client

    def later(self, call: Callable[[], None], seconds: float, at_most: bool = True) -> None:
        """Have something done after so many seconds, or `at_most` so many."""
        self.outside.later(call, seconds, at_most)

    def ask(self, address: Address, body: Any) -> None:
        """Have a client ask for something, whatever the answer."""
        self.client(lambda talk: talk.ask(body), seconds=self._clock)
