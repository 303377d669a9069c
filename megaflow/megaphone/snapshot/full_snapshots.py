"""The choice of the bins that a cut writes whole although it need not. A whole bin is a *base* of a recovery.

A store needs everything that was written since the oldest base of any bin (`megaflow.durable.commits.needed`). So all
bins take turns, in *rounds*:
 1. A round is over when its deltas contain as many keys as the bins do. So cuts rewrite about as much as has changed,
    and the store has about twice the size of the state: the deltas and the bases of one round.
 2. A store may need at most 2.5 times the state. A cut of all bins is needed until the first round after it ends, so
    that round takes only a HASTE-th of the time. And if more than a WHOLE_SHARE-th of all keys has changed, the cut
    writes all bins and no delta. Otherwise the last bins of a round would keep the large deltas of one more cut.
 3. A round is over after ROUND_CUTS cuts, however little has changed. Otherwise a recovery would open thousands of
    files with next to nothing in each.
 4. A cut without any change writes nothing until an IDLE_SHARE-th of a round is overdue, so an idle job causes no
    writes. An overdue round continues because another operator may be busy: the store needs that operator's segments as
    long as this operator has an old base.
 5. The first round after a restore begins with the bins that were written whole longest ago. Otherwise a job that is
    killed before the end of each round would write the same first bins in each attempt. The old bases of the last bins
    would then force the store to keep everything ever written.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from megaflow.megaphone.base.bins import BinStore

WHOLE_SHARE: Final = 4
HASTE: Final = 3
ROUND_CUTS: Final = 500
IDLE_SHARE: Final = 8


class FullSnapshots:
    """The order in which the bins of one operator on one worker take turns."""

    def __init__(self, store: BinStore) -> None:
        self._store = store
        self._turn: deque[int] = deque()  # bins that are still to be written in this round
        self._owed = 0  # keys that this round must still write in bins, by the keys written as deltas
        self._overdue = 0  # bins that it must write, by the number of cuts, times ROUND_CUTS
        self._rounds = 0  # rounds that have begun since all bins were written

    def begin(self, before: Sequence[int | None]) -> None:
        """Begin after a restore; `before`: bin -> checkpoint in which the bin was written whole, or None for never."""
        self._turn.extend(sorted(self._store.bins, key=lambda bin: before[bin] or 0))
        self._rounds = 1

    def are_better(self, keys: int) -> bool:
        """Tell whether a cut should write all bins instead of this many changed keys."""
        return WHOLE_SHARE * keys > len(self._store.states) > len(self._store.bins)

    def all(self) -> dict[int, None]:
        """Return all bins, in order, and start over."""
        self._owed = self._overdue = self._rounds = 0
        self._turn.clear()
        return dict.fromkeys(sorted(self._store.bins))

    def due(self, keys: int, is_idle: bool) -> dict[int, None]:
        """Return the bins to add to a cut that writes this many changed keys; `is_idle`: it writes nothing else."""
        store, turn, round = self._store, self._turn, ROUND_CUTS * len(self._store.bins)
        self._owed = min(self._owed + (keys if self._rounds > 1 else HASTE * keys), len(store.states))
        self._overdue = min(self._overdue + len(store.bins), round)
        found: dict[int, None] = {}
        if is_idle and IDLE_SHARE * self._overdue < round:
            return found
        while (self._owed > 0 or self._overdue >= ROUND_CUTS) and len(found) < len(store.bins):
            if not turn:
                turn.extend(sorted(store.bins))
                self._rounds += 1
                if self._rounds == 2:  # the first round is over; its haste has inflated `_owed`
                    self._owed = 0
                    continue
            bin = turn.popleft()
            if bin in store.bins:
                found[bin] = None
                self._owed -= max(1, len(store.bins[bin]))
                self._overdue -= ROUND_CUTS
        return found
