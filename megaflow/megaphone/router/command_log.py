"""F's control input: numbered commands come in, the history of routing tables comes out.

F *reads* commands in the order of their numbers. Reading a command gives F the right to send, so it *claims* at once
the capabilities for all that the command will make this worker send (rule 2 of `router`, rules 1 and 2 of
`bin_transfer`). Then F *obeys* the command: it lists it under its time. When control has passed the time, F *decides*
all commands at it: they make one reconfiguration of the history. On a worker that has joined, F reads and claims
commands but does not obey them until it has received the table: see `bootstrap`.

Other commands take another path. F registers a Checkpoint or a Lookup as it reads it (`barrier_actions`), and passes a
Watermark or a Clock on to S (`event_timers`).
"""

from dataclasses import field

from megaflow.errors import CommandRefused, ProtocolError
from megaflow.megaphone.base import routing
from megaflow.megaphone.base.barrier_actions import BarrierActions
from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.base.flat_ends import AnyInput, AnyOutput
from megaflow.megaphone.base.flat_times import FlatTime, outermost
from megaflow.megaphone.router.bin_transfer import Credit, Shipper
from megaflow.megaphone.router.bootstrap import RoutingBacklog, RoutingState, names
from megaflow.megaphone.router.introduction import Introduction, Numbering
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.builder import NodeBuilder
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.progress.antichain import Antichain

_CLOSED = Antichain()
"""The frontier of a control stream that does not exist: no command will come."""


