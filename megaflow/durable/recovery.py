"""Initial states of a job's operators, read from the segments that a commit names.

Before a job begins, `Recovery.check_readable` checks that the program can read the keys, states and timers of an
operator:

 1. An object is readable if its class exists and has the object's fields. So each combination of a class and its fields
    is tried once, on a block that contains it: most blocks are only unpacked, and few are decoded.
 2. States of an earlier version go to `upgrade`, so their classes may have changed. Keys and payloads of timers pass no
    upgrade.
 3. Keys whose class has changed may belong to another bin than before. If keys have classes, the bin of each key in a
    base is compared; otherwise that of the first key in each bin (`Recovery.misplaced`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from megaflow.durable.blocks import OF_TIMERS, Block, BlockKind, keys_of, pack, states_of
from megaflow.durable.commits import Commit, OperatorCut
from megaflow.durable.key_kinds import KeyKinds, kinds_in
from megaflow.durable.restored import Restored, StateDescriptor, misplaced, restore, unchanged
from megaflow.durable.segments import SegmentReader
from megaflow.durable.state_migration import (
    adapt,
    adapter_of,
    check_version,
    furthest_of,
    has_changed,
    has_other_windows,
    reshape,
    upgrade,
)
from megaflow.durable.store import Store
from megaflow.errors import ProtocolError, StoreError
from megaflow.timely.communication.codec.class_names import Shape, shapes_in


class Recovery:
    """One commit of a store, from which operators are restored."""

    def __init__(self, store: Store, commit: Commit, renamed: Mapping[str, str]) -> None:
        """Open the segments and read their indexes. `renamed`: old name -> new name.

        Raises StoreDamaged or OSError, as do the methods that read blocks.
        """
        self._time = commit.time
        self._furthest = furthest_of(commit)
        self._cuts = {renamed.get(cut.name, cut.name): cut for cut in commit.operators}  # by the operator's new name
        segments = sorted(commit.segments, key=lambda each: each.checkpoint)
        self._readers = [(each.checkpoint, each.open(store.read)) for each in segments]

    def restore(self, descriptor: StateDescriptor, bins: Collection[int]) -> Restored:
        """Return the content of an operator's bins among `bins`. Cost: linear in all that was written of the operator.

        Raises StoreError for states of a version that the operator cannot read, or if its hash has changed and `rehash`
        does not give the old one; ProgramError if `upgrade` fails.
        """
        cut = self._cuts.get(descriptor.name)
        if cut is None or not bins:
            return Restored({}, {})
        check_version(descriptor, cut)
        adapter = adapter_of(descriptor, cut)
        chain = ((number, self._blocks(reader, cut.name)) for number, reader in self._readers)
        present = descriptor.binning(descriptor.bins, None)
        was, is_old = self._earlier_binning(descriptor, cut), cut.version < descriptor.terms.version
        try:
            restored = restore(chain, cut.name, self._time, present, bins, was, is_old)
        except ProtocolError as error:
            raise _unfit(descriptor, cut, "states", error) from error
        if cut.kind != descriptor.terms.kind:
            reshape(restored, descriptor, cut.kind)
        if adapter is not unchanged:
            adapt(restored, adapter)
        if cut.version < descriptor.terms.version:
            is_other = has_other_windows(descriptor, cut)
            return replace(restored, forgotten=upgrade(restored, descriptor, cut.version, self._furthest, is_other))
        return restored

    def key_kinds(self, descriptor: StateDescriptor) -> KeyKinds | None:
        """Return a checker of the kinds of an operator's keys; None if there is nothing to compare.

        Cost: unpacks all keys, including those of other workers' bins; decodes those that are not texts.
        """
        cut = self._cuts.get(descriptor.name)
        if cut is None or cut.version != descriptor.terms.version:
            return None
        kinds = frozenset[str]().union(*map(kinds_in, self._needed(cut)))
        return KeyKinds(descriptor.name, kinds) if kinds else None

    def bases(self, descriptor: StateDescriptor) -> tuple[int | None, ...]:
        """Return the checkpoint in which each bin was last written whole; () if the number of bins has changed."""
        cut = self._cuts.get(descriptor.name)
        return () if cut is None or len(cut.bases) != descriptor.bins else cut.bases

    def recall(self, descriptor: StateDescriptor, keys: Set[Any]) -> dict[Any, Any]:
        """Return the states of these keys, without keys that have none.

        Keys, bins and version must be as written. Cost: decodes the keys of their bins, and the states of the blocks
        that contain some of them.
        """
        cut, bin_of_key = self._cuts[descriptor.name], descriptor.binning(descriptor.bins, None)
        bins = {key: bin_of_key(key) for key in keys}
        wanted, found = set(bins.values()), dict[Any, Any]()
        for number, reader in self._readers:
            for entry in reader.entries:
                if entry.operator != cut.name or entry.kind in OF_TIMERS:
                    continue
                if entry.bin is not None and (entry.bin not in wanted or cut.bases[entry.bin] != number):
                    continue
                column = keys_of(block := reader.block(entry))
                if keys.isdisjoint(column):
                    continue
                for key, state in zip(column, states_of(block), strict=True):
                    if key in bins and (base := cut.bases[bins[key]]) is not None and number >= base:
                        found[key] = state
        return {key: state for key, state in found.items() if state is not None}

    def timers(self, descriptor: StateDescriptor, bins: Collection[int]) -> Restored:
        """Return the timers of these bins, without states. Keys, bins and version must be as written.

        Cost: linear in the written timers.
        """
        name = self._cuts[descriptor.name].name
        chain = ((number, self._without_states(reader, name)) for number, reader in self._readers)
        return restore(chain, name, self._time, descriptor.binning(descriptor.bins, None), bins)

    def as_now(self, descriptor: StateDescriptor) -> bool:
        """Tell whether the written keys, bins and states of an operator have their present form."""
        cut = self._cuts.get(descriptor.name)
        return cut is not None and not has_changed(descriptor, cut) and descriptor.terms.rehash is None

    def has_other_windows(self, descriptor: StateDescriptor) -> bool:
        """Tell whether an `upgrade` changes an operator's windows."""
        cut = self._cuts.get(descriptor.name)
        return cut is not None and has_other_windows(descriptor, cut)

    def changes(self, descriptor: StateDescriptor) -> bool:
        """Tell whether an operator's states must be written anew: see `state_migration`."""
        cut = self._cuts.get(descriptor.name)
        return cut is not None and (has_changed(descriptor, cut) or self._earlier_binning(descriptor, cut) is not None)

    def misplaced(self, descriptor: StateDescriptor) -> tuple[Any, int, int] | None:
        """Return a misplaced key, the bin that has it and the bin where it belongs; None if there is none.

        Checks the first key of each bin.
        """
        if (cut := self._cuts.get(descriptor.name)) is None:
            return None
        was = self._earlier_binning(descriptor, cut) or descriptor.binning(descriptor.bins, None)
        samples = self._samples(cut)
        return next(((key, bin, was(key)) for key, bin in samples if was(key) != bin), None)

    def check_readable(self, descriptor: StateDescriptor) -> None:
        """Raise StoreError unless the program can read all content of an operator. Cost: reads all of it."""
        if (cut := self._cuts.get(descriptor.name)) is not None:
            was = self._earlier_binning(descriptor, cut) or descriptor.binning(descriptor.bins, None)
            check_readable(self._needed(cut), descriptor, cut, was)

    def keys_written(self, operator: str) -> int:
        """Return the number of keys written of an operator of the store; one that has changed counts twice."""
        [cut] = [cut for cut in self._cuts.values() if cut.name == operator]
        return sum(
            entry.count for number, reader in self._readers for entry in reader.entries
            if entry.operator == operator and entry.kind not in OF_TIMERS
            and (entry.bin is None or cut.bases[entry.bin] == number)
        )  # fmt: skip

    def _needed(self, cut: OperatorCut) -> Iterator[Block]:
        """Yield the blocks of an operator, without those of bins that were written whole later."""
        for number, reader in self._readers:
            for entry in reader.entries:
                if entry.operator == cut.name and (entry.bin is None or cut.bases[entry.bin] == number):
                    yield reader.block(entry)

    def _earlier_binning(self, descriptor: StateDescriptor, cut: OperatorCut) -> Callable[[Any], int] | None:
        """Return the function from key to bin at the time of the commit; None if it is the present one."""
        bins, rehash = len(cut.bases), descriptor.terms.rehash
        same_hash = descriptor.binning(bins, None)
        if rehash is not None and any(same_hash(key) != bin for key, bin in self._samples(cut)):
            return descriptor.binning(bins, rehash)
        return None if bins == descriptor.bins else same_hash

    def _samples(self, cut: OperatorCut) -> Iterator[tuple[Any, int]]:
        """Yield the first key in the base of each bin that has one, with the bin."""
        for number, reader in self._readers:
            seen = set()
            for entry in reader.entries:
                bin = entry.bin
                if entry.operator != cut.name or entry.kind is not BlockKind.BIN or bin is None or bin in seen:
                    continue
                if cut.bases[bin] == number and entry.count:
                    seen.add(bin)
                    yield keys_of(reader.block(entry))[0], bin

    def _blocks(self, reader: SegmentReader, operator: str) -> Iterator[Block]:
        """Yield the blocks of an operator; the others stay on the disk."""
        return (reader.block(entry) for entry in reader.entries if entry.operator == operator)

    def _without_states(self, reader: SegmentReader, operator: str) -> Iterator[Block]:
        """Yield the timers of an operator, and empty BIN blocks that show which bins were written whole."""
        for entry in reader.entries:
            if entry.operator == operator and entry.kind in OF_TIMERS:
                yield reader.block(entry)
            elif entry.operator == operator and entry.kind is BlockKind.BIN:
                yield pack(BlockKind.BIN, operator, entry.bin, [], [])


