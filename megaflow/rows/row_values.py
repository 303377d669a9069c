"""Converters of column values: from Spark's values (`leaving`) or those of results (`plain`) to values that travel, and
from these to datetimes (`arriving`) or to values for Spark's rows (`as_rows`).

Spark has several forms for some values. A nested row is a Row or a dict, a map is a dict or pairs, and bytes are a
bytearray. Values that leave have one form each. Timestamps and dates leave as ints, which Java makes of them, because
Python's datetimes hold only the years 1 to 9999. Columns whose type needs no conversion have no converter.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final, TypeAlias

from megaflow.errors import SourceError
from megaflow.rows.packed_rows import RowPack, columns_of

Convert: TypeAlias = Callable[[Any], Any]

EPOCH: Final = datetime(1970, 1, 1)
EPOCH_UTC: Final = EPOCH.replace(tzinfo=UTC)
EPOCH_DAY: Final = EPOCH.toordinal()
YEARS: Final = "Python's datetimes hold only the years 1 to 9999."
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


def spark_time(at: datetime) -> str:
    """Return a time as Spark's metrics write it.

    >>> spark_time(datetime(2026, 11, 26, 17, 5, 9, 123456, tzinfo=UTC))
    '2026-11-26T17:05:09.123Z'
    """
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z"


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


def local_micros(value: datetime) -> int:
    """Return a naive datetime of the machine's time zone as microseconds since 1970 in UTC."""
    try:
        seconds = value.replace(microsecond=0).timestamp()
    except (ValueError, OverflowError):  # in the first or last hours of all years
        aside = timedelta(days=2 if value.year == 1 else -2)
        return local_micros(value + aside) - aside // MICROSECOND
    return int(seconds) * 1_000_000 + value.microsecond


def micros_of(value: datetime, naive: Callable[[datetime], int] = local_micros) -> int:
    """Return an instant as microseconds since 1970 in UTC. `naive` does so for a naive datetime.

    >>> micros_of(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC))
    -1
    """
    return naive(value) if value.tzinfo is None else (value - EPOCH_UTC) // MICROSECOND


def _unless_int(convert: Convert) -> Convert:
    return lambda value: value if type(value) is int else convert(value)


DATES: Final[Mapping[str, Convert]] = {
    "timestamp_ntz": lambda value: (value - EPOCH) // MICROSECOND,
    "date": lambda value: value.toordinal() - EPOCH_DAY,
}
LEAVING: Final[Mapping[str, Convert]] = {"binary": bytes}
ARRIVING: Final[Mapping[str, Convert]] = {
    "timestamp": lambda value: EPOCH_UTC + value * MICROSECOND,
    "timestamp_ntz": lambda value: EPOCH + value * MICROSECOND,
    "date": lambda value: date.fromordinal(value + EPOCH_DAY),
}
ROWS: Final[Mapping[str, Convert]] = {"float": float, "double": float}
PLAIN: Final[Mapping[str, Convert]] = {
    **{kind: _unless_int(convert) for kind, convert in DATES.items()}, "binary": bytes, "decimal": Decimal
}  # fmt: skip


def leaving(kind: Any) -> Convert | None:
    """Return the converter from Spark's values of a type to values that travel; None: they need none.

    >>> leaving("long"), leaving({"type": "array", "elementType": "binary"})([bytearray(b"a"), None])
    (None, [b'a', None])
    """
    return _converter(kind, LEAVING, always=True)


def arriving(kind: Any) -> Convert | None:
    """Return the converter of a type's timestamps to datetimes, aware in UTC or naive, and of its dates; None: none.

    >>> arriving("date")(1), arriving("long")
    (datetime.date(1970, 1, 2), None)
    """
    return _converter(kind, ARRIVING, always=False)


def as_datetimes(pack: RowPack) -> list[list[Any]]:
    """Return the columns of rows with datetimes and dates. Raises SourceError for a value that Python cannot hold."""
    converters = [arriving(column.kind) for column in columns_of(pack.schema)]
    pairs = [*zip(converters, pack.columns, strict=True)]
    try:
        return [[*map(call, each)] if call else each for call, each in pairs]
    except (OverflowError, ValueError):
        for column, (call, values) in zip(columns_of(pack.schema), pairs, strict=True):
            for row, value in zip(zip(*pack.columns, strict=True), values if call else (), strict=False):
                if call is not None and not _holds(call, value):
                    unit = f", in {column.unit} since 1970" if column.unit else ""
                    raise SourceError(
                        f"The rows {pack.input!r} have {value!r:.200}{unit}, in the column {column.name!r} of the row "
                        f"{row!r:.200}. {YEARS} Leave out timestamps='datetime', or replace such values in Spark."
                    ) from None
        raise


def _holds(convert: Convert, value: Any) -> bool:
    try:
        convert(value)
    except (OverflowError, ValueError):
        return False
    return True


def as_rows(kind: Any) -> Convert | None:
    """Return the converter from values that travel to values for Spark's rows; None: they need none.

    Timestamps and dates stay ints, as Java has them.

    >>> as_rows({"type": "map", "keyType": "string", "valueType": "double"})([("a", 1)])
    {'a': 1.0}
    """
    return _converter(kind, ROWS, always=True)


def plain(kind: Any, naive: Callable[[datetime], int] = local_micros) -> Convert | None:
    """Return the converter from fitting values of results to values that travel; None: they need none.

    Arrays become lists, and maps become lists of pairs, as Arrow requires. `naive` is for timestamps: see `micros_of`.

    >>> plain({"type": "map", "keyType": "string", "valueType": "date"})({"a": 1, "b": date(1970, 1, 3)})
    [('a', 1), ('b', 2)]
    """
    table = {**PLAIN, "timestamp": _unless_int(partial(micros_of, naive=naive))}
    return _converter(kind, table, always=True, as_lists=True)


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
