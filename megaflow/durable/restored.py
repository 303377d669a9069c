"""The states and timers of an operator, rebuilt from the blocks of a checkpoint and of those that it follows.

Checkpoint n follows its `since`, that one its own, and so on to one that follows none: these are its *chain*.
 1. A bin begins as its newest BIN blocks in the chain have it, its *base*: what was written before does not count.
    All these blocks are one worker's, of one cut.
 2. A delta counts unless it is older than its key's base. One as old is of the same cut: a key that was touched while
    its bin waited to be written, and is not in the base.
 3. Timers count likewise: a cut that writes a bin whole writes all its timers. None is written twice, as each cut has
    those set since the one that it follows. Those due before the checkpoint's time have fired.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

from megaflow.durable.blocks import Block, BlockKind, keys_of, states_of
from megaflow.errors import StoreError


@dataclass(frozen=True, slots=True)
class Restored:
    """What one operator begins with."""

    states: dict[int, dict[Any, Any]]  # bin -> key -> state; of every bin that was asked for and has been written
    timers: dict[int, list[tuple[Any, Any, Any]]]  # bin -> (time, key, payload), by time, in the order of setting


def restore(
    chain: Iterable[tuple[int, Iterable[Block]]],
    operator: str,
    time: int,
    bin_of_key: Callable[[Any], int],
    bins: Container[int],
) -> Restored:
    """Return what an operator's bins are in a checkpoint at `time`, for those in `bins`.

    `chain`: number of a checkpoint -> the blocks of all workers, the oldest first. Keys are decoded first; states only
    if a key of these bins is among them. Cost: linear in the blocks.

    Raises StoreError if the first key of a bin's block belongs to another bin by now.
    """
    blocks = [(number, block) for number, written in chain for block in written if block.operator == operator]
    bases = {block.bin: number for number, block in blocks if block.kind is BlockKind.BIN}  # the newest comes last
    states: dict[int, dict[Any, Any]] = {bin: {} for bin in bases if bin is not None and bin in bins}
    timers: list[tuple[Any, int, Any, Any]] = []
    for number, block in blocks:
        if block.bin is not None and (block.bin not in bins or number < bases[block.bin]):
            continue
        keys = keys_of(block)
        if block.bin is not None and keys and bin_of_key(keys[0]) != block.bin:
            raise StoreError(
                f"operator {operator!r} had key {keys[0]!r:.80} in bin {block.bin}, and now it belongs to bin "
                f"{bin_of_key(keys[0])}: give the hash= again that it had, or begin with another --state folder"
            )
        at = list(map(bin_of_key, keys)) if block.bin is None else [block.bin] * len(keys)
        mine = [place for place, bin in enumerate(at) if bin in states and number >= bases[bin]]
        found = states_of(block) if mine else []
        for place in mine:
            bin, key, state = at[place], keys[place], found[place]
            if block.kind is BlockKind.TIMERS:
                timers.append((state[0], bin, key, state[1]))
            elif state is None:
                states[bin].pop(key, None)
            else:
                states[bin][key] = state
    due: dict[int, list[tuple[Any, Any, Any]]] = {}
    for when, bin, key, payload in sorted(timers, key=lambda timer: timer[0]):
        if (when if type(when) is int else when[0]) >= time:  # in a nested scope (outer time, round, …)
            due.setdefault(bin, []).append((when, key, payload))
    return Restored(states, due)
