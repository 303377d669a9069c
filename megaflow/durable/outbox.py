"""Records that wait in a store until a sink delivers them; a user can drop or rewrite one by hand.

A record of the outbox that its system refuses stops every run of the job. So a user can drop it, or put another in its
place, while no job uses the store:
 1. A record is named by its token's first letters and its number, from 1 on: `5f3a91c2:3`.
 2. The token stays. If its records were delivered, the system has the token's mark, and a second delivery does nothing.
    So the records of one token are delivered at most once.
 3. The records of the token go into a new segment, and a new commit of the same checkpoint names that segment: segments
    and commits are never changed (`store`). The next run reads the new commit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from megaflow.durable.blocks import KEYS_PER_BLOCK, BlockKind, CutHeader, keys_of, pack
from megaflow.durable.commits import Commit, SinkToken
from megaflow.durable.incarnation import begin, read_commits
from megaflow.durable.segments import LAUNCHER, SegmentReader, SegmentRef, SegmentWriter, segment_name
from megaflow.durable.store import Store
from megaflow.errors import StoreError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode

DROPPED: Final = object()
"""In the place of a record that is to go."""
_LETTERS: Final = 8  # of a token


@dataclass(frozen=True, slots=True)
class Waiting:
    """A record of the outbox."""

    name: str
    sink: str
    record: Any


def waiting_name(token: SinkToken, position: int) -> str:
    """Return the name of a token's record, whose position counts from 0.

    >>> from megaflow.timely.communication.codec.encode import encode
    >>> waiting_name(SinkToken("orders", 7, encode("5f3a91c2d1e04b7a")), 2)
    '5f3a91c2:3'
    """
    return f"{str(decode(token.token))[:_LETTERS]}:{position + 1}"


def waiting(store: Store, commit: Commit) -> Iterator[Waiting]:
    """Yield the records that a commit has of outboxes, in order. Raises StoreDamaged, OSError."""
    for token in commit.tokens:
        if token.segments:
            for position, record in enumerate(_records(store, token)):
                yield Waiting(waiting_name(token, position), token.sink, record)


def rewrite(store: Store, changes: Mapping[str, Any]) -> Commit:
    """Put other records in the place of some, by their names, or DROPPED; return the new commit.

    The store is locked, and no job uses it. Raises StoreError, with nothing changed, if a record is not there;
    StoreDamaged, OSError.
    """
    found = read_commits(store)
    if not found:
        raise StoreError("The store is empty, so no record waits in it.")
    rewritten: dict[int, tuple[CutHeader, list[Any]]] = {}  # place among the tokens -> what it is to have
    left = dict(changes)
    for place, token in enumerate(found[0].tokens):
        if not token.segments:
            continue
        records = list(_records(store, token))
        named = [waiting_name(token, position) for position in range(len(records))]
        if left.keys().isdisjoint(named):
            continue
        header = _reader(store, token.segments[0]).header
        after = [left.pop(name, record) for name, record in zip(named, records, strict=True)]
        rewritten[place] = header, [record for record in after if record is not DROPPED]
    if left:
        raise StoreError(
            f"No record {', '.join(left)} waits in the store; 'megaflow state outbox DIR' shows those that do."
        )
    incarnation = begin(store, found[0].app, kept=len(found[0].kept) + 1, found=found)
    incarnation._begun = None  # no process reads it
    tokens = list(found[0].tokens)
    for place, (header, records) in rewritten.items():
        name = segment_name(incarnation.latest.incarnation, LAUNCHER, found[0].checkpoint + place)
        tokens[place] = replace(tokens[place], segments=_written(store, name, header, tokens[place].sink, records))
    return incarnation.commit(replace(incarnation.latest, tokens=tuple(tokens)))


def _written(
    store: Store, name: str, header: CutHeader, sink: str, records: Sequence[Any]
) -> tuple[SegmentRef, ...]:
    """Put records into a segment; return what a token says of it, nothing if there are none."""
    if not records:
        return ()
    writer = SegmentWriter(header)
    for start in range(0, len(records), KEYS_PER_BLOCK):
        part = records[start : start + KEYS_PER_BLOCK]
        writer.add(pack(BlockKind.OUTBOX, sink, None, part, [None] * len(part)))
    segment, parts = writer.finish(name)
    store.put(name, parts)
    return (segment,)


def _records(store: Store, token: SinkToken) -> Iterator[Any]:
    for segment in token.segments:
        for block in _reader(store, segment).blocks():
            yield from keys_of(block)


def _reader(store: Store, segment: SegmentRef) -> SegmentReader:
    return SegmentReader(segment.name, partial(store.read, segment.name), segment.length)
