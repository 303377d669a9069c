"""How F splits a batch among the owners of its records' bins: the loops that touch every record in F.

Three ways, one for each kind of operator:
 - by key, with the cells of the keys that are here, so that S need not look them up again: stateful_state_machine;
 - by key alone, for what S groups by key: stateful_unary, stateful_binary;
 - by the record itself, which need not be a pair, nor hashable: distribute.
On a worker that owns all bins a batch stays as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, TypeAlias

from megaflow.bins import BinStore, Found
from megaflow.errors import ProgramError
from megaflow.routing import RoutingTable
from megaflow.timely.membership import WorkerId

_KNOWN_KEYS = 1 << 18
"""Keys whose worker F remembers; beyond that it forgets all and starts again (about 40 MB)."""

_KEY = itemgetter(0)

Part: TypeAlias = tuple[WorkerId, list[Any]]


class Splitter(ABC):
    """Splits batches by a routing table. Subclasses say how."""

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
            self._judged = (table, all(owner == self._worker for owner in table))
        if self._judged[1]:
            return self._keep(batch)
        try:
            return self._split(batch, table)
        except (TypeError, LookupError) as error:
            complaint = self._complaint(batch)
            if complaint is not None:
                raise complaint from error
            raise

    @abstractmethod
    def _split(self, batch: list[Any], table: RoutingTable) -> Iterable[Part]:
        """Split a batch whose bins are not all here."""

    def _keep(self, batch: list[Any]) -> Iterable[Part]:
        return [(self._worker, batch)]

    def _complaint(self, batch: list[Any]) -> ProgramError | None:
        return complaint_about(batch, self._name)


class ByCell(Splitter):
    """By key, with the cells of the keys that are here."""

    def __init__(self, store: BinStore, worker: WorkerId, name: str) -> None:
        super().__init__(store, worker, name)
        self._places = _Places((), store, worker)

    def _split(self, batch: list[Any], table: RoutingTable) -> Iterable[Part]:
        places = self._places
        if places.table is not table or len(places) > _KNOWN_KEYS:
            places = self._places = _Places(table, self._store, self._worker)
        parts: defaultdict[int, list[Any]] = defaultdict(list)
        found = Found()
        put, put_cell = found.append, found.cells.append
        for record, place in zip(batch, map(places.__getitem__, map(_KEY, batch)), strict=True):
            if place.__class__ is int:
                parts[place].append(record)
            elif place:
                put(record)
                put_cell(place)
            elif (place := places.renew(record[0])).__class__ is int:
                parts[place].append(record)
            else:
                put(record)
                put_cell(place)
        return [(self._worker, found), *parts.items()]


class ByKey(Splitter):
    """By key."""

    def __init__(self, store: BinStore, worker: WorkerId, name: str) -> None:
        super().__init__(store, worker, name)
        self._owners = _Owners((), store)

    def _split(self, batch: list[Any], table: RoutingTable) -> Iterable[Part]:
        owners = self._owners
        if owners.table is not table or len(owners) > _KNOWN_KEYS:
            owners = self._owners = _Owners(table, self._store)
        parts: defaultdict[int, list[Any]] = defaultdict(list)
        for record, owner in zip(batch, map(owners.__getitem__, map(_KEY, batch)), strict=True):
            parts[owner].append(record)
        return parts.items()


class ByRecord(Splitter):
    """By the record itself. Costs a hash per record."""

    def _split(self, batch: list[Any], table: RoutingTable) -> Iterable[Part]:
        bin_of = self._store.bin_of_key
        parts: defaultdict[int, list[Any]] = defaultdict(list)
        for record in batch:
            parts[table[bin_of(record)]].append(record)
        return parts.items()

    def _keep(self, batch: list[Any]) -> Iterable[Part]:
        record = batch[0]
        self._store.bin_of_key(record)  # so that a hash which is wrong is found on a lone worker, too
        return [(self._worker, batch)]

    def _complaint(self, batch: list[Any]) -> None:
        return None


SplitterMaker: TypeAlias = Callable[[BinStore, WorkerId, str], Splitter]


class _Places(dict[Any, Any]):
    """Key -> where it is under one table: the id of its worker or, on this worker, its cell, which saves S a lookup.

    A dict, so that a batch is looked up without Python code per record. A key is computed when it is first asked for;
    an own one without a state has no place here yet, and one that lost its state loses its place.
    """

    __slots__ = ("_own", "_store", "table")

    def __init__(self, table: RoutingTable, store: BinStore, own: int) -> None:
        self.table = table
        self._store = store
        self._own = own

    def __missing__(self, key: Any) -> Any:
        place: Any = self.table[self._store.bin_of_key(key)]
        if place == self._own:
            cell = self._store.cells.get(key)
            if cell is None:
                return place
            place = cell
        self[key] = place
        return place

    def renew(self, key: Any) -> Any:
        """Look again for a key whose state was forgotten; it may have a new one."""
        del self[key]
        return self[key]


class _Owners(dict[Any, WorkerId]):
    """Key -> the id of its worker under one table; a key is computed when it is first asked for."""

    __slots__ = ("_store", "table")

    def __init__(self, table: RoutingTable, store: BinStore) -> None:
        self.table = table
        self._store = store

    def __missing__(self, key: Any) -> WorkerId:
        owner = self[key] = self.table[self._store.bin_of_key(key)]
        return owner


def complaint_about(batch: list[Any], name: str) -> ProgramError | None:
    """What is wrong with the first record that is no pair, or whose key cannot be one; None if all are right."""
    for record in batch:
        if not isinstance(record, (tuple, list)) or len(record) != 2:
            return ProgramError(
                f"{name}: records must be (key, value) pairs, but one is {record!r}, "
                f"a {type(record).__name__}; map the stream to pairs first"
            )
        try:
            hash(record[0])
        except TypeError as error:
            return ProgramError(
                f"{name}: the key {record[0]!r} is a {type(record[0]).__name__}, which cannot be a key ({error}); "
                "make it a tuple, a frozenset or a str"
            )
    return None
