"""What is in memory of an operator when its job has lost a process, and what of that a checkpoint has as well.

The process goes on; all that it has built is built anew. Of a stateful operator, of a worker of before, it takes over
the states that are what the checkpoint says from which the job goes on, and reads the others again. Which these are
 1. its journal knows. A cut at this moment would write what changes the committed checkpoint into what is in memory:
    the keys that were touched since (which may be gone, or new, now), and bins whole. What it would not write is in
    memory as the checkpoint has it. So the rules of `journal` on what a cut writes are those on what is not kept, and
    what is forgotten here would be missing in the next checkpoint, too.
 2. Touched are the keys that any interval since that checkpoint has: those before the cut that it was, by number, do
    not count; those before cuts that were abandoned, or were under way, do. They are noted as a set; or as the young
    dict of the interval, or of the present one, whose states are dropped: what they replaced may have been changed in
    place. Where nothing was noted (dense), in one interval of these or now, nothing is kept.
 3. A bin that came in one of them is not kept: what its keys were before, this journal does not know. A bin that left
    is not there, nor are its keys, though a part of them may stand among the states until it is sent.
 4. The journal keeps intervals since what it knows to be committed, and what is recovered is never older than that. A
    worker that never made that cut has joined after its epoch: it had nothing then, so all its bins have come since.
 5. A touched key is in doubt even if its state looks the same, and also if it is of a bin that is kept and has no
    state now: the checkpoint may have one.
Timers are read again, all: they fire, and are set, without a trace that is kept by key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from megaflow.megaphone.bins import BinStore
from megaflow.megaphone.journal import Interval, Journal
from megaflow.quick_dataclass import dataclass


@dataclass(slots=True)
class Remains:
    """One operator on one worker that has ended."""

    states: dict[Any, Any]  # key -> state
    bins: dict[int, dict[Any, None]]  # bin -> its keys
    intervals: Sequence[Interval]  # since some committed cut, oldest first
    young: dict[Any, Any]  # of the last of them
    count: int  # of all bins, here and elsewhere

    @staticmethod
    def of(store: BinStore, journal: Journal) -> Remains:
        """Take over what an operator has, which does nothing any more."""
        return Remains(store.states, store.bins, journal.intervals, journal.young or {}, store.count)

    def roll_back(self, bin_of_key: Callable[[Any], int], checkpoint: int) -> set[Any]:
        """Keep what a checkpoint has that is committed; return the keys that are to be read again, of the bins here.

        Cost: linear in the keys that have changed since; in all if a bin is not kept or has left.
        """
        since = [each for each in self.intervals if each.number is None or each.number > checkpoint]
        if any(each.dense for each in since):
            self.bins = {}
        for bin in set[int]().union(*(each.came for each in since)):
            self.bins.pop(bin, None)
        touched = set[Any]().union(*(each.keys for each in since), *(each.young for each in since), self.young)
        bins = {key: bin_of_key(key) for key in touched}
        touched = {key for key, bin in bins.items() if bin in self.bins}
        for key in touched:
            self.bins[bins[key]].pop(key, None)
            self.states.pop(key, None)
        if len(self.states) != sum(map(len, self.bins.values())):
            states = self.states
            self.states = {key: states[key] for keys in self.bins.values() for key in keys}
        return touched

    def add(self, bin_of_key: Callable[[Any], int], found: dict[Any, Any]) -> None:
        """Add keys that were read again."""
        self.states.update(found)
        for key in found:
            self.bins[bin_of_key(key)][key] = None
