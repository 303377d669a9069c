"""Operator F: routes records to the owners of their bins, and takes bins out when they move.

    data    ── pipeline ──▶ [F] ── addressed ──▶ S's data       (one or two of these)
    control ── pipeline ──▶ [F] ── addressed ──▶ S's state      (control arrives broadcast; also markers)
                            [F] ── addressed ──▶ F's routing    (of workers that send bins or have joined)
    S's output ── silent ──▶ [F]                                (progress only)

The paths inside F matter. Data reaches only its data output. Control reaches only the state output and the routing
output. S's progress and F's routing reach no output. With default paths the state frontier would trail the data
frontier, so every record would wait until its epoch ends. The loops would also not be legal cycles.

Why a move at t is exact (Megaphone, PVLDB 12(9), section 3.4)
 1. F routes a record at s by the table in force at s, and only once the control frontier has passed s. From then on no
    command for s or before can come. Until then F stashes the record under a capability of the data output
    (`Forwarder`).
 2. F claims the state output's capability at t when the command arrives. F holds it until the last chunk is sent; many
    chunks may wait for credit (`bin_transfer`). Then the chunks under way hold the state frontier, for which S waits.
    So no S, here or elsewhere, applies a record at t or later before it has every bin that moves to it at t.
 3. F takes a bin out for t only when the control frontier has passed t and S's output frontier is not less than t. Then
    every record before t has been applied. No such record can still come, because a record before t anywhere upstream
    would hold that frontier.
 4. F installs reconfigurations in the order of their times. Several may be pending. F routes each record by the table
    of the record's own time.
F and S of a worker share its bins, so F takes a bin out by a pop, without a message.

In a nested scope bins move at outer times, and "before" refers to the order of `flat_times`, which explains why all
this also holds there. The control input has the times of the root, and its t leads to (t, 0).

On a worker that has joined since the dataflow began, F has no table until another worker sends it one. `bootstrap` says
how, and why that is exact. `event_timers` explains markers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from megaflow.errors import BuildError, ProgramError
from megaflow.megaphone.base.barrier_actions import BarrierActions
from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.base.by_time import ByTime
from megaflow.megaphone.base.chunks import Chunk
from megaflow.megaphone.base.flat_ends import AnyInput, AnyOutput, flat_input, flat_output
from megaflow.megaphone.base.flat_times import FlatTime
from megaflow.megaphone.base.routing import Numbered, RoutingHistory, RoutingTable, initial_table
from megaflow.megaphone.router.bin_transfer import Credit, Shipper
from megaflow.megaphone.router.bootstrap import RoutingState
from megaflow.megaphone.router.command_log import ControlInput
from megaflow.megaphone.router.control_stream import Controls, founders_of
from megaflow.megaphone.router.introduction import Numbering
from megaflow.megaphone.router.splitting import Splitter
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.builder import Input, NodeBuilder
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.context import Context
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Addressed, Pipeline, Silent
from megaflow.timely.path_summary import Summary, identity
from megaflow.timely.progress.antichain import Antichain


def route(
    ports: Sequence[Port[Any]],
    control: Port[Numbered] | None,
    store: BinStore,
    name: str,
    make_splitter: type[Splitter],
    numbering: Numbering | None,
    barrier_actions: BarrierActions | None,
) -> tuple[Router, list[Port[Any]], Port[Chunk], Callable[[Port[Any]], None]]:
    """Build F for the data of these ports. Without `control` the table never changes. `numbering`: see `ControlInput`.

    Return three things: this worker's F; the ports on which S is built, one for each data input and one for the state;
    and a function that closes the loop when it is called with S's output.
    """
    scope = ports[0].scope
    builder = NodeBuilder(scope, f"{name}.route", f"{store.count} bins")
    if type(outer := builder.graph.builder.least(0)) is not int:
        raise BuildError(f"{name}: stateful operators need a dataflow with int times; here times are like {outer!r}")
    here, inside = identity(scope.depth), Summary((0,), (0,) * scope.rounds)
    inputs = [builder.new_input(port, Pipeline(), {number: here}) for number, port in enumerate(ports)]
    data_outputs = [builder.new_output() for _ in ports]
    state_output, state_port = builder.new_output()
    context, founders = builder.graph.context, founders_of(builder.graph)
    worker = context.allocator.index
    states = flat_output(state_output, scope)
    shipper = Shipper(store, states, worker, context.wall, name)
    commanded: tuple[AnyInput[Numbered], AnyInput[RoutingState | Credit]] | None = None
    if control is not None:
        leads_to = {len(ports): inside, len(ports) + 1: inside}  # the state and the routing output
        commands = builder.new_input(control, Pipeline(), leads_to, crossing=bool(scope.rounds))
        routing: Input[RoutingState | Credit] = builder.new_input(None, Addressed(Lane.STATE), {}, notify=False)
        routing_output, routing_port = builder.new_output()
        shipper.routing = flat_output(routing_output, scope)
        builder.connect(routing, routing_port)
        commanded = flat_input(commands, scope), flat_input(routing, scope)
    applied: Input[Any] = builder.new_input(None, Silent(), {})
    table: RoutingTable = ()  # not known yet
    if worker in founders or control is None:
        table = initial_table(store.count, founders, builder.graph.extension(Controls).kept)
    forwarders = [
        Forwarder(flat_input(data, scope), flat_output(output, scope), make_splitter(store, worker, name))
        for data, (output, _) in zip(inputs, data_outputs, strict=True)
    ]
    history = RoutingHistory(table)
    control_input = ControlInput(name, commanded, shipper, store, states, history, builder, numbering, barrier_actions)
    router = Router(name, forwarders, control_input, flat_input(applied, scope), shipper, context, barrier_actions)

    builder.build_releasing(router.run)

    def close_loop(output: Port[Any]) -> None:
        builder.connect(applied, output)

    return router, [port for _, port in data_outputs], state_port, close_loop


class Forwarder:
    """One data input of F on one worker, its output, and the batches that wait between them.

    F of an operator with two inputs has two of these. Their frontiers move independently, but both use the same tables,
    so the two halves of a bin go to one worker.
    """

    def __init__(self, data: AnyInput[Any], output: AnyOutput[Any], splitter: Splitter) -> None:
        self._data = data
        self._output = output
        self._splitter = splitter
        self._stash: ByTime[tuple[Capability, list[list[Any]]]] = ByTime(lambda time: (output.mint(time), []))

    def keep_all(self) -> bool:
        """Stash the batches that have arrived; return whether any batch waits."""
        for time, batch in self._data.drain():
            self._stash[time][1].append(batch)
        return bool(self._stash)

    def forward(self, passed: Antichain, history: RoutingHistory) -> None:
        """Route the batches whose times control has passed, stashed ones first; stash the others."""
        while (waiting := self._stash.least()) is not None and not passed.less_equal(waiting):
            capability, batches = self._stash[waiting]
            for batch in batches:
                self._send(waiting, batch, history)
            self._stash.take(waiting)
            capability.release()
        for time, batch in self._data.drain():
            if passed.less_equal(time):
                self._stash[time][1].append(batch)
            else:
                self._send(time, batch, history)

    def _send(self, time: FlatTime, batch: list[Any], history: RoutingHistory) -> None:
        for worker, part in self._splitter.split(batch, history.at(time)):
            self._output.ship_to(worker, time, part)


@dataclass(slots=True, eq=False, repr=False)
class Router:
    """F on one worker: reads commands, routes records, and takes out the bins that move."""

    name: str  # of the stateful operator
    forwarders: Sequence[Forwarder]
    control: ControlInput
    applied: AnyInput[Any]
    shipper: Shipper  # S reports to it what it has installed
    context: Context
    barrier_actions: BarrierActions | None
    bootstrap_seconds: float = 0.0  # for which data waited for the table, on a worker that has joined
    waiting_since: float | None = None  # monotonic; since when data waits for the table

    def run(self) -> None:
        """Read commands, route the records that may be routed, and take out the bins that are to move."""
        control = self.control
        control.read()
        if not control.ready:
            self._wait_for_table()
            return
        if self.waiting_since is not None:
            self.bootstrap_seconds, self.waiting_since = self.context.now() - self.waiting_since, None
        passed = control.frontier
        control.decide(passed)
        for forwarder in self.forwarders:
            forwarder.forward(passed, control.history)
        self._install()

    def _wait_for_table(self) -> None:
        waiting = [forwarder.keep_all() for forwarder in self.forwarders]
        if not any(waiting):
            return
        if self.waiting_since is None:
            self.waiting_since = self.context.now()
        if self.control.needs_bootstrap and self.control.frontier.is_empty():  # the table will never be known
            worker = self.context.allocator.index
            raise ProgramError(
                f"{self.name}: worker {worker} has joined and has records, but control ended before it received the "
                f"routing table; inject Bootstrap(server, {worker}) after a worker joins"
            )

    def _install(self) -> None:
        """Install each reconfiguration before whose time everything is applied, and ship the bins that leave."""
        finished = self.applied.frontier
        history = self.control.history
        while history.pending and not finished.less_than(history.pending[0].time):
            time, moves = history.install_first()
            if self.barrier_actions is not None:
                self.barrier_actions.before(time)
            self.shipper.ship(time, moves)
