"""Operator S for folds that see record by record: stateful_state_machine.

S applies a record at s as soon as no data frontier is less than s and no state frontier is less than or equal to s:
 - nothing before s is still to come, so a key's values are applied in time order;
 - every bin that moved at s or before is in, so no record meets a missing or stale state
   (F holds the state frontier at t until the bins that move at t are sent; the chunks
   under way hold it after that).
Until then the record waits in S's stash under a capability of the output. State is
installed on arrival, whatever the time: nothing is applied to it before it is whole.

In a nested scope "before" is meant in the order of `flat_times`: outer times, then rounds.

Outputs carry the time of the record that caused them. Records of one time are applied in
the order of their arrival.

A run of S ends after a turn, however much is due, because the worker reads mail, commands and progress between steps
only, and a slow fold may have minutes of work before it. What is left in the stash is held by its capability, what is
left in the queue by its own count. The stash goes first, for it came first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from megaflow.megaphone.by_time import ByTime
from megaflow.megaphone.flat_times import FlatTime
from megaflow.megaphone.stateful_core import Core
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.checks import checked
from megaflow.timely.dataflow.folds import NO_OUTPUTS, check_outputs

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")

Fold = Callable[[K, V, A | None], tuple[A | None, Iterable[R]]]

TURN_SECONDS = 0.02  # that S applies before the worker takes its next step; a batch that has begun is finished


class StateMachine:
    """S on one worker: what waits, and when it is applied.

    Cost per record: the fold, a dict lookup and a store, as in a plain loop; with several workers a lookup in F, too.
    """

    def __init__(self, core: Core, fold: Fold[Any, Any, Any, Any]) -> None:
        self._core = core
        self._fold = checked(core.name, fold)
        self._data = core.data[0]
        self._state = core.state
        self._output = core.output
        self._meter = core.meter
        assert core.moments is not None, "it keeps a state"
        self._moments = core.moments
        self._stash: ByTime[tuple[Capability, deque[list[Any]]]] = ByTime(self._entry)  # batches in arrival order

    def _entry(self, time: FlatTime) -> tuple[Capability, deque[list[Any]]]:
        return self._output.mint(time), deque()

    def run(self) -> None:
        """One invocation: install state, apply what has become due, then what has arrived, for a turn."""
        self._install()
        apply = self._apply_after if self._moments.registered else self._apply
        now = self._meter.now
        end = now() + TURN_SECONDS
        while (waiting := self._stash.least()) is not None and self._due(waiting):
            capability, batches = self._stash[waiting]
            if batches:
                batch = batches.popleft()
                self._core.waiting -= len(batch)
                apply(waiting, batch)
            if not batches:
                if not self._is_done(waiting):
                    break
                self._stash.take(waiting)
                capability.release()
            if now() >= end:
                self._core.activate()
                return
        while self._data.is_waiting():
            time, batch = self._data.take()
            if not self._due(time):
                self._stash[time][1].append(batch)
                self._core.waiting += len(batch)
                continue
            apply(time, batch)
            if now() >= end:
                return  # a queue that is not empty has it run again

    def _install(self) -> None:
        """Own what has arrived of bins."""
        self._core.install()

    def _is_done(self, time: FlatTime) -> bool:
        """Tell whether nothing is left to do at a time of the stash of which no batch waits."""
        return True

    def _due(self, time: FlatTime) -> bool:
        return not self._data.frontier.less_than(time) and not self._state.frontier.less_equal(time)

    def waiting(self) -> FlatTime | None:
        """The first time that has come and is not applied."""
        return self._stash.least()

    def _apply_after(self, time: FlatTime, batch: list[Any]) -> None:
        """Apply a batch, but first do what is to be done before its time."""
        self._moments.before(time)
        self._apply(time, batch)

    def _apply(self, time: FlatTime, batch: list[Any]) -> None:
        began = self._meter.now()
        self._output.ship(time, self._outputs(time, batch))
        self._meter.note(batch, began)

    def _outputs(self, time: FlatTime, batch: list[Any]) -> list[Any]:
        """Apply the fold to a batch, in order; return its outputs. The one loop that touches every record.

        It does what one without bins would do: a lookup, the fold, and the new state in its place. Hash and bin are
        computed when a key comes or goes (measured: a cell for each key, to save the second lookup, costs more).
        Outputs are added by a bound method, which pays for most of asking for their type (measured: + 6 ns a record).
        """
        fold, states, come_or_go = self._fold, self._core.store.states, self._core.come_or_go
        find, kind, plain, nothing = states.get, type, list, NO_OUTPUTS
        out: list[Any] = []
        extend = out.extend
        try:
            for key, value in batch:
                before = find(key)
                state, outputs = fold(key, value, before)
                if before is None or state is None:
                    come_or_go(key, before, state)
                else:
                    states[key] = state
                if kind(outputs) is plain:
                    extend(outputs)
                elif outputs is not nothing:
                    check_outputs(self._core.name, outputs)
                    extend(outputs)
        except (TypeError, ValueError, LookupError) as error:
            self._core.explain(error, "fold(key, value, state)", batch)
            raise
        return out
