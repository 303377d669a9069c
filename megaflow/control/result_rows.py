"""Records of the output as rows of a schema: checked and packed by column in the workers, unpacked where Spark reads.

1. A record is a tuple, by position, a NamedTuple or a dict, by name; where there is one column, anything else is its
   value. Any value may be None. A value is of its column's type exactly: nothing is rounded, cut or parsed, but an int
   does for a float or decimal. A timestamp is a datetime or an int of microseconds since 1970 in UTC, a date a date or
   an int of days.
2. All that Spark could refuse later is refused here, where the record is known: what was committed can be read.
3. What a pack has is plain, as in `packed_rows`, but for a map, which is a list of pairs, as Arrow wants it.
4. A pack begins with its number of rows, so who keeps it need not unpack it.
"""

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from types import NoneType
from typing import Any, Final, NoReturn, TypeAlias

from megaflow.control.ddl import type_text
from megaflow.control.packed_rows import columns_of, names_text
from megaflow.control.row_values import LEAVING
from megaflow.errors import ProgramError, ProtocolError
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

Plain: TypeAlias = Callable[[Any], Any]

COUNT_BYTES: Final = 4
INTS: Final = {"byte": 8, "short": 16, "integer": 32, "long": 64, "timestamp": 64, "timestamp_ntz": 64, "date": 32}
FITTING: Final[dict[str, frozenset[type]]] = {
    **dict.fromkeys(INTS, frozenset([int])),
    "float": frozenset([float, int]), "double": frozenset([float, int]), "string": frozenset([str]),
    "boolean": frozenset([bool]), "binary": frozenset([bytes, bytearray]),
    "timestamp": frozenset([datetime, int]), "timestamp_ntz": frozenset([datetime, int]),
    "date": frozenset([date, int]), "decimal": frozenset([Decimal, int]),
    "array": frozenset([list, tuple]), "map": frozenset([dict]),
}  # fmt: skip


class RowPacker:
    """Packs records for one schema."""

    def __init__(self, schema: str) -> None:
        """`schema` is as `StructType.json` writes it."""
        self._columns = columns_of(schema)
        self._names = [column.name for column in self._columns]
        self._plain = [_plain(column.kind) for column in self._columns]

    def pack(self, records: Sequence[Any]) -> bytes:
        """Return records as bytes. Raises ProgramError with the first that does not fit.

        Cost: linear; of plain values no Python code runs for each.
        """
        columns = []
        for column, plain, values in zip(self._columns, self._plain, self._split(records), strict=True):
            if not _all_fit(values, column.kind):
                for record, value in zip(records, values, strict=True):
                    if value is not None and (why := misfit(value, column.kind)):
                        refuse(record, f"column {column.name!r} is {why}")
            columns.append(values if plain is None else [None if each is None else plain(each) for each in values])
        return len(records).to_bytes(COUNT_BYTES, "big") + encode(tuple(columns))

    def _split(self, records: Sequence[Any]) -> list[list[Any]]:
        """Return the values of records by column."""
        kinds = set(map(type, records))
        if kinds == {tuple} and set(map(len, records)) == {len(self._names)}:
            return [*map(list, zip(*records))]
        if kinds == {dict} and all(record.keys() == set(self._names) for record in records):
            return [[record[name] for record in records] for name in self._names]
        return [*map(list, zip(*map(self._values, records)))]

    def _values(self, record: Any) -> Sequence[Any]:
        """Return the values of one record."""
        names = getattr(record, "_fields", None) if isinstance(record, tuple) else None
        if type(record) is dict or names is not None:
            found = record if names is None else dict(zip(names, record))
            if found.keys() != set(self._names):
                refuse(record, f"it has {names_text([*map(str, found)]) if found else 'nothing'}, not the columns "
                       f"{names_text(self._names)}")  # fmt: skip
            return [found[name] for name in self._names]
        if type(record) is tuple:
            if len(record) != len(self._names):
                refuse(record, f"it has {len(record)} values for {len(self._names)} columns, {names_text(self._names)}")
            return record
        if len(self._names) == 1:
            return [record]
        refuse(record, f"it is neither a tuple nor a dict, but of type {type(record).__name__}")


def refuse(record: Any, why: str) -> NoReturn:
    """Raise the error for a record that does not fit."""
    raise ProgramError(f"the record {record!r:.200} does not fit the schema of the results: {why}")


def row_count(pack: bytes) -> int:
    """Return how many rows a pack has."""
    return int.from_bytes(pack[:COUNT_BYTES], "big")


