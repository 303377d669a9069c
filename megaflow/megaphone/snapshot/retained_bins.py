"""The memory of an operator after its job has lost a process, and the part of it that a checkpoint also has.

A process that survives goes on, but builds everything anew. A new stateful operator takes over from the old one, on the
same worker, the states that equal those in the checkpoint from which the job resumes. It reads the others again from
the store. These rules decide which states it keeps:
 1. The journal of the old operator knows what differs. A cut at this moment would write the difference between the
    committed checkpoint and the memory: the keys that were touched since, which may be gone or new now, and whole
    bins. All other states are in memory as the checkpoint has them. So the rules of `journal` for what a cut writes
    also select what is dropped here. A change that they overlook would also be missing in the next checkpoint.
 2. Touched are the keys in any interval since that checkpoint. An interval does not count if the cut at its end has the
    checkpoint's number or a lower one. Intervals before later cuts, abandoned or under way, count. An interval has its
    touched keys as a set, or as its young dict. The states of a young dict, also of the present one, are dropped: the
    states that they replaced may have been changed in place. If any of these intervals, or the present one, noted
    nothing (`dense`), nothing is kept.
 3. A bin that came in one of these intervals is not kept, because this journal does not know its earlier contents. A
    bin that left is gone with its keys, although some of them may be among the states until they are sent.
 4. The journal keeps intervals since the newest checkpoint that it knows to be committed, and a job never recovers an
    older one. A worker that never made that cut joined after its epoch. It had nothing then, so all its bins have come
    since.
 5. A touched key is in doubt even if its state looks the same. It is also in doubt if its bin is kept and the key has
    no state now, because the checkpoint may have one.
All timers are read again, because they are set and fire without a trace by key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.snapshot.journal import Interval, Journal
from megaflow.quick_dataclass import dataclass


@dataclass(slots=True)
class RetainedBins:
    """The memory of one operator on a worker that has ended."""

    states: dict[Any, Any]  # key -> state
    bins: dict[int, dict[Any, None]]  # bin -> its keys
    intervals: Sequence[Interval]  # since some committed cut, oldest first
    young: dict[Any, Any]  # of the last interval
    count: int  # of all bins, here and elsewhere

    @staticmethod
    def of(store: BinStore, journal: Journal) -> RetainedBins:
        """Take over the memory of an operator that no longer runs."""
        return RetainedBins(store.states, store.bins, journal.intervals, journal.young or {}, store.count)

    def roll_back(self, bin_of_key: Callable[[Any], int], checkpoint: int) -> set[Any]:
        """Keep the states that a committed checkpoint also has; return the keys, of the kept bins, to read again.

        Cost: linear in the keys that have changed since; linear in all keys if a bin is not kept or has left.
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
        """Add keys that have been read again."""
        self.states.update(found)
        for key in found:
            self.bins[bin_of_key(key)][key] = None
