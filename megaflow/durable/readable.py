"""Whether a program can read the keys, states and timers that a store has of an operator: asked before a job begins.

 1. An object is read if its class is there and has the fields that the object has. So each combination of a class and
    its fields is tried once, on a block that has it: most blocks are unpacked only, and few are decoded.
 2. States of an earlier version go to `upgrade`, so classes that have changed are no matter there. Keys and what timers
    carry pass no upgrade.
 3. Keys whose class has changed may be in another bin than they were. So where keys have classes, the bin of each key
    in a base is compared, and else that of the first one in each bin (`Recovery.misplaced`).
"""

from collections.abc import Callable, Iterable
from typing import Any

from megaflow.durable.blocks import OF_TIMERS, Block, BlockKind, keys_of, states_of
from megaflow.durable.commits import OperatorCut
from megaflow.durable.restored import Heir, misplaced
from megaflow.errors import ProtocolError, StoreError
from megaflow.timely.communication.codec.class_names import Shape, shapes_in


def check_readable(blocks: Iterable[Block], heir: Heir, cut: OperatorCut, was: Callable[[Any], int]) -> None:
    """Raise StoreError unless the program can read what these blocks have of an operator.

    `was` gives the bin in which a key should have been when they were written. Cost: unpacks the blocks.
    """
    tried_keys: set[Shape] = set()
    tried_states: set[Shape] = set()
    is_old = cut.version < heir.terms.version
    for block in blocks:
        try:
            if shapes := shapes_in(block.keys):
                tried_keys |= shapes
                keys = keys_of(block)
                if block.kind is BlockKind.BIN:
                    _check_places(heir, block.bin, keys, was)
        except ProtocolError as error:
            raise unfit(heir, cut, "keys", error) from error
        what = "timers" if block.kind in OF_TIMERS else "states"
        try:
            shapes = shapes_in(block.states)
            if not shapes <= tried_states:
                states_of(block, old=is_old and what == "states")
                tried_states |= shapes
        except ProtocolError as error:
            raise unfit(heir, cut, what, error) from error


def _check_places(heir: Heir, bin: int | None, keys: list[Any], was: Callable[[Any], int]) -> None:
    for key in keys:
        if was(key) != bin and bin is not None:
            raise misplaced(heir.name, key, bin, was(key))


def unfit(heir: Heir, cut: OperatorCut, what: str, error: ProtocolError) -> StoreError:
    """Return the error for an operator whose keys, states or timers in a store the program cannot read."""
    upgrade = (
        f"Or give version={cut.version + 1} and upgrade=f(key, state, version), which receives each old object with "
        "its fields as attributes. "
    )
    return StoreError(
        f"The program cannot read the {what} of operator {heir.name!r} in the store: {error}. Define the class as it "
        f"was. {upgrade if what == 'states' and cut.version == heir.terms.version else ''}To start the operator "
        f"without state, give it another name= and give up the old states with --drop-state {cut.name}."
    )