def check_readable(
    blocks: Iterable[Block], descriptor: StateDescriptor, cut: OperatorCut, was: Callable[[Any], int]
) -> None:
    """Raise StoreError unless the program can read an operator's content of these blocks.

    `was` returns the bin of a key at the time when they were written. Cost: unpacks the blocks.
    """
    tried_states: set[Shape] = set()
    is_old = cut.version < descriptor.terms.version
    for block in blocks:
        try:
            keys = keys_of(block) if shapes_in(block.keys) else []
            if block.kind is BlockKind.BIN and block.bin is not None:
                for key in keys:
                    if was(key) != block.bin:
                        raise misplaced(descriptor.name, key, block.bin, was(key))
        except ProtocolError as error:
            raise _unfit(descriptor, cut, "keys", error) from error
        what = "timers" if block.kind in OF_TIMERS else "states"
        try:
            shapes = shapes_in(block.states)
            if not shapes <= tried_states:
                states_of(block, old=is_old and what == "states")
                tried_states |= shapes
        except ProtocolError as error:
            raise _unfit(descriptor, cut, what, error) from error


def _unfit(descriptor: StateDescriptor, cut: OperatorCut, what: str, error: ProtocolError) -> StoreError:
    """Return the error for an operator whose keys, states or timers in a store the program cannot read."""
    upgrade = (
        f"Or give version={cut.version + 1} and upgrade=f(key, state, version), which receives each old object with "
        "its fields as attributes. "
    )
    return StoreError(
        f"The program cannot read the {what} of operator {descriptor.name!r} in the store: {error}. Define the class "
        f"as it was. {upgrade if what == 'states' and cut.version == descriptor.terms.version else ''}To start the "
        f"operator without state, give it another name= and give up the old states with --drop-state {cut.name}."
    )
