"""Spark's executors as the place of a job's processes: each process is a job of one task (see `megaflow.spark`).

1. The session is started when the first seats are sought, and ends with the place. Before that all is checked that can
   be; slots are counted before the first process is submitted.
2. A seat is a process whose agent has said hello. Those that found a life are begun when all are seated and can reach
   each other; until then nothing depends on them, and what is wrong with one is wrong with the start.
3. One that is to join is begun when it is seated, however long that takes: it waits for a slot, and says so; and when
   all that were begun before can reach it.
4. A number is given once, over all lives. So what is left of an earlier life can take no seat of a later one.
5. What was started is told by its number and attempt; a process is the launcher's until it has ended or was given up
   (see `remote_process`), so closing is bounded.
"""

import contextlib
import functools
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Self

from megaflow.errors import ClusterError, ConfigMismatch, ProtocolError
from megaflow.job.agent_messages import AgentTask, read_hello
from megaflow.job.launcher.agent_door import AgentDoor
from megaflow.job.launcher.child_process import Child
from megaflow.job.launcher.place import Seat
from megaflow.job.launcher.remote_process import KILLED, RemoteProcess
from megaflow.job.process_agent import run_task
from megaflow.job.profile.report import WITNESS
from megaflow.job.reachable import interfaces
from megaflow.job.spec import Address, AppFile, ChildSpec, Founder, JobSpec
from megaflow.quick_dataclass import dataclass
from megaflow.spark.cluster import Jobs, await_slots, worker_jobs
from megaflow.timely.communication.role_handlers import Connection

PROBE_SECONDS = 15.0  # for agents to say whom they can reach
TOLD_SECONDS = 10.0


