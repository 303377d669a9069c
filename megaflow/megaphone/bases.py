"""Which bins a cut writes whole, besides those that it must: their *bases*, from which a recovery begins.

A store needs all that was written since the oldest base of any bin (`megaflow.durable.commits.needed`). So all bins
have their turn, one after the other, in *rounds*:
 1. A round is over when the deltas written in it have as many keys as the bins. So about as much is written again as
    has changed, and the store has about twice the state: the deltas and the bases of a round.
 2. All that is needed is at most 2.5 times the state. So the first round after a cut of all bins, which is needed to
    its end, is over in a HASTE-th of the time. And where more than a WHOLE_SHARE-th of all keys has changed, all bins
    are written instead, and no delta: else the last bins of a round would keep the large deltas of one more cut.
 3. A round is over after ROUND_CUTS cuts, however little has changed. Else a recovery would open thousands of files, in
    each of which is next to nothing.
 4. A cut without any change writes nothing, so that an idle job is left alone, until an IDLE_SHARE-th of a round is
    overdue: another operator may be busy, whose segments are needed as long as there is an old base of this one.
 5. The first round after a restore begins with the bins that were written whole longest ago. Else a job that is killed
    before the end of each round would write the same first bins in each life, and keep all that it has ever written
    for the sake of the last ones.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from megaflow.megaphone.bins import BinStore

WHOLE_SHARE: Final = 4
HASTE: Final = 3
ROUND_CUTS: Final = 500
IDLE_SHARE: Final = 8


class Bases:
    """Whose turn it is among the bins of one operator on one worker."""

    def __init__(self, store: BinStore) -> None:
        self._store = store
        self._turn: deque[int] = deque()  # bins that are still to be written in this round
        self._owed = 0  # keys of bins that are to be written, by those that were written as deltas
        self._overdue = 0  # bins likewise, by the number of cuts; ROUND_CUTS stand for one
        self._rounds = 0  # that have begun since all were written

    def begin(self, before: Sequence[int | None]) -> None:
        """Begin as another life has ended; `before`: bin -> checkpoint in which it was written whole, None: never."""
        self._turn.extend(sorted(self._store.bins, key=lambda bin: before[bin] or 0))
        self._rounds = 1

    def are_better(self, keys: int) -> bool:
        """Tell whether all bins are to be written instead of so many changed keys."""
        return WHOLE_SHARE * keys > len(self._store.states) > len(self._store.bins)

    def all(self) -> dict[int, None]:
        """Return all bins, in order."""
        self._owed = self._overdue = self._rounds = 0
        self._turn.clear()
        return dict.fromkeys(sorted(self._store.bins))

    def due(self, keys: int, is_idle: bool) -> dict[int, None]:
        """Return those whose turn it is in a cut that writes so many changed keys; `is_idle`: and nothing else."""
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
                if self._rounds == 2:  # what is owed, is so in haste
                    self._owed = 0
                    continue
            bin = turn.popleft()
            if bin in store.bins:
                found[bin] = None
                self._owed -= max(1, len(store.bins[bin]))
                self._overdue -= ROUND_CUTS
        return found
