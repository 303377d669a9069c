"""What a job's operators begin with: read from the segments that a commit names."""

from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import Any

from megaflow.durable.blocks import Block
from megaflow.durable.commits import Commit
from megaflow.durable.restored import Restored, restore
from megaflow.durable.segments import SegmentReader
from megaflow.durable.store import Store


class Recovery:
    """One commit of a store, as operators are restored from it."""

    def __init__(self, store: Store, commit: Commit) -> None:
        """Open the segments: their indexes are read. Raises StoreDamaged or OSError, as does `operator`."""
        self._time = commit.time
        self._readers = [
            (each.checkpoint, SegmentReader(each.name, partial(store.read, each.name), each.length))
            for each in sorted(commit.segments, key=lambda each: each.checkpoint)
        ]

    def operator(self, name: str, bin_of_key: Callable[[Any], int], bins: Container[int]) -> Restored:
        """Return what an operator's bins were, of those in `bins`. Cost: linear in all that was written of it."""
        chain = ((number, self._blocks(reader, name)) for number, reader in self._readers)
        return restore(chain, name, self._time, bin_of_key, bins)

    def _blocks(self, reader: SegmentReader, operator: str) -> Iterator[Block]:
        """The blocks of an operator; the others stay on the disk."""
        return (reader.block(entry) for entry in reader.entries if entry.operator == operator)
