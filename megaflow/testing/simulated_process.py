"""A worker process of a simulated job: the code of a real one, without its threads and sockets.

The workers, their part of the job (`WorkerProgram`), the doors of the process and its end of the transport are real.
Where a real process waits, a `Life` yields: it is a generator of waits. The simulation steps it when something has
arrived for it, or its time has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Protocol

from megaflow.durable.restored import StateDescriptor
from megaflow.durable.store import Store
from megaflow.errors import ConfigMismatch, JoinDenied, MegaflowError, PeerFailed, PeerLost
from megaflow.job.exit_report import ExitReport
from megaflow.job.spec import Address, ChildSpec, Founder, JoiningProcess
from megaflow.job.worker.process.program_loading import App
from megaflow.job.worker.process.worker_program import WorkerProgram
from megaflow.megaphone.snapshot.retained_bins import RetainedBins
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.testing.monitor import Violation
from megaflow.testing.simulated_disk import Crashed
from megaflow.testing.simulated_fabric import SimulatedFabric
from megaflow.testing.simulated_life import Life, ReportingProcess, run_beside
from megaflow.testing.simulated_links import SimulatedClient, SimulatedLink, Wires
from megaflow.testing.simulated_storage import JobStorage, check_remembered
from megaflow.timely.communication.address import address_text
from megaflow.timely.communication.allocator import FailureReport
from megaflow.timely.communication.local import Inbox
from megaflow.timely.communication.rendezvous import PEER_ROLE, PeerAddress, Rendezvous
from megaflow.timely.communication.tcp_allocator import TcpAllocator
from megaflow.timely.communication.tcp_fabric import JOIN_ROLE
from megaflow.timely.membership import Membership, founding
from megaflow.timely.rescale.join_door import JoinDoor
from megaflow.timely.rescale.messages import Admission, Denied
from megaflow.timely.worker import Worker as EngineWorker

KILLED = -9  # exit code
ROUND_SECONDS = 0.1  # between two requests of a joining process


class World(Protocol):
    """Surroundings of the processes and clients of a simulated job."""

    wires: Wires
    random: Random
    storage: JobStorage | None  # None: the job is not durable
    processes: list[SimulatedProcess]  # all processes ever

    @property
    def published(self) -> Address:
        """Address of the coordinator in the job's file."""

    def now(self) -> float:
        """Return the time, in seconds."""

    def dial(self, address: Address, role: str, hello: dict[str, Any]) -> SimulatedClient:
        """Connect to a process. Raises OSError if none listens there, ConfigMismatch if it refuses."""

    def process_at(self, address: Address) -> SimulatedProcess | None:
        """Return the process that listens there; None if there is none."""

    def later(self, call: Callable[[], object], seconds: float, at_most: bool = True) -> None:
        """Call a function after this many seconds, or after a random time up to that if `at_most`."""

    def program(self) -> App:
        """Return a new process's view of the program."""

    def built(self, process: SimulatedProcess, program: WorkerProgram) -> None:
        """Note that a worker of a process has built its part of the job."""


