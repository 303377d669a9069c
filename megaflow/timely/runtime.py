"""The runtime of the engine: configurations, worker threads, the end of a program, and its failure.

Each worker runs the same `main(worker)`. When it returns, the worker's inputs close, and the worker steps until its
dataflows are complete. Then it says goodbye. An exception in one worker stops all workers. It is raised here once,
unchanged. Workers that only received news of it raise PeerFailed.

A process that joins a running cluster first opens its port and then asks. The answer names the workers that it runs.
Until they are members, its failure affects no other process.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import field
from typing import Any, Generic, TypeAlias, TypeVar

from megaflow.errors import ClusterError, PeerFailed, UsageError, naming
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.address import address_text, is_loopback, parse_address
from megaflow.timely.communication.allocator import Allocator, FailureReport
from megaflow.timely.communication.local import SIGNAL_SECONDS, LocalFabric
from megaflow.timely.communication.rendezvous import PeerAddress
from megaflow.timely.communication.role_handlers import EntryHandler, RoleHandler
from megaflow.timely.communication.secret import load_secret
from megaflow.timely.communication.tcp import open_listener
from megaflow.timely.communication.tcp_allocator import TcpAllocator
from megaflow.timely.communication.tcp_fabric import TcpFabric
from megaflow.timely.dataflow.error_notes import format_user_traceback
from megaflow.timely.dataflow.graph import ScopeRef
from megaflow.timely.dataflow.other_forms import note_form
from megaflow.timely.membership import Membership, WorkerId, founding
from megaflow.timely.rescale.join_door import JoinDoor, ask_to_join
from megaflow.timely.rescale.messages import Admission, Process
from megaflow.timely.worker import Worker

S = TypeVar("S")
R = TypeVar("R")

_SWITCH_INTERVAL_SECONDS = 0.0005
"""How long a thread may keep the interpreter from the others, when a process has several workers."""


Roles: TypeAlias = Mapping[str, RoleHandler]


@dataclass(frozen=True, slots=True)
class Config:
    """Number of workers and processes, and their addresses. Made by `thread`, `process`, `cluster` and `join`."""

    workers: int = 1  # in this process
    addresses: tuple[str, ...] = ()  # host:port of each process; empty: this process runs alone
    index: int = 0  # of this process
    contacts: tuple[str, ...] = ()  # host:port of processes to ask; if any, this process joins them, at addresses[0]
    server: WorkerId | None = None  # the worker that bootstraps a joining process; None: the coordinator chooses
    listener: socket.socket | None = None
    secret: bytes | None = None  # None: load_secret()
    # role -> its handler; or a function that makes this mapping from the ids of this process's workers
    roles: Roles | Callable[[tuple[WorkerId, ...]], Roles] = field(default_factory=dict)
    report: Callable[[str], None] | None = None
    connect_timeout_seconds: float = 30.0
    around: Callable[[Allocator], Allocator] = lambda allocator: allocator  # wraps a worker's end

    def __post_init__(self) -> None:
        for name, value in {"workers": self.workers, "process": self.index}.items():
            if type(value) is not int:
                raise UsageError(f"Config: {name} must be an int, not {value!r:.200}")
        if self.workers < 1:
            raise UsageError(f"{self.workers} workers: there must be at least one worker in a process")

    @staticmethod
    def thread() -> Config:
        """Configure one worker on the calling thread."""
        return Config()

    @staticmethod
    def process(workers: int) -> Config:
        """Configure several workers as threads of this process."""
        return Config(workers)

    @staticmethod
    def cluster(
        addresses: Sequence[str], process: int, workers: int = 1, listener: socket.socket | None = None, **more: Any
    ) -> Config:
        """Configure process `process` of `len(addresses)`, with `workers` workers each.

        `listener` is bound to this process's address. `more` holds further fields of Config. Raises UsageError for an
        index without an address, and for listening beyond this machine without a secret in MEGAFLOW_SECRET.
        """
        if isinstance(addresses, str) or not addresses:
            raise UsageError(
                f"Config.cluster({addresses!r}, …): give a list of addresses, one for each process, as in "
                "['localhost:2101', 'localhost:2102']"
            )
        if type(process) is int and not 0 <= process < len(addresses):
            raise UsageError(
                f"process {process} of {len(addresses)}: there are addresses for processes 0 to {len(addresses) - 1}"
            )
        return Config(workers, tuple(addresses), process, listener=listener, **more)

    @staticmethod
    def join(
        contact: str | Sequence[str],
        address: str | None = None,
        workers: int = 1,
        server: WorkerId | None = None,
        listener: socket.socket | None = None,
        **more: Any,
    ) -> Config:
        """Configure an additional process that asks to join a running cluster at `contact`.

        If there are several contacts, it asks the first that answers. Other processes reach it at `address`, by default
        where `listener` is bound. `more` holds further fields of Config. Raises UsageError for invalid arguments.
        """
        contacts = (contact,) if isinstance(contact, str) else tuple(contact)
        if not contacts:
            raise UsageError("Config.join: name at least one process to ask, as in 'localhost:2101'")
        if address is None and listener is None:
            raise UsageError("Config.join: give the address of this process, as in address='localhost:2103'")
        own = address_text(listener.getsockname()) if address is None and listener is not None else address
        return Config(workers, (own or "",), contacts=contacts, server=server, listener=listener, **more)


@dataclass(frozen=True, slots=True)
class UserProgram(Generic[S, R]):
    """Program that every worker runs."""

    main: Callable[[Worker[S]], R]
    make_scope: Callable[[ScopeRef], S]
    args: Sequence[str] = ()


def execute(config: Config, program: UserProgram[S, R]) -> list[R]:
    """Run the workers of this process to completion; return the results of `main`.

    Blocks. Raises the error of `main` on a local worker, and PeerFailed if a worker of another process raised. Raises
    PeerLost, ConnectTimeout, ConfigMismatch or GraphMismatch if the cluster cannot start or continue.
    """
    if config.contacts:
        return _join(config, program)
    if not config.addresses:
        return run_workers(program, local_ends(config), founding(range(config.workers)))
    door = JoinDoor(_ids(config, config.index))
    with connected(config, door) as (ends, peers):
        membership = founding(worker for peer in peers for worker in peer.ids)
        processes = {peer.process: (peer.host, peer.port, peer.ids) for peer in peers}
        return run_workers(program, ends, membership, config.addresses[config.index], processes, door=door)


def check_start(verb: str, config: object, main: object) -> None:
    """Raise UsageError unless a program is started by a Config and a function."""
    if not isinstance(config, Config):
        raise UsageError(f"{verb}({config!r:.200}, …): give a Config first, as Config.process(2)")
    if not callable(main):
        raise UsageError(f"{verb}(…, {main!r:.200}): give the function that each worker runs")


def local_ends(config: Config) -> list[Allocator]:
    """Return each worker's end of the transport within this process alone."""
    fabric = LocalFabric(range(config.workers))
    return [config.around(fabric.allocator(worker)) for worker in range(config.workers)]


