"""Records that wait in a store until a sink delivers them; a user can drop or rewrite one by hand.

A record of the outbox that its system refuses stops every run of the job. So a user can drop it, or put another in its
place, while no job uses the store:
 1. A record is named by its token's first letters and its number, from 1 on: `5f3a91c2:3`. The others keep their
    numbers when one is dropped. Otherwise the next `--drop` by an earlier list would drop the wrong record.
 2. The token stays. If its records were delivered, the system has the token's mark, and a second delivery does nothing.
    So the records of one token are delivered at most once.
 3. The records of the token go into a new segment, and a new commit of the same checkpoint names that segment: segments
    and commits are never changed (`store`). The next run reads the new commit.
 4. Blocks of such a segment have the numbers beside the records. In all other blocks None stands there, and a record's
    number is its place in the token.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from megaflow.durable.blocks import KEYS_PER_BLOCK, BlockKind, CutHeader, keys_of, pack, states_of
from megaflow.durable.commits import Commit, SinkToken
from megaflow.durable.incarnation import begin, read_commits
from megaflow.durable.segments import LAUNCHER, SegmentRef, SegmentWriter, segment_name
from megaflow.durable.store import Store
from megaflow.errors import StoreError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode

DROPPED: Final = object()
"""Placeholder for a record that the user drops."""
_LETTERS: Final = 8  # shown of a token


@dataclass(frozen=True, slots=True)
class Waiting:
    """A record of the outbox."""

    name: str
    sink: str
    record: Any


def waiting_name(token: SinkToken, number: int) -> str:
    """Return the name of a token's record; `number` counts from 1.

    >>> from megaflow.timely.communication.codec.encode import encode
    >>> waiting_name(SinkToken("orders", 7, encode("5f3a91c2d1e04b7a")), 3)
    '5f3a91c2:3'
    """
    return f"{str(decode(token.token))[:_LETTERS]}:{number}"


def name_at(store: Store, token: SinkToken, position: int) -> str:
    """Return the name of the record at a position of a token, which counts from 0. Raises StoreDamaged, OSError."""
    [(number, _)] = islice(_records(store, token), position, position + 1)
    return waiting_name(token, number)


def waiting(store: Store, commit: Commit) -> Iterator[Waiting]:
    """Yield the records in the outboxes of a commit, in order. Raises StoreDamaged, OSError."""
    for token in commit.tokens:
        if token.segments:
            for number, record in _records(store, token):
                yield Waiting(waiting_name(token, number), token.sink, record)


def rewrite(store: Store, changes: Mapping[str, Any]) -> Commit:
    """Replace records by name, or drop them if the value is DROPPED; return the new commit.

    The store must be locked, and no job may use it. Raises StoreError, with nothing changed, if a record does not
    exist; StoreDamaged, OSError.
    """
    found = read_commits(store)
    if not found:
        raise StoreError("The store is empty, so no record waits in it.")
    rewritten: dict[int, tuple[CutHeader, list[tuple[int, Any]]]] = {}  # place among the tokens -> its new content
    left = dict(changes)
    for place, token in enumerate(found[0].tokens):
        if not token.segments:
            continue
        records = list(_records(store, token))
        if left.keys().isdisjoint(waiting_name(token, number) for number, _ in records):
            continue
        header = token.segments[0].open(store.read).header
        after = [(number, left.pop(waiting_name(token, number), record)) for number, record in records]
        rewritten[place] = header, [(number, record) for number, record in after if record is not DROPPED]
    if left:
        raise StoreError(
            f"No record {', '.join(left)} waits in the store; 'megaflow state outbox DIR' lists the waiting records."
        )
    incarnation = begin(store, found[0].app, kept=len(found[0].kept) + 1, found=found)
    incarnation._begun = None  # no process reads it
    tokens = list(found[0].tokens)
    for place, (header, records) in rewritten.items():
        name = segment_name(incarnation.latest.incarnation, LAUNCHER, found[0].checkpoint + place)
        tokens[place] = replace(tokens[place], segments=_written(store, name, header, tokens[place].sink, records))
    return incarnation.commit(replace(incarnation.latest, tokens=tuple(tokens)))


def _written(
    store: Store, name: str, header: CutHeader, sink: str, records: Sequence[tuple[int, Any]]
) -> tuple[SegmentRef, ...]:
    """Write numbered records to a segment; return the token's references to it, none if there are no records."""
    if not records:
        return ()
    writer = SegmentWriter(header)
    for start in range(0, len(records), KEYS_PER_BLOCK):
        part = records[start : start + KEYS_PER_BLOCK]
        numbers, values = [number for number, _ in part], [record for _, record in part]
        writer.add(pack(BlockKind.OUTBOX, sink, None, values, numbers))
    segment, parts = writer.finish(name)
    store.put(name, parts)
    return (segment,)


def _records(store: Store, token: SinkToken) -> Iterator[tuple[int, Any]]:
    """Yield the records of a token with their numbers, as (number, record)."""
    place = 0
    for segment in token.segments:
        for block in segment.open(store.read).blocks():
            for record, number in zip(keys_of(block), states_of(block), strict=True):
                place += 1
                yield (place if number is None else number), record
