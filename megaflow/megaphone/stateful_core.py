"""The core of operator S, which its kinds share: what each keeps on one worker, and how it is built.

S shares its bins with F of the same worker (`router`). A kind of S is a policy on this core: it says when a record or a
timer may be applied, and how. The core installs the bins that arrive, keeps the keys' bins up to date, tries whether
what is kept can move, explains what is wrong with a fold, and shows the operator to the rest of the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from megaflow.durable.restored import ANY_FORM, Form, Heir, Restored, Terms
from megaflow.errors import BuildError, ProgramError
from megaflow.megaphone.bin_trial import STATE, check_pairs
from megaflow.megaphone.bins import BinStore, stable_hash
from megaflow.megaphone.chunks import Chunk, Installer, LedgerRow
from megaflow.megaphone.control_stream import Controls, control_for, hears_default, numbering_of
from megaflow.megaphone.flat_ends import AnyInput, AnyOutput, flat_input, flat_output
from megaflow.megaphone.flat_times import FlatTime
from megaflow.megaphone.journal import Durability, Journal
from megaflow.megaphone.load_meter import LoadMeter
from megaflow.megaphone.moments import Moments, Showing
from megaflow.megaphone.router import Router, route
from megaflow.megaphone.routing import Clock, RoutingTable, Watermark
from megaflow.megaphone.splitting import ByKey, Splitter
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.builder import Input, NodeBuilder
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.context import Context, OperatorInfo
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.folds import check_key, complain_about
from megaflow.timely.dataflow.given import function, shown
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Addressed


class Core:
    """One S on one worker. The policy drains `data` and sends through `output`.

    The rest of the worker sees the operator by this, too: how it is called, what it owns, and the load on it.
    """

    def __init__(
        self,
        name: str,
        store: BinStore,
        router: Router,
        data: Sequence[AnyInput[Any]],
        state: AnyInput[Chunk | Watermark | Clock],
        output: AnyOutput[Any],
        context: Context,
        moments: Moments | None = None,
    ) -> None:
        self.name = name
        self.store = store
        self.bins = store.count
        self.data = data
        self.state = state  # the policy reads its frontier only
        self.output = output
        self.meter = LoadMeter(store.bin_of_key, context.now)  # written by the policy
        self.waiting = 0  # records that S has taken and not applied: their time has not come; written by the policy
        self.late = 0  # records that have come too late for all their windows; written by the policy
        self.overtaken = 0  # of these, late by the watermark, and not by their own bounds: see `record_bounds`
        self.open_windows: Callable[[], int] | None = None  # counts them; None: its timers are the program's own
        self.late_is_taken = False  # whether the program has them as a stream; set while the dataflow is built
        self.moments = moments  # None: it keeps nothing
        self.journal = moments if isinstance(moments, Journal) else None  # None: it is not durable
        self.may_be_asked = False  # whether lookups come here; set when the operator is built
        self.lasts_by_clock = False  # whether its states last by the job's clock; set by the policy
        self.nested = False  # whether times are flat tuples: see `flat_times`; set when the operator is built
        self.activate: Callable[[], None]  # asks for another run; set when the operator is made
        self._router = router
        self._installer = Installer(store, context.allocator.index, context.wall, router.shipper.installed)
        self._seen = 0  # records that had been applied when `keep` was called last
        self._tried: set[type] = set()  # types of keys, states and payloads that are known to travel

    @property
    def ready(self) -> bool:
        """Whether its routing table is known here: at once, unless this worker has joined and was not told it yet."""
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
        return sorted(self.store.bins)

    def objection(self) -> str | None:
        """Why the worker may not leave: bins would be lost with it; None if it owns none."""
        owned = len(self.store.bins)
        return f"owns {owned} bins of {self.name!r}: move them away first" if owned else None

    def follow(self) -> None:
        """Tell workers that have joined, if that is for F."""
        self._router.control.follow()

    def untold(self) -> int | None:
        """The node of F, if it needs a Bootstrap."""
        return self._router.control.node if self._router.control.needs_bootstrap else None

    def keys(self) -> int:
        """How many keys have state here. Cost: O(1)."""
        return len(self.store.states)

    @property
    def is_writing(self) -> bool:
        """Whether its part of a checkpoint that it knows of is still to be written: until then its worker stays."""
        return self.journal is not None and self.journal.is_busy

    @property
    def wants_clock(self) -> bool:
        """Whether it has timers, or states, by the job's clock."""
        return self.store.events.wants_clock or (self.lasts_by_clock and bool(self.store.states))

    @property
    def timers_dropped(self) -> int:
        """How many timers a fold has set here as others fired, when all lines were read."""
        return self.store.events.dropped

    def unfinished(self) -> tuple[int, int, int]:
        """Return how many windows, timers for timestamps and timers by the clock are open here. Cost: linear."""
        timers, clock_timers = self.store.events.count()
        return (0, timers, clock_timers) if self.open_windows is None else (self.open_windows(), 0, 0)

    def take_ledger(self) -> list[LedgerRow]:
        """The rows written since the last call: bins that arrived here."""
        rows = list(self._installer.ledger)
        self._installer.ledger.clear()
        return rows

    def install(self) -> list[FlatTime]:
        """Own what has arrived of bins, whatever its time: no record is applied to a bin before it is whole.

        Return the times that a marker has come for: rules 2 and 5 of `event_timers`.
        """
        marked: list[FlatTime] = []
        for time, parcel in self.state.drain():
            for each in parcel:
                if not isinstance(each, Chunk):
                    marked.append(time)
                    continue
                if self.moments is not None:
                    self.moments.before(time)
                if self._installer.install(time, each):
                    marked.append(time)
        return marked

    def keep(self, waiting: FlatTime | None) -> None:
        """Come to what S has nothing to do for before, and write a slice; `waiting`: the first time at which it has.

        Durable operators do so after each run, others while something is registered. What does earlier: see `journal`.
        """
        moments, journal = self.moments, self.journal
        assert moments is not None
        frontiers = [each.frontier for each in (*self.data, self.state)]
        while (next := moments.next) is not None and (waiting is None or waiting >= next):
            if any(frontier.less_than(next) for frontier in frontiers):
                break
            moments.before(next)
        if journal is None:
            return
        if waiting is None and all(frontier.is_empty() for frontier in frontiers):  # no run will follow
            journal.finish()
        else:
            journal.write(is_idle=self._seen == self.records)
            self._seen = self.records

    def come_or_go(self, key: Any, before: Any, state: Any) -> None:
        """Add a key that has got a state, if it can travel; remove one that has lost it; refuse NaN in any other."""
        if state is not None:
            self.store.create(key, state)
            self.try_travel(key, state, STATE)
        elif before is not None:
            self.store.forget(key)
        else:
            check_key(key)

    def try_travel(self, key: Any, value: Any, what: str) -> None:
        """Encode a key, and something of it, once for each type: what cannot move is found before the first move.

        Raises CannotTravel. `what`: STATE or PAYLOAD. Before a move all is tried: see `bin_trial`.
        """
        if type(key) not in self._tried or type(value) not in self._tried:
            check_pairs(self.name, [(key, value)], what)
            self._tried |= {type(key), type(value)}

    def explain(self, error: Exception, call: str, batch: list[Any]) -> None:
        """Raise ProgramError if the loop that calls the fold has raised, not the fold: a record or its result is wrong.

        `call`: how the fold is called; `batch`: records of which one may be wrong. Call it where `error` is caught.
        """
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            complain_about(batch, self.name, error)
            raise ProgramError(
                f"{self.name}: the fold is called as {call} and must return (new state, outputs), with outputs a "
                "list or another iterable; return (state, []) for no output, (None, []) to forget the key's state; "
                f"instead: {error}"
            ) from error


