"""Operator S for folds that see a key's records of one time together, and may set timers: stateful_unary and _binary.

The fold is called once per key and time, when the time is closed: no data frontier is at most it, and neither is the
state frontier. So all its records are here, and each bin that moved at that time or before, with its timers, is in.
A time at which a key has a timer and no record counts as well.

What S keeps
 1. Records of times that are not closed, by time. They do not move with bins: F has sent them to the owner of their
    time, here, where their bin may still be under way to.
 2. Timers, in the store that it shares with F (`timers`). F takes those of a bin out with it.
 3. One capability of the output, at the least time of both; so there are few pointstamps, however many timers. It is
    put right at the end of each run. To a later time it is downgraded. An earlier time comes only with a record or a
    chunk that this run has consumed, at or before that time, so a new one may be minted; and a fold sets timers for
    times after its own, at which it is still held.
 4. When F takes a bin out for t it takes its timers, and S holds too much until it runs again. Nobody waits for that:
    the timers are at t or later, and so is what is held for them; S runs at the latest when the state frontier passes
    t, and before that nothing at t or later can be applied anywhere. Nor is anything missing: F holds t itself, by the
    state output's capability, since the command arrived, and then the chunks do.

Outputs carry the time of their records. Times are applied in order, a bounded number a run: a fold that sets a timer
whenever one is due would keep the worker for ever once all inputs have ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import chain
from typing import Any, TypeVar

from megaflow.errors import ProgramError
from megaflow.megaphone.bins import BinStore, stable_hash
from megaflow.megaphone.chunks import Chunk, Installer
from megaflow.megaphone.routing import Numbered
from megaflow.megaphone.splitting import ByKey, complain_about
from megaflow.megaphone.stateful import StatefulView, TravelTrial, assemble, finish
from megaflow.megaphone.timers import Timers
from megaflow.timely.communication.allocator import Lane
from megaflow.timely.dataflow.builder import BATCH_RECORDS, Input, OperatorBuilder, Output
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Addressed

K = TypeVar("K")
V = TypeVar("V")
W = TypeVar("W")
A = TypeVar("A")
R = TypeVar("R")

UnaryFold = Callable[[K, int, list[Any], A | None, Timers], tuple[A | None, Iterable[R]]]
BinaryFold = Callable[[K, int, list[Any], list[W], A | None, Timers], tuple[A | None, Iterable[R]]]
# The lists of Any hold values and payloads, which may be of another type.

_TIMES_PER_RUN = 64
"""Times that are applied before other operators get their turn."""


def stateful_unary(
    port: Port[tuple[K, V]],
    fold: UnaryFold[K, A, R],
    hash: Callable[[K], int] = stable_hash,
    control: Port[Numbered] | None = None,
    bins: int = 256,
    name: str | None = None,
) -> Port[R]:
    """Fold the records of each key and closed time: `fold(key, time, records, state, timers) -> (state, outputs)`.

    `records` are the payloads of the key's timers that are due, then its values in the order of arrival.
    """
    title = str(name or getattr(fold, "__name__", "stateful_unary"))
    return _build([port], "fold(key, time, records, state, timers)", fold, hash, control, bins, title)


def stateful_binary(
    left: Port[tuple[K, V]],
    right: Port[tuple[K, W]],
    fold: BinaryFold[K, W, A, R],
    hash: Callable[[K], int] = stable_hash,
    control: Port[Numbered] | None = None,
    bins: int = 256,
    name: str | None = None,
) -> Port[R]:
    """Fold two streams with one state per key: `fold(key, time, left, right, state, timers) -> (state, outputs)`.

    `left` are the payloads of the key's timers that are due, then its values of the left stream; `right` those of the
    right one. Both in the order of arrival.
    """
    title = str(name or getattr(fold, "__name__", "stateful_binary"))
    return _build([left, right], "fold(key, time, left, right, state, timers)", fold, hash, control, bins, title)


def _build(
    ports: Sequence[Port[Any]],
    call: str,
    fold: Callable[..., Any],
    hash: Callable[[Any], int],
    control: Port[Numbered] | None,
    bins: int,
    name: str,
) -> Port[Any]:
    assembly = assemble(ports, hash, control, bins, name, ByKey)
    builder = OperatorBuilder(ports[0].scope, name)
    data: list[Input[Any]] = [builder.new_input(port, Addressed()) for port in assembly.routed.data]
    state: Input[Chunk] = builder.new_input(assembly.routed.state, Addressed(Lane.STATE))
    output, result = builder.new_output()
    folder = _Folder(fold, call, assembly.store, name)

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        capabilities[0].release()
        activate = info.activator.activate
        return _Machine(data, state, output, folder, assembly.installer, assembly.view, activate).run

    builder.build(make)
    finish(assembly, result)
    return result


class _Machine:
    """S on one worker: what waits for its time to be closed."""

    def __init__(
        self,
        data: Sequence[Input[Any]],
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
        self._timers = folder.store.timers
        self._stash: dict[int, list[list[list[Any]]]] = {}  # time -> input -> batches in arrival order
        self._waiting: list[int] = []  # heap: the times in the stash
        self._held: Capability | None = None  # at the least time of stash and timers; None: both are empty

    def run(self) -> None:
        """One invocation: install state, keep what has arrived, apply what is closed."""
        self._installer.install_all(self._state.drain())
        for number, data in enumerate(self._data):
            for arrived_at, batch in data.drain():
                assert isinstance(arrived_at, int)
                self._keep(arrived_at, number, batch)
        frontiers = [each.frontier for each in (*self._data, self._state)]
        left = _TIMES_PER_RUN
        while (time := self._least()) is not None and not any(frontier.less_equal(time) for frontier in frontiers):
            if not left:
                self._activate()
                break
            left -= 1
            self._apply(time)
        self._hold(time)

    def _keep(self, time: int, number: int, batch: list[Any]) -> None:
        if time not in self._stash:
            self._stash[time] = [[] for _ in self._data]
            heappush(self._waiting, time)
        self._stash[time][number].append(batch)
        self._view.waiting += len(batch)

    def _least(self) -> int | None:
        """The first time at which something waits."""
        due = self._timers.least()
        if self._waiting and (due is None or self._waiting[0] < due):
            return self._waiting[0]
        return due

    def _apply(self, time: int) -> None:
        inputs: list[list[list[Any]]] = [[] for _ in self._data]
        if self._waiting and self._waiting[0] == time:
            heappop(self._waiting)
            inputs = self._stash.pop(time)
        meter = self._view.meter
        began = meter.now()
        out = self._folder.apply(time, inputs)
        records = list(chain.from_iterable(chain.from_iterable(inputs)))
        meter.note(records, began)
        self._view.waiting -= len(records)
        for start in range(0, len(out), BATCH_RECORDS):
            self._output.ship(time, out[start : start + BATCH_RECORDS])

    def _hold(self, least: int | None) -> None:
        """Hold the output's capability at this time, and no other."""
        held = self._held
        if least is None:
            if held is not None:
                held.release()
                self._held = None
        elif held is None:
            self._held = mint(self._output, least)
        elif held.time != least:
            assert isinstance(held.time, int)
            if held.time < least:
                held.downgrade(least)
            else:
                self._held = mint(self._output, least)
                held.release()


