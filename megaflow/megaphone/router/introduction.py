"""How workers that join an engine program's dataflow get the routing state without a command of the program.

In a job the coordinator sends a Bootstrap for each *newcomer*: see `bootstrap`. In an engine program any worker may
inject commands. That worker may wait for an epoch that the newcomer's records hold open, may have closed the stream, or
may have left. So there each worker sends its routing state to each newcomer by itself, outside of logical time.

When a worker first counts the newcomer among the members, it takes a *number*: the one after all commands that it has
injected and all that have reached it, including those that no operator has seen (`Numbering`). Its F cuts its
`RoutingState` when it has obeyed all commands below that number and no other. It sends the state, and adds whether this
worker *gave* the last of those numbers. The newcomer waits for all workers with ids below its own, which joined before
it or founded the cluster. If senders gave the last number themselves, the newcomer starts with the latest of their
states. Otherwise it starts with the earliest state of all.

Why the newcomer then routes exactly as all others do, by the rules of `bootstrap`; n is the number with which it starts
 1. *Nothing is missing, nothing counts twice.* One worker at a time injects commands; call the present one I. If I had
    injected commands before it counted the newcomer, it looked at the membership before it gave the number n. So n and
    all later commands went to the newcomer, which obeys what it reads from n on, and no other worker gave a higher
    number. If I had injected none by then, all its commands go to the newcomer. If the previous injecting worker is
    still there, n is its number. If that worker has left, its commands have reached all workers, because its lanes were
    read to their end before another change began. So each worker takes at least the number after those commands, and
    I takes exactly that one. It is n, because the earliest state has the least number.
 2. and 3. of `bootstrap` speak of what F has read and installed when the state was cut, wherever and whenever that was.
    They hold unchanged.
 4. *No worker waits for a newcomer.* A message outside of time holds no frontier back and needs no capability: control
    may have passed every command, or may be closed. Only the newcomer's own data waits for the message.
 5. *No command before n names the newcomer.* A command is refused unless all workers that it names are counted, and it
    gets its number after that check. So no state contains a command that names the newcomer. The newcomer reads every
    command that names it, and claims what it needs for it.
 6. *The newcomer hears from every worker.* Each worker sends its state as soon as it counts the newcomer, or when it
    has built the dataflow if that is later. The worker that fixed the dataflow's founders had built it by then, so it
    sends its state before anything from the newcomer reaches it. So the earliest state has no command that the newcomer
    itself injects, and rule 5 also holds for those. A leaver reads all commands before it leaves, and the newcomer
    reads the leaver's lanes to their end before it drops them. The newcomer stops waiting for a worker whose own join
    was given up.
A Bootstrap that such a program injects is checked and changes nothing, because every worker that it can name gets its
table anyway.
"""

from collections.abc import Callable
from dataclasses import field
from typing import Any

from megaflow.errors import ProtocolError
from megaflow.megaphone.router.bootstrap import RoutingState
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.channel import Channel
from megaflow.timely.dataflow.flow_control.input_queue import InputQueue
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.membership import Membership, WorkerId


class Numbering:
    """The numbers that one worker gives to the commands of one control stream. One writer: the worker's thread."""

    def __init__(self, membership: Callable[[], Membership], own: WorkerId, founders: tuple[WorkerId, ...]) -> None:
        self.next = 0  # one above the commands that were injected here
        self.passed = 0  # one above the commands that have come from any worker and left the queue
        self.queue: InputQueue | None = None  # of commands that have come
        self.told: list[Callable[[WorkerId, int, bool], None]] = []  # called with newcomer, number, and whether
        # this worker gave the last number
        self._membership = membership
        self._own = own
        self._counted = {own, *founders}

    def look(self) -> None:
        """Find the new members. A worker that is not, or is no longer, a member itself has nothing to send them."""
        members = self._membership().workers
        if self._own in members and not members <= self._counted:
            new = sorted(members - self._counted)
            self._counted.update(new)
            come = self.passed
            for _, batch in self.queue.batches if self.queue is not None else ():
                come = max(come, batch[-1].number + 1)
            for newcomer in [worker for worker in new if worker > self._own]:
                for tell in self.told:
                    tell(newcomer, max(self.next, come), 0 < self.next >= come)


