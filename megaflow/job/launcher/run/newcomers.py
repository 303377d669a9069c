"""Processes that join the running job, from the launcher's side.

1. The coordinator asks for processes (`StartProcesses`). The launcher starts them, and they ask to join by themselves.
   On Spark they may have to wait for a slot (`StartWaits`); the coordinator's patience begins after that. Until the
   coordinator reports that a process has joined (`ProcessJoined`), the launcher reports its death to the coordinator
   only. The coordinator may give up waiting for a process and ask the launcher to kill it (`EndProcess`).
2. When a process has joined, the launcher first makes it a member, so epochs wait for its outputs. Then it connects to
   the process, which sends nothing before that (see `megaflow.job.worker.writing.output`). A thread connects, because
   the process may be in a long step, and waits until that step ends. If the launcher started the process, the wait also
   ends with the process.
3. Before a process that was started by hand joins, a thread connects to its address, as the coordinator requests
   (`TryToReach`), and closes the connection. The launcher keeps nothing of such a process before it has joined.
4. This module notices the end of every process that the launcher has started, including the founders of the job.
"""

import functools
import selectors
from collections import deque
from collections.abc import Callable
from dataclasses import field
from typing import TypeAlias

from megaflow.control import launcher_messages as messages
from megaflow.errors import ClusterError, MegaflowError
from megaflow.job.launcher.processes.busy_workers import where_it_is
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.children import Children
from megaflow.job.launcher.run.machine import Machine
from megaflow.job.launcher.run.process_starter import StartedOneByOne
from megaflow.job.spec import Address
from megaflow.quick_dataclass import dataclass

STEP_SECONDS = 1_000_000.0  # the longest step, eleven days: the system counts in milliseconds, and only to 2**31


Start: TypeAlias = Callable[[int, Address, bool, Callable[[], bool]], StartedOneByOne]
"""Start a number of processes that join through a contact, perhaps with other code.

If some of them must wait, the last argument is called when there is something new.
"""


@dataclass(eq=False)
class Newcomers:
    """Starter of these processes, and watcher of all. One writer: the launcher's loop, which passes its selector."""

    children: Children
    start_processes: Start
    selector: selectors.BaseSelector
    answer: Callable[  # to the coordinator
        [messages.Started | messages.StartFailed | messages.StartWaits | messages.Reached], None
    ]
    connected: Callable[[Child], None]  # called when the launcher can read from a member
    lost: Callable[[ClusterError], None]  # called when a member cannot be reached, or has died
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        self.connecting: set[Child] = set()  # members without a connection so far; written here
        self._results: deque[tuple[Child, ClusterError | None]] = deque()  # threads append
        self._reached: deque[messages.Reached] = deque()  # threads append
        self._arrivals: list[tuple[int, StartedOneByOne, str]] = []  # request number, and what was last answered
        self._wakeup = self.machine.wakeup()
        self.selector.register(self._wakeup, selectors.EVENT_READ, self._take_results)

    def start(self, request: messages.StartProcesses) -> None:
        """Start the processes that the coordinator asks for, and answer it."""
        contact = (request.host, request.port)
        try:
            arrivals = self.start_processes(request.count, contact, request.other_code, self._wakeup.wake)
        except (MegaflowError, OSError) as error:
            self.answer(messages.StartFailed(f"the launcher cannot start processes: {error}", request.number))
            return
        self._arrivals.append((request.number, arrivals, ""))
        self._take_arrivals()

    def _take_arrivals(self) -> None:
        """Report to the coordinator which processes have started, and what the others wait for."""
        waiting, self._arrivals = self._arrivals, []
        for number, arrivals, told in waiting:
            try:
                started = arrivals.started()
            except (MegaflowError, OSError) as error:
                for _ in range(arrivals.left):
                    self.answer(messages.StartFailed(f"the launcher cannot start processes: {error}", number))
                continue
            for child in started:
                self.watch(child, number)
            if started:
                pids = tuple(child.process.pid for child in started if child.process is not None and child.process.pid)
                self.answer(messages.Started(tuple(child.address for child in started), number, pids))
            if arrivals.left:
                if (reason := arrivals.waits_for()) != told:
                    self.answer(messages.StartWaits(number, arrivals.left, reason))
                self._arrivals.append((number, arrivals, reason))

    def cancel_waiting(self, reason: str) -> None:
        """Start none of the processes that wait for a slot, and report each to the coordinator."""
        waiting, self._arrivals = self._arrivals, []
        for number, arrivals, _ in waiting:
            for _ in range(arrivals.cancel()):
                self.answer(messages.StartFailed(reason, number))

    def end(self, request: messages.EndProcess) -> None:
        """Kill a process for which the coordinator no longer waits. Do nothing if it has joined or ended."""
        child = self.children.at((request.host, request.port))
        if child is not None and not child.is_member and child.process is not None and child.exit_code is None:
            where = where_it_is(child)
            child.given_up = f"{request.reason}; it has been {where}" if where else request.reason
            child.process.kill()

    def reach(self, address: Address) -> None:
        """Try to connect to a process that asks to join, and answer the coordinator."""
        child = self.children.at(address)
        if child is not None and not child.is_member and child.process is not None and child.exit_code is None:
            self.answer(messages.Reached(*address))  # the launcher has started it, at an address that others reach
        else:
            self.machine.aside("megaflow-reach", functools.partial(self._reach, address))

    def _reach(self, address: Address) -> None:
        self._reached.append(messages.Reached(*address, self.machine.trouble(address)))
        self._wakeup.wake()

    def watch(self, child: Child, number: int = 0) -> None:
        """Notice the end of a process that the launcher has started; `number` is that of the request for it."""
        assert child.pipe is not None
        self.selector.register(child.pipe, selectors.EVENT_READ, functools.partial(self._hear, child, number))

    def joined(self, message: messages.ProcessJoined, secret: bytes, timeout_seconds: float) -> Child:
        """Make a process a member and connect to it; `timeout_seconds` limits that for a process started by hand."""
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
        """Close the wakeup."""
        self._wakeup.close()

    def _connect(self, child: Child, secret: bytes, timeout_seconds: float) -> None:
        error: ClusterError | None = None
        try:
            child.connect(secret, timeout_seconds)
        except ClusterError as trouble:
            error = trouble
        self._results.append((child, error))
        if not self._wakeup.wake():
            child.close()  # the launcher's loop has ended

    def _take_results(self) -> None:
        self._wakeup.clear()
        self._take_arrivals()
        while self._reached:
            self.answer(self._reached.popleft())
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
            self.answer(messages.StartFailed(child.why_it_never_joined(), number, child.address))
        self.children.bury(child)
