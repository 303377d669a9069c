"""The core of operator S, which all kinds of S share: what each keeps on one worker, and how it is built.

S shares its bins with F of the same worker (`router`). A kind of S is a policy on this core: it decides when a record
or a timer may be applied, and how. The core installs the bins that arrive, keeps the keys' bins up to date, checks
early that keys and states can travel, explains faults of a fold, and shows the operator to the rest of the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Protocol

from megaflow.durable.restored import ANY_FORM, Form, Hash, Restored, StateDescriptor, Terms
from megaflow.errors import BuildError, ProgramError
from megaflow.megaphone import snapshot
from megaflow.megaphone.base.barrier_actions import BarrierActions, Showing
from megaflow.megaphone.base.bin_trial import STATE, check_pairs
from megaflow.megaphone.base.bins import BinStore, stable_hash
from megaflow.megaphone.base.chunks import Chunk, Installer, LedgerRow
from megaflow.megaphone.base.durability import Durability, LeaveOut
from megaflow.megaphone.base.flat_ends import AnyInput, AnyOutput, flat_input, flat_output
from megaflow.megaphone.base.flat_times import FlatTime
from megaflow.megaphone.base.routing import Clock, RoutingTable, Watermark
from megaflow.megaphone.folds.load_meter import LoadMeter
from megaflow.megaphone.router.control_stream import Controls, control_for, hears_default
from megaflow.megaphone.router.router import Router, route
from megaflow.megaphone.router.splitting import ByKey, Splitter
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.argument_checks import function, no_generator, shown
from megaflow.timely.dataflow.builder import Input, NodeBuilder
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.context import Context, OperatorInfo
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.folds import check_key, complain_about
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Addressed


@dataclass(eq=False, repr=False)
class Core:
    """One S on one worker. The policy drains `data` and sends through `output`.

    The rest of the worker also sees the operator through this object: its name, the bins that it owns, and its load.
    """

    name: str
    store: BinStore
    router: Router
    data: Sequence[AnyInput[Any]]
    state: AnyInput[Chunk | Watermark | Clock]  # the policy reads only its frontier
    output: AnyOutput[Any]
    context: Context
    barrier_actions: BarrierActions | None  # None: the operator keeps no state
    journal: snapshot.Journal | None  # the same object as `barrier_actions` if the operator is durable; None: it is not
    nested: bool  # whether times are flat tuples: see `flat_times`
    may_be_asked: bool  # whether lookups reach this operator
    activate: Callable[[], None] = field(init=False)  # asks for another run; set when the operator is made
    meter: LoadMeter = field(init=False)  # written by the policy
    waiting: int = 0  # records that S has taken but not applied, as their time has not come; written by the policy
    late: int = 0  # records that came too late, as for all their windows; written by the policy, or for it
    overtaken: int = 0  # of these, late by the watermark but not by their own bounds: see `record_bounds`
    open_windows: Callable[[], int] | None = None  # counts open windows; None: the timers are the program's
    late_is_taken: bool = False  # whether the program has the late records as a stream; set during the build
    partial_until: int | None = None  # microseconds: windows that begin up to then may lack records; None: none does
    emits_partial: bool = False  # whether their results are put out like all others
    partial_is_taken: bool = False  # whether the program has them as a stream; set during the build
    leave_out: LeaveOut = lambda operator, text: None  # called for each closed one that nobody takes
    lasts_by_clock: bool = False  # whether its states last by the job's clock; set by the policy
    _seen: int = 0  # records that had been applied at the last call of `keep`
    _tried: set[type] = field(default_factory=set)  # types of keys, states and payloads that are known to travel

    def __post_init__(self) -> None:
        self.bins = self.store.count
        self.meter = LoadMeter(self.store.bin_of_key, self.context.now)
        context = self.context
        if self.journal is not None:
            self.journal.windowed = self.windowed
        self._installer = Installer(self.store, context.allocator.index, context.wall, self.router.shipper.installed)

    @property
    def ready(self) -> bool:
        """Whether its routing table is known here: from the start, or on a worker that joined, once it has arrived."""
        return self.router.control.ready

    @property
    def bootstrap_seconds(self) -> float:
        """Seconds for which records waited here for the routing table, on a joined worker; set when it arrived."""
        return self.router.bootstrap_seconds

    @property
    def records(self) -> int:
        """Number of records that were applied here so far."""
        return self.meter.records

    def table(self) -> RoutingTable:
        """Return the active routing table: bin -> worker; empty until `ready`."""
        return self.router.control.history.active

    def owned(self) -> list[int]:
        """Return the bins that are here now, sorted."""
        return sorted(self.store.bins)

    def objection(self) -> str | None:
        """Return why the worker may not leave: its bins would be lost. Return None if it owns none."""
        owned = len(self.store.bins)
        return f"owns {owned} bins of {self.name!r}: move them away first" if owned else None

    def follow(self) -> None:
        """Send the routing state to workers that have joined, if that is F's task."""
        if (introduction := self.router.control.introduction) is not None:
            introduction.follow()

    def untold(self) -> int | None:
        """Return the node of F if F needs a Bootstrap, else None."""
        return self.router.control.node if self.router.control.needs_bootstrap else None

    def keys(self) -> int:
        """Return the number of keys with state here. Cost: O(1)."""
        return len(self.store.states)

    @property
    def wants_clock(self) -> bool:
        """Whether it has timers or states that depend on the job's clock."""
        return self.store.events.wants_clock or (self.lasts_by_clock and bool(self.store.states))

    @property
    def timers_dropped(self) -> int:
        """Number of timers that were dropped: a fold set them here while others fired, after all lines were read."""
        return self.store.events.dropped

    def unfinished(self) -> tuple[int, int, int]:
        """Return how many windows, timers for timestamps and timers by the clock are open here. Cost: linear."""
        timers, clock_timers = self.store.events.count()
        return (0, timers, clock_timers) if self.open_windows is None else (self.open_windows(), 0, 0)

    def windowed(self) -> tuple[int, int]:
        """Return how many records it received, and how many of them it left out as late.

        Without windows or late records, nothing counts. Late records that the program takes as a stream do not count as
        left out.
        """
        if self.open_windows is None and not self.late:
            return 0, 0
        return self.records, 0 if self.late_is_taken else self.late

    def take_ledger(self) -> list[LedgerRow]:
        """Return the rows written since the last call, one for each bin that arrived here."""
        rows = list(self._installer.ledger)
        self._installer.ledger.clear()
        return rows

    def install(self) -> list[FlatTime]:
        """Install the chunks that have arrived, whatever their time: no record is applied to a bin before it is whole.

        Return the times that S has to close because of a marker or a chunk: rules 2 and 5 of `event_timers`.
        """
        marked: list[FlatTime] = []
        for time, parcel in self.state.drain():
            for each in parcel:
                if not isinstance(each, Chunk):
                    marked.append(time)
                    continue
                if self.barrier_actions is not None:
                    self.barrier_actions.before(time)
                if self._installer.install(time, each):
                    marked.append(time)
        return marked

    def keep(self, waiting: FlatTime | None) -> None:
        """Carry out commands before which S has nothing left to do, and write a slice of the last cut.

        `waiting`: the first time at which something waits in S. Durable operators call this after each run, others
        while a command is registered. `journal` describes what carries commands out earlier.
        """
        barrier_actions, journal = self.barrier_actions, self.journal
        assert barrier_actions is not None
        frontiers = [each.frontier for each in (*self.data, self.state)]
        while (next := barrier_actions.next) is not None and (waiting is None or waiting >= next):
            if any(frontier.less_than(next) for frontier in frontiers):
                break
            barrier_actions.before(next)
        if journal is None:
            return
        if waiting is None and all(frontier.is_empty() for frontier in frontiers):  # no run will follow
            journal.finish()
        else:
            journal.write(is_idle=self._seen == self.records)
            self._seen = self.records

    def come_or_go(self, key: Any, before: Any, state: Any) -> None:
        """Add a key that now has a state, if it can travel. Remove a key without a state. Otherwise refuse NaN."""
        if self.journal is not None:
            self.journal.come_or_go(key)
        if state is not None:
            self.store.create(key, state)
            self.try_travel(key, state, STATE)
        elif before is not None:
            self.store.forget(key)
        else:
            check_key(key)

    def try_travel(self, key: Any, value: Any, what: str) -> None:
        """Encode a key and its value once for each type, to find before the first move that something cannot travel.

        Raises CannotTravel. `what`: STATE or PAYLOAD. Before a move everything is tried: see `bin_trial`.
        """
        if type(key) not in self._tried or type(value) not in self._tried:
            check_pairs(self.name, [(key, value)], what)
            self._tried |= {type(key), type(value)}

    def explain(self, error: Exception, call: str, batch: list[Any]) -> None:
        """Raise ProgramError if the error comes from the loop that calls the fold: a record or a result is wrong.

        An error from inside the fold is not explained. `call`: how the fold is called; `batch`: records, one of them
        perhaps wrong. Call this where `error` is caught.
        """
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            complain_about(batch, self.name, error)
            raise ProgramError(
                f"{self.name}: the fold is called as {call} and must return (new state, outputs), with outputs a "
                "list or another iterable; return (state, []) for no output, (None, []) to forget the key's state; "
                f"instead: {error}"
            ) from None


