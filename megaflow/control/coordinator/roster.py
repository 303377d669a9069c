"""Who takes part in a job, and what each worker may be given: bins, lines, or nothing any more.

A worker that takes part is in one of these states:

    joined     it knows no routing table yet, so it may not own bins
    running    it may own bins, and takes lines
    leaving    its process is about to leave: it is given nothing

A process joins and leaves as a whole, so its workers leave together. A worker whose process was to leave and stays
after all runs again, but reads no lines: its source has closed.
"""

from collections.abc import Collection, Iterable

from megaflow.control.coordinator.job_state import RosterState
from megaflow.control.wording import workers_text
from megaflow.errors import CommandRefused
from megaflow.megaphone.routing import Bootstrap, Map, Move, validate
from megaflow.timely.membership import Membership, WorkerId


class Roster:
    """The workers of one job. One writer: the controller."""

    def __init__(
        self,
        members: Membership,
        processes: Iterable[Iterable[WorkerId]] = (),
        ports: Iterable[tuple[WorkerId, str, int]] = (),
    ) -> None:
        """`processes` are the workers of each process; without, each worker is a process. `ports` take Spark's lines.

        All that are here at the start know the routing table.
        """
        self.members = members
        self.leaving: tuple[WorkerId, ...] = ()  # the workers of the process that is about to leave
        self._process: dict[WorkerId, tuple[WorkerId, ...]] = {}  # worker -> the workers of its process
        for process in (*((worker,) for worker in members.ids), *map(tuple, processes)):
            self._process |= dict.fromkeys(process, process)
        self._ports = {worker: (host, port) for worker, host, port in ports}
        self._routed = set(members.ids)  # know the routing table; perhaps of some that are no members yet
        self._servers: dict[WorkerId, WorkerId] = {}  # worker to whom a table is on its way -> who serves it
        self._closing: set[WorkerId] = set()  # were told to close their sources
        self._closed: set[WorkerId] = set()  # have said that they did

    # Who is what

    @property
    def owners(self) -> frozenset[WorkerId]:
        """The workers that may own bins."""
        return frozenset(self.members.workers & self._routed - set(self.leaving))

    @property
    def readers(self) -> tuple[WorkerId, ...]:
        """The workers that may be given lines, sorted."""
        return tuple(sorted(self.owners - self._closing))

    @property
    def sources(self) -> tuple[WorkerId, ...]:
        """The workers whose sources have not said that they closed, sorted."""
        return tuple(sorted(self.members.workers - self._closed))

    @property
    def closing(self) -> bool:
        """Whether a source that was told to close has not said that it did."""
        return self._closing != self._closed

    @property
    def stagers(self) -> tuple[WorkerId, ...]:
        """The workers whose staged lines may be committed, sorted."""
        return tuple(sorted(self.members.workers - self._closing))

    @property
    def unbootstrapped(self) -> tuple[WorkerId, ...]:
        """The workers that know no routing table, and to whom none is on its way, sorted."""
        return tuple(sorted(self.members.workers - self._routed - self._servers.keys()))

    @property
    def bootstrapping(self) -> bool:
        """Whether a table is on its way."""
        return bool(self._servers)

    @property
    def ports(self) -> list[tuple[WorkerId, str, int]]:
        """Where Spark's lines may be staged."""
        readers = self.readers
        return [(worker, *self._ports[worker]) for worker in readers if worker in self._ports]

    def is_routed(self, worker: WorkerId) -> bool:
        """Whether a worker knows the routing table."""
        return worker in self._routed

    def process_of(self, worker: WorkerId) -> tuple[WorkerId, ...]:
        """Return the workers of a member's process. Raises CommandRefused if there is no such worker."""
        if type(worker) is not int or worker not in self.members.workers:
            raise CommandRefused(f"there is no worker {worker!r:.50}; the workers are {self.members.names}")
        return self._process[worker]

    @property
    def successor(self) -> WorkerId:
        """Who coordinates when the coordinator's process leaves, which is not the only one."""
        return min(self.members.workers.difference(self._process[self.members.coordinator]))

    @property
    def pushed_to(self) -> WorkerId:
        """Who reads the launcher's lines: the first worker of the coordinator's process."""
        return min(self._process[self.members.coordinator])

    def state_of(self, worker: WorkerId) -> str:
        """Return a member's state, see above."""
        if worker in self.leaving:
            return "leaving"
        return "running" if worker in self._routed else "joined"

    # What may be asked

    def check_commands(self, commands: Iterable[object], bins: int) -> None:
        """Raise CommandRefused unless these are Move and Map commands that name existing bins and their owners."""
        if self.leaving:
            who = f"{workers_text(sorted(self.leaving))} {'is' if len(self.leaving) == 1 else 'are'}"
            raise CommandRefused(f"{who} leaving: move bins when that is complete")
        owners = self.owners
        for command in commands:
            match command:
                case Move(_, worker):
                    self._check_routed((worker,))
                case Map(tuple(workers)):
                    self._check_routed(workers)
                case Map():
                    pass
                case _:
                    raise CommandRefused(f"a reconfiguration consists of Move and Map commands, not {command!r:.100}")
            validate(command, bins, owners)

    def _check_routed(self, workers: Iterable[object]) -> None:
        for worker in workers:
            if type(worker) is int and worker in self.members.workers and worker not in self._routed:
                reason = f"worker {worker} has joined but has no routing table yet"
                raise CommandRefused(f"{reason}; {self._remedy(worker)}")

    def _remedy(self, worker: WorkerId) -> str:
        """Say how a member gets the routing table that it does not have."""
        way = f"megaflow control bootstrap --server {self.members.coordinator} --worker {worker}"
        return "it will receive one soon" if worker in self._servers else f"give it one with: {way}"

    def check_bootstrap(self, server: WorkerId, worker: WorkerId) -> None:
        """Raise CommandRefused unless the server can give the worker its routing table, or the worker has it."""
        self.process_of(server)
        self.process_of(worker)
        if server == worker:
            raise CommandRefused(f"worker {worker} cannot bootstrap itself; name another worker as the server")
        if worker in self._routed:
            return
        if worker in self._servers:
            raise CommandRefused(
                f"worker {worker} is already receiving the routing table from worker {self._servers[worker]}"
            )
        if server not in self._routed:
            raise CommandRefused(f"worker {server} has no routing table itself; name another server")

    def check_leave(self, worker: WorkerId) -> tuple[WorkerId, ...]:
        """Return who leaves when the process of this worker does. Raises CommandRefused unless it may, bins aside."""
        ids = self.process_of(worker)
        if len(ids) == len(self.members.ids):
            raise CommandRefused(f"worker {worker} is in the only process of the job; stop the job instead")
        if self.members.coordinator in ids and self.successor not in self._routed:
            who = f"worker {self.successor}, which would become the coordinator,"
            raise CommandRefused(f"{who} has no routing table yet; {self._remedy(self.successor)}")
        for each in ids:
            if each not in self._routed:
                raise CommandRefused(f"worker {each} has no routing table yet; {self._remedy(each)}")
        for learner, server in self._servers.items():
            if server in ids:
                raise CommandRefused(f"worker {server} is giving worker {learner} the routing table")
        return ids

    # What happens

    def joined(self, ids: Collection[WorkerId], members: Membership, host: str, port: int) -> None:
        """Note that these workers of one new process are members."""
        self.members = members
        self._process |= dict.fromkeys(ids, tuple(ids))
        self._ports |= dict.fromkeys(ids, (host, port))

    def bootstrap(self, server: WorkerId, workers: Iterable[WorkerId]) -> list[Bootstrap]:
        """Return the commands that give these workers the server's table, and note that they are on their way."""
        commands = [Bootstrap(server, worker) for worker in workers]
        self._servers |= {command.worker: command.server for command in commands}
        return commands

    def routed(self, worker: WorkerId) -> None:
        """Note that a worker knows the routing table; it may say so before it is known here that it has joined."""
        self._routed.add(worker)
        self._servers.pop(worker, None)

    def close(self, ids: Iterable[WorkerId]) -> tuple[WorkerId, ...]:
        """Note that the sources of these workers are told to close; return those who were not told before."""
        new = tuple(worker for worker in ids if worker not in self._closing)
        self._closing |= set(new)
        return new

    def closed(self, worker: WorkerId) -> None:
        """Note that a source has closed."""
        self._closed.add(worker)

    def are_closed(self, ids: Iterable[WorkerId]) -> bool:
        """Return whether all these workers' sources have closed."""
        return self._closed.issuperset(ids)

    def left(self, ids: Iterable[WorkerId], members: Membership) -> None:
        """Forget workers that have left."""
        self.members = members
        gone = set(ids)
        self.leaving = tuple(worker for worker in self.leaving if worker not in gone)
        self._routed -= gone
        self._closing -= gone
        self._closed -= gone
        for worker in gone:
            self._process.pop(worker, None)
            self._ports.pop(worker, None)

    def state(self) -> RosterState:
        """Return what whoever goes on with this must know; nobody is leaving, no table is on its way."""
        ports = tuple((worker, *self._ports[worker]) for worker in sorted(self._ports))
        some = (tuple(sorted(each)) for each in (self._routed, self._closing, self._closed))
        return RosterState(tuple(sorted(set(self._process.values()))), ports, *some)

    def resume(self, state: RosterState) -> None:
        """Go on from there."""
        for process in state.processes:
            self._process |= dict.fromkeys(process, process)
        self._ports = {worker: (host, port) for worker, host, port in state.ports}
        self._routed, self._closing, self._closed = set(state.routed), set(state.closing), set(state.closed)

    def _check(self) -> None:
        assert self._process.keys() == self.members.workers, (self._process, self.members)
        assert set(self.leaving) <= self.members.workers and self.members.coordinator not in self.leaving
        assert not self._servers.keys() & self._routed
        assert self._closed <= self._closing <= self.members.workers and self._ports.keys() <= self.members.workers
