"""How workers that join an engine program's dataflow are told the routing, without a command of the program's.

In a job the coordinator sends a Bootstrap for each *newcomer*: see `bootstrap`. A program's commands may be injected on
any worker, which may wait for an epoch that the newcomer's records hold open, have closed the stream, or have left. So
there each worker tells each newcomer by itself, outside of time. When it first counts the newcomer among the members it
takes the *number* that comes after all commands that it has injected and all that have come to it, also those that no
operator has seen (`Numbering`). F there cuts its `RoutingState` when it has obeyed all commands below and no other, and
sends it with a word on whether the last of those numbers was *given* here. The newcomer waits for all workers with ids
below its own, who joined before it or founded the cluster. It starts with the latest of the states whose number was
given by their senders, or, if there are none, with the earliest of all.

Why it then routes exactly as all others do, by the rules of `bootstrap`; n is the number that it starts with
 1. *Nothing is missing, nothing counts twice.* Commands are injected on one worker at a time, I now. If I has injected
    some, it looked at the membership before it gave the number n, so n and what followed went to the newcomer, which
    obeys what it reads from n on; and nobody else gave a higher number. If I has injected none before it looked, all of
    its commands go to the newcomer; if who did so before is still there, n is its number. If that one has left, all its
    commands have come to all, for its lanes were read to their end before another change began: nobody takes a lower
    number than what comes after those, I takes that one, and the earliest state is that.
 2. and 3. speak of what F has read and installed wherever the state was cut, whenever that was; they hold as they are.
 4. *Nobody waits.* A message outside of time holds no frontier back, and needs no capability: control may have passed
    every command, or be closed. What waits for it is the newcomer's own data.
 5. *Before n nobody names the newcomer*, as a command is refused unless all whom it names are counted, and its number
    is given after that. So it is named in no state, and reads, and claims for, every command that names it.
 6. *Everybody is heard.* Each worker tells as soon as it counts the newcomer, or has built the dataflow, if that is
    later. Who fixed its founders had built it: that one tells before anything of the newcomer's comes to it. So the
    earliest state has no command that the newcomer itself injects, and 5 holds for those, too. One that leaves reads
    all commands before, and the newcomer reads the end of its lanes before it lets go of it. One that was still joining
    and was given up is awaited no more.
A Bootstrap that such a program injects is checked, and changes nothing: who could be named has been told.
"""

from collections.abc import Callable
from dataclasses import field
from typing import Any

from megaflow.errors import ProtocolError
from megaflow.megaphone.bootstrap import RoutingState
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.channel import Channel
from megaflow.timely.dataflow.flow_control.input_queue import InputQueue
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.membership import Membership, WorkerId


class Numbering:
    """The numbers that one worker gives the commands of one control stream. One writer: the worker's thread."""

    def __init__(self, membership: Callable[[], Membership], own: WorkerId, founders: tuple[WorkerId, ...]) -> None:
        self.next = 0  # above those that were injected here
        self.passed = 0  # above those that have come from anywhere, and are in no queue any more
        self.queue: InputQueue | None = None  # of those that have come
        self.told: list[Callable[[WorkerId, int, bool], None]] = []  # called with each newcomer, number, and whether
        # this worker gave the last number
        self._membership = membership
        self._own = own
        self._counted = {own, *founders}

    def look(self) -> None:
        """Note who is new among the members; a worker that is none itself, yet or any more, has nothing to tell."""
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
    """Who takes what the Fs of a dataflow tell each other: node -> F's handler."""

    handlers: dict[int, Callable[[WorkerId, Any], None]] = field(default_factory=dict)

    def hear(self, source: WorkerId, body: tuple[int, Any]) -> None:
        """Hand a message to its F."""
        node, told = body
        self.handlers[node](source, told)


class Introduction:
    """What F of one worker tells newcomers, and, on one, is told. One writer: the worker's thread."""

    def __init__(self, graph: Graph, node: int, numbering: Numbering, cut: Callable[[int], RoutingState]) -> None:
        """`node`: F's; `cut(number)`: its state, which has all commands below this number."""
        context = graph.context
        own = context.allocator.index
        self._graph = graph
        self._node = node
        self._cut = cut
        founds = own in graph.founders.workers
        self._obeyed = 0 if founds else None  # number of the command that F obeys next; None: it knows no table
        self._owed: dict[WorkerId, tuple[int, bool]] = {}  # newcomer -> (number, whether it was given here)
        # workers that have not told this one; those with higher ids have joined with it or later
        self._awaited = set() if founds else {worker for worker in context.audience() if worker < own}
        self._states: dict[bool, list[RoutingState]] = {True: [], False: []}  # given by their senders? -> those
        messages = graph.extension(_Hearers)
        messages.handlers[node] = self._hear
        graph.handlers[Channel.aside(graph.number)] = messages.hear
        self._numbering = numbering
        numbering.told.append(self._owe)

    def obeyed(self, number: int) -> None:
        """F has obeyed all commands below this number, and obeys this one next: tell whoever waits for that."""
        begins, self._obeyed = self._obeyed is None, number
        for newcomer, (due, given) in list(self._owed.items()) if self._owed else ():
            if due <= number:
                del self._owed[newcomer]
                self._send(newcomer, self._cut(number if begins else due), given)

    def follow(self) -> None:
        """Tell who has joined; await no more who was joining and was given up, and owe nothing to who has left."""
        self._numbering.look()
        audience = {*self._graph.context.audience()}
        for gone in self._owed.keys() - audience:
            del self._owed[gone]
        if self._awaited:
            self._awaited &= audience
            self._graph.run_queue.add(self._node)

    def answer(self) -> RoutingState | None:
        """Return the state to start with, once everybody was heard. Raises ProtocolError if nobody had one."""
        if self._awaited:
            return None
        given, others = self._states[True], self._states[False]
        if not given and not others:
            raise ProtocolError("routing: this worker has joined, but no other worker has sent it the routing table")
        return max(given, key=_next) if given else min(others, key=_next)

    def _owe(self, newcomer: WorkerId, number: int, given: bool) -> None:
        obeyed = self._obeyed
        if obeyed is not None and obeyed >= number:  # more, if the state that it was told had more than has come to it
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
