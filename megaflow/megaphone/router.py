"""Operator F: routes records to the owners of their bins, and takes bins out when they move.

    data    ── pipeline ──▶ [F] ── addressed ──▶ S's data       (one or two of these)
    control ── pipeline ──▶ [F] ── addressed ──▶ S's state      (control arrives broadcast; also markers)
                            [F] ── addressed ──▶ F's routing    (of workers that send bins or have joined)
    S's output ── silent ──▶ [F]                                (progress only)

What each input can lead to matters: data reaches only its data output, control only the
state and the routing output, S's progress and F's routing nothing. With default paths the
state frontier would trail the data frontier and every record would wait for its epoch; and
the loops would not be legal cycles.

Why a move at t is exact (Megaphone, PVLDB 12(9), section 3.4)
 1. A record at s is routed by the table in force at s, and only once the control frontier
    has passed s: no command for s or before is still to come. Until then it is stashed,
    under a capability of the data output (`Forwarder`).
 2. F holds the state output's capability at t from the moment the command arrives until
    the last chunk is sent, of many that wait for credit (`bin_transfer`). So no S, here or
    elsewhere, applies a record at t or later before every bin that moves at t is in (S
    waits for its state frontier).
 3. F takes a bin out for t only when the control frontier has passed t and S's output
    frontier is not less than t. Then every record before t has been applied and none is
    still to come, for a record before t anywhere upstream would hold that frontier.
 4. Reconfigurations are installed in the order of their times; several may be pending,
    and records are routed under each by their own time.
F and S of a worker share its bins, so taking one out is a pop, not a message.

In a nested scope bins move at outer times, and "before" is meant in the order of `flat_times`, which says why all this
holds there, too; the control input is of the root's times, and t leads to (t, 0).

On a worker that has joined since the dataflow began F knows no table until it is sent one:
`bootstrap` says how, and why that is exact, too. What markers are is said in `event_timers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from megaflow.errors import BuildError, ProgramError
from megaflow.megaphone.bin_transfer import Credit, Shipper
from megaflow.megaphone.bins import BinStore
from megaflow.megaphone.bootstrap import RoutingState
from megaflow.megaphone.by_time import ByTime
from megaflow.megaphone.chunks import Chunk
from megaflow.megaphone.command_log import ControlInput
from megaflow.megaphone.control_stream import Controls, founders_of
from megaflow.megaphone.flat_ends import AnyInput, AnyOutput, flat_input, flat_output
from megaflow.megaphone.flat_times import FlatTime
from megaflow.megaphone.introduction import Numbering
from megaflow.megaphone.moments import Moments
from megaflow.megaphone.routing import Numbered, RoutingHistory, initial_table
from megaflow.megaphone.splitting import Splitter
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
    numbering: Numbering | None = None,
    moments: Moments | None = None,
) -> tuple[Router, list[Port[Any]], Port[Chunk], Callable[[Port[Any]], None]]:
    """Build F for data that comes by these ports. Without `control` the table never changes; `numbering`: see there.

    Return F of this worker; what S is built on: a port for each data input, and the state; and what to call with S's
    output, to close the loop.
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
    shipper = Shipper(store, flat_output(state_output, scope), worker, context.wall, name)
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
    history: RoutingHistory | None = None
    if worker in founders or control is None:
        history = RoutingHistory(initial_table(store.count, founders, builder.graph.extension(Controls).kept))
    forwarders = [
        Forwarder(flat_input(data, scope), flat_output(output, scope), make_splitter(store, worker, name))
        for data, (output, _) in zip(inputs, data_outputs, strict=True)
    ]
    control_input = ControlInput(name, commanded, shipper, store.count, history, builder, numbering, moments)
    router = Router(name, forwarders, control_input, flat_input(applied, scope), shipper, context, moments)

    builder.build_releasing(router.run)

    def close_loop(output: Port[Any]) -> None:
        builder.connect(applied, output)

    return router, [port for _, port in data_outputs], state_port, close_loop


class Forwarder:
    """One data input of F on one worker, the output that it leads to, and the batches that wait between them.

    An F of an operator with two inputs has two of these. Each frontier moves by itself, and the tables are the same for
    both, so the two halves of a bin go to one worker.
    """

    def __init__(self, data: AnyInput[Any], output: AnyOutput[Any], splitter: Splitter) -> None:
        self._data = data
        self._output = output
        self._splitter = splitter
        self._stash: ByTime[tuple[Capability, list[list[Any]]]] = ByTime(lambda time: (output.mint(time), []))

    def keep_all(self) -> bool:
        """Keep what has arrived; return whether anything waits."""
        for time, batch in self._data.drain():
            self._keep(time, batch)
        return bool(self._stash)

    def forward(self, passed: Antichain, history: RoutingHistory) -> None:
        """Route what control has passed, first what has waited for that; keep the rest."""
        while (waiting := self._stash.least()) is not None and not passed.less_equal(waiting):
            capability, batches = self._stash[waiting]
            for batch in batches:
                self._send(waiting, batch, history)
            self._stash.take(waiting)
            capability.release()
        for time, batch in self._data.drain():
            if passed.less_equal(time):
                self._keep(time, batch)
            else:
                self._send(time, batch, history)

    def _keep(self, time: FlatTime, batch: list[Any]) -> None:
        self._stash[time][1].append(batch)

    def _send(self, time: FlatTime, batch: list[Any], history: RoutingHistory) -> None:
        for worker, part in self._splitter.split(batch, history.at(time)):
            self._output.ship_to(worker, time, part)


class Router:
    """F on one worker: reads commands, routes records, and takes out the bins that move."""

    def __init__(
        self,
        name: str,
        forwarders: Sequence[Forwarder],
        control: ControlInput,
        applied: AnyInput[Any],
        shipper: Shipper,
        context: Context,
        moments: Moments | None = None,
    ) -> None:
        self.bootstrap_seconds = 0.0  # how long data waited for the table, on a worker that has joined
        self._name = name  # of the stateful operator
        self._forwarders = forwarders
        self.control = control
        self._applied = applied
        self._moments = moments
        self.shipper = shipper  # to be told what S has installed
        self._now = context.now
        self._worker = context.allocator.index
        self._waiting_since: float | None = None  # seconds, monotonic: data that waits for the table

    def run(self) -> None:
        """One invocation: read commands, route what may be routed, take out what is to move."""
        control = self.control
        control.read()
        if not control.ready:
            self._wait_for_table()
            return
        if self._waiting_since is not None:
            self.bootstrap_seconds, self._waiting_since = self._now() - self._waiting_since, None
        passed = control.frontier
        control.decide(passed)
        for forwarder in self._forwarders:
            forwarder.forward(passed, control.history)
        self._install()

    def _wait_for_table(self) -> None:
        waiting = [forwarder.keep_all() for forwarder in self._forwarders]
        if not any(waiting):
            return
        if self._waiting_since is None:
            self._waiting_since = self._now()
        if self.control.forgotten:
            raise ProgramError(
                f"{self._name}: worker {self._worker} has joined and has records, but control ended before it "
                f"received the routing table; inject Bootstrap(server, {self._worker}) after a worker joins"
            )

    def _install(self) -> None:
        """Install each reconfiguration whose past is applied everywhere, and ship the bins that leave."""
        finished = self._applied.frontier
        history = self.control.history
        while history.pending and not finished.less_than(history.pending[0].time):
            time, moves = history.install_first()
            if self._moments is not None:
                self._moments.before(time)
            self.shipper.ship(time, moves)
