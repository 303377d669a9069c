"""The bins with which each worker of a life begins, so that drains and moves survive a stop, a crash and a loss.

Decided by values alone. A *place* is the id of a worker in the life that begins: 0, 1, 2 and so on.

1. After a loss each process, or its replacement, has the places of its address (`Children.places`). When a new launcher
   resumes from a checkpoint, the workers of that checkpoint have the places in the order of their ids.
2. A worker keeps the bins that it owned in the checkpoint. A process that survives knows more: it reports the bins that
   it had when the others were lost, which override the checkpoint.
3. The bins of workers without a place go to the workers with the fewest bins. Workers without bins get none: they were
   drained, and stay so, unless no worker owns any.
4. Workers that are not in the checkpoint get an equal share, from the workers that own the most. After a loss there are
   none: a process that had joined without getting bins begins without.
5. If the owners are not known, as in stores of earlier versions, bins are dealt round (`initial_table`).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heapreplace

from megaflow.control.wording import quantity
from megaflow.job.exit_report import KeptBins
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class OwnersBefore:
    """Who owned what, and which place each worker has in the life that begins."""

    table: tuple[int, ...]  # bin -> worker; empty: it is not known
    places: Mapping[int, int]  # worker -> place, of those that have one

    @property
    def gone(self) -> Counter[int]:
        """How many bins each worker owned that has no place."""
        return Counter(worker for worker in self.table if worker not in self.places)


def of_checkpoint(table: tuple[int, ...], members: Collection[int], count: int) -> OwnersBefore:
    """Return who owned what in a checkpoint that had these members, for a life of so many workers: see rule 1.

    >>> of_checkpoint((1, 4, 4), {1, 4}, 1)
    OwnersBefore(table=(1, 4, 4), places={1: 0})
    """
    if not members:
        return OwnersBefore((), {})
    return OwnersBefore(table, {worker: place for place, worker in enumerate(sorted(members)[:count])})


def table_of(owned: KeptBins) -> tuple[int, ...]:
    """Return bin -> worker, of what `first_owners` gave; () if that has not all bins.

    >>> table_of(((0, 3), (), (2, 1))), table_of(((0,), (3,)))
    ((0, 2, 2, 0), ())
    """
    owners = {bin: worker for worker, bins in enumerate(owned) for bin in bins}
    return tuple(owners[bin] for bin in range(len(owners))) if owners.keys() == {*range(len(owners))} else ()


def first_owners(
    owners: OwnersBefore, count: int, kept: Sequence[Collection[int] | None] = (), may_be_new: bool = False
) -> KeptBins:
    """Return the bins that each of `count` workers begins with; () if they are to be dealt round.

    `kept` has the bins that workers which stay have, by place; None for each other one. `may_be_new`: workers without
    an owner of the life before are new. Cost: logarithmic in the workers, a bin.

    >>> first_owners(OwnersBefore((0, 0, 0, 0), {0: 0, 1: 1}), 2)  # worker 1 was drained
    ((0, 1, 2, 3), ())
    >>> first_owners(OwnersBefore((0, 1, 2, 2), {0: 0, 1: 1}), 2)  # worker 2 is gone
    ((0, 2), (1, 3))
    >>> first_owners(OwnersBefore((0, 0, 0, 1), {0: 0, 1: 1}), 3, may_be_new=True)
    ((0, 1), (3,), (2,))
    """
    known = list(kept) or [None] * count
    if not (owners.table and count):
        return tuple(tuple(bins or ()) for bins in known) if any(known) else ()
    owned: list[list[int]] = [[] for _ in range(count)]
    given: set[int] = set()
    for place, bins in enumerate(known):
        owned[place] += sorted({*(bins or ())} - given)
        given.update(owned[place])
    for bin, worker in enumerate(owners.table):
        place = owners.places.get(worker, count)
        if bin not in given and place < count and known[place] is None:
            owned[place].append(bin)
            given.add(bin)
    new = sorted({*range(count)} - {*owners.places.values()}) if may_be_new else []
    active = sorted({place for place in range(count) if owned[place]}.union(new)) or list(range(count))
    _deal([bin for bin in range(len(owners.table)) if bin not in given], owned, active)
    _share(owned, active, new)
    return tuple(tuple(sorted(bins)) for bins in owned)


def _deal(bins: Sequence[int], owned: list[list[int]], active: Sequence[int]) -> None:
    """Give each bin to the place of those that has the fewest by then."""
    load = [(len(owned[place]), place) for place in active]
    heapify(load)
    for bin in bins:
        length, place = load[0]
        owned[place].append(bin)
        heapreplace(load, (length + 1, place))


def _share(owned: list[list[int]], active: Sequence[int], new: Sequence[int]) -> None:
    """Give new places an equal share, from those that have the most."""
    share = sum(map(len, owned)) // len(active)
    spare: list[int] = []
    wanted = sum(max(0, share - len(owned[place])) for place in new)
    for place in sorted(active, key=lambda place: -len(owned[place])):
        surplus = min(max(0, len(owned[place]) - share), wanted - len(spare))
        spare += owned[place][len(owned[place]) - surplus :]
        del owned[place][len(owned[place]) - surplus :]
    for place in new:
        missing = max(0, share - len(owned[place]))
        owned[place] += spare[:missing]
        del spare[:missing]


def gone_text(owners: OwnersBefore) -> str:
    """Say which workers own nothing any more because they have no place; "" if none.

    >>> print(gone_text(OwnersBefore((0, 1, 1, 2), {0: 0})))
    ; workers 1 and 2 are gone: their 3 bins go to the others
    """
    gone = owners.gone
    if not gone:
        return ""
    first, *others = map(str, sorted(gone))
    who = f"workers {', '.join([first, *others[:-1]])} and {others[-1]} are" if others else f"worker {first} is"
    go = "goes" if gone.total() == 1 else "go"
    return f"; {who} gone: {'their' if others else 'its'} {quantity(gone.total(), 'bin')} {go} to the others"
