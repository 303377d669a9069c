"""Operator S: keeps the bins, applies the user's fold to each record of a key.

S shares its bins with F of the same worker (`router`). It applies a record at s as soon
as no data frontier is less than s and no state frontier is less than or equal to s:
 - nothing before s is still to come, so a key's values are applied in time order;
 - every bin that moved at s or before is in, so no record meets a missing or stale state
   (F holds the state frontier at t until the bins that move at t are sent; the chunks
   under way hold it after that).
Until then the record waits in S's stash under a capability of the output. State is
installed on arrival, whatever the time: nobody applies to it before it is whole.

Outputs carry the time of the record that caused them. Records of one time are applied in
the order of their arrival.

S applies for a moment and then lets the worker take its step's end, however much is due: mail, commands and progress
are read between steps only, and a slow fold may have minutes of work before it. What is left in the stash is held by
its capability, what is left in the queue by its own count; and the stash goes first, for it came first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, TypeVar

from megaflow.errors import CannotTravel, ProgramError
from megaflow.megaphone.bins import BinStore, stable_hash
from megaflow.megaphone.chunks import Chunk, Installer, LedgerRow
from megaflow.megaphone.load_meter import Load, LoadMeter, bin_sizes
from megaflow.megaphone.router import Routed, Router, route
from megaflow.megaphone.routing import Numbered, RoutingTable
from megaflow.megaphone.splitting import ByKey, SplitterMaker, complain_about
from megaflow.timely.communication.allocator import Lane
from megaflow.timely.communication.codec.values import encode
from megaflow.timely.dataflow.builder import Input, OperatorBuilder, Output
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Addressed
from megaflow.timely.order import Time

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")

Fold = Callable[[K, V, A | None], tuple[A | None, Iterable[R]]]

TURN_SECONDS = 0.02  # that S applies before the worker looks up; a batch that has begun is ended


class StatefulView:
    """What the rest of the worker may see of a stateful operator."""

    def __init__(
        self, name: str, store: BinStore, router: Router, installer: Installer, now: Callable[[], float]
    ) -> None:
        self.name = name
        self.bins = store.count
        self.meter = LoadMeter(store.bin_of_key, now)  # written by S
        self.waiting = 0  # records that S has taken and not applied: their time has not come; written by S
        self._store = store
        self._router = router
        self._installer = installer

    @property
    def ready(self) -> bool:
        """Whether its routing table is known here: at once, but for a worker that has joined and needs a Bootstrap."""
        return self._router.ready

    @property
    def bootstrap_seconds(self) -> float:
        """How long records have waited here for the routing table, on a worker that has joined; set when it came."""
        return self._router.bootstrap_seconds

    @property
    def records(self) -> int:
        """How many were applied here so far."""
        return self.meter.records

    def table(self) -> RoutingTable:
        """The active routing table: bin -> worker; empty until it is ready."""
        return self._router.table

    def owned(self) -> list[int]:
        """The bins that are here now, sorted."""
        return self._store.owned()

    def keys(self) -> int:
        """How many keys have state here. Cost: O(1)."""
        return len(self._store.states)

    def load(self) -> Load:
        """The load of the last seconds, also of bins that have left meanwhile."""
        return self.meter.load()

    def bin_of_key(self, key: Any) -> int:
        """The bin that a key falls into."""
        return self._store.bin_of_key(key)

    def keys_by_bin(self) -> dict[int, int]:
        """How many keys each bin has that is here."""
        return {bin: len(held) for bin, held in self._store.bins.items()}

    def bytes_by_bin(self) -> dict[int, int]:
        """How large each bin is that is here, about. Cost: some ten milliseconds if states are large."""
        return bin_sizes(self._store.bins, self._store.states)

    def objection(self) -> str | None:
        """Why the worker may not leave: bins would be lost with it; None if it owns none."""
        owned = len(self.owned())
        return f"owns {owned} bins of {self.name!r}; move them away first" if owned else None

    def take_ledger(self) -> list[LedgerRow]:
        """The rows written since the last call: bins that arrived here."""
        rows = list(self._installer.ledger)
        self._installer.ledger.clear()
        return rows


@dataclass(frozen=True, slots=True)
class Assembly:
    """What every kind of S is made of, on one worker."""

    name: str
    store: BinStore
    routed: Routed
    installer: Installer
    view: StatefulView


def assemble(
    ports: Sequence[Port[Any]],
    hash: Callable[[Any], int],
    control: Port[Numbered] | None,
    bins: int,
    name: str,
    make_splitter: SplitterMaker,
) -> Assembly:
    """Build F for data that comes by these ports, and what S needs; own the first table's bins. Then `finish`."""
    store = BinStore(bins, hash)
    routed = route(ports, control, store, name, make_splitter)
    context = ports[0].scope.graph.context
    worker = context.allocator.index
    installer = Installer(store, worker, context.wall, routed.shipper.installed)
    for bin, owner in enumerate(routed.router.table):
        if owner == worker:
            store.install(bin, [])
    return Assembly(name, store, routed, installer, StatefulView(name, store, routed.router, installer, context.now))


def finish(assembly: Assembly, result: Port[Any]) -> None:
    """Tie S's output to F, and show the operator to the rest of the worker."""
    assembly.routed.close_loop(result)
    result.scope.graph.show(assembly.view)