@dataclass(slots=True)
class _Hearers:
    """The receivers of the messages that the Fs of a dataflow send each other: node -> F's handler."""

    handlers: dict[int, Callable[[WorkerId, Any], None]] = field(default_factory=dict)

    def hear(self, source: WorkerId, body: tuple[int, Any]) -> None:
        """Hand a message to its F."""
        node, told = body
        self.handlers[node](source, told)


class Introduction:
    """What F of one worker sends to newcomers and, on a newcomer, receives. One writer: the worker's thread."""

    def __init__(self, graph: Graph, node: int, numbering: Numbering, cut: Callable[[int], RoutingState]) -> None:
        """`node`: F's node; `cut(number)`: the routing state of F with the effect of all commands below this number."""
        context = graph.context
        own = context.allocator.index
        self._graph = graph
        self._node = node
        self._cut = cut
        founds = own in graph.founders.workers
        self._obeyed = 0 if founds else None  # number of the command that F obeys next; None: it knows no table
        self._owed: dict[WorkerId, tuple[int, bool]] = {}  # newcomer -> (number, whether given here)
        # workers that have not sent their state yet; workers with higher ids have joined with this one or later
        self._awaited = set() if founds else {worker for worker in context.audience() if worker < own}
        self._states: dict[bool, list[RoutingState]] = {True: [], False: []}  # given by its sender? -> states
        messages = graph.extension(_Hearers)
        messages.handlers[node] = self._hear
        graph.handlers[Channel.aside(graph.number)] = messages.hear
        self._numbering = numbering
        numbering.told.append(self._owe)

    def obeyed(self, number: int) -> None:
        """Note that F has obeyed exactly the commands below this number; send the states that wait for that."""
        begins, self._obeyed = self._obeyed is None, number
        for newcomer, (due, given) in list(self._owed.items()) if self._owed else ():
            if due <= number:
                del self._owed[newcomer]
                self._send(newcomer, self._cut(number if begins else due), given)

    def follow(self) -> None:
        """Notice workers that have joined. Stop waiting for joiners that were given up; owe nothing to leavers."""
        self._numbering.look()
        audience = {*self._graph.context.audience()}
        for gone in self._owed.keys() - audience:
            del self._owed[gone]
        if self._awaited:
            self._awaited &= audience
            self._graph.run_queue.add(self._node)

    def answer(self) -> RoutingState | None:
        """Return the state to start with, once every worker has sent one. Raises ProtocolError if none had a state."""
        if self._awaited:
            return None
        given, others = self._states[True], self._states[False]
        if not given and not others:
            raise ProtocolError("routing: this worker has joined, but no other worker has sent it the routing table")
        return max(given, key=_next) if given else min(others, key=_next)

    def _owe(self, newcomer: WorkerId, number: int, given: bool) -> None:
        obeyed = self._obeyed
        if obeyed is not None and obeyed >= number:  # greater if a received state was ahead of its commands
            self._send(newcomer, self._cut(obeyed), given and obeyed == number)
        else:
            self._owed[newcomer] = number, given

    def _send(self, newcomer: WorkerId, state: RoutingState, given: bool) -> None:
        graph = self._graph
        graph.context.allocator.send(newcomer, Channel.aside(graph.number), (self._node, (state, given)))

    def _hear(self, source: WorkerId, told: tuple[RoutingState, bool]) -> None:
        state, given = told
        self._awaited.discard(source)
        self._states[given].append(state)
        self._graph.run_queue.add(self._node)


def _next(state: RoutingState) -> int:
    return state.next