@contextmanager
def connected(
    config: Config, door: EntryHandler | None = None
) -> Iterator[tuple[list[Allocator], list[PeerAddress]]]:
    """Connect the processes of a cluster. Yields each local worker's end of the transport, and all processes.

    `door` admits other processes; without it no process can join. Waits for all processes. Raises the errors of
    `execute` if they cannot connect.
    """
    peers = [
        PeerAddress(process, *parse_address(address), _ids(config, process))
        for process, address in enumerate(config.addresses)
    ]
    own = peers[config.index]
    listener = _listen(config, f"process {own.process}", own.host, own.port)
    secret = config.secret if config.secret is not None else load_secret()
    with closing(_fabric(config, listener, own.ids, secret, door)) as tcp:
        tcp.connect(peers, config.index, config.workers, config.connect_timeout_seconds)
        yield [config.around(TcpAllocator(tcp, worker)) for worker in own.ids], peers


def _ids(config: Config, process: int) -> tuple[WorkerId, ...]:
    """Return the workers of a founding process."""
    return tuple(range(process * config.workers, (process + 1) * config.workers))


def _join(config: Config, program: UserProgram[S, R]) -> list[R]:
    """Ask to join, connect to all members, and run the workers."""
    host, port = parse_address(config.addresses[0])
    with closing(_listen(config, "this process", host, port)) as listener:
        secret = config.secret if config.secret is not None else load_secret()
        contacts = [parse_address(contact) for contact in config.contacts]
        listens = host, port or listener.getsockname()[1]
        patience = config.connect_timeout_seconds
        admission = ask_to_join(contacts, secret, listens, config.workers, config.server, patience)
        own = PeerAddress(admission.process, *listens, admission.ids)
        members = [PeerAddress(process, *place) for process, place in admission.processes.items()]
        door = JoinDoor(own.ids)
        with closing(_fabric(config, listener, own.ids, secret, door)) as tcp:
            tcp.join(members, own, admission.change, patience)
            ends = [config.around(TcpAllocator(tcp, worker)) for worker in own.ids]
            address, processes = address_text(listens), admission.processes
            return run_workers(program, ends, admission.membership, address, processes, admission, door)


