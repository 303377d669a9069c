"""Lineages: whether a store and the places that its sinks write to stand at the same checkpoint.

A store and a database are restored apart. A store of checkpoint 4 beside a table with the rows of 9 would write those
of 5 to 9 again; a table of checkpoint 4 beside a store of 9 would never get them.

1. A store draws a *lineage* with its first commit. Copies of the store keep it. A fork draws its own, and names those
   of its parent and of all before that.
2. A sink that can tell notes the lineage and the checkpoint of each delivery, in the transaction of its rows.
   Deliveries of a checkpoint begin only when it is durable (rule 2 of `megaflow.connect.sink`). So one above the
   store's newest checkpoint shows that the store was restored from an older copy, or that another job runs on a copy.
3. A commit has the last checkpoint with a delivery of each sink, and the tokens of that. All deliveries of a checkpoint
   are made before the next one is durable (rule 5 there). So if the newest one that the sink finds is older, or lacks
   some of the tokens, rows are missing there: a copy may have been taken between two workers' deliveries. If it finds
   none at all, the place is new or was emptied, as users do on purpose. Of two sinks that write to one place, each
   looks for its own deliveries: one may have delivered later than the other.
4. The launcher compares before anything changes, in a rehearsal. For processes on other machines, which may see other
   places, the founding workers compare when they open their sinks. That is soon enough for the places: nothing is
   delivered before the first new checkpoint, for which all founders must have opened.
5. If a job goes on beside later deliveries, it first draws another lineage. Otherwise the next restart would find them
   again, and later ones could not be told from its own. The commit keeps the lineages that it had before: if a place
   has deliveries of one of them and none of the present one, it is an older copy. So it is with a fork's parents: a
   copy of the parent's place may have replaced its own. Until another sink of the job has
   delivered in the new lineage, its last delivery of an earlier one is compared.
6. If store and place are restored together, the job numbers its checkpoints anew from there, in the same lineage. A
   copy of the place from before then has the same numbers with other tokens, or numbers without a delivery.
7. The place may also go back to a copy while the job runs. If a worker that lost nothing then delivered, rule 3 would
   find its checkpoint, and not what others have lost. So each delivery looks, in its transaction, for all tokens of the
   sink's last delivery before, of any worker. The command of a checkpoint names them. A copy that lacks an earlier
   delivery also lacks one of these, as all of a checkpoint are made before any of the next. So no delivery follows a
   gap, and it is enough that rule 3 looks for the newest ones. Tokens of earlier runs are not looked for if the place
   was emptied before this run, or by a process that joined if the rehearsal has not found them.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import chain
from typing import TypeAlias

from megaflow.durable.commits import Commit, LastDelivery, token_name
from megaflow.durable.incarnation import LINEAGES_MAX, Standing, renewed
from megaflow.errors import StoreUnfit
from megaflow.quick_dataclass import dataclass
from megaflow.timely.order import grouped

Delivered: TypeAlias = tuple[int, frozenset[str]]
"""The last checkpoint of which a place has rows of one lineage, and names of its tokens there."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference with which the job goes on; the user is told."""

    text: str
    is_newer: bool  # whether the sink has later deliveries: see rule 5


def others(standing: Standing, sink: str) -> tuple[str, ...]:
    """Return the lineages of which a place must have no deliveries if it has none of the store's own."""
    return (*(standing.earlier if dict(standing.delivered).get(sink) else ()), *standing.parents)


def before(standing: Standing, sink: str) -> Standing | None:
    """Return the standing as of a sink's last delivery in an earlier lineage, None without one: see rule 5."""
    newest = {token for _, _, n, tokens in standing.before if n == standing.checkpoint for token in tokens}
    for name, lineage, n, tokens in standing.before:
        if name == sink:
            return replace(
                standing, lineage=lineage, delivered=((sink, n),), tokens=((sink, tokens),) if tokens else (),
                newest=standing.newest | newest, before=(),
            )  # fmt: skip
    return None


def standing_of(commit: Commit, accepted: tuple[str, ...] = (), found: tuple[str, ...] = ()) -> Standing:
    """Return what a commit says. The other arguments are as in a standing."""
    known = (tokens for sink, tokens in commit.delivered_tokens if dict(commit.delivered)[sink] == commit.checkpoint)
    newest = frozenset(chain((token_name(each.token) for each in commit.tokens), *known))
    return Standing(
        commit.lineage, commit.parents, commit.earlier, commit.checkpoint, commit.delivered, commit.delivered_tokens,
        newest, accepted, found, commit.delivered_before,
    )  # fmt: skip


def last_deliveries(standing: Standing) -> dict[str, LastDelivery]:
    """Return each sink's last delivery before that of the newest checkpoint's tokens, by sink.

    A delivery whose tokens are not known is left out.
    """
    at = dict(standing.delivered)
    before = {sink: (sink, n, names) for sink, _, n, names in standing.before if names}
    return before | {sink: (sink, at[sink], names) for sink, names in standing.tokens}