class OnSpark:
    """The executors of a Spark cluster; a context manager that leaves no process and no session of its own."""

    def __init__(
        self,
        spec: JobSpec,
        secret: bytes,
        feeds: bool,
        files: Sequence[str],
        report: Callable[[str], None],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`feeds`: Spark gives the lines, too; `files`: what the workers read them from; `report` tells the user.

        `pause` sleeps while slots are waited for, and raises what ends that.
        """
        self._spec = spec
        self._secret = secret
        self._feeds = feeds
        self._files = files
        self._report = report
        self._pause = pause
        self._stack = contextlib.ExitStack()
        self._jobs: Jobs | None = None
        self._door: AgentDoor | None = None
        self._processes: dict[int, RemoteProcess] = {}  # by number; the launcher's thread adds
        self._launchers: tuple[Address, ...] = ()
        self._witnesses: tuple[tuple[str, bytes | int], ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
            process.pipe.close()
            process.sign.close()
        if self._door is not None:
            self._door.close()
        self._stack.close()

    def find(
        self, count: int, draft: ChildSpec, wake: Callable[[], None], again: Sequence[Address] = ()
    ) -> "SpreadSeats":
        """Submit so many tasks. The first time a session is started, which blocks for some seconds."""
        jobs, door = self._open()
        if (reason := jobs.why_lost("driver")) is not None:
            raise ClusterError(reason)
        founds = isinstance(draft.part, Founder)
        deadline = time.monotonic() + self._spec.start_timeout_seconds
        if founds and not self._processes:
            await_slots(jobs, count, self._feeds, self._spec.start_timeout_seconds, self._report, self._pause)

        def tell() -> None:
            with contextlib.suppress(OSError):  # the life has ended that wanted to know
                wake()

        started = [self._submit(jobs, door, draft, tell) for _ in range(count)]
        return SpreadSeats(started, jobs, draft, deadline if founds else None, self._report, self._begun, tell)

    def _begun(self) -> list[RemoteProcess]:
        return [each for each in self._processes.values() if each.child is not None and each.returncode is None]

    def let_go(self, address: Address) -> None:
        """Nothing is kept of one that has left."""

    # Of agents, on the thread of the door

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Give an agent its process, or have it wait."""
        try:
            found = read_hello(hello)
        except ProtocolError as error:
            raise ConfigMismatch(str(error)) from error
        process = self._processes.get(found.number)
        if process is None:
            raise ConfigMismatch(f"there is no process {found.number}")
        process.greet(connection, found)

    def received(self, connection: Connection, value: Any) -> None:
        """Hand a word to the process that it is about."""
        for process in list(self._processes.values()):
            process.hear(connection, value)

    def lost(self, connection: Connection) -> None:
        """Tell the process whose agent has gone."""
        for process in list(self._processes.values()):
            process.lose(connection)

    def _open(self) -> tuple[Jobs, AgentDoor]:
        if self._jobs is None or self._door is None:
            spec = self._spec
            app = spec.app.shipped if isinstance(spec.app, AppFile) else spec.app.file or None
            self._witnesses = self._write_witnesses()
            assert spec.on is not None, "the job is to be on Spark"
            self._jobs = self._stack.enter_context(
                worker_jobs(spec.on, dict(spec.conf), app, spec.shipped, spec.processes, self._feeds)
            )
            host = "127.0.0.1" if self._jobs.is_local else ""
            self._door = AgentDoor(host, self._secret, self)
            self._door.start()
            hosts = [host] if host else list(dict.fromkeys([self._jobs.driver_host, *interfaces()]))
            self._launchers = tuple((each, self._door.port) for each in hosts)
        return self._jobs, self._door

    def _write_witnesses(self) -> tuple[tuple[str, bytes | int], ...]:
        """Return what executors must see as it is here: the input's files, and one in each folder that they write to.

        Who has the store has all of these in it: what a launcher has left there that was killed is removed.
        """
        found: list[tuple[str, bytes | int]] = [(path, os.path.getsize(path)) for path in sorted(set(self._files))]
        spec = self._spec
        folders = [folder for folder in (spec.state, None if spec.profile is None else spec.profile.folder) if folder]
        for folder in folders:
            for left in Path(folder).glob(f"{WITNESS}*"):
                left.unlink(missing_ok=True)
            word = os.urandom(16).hex().encode()
            with tempfile.NamedTemporaryFile(prefix=WITNESS, dir=folder, delete=False) as file:
                file.write(word)
            self._stack.callback(Path(file.name).unlink, missing_ok=True)
            found.append((file.name, word))
        return tuple(found)

    def _submit(self, jobs: Jobs, door: AgentDoor, draft: ChildSpec, wake: Callable[[], None]) -> RemoteProcess:
        number = len(self._processes)
        cancel = functools.partial(jobs.cancel, number)
        process = RemoteProcess(number, door, wake, cancel, jobs.why_lost, jobs.avoid)
        self._processes[number] = process
        task = AgentTask(number, self._launchers, self._secret, draft, environment(), self._witnesses)

        def ended(trouble: str | None) -> None:
            begun = process.child is not None
            process.end(KILLED if trouble else 0, f"was lost: {trouble}" if trouble and begun else trouble)

        jobs.submit(number, pickle.dumps(functools.partial(run_task, task)), ended)
        return process


def environment() -> tuple[tuple[str, str], ...]:
    """Return what of the launcher's environment its processes are to have, wherever they run; no secret."""
    names = [name for name in os.environ if name.startswith("MEGAFLOW_") and name != "MEGAFLOW_SECRET"]
    path = os.pathsep.join(part for part in sys.path if part and os.path.isdir(part) and "site-packages" not in part)
    return (*((name, os.environ[name]) for name in sorted(names)), ("PYTHONPATH", os.environ.get("PYTHONPATH", path)))


@dataclass(eq=False)
class SpreadSeats:
    """Processes that were submitted, until they are begun. All is the launcher's thread's."""

    waiting: list[RemoteProcess]
    jobs: Jobs
    draft: ChildSpec
    deadline: float | None  # of those that found a life; they are found together
    report: Callable[[str], None]
    members: Callable[[], list[RemoteProcess]]  # those that were begun, and live
    wake: Callable[[], None]
    _asked: dict[RemoteProcess, tuple[float, list[RemoteProcess]]] = field(init=False, default_factory=dict)
    _probed: float | None = field(init=False, default=None)  # when all were asked whom they can reach
    _told: float = field(init=False, default=0.0)

    def found(self) -> list[Seat]:
        """Return those that can be begun. Raises ClusterError."""
        for process in self.waiting:
            if process.returncode is not None:
                self.close()
                reason = process.how_lost() or "it was ended"
                raise ClusterError(f"process {process.number} could not be started: {reason}")
        if self.deadline is None:
            hosts = {process: host for process in self.waiting if (host := self._host_for_all(process)) is not None}
            self.waiting = [process for process in self.waiting if process not in hosts]
            return [SpreadSeat(process, host, self.draft) for process, host in hosts.items()]
        return self._found_together(self.deadline)

    def waits_for(self) -> str:
        """Say how many are queued, and what would free a slot for them."""
        slots = self.jobs.slots()
        queued = sum(process.hello is None for process in self.waiting)
        if not queued:
            return "other processes are checking whether they can reach it"
        more = "Spark starts executors when it can" if self.jobs.is_elastic else (
            "remove-workers, the end of another job on these executors, or more executors would free one"
        )  # fmt: skip
        known = "" if slots is None else f" of {slots}"
        return f"{queued} queued: no free slot{known}; {more}"

    def close(self) -> None:
        """End them all."""
        for process in self.waiting:
            process.kill()

    def _host_for_all(self, process: RemoteProcess) -> str | None:
        """Return under which host members reach one that joins; None as long as that is not known.

        Raises ClusterError if there is none.
        """
        if (hello := process.hello) is None:
            return None
        places = tuple((host, hello.probe_port) for host in hello.hosts)
        if process not in self._asked:
            self._asked[process] = time.monotonic(), self.members()
            for member in self.members():
                member.probe((places,), self.wake)
            timer = threading.Timer(PROBE_SECONDS, self.wake)
            timer.daemon = True
            timer.start()
        since, asked = self._asked[process]
        asked = [member for member in asked if member.returncode is None]
        reached = [member.reached or frozenset() for member in asked]
        if any(all(place in each for each in reached) for place in places) or time.monotonic() > since + PROBE_SECONDS:
            try:
                return choose_host(process.place, places, list(zip([member.place for member in asked], reached)))
            except ClusterError:
                self.close()
                raise
        return None

    def _found_together(self, deadline: float) -> list[Seat]:
        hellos = [process.hello for process in self.waiting if process.hello is not None]
        now, count = time.monotonic(), len(self.waiting)
        if len(hellos) < count:
            seated = f"{len(hellos)} of {count} processes"
            slots = f"Spark has {self.jobs.slots()} slots"
            if now >= deadline:
                self.close()
                seconds = self.draft.job.start_timeout_seconds
                raise ClusterError(f"Only {seated} started within {seconds:g} s (--start-timeout); {slots}.")
            self._told = self._told or now
            if now - self._told >= TOLD_SECONDS:
                self._told = now
                self.report(f"waiting for processes to start: {seated}; {slots}")
            return []
        places = [tuple((host, hello.probe_port) for host in hello.hosts) for hello in hellos]
        if self._probed is None:
            self._probed = now
            for process in self.waiting:
                process.probe(tuple(places))
        reached = [process.reached for process in self.waiting if process.reached is not None]
        if len(reached) < count and now < self._probed + PROBE_SECONDS:
            return []
        names = [process.place for process in self.waiting]
        hosts = choose_hosts(places, [process.reached or frozenset() for process in self.waiting], names)
        seated_all: list[Seat] = [
            SpreadSeat(process, host, self.draft) for process, host in zip(self.waiting, hosts)
        ]
        self.waiting = []
        return seated_all


@dataclass(eq=False)
class SpreadSeat:
    """An agent that waits for the word to begin."""

    process: RemoteProcess
    host: str
    draft: ChildSpec

    @property
    def address(self) -> Address:
        """Where its process will listen."""
        assert self.process.hello is not None, "it is seated"
        return self.host, self.process.hello.port

    def start(self, spec: ChildSpec) -> Child:
        """Have it begin."""
        part = spec.part
        if isinstance(part, Founder):
            return self.process.begin(spec.name, self.host, part.process, part.addresses)
        return self.process.begin(spec.name, self.host, None, (part.contact,))

    def close(self) -> None:
        """Send the agent home."""
        self.process.kill()


def choose_hosts(
    places: Sequence[Sequence[Address]], reached: Sequence[frozenset[Address]], names: Sequence[str]
) -> list[str]:
    """Return under which host each is reached by all others, the first of its own. Raises ClusterError.

    >>> one, two = [("10.0.0.1", 5), ("192.168.0.1", 5)], [("10.0.0.2", 6)]
    >>> choose_hosts([one, two], [frozenset(two), frozenset(one[1:])], ["executor 0", "executor 1"])
    ['192.168.0.1', '10.0.0.2']
    """
    seen = list(zip(names, reached))
    return [choose_host(names[index], own, seen[:index] + seen[index + 1 :]) for index, own in enumerate(places)]


def choose_host(name: str, own: Sequence[Address], seen: Sequence[tuple[str, frozenset[Address]]]) -> str:
    """Return under which of its own hosts one is reached by all others, of which is said what each has reached."""
    for place in own:
        if all(place in reached for _, reached in seen):
            return place[0]
    blind = next((other for other, reached in seen if not reached.intersection(own)), seen[0][0])
    tried = ", ".join(host for host, _ in own)
    raise ClusterError(
        f"{blind} cannot reach the process on {name} (tried {tried}). Let executors connect to each other on all ports."
    )
