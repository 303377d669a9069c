"""Values of a column, from what Spark gives to what travels (`leaving`), and to datetimes again (`arriving`); or
back, to what it makes rows of (`as_rows`).

Spark gives a timestamp as a naive datetime of the local time zone (rows), or an aware one (Arrow); a nested row as a
Row or as a dict; a map as a dict or as pairs; bytes as a bytearray. What leaves is the same either way. Columns whose
type needs none of this get no converter at all.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, TypeAlias

Convert: TypeAlias = Callable[[Any], Any]

EPOCH: Final = datetime(1970, 1, 1)
EPOCH_UTC: Final = EPOCH.replace(tzinfo=UTC)
EPOCH_DAY: Final = EPOCH.toordinal()
MICROSECOND: Final = timedelta(microseconds=1)
NAMES: Final = {
    "boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date", "timestamp",
    "timestamp_ntz", "void",
}  # fmt: skip
PREFIXES: Final = ("decimal", "char(", "varchar(", "string collate")
KEYS: Final = NAMES - {"void"}


def stranger(kind: Any) -> Any:
    """Return what in a type cannot travel; None if it can.

    >>> stranger({"type": "array", "elementType": "interval", "containsNull": True}), stranger("long")
    ('interval', None)
    """
    if isinstance(kind, str):
        return None if kind in NAMES or kind.startswith(PREFIXES) else kind
    match kind["type"]:
        case "array":
            return stranger(kind["elementType"])
        case "map":
            key = kind["keyType"]
            if not isinstance(key, str) or stranger(key):
                return kind
            return stranger(kind["valueType"])
        case "struct":
            found = (stranger(field["type"]) for field in kind["fields"])
            return next((each for each in found if each is not None), None)
    return kind


def micros_of(value: datetime) -> int:
    """Return an instant as microseconds since 1970 in UTC; a naive one is of the local time zone.

    >>> micros_of(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC))
    -1
    """
    if value.tzinfo is None:
        return int(value.replace(microsecond=0).timestamp()) * 1_000_000 + value.microsecond
    return (value - EPOCH_UTC) // MICROSECOND


LEAVING: Final[Mapping[str, Convert]] = {
    "timestamp": micros_of,
    "timestamp_ntz": lambda value: (value - EPOCH) // MICROSECOND,
    "date": lambda value: value.toordinal() - EPOCH_DAY,
    "binary": bytes,
}
ARRIVING: Final[Mapping[str, Convert]] = {
    "timestamp": lambda value: EPOCH_UTC + value * MICROSECOND,
    "timestamp_ntz": lambda value: EPOCH + value * MICROSECOND,
    "date": lambda value: date.fromordinal(value + EPOCH_DAY),
}
ROWS: Final[Mapping[str, Convert]] = {**ARRIVING, "float": float, "double": float}


def leaving(kind: Any) -> Convert | None:
    """Return what turns the values of a type, as Spark gives them, into those that travel; None: they do as they are.

    >>> leaving("long"), leaving({"type": "array", "elementType": "date"})([date(1970, 1, 2), None])
    (None, [1, None])
    """
    return _converter(kind, LEAVING, always=True)


def arriving(kind: Any) -> Convert | None:
    """Return what turns the ints of timestamps and dates into aware datetimes in UTC, naive ones, and dates.

    >>> arriving("date")(1), arriving("long")
    (datetime.date(1970, 1, 2), None)
    """
    return _converter(kind, ARRIVING, always=False)


def as_rows(kind: Any) -> Convert | None:
    """Return what turns values that travel into those of which Spark makes rows.

    >>> as_rows({"type": "map", "keyType": "string", "valueType": "double"})([("a", 1)])
    {'a': 1.0}
    """
    return _converter(kind, ROWS, always=True)


def _converter(kind: Any, leaves: Mapping[str, Convert], always: bool) -> Convert | None:
    """`always`: a nested row and a map have to be made even if what they hold stays as it is."""
    if isinstance(kind, str):
        return _nullable(leaves[kind]) if kind in leaves else None
    match kind["type"]:
        case "array":
            element = _converter(kind["elementType"], leaves, always)
            return element and _nullable(lambda values: [*map(element, values)])
        case "map":
            return _map_converter(kind, leaves, always)
        case _:
            return _struct_converter(kind, leaves, always)


def _map_converter(kind: Any, leaves: Mapping[str, Convert], always: bool) -> Convert | None:
    key = _converter(kind["keyType"], leaves, always)
    value = _converter(kind["valueType"], leaves, always)
    if key is None and value is None:
        return _nullable(dict) if always else None
    first, second = key or _as_it_is, value or _as_it_is
    return _nullable(lambda pairs: {first(name): second(each) for name, each in dict(pairs).items()})


def _struct_converter(kind: Any, leaves: Mapping[str, Convert], always: bool) -> Convert | None:
    names = [field["name"] for field in kind["fields"]]
    converters = [_converter(field["type"], leaves, always) for field in kind["fields"]]
    if not any(converters):
        return _nullable(lambda row: tuple(_values(row, names))) if always else None
    calls = [each or _as_it_is for each in converters]
    return _nullable(lambda row: tuple(call(value) for call, value in zip(calls, _values(row, names), strict=True)))


def _values(row: Any, names: list[str]) -> Any:
    return [row[name] for name in names] if type(row) is dict else row


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _as_it_is(value: Any) -> Any:
    return value
