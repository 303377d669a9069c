"""Output records as rows of a schema: workers check them and pack them by column, and Spark's reader unpacks them.

1. A tuple matches the columns by position, a NamedTuple or dict by name. So do values of struct columns, which may also
   be Rows of Spark. If there is one column, any other record is its value. Every value may be None. A value must have
   exactly its column's type: nothing is rounded, cut or parsed. But an int fits a float or decimal column. A timestamp
   is a datetime or an int of microseconds since 1970 in UTC; a date is a date or an int of days. A naive datetime is in
   the time zone of the Spark session, as in its SQL, so results do not depend on the machine of a worker. A scalar of
   numpy counts as the Python value that it stands for.
2. The packer refuses all values that Spark could refuse later, because the record is still known here. So Spark can
   read every committed row.
3. The values of a pack are plain, as in `packed_rows`, except that a map is a list of pairs, as Arrow requires.
4. A pack begins with its number of rows, so its keeper need not unpack it.
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import cache, partial
from importlib import import_module
from types import NoneType
from typing import Any, Final, NoReturn

from megaflow.errors import ProgramError, ProtocolError, UsageError
from megaflow.rows.ddl import type_text
from megaflow.rows.packed_rows import columns_of, names_text
from megaflow.rows.row_values import is_utf8, local_micros, micros_of, plain
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

COUNT_BYTES: Final = 4
ZONE: Final = "zone"  # in a schema: the time zone of naive datetimes
INTS: Final = {"byte": 8, "short": 16, "integer": 32, "long": 64, "timestamp": 64, "timestamp_ntz": 64, "date": 32}
NUMPY_KINDS: Final = "biufSU"  # dtypes of scalars that stand for a Python value, whatever the column
SHORT_ZONES: Final = {
    "UT": "UTC", "Z": "UTC", "EST": "Etc/GMT+5", "MST": "Etc/GMT+7", "HST": "Etc/GMT+10", "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo",
    "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare",
    "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
"""Names of zones that Spark accepts, because Java has them, and Python does not: `ZoneId.SHORT_IDS`, "UT" and "Z"."""
EXACT: Final = {"float": 1 << 24, "double": 1 << 53}  # greatest int that Arrow accepts for a type of floats
LEAST: Final = {"timestamp": 5000 * 86_400_000_000 - (1 << 63), "date": 50_000 - (1 << 31)}
"""Least ints of types that have more in Spark. ORC moves dates before 1582 to another calendar, and so out of range."""
FITTING: Final[dict[str, frozenset[type]]] = {
    **dict.fromkeys(INTS, frozenset([int])),
    "float": frozenset([float, int]), "double": frozenset([float, int]), "string": frozenset([str]),
    "boolean": frozenset([bool]), "binary": frozenset([bytes, bytearray]),
    "timestamp": frozenset([datetime, int]), "timestamp_ntz": frozenset([datetime, int]),
    "date": frozenset([date, int]), "decimal": frozenset([Decimal, int]),
    "array": frozenset([list, tuple]), "map": frozenset([dict]),
}  # fmt: skip


class RowPacker:
    """Packer of records for one schema."""

    def __init__(self, schema: str) -> None:
        """`schema` has the form of `StructType.json`, perhaps with a time zone: see `in_zone`."""
        self._columns = columns_of(schema)
        self._names = [column.name for column in self._columns]
        naive = _micros_in(json.loads(schema).get(ZONE, ""))
        self._plain = [plain(column.kind, naive) for column in self._columns]

    def pack(self, records: Sequence[Any]) -> bytes:
        """Return records as bytes. Raises ProgramError for the first record that does not fit.

        Cost: linear, without Python code per plain value.
        """
        columns = []
        for column, convert, values in zip(self._columns, self._plain, self._split(records), strict=True):
            if not _all_fit(values, column.kind):
                for place, (record, value) in enumerate(zip(records, values, strict=True)):
                    if value is not None and misfit(value, column.kind):
                        values[place] = without_classes(value)
                        if why := misfit(values[place], column.kind):
                            refuse(record, f"column {column.name!r} is {why}")
            columns.append(values if convert is None else [*map(convert, values)])
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


def in_zone(schema: str, zone: str) -> str:
    """Return a schema with the time zone of naive datetimes, as Spark names it; "": that of the machine."""
    return json.dumps({**json.loads(schema), ZONE: zone}) if zone else schema


def zone_of(name: str) -> tzinfo:
    """Return a time zone of `spark.sql.session.timeZone`. Raises UsageError.

    >>> zone_of("JST"), zone_of("GMT-3:30").utcoffset(None)
    (zoneinfo.ZoneInfo(key='Asia/Tokyo'), datetime.timedelta(days=-1, seconds=73800))
    """
    if found := re.fullmatch(r"(?:UTC|GMT|UT)?([+-])(\d\d?)(?::?(\d\d)(?::?(\d\d))?)?", name):
        offset = timedelta(hours=int(found[2]), minutes=int(found[3] or 0), seconds=int(found[4] or 0))
        return timezone(-offset if found[1] == "-" else offset)
    zones = import_module("zoneinfo")  # takes 3 ms, and few programs need it
    try:
        zone: tzinfo = zones.ZoneInfo(SHORT_ZONES.get(name, name))
    except (zones.ZoneInfoNotFoundError, ValueError):
        raise UsageError(
            f"spark.sql.session.timeZone: There is no time zone {name!r}. Use a name such as Europe/Berlin."
        ) from None
    return zone


def _micros_in(name: str) -> Callable[[datetime], int]:
    """Return the function that turns a naive datetime of a time zone into microseconds since 1970 in UTC.

    The zone is looked up for the first naive datetime, because a machine may lack it.
    """
    if not name:
        return local_micros
    zone = cache(partial(zone_of, name))
    return lambda value: micros_of(value.replace(tzinfo=zone()))


def refuse(record: Any, why: str) -> NoReturn:
    """Raise the error for a record that does not fit."""
    raise ProgramError(f"the record {record!r:.200} does not fit the schema of the results: {why}")


def without_classes(value: Any) -> Any:
    """Return a value with Python's scalars in place of numpy's, and dicts in place of Rows and NamedTuples.

    This also holds for values in it. `spark.stateful_rows` has the same function, because that module travels alone.

    >>> without_classes([1, ("a", {"b": 2.5})])
    [1, ('a', {'b': 2.5})]
    """
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and value.dtype.kind in NUMPY_KINDS:
        return value.item()
    if isinstance(value, tuple):
        names = getattr(value, "__fields__", None) or getattr(value, "_fields", None)  # of a Row, of a NamedTuple
        values = tuple(map(without_classes, value))
        return dict(zip(names, values)) if names else values
    if isinstance(value, list):
        return [*map(without_classes, value)]
    if type(value) is dict:
        return {without_classes(key): without_classes(each) for key, each in value.items()}
    return value


def row_count(pack: bytes) -> int:
    """Return the number of rows in a pack."""
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
    """Return whether all values of a column certainly fit; if not, `pack` checks each."""
    if not isinstance(kind, str) or kind.startswith("decimal"):
        return False
    types = set(map(type, values)) - {NoneType}
    if kind == "string":
        return types <= FITTING[kind] and is_utf8("".join(filter(None, values)))
    if types == {int} and kind in INTS:
        some: list[int] = values if None not in values else [each for each in values if each is not None]
        return _is_in_range(min(some), kind) and _is_in_range(max(some), kind)
    if kind == "timestamp_ntz":
        return types <= {datetime} and all(each is None or each.tzinfo is None for each in values)
    return int not in types and types <= FITTING[kind]


def _is_in_range(value: int, kind: str) -> bool:
    limit = 1 << INTS[kind] - 1
    return LEAST.get(kind, -limit) <= value < limit


def misfit(value: Any, kind: Any) -> str | None:
    """Return what is wrong with a value other than None; None: it fits.

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
    if type(value) is int and name in INTS and not _is_in_range(value, name):
        return f"{value!r:.80}, which is too large for {text}"
    if name == "timestamp_ntz" and type(value) is datetime and value.tzinfo is not None:
        advice = "choose a zone by astimezone, then drop it by replace(tzinfo=None)"
        return f"{value!r:.120}, but {text} has no time zone: {advice}"
    if name in EXACT and type(value) is int and abs(value) > EXACT[name]:
        return f"{value!r:.80}, an int which is too large for {text}: convert it by float"
    if name == "string" and not is_utf8(value):
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
    elif type(value) is tuple and len(value) == len(fields):
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


def _first(found: Any) -> str | None:
    return next(filter(None, found), None)
