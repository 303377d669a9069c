"""What a process remembers of its states when it goes on after a loss, instead of a new one that reads them all.

A process that has lost another one *stays*, if it may: it waits for the launcher to give it a part in the next life of
its job. This differs from that of a new process in what it has loaded, and in what it remembers; all else, connections,
dataflow, routing, progress, inputs, outputs, is made anew, as if it had just begun. So the next life is one that goes
on from a checkpoint, whoever has which part of it:
 1. What is remembered equals what the store has. It is first rolled back to the checkpoint (see
    `megaflow.megaphone.remains`), which needs the store for what was touched since; what it does not have of the bins
    that fall to its workers is read, timers always. If the store cannot be read for that, nothing is remembered.
 2. As it stays it says which bins it has, and the launcher makes the first table of the next life of that: each is with
    who has it, all others go to those with the fewest. So those of lost processes are read by their replacements, which
    have none; or, if there are to be none, by all others. What is remembered goes by bin, and is right whatever falls
    to whom: of bins that fall to others, as two processes had a part of them while they moved, it is dropped.
 3. Nothing of the life before goes on. A process stays only when its connections are closed, its workers have ended and
    nothing of it is being written to the store: only then does it say so. Whoever does not say so in time is killed.
    What it has written bears an incarnation that is over.
 4. It remembers only what it has run with: one that was lost before its workers ran ends, and so does each where the
    next life fails before it runs, building the program for a second time included. The launcher keeps those that stay
    after the first of losses in a row only: a second one in a row is followed by new processes.
 5. The program's modules stay loaded, and its function is called again, as it is for each of several workers of one
    process. What a module or closure remembers of records is no state, and is not rolled back: it was never kept. Where
    that could be more than forgotten (threads that the program has started) the process ends.
 6. The code is that which the checkpoint was taken with: else (an upgrade was under way) the process ends.
 7. A process that was started by hand, one that Spark's executor runs, one of a profiled job, one with Spark's lines or
    with pushed ones ends, too.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import field
from threading import Lock

from megaflow.durable.commits import Commit
from megaflow.durable.recovery import Recovery
from megaflow.durable.restored import Heir, Restored
from megaflow.durable.store import Store
from megaflow.job.exit_report import KeptBins
from megaflow.megaphone.remains import Remains
from megaflow.quick_dataclass import dataclass


def kept_bins(heirs: Sequence[Sequence[tuple[Heir, Remains]]]) -> KeptBins:
    """Return the bins that a process has, each of whose workers has left so much of its operators."""
    bins = (set[int]().union(*(remains.bins for _, remains in several)) for several in heirs)
    return tuple(tuple(sorted(each)) for each in bins)


@dataclass(eq=False)
class Memory:
    """What the workers of a process have left of their states; any of those that follow takes its part of it."""

    _remains: dict[str, list[Remains]] = field(default_factory=dict)  # operator -> of each worker
    _lock: Lock = field(default_factory=Lock)

    @property
    def keys(self) -> int:
        """How many it has of all operators."""
        return sum(len(each.states) for several in self._remains.values() for each in several)

    def forget(self) -> None:
        """Let go of what nobody has asked for."""
        self._remains = {}

    def roll_back(self, store: Store, commit: Commit, heirs: Iterable[tuple[Heir, Remains]]) -> None:
        """Remember of these what a commit has as well. Raises as the store does; nothing is remembered then."""
        recovery = Recovery(store, commit, {})
        remembered: dict[str, list[Remains]] = {}
        for heir, remains in heirs:
            if not recovery.as_now(heir):
                continue
            bin_of_key = heir.binning(heir.bins, None)
            touched = remains.roll_back(bin_of_key, commit.checkpoint)
            if touched:
                remains.add(bin_of_key, recovery.recall(heir, touched))
            remembered.setdefault(heir.name, []).append(remains)
        self._remains = remembered

    def restore(self, heir: Heir, bins: Collection[int], recovery: Recovery) -> Restored:
        """Return what these bins of an operator are: from memory, and the others from the store. Raises as that does.

        What is given is forgotten here. Cost: linear in what is read, in what is remembered of bins that fall to
        several workers, and in timers.
        """
        kept: Remains | None = None
        found = Restored({}, {})
        with self._lock:
            for each in self._remains.get(heir.name, ()) if recovery.as_now(heir) else ():
                if each.count != heir.bins:
                    continue
                if kept is None and each.bins.keys() <= set(bins):
                    kept = Remains(each.states, each.bins, (), {}, each.count)
                    each.states, each.bins = {}, {}
                for bin in each.bins.keys() & set(bins):
                    found.states[bin] = {key: each.states.pop(key) for key in each.bins.pop(bin)}
        here = found.states.keys() | (kept.bins.keys() if kept is not None else set())
        read = recovery.restore(heir, frozenset(bins) - here)
        again = recovery.timers(heir, here) if here else Restored({}, {})
        whole = None if kept is None else (kept.states, kept.bins)
        timers, events = again.timers | read.timers, again.events | read.events
        return Restored(found.states | read.states, timers, whole, events=events)
