"""Processes that join the running job, as the launcher sees them.

1. The coordinator asks for processes (`StartProcesses`); the launcher starts them, and they ask to join by themselves.
   Where they run elsewhere they may have to wait for room (`StartWaits`); the coordinator's patience begins after that.
   Until the coordinator says that a process has joined (`ProcessJoined`) its death is reported to the coordinator only,
   which may wait for one no longer and have it killed (`EndProcess`).
2. When a process has joined, the launcher first waits for its outputs, too, and then connects to it: before that the
   process sends nothing (see `megaflow.job.worker.output`). A thread connects, as the process may be in a long step,
   and waits for as long as it is: if the launcher has started the process, its end ends that, too.
3. The launcher first hears of a process that was started by hand when it has joined.
4. The ends of all processes that the launcher has started are noticed here, those included that the job began with.
"""

import functools
import selectors
from collections import deque
from collections.abc import Callable
from dataclasses import field
from typing import Protocol, TypeAlias

from megaflow.control.launcher_messages import (
    EndProcess,
    ProcessJoined,
    Started,
    StartFailed,
    StartProcesses,
    StartWaits,
)
from megaflow.errors import ClusterError, MegaflowError
from megaflow.job.launcher.child_process import Child
from megaflow.job.launcher.children import Children
from megaflow.job.launcher.machine import Machine
from megaflow.job.spec import Address
from megaflow.quick_dataclass import dataclass

STEP_SECONDS = 1_000_000.0  # of the longest step: eleven days; the system counts in milliseconds, and only to 2**31


class Arrivals(Protocol):
    """Processes that are being started."""

    @property
    def left(self) -> int:
        """How many have not been."""

    def started(self) -> list[Child]:
        """Return those that were since the last call. Raises MegaflowError or OSError if no more will be."""

    def waits_for(self) -> str:
        """Say what those wait for that have not been."""


@dataclass(eq=False)
class AllStarted:
    """Processes that were started at once."""

    children: list[Child]
    left: int = 0

    def started(self) -> list[Child]:
        """Return all, once."""
        children, self.children = self.children, []
        return children

    def waits_for(self) -> str:
        """Nothing waits."""
        return ""


Start: TypeAlias = Callable[[int, Address, bool, Callable[[], None]], Arrivals]
"""Start so many that join through a contact, perhaps with other code; wakes by the last, if some must wait."""


@dataclass(eq=False)
class Newcomers:
    """Starts these processes, and watches all. One writer: the launcher's loop, which gives its selector."""

    children: Children
    start_processes: Start
    selector: selectors.BaseSelector
    answer: Callable[[Started | StartFailed | StartWaits], None]  # tells the coordinator
    connected: Callable[[Child], None]  # told when a member can be listened to
    lost: Callable[[ClusterError], None]  # told when a member cannot be reached, or has died
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        self.connecting: set[Child] = set()  # members that are not connected to yet; written here
        self._results: deque[tuple[Child, ClusterError | None]] = deque()  # put by threads
        self._arrivals: list[tuple[int, Arrivals, str]] = []  # number of the request, and what the coordinator knows
        self._wakeup = self.machine.wakeup()
        self.selector.register(self._wakeup, selectors.EVENT_READ, self._take_results)

    def start(self, request: StartProcesses) -> None:
        """Start the processes that the coordinator asks for, and answer it."""
        contact = (request.host, request.port)
        try:
            arrivals = self.start_processes(request.count, contact, request.other_code, self._wakeup.wake)
        except (MegaflowError, OSError) as error:
            self.answer(StartFailed(f"the launcher cannot start processes: {error}", request.number))
            return
        self._arrivals.append((request.number, arrivals, ""))
        self._take_arrivals()

    def _take_arrivals(self) -> None:
        """Tell the coordinator of those that were started meanwhile, and what the others wait for."""
        waiting, self._arrivals = self._arrivals, []
        for number, arrivals, told in waiting:
            try:
                started = arrivals.started()
            except (MegaflowError, OSError) as error:
                for _ in range(arrivals.left):
                    self.answer(StartFailed(f"the launcher cannot start processes: {error}", number))
                continue
            for child in started:
                self.watch(child, number)
            if started:
                pids = tuple(child.process.pid for child in started if child.process is not None and child.process.pid)
                self.answer(Started(tuple(child.address for child in started), number, pids))
            if arrivals.left:
                if (reason := arrivals.waits_for()) != told:
                    self.answer(StartWaits(number, arrivals.left, reason))
                self._arrivals.append((number, arrivals, reason))

    def end(self, request: EndProcess) -> None:
        """Kill a process that the coordinator waits for no longer; nothing happens if it has joined or ended."""
        child = self.children.at((request.host, request.port))
        if child is not None and not child.is_member and child.process is not None and child.exit_code is None:
            child.given_up = request.reason
            child.process.kill()

    def watch(self, child: Child, number: int = 0) -> None:
        """Notice the end of a process that the launcher has started; `number` is that of the request for it."""
        assert child.pipe is not None
        self.selector.register(child.pipe, selectors.EVENT_READ, functools.partial(self._hear, child, number))

    def joined(self, message: ProcessJoined, secret: bytes, timeout_seconds: float) -> Child:
        """Note that a process is part of the job, and connect to it; `timeout_seconds` is for one started by hand."""
        address = (message.host, message.port)
        child = self.children.at(address)
        if child is None or child.is_member:
            child = self.machine.child(address)  # started by hand
            self.children.all.append(child)
        child.join(message.workers)
        self.connecting.add(child)
        patience = timeout_seconds if child.process is None else STEP_SECONDS
        self.machine.aside("megaflow-connect", functools.partial(self._connect, child, secret, patience))
        return child

    def close(self) -> None:
        """Close what is open."""
        self._wakeup.close()

    def _connect(self, child: Child, secret: bytes, timeout_seconds: float) -> None:
        error: ClusterError | None = None
        try:
            child.connect(secret, timeout_seconds)
        except ClusterError as trouble:
            error = trouble
        self._results.append((child, error))
        try:
            self._wakeup.wake()
        except OSError:
            child.close()  # the launcher's loop has ended

    def _take_results(self) -> None:
        self._wakeup.clear()
        self._take_arrivals()
        while self._results:
            child, error = self._results.popleft()
            self.connecting.discard(child)
            if error is not None:
                self.lost(error)
            else:
                self.connected(child)

    def _hear(self, child: Child, number: int) -> None:
        """Read the exit report of a process, or notice its end."""
        assert child.pipe is not None
        if not child.pipe.read():
            return
        self.selector.unregister(child.pipe)
        if not child.is_member:
            self.answer(StartFailed(child.why_it_never_joined(), number, child.address))
        self.children.bury(child)
