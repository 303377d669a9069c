"""The launcher of a simulated job: the real `Supervision` and `Loop`, on a simulated machine.

The loop's children, newcomers, merge of outputs, window of pushed lines and verdict are real. The work of a thread
(writing, reading lines, connecting) is a call that the dice make. This module replaces the code of `launch` around the
loop.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from megaflow.control.messages import StopJob
from megaflow.errors import MegaflowError
from megaflow.job.job_file import Job
from megaflow.job.launcher.inputs.launcher_input import JobInput, Resumption
from megaflow.job.launcher.inputs.line_reader import LineReader
from megaflow.job.launcher.outputs.opened_output import Mode
from megaflow.job.launcher.outputs.output_queue import OutputQueue
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.children import Children
from megaflow.job.launcher.processes.drain_limit import DrainLimit
from megaflow.job.launcher.processes.stop_request import Stop
from megaflow.job.launcher.run.machine import JobParts, Machine
from megaflow.job.launcher.run.process_starter import draft_of
from megaflow.job.launcher.run.supervision import Supervision
from megaflow.job.launcher.store.resumption import resume
from megaflow.job.spec import Address, ChildSpec, Founder, JobSpec, JoiningProcess, Rehearsal, Rehearsed
from megaflow.spark.source import SparkFeed
from megaflow.testing.simulated_disk import Crashed, SimulatedFolder
from megaflow.testing.simulated_machine import (
    SimulatedChild,
    SimulatedFile,
    SimulatedPipe,
    SimulatedPopen,
    SimulatedSelector,
    SimulatedSignals,
    SimulatedWakeup,
)
from megaflow.testing.simulated_process import SimulatedProcess, World
from megaflow.testing.simulated_reader import SimulatedReader
from megaflow.testing.simulated_storage import SteppedStore

ASIDE_SECONDS = 0.05  # at most, for the work of a thread


class Surroundings(World, Protocol):
    """Surroundings of the launcher."""

    def start(self, spec: ChildSpec) -> SimulatedProcess:
        """Start a process."""

    def address(self) -> Address:
        """Return an unused address."""

    def found(self, processes: Sequence[SimulatedProcess]) -> None:
        """Connect these processes to each other, then let them found the job."""

    def ask(self, address: Address, body: Any) -> None:
        """Let a client send a request, whatever the answer."""

    def writer(self, mode: Mode) -> Writer:
        """Open the outputs."""

    def rehearse(self, task: Rehearsal) -> Rehearsed:
        """Return what the program reads. Raises StoreError if it cannot continue with the existing states."""


class SteppedQueue(OutputQueue):
    """Output queue that is stepped; it has no thread."""

    _has_failed = False

    def start(self, wake: Callable[[], object]) -> None:
        """Begin, without a thread."""
        self._wake = wake

    @property
    def has_work(self) -> bool:
        """Whether there is something to write or flush."""
        return not self._has_failed and (bool(self._epochs) or (self._is_finishing and not self.is_finished))

    def step(self) -> None:
        """Write one epoch, or flush; an error ends the writer."""
        try:
            try:
                self._write_next()
            except BaseException:
                self._has_failed = True
                self._writer.close()
                raise
        except Exception as error:
            self._error = error
            self._wake()

    def close(self) -> None:
        """Write what is left, and close the writer."""
        while self.has_work:
            self.step()
        if not self._has_failed:
            self._writer.close()
        self.check()


class SimulatedLaunch:
    """The launcher, from its start to its end. `error` is the error that `launch` would raise."""

    def __init__(self, world: Surroundings, spec: JobSpec, job_input: JobInput) -> None:
        self.error: MegaflowError | None = None
        self.is_over = self.is_killed = False
        self.due: float | None = None  # seconds of the clock
        self.reports: list[str] = []  # messages for the user
        self.file = SimulatedFile()  # output of a job without a store
        self.keeper: SteppedStore | None = None
        self.children = Children(is_durable=spec.state is not None)
        self._world = world
        self._spec = spec
        self._input = job_input
        self._pids = 100
        self._is_open = False
        self._settled: Sequence[Address] = ()
        self.views: list[SimulatedFolder] = []  # of the disks
        self._full_bytes = world.random.choice([200, 100_000_000])
        self.signals = SimulatedSignals()
        self.selectors: list[SimulatedSelector] = []  # the last is the present one

    @property
    def outcome(self) -> str:
        """End of the job: "killed", "failed", "stopped", "ended", or "over" if there was nothing to do."""
        if self.is_killed:
            return "killed"
        if self.error is not None:
            return "failed"
        if not self._is_open:
            return "over"
        stopped = self.signals.received if self.keeper is None else self.attempts.loop.summary.stopped_at is not None
        return "stopped" if stopped else "ended"

    @property
    def has_begun(self) -> bool:
        """Whether processes were started."""
        return self._is_open

    @property
    def address(self) -> Address:
        """Address of the coordinator in the job's file."""
        return self.attempts.loop.job.host, self.attempts.loop.job.port

    def begin(self) -> None:
        """Take over the store, if there is one; start the founding processes, and connect to them."""
        try:
            self._begin()
        except Crashed:
            self.kill()
        except MegaflowError as error:
            self.error = error
            self._end()

    def _begin(self) -> None:
        writer, begun = self._open()
        self.output = SteppedQueue(writer, self.reports.append, self._full_bytes)
        if begun.is_over:
            self.output.close()
            self._end()
            return
        addresses = tuple(self._world.address() for _ in range(self._spec.processes))
        starter: Any = self
        parts = JobParts(
            self.children, self.output, self.signals, self.reports.append, DrainLimit(b"secret", self.children),
            self.keeper, self._machine(),
        )  # fmt: skip
        job = Job(self._spec.name or "job", 1, None, *addresses[0], "secret")
        self.attempts = Supervision(self._spec, parts, starter, begun, job)
        self.attempts.begin(addresses)
        self._is_open = True
        self.due = self._world.now()
        self._waits = self.attempts.turns()

    def _open(self) -> tuple[Writer, Resumption]:
        """Open store and output, as `launch` does; return the writer, and the Resumption with which the job begins."""
        world, storage = self._world, self._world.storage
        if storage is None:
            return world.writer("new"), Resumption(self._input)
        self.views = [disk.open(self.kill) for disk in (storage.store, storage.output)]
        self.keeper = SteppedStore(storage, self._spec.app.name, self.views[0], world.now, world.random)
        kept = world.writer("new" if self.keeper.is_new else "resume")
        try:
            return kept, resume(self.keeper, self._spec, kept, self._input, self.reports.append, world.rehearse)
        except BaseException:
            kept.close()
            raise

    def can_go_on(self, now: float) -> bool:
        """Return whether the loop has something to do."""
        return not self.is_over and (self.selectors[-1].is_ready or (self.due is not None and self.due <= now))

    def step(self) -> None:
        """Advance the loop: handle what has arrived."""
        try:
            if self.is_killed:
                return
            seconds = next(self._waits)
            self.due = None if seconds is None else self._world.now() + max(0.0, seconds)
        except StopIteration:
            self._end()
        except MegaflowError as error:
            self.children.kill(self.children.all)
            self.error = error
            self._end()

    def stop(self) -> None:
        """Press Ctrl-C."""
        self.signals.handle(signal.SIGINT, None)

    def kill(self) -> None:
        """End the launcher at once. Its processes end with it, as their lifelines do."""
        for view in self.views:
            view.crashed = True
        for child in self.children.all:
            if child.process is not None:
                child.process.kill()
        self.is_over = self.is_killed = True

    def seek(self, begun: Resumption, again: Sequence[Address]) -> None:
        """Note the addresses. There is no search: a process may have any address."""
        self._settled = again

    def settled(self) -> Sequence[Address]:
        """Return the addresses of the processes to replace."""
        return self._settled

    def found(self, begun: Resumption, addresses: Sequence[Address]) -> None:
        """Start the founding processes."""
        founders = [Founder(number, tuple(addresses), begun.kept) for number in range(len(addresses))]
        self.children.all += [self._start(begun, founder, address) for founder, address in zip(founders, addresses)]
        self._world.found(self._world.processes[-len(founders) :])

    def _selector(self) -> SimulatedSelector:
        self.selectors.append(SimulatedSelector(self._world.random))
        return self.selectors[-1]

    def _end(self) -> None:
        """Do what `launch` does after the loop."""
        self.is_over = True
        self.children.kill(self.children.all)
        try:
            if self._is_open:
                self.attempts.close()
                self.output.close()
        except MegaflowError as error:
            self.error = self.error or error
        finally:
            if self.keeper is not None:
                self.keeper.close()

    def _machine(self) -> Machine:
        world = self._world

        def reader(source: Any, wake: Callable[[], None]) -> LineReader:
            return SimulatedReader(world, source, wake)

        def stop(secret: bytes, report: Callable[[str], None]) -> Stop:
            return ScriptedStop(world)

        def feed(
            lines: Any, coordinator: Address, secret: bytes, change: Callable[[], None], report: Any, job: str
        ) -> SparkFeed:  # fmt: skip
            made: SparkFeed = lines(coordinator, change)
            return made

        return Machine(
            world.now, world.now, self._selector, SimulatedWakeup, reader, stop, feed, self._by_hand,
            lambda name, call: world.later(call, ASIDE_SECONDS),
            lambda address: "" if world.process_at(address) else "nothing listens there", lambda job: None,
        )  # fmt: skip

    def _start(self, begun: Resumption, part: Founder | JoiningProcess, address: Address) -> SimulatedChild:
        draft = draft_of(self._spec, self._spec.name or "job", b"secret", self.output.forms, begun, part)
        spec = replace(draft, address=address, report_fd=-1)
        process = self._world.start(spec)
        if (stayed := self.children.take_staying(address)) is not None:
            before: Any = stayed.process
            process.follow(before.process)
        popen: Any = SimulatedPopen(process, self._pids)
        pipe: Any = SimulatedPipe(process)
        child = self._by_hand(address)
        child.process, child.pipe = popen, pipe
        self._pids += 1
        if isinstance(part, Founder):
            child.join(range(part.process * self._spec.workers, (part.process + 1) * self._spec.workers))
        return child

    def _by_hand(self, address: Address) -> SimulatedChild:
        child = SimulatedChild(address)
        child.dial = self._world.dial
        return child

    def start(
        self, begun: Resumption, count: int, contact: Address, other_code: bool, wake: Callable[[], None]
    ) -> AllStarted:
        """Start processes that join."""
        parts = [JoiningProcess(contact, other_code=other_code)] * count
        started: list[Child] = [self._start(begun, part, self._world.address()) for part in parts]
        self.children.all += started
        return AllStarted(started)


@dataclass
class AllStarted:
    """Joining processes that were started at once."""

    children: list[Child]
    left: int = 0

    def started(self) -> list[Child]:
        """Return all processes at the first call, then none."""
        children, self.children = self.children, []
        return children

    def cancel(self) -> int:
        """Give up those that are not started; return their number."""
        left, self.left = self.left, 0
        return left

    def waits_for(self) -> str:
        """Return "": nothing waits."""
        return ""


class ScriptedStop(Stop):
    """The launcher's own request to stop, made by a simulated client."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world

    def ask(self, addresses: Iterable[Address]) -> None:
        """Ask the first process."""
        self._world.ask(next(iter(addresses)), StopJob())

    def close(self) -> None:
        """Do nothing: no thread waits for the answer."""