class SimulatedProcess:
    """One process, from its start to its end."""

    def __init__(self, world: World, spec: ChildSpec) -> None:
        self.address = spec.address
        self.exit_code: int | None = None  # None while it runs
        self.lives: dict[int, Life] = {}  # worker -> its thread; -1: the joining thread
        self.programs: dict[int, WorkerProgram] = {}  # worker -> its part of the job
        self.fabric: SimulatedFabric | None = None
        self.remembered = 0  # keys still in memory from the previous life
        self.descriptors: list[list[tuple[StateDescriptor, RetainedBins]]] | None = None  # while it stays
        self.failed_to_join: Exception | None = None  # its error, if it failed to join; None if it was turned away
        self._world = world
        self._spec = spec
        self._before: SimulatedProcess | None = None  # the same process in the previous life
        self._app = world.program()
        self.error: Exception | None = None  # error of the program or of megaflow that ended it
        self.view = None if world.storage is None else world.storage.store.open(self.kill)  # of the store
        self._child = self._made(None)
        self._dialled: list[SimulatedClient] = []

    def _made(self, before: ReportingProcess | None) -> ReportingProcess:
        child, beside = ReportingProcess(self._spec, before=before), partial(run_beside, self._world.later)
        child.shared = replace(child.shared, app=self._app, beside=beside, resident=lambda: None)
        if self._world.storage is not None and self.view is not None:
            child.shared = replace(child.shared, keep=self._world.storage.keep(self.view, self._world.later))
        return child

    def __str__(self) -> str:
        return f"{address_text(self.address)} with workers {sorted(self.programs)}"

    @property
    def report(self) -> ExitReport | None:
        """Report of a process that has ended by itself."""
        return self._child.reported

    @property
    def workers(self) -> list[Worker]:
        """Workers that have not ended."""
        return [life.worker for life in self.lives.values() if life.worker is not None]

    # The beginning

    def follow(self, before: SimulatedProcess) -> None:
        """Continue, in the next life, a process that has stayed: both objects stand for one process."""
        self._before, before.exit_code = before, 0
        self._app = before._app
        self._child = self._made(before._child)

    def _remember(self, before: SimulatedProcess) -> None:
        view, storage, part, memory = self.view, self._world.storage, self._spec.durable, self._child.shared.memory
        assert view is not None and storage is not None and part is not None and memory is not None
        descriptors = [each for several in before.descriptors or () for each in several]
        self._child.remember(descriptors, lambda folder: Store(view))
        self.remembered = sum(len(each.states) for several in memory._remains.values() for each in several)
        if self.remembered:
            check_remembered(storage.store, part.commit, descriptors)

    def meet(self, others: Sequence[SimulatedProcess]) -> None:
        """Connect, as a founder, to the founders before this one."""
        part, size = self._spec.part, self._spec.job.workers
        assert isinstance(part, Founder)
        peers = self._founders()
        own = peers[part.process]
        fabric = self._open(own.ids, joining=False)
        fabric.meet(Rendezvous(peers, part.process, size, fabric._connected, fabric.fail))
        for number, other in enumerate(others):
            here, there = self._world.wires.connect(str(own), str(peers[number]))
            assert other.fabric is not None
            other.fabric.connected(own, there)
            fabric.connected(peers[number], here)

    def found(self) -> None:
        """Begin as a founder, after all have met."""
        if self.exit_code is not None:
            return
        peers = self._founders()
        [own] = [peer for peer in peers if (peer.host, peer.port) == self.address]
        membership = founding(worker for peer in peers for worker in peer.ids)
        processes = {peer.process: (peer.host, peer.port, peer.ids) for peer in peers}
        try:
            if self._before is not None:
                self._remember(self._before)
            self._run(own.ids, membership, processes, None)
        except (MegaflowError, OSError, Crashed) as error:
            self._fail(self.lives[max(self.lives)] if self.lives else Life(iter(())), error)

    def _founders(self) -> list[PeerAddress]:
        part, size = self._spec.part, self._spec.job.workers
        assert isinstance(part, Founder)
        return [
            PeerAddress(number, *address, tuple(range(number * size, (number + 1) * size)))
            for number, address in enumerate(part.addresses)
        ]

    def join(self) -> None:
        """Ask to join."""
        life = Life(iter(()))
        life.waits = self._join(life)
        self.lives[-1] = life
        life.due = self._world.now()

    def _join(self, life: Life) -> Iterator[float | None]:
        part, size = self._spec.part, self._spec.job.workers
        assert isinstance(part, JoiningProcess)
        hello = {"host": self.address[0], "port": self.address[1], "workers": size, "server": part.server}
        admission: Any = None
        while admission is None:
            try:
                client = self._world.dial(part.contact, JOIN_ROLE, hello)
                self._dialled.append(client)
                life.ready = partial(getattr, client, "is_ready")
                while not client.is_ready:
                    yield None
                life.ready = bool
                [admission] = client.receive_available()
                client.close()
            except (OSError, PeerLost):
                yield ROUND_SECONDS
        if isinstance(admission, Denied):
            raise JoinDenied(f"this process may not join: {admission.reason}")
        assert isinstance(admission, Admission)
        own = PeerAddress(admission.process, *self.address, admission.ids)
        members = [PeerAddress(process, *place) for process, place in admission.processes.items()]
        fabric = self._open(own.ids, joining=True)
        rendezvous = Rendezvous([*members, own], own.process, size, fabric._connected, fabric.fail, admission.change)
        fabric.meet(rendezvous)
        for member in members:
            yield 0.0
            while (process := self._world.process_at((member.host, member.port))) is None or process.fabric is None:
                yield ROUND_SECONDS
            fabric.check()
            here, there = self._world.wires.connect(str(own), str(member))
            try:
                process.fabric.admit(there, PEER_ROLE, rendezvous.hello)
            except ConfigMismatch:
                there.leave()
                raise
            fabric.connected(member, here)
        self._run(own.ids, admission.membership, dict(admission.processes), admission)

    def _open(self, ids: tuple[int, ...], joining: bool) -> SimulatedFabric:
        self._door = JoinDoor(ids)
        self.fabric = SimulatedFabric(ids, self._child._roles(ids), self._door, joining)
        return self.fabric

    def _run(
        self, ids: tuple[int, ...], membership: Membership, processes: dict[int, Any], admission: Admission | None
    ) -> None:
        """Begin the workers' lives."""
        assert self.fabric is not None
        clocks = self._world.now, self._world.now
        for index in ids:
            allocator = TcpAllocator(self.fabric, index)
            worker: Worker = EngineWorker(allocator, membership, Scope, clocks, (), processes, admission, self._door)
            program = self.programs[index] = WorkerProgram(worker, self._child.shared)
            life = Life(iter(()), program, worker, self._world.now())
            life.waits = self._live(life, self.fabric, worker, program)
            self.lives[index] = life
            program.build()
            self._world.built(self, program)
            self._child.programs[index] = program
            life.due = self._turn(life)

    def _live(
        self, life: Life, fabric: SimulatedFabric, worker: Worker, program: WorkerProgram
    ) -> Iterator[float | None]:
        """Do what `WorkerProgram.run` and then `runtime.run_workers` do."""
        yield from program.turns()
        worker.close_inputs()
        worker.end_building()
        while worker.installed_dataflows:
            yield None
        worker.rescaling.ask_end()
        while not worker.rescaling.may_end:
            yield None
        life.is_stepping = False
        if fabric.take_leave(worker.index):
            life.ready = lambda: fabric.has_parted or fabric.has_failed
            while not fabric.has_parted:
                fabric.check()
                yield None

    # Between the beginning and the end

    def admit(self, link: SimulatedLink, role: str, hello: dict[str, Any]) -> None:
        """Accept a connection. Raises OSError while the process is not ready, ConfigMismatch if it refuses."""
        if self.exit_code is not None or self.fabric is None:
            raise ConnectionRefusedError(f"{self} does not answer")
        self.fabric.admit(link, role, hello)

    def inbox(self, index: int) -> Inbox | None:
        """Return the inbox of a worker."""
        return None if self.fabric is None else self.fabric.inboxes.get(index)

    def step(self, index: int) -> None:
        """Advance one of the lives."""
        life = self.lives[index]
        try:
            inbox = self.inbox(index)
            if inbox is not None:
                inbox.is_due()  # a wake-up counts for one step
            if life.worker is not None and life.is_stepping:
                has_dataflow = life.worker.step()
                assert life.program is not None
                life.program.has_dataflow = has_dataflow
                life.worker.rescaling._check()
            life.due = self._turn(life)
        except StopIteration:
            self.lives.pop(index, None)
            if not self.lives and self.exit_code is None:
                self._end(0)
        except Exception as error:
            self._fail(life, error)

    def _turn(self, life: Life) -> float | None:
        seconds = next(life.waits)
        return None if seconds is None else self._world.now() + seconds

    # The end

    def kill(self) -> None:
        """End the process at once."""
        if self.view is not None:
            self.view.crashed = True
        if self.exit_code is None:
            for link in self._links():
                link.cut()
            self.exit_code = KILLED
            self.lives.clear()

    def _fail(self, life: Life, error: Exception) -> None:
        """Handle an error as `Process._work`, `run_workers` and `main` do."""
        if isinstance(error, Violation):
            raise error  # a Violation is the simulation's own error, not the end of a process
        if self.exit_code is not None:
            return  # it was killed in the middle of a step
        worker, launcher = life.worker, self._child.shared.launcher
        if isinstance(error, PeerLost) and worker is not None:
            self._child._tell_loss(worker, error)
        elif not isinstance(error, PeerLost | PeerFailed):
            self.error = error
            if worker is not None and (launcher.is_here or not worker.rescaling.joining):
                launcher.send(self._child.failed(worker, error))
            self._child.report(ExitReport("failed", str(error)))
            joins = isinstance(self._spec.part, JoiningProcess) and (worker is None or worker.rescaling.joining)
            if joins and not isinstance(error, JoinDenied | ConfigMismatch | Crashed):
                self.failed_to_join = error
        if self.fabric is not None and worker is not None and not isinstance(error, PeerFailed):
            self.fabric.abort(FailureReport(worker.index, address_text(self.address), str(error)))
        if isinstance(error, PeerLost) and self._child.may_stay:
            self._stay()
        else:
            self._end(1)

    def _stay(self) -> None:
        """Wait for a part in the next life."""
        for link in self._links():
            link.leave()
        self.lives.clear()
        self.fabric = None
        self.descriptors = self._child.end()

    def _end(self, code: int) -> None:
        for link in self._links():
            link.leave()
        self.exit_code = code
        self.lives.clear()

    def _links(self) -> list[SimulatedLink]:
        opened = [] if self.fabric is None else self.fabric.links
        return [link for link in [*opened, *(client.link for client in self._dialled)] if not link.closed]
