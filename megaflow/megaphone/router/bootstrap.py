"""The routing state by which a newly joined worker routes like the others, and F's work until that state arrives.

`Bootstrap(server, worker)`, command n at time t, makes the server's F send its `RoutingState`, at once and at t, to the
F of `worker`, the *newcomer*. Until then the newcomer has no table: it reads its control input and keeps its data.

Why the newcomer then routes exactly as all others do
 1. The state that answers command n contains the effect of all commands below n and of no other command: the server's F
    reads commands in the order of their numbers and cuts the state when it reads n. The newcomer itself reads n and
    everything above it, because the worker that injects n counts the newcomer among the members. So it starts when it
    has both its Bootstrap and the state whose `next` is n + 1, in either order. The state contains whatever the
    newcomer has read below n. A state with another `next` answers another Bootstrap, which was not needed.
 2. When control has passed s at the newcomer, no F has a command for s or before still to read. Each such command is in
    the state or was read here. So the same rule holds here as elsewhere: F may route a record at s (rule 1 of
    `router`).
 3. Let T be the time at which the server's active table was installed. A record needs an older table only if it is
    before T. There is no such record: T was installed because nothing before T was left upstream of S's output, and the
    newcomer's data is upstream of it.
 4. No other worker pauses. The newcomer's F keeps reading control, so it holds no control frontier back. The server
    waits for no frontier and goes on. The output for routing states leads only to the newcomer's input for them, and
    that input leads nowhere, so messages on that path hold no frontier back. Only two things wait: the newcomer's own
    data, under its capabilities; and, at every S, later records, as they wait for any worker that is behind.
 5. A newcomer owns no bin until a command above n gives it one. A command that names it before its Bootstrap is refused
    where commands are validated. So the newcomer has nothing to take out for the reconfigurations in the state, and
    needs no capability for them. After the first command that names it, the newcomer may own the bins that later
    commands take. So for each later command it claims the state output's capability on reading it, as every F does
    (rule 2 of `router`). For each command that names it, the newcomer claims the right to give credit (rule 2 of
    `bin_transfer`). No command in the state names it.
"""


from megaflow.errors import ProtocolError
from megaflow.megaphone.base import routing
from megaflow.megaphone.base.flat_times import FlatTime, outermost
from megaflow.quick_dataclass import dataclass
from megaflow.timely.membership import WorkerId
from megaflow.timely.order import Time, less_than


@dataclass(frozen=True, slots=True)
class RoutingState:
    """What one worker's F knows of the routing, in the form that travels to another worker."""

    table: routing.RoutingTable  # active
    installed: Time | None  # the time of the active table; None: it is the initial one
    pending: tuple[routing.Reconfiguration, ...]  # decided and not installed, by time
    undecided: tuple[routing.Reconfiguration, ...]  # not decided yet: control has not passed their times
    next: int  # number of the first command that is not in this state

    def history(self) -> routing.RoutingHistory:
        """Return the history with which the receiver starts."""
        return routing.RoutingHistory(self.table, self.pending, self.installed)


class RoutingBacklog:
    """The commands and states that F receives on a worker that has joined and has no table yet.

    Commands before its Bootstrap are not kept, so the backlog is bounded by the commands between its Bootstrap and the
    answer. A worker that gets the table without a Bootstrap (see `introduction`) keeps all commands.
    """

    def __init__(self, worker: WorkerId, by_command: bool = True) -> None:
        self.later: list[tuple[FlatTime, routing.Numbered]] = []  # (time, command) above its Bootstrap, by number
        self._worker = worker
        # number of its Bootstrap; None: F has not read it yet; -1: it needs none
        self.called: int | None = None if by_command else -1
        self._given: FlatTime | None = None  # the earliest time at which a command gives it a bin
        self._states: dict[int, RoutingState] = {}  # next -> the state that was sent

    def read(self, time: FlatTime, numbered: routing.Numbered) -> bool:
        """Take a command; return whether it may need a capability, because it takes bins or a state from this worker.

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
        """Take a state that a server has sent."""
        self._states[state.next] = state

    def answer(self) -> RoutingState | None:
        """Return the state that answers its Bootstrap once both are here; F starts with it."""
        return None if self.called is None else self._states.get(self.called + 1)


def names(command: routing.Command, worker: WorkerId) -> bool:
    """Tell whether a command gives this worker a bin, or makes it the server of another."""
    match command:
        case routing.Map(workers):
            return worker in workers
        case routing.Move(_, named) | routing.Bootstrap(named, _):
            return worker == named
    return False