def sinks_found(latest: Commit, standing: Standing) -> tuple[str, ...]:
    """Return the sinks whose deliveries were there at the start of a run, or that have delivered since.

    `standing`: of the store as the run, or its last attempt, began.
    """
    before = dict(standing.delivered)
    return tuple(sorted({*standing.found, *(sink for sink, n in latest.delivered if n > before.get(sink, 0))}))


def forked(commit: Commit) -> Commit:
    """Return the first commit of a fork."""
    begun = replace(renewed(commit), delivered_before=())
    return replace(begun, parents=(*begun.earlier, *commit.parents)[:LINEAGES_MAX], earlier=())


def after_deliveries(commit: Commit, latest: Commit, sinks: Iterable[str], dropped: Collection[str] = ()) -> Commit:
    """Return a commit after `latest` with what these sinks have delivered.

    `dropped`: sinks whose waiting records the user has given up.

    >>> after_deliveries(Commit(8, 6, 52, 1), Commit(7, 5, 41, 1, delivered=(("a", 3), ("old", 2))), "ab").delivered
    (('a', 3), ('b', 0))
    """
    waited = grouped((token.sink, token_name(token.token)) for token in latest.tokens)
    before, tokens = dict(latest.delivered), dict(latest.delivered_tokens)
    for sink in dropped:
        before.pop(sink, None)  # perhaps some workers have delivered its records
        tokens.pop(sink, None)
        waited.pop(sink, None)
    tokens |= {sink: tuple(sorted(some)) for sink, some in waited.items()}
    now = {sink: latest.checkpoint if sink in waited else before.get(sink, 0) for sink in sorted(sinks)}
    return replace(
        commit, delivered=tuple(now.items()),
        delivered_tokens=tuple((sink, tokens[sink]) for sink in now if sink in tokens),
        delivered_before=tuple(
            each for each in latest.delivered_before if now.get(each[0]) == 0 and each[0] not in dropped
        ),
    )  # fmt: skip


def compare(
    standing: Standing, sink: str, found: Delivered | None, other: int | None, rewrites: bool
) -> Mismatch | None:
    """Compare a store with what a sink has delivered; return a difference that does not matter, None if there is none.

    `found`: the last checkpoint of the lineage with a delivery, and names of its tokens; None: none is known there.
    Then `other` is the last one of the `others` of the standing. `rewrites`: a record that is written again replaces
    itself. Raises StoreUnfit if rows would be twice in the place, or missing.

    >>> standing = Standing("a", (), (), 9, (("rows", 9),), (("rows", ("x", "y")),), frozenset("xyz"))
    >>> compare(standing, "rows", (9, frozenset("xyz")), None, False)
    """
    known, at = dict(standing.delivered).get(sink, 0), standing.checkpoint
    accept = f"To go on with the rows as they are, give --accept-rows {sink}"
    if other is not None and known:
        raise StoreUnfit(
            f"The store has delivered rows of checkpoint {known} to the sink {sink!r}, but the rows there are others. "
            "They are of an earlier time, before the job went on beside other rows, or of the job from which it was "
            f"forked. So the database is an older copy, or another one. {accept}."
        )
    if other is not None:
        raise StoreUnfit(
            f"The sink {sink!r} writes where the job of the forked checkpoint writes, and has rows of its checkpoint "
            f"{other} there. Both jobs would write the rows after the fork. Write to another table. {accept}; so "
            "too if the rows were deleted."
        )
    if found is None:
        return _nothing_found(standing, sink, known, accept)
    newest, tokens = found
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
    if newest == known and not tokens.issuperset(dict(standing.tokens).get(sink, ())):
        raise StoreUnfit(
            f"Rows of checkpoint {known} that the store has delivered to the sink {sink!r} are not there. The database "
            "is an older copy, from a moment between the deliveries of two workers; or store and database went on "
            "apart from each other; or another process wrote to another database. Restore a store and a database of "
            f"one time. {accept}."
        )
    are_known = known < at or sink in dict(standing.tokens)
    if 0 < known < newest < at or (newest == at and are_known and not tokens <= standing.newest):
        raise StoreUnfit(
            f"The sink {sink!r} has rows of a checkpoint {newest} that this store did not deliver: the database is an "
            "older copy, of a time before both were last restored. Restore the newest database, or a store and a "
            f"database of one time. {accept}."
        )
    return None


def _nothing_found(standing: Standing, sink: str, known: int, accept: str) -> Mismatch | None:
    """Compare a store with a place that has no deliveries; like `compare`."""
    if not known:
        return None
    if sink in standing.found:
        raise StoreUnfit(
            f"The store has delivered rows of checkpoint {known} to the sink {sink!r}. They were there when the job "
            "began, but this process finds none of them: the database was restored to an earlier time or emptied, or "
            "the process sees another database under the same address. Restore a store and a database of one time. "
            f"{accept}."
        )
    return Mismatch(
        f"sink {sink!r}: the store has delivered rows up to checkpoint {known}, but nothing notes that there. The "
        "table was emptied, or this is another database; the job goes on without these rows", False,
    )  # fmt: skip
