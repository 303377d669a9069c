"""Converters of column values: from Spark's values (`leaving`) or those of results (`plain`) to values that travel, and
from these to datetimes (`arriving`) or to values for Spark's rows (`as_rows`).

Spark has several forms for some values. A timestamp is a naive datetime of the local time zone (rows) or an aware one
(Arrow). A nested row is a Row or a dict, a map is a dict or pairs, and bytes are a bytearray. Values that leave have
one form each. Columns whose type needs no conversion have no converter.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
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


def is_utf8(text: str) -> bool:
    """Tell whether UTF-8 can encode a text: it cannot if the text has a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def spark_time(time: datetime) -> str:
    """Return a time as Spark's metrics write it.

    >>> spark_time(datetime(2026, 11, 26, 17, 5, 9, 123456, tzinfo=UTC))
    '2026-11-26T17:05:09.123Z'
    """
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03}Z"


def stranger(kind: Any) -> Any:
    """Return the part of a type that cannot travel; None if all can.

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
    """Return an instant as microseconds since 1970 in UTC; a naive datetime is in the local time zone.

    >>> micros_of(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC))
    -1
    """
    if value.tzinfo is None:
        return int(value.replace(microsecond=0).timestamp()) * 1_000_000 + value.microsecond
    return (value - EPOCH_UTC) // MICROSECOND


def _unless_int(convert: Convert) -> Convert:
    return lambda value: value if type(value) is int else convert(value)


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
PLAIN: Final[Mapping[str, Convert]] = {
    **{kind: _unless_int(convert) for kind, convert in LEAVING.items()}, "decimal": Decimal
}  # fmt: skip


def leaving(kind: Any) -> Convert | None:
    """Return the converter from Spark's values of a type to values that travel; None: they need none.

    >>> leaving("long"), leaving({"type": "array", "elementType": "date"})([date(1970, 1, 2), None])
    (None, [1, None])
    """
    return _converter(kind, LEAVING, always=True)


def arriving(kind: Any) -> Convert | None:
    """Return the converter of a type's timestamps to datetimes, aware in UTC or naive, and of its dates; None: none.

    >>> arriving("date")(1), arriving("long")
    (datetime.date(1970, 1, 2), None)
    """
    return _converter(kind, ARRIVING, always=False)


def as_rows(kind: Any) -> Convert | None:
    """Return the converter from values that travel to values for Spark's rows; None: they need none.

    >>> as_rows({"type": "map", "keyType": "string", "valueType": "double"})([("a", 1)])
    {'a': 1.0}
    """
    return _converter(kind, ROWS, always=True)


def plain(kind: Any) -> Convert | None:
    """Return the converter from fitting values of results to values that travel; None: they need none.

    Arrays become lists, and maps become lists of pairs, as Arrow requires.

    >>> plain({"type": "map", "keyType": "string", "valueType": "date"})({"a": 1, "b": date(1970, 1, 3)})
    [('a', 1), ('b', 2)]
    """
    return _converter(kind, PLAIN, always=True, as_lists=True)


def _converter(kind: Any, table: Mapping[str, Convert], always: bool, as_lists: bool = False) -> Convert | None:
    """Return the converter of a type by `table`; None: its values need none.

    `always`: convert nested rows and maps even if their contents need no conversion. `as_lists`: see `plain`.
    """
    if isinstance(kind, str):
        convert = table.get(kind.partition("(")[0])
        return convert and _nullable(convert)
    inner = partial(_converter, table=table, always=always, as_lists=as_lists)
    match kind["type"]:
        case "array":
            if (element := inner(kind["elementType"])) is None:
                return _nullable(list) if as_lists else None
            return _nullable(lambda values: [*map(element, values)])
        case "map":
            key, value, made = inner(kind["keyType"]), inner(kind["valueType"]), _pairs if as_lists else dict
            if key is None and value is None:
                return _nullable(made) if always else None
            first, second = key or _as_it_is, value or _as_it_is
            return _nullable(lambda pairs: made([(first(name), second(each)) for name, each in dict(pairs).items()]))
    names = [field["name"] for field in kind["fields"]]
    converters = [inner(field["type"]) for field in kind["fields"]]
    if not any(converters):
        return _nullable(lambda row: tuple(_values(row, names))) if always else None
    calls = [each or _as_it_is for each in converters]
    return _nullable(lambda row: tuple(call(value) for call, value in zip(calls, _values(row, names), strict=True)))


def _pairs(value: Any) -> list[Any]:
    return [*value.items()] if isinstance(value, dict) else value


def _values(row: Any, names: list[str]) -> Any:
    return [row[name] for name in names] if type(row) is dict else row


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _as_it_is(value: Any) -> Any:
    return value
