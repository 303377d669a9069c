"""The workers of a job, and what each may receive: bins, lines, or nothing.

A member is in one of these states:

    joined     it knows no routing table yet, so it may not own bins
    running    it may own bins, and reads lines
    leaving    its process is about to leave, so it receives nothing

A process joins and leaves as a whole, so its workers leave together. If a process announced a leave but stays, its
workers run again. They read no more lines if they were already commanded to close their sources.
"""

from collections.abc import Collection, Iterable

from megaflow.control.coordinator.base.job_state import RosterState
from megaflow.control.wording import workers_text
from megaflow.errors import CommandRefused
from megaflow.megaphone.base.routing import Bootstrap, Map, Move, validate
from megaflow.timely.membership import Membership, WorkerId


class Roster:
    """The workers of one job. One writer: the controller."""

    def __init__(
        self,
        members: Membership,
        processes: Iterable[Iterable[WorkerId]] = (),
        ports: Iterable[tuple[WorkerId, str, int]] = (),
    ) -> None:
        """`processes`: the workers of each process; by default each worker is one. `ports`: where Spark stages lines.

        All members at the start know the routing table.
        """
        self.members = members
        self.leaving: tuple[WorkerId, ...] = ()  # the workers of the process that is about to leave
        given = {worker: (host, port) for worker, host, port in ports}
        self.state = RosterState({worker: (worker,) for worker in members.ids}, given, set(members.ids))
        for process in map(tuple, processes):
            self.state.process |= dict.fromkeys(process, process)
        self._servers: dict[WorkerId, WorkerId] = {}  # worker to which a table is on its way -> its server

    # Roles of workers

    @property
    def owners(self) -> frozenset[WorkerId]:
        """The workers that may own bins."""
        return frozenset(self.members.workers & self.state.routed - set(self.leaving))

    @property
    def readers(self) -> tuple[WorkerId, ...]:
        """The workers that may be given lines, sorted."""
        return tuple(sorted(self.owners - self.state.closing))

    @property
    def sources(self) -> tuple[WorkerId, ...]:
        """The workers whose sources have not reported that they closed, sorted."""
        return tuple(sorted(self.members.workers - self.state.closed))

    @property
    def closing(self) -> bool:
        """Whether a source that must close has not reported that it did."""
        return self.state.closing != self.state.closed

    @property
    def stagers(self) -> tuple[WorkerId, ...]:
        """The workers whose staged lines may be committed, sorted."""
        return tuple(sorted(self.members.workers - self.state.closing))

    @property
    def unbootstrapped(self) -> tuple[WorkerId, ...]:
        """The workers that know no routing table, and have none on its way, sorted."""
        return tuple(sorted(self.members.workers - self.state.routed - self._servers.keys()))

    @property
    def bootstrapping(self) -> bool:
        """Whether a table is on its way."""
        return bool(self._servers)

    @property
    def ports(self) -> list[tuple[WorkerId, str, int]]:
        """Workers and addresses where Spark's lines may be staged."""
        readers = self.readers
        return [(worker, *self.state.ports[worker]) for worker in readers if worker in self.state.ports]

    def process_of(self, worker: WorkerId) -> tuple[WorkerId, ...]:
        """Return the workers of a member's process. Raises CommandRefused if there is no such worker."""
        if type(worker) is not int or worker not in self.members.workers:
            raise CommandRefused(f"there is no worker {worker!r:.50}; the workers are {self.members.names}")
        return self.state.process[worker]

    @property
    def successor(self) -> WorkerId:
        """The worker that coordinates after the coordinator's process leaves. There must be another process."""
        return min(self.members.workers.difference(self.state.process[self.members.coordinator]))

    @property
    def pushed_to(self) -> WorkerId:
        """The worker that reads the launcher's lines: the lowest-numbered one of the coordinator's process."""
        return min(self.state.process[self.members.coordinator])

    def state_of(self, worker: WorkerId) -> str:
        """Return a member's state, as in the module's table."""
        if worker in self.leaving:
            return "leaving"
        return "running" if worker in self.state.routed else "joined"

    # Checks of requests

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
            if type(worker) is int and worker in self.members.workers and worker not in self.state.routed:
                reason = f"worker {worker} has joined but has no routing table yet"
                raise CommandRefused(f"{reason}; {self._remedy(worker)}")

    def _remedy(self, worker: WorkerId) -> str:
        """Return how a member gets the routing table that it lacks."""
        way = f"megaflow control bootstrap --server {self.members.coordinator} --worker {worker}"
        return "it will receive one soon" if worker in self._servers else f"give it one with: {way}"

    def check_bootstrap(self, server: WorkerId, worker: WorkerId) -> None:
        """Raise CommandRefused unless the server can give the worker its routing table, or the worker has one."""
        self.process_of(server)
        self.process_of(worker)
        if server == worker:
            raise CommandRefused(f"worker {worker} cannot bootstrap itself; name another worker as the server")
        if worker in self.state.routed:
            return
        if worker in self._servers:
            raise CommandRefused(
                f"worker {worker} is already receiving the routing table from worker {self._servers[worker]}"
            )
        if server not in self.state.routed:
            raise CommandRefused(f"worker {server} has no routing table itself; name another server")

    def check_leave(self, worker: WorkerId) -> tuple[WorkerId, ...]:
        """Return the workers that leave if this one does. Raises CommandRefused unless they may, bins aside."""
        ids = self.process_of(worker)
        if len(ids) == len(self.members.ids):
            raise CommandRefused(f"worker {worker} is in the only process of the job; stop the job instead")
        if self.members.coordinator in ids and self.successor not in self.state.routed:
            who = f"worker {self.successor}, which would become the coordinator,"
            raise CommandRefused(f"{who} has no routing table yet; {self._remedy(self.successor)}")
        for each in ids:
            if each not in self.state.routed:
                raise CommandRefused(f"worker {each} has no routing table yet; {self._remedy(each)}")
        for learner, server in self._servers.items():
            if server in ids:
                raise CommandRefused(f"worker {server} is giving worker {learner} the routing table")
        return ids

    # Changes

    def joined(self, ids: Collection[WorkerId], members: Membership, host: str, port: int) -> None:
        """Record that these workers of one new process are members."""
        self.members = members
        self.state.process |= dict.fromkeys(ids, tuple(ids))
        self.state.ports |= dict.fromkeys(ids, (host, port))

    def bootstrap(self, server: WorkerId, workers: Iterable[WorkerId]) -> list[Bootstrap]:
        """Return the commands that give these workers the server's table, and record that tables are on their way."""
        commands = [Bootstrap(server, worker) for worker in workers]
        self._servers |= {command.worker: command.server for command in commands}
        return commands

    def routed(self, worker: WorkerId) -> None:
        """Record that a worker knows the routing table. Its report may come before the news that it has joined."""
        self.state.routed.add(worker)
        self._servers.pop(worker, None)

    def close(self, ids: Iterable[WorkerId]) -> tuple[WorkerId, ...]:
        """Record that these workers must close their sources; return those that were not commanded before."""
        new = tuple(worker for worker in ids if worker not in self.state.closing)
        self.state.closing |= set(new)
        return new

    def closed(self, worker: WorkerId) -> None:
        """Record that a worker's source has closed."""
        self.state.closed.add(worker)

    def are_closed(self, ids: Iterable[WorkerId]) -> bool:
        """Return whether all these workers' sources have closed."""
        return self.state.closed.issuperset(ids)

    def left(self, ids: Iterable[WorkerId], members: Membership) -> None:
        """Forget workers that have left."""
        self.members = members
        gone = set(ids)
        self.leaving = tuple(worker for worker in self.leaving if worker not in gone)
        self.state.routed -= gone
        self.state.closing -= gone
        self.state.closed -= gone
        for worker in gone:
            self.state.process.pop(worker, None)
            self.state.ports.pop(worker, None)

    def _check(self) -> None:
        assert self.state.process.keys() == self.members.workers, (self.state.process, self.members)
        assert set(self.leaving) <= self.members.workers and self.members.coordinator not in self.leaving
        assert not self._servers.keys() & self.state.routed
        assert self.state.closed <= self.state.closing <= self.members.workers
        assert self.state.ports.keys() <= self.members.workers
