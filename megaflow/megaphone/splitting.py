"""How F splits a batch among the owners of its records' bins: the loops that touch every record in F.

`ByKey` serves every operator with a state, `ByRecord` a stream that is distributed. Pairs that go to other workers go
as columns (`Pairs`). On a worker that owns all bins a batch stays as it is.

Every record of an operator with a state passes here, on the worker that has it: so here it is checked that it is a
pair, and S need not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from megaflow.errors import ProtocolError
from megaflow.megaphone.bins import BinStore
from megaflow.megaphone.routing import RoutingTable
from megaflow.timely.communication.codec.encode import register
from megaflow.timely.dataflow.folds import complain_about, require_pairs
from megaflow.timely.membership import WorkerId

_KNOWN_KEYS = 1 << 18
"""Keys whose worker F remembers; beyond that it forgets all and starts again (about 40 MB)."""

Part: TypeAlias = tuple[WorkerId, Any]  # a worker and its records: a list, or columns

_UNSETTLED: Final[RoutingTable] = ()
"""In the place of a table while each batch is looked at."""


class Splitter(ABC):
    """What splits batches by a routing table. Subclasses say how."""

    def __init__(self, store: BinStore, worker: WorkerId, name: str) -> None:
        self._store = store
        self._worker = worker  # this one
        self._name = name  # of the stateful operator
        self._judged: tuple[RoutingTable, bool] = ((), False)  # a table, and whether all its bins are here

    def split(self, batch: list[Any], table: RoutingTable) -> Iterable[Part]:
        """Return (worker, its records in order), some perhaps empty; the records of one key are in one part.

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
        """Note whether all bins are here; again for the next batch, until the kind of its keys is settled."""
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
    """By the key of each (key, value) record."""

    is_made_here = False  # whether the engine has made the pairs, so that none needs a check

    def __init__(self, store: BinStore, worker: WorkerId, name: str) -> None:
        super().__init__(store, worker, name)
        self._owners = _Owners((), store)

    def split(self, batch: list[Any], table: RoutingTable) -> Iterable[Part]:
        """Split as every splitter does. Raises ProgramError for a record that is no pair, also on a lone worker."""
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
        if len(put) == 1:  # with two workers; it saves a sixth
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
    """By the key of pairs that the engine has made of records, and checked these."""

    is_made_here = True


class ByRecord(Splitter):
    """By the record itself, which need not be a pair, nor hashable: for a stream that is distributed."""

    def _split(self, batch: list[Any], table: RoutingTable) -> Iterable[Part]:
        bin_of = self._store.bin_of_record
        parts: defaultdict[int, list[Any]] = defaultdict(list)
        for record in batch:
            parts[table[bin_of(record)]].append(record)
        return parts.items()

    def _keep(self, batch: list[Any]) -> Iterable[Part]:
        record = batch[0]  # by this name the error note finds it
        self._store.bin_of_record(record)  # so that a hash which is wrong is found on a lone worker, too
        return super()._keep(batch)

    def _complain(self, batch: list[Any], error: Exception) -> None:
        """Whatever the record is, it is the hash that was wrong."""


class _Owners(dict[Any, WorkerId]):
    """Key -> the id of its worker under one table; a key is computed when it is first asked for."""

    __slots__ = ("_all", "_store", "table")

    def __init__(self, table: RoutingTable, store: BinStore) -> None:
        self.table = table
        self._all = sorted(set(table))
        self._store = store

    def others(self, worker: WorkerId) -> list[WorkerId]:
        """Return who owns bins beside this worker."""
        return [owner for owner in self._all if owner != worker]

    def __missing__(self, key: Any) -> WorkerId:
        owner = self[key] = self.table[self._store.bin_of_key(key)]
        return owner


class Pairs(Sequence[tuple[Any, Any]]):
    """(key, value) pairs as two lists of one length, in which records travel from F to an S on another worker.

    The codec would take a list of tuples apart into columns and put the tuples together again, only for S to take each
    apart. So F fills the columns as it splits a batch, and S iterates over them: no tuple is made that outlives its
    turn (measured: a third of what a record costs on its way). What reads a batch of F's need not know: columns have a
    length, a truth value and an order like a list of pairs, and slices of them are lists of pairs.

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
        return zip(self.keys, self.values)  # not strict: that costs, and one length is promised

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(zip(self.keys[index], self.values[index], strict=True))
        return self.keys[index], self.values[index]

    def copy(self) -> Pairs:
        """Return columns of their own."""
        return Pairs(self.keys.copy(), self.values.copy())

    def extend(self, more: Pairs) -> None:
        """Append the pairs of others."""
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