class Policy(Protocol):
    """The rules by which one kind of S applies its records and timers: when, and how."""

    def run(self) -> None:
        """Run once: install state, apply what is due."""

    def waiting(self) -> FlatTime | None:
        """Return the first time at which there is something to apply, due or not; None if there is nothing."""


class PassOn:
    """S of a stream that is distributed, which keeps nothing: records go to the owner of their bin at their time.

    The bins are empty, and move like those of other operators. So the same commands steer the operator, the worker sees
    it in the same way, and a leaver has given its bins up. No record depends on an empty bin, so no record waits.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def waiting(self) -> FlatTime | None:
        """Return None: nothing waits."""
        return None

    def run(self) -> None:
        """Run once: install the bins that have arrived, and pass the records on."""
        core = self._core
        core.install()
        for time, batch in core.data[0].drain():
            core.meter.records += len(batch)  # they have no key, and took too little time for a sample
            core.output.ship(time, batch)


def build(
    ports: Sequence[Port[Any]], hash: Callable[[Any], int], control: Port[Any] | None, bins: int, name: str,
    make_policy: Callable[[Core], Policy], make_splitter: type[Splitter] = ByKey, terms: Terms | None = None,
) -> Port[Any]:  # fmt: skip
    """Build F and S for the data of these ports; S owns the bins that the first table gives this worker.

    `terms`: the terms on which the operator takes over what an earlier run has kept; None: it keeps no state.

    `control` is a stream of commands, numbered or not; None: the dataflow's default, if it has one. `make_policy(core)`
    is called once, when `core` is complete.
    """
    scope = ports[0].scope
    commands = control_for(scope, control, bins, name)
    store = BinStore(bins, hash)
    context = scope.graph.context
    durability = scope.graph.extension(Durability)
    actions = BarrierActions(name, store) if terms is not None else None
    journal: snapshot.Journal | None = None
    descriptor = StateDescriptor(name, bins, lambda n, other: BinStore(n, other or hash).bin_of_key, terms or Terms())
    if durability.sink is not None and terms is not None:
        durability.admit(descriptor, hears_default(scope, commands))
        spent = durability.spent or context.now
        actions = journal = snapshot.Journal(name, store, durability.sink, context.now, spent)
    controls = scope.graph.extension(Controls)
    numbering = controls.numberings.get(control)
    router, routed, states, close_loop = route(ports, commands, store, name, make_splitter, numbering, actions)
    own = [bin for bin, owner in enumerate(router.control.history.active) if owner == context.allocator.index]
    store.events.watermark, store.events.clock = controls.watermark, controls.clock  # where an earlier run ended
    restored = Restored({}, {})
    if durability.restore is not None and terms is not None and own:
        restored = durability.restore(descriptor, frozenset(own))
    _begin(store, own, restored)
    if journal is not None and restored.bases:
        journal.bases.begin(restored.bases)
    if actions is not None:
        actions.showing = scope.graph.extension(Showing)
    store.watcher = journal
    builder = NodeBuilder(scope, name)
    data = [flat_input(builder.new_input(port, Addressed()), scope) for port in routed]
    state: Input[Chunk | Watermark | Clock] = builder.new_input(states, Addressed(Lane.STATE))
    output, result = builder.new_output()
    ends = flat_input(state, scope), flat_output(output, scope)
    may_be_asked = actions is not None and commands is not None and hears_default(scope, commands)
    core = Core(name, store, router, data, *ends, context, actions, journal, bool(scope.rounds), may_be_asked)
    core.partial_until, core.emits_partial = durability.partial_until(name), durability.emits_partial
    core.leave_out = durability.leave_out

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        core.activate = info.activator.activate
        policy = make_policy(core)
        capabilities[0].release()  # the policy has minted what restored timers need
        if actions is None:
            return policy.run
        actions.wake = core.activate
        is_durable, registered = core.journal is not None, actions.registered

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
    """Own the first bins, with the contents that an earlier run has kept."""
    if restored.kept is not None:
        store.adopt(*restored.kept)
    for bin in own:
        timers, events = restored.timers.get(bin, ()), restored.events.get(bin, ())
        store.install(bin, restored.states.pop(bin, {}), timers, filter(store.events.waits, events))
    store.key_kinds = restored.key_kinds


def title_of(verb: str, fold: Callable[..., Any], name: str | None) -> str:
    """Return the name of an operator. Raises BuildError unless its fold is a function."""
    no_generator(verb, function(verb, fold, "fold"), "fold")
    return str(name or getattr(fold, "__name__", verb))


def terms_of(
    title: str,
    version: int,
    upgrade: Callable[..., Any] | None,
    rehash: Callable[[Any], int] | bool,
    kind: str = "",
    form: Form = ANY_FORM,
    is_named: bool = True,
    fold: Callable[..., Any] | None = None,
) -> Terms:
    """Return the terms on which an operator of a kind takes over the states that an earlier run has kept."""
    if type(version) is not int or version < 1:
        raise BuildError(f"{title} ({user_line()}): version must be an int of at least 1, not {shown(version)}")
    if upgrade is not None:
        function(title, upgrade, "upgrade")
    if isinstance(rehash, bool):
        old_hash: Hash | None = stable_hash if rehash else None
    else:
        old_hash = function(title, rehash, "rehash")
    return Terms(version, upgrade, old_hash, kind, form, is_named, fold)
