"""The routing state that a worker which has joined needs to route as all others do, and what F does until it comes.

`Bootstrap(server, worker)`, command n at time t, makes the server's F send its `RoutingState`, at once and at t, to the
F of `worker`, the *newcomer*. Until then a newcomer has no table: it reads its control input, and keeps its data.

Why it then routes exactly as all others do
 1. The state that answers command n holds the effect of the commands below n, of those alone, and of all of them: the
    server's F reads commands in the order of their numbers and cuts the state when it reads n. The newcomer reads n
    itself, because the worker that injects it counts the newcomer among the members, and everything above n. So it
    starts when it has read its Bootstrap and has the state with `next` n + 1, whichever comes first; what it has read
    below n is in the state. Any other state answers another Bootstrap, which was not needed.
 2. When control has passed s at the newcomer, no F has a command for s or before still to read: each is in the state or
    was read here. So what holds for others holds here: a record at s may be routed (rule 1 of `router`).
 3. A record goes by a table older than the server's active one, installed at T, only if it is before T. There is none:
    T was installed because nothing before T was left upstream of S's output, and the newcomer's data is upstream of it.
 4. No other worker pauses. The newcomer's F reads control as ever, so it holds no control frontier back. The server
    waits for no frontier and goes on. The output for routing states leads to the newcomer's input for them and that
    leads nowhere, so what is under way there holds no frontier back. What waits is the newcomer's own data, under
    capabilities for it; and, at every S, what is later than that, as it waits for any worker that is behind.
 5. A newcomer owns no bin until a command above n gives it one; a command that names it before its Bootstrap is refused
    where commands are validated. So it has nothing to take out for the reconfigurations in the state, and needs no
    capability for them. For commands later than the first that names it, it claims the state output's capability on
    reading them, as every F does (rule 2 of `router`), for by then it may own the bins that they take; and for those
    that name it, the right to give credit (rule 2 of `bin_transfer`). No command in the state does.
"""


from megaflow.errors import ProtocolError
from megaflow.megaphone import routing
from megaflow.megaphone.flat_times import FlatTime, outermost
from megaflow.quick_dataclass import dataclass
from megaflow.timely.membership import WorkerId
from megaflow.timely.order import Time, less_than


@dataclass(frozen=True, slots=True)
class RoutingState:
    """The knowledge that F of one worker has of the routing, as it travels to another."""

    table: routing.RoutingTable  # active
    installed: Time | None  # the time of the active table; None: it is the initial one
    pending: tuple[routing.Reconfiguration, ...]  # decided and not installed, by time
    undecided: tuple[routing.Reconfiguration, ...]  # so far: control has not passed their times
    next: int  # number of the first command that is not in it

    def history(self) -> routing.RoutingHistory:
        """Return the history that its receiver starts with."""
        return routing.RoutingHistory(self.table, self.pending, self.installed)


class RoutingBacklog:
    """The commands and states that F of a worker which has joined takes in before it has a table.

    Bounded by the commands between its Bootstrap and the answer; those before it are not kept. Who is told without one
    (see `introduction`) keeps all.
    """

    def __init__(self, worker: WorkerId, by_command: bool = True) -> None:
        self.later: list[tuple[FlatTime, routing.Numbered]] = []  # (time, command) above its Bootstrap, by number
        self._worker = worker
        # number of its Bootstrap; None: it has not been read; -1: none is needed
        self.called: int | None = None if by_command else -1
        self._given: FlatTime | None = None  # the least time at which a command gives it a bin
        self._states: dict[int, RoutingState] = {}  # next -> what it was sent

    def read(self, time: FlatTime, numbered: routing.Numbered) -> bool:
        """Take a command; return whether it may take bins from this worker, or a state, which needs a capability.

        Raises ProtocolError if the command names this worker before it is bootstrapped.
        """
        command: object = numbered.command
        if not isinstance(command, (routing.Move, routing.Map, routing.Bootstrap)):
            return False  # not for F
        if self.called is None:
            if isinstance(command, routing.Bootstrap) and command.worker == self._worker:
                self.called = numbered.number
            elif names(command, self._worker):
                raise ProtocolError(
                    f"control: command {numbered.number} at time {outermost(time)}, {command!s:.80}, names worker "
                    f"{self._worker}, which has joined but is not bootstrapped yet; it should have been refused"
                )
            return False
        self.later.append((time, numbered))
        named = names(command, self._worker)
        if isinstance(command, routing.Bootstrap):
            return named
        owns = self._given is not None and less_than(self._given, time)
        if named and not owns:
            self._given = time
        return owns

    def receive(self, state: RoutingState) -> None:
        """Take what a server has sent."""
        self._states[state.next] = state

    def answer(self) -> RoutingState | None:
        """Return the state that answers its Bootstrap once both are here: then F starts."""
        return None if self.called is None else self._states.get(self.called + 1)


def names(command: routing.Command, worker: WorkerId) -> bool:
    """Tell whether a command gives this worker a bin, or makes it the server of another."""
    match command:
        case routing.Map(workers):
            return worker in workers
        case routing.Move(_, named) | routing.Bootstrap(named, _):
            return worker == named
    return False
