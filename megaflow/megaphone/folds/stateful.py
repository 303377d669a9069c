"""Operator S for folds that take one record at a time: stateful_state_machine.

S applies a record at s as soon as no data frontier is less than s and no state frontier is less than or equal to s:
 - No record before s can still come, so a key's values are applied in time order.
 - Every bin that moved at s or before is in, so no record meets a missing or stale state. (F holds the state frontier
   at t until the bins that move at t are sent; the chunks under way hold it after that.)
Until then the record waits in S's stash under a capability of the output. S installs state on arrival, whatever the
time, because it applies nothing to a bin before the bin is whole.

In a nested scope "before" refers to the order of `flat_times`: outer times, then rounds.

Outputs carry the time of the record that caused them. S applies records of one time in the order of their arrival.

A run of S ends after a turn, however much is due. The worker reads mail, commands and progress only between steps, and
a slow fold may have minutes of work before it. The stash is held by its capability, and a queued batch by its own
count. S applies the stash first, because it arrived first.

In a durable job S notes which keys change, in the cheapest way. The journal chooses the way from the last intervals
between two cuts (`journal.choose`):
 - In the young dict, if the same keys come again and again. S looks for a state there first and puts the new state
   there, so its contents are what has changed. At a cut, and before a bin goes, it is merged into the states.
 - Not at all, if most keys come only once and most of all keys come. The next cut writes all bins whole.
 - As a set of the keys of each batch, if keys seldom come twice and most do not come.
 - Not at all before the first checkpoint, which has all keys.
After some intervals that noted nothing the journal tries the young dict again, to find out which way is best now. It
gives the trial up in the middle of the interval if few keys have come twice once the dict is so large that merging it
takes 3 ms.

Measured between cuts with one worker, the extra cost of a record over the loop of an S that is not durable: 2 to 12 ns
with the young dict, none without noting, and 35 to 170 ns with sets. The 170 ns are for a million ints at random. There
the young dict takes 100 to 200 ns, and another 220 ns to merge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from megaflow.megaphone.base.by_time import ByTime
from megaflow.megaphone.base.flat_times import FlatTime
from megaflow.megaphone.folds.stateful_core import Core
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.checks import checked
from megaflow.timely.dataflow.folds import NO_OUTPUTS, Fold, check_outputs, complain_about

TURN_SECONDS = 0.02  # of work before the worker takes its next step; S finishes a batch that it has begun


class StateMachine:
    """S on one worker: the records that wait, and the rule for when to apply them.

    Cost per record: the fold, a dict lookup and a store, as in a plain loop; with several workers also a lookup in F.
    """

    def __init__(self, core: Core, fold: Fold[Any, Any, Any, Any]) -> None:
        self._core = core
        self._fold = checked(core.name, fold)
        self._data = core.data[0]
        self._state = core.state
        self._output = core.output
        self._meter = core.meter
        assert core.barrier_actions is not None, "it keeps a state"
        self._barrier_actions = core.barrier_actions
        self._stash: ByTime[tuple[Capability, deque[list[Any]]]] = ByTime(self._entry)  # batches in arrival order
        self._journal = core.journal
        self._apply = self._apply_now
        if self._journal is not None:
            self._journal.follow()
            self._apply = self._apply_durably

    def stamp_outputs(self, stamping: Callable[[Core, Fold[Any, Any, Any, Any]], Fold[Any, Any, Any, Any]]) -> None:
        """Replace the fold by what `stamping` makes of it, see `fold_stamps`. Call this before the first run."""
        self._fold = stamping(self._core, self._fold)

    def _entry(self, time: FlatTime) -> tuple[Capability, deque[list[Any]]]:
        return self._output.mint(time), deque()

    def run(self) -> None:
        """Run for one turn: install state, apply what has become due, then what has arrived."""
        self._install()
        apply = self._apply_after if self._barrier_actions.registered else self._apply
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
                return  # a queue that is not empty makes it run again

    def _install(self) -> None:
        """Install the chunks of bins that have arrived."""
        self._core.install()

    def _is_done(self, time: FlatTime) -> bool:
        """Tell whether nothing is left to do at a time in the stash for which no batch waits."""
        return True

    def _due(self, time: FlatTime) -> bool:
        return not self._data.frontier.less_than(time) and not self._state.frontier.less_equal(time)

    def waiting(self) -> FlatTime | None:
        """Return the first time in the stash, or None."""
        return self._stash.least()

    def _apply_after(self, time: FlatTime, batch: list[Any]) -> None:
        """Carry out the commands before a batch's time, then apply the batch."""
        self._barrier_actions.before(time)
        self._apply(time, batch)

    def _apply_durably(self, time: FlatTime, batch: list[Any]) -> None:
        journal = self._journal
        assert journal is not None
        journal.applying(len(batch))
        if journal.wants_keys:
            try:
                journal.touch({key for key, _ in batch})
            except (TypeError, ValueError) as error:
                complain_about(batch, self._core.name, error)
                raise
        self._apply_now(time, batch)

    def _apply_now(self, time: FlatTime, batch: list[Any]) -> None:
        began = self._meter.now()
        self._output.ship(time, self._outputs(time, batch))
        self._meter.note(batch, began)

    def _outputs(self, time: FlatTime, batch: list[Any]) -> list[Any]:
        """Apply the fold to a batch, in order; return its outputs. This is the one loop that touches every record.

        It does what a loop without bins would do: look up, call the fold, store the new state. Hash and bin are
        computed when a key comes or goes (measured: a cell for each key, to save the second lookup, costs more). A
        bound method adds the outputs, which nearly pays for the check of their type (measured: + 6 ns a record).
        """
        if self._journal is not None and self._journal.young is not None:
            return self._outputs_with_young(batch, self._journal.young)
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

    def _outputs_with_young(self, batch: list[Any], young: dict[Any, Any]) -> list[Any]:
        """Apply the fold to a batch as `_outputs` does, but put new states into the young dict."""
        fold, find, find_old, come_or_go = self._fold, young.get, self._core.store.states.get, self._core.come_or_go
        kind, plain, nothing = type, list, NO_OUTPUTS
        out: list[Any] = []
        extend = out.extend
        try:
            for key, value in batch:
                before = find(key)
                if before is None:
                    before = find_old(key)
                state, outputs = fold(key, value, before)
                if before is None or state is None:
                    come_or_go(key, before, state)
                else:
                    young[key] = state
                if kind(outputs) is plain:
                    extend(outputs)
                elif outputs is not nothing:
                    check_outputs(self._core.name, outputs)
                    extend(outputs)
        except (TypeError, ValueError, LookupError) as error:
            self._core.explain(error, "fold(key, value, state)", batch)
            raise
        return out
