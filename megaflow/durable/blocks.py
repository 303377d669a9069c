"""Blocks: what a cut writes of an operator, keys in one column of bytes and states in another.

A *cut* is what one worker keeps for one checkpoint: a header, and blocks in the order in which they were made. A store
keeps them in one segment.

1. A worker that recovers decodes the keys of a block first, and its states only if a key of its own bins is among them.
   So a delta is one flat run of keys of any bins: to group it by bin costs more than to hash its keys once more.
2. None among the states of a delta says that the key has been forgotten: no state is None (`BinStore`).
3. A bin that is written whole makes all that was written of it before superfluous, its timers too, so a cut that writes
   a bin writes both: blocks of BIN and, if it has timers, blocks of TIMERS with its number. An empty bin is one block
   of BIN without a key: the deltas before it do not count either.
4. Timers fire at their time and are never cancelled, so they are only added: those set since the cut before, of any
   bins, in TIMERS blocks without a bin. Whoever recovers epoch t keeps those that are due at t or later. EVENTS blocks
   are the same of event timers, whose rules `restored` says.
5. A block is encoded by one call for each column, so an object that two states of a block share stays one: as with the
   chunks of a bin that moves, keys must not share mutable state.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

from megaflow.errors import ProtocolError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

KEYS_PER_BLOCK: Final = 512
"""At most: what a reader decodes at a time, and what one flipped bit costs."""


class BlockKind(IntEnum):
    """What is in a block; the numbers are part of the store's format."""

    DELTA = 1  # keys that were touched since the cut before, with their states
    BIN = 2  # a bin written whole: one or more blocks
    TIMERS = 3  # set since the cut before; with a bin: all that it has
    LINES = 4  # that Spark has delivered and no source has taken in: texts, and what separates the lines in each
    FILE = 5  # of Spark's record of a query: name and content
    OUTBOX = 6  # records that a sink is to deliver once the checkpoint is committed, as keys, and None as their states
    EVENTS = 7  # event timers, as TIMERS; their times are (line, microseconds)


OF_TIMERS: Final = frozenset({BlockKind.TIMERS, BlockKind.EVENTS})
UNBEGUN: Final = 2
"""The line of event timers that count in no checkpoint but that of their block: their count has not begun."""


@dataclass(frozen=True, slots=True)
class CutHeader:
    """Of which checkpoint, and whose, the blocks of a cut are."""

    number: int  # of the checkpoint
    time: int  # its epoch: the effects of all records before it are in, nothing of it or later
    since: int | None  # number of the committed checkpoint that the deltas follow; None: there is none
    worker: int


@dataclass(frozen=True, slots=True)
class Block:
    """A run of at most KEYS_PER_BLOCK keys of one operator, with their states or timers."""

    kind: BlockKind
    operator: str
    bin: int | None  # None: of any bins
    count: int  # of keys; of timers, where they are it
    keys: bytes  # a list, encoded
    states: bytes  # a list as long, encoded; of timers: (time, payload)


def pack(kind: BlockKind, operator: str, bin: int | None, keys: Sequence[Any], states: Sequence[Any]) -> Block:
    """Encode two columns of equal length; raises CannotTravel. Cost: linear in them.

    >>> made = pack(BlockKind.DELTA, "count", None, ["a", "b"], [1, None])
    >>> made.count, keys_of(made), states_of(made)
    (2, ['a', 'b'], [1, None])
    """
    assert len(keys) == len(states) <= KEYS_PER_BLOCK, f"{len(keys)} keys and {len(states)} states in a block"
    return Block(kind, operator, bin, len(keys), encode(list(keys), shared=True), encode(list(states), shared=True))


def pack_timers(
    operator: str, bin: int | None, timers: Sequence[tuple[Any, Any, Any]], kind: BlockKind = BlockKind.TIMERS
) -> Block:
    """Encode timers, (time, key, payload), of any bins or all of one.

    >>> timers_of(pack_timers("sessions", None, [(7, "ann", "over"), (8, "bob", None)]))
    [(7, 'ann', 'over'), (8, 'bob', None)]
    """
    due = [(time, payload) for time, _, payload in timers]
    return pack(kind, operator, bin, [key for _, key, _ in timers], due)


def keys_of(block: Block) -> list[Any]:
    """Return the keys of a block, in order. Raises ProtocolError for bytes that are no column of its length."""
    return _column(block, block.keys, "keys")


def states_of(block: Block, old: bool = False) -> list[Any]:
    """Return the states of a block, one for each key; None: forgotten. Raises as `keys_of` does.

    `old`: objects that do not fit their classes are old records.
    """
    return _column(block, block.states, "states", old)


def timers_of(block: Block) -> list[tuple[int, Any, Any]]:
    """Return the timers of a block as (time, key, payload), in the order in which they were set."""
    return [(time, key, payload) for key, (time, payload) in zip(keys_of(block), states_of(block), strict=True)]


def _column(block: Block, encoded: bytes, what: str, old: bool = False) -> list[Any]:
    column = decode(encoded, shared=True, old=old)
    if type(column) is not list or len(column) != block.count:
        raise ProtocolError(f"a block of {block.operator!r} does not have the {block.count} {what} that it states")
    return column
