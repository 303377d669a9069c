"""A whole job in one thread: launcher, processes, workers, controller, clients, Spark query; dice, clock and network.

`SimulatedJob(seed, dataflow, files=…).run()` runs the code of a job as `megaflow run` does. Only the machines are
simulated: clock, connections, starts and ends of processes, the launcher's threads, and requests from outside. Among
the parts that can act, the dice choose one at a time. So a seed that fails fails again.

1. The job is real code: `WorkerProgram` with its sources, staging, outputs and agents, `Controller` and
   `ControllerDriver`, the engine with joins, leaves and hand-overs, the doors of a process, the transport above its
   sockets (`TcpAllocator`, `Peers`, frames), and in the launcher `Loop`, `Newcomers`, `Children`, `EpochMerge` and the
   output queue. `simulated_process` and `simulated_launch` describe what replaces the machine.
2. When a process is killed, some of its messages in flight are lost, and the others still arrive. The other processes
   notice the ends of their connections at different times. If the launcher ends, all its processes end, as real ones do
   with their lifelines.
3. The input files are real, and do not change.
4. After each step the controller checks itself. From time to time the job checks that no bin has two owners and that
   all staged records are accounted for. It raises Violation, with the seed, if a check fails or nothing can happen.
5. A job is endless if it makes no progress for `idle_actions_max` actions: it reads no line, puts out no record, moves
   no state and begins no change. Ticks of the clock and empty epochs are no progress. But a job may wait for a time of
   the clock: it *rests* if nothing is possible until the next tick. So actions count from the last rest on, and not
   while lines will be due later. A job that only waits is endless after `idle_seconds_max`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from megaflow.job.files.splits import plan_splits
from megaflow.job.launcher.inputs.launcher_input import JobInput, find_input
from megaflow.job.launcher.outputs.opened_output import Mode
from megaflow.job.launcher.outputs.output_file import TextWriter
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.spec import Address, ChildSpec, JobSpec, JoiningProcess, PickledFunction, Rehearsal, Rehearsed
from megaflow.job.worker.process.program_loading import App
from megaflow.job.worker.process.worker_program import WorkerProgram
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
"""Possible values of the seconds that one action takes at most; each run draws one."""
_LOOK_ACTIONS = 1_000
"""Number of actions between two looks whether the job has made progress."""
_CHECKED_SHARE = 0.05  # share of steps after which owners are checked: a check costs more than a step


class SimulatedJob:
    """One run of one job. Its lines come from exactly one of `files`, `job_input`, `pushed` and `batches`.

    `files` maps names to lines. `pushed` are lines that the launcher itself reads. `batches` come from a Spark query,
    each as a list of partitions. `job_input` describes files that exist. Each process has `workers` workers. `rate` is
    in lines per second of the simulated clock. With a `storage` the job is durable there. With `shrink` lost processes
    are not replaced.
    """

    idle_actions_max = 30_000  # without progress or rest
    idle_seconds_max = 600.0  # of the simulated clock, without progress
    actions_max = 500_000  # in all: a program may read or put out records without end
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
        self.processes: list[SimulatedProcess] = []  # all processes ever
        self.actions = 0
        self.actions_at_change = 0  # `actions_max` counts from here on
        self._reached: object = None  # by the last progress that was found
        self._progressed = 0, 0.0  # actions and clock seconds when it was found
        self._rested = 0  # actions when last nothing was possible
        self.killed: list[SimulatedProcess] = []
        self.killed_members: list[SimulatedProcess] = []  # killed processes that the launcher would miss
        self._clock, self._ports = 0.0, 5000
        self._pace = self.random.choice(_PACES)
        self._dataflow = dataflow
        self._files, self._pushed, self._batches, self._job_input = files, pushed, batches, job_input
        self.spec = JobSpec(PickledFunction(b"", (), "dataflow"), processes, workers, rate=rate, name="job")
        self.storage = storage
        if storage is not None:
            self.spec = replace(self.spec, state=STORE, checkpoint_every=storage.every_seconds, shrink=shrink)
        self.outside = Outside(self.random, self.now)
        self.refusals = self.outside.refusals  # of clients' requests
        self._planned: list[tuple[int, Callable[[], None]]] = []  # (number of actions, call)
        self._weights: dict[tuple[int, int], float] = {}  # (process, life) -> how eager
        self.launch: SimulatedLaunch

    # Called by a test

    def client(self, *scripts: Callable[[Talk], Waits], seconds: float = 0.0) -> None:
        """Add a client that follows scripts one after another, from this time on; refusals are noted."""
        self.outside.client(Talk(self), scripts, seconds)

    def at(self, action: int, do: Callable[[], None]) -> None:
        """Plan a call, such as `kill_one` or `stop`, for when this many actions were taken."""
        self._planned.append((action, do))
        self._planned.sort(key=lambda each: each[0])

    def kill_one(self) -> None:
        """Kill one running process."""
        running = [process for process in self.processes if process.exit_code is None]
        if running:
            self.kill(self.random.choice(running))

    def kill(self, process: SimulatedProcess) -> None:
        """Kill this process."""
        child = self.launch.children.at(process.address)
        self.killed.append(process)
        if child is not None and child.running:
            self.killed_members.append(process)
        process.kill()

    def kill_all(self) -> None:
        """Kill the launcher, and with it all processes."""
        self.launch.kill()

    def lose_power(self) -> None:
        """Kill everything; the disk loses what it may lose."""
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
        forms, durable = self.launch.output.forms, self.launch.attempts.begun.part
        self.start(ChildSpec(self.spec, "job", part, self.address(), -1, b"secret", outputs=forms, durable=durable))

    # The run

    def run(self) -> SimulatedLaunch:
        """Run to the end; return the launcher, with the outputs in `file.content` and a failure in `error`."""
        with self._input() as job_input:
            self.begin(job_input)
            while not self.launch.is_over:
                self.act()
        return self.launch

    def begin(self, job_input: JobInput) -> None:
        """Start the launcher and the founding processes."""
        self.launch = SimulatedLaunch(self, self.spec, job_input)
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
        """Take one action, or advance the clock."""
        self.actions += 1
        self._clock += self.random.random() * self._pace / (1 + self.wires.under_way / 8)  # ticks must not pile up
        while self._planned and self._planned[0][0] <= self.actions:
            self._planned.pop(0)[1]()
        if self.actions % _LOOK_ACTIONS == 0:
            self._check_progress()
        if self.actions - self.actions_at_change > self.actions_max or self._clock > self.seconds_max:
            raise self.violation(self._no_end)
        actions, weights = self._possible()
        if actions:
            with suppress(Crashed):  # the acting process has ended
                self.random.choices(actions, weights)[0]()
            if self.random.random() < _CHECKED_SHARE:
                self._check()
            return
        due = [time for time in self._due() if time is not None]
        if not due and self.launch.is_over:  # it was killed a moment ago
            return
        if not due:
            raise self.violation("nothing can happen any more, and the job has not ended")
        self._clock, self._rested = max(self._clock, min(due)), self.actions

    def reached(self) -> object:
        """Return a value that changes with each progress: lines read, records put out, bins moved, workers ended."""
        return [
            (program._worker.index, program._queue.lines_taken, program._output.records,
             [sink.rows for sink in program._sinks._sinks.values()],
             [view.owned() for view in program._worker.stateful])
            for program in self._running_programs()
        ]  # fmt: skip

    def awaits_lines(self) -> bool:
        """Return whether lines are left that will be due later."""
        queues = (program._queue for program in self._running_programs())
        return any(
            each._next and each._schedule is not None and each._schedule.due_at(each.lines_taken) > self._clock
            for each in queues
        )

    def _running_programs(self) -> Iterator[WorkerProgram]:
        for process in self.processes:
            yield from (life.program for life in process.lives.values() if life.program is not None)

    def _check_progress(self) -> None:
        """Raise Violation if the job makes no progress."""
        if self._reached != (reached := self.reached()):
            self._reached, self._progressed = reached, (self.actions, self._clock)
        actions, seconds = self._progressed
        is_busy = self.actions - max(actions, self._rested) > self.idle_actions_max and not self.awaits_lines()
        if is_busy or self._clock - seconds > self.idle_seconds_max:
            raise self.violation(
                f"{self._no_end}. In the last {self.actions - actions} actions and {self._clock - seconds:.0f} "
                "simulated seconds, no line was read, no record put out, no state moved and no change begun"
            )

    @property
    def _no_end(self) -> str:
        return f"no end after {self.actions} actions and {self._clock:.0f} simulated seconds"

    def _possible(self) -> tuple[list[Callable[[], None]], list[float]]:
        now = self._clock
        actions: list[Callable[[], None]] = []
        weights: list[float] = []
        for (_, lane), (link, eager) in sorted(self.wires.ready.items()):  # independent of any set's order
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
            program._coordinator.controller._check()

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
        """Return a Violation with this text and the running processes."""
        return Violation(f"seed {self.seed}: {what}; {self.running()}")

    def running(self) -> str:
        """Return a description of the running processes."""
        lives = [f"{process}: {sorted(process.lives)}" for process in self.processes if process.exit_code is None]
        return f"running processes: {'; '.join(lives) or 'none'}"

    # Surroundings of the job's parts

    def now(self) -> float:
        """Return the time, in seconds."""
        return self._clock

    @property
    def published(self) -> Address:
        """Address of the coordinator in the job's file."""
        return self.launch.address

    def address(self) -> Address:
        """Return an unused address."""
        self._ports += 1
        return "simulated", self._ports

    def start(self, spec: ChildSpec) -> SimulatedProcess:
        """Start a process. A founder then waits for `found`."""
        process = SimulatedProcess(self, spec)
        self.processes.append(process)
        if isinstance(spec.part, JoiningProcess):
            process.join()
        return process

    def program(self) -> App:
        """Return a new process's view of the program."""
        return GivenApp(self._dataflow)

    def writer(self, mode: Mode) -> Writer:
        """Open the output, a file of JSON lines."""
        if self.storage is not None:
            return self.storage.writer(self.launch.views[1], mode)
        writer = TextWriter(self.launch.file, "simulated")
        writer.form = "jsonl"
        return writer

    def rehearse(self, task: Rehearsal) -> Rehearsed:
        """Accept the program, which is always the same."""
        return Rehearsed()

    def built(self, process: SimulatedProcess, program: WorkerProgram) -> None:
        """Note that a worker of a process has built its part of the job."""

    def found(self, processes: Sequence[SimulatedProcess]) -> None:
        """Connect these processes to each other, then let them found the job."""
        for place, process in enumerate(processes):
            process.meet(processes[:place])
        for process in processes:
            process.found()

    def process_at(self, address: Address) -> SimulatedProcess | None:
        """Return the process that listens there; None if there is none."""
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

    def later(self, call: Callable[[], object], seconds: float, at_most: bool = True) -> None:
        """Call a function after this many seconds, or after a random time up to that if `at_most`."""
        self.outside.later(call, seconds, at_most)

    def ask(self, address: Address, body: Any) -> None:
        """Let a client send a request, whatever the answer."""
        self.client(lambda talk: talk.ask(body), seconds=self._clock)