@dataclass(eq=False, repr=False)
class ControlInput:
    """The commands to F of one worker; there are none without inputs for them."""

    name: str  # of the stateful operator
    inputs: tuple[AnyInput[routing.Numbered], AnyInput[RoutingState | Credit]] | None  # commands; messages of other Fs
    shipper: Shipper
    store: BinStore
    state_output: AnyOutput[routing.Watermark | routing.Clock]  # F's output to S
    history: routing.RoutingHistory  # without bins as long as no table is known
    builder: NodeBuilder  # F's
    numbering: Numbering | None  # what numbers the commands here; None: they come numbered
    barrier_actions: BarrierActions | None  # None: the operator keeps no state
    _commands: dict[FlatTime, list[routing.Command]] = field(default_factory=dict)
    """Time that control has not passed -> the obeyed commands."""
    _serving: dict[int, Capability] = field(default_factory=dict)  # number of a Bootstrap -> the routing capability

    def __post_init__(self) -> None:
        context = self.builder.graph.context
        self.node = self.builder.node.index
        self._membership = context.membership
        self._worker = context.allocator.index
        knows_table = bool(self.history.active)
        # holds what arrives before the table does
        self._newcomer = None if knows_table else RoutingBacklog(self._worker, self.numbering is None)
        self._next_number = 0 if knows_table else None  # None: a newcomer accepts any first number
        self.introduction: Introduction | None = None
        if self.numbering is not None:
            self.introduction = Introduction(self.builder.graph, self.node, self.numbering, self._state)

    @property
    def ready(self) -> bool:
        """Whether the table is known: from the start, except on a worker that has joined."""
        return self._newcomer is None

    @property
    def needs_bootstrap(self) -> bool:
        """Whether this worker gets its table by a Bootstrap and has not read that command yet."""
        return self._newcomer is not None and self._newcomer.called is None

    @property
    def frontier(self) -> Antichain:
        """The times for which commands may still come."""
        return self.inputs[0].frontier if self.inputs is not None else _CLOSED

    def read(self) -> None:
        """Read everything that has arrived. Raises ProtocolError unless the numbers are consecutive."""
        newcomer = self._newcomer
        if self.inputs is None:
            return
        commands, sent = self.inputs
        for time, batch in commands.drain():
            for numbered in batch:
                self._check_number(time, numbered.number)
                if self._register(time, numbered.command):
                    continue
                self._claim(time, numbered, newcomer is None or newcomer.read(time, numbered))
                if newcomer is None:
                    self._obey(time, numbered)
            self._reached(self._next_number)
        for time, answers in sent.drain():
            for each in answers:
                if isinstance(each, Credit):
                    self.shipper.credited(time, each)
                elif newcomer is not None:  # else a Bootstrap was not needed: this worker knows the table
                    newcomer.receive(each)
        if newcomer is not None and (state := (self.introduction or newcomer).answer()) is not None:
            self._start(newcomer, state)

    def _register(self, time: FlatTime, command: routing.Command) -> bool:
        """Note work for that time, also on a newcomer, which may own bins by then; return False for other commands."""
        match command:
            case routing.Checkpoint():
                if self.barrier_actions is not None:
                    self.barrier_actions.register(time, command)
                return True
            case routing.Lookup():
                if self.barrier_actions is not None:
                    self.barrier_actions.look(time, command)
                return True
            case routing.Watermark() | routing.Clock():
                if self.store.events.is_heard:
                    self.store.events.read(time, command)
                    self.state_output.ship_to(self._worker, time, [command])
                return True
        return False

    def decide(self, passed: Antichain) -> None:
        """Turn the commands of each time that control has passed into a reconfiguration.

        Raises ProtocolError for a command that cannot be obeyed: it should have been refused before it was injected.
        Commands may be read before this worker learns of a new member, so this checks that they name members, and
        reading does not. Control passes a command only when all members have read it, and a worker learns what a new
        member has read only after it has learnt of the member.
        """
        for time in sorted(self._commands):
            if passed.less_equal(time):
                break
            try:
                for command in self._commands[time]:
                    routing.validate(command, self.store.count, self._membership().workers)
            except CommandRefused as error:
                raise ProtocolError(
                    f"control of {self.name}: the commands for time {outermost(time)} cannot be carried out: {error}"
                ) from error
            self.history.append(time, self._commands.pop(time))

    def _check_number(self, time: FlatTime, number: int) -> None:
        if self._next_number is not None and number != self._next_number:
            raise ProtocolError(
                f"control of {self.name}: command {number} came at time {outermost(time)}, but {self._next_number} "
                "was due; inject commands on one worker only, and without broadcast(), because the operator "
                "broadcasts them itself"
            )
        self._next_number = number + 1

    def _claim(self, time: FlatTime, numbered: routing.Numbered, sends: bool) -> None:
        """Claim what the command may need; `sends`: whether this worker can have anything that the command asks for."""
        match numbered.command:
            case routing.Move() | routing.Map() as command:
                if sends:
                    self.shipper.claim(time)
                if names(command, self._worker):
                    self.shipper.expect(time)
            case routing.Bootstrap(server, _) if sends and server == self._worker:
                self._serving[numbered.number] = self.shipper.routing.mint(time)

    def _obey(self, time: FlatTime, numbered: routing.Numbered) -> None:
        self._reached(numbered.number)
        match numbered.command:
            case routing.Move() | routing.Map() as command:
                self._commands.setdefault(time, []).append(command)
            case routing.Bootstrap(server, worker) if server == self._worker:
                with self._serving.pop(numbered.number):
                    self.shipper.routing.ship_to(worker, time, [self._state(numbered.number + 1)])

    def _reached(self, number: int | None) -> None:
        """Note that all commands below this number have been obeyed, unless no table is known yet."""
        if self.introduction is not None and self._newcomer is None and number is not None:
            self.introduction.obeyed(number)

    def _state(self, next: int) -> RoutingState:
        """Return what F knows now, when it has obeyed all commands below `next` and no other."""
        history = self.history
        undecided = [routing.Reconfiguration(time, tuple(self._commands[time])) for time in sorted(self._commands)]
        return RoutingState(history.active, history.installed, tuple(history.pending), tuple(undecided), next)

    def _start(self, newcomer: RoutingBacklog, state: RoutingState) -> None:
        """Take over the state with the table, and obey the commands that came after it was cut."""
        self._newcomer = None
        self.history = state.history()
        for each in state.undecided:
            self._commands[each.time] = list(each.commands)
        self._reached(state.next)
        if self._next_number is None:
            self._next_number = state.next
        for time, numbered in newcomer.later:
            if numbered.number >= state.next:
                self._obey(time, numbered)
        self._reached(self._next_number)
