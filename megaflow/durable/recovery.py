"""What a job's operators begin with: read from the segments that a commit names."""

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from functools import partial
from typing import Any

from megaflow.durable.blocks import OF_TIMERS, Block, BlockKind, keys_of, pack, states_of
from megaflow.durable.commits import Commit, OperatorCut
from megaflow.durable.inheritance import adapt, adapter_of, check_version, has_changed, reshape, upgrade
from megaflow.durable.key_kinds import KeyKinds, kinds_in
from megaflow.durable.readable import check_readable, unfit
from megaflow.durable.restored import Heir, Restored, restore, unchanged
from megaflow.durable.segments import SegmentReader
from megaflow.durable.store import Store
from megaflow.errors import ProtocolError


class Recovery:
    """One commit of a store, as operators are restored from it."""

    def __init__(self, store: Store, commit: Commit, renamed: Mapping[str, str]) -> None:
        """Open the segments: their indexes are read. `renamed`: old name -> new name.

        Raises StoreDamaged or OSError, as do `restore` and `changes`.
        """
        self._time = commit.time
        self._cuts = {renamed.get(cut.name, cut.name): cut for cut in commit.operators}  # by the operator's name now
        self._readers = [
            (each.checkpoint, SegmentReader(each.name, partial(store.read, each.name), each.length))
            for each in sorted(commit.segments, key=lambda each: each.checkpoint)
        ]

    def restore(self, heir: Heir, bins: Collection[int]) -> Restored:
        """Return what an operator's bins are, of those in `bins`. Cost: linear in all that was written of it.

        Raises StoreError for states of a version that it cannot read, or if its hash has changed and `rehash` does not
        say from which; ProgramError if `upgrade` fails.
        """
        cut = self._cuts.get(heir.name)
        if cut is None or not bins:
            return Restored({}, {})
        check_version(heir, cut)
        adapter = adapter_of(heir, cut)
        chain = ((number, self._blocks(reader, cut.name)) for number, reader in self._readers)
        present = heir.binning(heir.bins, None)
        was, is_old = self._earlier_binning(heir, cut), cut.version < heir.terms.version
        try:
            restored = restore(chain, cut.name, self._time, present, bins, was, is_old)
        except ProtocolError as error:
            raise unfit(heir, cut, "states", error) from error
        if cut.kind != heir.terms.kind:
            reshape(restored, heir, cut.kind)
        if adapter is not unchanged:
            adapt(restored, adapter)
        if cut.version < heir.terms.version:
            upgrade(restored, heir, cut.version)
        return restored

    def key_kinds(self, heir: Heir) -> KeyKinds | None:
        """Return what compares the keys of records with those of an operator; None if there is nothing to compare.

        Cost: unpacks all keys, also those of other workers' bins; decodes those that are no texts.
        """
        cut = self._cuts.get(heir.name)
        if cut is None or cut.version != heir.terms.version:
            return None
        kinds = frozenset[str]().union(*map(kinds_in, self._needed(cut)))
        return KeyKinds(heir.name, kinds) if kinds else None

    def bases(self, heir: Heir) -> tuple[int | None, ...]:
        """Return in which checkpoint each bin was written whole last; () if they are other bins now."""
        cut = self._cuts.get(heir.name)
        return () if cut is None or len(cut.bases) != heir.bins else cut.bases

    def recall(self, heir: Heir, keys: Set[Any]) -> dict[Any, Any]:
        """Return the states that these keys have; one that is not there has none.

        Keys, bins and version are as they were written. Cost: decodes the keys of their bins, and the states of the
        blocks with some of them.
        """
        cut, bin_of_key = self._cuts[heir.name], heir.binning(heir.bins, None)
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

    def timers(self, heir: Heir, bins: Collection[int]) -> Restored:
        """Return the timers of these bins, without states; what was written is as in `recall`.

        Cost: linear in the timers written.
        """
        name = self._cuts[heir.name].name
        chain = ((number, self._without_states(reader, name)) for number, reader in self._readers)
        return restore(chain, name, self._time, heir.binning(heir.bins, None), bins)

    def as_now(self, heir: Heir) -> bool:
        """Tell whether what was written of an operator has keys, bins and states as it has them now."""
        cut = self._cuts.get(heir.name)
        return cut is not None and not has_changed(heir, cut) and heir.terms.rehash is None

    def changes(self, heir: Heir) -> bool:
        """Tell whether an operator's states have to be written anew: see `inheritance`."""
        cut = self._cuts.get(heir.name)
        return cut is not None and (has_changed(heir, cut) or self._earlier_binning(heir, cut) is not None)

    def misplaced(self, heir: Heir) -> tuple[Any, int, int] | None:
        """Return a key, the bin that it was in and the one where it should have been; None if there is none.

        Looked at is the first key of each bin.
        """
        if (cut := self._cuts.get(heir.name)) is None:
            return None
        was = self._earlier_binning(heir, cut) or heir.binning(heir.bins, None)
        samples = self._samples(cut)
        return next(((key, bin, was(key)) for key, bin in samples if was(key) != bin), None)

    def check_readable(self, heir: Heir) -> None:
        """Raise StoreError unless the program can read all that there is of an operator. Cost: reads all of it."""
        if (cut := self._cuts.get(heir.name)) is not None:
            was = self._earlier_binning(heir, cut) or heir.binning(heir.bins, None)
            check_readable(self._needed(cut), heir, cut, was)

    def _needed(self, cut: OperatorCut) -> Iterator[Block]:
        """The blocks of an operator, without those of bins that were written whole later."""
        for number, reader in self._readers:
            for entry in reader.entries:
                if entry.operator == cut.name and (entry.bin is None or cut.bases[entry.bin] == number):
                    yield reader.block(entry)

    def _earlier_binning(self, heir: Heir, cut: OperatorCut) -> Callable[[Any], int] | None:
        """Return what gave the bin of a key when a commit was written; None if it is what gives it now."""
        bins, rehash = len(cut.bases), heir.terms.rehash
        same_hash = heir.binning(bins, None)
        if rehash is not None and any(same_hash(key) != bin for key, bin in self._samples(cut)):
            return heir.binning(bins, rehash)
        return None if bins == heir.bins else same_hash

    def _samples(self, cut: OperatorCut) -> Iterator[tuple[Any, int]]:
        """The first key of each bin that has one, in its base, with the bin."""
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
        """The blocks of an operator; the others stay on the disk."""
        return (reader.block(entry) for entry in reader.entries if entry.operator == operator)

    def _without_states(self, reader: SegmentReader, operator: str) -> Iterator[Block]:
        """The timers of an operator; of its bins what tells which was written whole."""
        for entry in reader.entries:
            if entry.operator == operator and entry.kind in OF_TIMERS:
                yield reader.block(entry)
            elif entry.operator == operator and entry.kind is BlockKind.BIN:
                yield pack(BlockKind.BIN, operator, entry.bin, [], [])