class Policy(Protocol):
    """When, and how, one kind of S applies what it has."""

    def run(self) -> None:
        """Do one invocation: install state, apply what is due."""

    def waiting(self) -> FlatTime | None:
        """Return the first time at which it has something to apply, due or not; None if there is none."""


class PassOn:
    """S of a stream that is distributed, which keeps nothing: records go to the owner of their bin at their time.

    The bins are empty, and move as those of other operators do: so the same commands steer it, the worker sees it in
    the same way, and one that leaves has given them up. Nothing of a time depends on an empty bin, so no record waits.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def waiting(self) -> FlatTime | None:
        """Nothing waits."""
        return None

    def run(self) -> None:
        """One invocation: own the bins that have arrived, and pass the records on."""
        core = self._core
        core.install()
        for time, batch in core.data[0].drain():
            core.meter.records += len(batch)  # they have no key, and took no time worth a sample
            core.output.ship(time, batch)


def build(
    ports: Sequence[Port[Any]],
    hash: Callable[[Any], int],
    control: Port[Any] | None,
    bins: int,
    name: str,
    make_policy: Callable[[Core], Policy],
    make_splitter: type[Splitter] = ByKey,
    terms: Terms | None = None,
) -> Port[Any]:
    """Build F and S for data that comes by these ports; own the first table's bins.

    `terms`: on which it takes over what an earlier run has kept; None: there is nothing to keep.

    `control` is a stream of commands, numbered or not; None: that of the dataflow, if it has one. `make_policy(core)`
    is called once, when `core` is complete.
    """
    scope = ports[0].scope
    commands = control_for(scope, control, bins, name)
    store = BinStore(bins, hash)
    context = scope.graph.context
    durability = scope.graph.extension(Durability)
    moments = Moments(name, store) if terms is not None else None
    heir = Heir(name, bins, lambda count, other: BinStore(count, other or hash).bin_of_key, terms or Terms())
    if durability.sink is not None and terms is not None:
        durability.admit(heir, hears_default(scope, commands))
        moments = Journal(name, store, durability.sink, context.now, durability.spent or context.now)
    numbering = numbering_of(scope, control)
    router, routed, states, close_loop = route(ports, commands, store, name, make_splitter, numbering, moments)
    own = [bin for bin, owner in enumerate(router.control.history.active) if owner == context.allocator.index]
    controls = scope.graph.extension(Controls)
    store.events.begin(controls.watermark, controls.clock)
    restored = Restored({}, {})
    if durability.restore is not None and terms is not None and own:
        restored = durability.restore(heir, frozenset(own))
    _begin(store, own, restored)
    store.key_kinds = restored.key_kinds
    if isinstance(moments, Journal) and restored.bases:
        moments.bases.begin(restored.bases)
    if moments is not None:
        moments.showing = scope.graph.extension(Showing)
    store.watcher = moments if isinstance(moments, Journal) else None
    builder = NodeBuilder(scope, name)
    data = [flat_input(builder.new_input(port, Addressed()), scope) for port in routed]
    state: Input[Chunk | Watermark | Clock] = builder.new_input(states, Addressed(Lane.STATE))
    output, result = builder.new_output()
    core = Core(name, store, router, data, flat_input(state, scope), flat_output(output, scope), context, moments)
    core.nested = bool(scope.rounds)
    core.may_be_asked = moments is not None and commands is not None and hears_default(scope, commands)

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        core.activate = info.activator.activate
        policy = make_policy(core)
        capabilities[0].release()  # now that what is held for restored timers has been minted
        if moments is None:
            return policy.run
        moments.wake = core.activate
        is_durable, registered = core.journal is not None, moments.registered

        def run() -> None:
            policy.run()
            if is_durable or registered:
                core.keep(policy.waiting())

        return run

    builder.build(make)
    close_loop(result)
    scope.graph.show(core)
    return result


def _begin(store: BinStore, own: Sequence[int], restored: Restored) -> None:
    """Own the first bins, with what an earlier run has kept of them."""
    if restored.kept is not None:
        store.adopt(*restored.kept)
    for bin in own:
        timers, events = restored.timers.get(bin, ()), restored.events.get(bin, ())
        store.install(bin, restored.states.pop(bin, {}), timers, filter(store.events.waits, events))


def title_of(verb: str, fold: Callable[..., Any], name: str | None) -> str:
    """Return what an operator is called. Raises BuildError unless its fold is a function."""
    function(verb, fold, "fold")
    return str(name or getattr(fold, "__name__", verb))


def terms_of(
    title: str,
    version: int,
    upgrade: Callable[..., Any] | None,
    rehash: Callable[[Any], int] | bool,
    kind: str = "",
    form: Form = ANY_FORM,
) -> Terms:
    """Return on what terms an operator of a kind takes over the states that an earlier run has kept."""
    if type(version) is not int or version < 1:
        raise BuildError(f"{title} ({user_line()}): version must be an int of at least 1, not {shown(version)}")
    if upgrade is not None:
        function(title, upgrade, "upgrade")
    if isinstance(rehash, bool):
        return Terms(version, upgrade, stable_hash if rehash else None, kind, form)
    return Terms(version, upgrade, function(title, rehash, "rehash"), kind, form)
