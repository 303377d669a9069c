"""The bins with which each worker of an attempt begins, so that drains and moves survive a stop, a crash and a loss.

This module computes with values only. A *place* is the id of a worker in the attempt that begins: 0, 1, 2 and so on.

1. After a loss each process, or its replacement, has the places of its address (`Children.places`). When a new launcher
   resumes from a checkpoint, the workers of that checkpoint have the places in the order of their ids.
2. A worker keeps the bins that it owned in the checkpoint. A process that survives has newer knowledge: it reports the
   bins that it had when the others were lost, and these override the checkpoint.
3. The bins of workers without a place go to the workers with the fewest bins. Workers without bins get none, because
   they were drained and must stay so. But if no worker owns bins or is new (rule 4), all get bins.
4. Workers that are not in the checkpoint are new. Each gets an equal share, from the workers that own the most. After a
   loss no worker is new: a process that had joined but owned no bins begins without bins.
5. If the owners are unknown, as in stores of earlier versions, bins are dealt in turn (`initial_table`).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heapreplace

from megaflow.control.wording import quantity
from megaflow.job.exit_report import KeptBins
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class OwnersBefore:
    """The owners of bins in the last attempt, and the place of each of these workers in the attempt that begins."""

    table: tuple[int, ...]  # bin -> worker; empty: unknown
    places: Mapping[int, int]  # worker -> place, for workers that have one


def of_checkpoint(table: tuple[int, ...], members: Collection[int], count: int) -> OwnersBefore:
    """Return the owners in a checkpoint with these members, for an attempt of `count` workers; see rule 1.

    >>> of_checkpoint((1, 4, 4), {1, 4}, 1)
    OwnersBefore(table=(1, 4, 4), places={1: 0})
    """
    if not members:
        return OwnersBefore((), {})
    return OwnersBefore(table, {worker: place for place, worker in enumerate(sorted(members)[:count])})


def table_of(owned: KeptBins) -> tuple[int, ...]:
    """Return bin -> worker for a result of `first_owners`; () if that does not have all bins.

    >>> table_of(((0, 3), (), (2, 1))), table_of(((0,), (3,)))
    ((0, 2, 2, 0), ())
    """
    owners = {bin: worker for worker, bins in enumerate(owned) for bin in bins}
    return tuple(owners[bin] for bin in range(len(owners))) if owners.keys() == {*range(len(owners))} else ()


def first_owners(
    owners: OwnersBefore, count: int, kept: Sequence[Collection[int] | None] = (), may_be_new: bool = False
) -> KeptBins:
    """Return the bins with which each of `count` workers begins; () if they must be dealt in turn.

    `kept` has, by place, the bins of workers that stay, and None for other workers. With `may_be_new`, places to which
    no worker of the last attempt belongs are new; see rule 4. Cost for each bin: logarithmic in the number of workers.

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
    """Give each bin to the active place that has the fewest bins at that moment."""
    load = [(len(owned[place]), place) for place in active]
    heapify(load)
    for bin in bins:
        length, place = load[0]
        owned[place].append(bin)
        heapreplace(load, (length + 1, place))


def _share(owned: list[list[int]], active: Sequence[int], new: Sequence[int]) -> None:
    """Give new places an equal share, taken from the active places with the most bins."""
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
    """Return as text which workers lose their bins because they have no place; "" if none.

    >>> print(gone_text(OwnersBefore((0, 1, 1, 2), {0: 0})))
    ; workers 1 and 2 are gone: their 3 bins go to the others
    """
    gone = Counter(worker for worker in owners.table if worker not in owners.places)  # with their numbers of bins
    if not gone:
        return ""
    first, *others = map(str, sorted(gone))
    who = f"workers {', '.join([first, *others[:-1]])} and {others[-1]} are" if others else f"worker {first} is"
    go = "goes" if gone.total() == 1 else "go"
    return f"; {who} gone: {'their' if others else 'its'} {quantity(gone.total(), 'bin')} {go} to the others"