def stateful_state_machine(
    port: Port[tuple[K, V]],
    fold: Fold[K, V, A, R],
    hash: Callable[[K], int] = stable_hash,
    control: Port[Numbered] | None = None,
    bins: int = 256,
    name: str | None = None,
) -> Port[R]:
    """Keep a state per key: `fold(key, value, state) -> (state, outputs)`, with bins that can move.

    `state` is None for a key without one, and returning None forgets the key. `control` is a stream of
    numbered commands as `number_commands` makes it; operators that share it have the same number of bins.
    Cost per record: the fold, a dict lookup and a store, as in a plain loop; with several workers a lookup in F, too.
    """
    title = str(name or getattr(fold, "__name__", "stateful_state_machine"))
    assembly = assemble([port], hash, control, bins, title, ByKey)
    builder = OperatorBuilder(port.scope, title)
    data: Input[Any] = builder.new_input(assembly.routed.data[0], Addressed())
    state: Input[Chunk] = builder.new_input(assembly.routed.state, Addressed(Lane.STATE))
    output, result = builder.new_output()
    folder = _Folder(fold, assembly.store, title)

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        capabilities[0].release()
        activate = info.activator.activate
        return _Machine(data, state, output, folder, assembly.installer, assembly.view, activate).run

    builder.build(make)
    finish(assembly, result)
    return result


class TravelTrial:
    """Tries once for each type whether such keys, states and payloads can move: found early, not at the first move."""

    def __init__(self, name: str) -> None:
        self._name = name  # of the operator
        self._tried: set[type] = set()  # types that are known to travel

    def check(self, key: Any, value: Any, what: str) -> None:
        """Raise CannotTravel for a key, or something of it, of a type that cannot. `what`: "the state of "."""
        if type(key) not in self._tried or type(value) not in self._tried:
            for part, tried in (("", key), (what, value)):
                try:
                    encode(tried)
                except CannotTravel as error:
                    raise CannotTravel(
                        f"{self._name}: {part}key {key!r} could not move to another worker: {error}"
                    ) from None
            self._tried |= {type(key), type(value)}


class _Machine:
    """S on one worker: what waits, and when it is applied."""

    def __init__(
        self,
        data: Input[Any],
        state: Input[Chunk],
        output: Output[Any],
        folder: _Folder,
        installer: Installer,
        view: StatefulView,
        activate: Callable[[], None],
    ) -> None:
        self._data = data
        self._state = state
        self._output = output
        self._folder = folder
        self._installer = installer
        self._view = view
        self._activate = activate
        self._stash: dict[int, tuple[Capability, deque[list[Any]]]] = {}  # time -> batches in arrival order
        self._waiting: list[int] = []  # heap: the times in the stash

    def run(self) -> None:
        """One invocation: install state, apply what has become due, then what has arrived, for a turn."""
        self._installer.install_all(self._state.drain())
        now = self._view.meter.now
        end = now() + TURN_SECONDS
        while self._waiting and self._due(self._waiting[0]):
            waiting = self._waiting[0]
            capability, batches = self._stash[waiting]
            batch = batches.popleft()
            self._view.waiting -= len(batch)
            self._apply(waiting, batch)
            if not batches:
                heappop(self._waiting)
                del self._stash[waiting]
                capability.release()
            if now() >= end:
                self._activate()
                return
        while self._data.is_waiting():
            time, batch = self._data.take()
            if not self._due(time):
                self._keep(time, batch)
                continue
            self._apply(time, batch)
            if now() >= end:
                return  # a queue that is not empty has it run again

    def _due(self, time: Time) -> bool:
        return not self._data.frontier.less_than(time) and not self._state.frontier.less_equal(time)

    def _keep(self, time: Time, batch: list[Any]) -> None:
        assert isinstance(time, int)
        if time not in self._stash:
            self._stash[time] = (mint(self._output, time), deque())
            heappush(self._waiting, time)
        self._stash[time][1].append(batch)
        self._view.waiting += len(batch)

    def _apply(self, time: Time, batch: list[Any]) -> None:
        meter = self._view.meter
        began = meter.now()
        self._output.ship(time, self._folder.apply(time, batch))
        meter.note(batch, began)


class _Folder:
    """Applies the fold to batches; the one loop that touches every record."""

    def __init__(self, fold: Fold[Any, Any, Any, Any], store: BinStore, name: str) -> None:
        self._fold = fold
        self._store = store
        self._name = name
        self._trial = TravelTrial(name)

    def apply(self, time: Time, batch: list[Any]) -> list[Any]:
        """The outputs of one batch, in order.

        The loop does what one without bins would do: a lookup, the fold, and the new state in its place. Hash and bin
        are computed when a key comes or goes (measured: a cell for each key, to save the second lookup, costs more).
        """
        fold, states = self._fold, self._store.states
        find = states.get
        out: list[Any] = []
        try:
            for key, value in batch:
                before = find(key)
                state, outputs = fold(key, value, before)
                if before is None or state is None:
                    self._come_or_go(key, before, state)
                else:
                    states[key] = state
                out += outputs
        except (TypeError, ValueError, LookupError) as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                complain_about(batch, self._name, error)
                raise self._complaint(error) from error
            raise
        return out

    def _come_or_go(self, key: Any, before: Any, state: Any) -> None:
        """Add a key that has got a state, if it can travel; remove one that has lost it."""
        if state is not None:
            self._store.create(key, state)
            self._trial.check(key, state, "the state of ")
        elif before is not None:
            self._store.forget(key)

    def _complaint(self, error: Exception) -> ProgramError:
        """What is wrong when the loop itself raised and the records are right: how the fold is made."""
        return ProgramError(
            f"{self._name}: the fold is called as fold(key, value, state) and must return (new state, outputs), "
            "outputs being a list or another iterable; return (state, []) for no output, (None, []) to forget "
            f"the key; here: {error}"
        )
