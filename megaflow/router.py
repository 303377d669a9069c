"""Operator F: routes records to the owners of their bins, and takes bins out when they move.

    data    ── pipeline ──▶ [F] ── addressed ──▶ S's data
    control ── pipeline ──▶ [F] ── addressed ──▶ S's state      (control arrives broadcast)
                            [F] ── addressed ──▶ F's routing    (of a worker that has joined)
    S's output ── silent ──▶ [F]                                (progress only)

What each input can lead to matters: data reaches only the data output, control only the
state and the routing output, S's progress and F's routing nothing. With default paths the
state frontier would trail the data frontier and every record would wait for its epoch; and
the loops would not be legal cycles.

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

On a worker that has joined since the dataflow began F knows no table until it is sent one:
`routing_state` says how, and why that is exact, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

from megaflow.bins import BinStore, Found
from megaflow.control_input import ControlInput, ControlPorts
from megaflow.control_stream import founders_of
from megaflow.errors import BuildError, ProgramError
from megaflow.migration import Chunk
from megaflow.routing import Numbered, RoutingHistory, RoutingTable, initial_table
from megaflow.routing_state import RoutingState
from megaflow.shipping import Credit, Shipper
from megaflow.timely.communication.allocator import Lane
from megaflow.timely.dataflow.builder import Input, OperatorBuilder, Output, connect
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.dataflow.context import Context
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Addressed, Pipeline, Silent
from megaflow.timely.order import Time, identity
from megaflow.timely.progress.antichain import Antichain

_KNOWN_KEYS = 1 << 18
"""Keys whose worker F remembers; beyond that it forgets all and starts again (about 40 MB)."""

_KEY = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Routed:
    """What F offers S."""

    data: Port[Any]
    state: Port[Chunk]
    router: Router
    installed: Callable[[int, Chunk], None]  # call with each chunk that S has installed
    close_loop: Callable[[Port[Any]], None]  # call with S's output


def route(port: Port[Any], control: Port[Numbered] | None, store: BinStore, name: str) -> Routed:
    """Build F. Without `control` the table never changes."""
    if port.scope.depth:
        raise BuildError(f"{name}: stateful operators work in the root scope, with int times; leave() the loop first")
    builder = OperatorBuilder(port.scope, f"{name}.route")
    node = builder.graph.nodes[-1]
    node.shape.append(f"{store.count} bins")  # to be the same on all workers
    here = identity(0)
    data: Input[Any] = builder.new_input(port, Pipeline(), {0: here})
    data_output, data_port = builder.new_output()
    state_output, state_port = builder.new_output()
    context, founders = builder.graph.context, founders_of(builder.graph)
    shipper = Shipper(store, state_output, context.allocator.index, context.wall)
    ports: ControlPorts | None = None
    if control is not None:
        commands: Input[Numbered] = builder.new_input(control, Pipeline(), {1: here, 2: here})
        routing: Input[RoutingState | Credit] = builder.new_input(None, Addressed(Lane.STATE), {}, notify=False)
        routing_output, routing_port = builder.new_output()
        connect(routing_port, routing.location, node.inlets[-1], Addressed(Lane.STATE))
        shipper.credits = routing_output
        ports = ControlPorts(commands, routing, routing_output, shipper)
    applied: Input[Any] = builder.new_input(None, Silent(), {})
    history: RoutingHistory | None = None
    if context.allocator.index in founders or control is None:
        history = RoutingHistory(initial_table(store.count, founders))
    commanded = ControlInput(name, ports, store.count, history, context)
    router = Router(name, data, commanded, applied, data_output, shipper, store, context)

    def make(capabilities: list[Capability], info: object) -> Callable[[], None]:
        for capability in capabilities:
            capability.release()
        return router.run

    builder.build(make)

    def close_loop(output: Port[Any]) -> None:
        from_output = output.scope.graph.nodes[output.node].sources[output.output]
        builder.graph.connect(from_output, node.targets[-1])

    return Routed(data_port, state_port, router, shipper.installed, close_loop)


class _Places(dict[Any, Any]):
    """Key -> where it is under one table: the id of its worker or, on this worker, its cell, which saves S a lookup.

    A dict, so that a batch is looked up without Python code per record. A key is computed when it is first asked for;
    an own one without a state has no place here yet, and one that lost its state loses its place.
    """

    __slots__ = ("_own", "_store", "table")

    def __init__(self, table: RoutingTable, store: BinStore, own: int) -> None:
        self.table = table
        self._store = store
        self._own = own

    def __missing__(self, key: Any) -> Any:
        place: Any = self.table[self._store.bin_of_key(key)]
        if place == self._own:
            cell = self._store.cells.get(key)
            if cell is None:
                return place
            place = cell
        self[key] = place
        return place

    def renew(self, key: Any) -> Any:
        """Look again for a key whose state was forgotten; it may have a new one."""
        del self[key]
        return self[key]


class Router:
    """F on one worker."""

    def __init__(
        self,
        name: str,
        data: Input[Any],
        control: ControlInput,
        applied: Input[Any],
        data_output: Output[Any],
        shipper: Shipper,
        store: BinStore,
        context: Context,
    ) -> None:
        self.bootstrap_seconds = 0.0  # how long data waited for the table, on a worker that has joined
        self._name = name  # of the stateful operator
        self._data = data
        self._control = control
        self._applied = applied
        self._data_output = data_output
        self._shipper = shipper
        self._store = store
        self._now = context.now
        self._worker = context.allocator.index
        self._stash: dict[int, tuple[Capability, list[list[Any]]]] = {}  # time -> batches not routable yet
        self._waiting: list[int] = []  # heap: the times in the stash
        self._waiting_since: float | None = None  # seconds, monotonic: data that waits for the table
        self._places = _Places((), store, context.allocator.index)
        self._judged: tuple[RoutingTable, bool] = ((), False)  # a table, and whether all its bins are here

    @property
    def ready(self) -> bool:
        """Whether it knows the table: at once, but on a worker that has joined."""
        return self._control.ready

    @property
    def table(self) -> RoutingTable:
        """The active table: bin -> worker; empty until it is ready."""
        return self._control.history.active

    def run(self) -> None:
        """One invocation: read commands, route what may be routed, take out what is to move."""
        control = self._control
        control.read()
        if not control.ready:
            self._wait_for_table()
            return
        if self._waiting_since is not None:
            self.bootstrap_seconds, self._waiting_since = self._now() - self._waiting_since, None
        passed = control.frontier
        control.decide(passed)
        self._release(passed)
        for time, batch in self._data.drain():
            if passed.less_equal(time):
                self._keep(time, batch)
            else:
                self._send(time, batch)
        self._install()

    def _keep(self, time: Time, batch: list[Any]) -> None:
        assert isinstance(time, int)
        if time not in self._stash:
            self._stash[time] = (mint(self._data_output, time), [])
            heappush(self._waiting, time)
        self._stash[time][1].append(batch)

    def _wait_for_table(self) -> None:
        for time, batch in self._data.drain():
            if self._waiting_since is None:
                self._waiting_since = self._now()
            self._keep(time, batch)
        if self._waiting and self._control.forgotten:
            raise ProgramError(
                f"{self._name}: worker {self._worker} has joined and has records, but control ended without telling it "
                f"which worker owns which bin; inject Bootstrap(server, {self._worker}) once it has joined"
            )

    def _release(self, passed: Antichain) -> None:
        """Route what was kept for times that control has passed."""
        while self._waiting and not passed.less_equal(self._waiting[0]):
            time = heappop(self._waiting)
            capability, batches = self._stash.pop(time)
            for batch in batches:
                self._send(time, batch)
            capability.release()

    def _send(self, time: Time, batch: list[Any]) -> None:
        """Route one batch by the table in force at its time. Cost: one lookup per record, none on a lone worker."""
        assert isinstance(time, int)
        table = self._control.history.at(time)
        if self._is_all_here(table):
            self._data_output.ship_to(self._worker, time, batch)
            return
        places = self._places
        if places.table is not table or len(places) > _KNOWN_KEYS:
            places = self._places = _Places(table, self._store, self._worker)
        parts: defaultdict[int, list[Any]] = defaultdict(list)
        found = Found()
        put, put_cell = found.append, found.cells.append
        try:
            for record, place in zip(batch, map(places.__getitem__, map(_KEY, batch)), strict=True):
                if place.__class__ is int:
                    parts[place].append(record)
                elif place:
                    put(record)
                    put_cell(place)
                elif (place := places.renew(record[0])).__class__ is int:
                    parts[place].append(record)
                else:
                    put(record)
                    put_cell(place)
        except (TypeError, LookupError) as error:
            complaint = complaint_about(batch, self._name)
            if complaint is not None:
                raise complaint from error
            raise
        self._data_output.ship_to(self._worker, time, found)
        for worker, part in parts.items():
            self._data_output.ship_to(worker, time, part)

    def _is_all_here(self, table: RoutingTable) -> bool:
        if self._judged[0] is not table:
            self._judged = (table, all(owner == self._worker for owner in table))
        return self._judged[1]

    def _install(self) -> None:
        """Install each reconfiguration whose past is applied everywhere, and ship the bins that leave."""
        finished = self._applied.frontier
        history = self._control.history
        while history.pending and not finished.less_than(history.pending[0].time):
            time, moves = history.install_first()
            assert isinstance(time, int)
            self._shipper.ship(time, moves)


def complaint_about(batch: list[Any], name: str) -> ProgramError | None:
    """What is wrong with the first record that is no pair, or whose key cannot be one; None if all are right."""
    for record in batch:
        if not isinstance(record, (tuple, list)) or len(record) != 2:
            return ProgramError(
                f"{name}: records must be (key, value) pairs, but one is {record!r}, "
                f"a {type(record).__name__}; map the stream to pairs first"
            )
        try:
            hash(record[0])
        except TypeError as error:
            return ProgramError(
                f"{name}: the key {record[0]!r} is a {type(record[0]).__name__}, which cannot be a key ({error}); "
                "make it a tuple, a frozenset or a str"
            )
    return None