def unpack(pack: bytes) -> list[list[Any]]:
    """Return the columns of a pack. Raises ProtocolError for any other bytes.

    >>> unpack(RowPacker('{"fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "date"}]}').pack([(1, 2)]))
    [[1], [2]]
    """
    match decode(pack[COUNT_BYTES:]):
        case (list() as first, *others):
            if all(type(each) is list and len(each) == row_count(pack) for each in (first, *others)):
                return [first, *others]
    raise ProtocolError(f"cannot decode {len(pack)} received bytes as rows of results")


def _all_fit(values: list[Any], kind: Any) -> bool:
    """Whether all values of a column fit as far as a glance tells; else each is to be looked at."""
    if not isinstance(kind, str) or kind.startswith("decimal"):
        return False
    types = set(map(type, values)) - {NoneType}
    if kind == "string":
        return types <= FITTING[kind] and _is_unicode("".join(filter(None, values)))
    if types == {int} and kind in INTS:
        some: list[int] = values if None not in values else [each for each in values if each is not None]
        limit = 1 << INTS[kind] - 1
        return -limit <= min(some) and max(some) < limit
    return int not in types and types <= FITTING[kind]


def misfit(value: Any, kind: Any) -> str | None:
    """Say what is wrong with a value, which is not None; None: it fits.

    >>> misfit("3", "long"), misfit(1 << 31, "integer"), misfit([2.5], {"type": "array", "elementType": "long"})
    ("'3' (str), but must be long", '2147483648, which is too large for integer', '2.5 (float), but must be long')
    """
    name = kind if isinstance(kind, str) else kind["type"]
    name = "decimal" if name.startswith("decimal") else name
    text = type_text(kind)
    if name == "struct":
        return _misfit_of_row(value, kind, text)
    if type(value) not in FITTING[name]:
        return f"{value!r:.80} ({type(value).__name__}), but must be {text}"
    if name == "decimal":
        return _misfit_of_decimal(Decimal(value), text)
    if type(value) is int and name in INTS and value.bit_length() >= INTS[name] and value != -(1 << INTS[name] - 1):
        return f"{value!r:.80}, which is too large for {text}"
    if name in ("float", "double") and type(value) is int and value.bit_length() > 1000:
        return f"{value!r:.80}, which is too large for {text}"
    if name == "string" and not _is_unicode(value):
        return f"{value!r:.80}, which contains a lone surrogate (half of a character)"
    if name == "array":
        return _first(misfit(each, kind["elementType"]) for each in value if each is not None)
    if name == "map":
        if None in value:
            return f"{value!r:.80}, but the key of a map cannot be None"
        keys = _first(misfit(key, kind["keyType"]) for key in value)
        return keys or _first(misfit(each, kind["valueType"]) for each in value.values() if each is not None)
    return None


def _misfit_of_row(value: Any, kind: Any, text: str) -> str | None:
    fields = kind["fields"]
    if type(value) is dict and value.keys() == {field["name"] for field in fields}:
        values = [value[field["name"]] for field in fields]
    elif isinstance(value, tuple) and len(value) == len(fields):
        values = list(value)
    else:
        return f"{value!r:.80} ({type(value).__name__}), but must be {text}"
    return _first(misfit(each, field["type"]) for each, field in zip(values, fields) if each is not None)


def _misfit_of_decimal(value: Decimal, text: str) -> str | None:
    digits, after = map(int, text[len("decimal(") : -1].split(","))
    _, found, exponent = value.as_tuple()
    if not isinstance(exponent, int) or -exponent > after or len(found) + exponent > digits - after:
        return f"{value}, which has more digits than {text}"
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _first(found: Any) -> str | None:
    return next(filter(None, found), None)


def _plain(kind: Any) -> Plain | None:
    """Return what makes a value plain that fits; None: it is."""
    if isinstance(kind, str):
        if kind.startswith("decimal"):
            return Decimal
        leave = LEAVING.get(kind)
        return None if leave is None else lambda value: value if type(value) is int else leave(value)
    match kind["type"]:
        case "array":
            return _nullable_list(_plain(kind["elementType"]))
        case "map":
            key, value = _plain(kind["keyType"]) or _as_it_is, _nullable(_plain(kind["valueType"]) or _as_it_is)
            return lambda mapping: [(key(name), value(each)) for name, each in mapping.items()]
    fields = [(field["name"], _nullable(_plain(field["type"]) or _as_it_is)) for field in kind["fields"]]
    return lambda row: tuple(
        make(row[name] if type(row) is dict else row[at]) for at, (name, make) in enumerate(fields)
    )


def _nullable_list(element: Plain | None) -> Plain:
    if element is None:
        return list
    make = _nullable(element)
    return lambda values: [*map(make, values)]


def _nullable(make: Plain) -> Plain:
    return lambda value: None if value is None else make(value)


def _as_it_is(value: Any) -> Any:
    return value