class _Folder:
    """Applies the fold to what a time has; the loops that touch every record and key."""

    def __init__(self, fold: Callable[..., Any], call: str, store: BinStore, name: str) -> None:
        self.store = store
        self._fold = fold
        self._call = call  # how the fold is called, for messages
        self._name = name
        self._trial = TravelTrial(name)
        self._handle = Timers(name, self)

    def set_timer(self, time: int, key: Any, payload: Any) -> None:
        """Called through the handle that the fold has."""
        self._trial.check(key, payload, "a timer's payload for ")
        self.store.timers.add(time, self.store.bin_of_key(key), key, payload)

    def apply(self, time: int, inputs: Sequence[Iterable[list[Any]]]) -> list[Any]:
        """The outputs of a time: the timers that are due and the batches of each input, by key. Order: see `_group`."""
        fold, store, timers = self._fold, self.store, self._handle
        states = store.states
        groups = self._group(time, inputs)
        out: list[Any] = []
        timers.time = time
        try:
            for key in groups[0] if len(groups) == 1 else dict.fromkeys(key for group in groups for key in group):
                before = states.get(key)
                timers.key = key
                records = [group.get(key) or [] for group in groups]
                state, outputs = fold(key, time, *records, before, timers)
                if before is not None and state is not None:
                    states[key] = state
                elif state is not None:
                    store.create(key, state)
                    self._trial.check(key, state, "the state of ")
                elif before is not None:
                    store.forget(key)
                out += outputs
        except (TypeError, ValueError) as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise self._complaint(error) from error
            raise
        timers.time = None
        return out

    def _group(self, time: int, inputs: Sequence[Iterable[list[Any]]]) -> list[dict[Any, list[Any]]]:
        """For each input: key -> records, first of the keys with timers. Each list is the fold's own."""
        groups: list[defaultdict[Any, list[Any]]] = [defaultdict(list) for _ in inputs]
        for bin, due in self.store.timers.pop(time).items():
            assert bin in self.store.bins, f"a timer of bin {bin} is due at time {time}, but the bin is not here"
            groups[0].update(due)
        for group, batches in zip(groups, inputs, strict=True):
            for batch in batches:
                try:
                    for key, value in batch:
                        group[key].append(value)
                except (TypeError, ValueError) as error:
                    complain_about(batch, self._name, error)
                    raise
        return list(groups)

    def _complaint(self, error: Exception) -> ProgramError:
        """What is wrong when the loop itself raised: how the fold is made."""
        return ProgramError(
            f"{self._name}: the fold is called as {self._call} and must return (new state, outputs), outputs being a "
            "list or another iterable; return (state, []) for no output, (None, []) to forget the key's state; "
            f"here: {error}"
        )