def _fabric(
    config: Config, listener: socket.socket, ids: tuple[WorkerId, ...], secret: bytes, door: EntryHandler | None
) -> TcpFabric:
    roles = config.roles(ids) if callable(config.roles) else config.roles
    return TcpFabric(listener, ids, secret, roles, config.report, entry=door)


def _listen(config: Config, who: str, host: str, port: int) -> socket.socket:
    if config.listener is not None:
        return config.listener
    if config.secret is None and not is_loopback(host) and "MEGAFLOW_SECRET" not in os.environ:
        raise UsageError(
            f"{who} would listen on {host}:{port}, which other machines can reach; "
            "set MEGAFLOW_SECRET to the same value for all processes"
        )
    with naming(UsageError, f"{who} cannot listen on {host}:{port}", ""):
        return open_listener(host, port)


def run_workers(
    program: UserProgram[S, R],
    allocators: Sequence[Allocator],
    membership: Membership,
    address: str = "",
    processes: dict[int, Process] | None = None,
    admission: Admission | None = None,
    door: JoinDoor | None = None,
) -> list[R]:
    """Run one worker per allocator, the first on this thread. Return the results of `main`. Blocks until all are done.

    - `membership` is the current one.
    - `address`, of this process, is for reports.
    - `processes` are those of the members, None if this process always stays alone.
    - `admission`: these workers join.
    - `door` admits other processes.
    """

    def live(allocator: Allocator) -> R:
        clocks = (time.monotonic, time.time)
        worker = Worker(allocator, membership, program.make_scope, clocks, program.args, processes, admission, door)
        result = program.main(worker)
        worker.bootstrap()  # for a joining program that has not called it: the worker takes part anyway
        worker.close_inputs()
        worker.end_building()
        while worker.installed_dataflows and worker.step_or_park(None):
            pass
        worker.part()
        return result

    return run_threads(live, allocators, address)


def run_threads(live: Callable[[Allocator], R], allocators: Sequence[Allocator], address: str = "") -> list[R]:
    """Run `live(allocator)` for each, the first on this thread. Return the results once all have said goodbye.

    A failure of one ends all, here and in other processes.
    """
    runs = [_Execution(allocator, address, live) for allocator in allocators]
    threads = [threading.Thread(target=run.work, name=f"megaflow-{run.allocator.index}") for run in runs[1:]]
    interval = sys.getswitchinterval()
    if threads:
        sys.setswitchinterval(min(interval, _SWITCH_INTERVAL_SECONDS))
    try:
        for thread in threads:
            thread.start()
        runs[0].work()
        for thread in threads:
            while thread.is_alive():
                thread.join(SIGNAL_SECONDS)
    except BaseException as error:  # Ctrl-C before or after this thread has a worker, while the other workers run
        runs[0].fail(error)
    for thread in threads:
        if thread.ident is not None:  # otherwise it never started, or will learn of the failure when it starts
            thread.join()
    if threads:
        sys.setswitchinterval(interval)
    errors = [run.error for run in runs if run.error is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, PeerFailed)), errors[0])
    return [run.result for run in runs]


@dataclass(slots=True)
class _Execution(Generic[R]):
    """One worker's life on its thread."""

    allocator: Allocator
    address: str
    live: Callable[[Allocator], R]
    result: Any = None
    error: BaseException | None = None

    def work(self) -> None:
        """Run the worker and say goodbye. Keep an error for the caller, after the other workers have received it."""
        try:
            self.result = self.live(self.allocator)
            self.allocator.finish()
        except BaseException as error:  # an error of one worker stops all; run_threads raises it again
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Keep the error for the caller and tell the other workers."""
        self.error = error
        note_form(error)
        if not isinstance(error, PeerFailed):
            ours = isinstance(error, ClusterError)
            text = f"{type(error).__name__}: {error}" if ours else format_user_traceback(error)
            self.allocator.abort(FailureReport(self.allocator.index, self.address, text))
