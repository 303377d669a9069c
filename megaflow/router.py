"""Operator F: routes records to the owners of their bins, and takes bins out when they move.

    data    ── pipeline ──▶ [F] ── addressed ──▶ S's data
    control ── pipeline ──▶ [F] ── addressed ──▶ S's state      (control arrives broadcast)
    S's output ── silent ──▶ [F]                                (progress only)

What each input can lead to matters: data reaches only the data output, control only the
state output, S's progress nothing. With default paths the state frontier would trail the
data frontier and every record would wait for its epoch; and the loop from S would not be
a legal cycle.

Why a move at t is exact (Megaphone, PVLDB 12(9), section 3.4)
 1. A record at s is routed by the table in force at s, and only once the control frontier
    has passed s: no command for s or before is still to come. Until then it is stashed,
    under a capability of the data output.
 2. F holds the state output's capability at t from the moment the command arrives until
    the last chunk is sent. So no S, here or elsewhere, applies a record at t or later
    before every bin that moves at t is in (S waits for its state frontier).
 3. F takes a bin out for t only when the control frontier has passed t and S's output
    frontier is not less than t. Then every record before t has been applied and none is
    still to come, for a record before t anywhere upstream would hold that frontier.
 4. Reconfigurations are installed in the order of their times; several may be pending,
    and records are routed under each by their own time.
F and S of a worker share its bins, so taking one out is a pop, not a message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from megaflow.bins import BinStore
from megaflow.errors import BuildError, ProtocolError
from megaflow.migration import Chunk, chunks
from megaflow.routing import Map, Move, Numbered, RoutingHistory, RoutingTable, difference, initial_table
from megaflow.timely.dataflow.builder import Input, OperatorBuilder, Output
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.dataflow.graph import Context, Port
from megaflow.timely.dataflow.pact import Pipeline, Silent
from megaflow.timely.order import Time, identity
from megaflow.timely.progress.antichain import Antichain

_KNOWN_KEYS = 1 << 18
"""Keys whose bin F remembers; beyond that it forgets all and starts again (about 30 MB)."""

_CLOSED = Antichain()
"""The frontier of a control stream that does not exist: nothing will be commanded."""


@dataclass(frozen=True, slots=True)
class Routed:
    """What F offers S."""

    data: Port[Any]
    state: Port[Chunk]
    router: Router
    close_loop: Callable[[Port[Any]], None]  # call with S's output


def route(port: Port[Any], control: Port[Numbered] | None, store: BinStore, name: str) -> Routed:
    """Build F. Without `control` the table never changes."""
    if port.scope.depth:
        raise BuildError(f"{name}: stateful operators work in the root scope, with int times; leave() the loop first")
    builder = OperatorBuilder(port.scope, f"{name}.route")
    node = builder.graph.nodes[-1]
    here = identity(0)
    data: Input[Any] = builder.new_input(port, Pipeline(), {0: here})
    commands: Input[Numbered] | None = None
    if control is not None:
        commands = builder.new_input(control, Pipeline(), {1: here})
    applied: Input[Any] = builder.new_input(None, Silent(), {})
    data_output, data_port = builder.new_output()
    state_output, state_port = builder.new_output()
    context = builder.graph.context
    history = RoutingHistory(initial_table(store.count, context.founders.ids))
    router = Router(data, commands, applied, data_output, state_output, store, history, context)

    def make(capabilities: list[Capability], info: object) -> Callable[[], None]:
        for capability in capabilities:
            capability.release()
        return router.run

    builder.build(make)

    def close_loop(output: Port[Any]) -> None:
        from_output = output.scope.graph.nodes[output.node].sources[output.output]
        builder.graph.connect(from_output, node.targets[-1])

    return Routed(data_port, state_port, router, close_loop)


class Router:
    """F on one worker."""

    def __init__(
        self,
        data: Input[Any],
        control: Input[Numbered] | None,
        applied: Input[Any],
        data_output: Output[Any],
        state_output: Output[Chunk],
        store: BinStore,
        history: RoutingHistory,
        context: Context,
    ) -> None:
        self._data = data
        self._control = control
        self._applied = applied
        self._data_output = data_output
        self._state_output = state_output
        self._store = store
        self._history = history
        self._wall = context.wall
        self._worker = context.allocator.index
        self._next_number = 0
        self._commands: dict[int, list[Any]] = {}  # time the control frontier has not passed -> commands
        self._moving: dict[int, Capability] = {}  # time of a reconfiguration -> the state output's capability
        self._stash: dict[int, tuple[Capability, list[list[Any]]]] = {}  # time -> batches not routable yet
        self._known: dict[Any, int] = {}  # key -> bin
        self._judged: tuple[RoutingTable, bool] = ((), False)  # a table, and whether all its bins are here

    @property
    def table(self) -> RoutingTable:
        """The active table: bin -> worker."""
        return self._history.active

    def run(self) -> None:
        """One invocation: read commands, route what may be routed, take out what is to move."""
        self._read_control()
        passed = self._control.frontier if self._control is not None else _CLOSED
        self._decide(passed)
        self._release(passed)
        for time, batch in self._data.drain():
            if passed.less_equal(time):
                self._keep(time, batch)
            else:
                self._send(time, batch)
        self._install()

    def _read_control(self) -> None:
        if self._control is None:
            return
        for time, batch in self._control.drain():
            assert isinstance(time, int)
            for numbered in batch:
                if numbered.number != self._next_number:
                    raise ProtocolError(
                        f"control: command {numbered.number} came at time {time} but {self._next_number} was due; "
                        "commands must be injected on one worker"
                    )
                self._next_number += 1
                if isinstance(numbered.command, (Move, Map)):
                    self._await(time, numbered.command)

    def _await(self, time: int, command: Move | Map) -> None:
        if time not in self._moving:
            self._moving[time] = mint(self._state_output, time)
        self._commands.setdefault(time, []).append(command)

    def _decide(self, passed: Antichain) -> None:
        """Turn the commands of each time that control has passed into a reconfiguration."""
        for time in sorted(self._commands):
            if passed.less_equal(time):
                break
            self._history.append(time, self._commands.pop(time))

    def _keep(self, time: Time, batch: list[Any]) -> None:
        assert isinstance(time, int)
        if time not in self._stash:
            self._stash[time] = (mint(self._data_output, time), [])
        self._stash[time][1].append(batch)

    def _release(self, passed: Antichain) -> None:
        """Route what was kept for times that control has passed."""
        for time in sorted(self._stash):
            if passed.less_equal(time):
                break
            capability, batches = self._stash.pop(time)
            for batch in batches:
                self._send(time, batch)
            capability.release()

    def _send(self, time: Time, batch: list[Any]) -> None:
        """Route one batch by the table in force at its time. Cost: one lookup per record, none on a lone worker."""
        assert isinstance(time, int)
        table = self._history.at(time)
        if self._is_all_here(table):
            self._data_output.ship_to(self._worker, time, batch)
            return
        parts: defaultdict[int, list[Any]] = defaultdict(list)
        known = self._known
        if len(known) > _KNOWN_KEYS:
            known.clear()
        for record in batch:
            try:
                bin = known[record[0]]
            except KeyError:
                bin = known[record[0]] = self._store.bin_of_key(record[0])
            parts[table[bin]].append(record)
        for worker, part in parts.items():
            self._data_output.ship_to(worker, time, part)

    def _is_all_here(self, table: RoutingTable) -> bool:
        if self._judged[0] is not table:
            self._judged = (table, set(table) == {self._worker})
        return self._judged[1]

    def _install(self) -> None:
        """Install each reconfiguration whose past is applied everywhere, and ship the bins that leave."""
        finished = self._applied.frontier
        while self._history.pending and not finished.less_than(self._history.pending[0].time):
            time, old, new = self._history.install_first()
            assert isinstance(time, int)
            with self._moving.pop(time):
                for bin, source, target in difference(old, new):
                    if source == self._worker:
                        self._ship(time, bin, target)

    def _ship(self, time: int, bin: int, target: int) -> None:
        for chunk in chunks(bin, self._store.take(bin), self._worker, self._wall()):
            self._state_output.ship_to(target, time, [chunk])
