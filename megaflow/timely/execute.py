"""Starting workers: configurations, threads, the end of a program, and its failure.

Each worker runs the same `main(worker)`. When it returns the worker's inputs close and it
steps until its dataflows are complete; then it says goodbye. An exception in one worker
stops all: it is raised here as it is, once; workers that only heard of it raise PeerFailed.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from megaflow.errors import ClusterError, PeerFailed, UsageError
from megaflow.timely.communication.allocator import Allocator, FailureReport
from megaflow.timely.communication.fabric import TcpFabric
from megaflow.timely.communication.links import RoleHandler
from megaflow.timely.communication.local import LocalFabric
from megaflow.timely.communication.meeting import PeerAddress
from megaflow.timely.communication.secret import is_loopback, load_secret
from megaflow.timely.communication.tcp import open_listener
from megaflow.timely.dataflow.blame import format_user_traceback
from megaflow.timely.dataflow.graph import ScopeRef
from megaflow.timely.membership import founding
from megaflow.timely.worker import Worker

S = TypeVar("S")
R = TypeVar("R")

_HIGHEST_PORT = 65535
_SWITCH_INTERVAL_SECONDS = 0.0005
"""How long a thread may keep the interpreter from the others, when a process has several workers."""


@dataclass(frozen=True, slots=True)
class Config:
    """How many workers, in how many processes, and where; made by `thread`, `process` and `cluster`."""

    workers: int = 1  # in this process
    addresses: tuple[str, ...] = ()  # host:port of each process; empty: this process alone
    index: int = 0  # of this process
    listener: socket.socket | None = None
    secret: bytes | None = None  # None: load_secret()
    roles: Mapping[str, RoleHandler] = field(default_factory=dict)
    watch: Mapping[Any, Callable[[], None]] = field(default_factory=dict)  # readable file -> callback
    report: Callable[[str], None] | None = None
    connect_timeout_seconds: float = 30.0

    @staticmethod
    def thread() -> Config:
        """One worker on the calling thread."""
        return Config()

    @staticmethod
    def process(workers: int) -> Config:
        """Several workers as threads of this process."""
        if workers < 1:
            raise UsageError(f"Config.process({workers}): there must be at least one worker")
        return Config(workers)

    @staticmethod
    def cluster(
        addresses: Sequence[str],
        process: int,
        workers: int = 1,
        listener: socket.socket | None = None,
        **more: Any,
    ) -> Config:
        """Process `process` of `len(addresses)`, with `workers` workers each; `listener` is bound to its address.

        `more` are further fields of Config. Raises UsageError for an index without an address, or for listening
        beyond this machine without a secret in MEGAFLOW_SECRET.
        """
        if not 0 <= process < len(addresses):
            raise UsageError(
                f"process {process} of {len(addresses)}: there are addresses for processes 0 to {len(addresses) - 1}"
            )
        if workers < 1:
            raise UsageError(f"{workers} workers: there must be at least one worker in a process")
        return Config(workers, tuple(addresses), process, listener, **more)


@dataclass(frozen=True, slots=True)
class Program(Generic[S, R]):
    """What every worker runs."""

    main: Callable[[Worker[S]], R]
    make_scope: Callable[[ScopeRef], S]
    args: Sequence[str] = ()


def execute(config: Config, program: Program[S, R]) -> list[R]:
    """Run the workers of this process to completion; return what each `main` returned.

    Blocks. Raises what `main` raised, in whichever local worker; PeerFailed if a worker of another process did;
    PeerLost, ConnectTimeout, ConfigMismatch or GraphMismatch if the cluster cannot start or go on.
    """
    if not config.addresses:
        ids = range(config.workers)
        fabric = LocalFabric(ids)
        return run_workers([fabric.allocator(worker) for worker in ids], ids, program)
    peers = _peers(config)
    own = peers[config.index]
    listener = config.listener if config.listener is not None else _listen(own, config.secret)
    secret = config.secret if config.secret is not None else load_secret()
    with closing(TcpFabric(listener, own.ids, secret, config.roles, config.report)) as tcp:
        for file, callback in config.watch.items():
            tcp.watch(file, callback)
        tcp.connect(peers, config.index, config.workers, config.connect_timeout_seconds)
        ids = range(len(peers) * config.workers)
        allocators = [tcp.allocator(worker) for worker in own.ids]
        return run_workers(allocators, ids, program, config.addresses[config.index])


def _peers(config: Config) -> list[PeerAddress]:
    made = []
    for process, address in enumerate(config.addresses):
        host, port = split_address(address)
        ids = tuple(range(process * config.workers, (process + 1) * config.workers))
        made.append(PeerAddress(process, host, port, ids))
    return made


def split_address(text: str) -> tuple[str, int]:
    """`host:port` as a pair.

    >>> split_address("localhost:2101"), split_address("[::1]:80")
    (('localhost', 2101), ('::1', 80))
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > _HIGHEST_PORT:
        raise UsageError(f"{text!r} is no address; write host:port, as in localhost:2101")
    return host.strip("[]"), int(port)


def _listen(own: PeerAddress, secret: bytes | None) -> socket.socket:
    if secret is None and not is_loopback(own.host) and "MEGAFLOW_SECRET" not in os.environ:
        raise UsageError(
            f"process {own.process} is to listen on {own.host}:{own.port}, which other machines reach; "
            "set MEGAFLOW_SECRET to the same value for all processes"
        )
    try:
        return open_listener(own.host, own.port)
    except OSError as error:
        raise UsageError(f"process {own.process} cannot listen on {own.host}:{own.port}: {error}") from error


def run_workers(
    allocators: Sequence[Allocator], ids: Sequence[int], program: Program[S, R], address: str = ""
) -> list[R]:
    """Run one worker per allocator, the first on this thread; return what each `main` returned.

    `ids` are all workers of the cluster, `address` this process's, for reports. Blocks until all are done.
    """
    runs = [_Run(allocator, ids, program, address) for allocator in allocators]
    threads = [threading.Thread(target=run.work, name=f"megaflow-{run.allocator.index}") for run in runs[1:]]
    if threads:
        sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    try:
        for thread in threads:
            thread.start()
        runs[0].work()
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C while this thread has no worker yet, or none any more: the others have
        runs[0].fail(error)
    for thread in threads:
        if thread.ident is not None:  # else it was not started, or will learn of the failure when it is
            thread.join()
    errors = [run.error for run in runs if run.error is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, PeerFailed)), errors[0])
    return [run.result for run in runs if run.finished]


@dataclass(slots=True)
class _Run(Generic[S, R]):
    """One worker's life on its thread."""

    allocator: Allocator
    ids: Sequence[int]
    program: Program[S, R]
    address: str
    result: Any = None
    finished: bool = False
    error: BaseException | None = None

    def work(self) -> None:
        """Run `main`, drain, say goodbye. An error is kept for the caller after the others have been told."""
        try:
            clocks = (time.monotonic, time.time)
            program = self.program
            worker = Worker(self.allocator, founding(self.ids), program.make_scope, clocks, program.args)
            self.result = self.program.main(worker)
            worker.close_inputs()
            worker.end_building()
            while worker.installed_dataflows and worker.step_or_park(None):
                pass
            self.allocator.finish()
            self.finished = True
        except BaseException as error:  # whatever stops one worker stops all; raised again by run_workers
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Keep the error for the caller and tell the other workers."""
        self.error = error
        if not isinstance(error, PeerFailed):
            ours = isinstance(error, ClusterError)
            text = f"{type(error).__name__}: {error}" if ours else format_user_traceback(error)
            self.allocator.abort(FailureReport(self.allocator.index, self.address, text))
