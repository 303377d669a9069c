"""Lineages: whether a store and the places that its sinks write to stand at the same checkpoint.

A store and a database are restored apart. A store of checkpoint 4 beside a table with the rows of 9 would write those
of 5 to 9 again; a table of checkpoint 4 beside a store of 9 would never get them.

1. A store draws a *lineage* with its first commit. Copies of the store keep it. A fork draws its own, and names those
   of its parent and of all before that.
2. A sink that can tell notes the lineage and the checkpoint of each delivery, in the transaction of its rows.
   Deliveries of a checkpoint begin only when it is durable (rule 2 of `megaflow.connect.sink`). So one above the
   store's newest checkpoint shows that the store was restored from an older copy, or that another job runs on a copy.
3. A commit has the last checkpoint with a delivery of each sink. All deliveries of a checkpoint are made before the
   next one is durable (rule 5 there). So if the newest one that the sink finds is older, rows are missing there. If it
   finds none at all, the place is new or was emptied, as users do on purpose.
4. The launcher compares before anything changes, in a rehearsal. For processes on other machines, which may see other
   places, the founding workers compare when they open their sinks. That is soon enough for the places: nothing is
   delivered before the first new checkpoint, for which all founders must have opened.
5. If a job goes on beside later deliveries, it first draws another lineage. Otherwise the next restart would find them
   again, and later ones could not be told from its own. The commit keeps the lineages that it had before: if a place
   has deliveries of one of them and none of the present one, it is an older copy.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from megaflow.durable.commits import Commit
from megaflow.durable.incarnation import LINEAGES_MAX, Standing, renewed
from megaflow.errors import StoreUnfit
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference with which the job goes on; the user is told."""

    text: str
    is_newer: bool  # whether the sink has later deliveries: see rule 5


def others(standing: Standing, sink: str) -> tuple[str, ...]:
    """Return the lineages of which a place must have no deliveries if it has none of the store's own."""
    return standing.earlier if dict(standing.delivered).get(sink) else standing.parents


def standing_of(commit: Commit, accepted: tuple[str, ...] = ()) -> Standing:
    """Return what a commit says."""
    return Standing(commit.lineage, commit.parents, commit.earlier, commit.checkpoint, commit.delivered, accepted)


def forked(commit: Commit) -> Commit:
    """Return the first commit of a fork."""
    begun = renewed(commit)
    return replace(begun, parents=(*begun.earlier, *commit.parents)[:LINEAGES_MAX], earlier=())


def delivered_after(
    latest: Commit, sinks: Iterable[str], dropped: Collection[str] = ()
) -> tuple[tuple[str, int], ...]:
    """Return, for the commit after `latest`, the last checkpoint of which each of these sinks has delivered records.

    `dropped`: sinks whose waiting records the user has given up.

    >>> delivered_after(Commit(7, 5, 41, 1, delivered=(("box", 3), ("old", 2))), ["box", "new"])
    (('box', 3), ('new', 0))
    """
    before, waited = dict(latest.delivered), {token.sink for token in latest.tokens}.difference(dropped)
    return tuple(
        (sink, latest.checkpoint if sink in waited else before.get(sink, 0)) for sink in sorted(sinks)
    )


def compare(
    standing: Standing, sink: str, newest: int | None, other: int | None, rewrites: bool
) -> Mismatch | None:
    """Compare a store with what a sink has delivered; return a difference that does not matter, None if there is none.

    `newest`: the last checkpoint of the lineage with a delivery; None: none is known there. Then `other` is the last
    one of the `others` of the standing. `rewrites`: a record that is written again replaces itself. Raises StoreUnfit
    if rows would be twice in the place, or missing.

    >>> compare(Standing("a", checkpoint=9, delivered=(("rows", 9),)), "rows", 9, None, False)
    """
    known, at = dict(standing.delivered).get(sink, 0), standing.checkpoint
    accept = f"To go on with the rows as they are, give --accept-rows {sink}"
    if other is not None and known:
        raise StoreUnfit(
            f"The store has delivered rows of checkpoint {known} to the sink {sink!r}, but the rows there are of an "
            f"earlier time, before the job went on beside other rows: the database is an older copy. {accept}."
        )
    if other is not None:
        raise StoreUnfit(
            f"The sink {sink!r} writes where the job of the forked checkpoint writes, and has rows of its checkpoint "
            f"{other} there. Both jobs would write the rows after the fork. Write to another table. {accept}; so "
            "too if the rows were deleted."
        )
    if newest is None:
        if not known:
            return None
        return Mismatch(
            f"sink {sink!r}: the store has delivered rows up to checkpoint {known}, but nothing notes that there. The "
            "table was emptied, or this is another database; the job goes on without these rows", False,
        )  # fmt: skip
    if newest > at:
        if rewrites:
            return Mismatch(
                f"sink {sink!r}: the store is at checkpoint {at}, but the rows there are of checkpoint {newest}. The "
                "job writes them again; rows of keys that do not come again stay", True,
            )  # fmt: skip
        raise StoreUnfit(
            f"The store is at checkpoint {at}, but the sink {sink!r} has delivered rows of checkpoint {newest}: the "
            f"store is an older copy, and the job would write the rows after checkpoint {at} a second time. Restore "
            "the newest store; or restore the rows, with what the sink has noted beside them, as they were at "
            f"checkpoint {at}. {accept}."
        )
    if newest < known:
        raise StoreUnfit(
            f"The store has delivered rows of checkpoint {known} to the sink {sink!r}, but the newest there are of "
            f"checkpoint {newest}: the database is an older copy, and the rows in between would stay missing. Restore "
            f"the database as it was at checkpoint {known}, or the store as it was at checkpoint {newest}. {accept}."
        )
    return None
