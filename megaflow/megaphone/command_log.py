"""F's control input: numbered commands come in, the history of routing tables comes out.

A command is *read*, in the order of the numbers; that gives the right to send what it will make this worker send, and
the capabilities for it are *claimed* at once (rule 2 of `router`, rules 1 and 2 of `bin_transfer`). It is *obeyed*:
listed under its time. When control has passed the time, all commands at it are *decided*: they make one reconfiguration
of the history. On a worker that has joined, commands are read and claimed but not obeyed until it has been told the
table: see `bootstrap`. A Checkpoint or a Lookup is none of this: it is registered as it is read (`moments`); nor is a
Watermark or a Clock, which goes on to S (`event_timers`).
"""

from megaflow.errors import CommandRefused, ProtocolError
from megaflow.megaphone import routing
from megaflow.megaphone.bin_transfer import Credit, Shipper
from megaflow.megaphone.bootstrap import RoutingBacklog, RoutingState, names
from megaflow.megaphone.flat_ends import AnyInput
from megaflow.megaphone.flat_times import FlatTime, outermost
from megaflow.megaphone.introduction import Introduction, Numbering
from megaflow.megaphone.journal import Journal
from megaflow.megaphone.moments import Moments
from megaflow.timely.dataflow.builder import NodeBuilder
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.progress.antichain import Antichain

_CLOSED = Antichain()
"""The frontier of a control stream that does not exist: nothing will be commanded."""


class ControlInput:
    """The commands to F of one worker. Without inputs for them there are none."""

    def __init__(
        self,
        name: str,
        inputs: tuple[AnyInput[routing.Numbered], AnyInput[RoutingState | Credit]] | None,
        shipper: Shipper,
        bins: int,
        history: routing.RoutingHistory | None,
        builder: NodeBuilder,
        numbering: Numbering | None,
        moments: Moments | None = None,
    ) -> None:
        """`inputs`: of commands, and of what F of another worker sends; `history`: None if no table is known yet.

        `numbering`: who numbers the commands here; None: they come numbered. `builder`: F's.
        """
        context = builder.graph.context
        self.node = builder.node.index
        self.history = history or routing.RoutingHistory(())
        self._name = name
        self._inputs = inputs
        self._shipper = shipper
        self._bins = bins
        self._moments = moments  # None: the operator keeps nothing
        self._membership = context.membership
        self._worker = context.allocator.index
        # until it is told the table
        self._newcomer = RoutingBacklog(self._worker, numbering is None) if history is None else None
        self._next_number = 0 if history is not None else None  # None: a newcomer begins with any
        self._commands: dict[FlatTime, list[routing.Command]] = {}  # time control has not passed -> obeyed commands
        self._serving: dict[int, Capability] = {}  # number of a Bootstrap -> the routing output's
        self._introduction = (
            None if numbering is None else Introduction(builder.graph, self.node, numbering, self._state)
        )

    @property
    def ready(self) -> bool:
        """Whether the table is known: at once, but on a worker that has joined."""
        return self._newcomer is None

    @property
    def needs_bootstrap(self) -> bool:
        """Whether it is for a Bootstrap to say which table there is, and none has come."""
        return self._newcomer is not None and self._newcomer.called is None

    @property
    def forgotten(self) -> bool:
        """Whether the table will never be known: control has ended without a Bootstrap for this worker."""
        return self.needs_bootstrap and self.frontier.is_empty()

    @property
    def frontier(self) -> Antichain:
        """The times for which commands may still come."""
        return self._inputs[0].frontier if self._inputs is not None else _CLOSED

    def follow(self) -> None:
        """Look who has joined."""
        if self._introduction is not None:
            self._introduction.follow()

    def read(self) -> None:
        """Take in all that has arrived. Raises ProtocolError unless the numbers are consecutive."""
        newcomer = self._newcomer
        if self._inputs is None:
            return
        commands, sent = self._inputs
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
                    self._shipper.credited(time, each)
                elif newcomer is not None:  # else a Bootstrap was not needed: this worker knows the table
                    newcomer.receive(each)
        if newcomer is not None and (state := (self._introduction or newcomer).answer()) is not None:
            self._start(newcomer, state)

    def _register(self, time: FlatTime, command: routing.Command) -> bool:
        """Note what is to be done at that time, also on a newcomer, which may own bins by then; False if it is else."""
        match command:
            case routing.Checkpoint():
                if isinstance(self._moments, Journal):
                    self._moments.register(time, command)
                return True
            case routing.Lookup():
                if self._moments is not None:
                    self._moments.look(time, command)
                return True
            case routing.Watermark() | routing.Clock():
                self._shipper.mark(time, command)
                return True
        return False

    def decide(self, passed: Antichain) -> None:
        """Turn the commands of each time that control has passed into a reconfiguration.

        Raises ProtocolError for a command that cannot be obeyed: it should have been refused before it was injected.
        Whether it names a member is checked now and not when it is read, which may be before this worker learns of a
        new member. Control passes a command only when all members have read it, and a worker learns what a new member
        has read only after it has learnt of the member.
        """
        for time in sorted(self._commands):
            if passed.less_equal(time):
                break
            try:
                for command in self._commands[time]:
                    routing.validate(command, self._bins, self._membership().workers)
            except CommandRefused as error:
                raise ProtocolError(
                    f"control of {self._name}: the commands for time {outermost(time)} cannot be carried out: {error}"
                ) from error
            self.history.append(time, self._commands.pop(time))

    def _check_number(self, time: FlatTime, number: int) -> None:
        if self._next_number is not None and number != self._next_number:
            raise ProtocolError(
                f"control of {self._name}: command {number} came at time {outermost(time)}, but {self._next_number} "
                "was due; inject commands on one worker only, and without broadcast(), because the operator "
                "broadcasts them itself"
            )
        self._next_number = number + 1

    def _claim(self, time: FlatTime, numbered: routing.Numbered, sends: bool) -> None:
        """Claim what the command may need; `sends`: whether this worker can have what it asks for."""
        match numbered.command:
            case routing.Move() | routing.Map() as command:
                if sends:
                    self._shipper.claim(time)
                if names(command, self._worker):
                    self._shipper.expect(time)
            case routing.Bootstrap(server, _) if sends and server == self._worker:
                self._serving[numbered.number] = self._shipper.routing.mint(time)

    def _obey(self, time: FlatTime, numbered: routing.Numbered) -> None:
        self._reached(numbered.number)
        match numbered.command:
            case routing.Move() | routing.Map() as command:
                self._commands.setdefault(time, []).append(command)
            case routing.Bootstrap(server, worker) if server == self._worker:
                with self._serving.pop(numbered.number):
                    self._shipper.routing.ship_to(worker, time, [self._state(numbered.number + 1)])

    def _reached(self, number: int | None) -> None:
        """All commands below this number have been obeyed, unless no table is known yet."""
        if self._introduction is not None and self._newcomer is None and number is not None:
            self._introduction.obeyed(number)

    def _state(self, next: int) -> RoutingState:
        """What is known now, when all commands below `next` have been obeyed and no other."""
        history = self.history
        undecided = [routing.Reconfiguration(time, tuple(self._commands[time])) for time in sorted(self._commands)]
        return RoutingState(history.active, history.installed, tuple(history.pending), tuple(undecided), next)

    def _start(self, newcomer: RoutingBacklog, state: RoutingState) -> None:
        """The table has come: take the state over, and obey the commands that came after it was cut."""
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
