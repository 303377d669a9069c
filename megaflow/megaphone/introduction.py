"""How workers that join an engine program's dataflow are told the routing, without a command of the program's.

In a job the coordinator sends a Bootstrap for each *newcomer*: see `bootstrap`. A program's commands may be injected on
any worker, which may wait for an epoch that the newcomer's records hold open, or have closed the stream. So there each
worker tells each newcomer by itself, outside of time. It keeps the *number* that its next command had when it first
counted the newcomer among the members (`Numbering`). F there cuts its `RoutingState` when it has obeyed all commands
below that number and no other, at once if it can, and sends it. If F has obeyed more then, another worker injects, and
it sends None. The newcomer waits for the word of every worker that was there when it built the dataflow, and starts
with the latest state.

Why it then routes exactly as all others do, by the rules of `bootstrap`; n is the greatest number that was sent, by I
 1. *Nothing is missing, nothing counts twice.* I looked at the membership before it gave the number n, so n and what
    followed went to the newcomer, too, which keeps all that it reads, and obeys it from n on. What is below n is in I's
    state: I has not given n when it cuts, so its F cannot have obeyed more than what is below. The state of any other
    has a lower number: of before commands were injected on I, as what is between the two may have gone out without the
    newcomer. Which worker injects nobody knows; so all are heard.
 2. and 3. speak of what F has read and installed wherever the state was cut, whenever that was; they hold as they are.
 4. *Nobody waits.* A message outside of time holds no frontier back, and needs no capability: control may have passed
    every command, or be closed. What waits for it is the newcomer's own data.
 5. *Before n nobody names the newcomer*, as a command is refused unless all whom it names are counted, and its number
    is given after that. So it is named in no state, and reads, and claims for, every command that names it.
 6. *Everybody is heard.* Each worker tells when it learns that a join is done, when it injects, and when it has built
    the dataflow, whichever is first. One that leaves reads all commands before, and the newcomer reads the end of its
    lanes before it lets go of it. One that was still joining and was given up is awaited no more.
A Bootstrap that such a program injects is checked, and changes nothing: who could be named has been told.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from megaflow.errors import ProtocolError
from megaflow.megaphone.bootstrap import RoutingState
from megaflow.timely.communication.channel import Channel
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.membership import Membership, WorkerId


class Numbering:
    """The numbers that one worker gives the commands of one control stream. One writer: the worker's thread."""

    def __init__(self, membership: Callable[[], Membership], own: WorkerId, founders: tuple[WorkerId, ...]) -> None:
        self.next = 0  # the number of the next command
        self.told: list[Callable[[WorkerId, int], None]] = []  # called with each newcomer and the number
        self._membership = membership
        self._own = own
        self._counted = {own, *founders}

    def look(self) -> None:
        """Note who is new among the members; a worker that is none itself, yet or any more, has nothing to tell."""
        members = self._membership().workers
        if self._own in members and not members <= self._counted:
            new = sorted(members - self._counted)
            self._counted.update(new)
            for newcomer in new:
                for tell in self.told:
                    tell(newcomer, self.next)


@dataclass(slots=True)
class _Hearers:
    """Who takes what the Fs of a dataflow tell each other: node -> F's handler."""

    handlers: dict[int, Callable[[WorkerId, Any], None]] = field(default_factory=dict)

    def hear(self, source: WorkerId, body: tuple[int, Any]) -> None:
        """Hand a message to its F."""
        node, state = body
        self.handlers[node](source, state)


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
        self._owed: dict[WorkerId, int] = {}  # newcomer -> number
        self._awaited = set() if founds else {*context.audience()} - {own}  # workers that have not told this one
        self._state: RoutingState | None = None  # the latest that came
        messages = graph.extension(_Hearers)
        messages.handlers[node] = self._hear
        graph.handlers[Channel.aside(graph.number)] = messages.hear
        self._numbering = numbering
        numbering.told.append(self._owe)

    def obeyed(self, number: int) -> None:
        """F has obeyed all commands below this number, and obeys this one next: tell whoever waits for that."""
        begins, self._obeyed = self._obeyed is None, number
        for newcomer, due in list(self._owed.items()) if self._owed else ():
            if due <= number:
                del self._owed[newcomer]
                self._send(newcomer, None if begins and due < number else self._cut(due))

    def follow(self) -> None:
        """Tell who has joined; await no more who was joining and was given up."""
        self._numbering.look()
        if self._awaited:
            self._awaited &= {*self._graph.context.audience()}
            self._graph.run_queue.add(self._node)

    def answer(self) -> RoutingState | None:
        """Return the state to start with, once everybody was heard. Raises ProtocolError if nobody had one."""
        if self._awaited:
            return None
        if self._state is None:
            raise ProtocolError("routing: this worker has joined, but no other one has told it which worker owns what")
        return self._state

    def _owe(self, newcomer: WorkerId, number: int) -> None:
        if self._obeyed is None:
            late = number == 0  # this worker has injected nothing, and knows nothing yet
        else:
            late = number < self._obeyed
        if late or number == self._obeyed:
            self._send(newcomer, None if late else self._cut(number))
        else:
            self._owed[newcomer] = number

    def _send(self, newcomer: WorkerId, state: RoutingState | None) -> None:
        graph = self._graph
        graph.context.allocator.send(newcomer, Channel.aside(graph.number), (self._node, state))

    def _hear(self, source: WorkerId, state: RoutingState | None) -> None:
        self._awaited.discard(source)
        if state is not None and (self._state is None or state.next > self._state.next):
            self._state = state
        self._graph.run_queue.add(self._node)

