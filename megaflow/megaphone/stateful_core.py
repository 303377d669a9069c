"""The core of operator S, which its kinds share: what each keeps on one worker, and how it is built.

S shares its bins with F of the same worker (`router`). A kind of S is a policy on this core: it says when a record or a
timer may be applied, and how. The core installs the bins that arrive, keeps the keys' bins up to date, tries whether
what is kept can move, explains what is wrong with a fold, and shows the operator to the rest of the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from megaflow.errors import CannotTravel, ProgramError
from megaflow.megaphone.bins import BinStore
from megaflow.megaphone.chunks import Chunk, Installer, LedgerRow
from megaflow.megaphone.load_meter import Load, LoadMeter, bin_sizes
from megaflow.megaphone.router import Router, route
from megaflow.megaphone.routing import Numbered, RoutingTable
from megaflow.megaphone.splitting import SplitterMaker, complain_about
from megaflow.timely.communication.channel import Lane
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.dataflow.builder import Input, OperatorBuilder, Output
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Addressed


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
        return self._router.control.ready

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
        return self._router.control.history.active

    def owned(self) -> list[int]:
        """The bins that are here now, sorted."""
        return self._store.owned()

    def objection(self) -> str | None:
        """Why the worker may not leave: bins would be lost with it; None if it owns none."""
        owned = len(self.owned())
        return f"owns {owned} bins of {self.name!r}; move them away first" if owned else None

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

    def take_ledger(self) -> list[LedgerRow]:
        """The rows written since the last call: bins that arrived here."""
        rows = list(self._installer.ledger)
        self._installer.ledger.clear()
        return rows


class Core:
    """One S on one worker. The policy drains `data` and sends through `output`."""

    def __init__(
        self,
        name: str,
        store: BinStore,
        data: Sequence[Input[Any]],
        state: Input[Chunk],
        output: Output[Any],
        installer: Installer,
        view: StatefulView,
    ) -> None:
        self.name = name
        self.store = store
        self.data = data
        self.state = state  # the policy reads its frontier only
        self.output = output
        self.view = view
        self.activate: Callable[[], None]  # asks for another run; set when the operator is made
        self._installer = installer
        self._tried: set[type] = set()  # types of keys, states and payloads that are known to travel

    def install(self) -> None:
        """Own what has arrived of bins, whatever its time: no record is applied to a bin before it is whole."""
        self._installer.install_all(self.state.drain())

    def come_or_go(self, key: Any, before: Any, state: Any) -> None:
        """Add a key that has got a state, if it can travel; remove one that has lost it."""
        if state is not None:
            self.store.create(key, state)
            self.try_travel(key, state, "the state of ")
        elif before is not None:
            self.store.forget(key)

    def try_travel(self, key: Any, value: Any, what: str) -> None:
        """Encode a key, and something of it, once for each type: what cannot move is found before the first move.

        Raises CannotTravel. `what`: "the state of ".
        """
        if type(key) not in self._tried or type(value) not in self._tried:
            for part, tried in (("", key), (what, value)):
                try:
                    encode(tried)
                except CannotTravel as error:
                    raise CannotTravel(
                        f"{self.name}: {part}key {key!r} could not move to another worker: {error}"
                    ) from None
            self._tried |= {type(key), type(value)}

    def explain(self, error: Exception, call: str, batch: list[Any]) -> None:
        """Raise ProgramError if the loop that calls the fold has raised, not the fold: a record or its result is wrong.

        `call`: how the fold is called; `batch`: records of which one may be wrong. Call it where `error` is caught.
        """
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            complain_about(batch, self.name, error)
            raise ProgramError(
                f"{self.name}: the fold is called as {call} and must return (new state, outputs), outputs being a list "
                "or another iterable; return (state, []) for no output, (None, []) to forget the key's state; "
                f"here: {error}"
            ) from error


class Policy(Protocol):
    """When, and how, one kind of S applies what it has."""

    def run(self) -> None:
        """Do one invocation: install state, apply what is due."""
        ...


def build(
    ports: Sequence[Port[Any]],
    hash: Callable[[Any], int],
    control: Port[Numbered] | None,
    bins: int,
    name: str,
    make_splitter: SplitterMaker,
    make_policy: Callable[[Core], Policy],
) -> Port[Any]:
    """Build F and S for data that comes by these ports; own the first table's bins.

    `make_policy(core)` is called once, when `core` is complete.
    """
    store = BinStore(bins, hash)
    routed = route(ports, control, store, name, make_splitter)
    context = ports[0].scope.graph.context
    worker = context.allocator.index
    for bin, owner in enumerate(routed.router.control.history.active):
        if owner == worker:
            store.install(bin, [])
    installer = Installer(store, worker, context.wall, routed.shipper.installed)
    view = StatefulView(name, store, routed.router, installer, context.now)
    builder = OperatorBuilder(ports[0].scope, name)
    data: list[Input[Any]] = [builder.new_input(port, Addressed()) for port in routed.data]
    state: Input[Chunk] = builder.new_input(routed.state, Addressed(Lane.STATE))
    output, result = builder.new_output()
    core = Core(name, store, data, state, output, installer, view)

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        capabilities[0].release()
        core.activate = info.activator.activate
        return make_policy(core).run

    builder.build(make)
    routed.close_loop(result)
    result.scope.graph.show(view)
    return result
