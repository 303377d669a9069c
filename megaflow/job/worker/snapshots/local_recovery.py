"""States that a process keeps in memory when it continues after a loss, so that no new process must read them all.

A process that has lost other processes *stays*, if it may: it waits until the launcher gives it a part in the job's
next incarnation. It differs from a new process only in its loaded modules and remembered states. Everything else is
made anew, as if it had just started: connections, dataflow, routing, progress, inputs and outputs. So the next
incarnation resumes from a checkpoint, and its processes may have any parts of it in memory:
 1. Remembered states equal those in the store. The process first rolls them back to the checkpoint (see
    `megaflow.megaphone.snapshot.retained_bins`), and reads from the store what was touched since. If its workers get
    bins that it does not remember, it also reads these. It always reads timers. If it cannot read the store, it
    remembers nothing.
 2. A process that stays reports its bins, and keeps them in the first table of the next incarnation (see
    `megaflow.job.launcher.store.first_owners`). A replacement gets and reads the bins that the lost process owned in
    the checkpoint. Without a replacement, they go to the workers with the fewest bins. States are remembered by bin, so
    they are right whatever the table is. If a bin goes to another process, as when two processes had a part of it
    during a move, the memory of it is dropped.
 3. Nothing of the previous incarnation continues. A process reports that it stays only after it has closed its
    connections, its workers have ended and its writes to the store are done. The launcher kills a process that does not
    report in time. Everything that such a process wrote bears the number of an incarnation that is over.
 4. A process remembers only states with which it has run. It ends if it lost others before its workers ran. It also
    ends if the next incarnation fails before it runs, even if the second build of the program is what fails. The
    launcher lets processes stay only after the first of several losses in a row; new processes follow the second.
 5. The program's modules stay loaded, and its function is called again, as it is for each worker of a process. Data
    about records in a module or closure is not state: it was never durable, and it is not rolled back. If the program
    has started threads, more than such data could remain, so its process ends.
 6. The code must be the code of the checkpoint. If it is not, because an upgrade was under way, the process ends.
 7. Some processes always end (`Process.may_stay`): one that was started by hand, one that joined with permission for
    other code, and each process of a job that runs on Spark, is profiled, or has Spark's lines or pushed lines.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import field
from threading import Lock

from megaflow.durable.commits import Commit
from megaflow.durable.recovery import Recovery
from megaflow.durable.restored import Restored, StateDescriptor
from megaflow.durable.store import Store
from megaflow.job.exit_report import KeptBins
from megaflow.megaphone.snapshot.retained_bins import RetainedBins
from megaflow.quick_dataclass import dataclass


def kept_bins(descriptors: Sequence[Sequence[tuple[StateDescriptor, RetainedBins]]]) -> KeptBins:
    """Return the bins that a process has, for each of its workers.

    `descriptors`: for each worker, its operators with the bins that it retains.
    """
    bins = (set[int]().union(*(remains.bins for _, remains in several)) for several in descriptors)
    return tuple(tuple(sorted(each)) for each in bins)


@dataclass(eq=False)
class LocalRecovery:
    """States that the workers of a process have left; each following worker takes its part."""

    _remains: dict[str, list[RetainedBins]] = field(default_factory=dict)  # operator -> what each worker has left
    _lock: Lock = field(default_factory=Lock)

    def forget(self) -> None:
        """Forget all states that no worker has taken."""
        self._remains = {}

    def roll_back(
        self, store: Store, commit: Commit, descriptors: Iterable[tuple[StateDescriptor, RetainedBins]]
    ) -> None:
        """Roll these states back to the commit and remember them, except states whose written form has changed.

        Raises the store's errors. Then nothing is remembered.
        """
        recovery = Recovery(store, commit, {})
        remembered: dict[str, list[RetainedBins]] = {}
        for descriptor, remains in descriptors:
            if not recovery.as_now(descriptor):
                continue
            bin_of_key = descriptor.binning(descriptor.bins, None)
            touched = remains.roll_back(bin_of_key, commit.checkpoint)
            if touched:
                remains.add(bin_of_key, recovery.recall(descriptor, touched))
            remembered.setdefault(descriptor.name, []).append(remains)
        self._remains = remembered

    def restore(self, descriptor: StateDescriptor, bins: Collection[int], recovery: Recovery) -> Restored:
        """Return the states and timers of these bins, from memory as far as possible. Raises the store's errors.

        Memory forgets what it returns. Cost: linear in what is read, in remembered bins that go to several workers, and
        in timers.
        """
        kept: RetainedBins | None = None
        found = Restored({}, {})
        with self._lock:
            for each in self._remains.get(descriptor.name, ()) if recovery.as_now(descriptor) else ():
                if each.count != descriptor.bins:
                    continue
                if kept is None and each.bins.keys() <= set(bins):
                    kept = RetainedBins(each.states, each.bins, (), {}, each.count)
                    each.states, each.bins = {}, {}
                for bin in each.bins.keys() & set(bins):
                    found.states[bin] = {key: each.states.pop(key) for key in each.bins.pop(bin)}
        here = found.states.keys() | (kept.bins.keys() if kept is not None else set())
        read = recovery.restore(descriptor, frozenset(bins) - here)
        again = recovery.timers(descriptor, here) if here else Restored({}, {})
        whole = None if kept is None else (kept.states, kept.bins)
        timers, events = again.timers | read.timers, again.events | read.events
        return Restored(found.states | read.states, timers, whole, events=events, forgotten=read.forgotten)
