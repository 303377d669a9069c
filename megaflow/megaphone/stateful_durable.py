"""Operator S of stateful_state_machine in a durable job: it notes which keys change, in the way that costs least.

How is said by the journal, from what the last intervals between two cuts have shown (`journal.choose`):
 - where keys come again and again, in the young dict. S looks for a state there first and puts the new one there; so
   what is in it is what has changed. At a cut, and before a bin goes, it is merged into the states.
 - where most keys come once and most of all keys come, not at all: the next cut writes all bins whole.
 - where keys seldom come twice and most do not come, as a set of the keys of each batch.
 - before the first checkpoint, which has all, not at all.
When that is to be found out anew (after some intervals that noted nothing) the young dict is tried, and given up in the
middle of the interval once so many keys are in it that to merge them takes 3 ms, and few have come twice.

Measured with one worker, a record over the loop of an S that is not durable, between cuts: 2 to 12 ns, none, and 35 to
170 ns; the last for a million ints at random, where the young dict takes 100 to 200 ns and 220 to merge.
"""

from __future__ import annotations

from typing import Any

from megaflow.megaphone.flat_times import FlatTime
from megaflow.megaphone.stateful import Fold, StateMachine
from megaflow.megaphone.stateful_core import Core
from megaflow.timely.dataflow.folds import NO_OUTPUTS, check_outputs, complain_about


class DurableMachine(StateMachine):
    """S on one worker that tells a journal what it changes."""

    def __init__(self, core: Core, fold: Fold[Any, Any, Any, Any]) -> None:
        super().__init__(core, fold)
        assert core.journal is not None
        self._journal = core.journal
        self._journal.follow()

    def _apply(self, time: FlatTime, batch: list[Any]) -> None:
        journal = self._journal
        journal.applying(len(batch))
        if journal.wants_keys:
            try:
                journal.touch({key for key, _ in batch})
            except (TypeError, ValueError) as error:
                complain_about(batch, self._core.name, error)
                raise
        super()._apply(time, batch)

    def _outputs(self, time: FlatTime, batch: list[Any]) -> list[Any]:
        """Apply the fold to a batch, as that of any S does; new states go to the young dict, if there is one."""
        young = self._journal.young
        if young is None:
            return super()._outputs(time, batch)
        fold, find, find_old, come_or_go = self._fold, young.get, self._core.store.states.get, self._come_or_go
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

    def _come_or_go(self, key: Any, before: Any, state: Any) -> None:
        """Have a key among the states, or in neither dict."""
        self._journal.come_or_go(key)
        self._core.come_or_go(key, before, state)


def state_machine(core: Core, fold: Fold[Any, Any, Any, Any]) -> StateMachine:
    """Return the S of this kind for the job of the operator."""
    return (StateMachine if core.journal is None else DurableMachine)(core, fold)
