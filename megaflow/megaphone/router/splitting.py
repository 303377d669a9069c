"""How F splits a batch among the owners of its records' bins: the loops that touch every record in F.

`ByKey` serves every operator with a state, `ByRecord` a stream that is distributed. Pairs travel to other workers as
columns (`Pairs`). A worker that owns all bins passes each batch on unchanged.

Every record of an operator with a state passes through here, on the worker that has it. So this module checks that each
record is a pair, and S need not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from megaflow.errors import ProtocolError
from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.base.routing import RoutingTable
from megaflow.timely.communication.codec.encode import register
from megaflow.timely.dataflow.folds import complain_about, require_pairs
from megaflow.timely.membership import WorkerId

_KNOWN_KEYS = 1 << 18
"""Number of keys whose worker F remembers. Beyond that it forgets all of them and starts again (about 40 MB)."""

Part: TypeAlias = tuple[WorkerId, Any]  # a worker and its records: a list, or columns

_UNSETTLED: Final[RoutingTable] = ()
"""Stands for the table as long as F inspects every batch."""


class Splitter(ABC):
    """Base of the splitters, which split batches by a routing table."""

    def __init__(self, store: BinStore, worker: WorkerId, name: str) -> None:
        self._store = store
        self._worker = worker  # this one
        self._name = name  # of the stateful operator
        self._judged: tuple[RoutingTable, bool] = ((), False)  # a table, and whether this worker owns all its bins

    def split(self, batch: list[Any], table: RoutingTable) -> Iterable[Part]:
        """Return (worker, its records in order). Some lists may be empty; the records of one key are in one part.

        Cost: one lookup per record, none on a lone worker. Raises ProgramError for a record that cannot be routed.
        """
        if self._judged[0] is not table:
            self._judge(batch, table)
        if self._judged[1]:
            return self._keep(batch)
        try:
            return self._split(batch, table)
        except (TypeError, ValueError, LookupError) as error:
            self._complain(batch, error)
            raise

    def _judge(self, batch: Iterable[Any], table: RoutingTable) -> None:
        """Note whether all bins are here; repeat this for each batch until the kind of the keys is settled."""
        kinds = self._store.key_kinds
        is_settled = kinds is None or kinds.note(batch)
        self._judged = (table if is_settled else _UNSETTLED, all(owner == self._worker for owner in table))

    @abstractmethod
    def _split(self, batch: list[Any], table: RoutingTable) -> Iterable[Part]:
        """Split a batch whose bins are not all here."""

    def _keep(self, batch: list[Any]) -> Iterable[Part]:
        return [(self._worker, batch)]

    def _complain(self, batch: list[Any], error: Exception) -> None:
        complain_about(batch, self._name, error)


class ByKey(Splitter):
    """Splitter by the key of each (key, value) record."""

    is_made_here = False  # whether the engine has made the pairs, so that they need no check

    def __init__(self, store: BinStore, worker: WorkerId, name: str) -> None:
        super().__init__(store, worker, name)
        self._owners = _Owners((), store)

    def split(self, batch: list[Any], table: RoutingTable) -> Iterable[Part]:
        """Split as every splitter does. Raises ProgramError for a record that is not a pair, also on a lone worker."""
        if not self.is_made_here:
            require_pairs(self._name, batch)
        return super().split(batch, table)

    def _split(self, batch: list[Any], table: RoutingTable) -> Iterable[Part]:
        owners = self._owners_by(table)
        here = self._worker
        kept: list[Any] = []
        keep = kept.append
        parts = {worker: Pairs([], []) for worker in owners.others(here)}
        put = {worker: (part.keys.append, part.values.append) for worker, part in parts.items()}
        if len(put) == 1:  # two workers: saves a sixth of the time
            [(put_key, put_value)] = put.values()
            for record in batch:
                key, value = record
                if owners[key] == here:
                    keep(record)
                else:
                    put_key(key)
                    put_value(value)
        else:
            for record in batch:
                key, value = record
                if (owner := owners[key]) == here:
                    keep(record)
                else:
                    put_key, put_value = put[owner]
                    put_key(key)
                    put_value(value)
        return [(here, kept), *parts.items()]

    def _owners_by(self, table: RoutingTable) -> _Owners:
        if self._owners.table is not table or len(self._owners) > _KNOWN_KEYS:
            self._owners = _Owners(table, self._store)
        return self._owners


class ByMadePair(ByKey):
    """Splitter by the key of pairs that the engine has made from records and checked."""

    is_made_here = True


class ByRecord(Splitter):
    """Splitter by the record itself, which need not be a pair or hashable: for a stream that is distributed."""

    def _split(self, batch: list[Any], table: RoutingTable) -> Iterable[Part]:
        bin_of = self._store.bin_of_record
        parts: defaultdict[int, list[Any]] = defaultdict(list)
        for record in batch:
            parts[table[bin_of(record)]].append(record)
        return parts.items()

    def _keep(self, batch: list[Any]) -> Iterable[Part]:
        record = batch[0]  # the error note finds the record by this name
        self._store.bin_of_record(record)  # finds a faulty hash also on a lone worker
        return super()._keep(batch)

    def _complain(self, batch: list[Any], error: Exception) -> None:
        """Do nothing: whatever the record is, the hash was wrong."""


class _Owners(dict[Any, WorkerId]):
    """Key -> the id of its worker under one table; an entry is computed on the first request for its key."""

    __slots__ = ("_all", "_store", "table")

    def __init__(self, table: RoutingTable, store: BinStore) -> None:
        self.table = table
        self._all = sorted(set(table))
        self._store = store

    def others(self, worker: WorkerId) -> list[WorkerId]:
        """Return the other workers that own bins."""
        return [owner for owner in self._all if owner != worker]

    def __missing__(self, key: Any) -> WorkerId:
        owner = self[key] = self.table[self._store.bin_of_key(key)]
        return owner


class Pairs(Sequence[tuple[Any, Any]]):
    """(key, value) pairs as two lists of equal length, in which records travel from F to an S on another worker.

    The codec would split a list of tuples into columns and build the tuples again, and S would only take each one
    apart. So F fills the columns as it splits a batch, and S iterates over them. No tuple outlives its turn (measured:
    this saves a third of what a record costs on its way). Readers of a batch from F need not know about columns: these
    have a length, a truth value and an order like a list of pairs, and their slices are lists of pairs.

    >>> pairs = Pairs(["a", "b"], [1, 2])
    >>> list(pairs), len(pairs), pairs[0], pairs[1:]
    ([('a', 1), ('b', 2)], 2, ('a', 1), [('b', 2)])
    """

    __slots__ = ("keys", "values")

    def __init__(self, keys: list[Any], values: list[Any]) -> None:
        self.keys = keys
        self.values = values

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(self.keys, self.values)  # not strict, which costs time; the lengths are equal by promise

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(zip(self.keys[index], self.values[index], strict=True))
        return self.keys[index], self.values[index]

    def copy(self) -> Pairs:
        """Return a copy with columns of its own."""
        return Pairs(self.keys.copy(), self.values.copy())

    def extend(self, more: Pairs) -> None:
        """Append the pairs of `more`."""
        self.keys.extend(more.keys)
        self.values.extend(more.values)

    def __repr__(self) -> str:
        return f"Pairs({self.keys!r}, {self.values!r})"


def _restore(columns: Any) -> Pairs:
    match columns:
        case [list() as keys, list() as values] if len(keys) == len(values):
            return Pairs(keys, values)
    raise ProtocolError("columns of pairs that are not two lists of one length")


register(Pairs, lambda pairs: [pairs.keys, pairs.values], _restore)
