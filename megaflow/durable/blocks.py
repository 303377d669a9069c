"""Blocks: the parts of an operator's cut, with keys in one column of bytes and states in another.

A *cut* is the data that one worker writes for one checkpoint: a header, and blocks in the order in which they were
made. A store keeps the blocks in segments.

1. A recovering worker first decodes the keys of a block. It decodes the states only if one of the keys is in its bins.
   So a delta is one flat run of keys of any bins: grouping them by bin would cost more than hashing them once more.
2. None among the states of a delta means that the key has been forgotten. No state is None (`BinStore`).
3. A bin that is written whole replaces all that was written of it before, including its timers. So a cut that writes a
   bin writes both: blocks of BIN and, if it has timers, blocks of TIMERS with its number. An empty bin is one block of
   BIN without a key, because it also replaces the deltas before it.
4. Timers fire at their time and are never cancelled, so a cut only adds timers: those of any bins that were set since
   the previous cut, in TIMERS blocks without a bin. Recovery at epoch t keeps the timers that are due at t or later.
   EVENTS blocks do the same for event timers; `restored` states their rules.
5. One call encodes each column of a block, so an object that two states of a block share stays one object. As with the
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
"""Limit for one block: a reader decodes this many keys at a time, and one flipped bit costs as many."""


class BlockKind(IntEnum):
    """The content of a block; the numbers are part of the store's format."""

    DELTA = 1  # keys that were touched since the previous cut, with their states
    BIN = 2  # a bin written whole: one or more blocks
    TIMERS = 3  # set since the previous cut, or with a bin: all timers of that bin
    LINES = 4  # delivered by Spark and taken in by no source: texts, and the separator of the lines in each
    FILE = 5  # of Spark's record of a query: name and content
    OUTBOX = 6  # records that a sink delivers after the commit, as keys, with None as states, or numbers as in `outbox`
    EVENTS = 7  # event timers, as TIMERS; their times are (line, microseconds)


OF_TIMERS: Final = frozenset({BlockKind.TIMERS, BlockKind.EVENTS})
UNBEGUN: Final = 2
"""The line of event timers whose count has not begun. They count only in the checkpoint of their block."""


@dataclass(frozen=True, slots=True)
class CutHeader:
    """Checkpoint and worker of a cut's blocks."""

    number: int  # of the checkpoint
    time: int  # its epoch: contains the effects of all earlier records, and nothing of this epoch or later
    since: int | None  # number of the committed checkpoint that the deltas follow; None: they follow none
    worker: int


@dataclass(frozen=True, slots=True)
class Block:
    """A run of at most KEYS_PER_BLOCK keys of one operator, with their states or timers."""

    kind: BlockKind
    operator: str
    bin: int | None  # None: of any bins
    count: int  # of keys, or of timers
    keys: bytes  # a list, encoded
    states: bytes  # a list of the same length, encoded; for timers: (time, payload)


def pack(kind: BlockKind, operator: str, bin: int | None, keys: Sequence[Any], states: Sequence[Any]) -> Block:
    """Encode two columns of equal length. Raises CannotTravel. Cost: linear.

    >>> made = pack(BlockKind.DELTA, "count", None, ["a", "b"], [1, None])
    >>> made.count, keys_of(made), states_of(made)
    (2, ['a', 'b'], [1, None])
    """
    assert len(keys) == len(states) <= KEYS_PER_BLOCK, f"{len(keys)} keys and {len(states)} states in a block"
    return Block(kind, operator, bin, len(keys), encode(list(keys), shared=True), encode(list(states), shared=True))


def pack_timers(
    operator: str, bin: int | None, timers: Sequence[tuple[Any, Any, Any]], kind: BlockKind = BlockKind.TIMERS
) -> Block:
    """Encode timers, (time, key, payload), of any bins or all of one bin.

    >>> made = pack_timers("sessions", None, [(7, "ann", "over"), (8, "bob", None)])
    >>> keys_of(made), states_of(made)
    (['ann', 'bob'], [(7, 'over'), (8, None)])
    """
    due = [(time, payload) for time, _, payload in timers]
    return pack(kind, operator, bin, [key for _, key, _ in timers], due)


def keys_of(block: Block) -> list[Any]:
    """Return the keys of a block, in order. Raises ProtocolError unless the bytes are a list of `count` keys."""
    return _column(block, block.keys, "keys")


def states_of(block: Block, old: bool = False) -> list[Any]:
    """Return the states of a block, one for each key; None means forgotten. Raises ProtocolError like `keys_of`.

    `old`: return objects that do not fit their classes as old records.
    """
    return _column(block, block.states, "states", old)


def _column(block: Block, encoded: bytes, what: str, old: bool = False) -> list[Any]:
    column = decode(encoded, shared=True, old=old)
    if type(column) is not list or len(column) != block.count:
        raise ProtocolError(f"a block of {block.operator!r} does not have the {block.count} {what} that it states")
    return column
