"""Values of a `StatefulProcessor`: those that it gets and returns, as Spark converts them, and those that travel.

Spark has three forms for the same values, and a processor may rely on each:

1. Input rows, and keys beside them, come by Arrow. Timestamps are aware datetimes in the session's time zone, nested
   rows are dicts, and maps are lists of pairs. In pandas, timestamps are naive, and maps are dicts.
2. Values of states, and keys beside expired timers, come from Java. Timestamps are naive datetimes in the machine's
   time zone, nested rows are Rows, and maps are dicts.
3. Output rows go by Arrow. A naive datetime is in UTC (rows) or in the session's time zone (pandas).

A value of a state that does not fit its type is refused. Spark stores null for most of them.
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, tzinfo
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from math import copysign, inf
from struct import pack, unpack
from typing import Any, Final

from megaflow.errors import UsageError
from megaflow.rows.ddl import parse_ddl, schema_json, type_text
from megaflow.rows.packed_rows import Column, columns_of
from megaflow.rows.row_values import ARRIVING, DATES, YEARS, Convert, micros_of, stranger
from megaflow.spark.stateful_rows import naive_in

INTS: Final = {"byte": 8, "short": 16, "integer": 32, "long": 64}
MISSING: Final = frozenset(["NAType", "NaTType"])  # of pandas
YEARS_OF_PANDAS: Final = "pandas holds only the years 1678 to 2261 in a column of timestamps."
DTYPES: Final = {
    **dict.fromkeys(INTS, "int64"), "float": "float64", "double": "float64", "boolean": "bool",
    "timestamp": "datetime64[ns]", "timestamp_ntz": "datetime64[ns]",
}  # fmt: skip
ELEMENTS: Final = {
    "byte": "int8", "short": "int16", "integer": "int32", "long": "int64", "float": "float32", "double": "float64",
    "boolean": "bool",
}  # fmt: skip


# 1. Input rows and keys -------------------------------------------------------------------


def given(kind: Any, zone: tzinfo, pandas: bool = False) -> Convert:
    """Return the converter of a type's values that travel to those of Arrow in Spark.

    >>> given({"type": "map", "keyType": "string", "valueType": "long"}, UTC)({"a": 1})
    [('a', 1)]
    """
    name = kind.partition("(")[0] if isinstance(kind, str) else kind["type"]
    if name == "timestamp":
        if pandas:
            return _unless_none(partial(naive_in, zone))
        return _unless_none(lambda at: naive_in(zone, at).replace(tzinfo=zone))
    if isinstance(kind, str):
        return _unless_none(ARRIVING[name]) if name in ARRIVING else _as_it_is
    inner = partial(given, zone=zone, pandas=pandas)
    if name == "array":
        element = inner(kind["elementType"])
        if pandas:
            dtype = ELEMENTS.get(str(kind["elementType"]))
            return _unless_none(lambda values: _numpy_array([*map(element, values)], dtype))
        return _unless_none(lambda values: [*map(element, values)])
    if name == "map":
        key, each = inner(kind["keyType"]), inner(kind["valueType"])
        form: Callable[[Any], Any] = dict if pandas else list
        return _unless_none(lambda pairs: form((key(name), each(value)) for name, value in pairs.items()))
    names = [field["name"] for field in kind["fields"]]
    converters = [inner(field["type"]) for field in kind["fields"]]
    return _unless_none(
        lambda row: {name: call(value) for name, call, value in zip(names, converters, row, strict=True)}
    )


def _unless_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _as_it_is(value: Any) -> Any:
    return value


def _numpy_array(values: list[Any], dtype: str | None) -> Any:
    import numpy

    if dtype is None or None not in values:
        array = numpy.empty(len(values), dtype or object)
        array[:] = values
        return array
    if dtype == "bool":
        return numpy.array(values, object)
    return numpy.array(values, "float64")  # None becomes NaN, as in Spark


def row_maker(schema: str, zone: tzinfo) -> Callable[[Sequence[Any]], Any]:
    """Return a function from values that travel to a Row. `schema` has the form of `StructType.json`."""
    from pyspark.sql.types import Row

    columns = columns_of(schema)
    make, converters = Row(*[column.name for column in columns]), [given(column.kind, zone) for column in columns]

    def row(values: Sequence[Any]) -> Any:
        try:
            return make(*[call(value) for call, value in zip(converters, values, strict=True)])
        except (OverflowError, ValueError) as error:
            raise unheld([column.name for column in columns], converters, [values], YEARS) or error from None

    return row


def unheld(
    names: Sequence[str], calls: Sequence[Convert], rows: Sequence[Sequence[Any]], limit: str
) -> ValueError | None:
    """Return the error for the first value in rows that a call does not convert; None: there is none."""
    for row in rows:
        for name, call, value in zip(names, calls, row, strict=True):
            try:
                call(value)
            except (OverflowError, ValueError):
                return ValueError(
                    f"The column {name!r} has {value!r:.200}, in microseconds or days since 1970, in the row "
                    f"{tuple(row)!r:.200}. {limit} Replace such values in Spark."
                )
    return None


def frame_maker(schema: str, zone: tzinfo) -> Callable[[Sequence[Sequence[Any]]], Any]:
    """Return a function from rows of values that travel to a DataFrame of pandas."""
    import pandas

    columns = columns_of(schema)
    names, converters = [column.name for column in columns], [given(each.kind, zone, pandas=True) for each in columns]

    def series(kind: Any, values: list[Any]) -> Any:
        dtype: Any = DTYPES.get(kind, object) if isinstance(kind, str) else object
        if dtype in ("int64", "bool") and None in values:
            dtype = "float64" if dtype == "int64" else object
        return pandas.Series(values, dtype=dtype)

    def checked(column: Column, call: Convert) -> Convert:
        return lambda value: series(column.kind, [call(value)])

    def make(rows: Sequence[Sequence[Any]]) -> Any:
        by_column = zip(columns, converters, zip(*rows, strict=True), strict=True)
        try:
            made = [series(column.kind, [*map(call, values)]) for column, call, values in by_column]
        except (OverflowError, ValueError) as error:
            raise unheld(names, [*map(checked, columns, converters)], rows, YEARS_OF_PANDAS) or error from None
        frame = pandas.concat(made, axis=1)
        frame.columns = names
        return frame

    return make


def keys_of(columns: Sequence[Column], zone: tzinfo, pandas: bool) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return a function from the values of a key to the tuple that `handleInputRows` gets."""
    names, kinds = [column.name for column in columns], [column.kind for column in columns]
    converters = [given(kind, zone, pandas) for kind in kinds]
    if pandas:
        from pandas import Timestamp

        def stamp(call: Convert) -> Convert:
            return _unless_none(lambda value: Timestamp(call(value)))

        both = zip(kinds, converters, strict=True)
        converters = [stamp(call) if str(kind).startswith("timestamp") else call for kind, call in both]

    def key(values: Sequence[Any]) -> tuple[Any, ...]:
        try:
            return tuple([call(value) for call, value in zip(converters, values, strict=True)])
        except (OverflowError, ValueError) as error:
            raise unheld(names, converters, [values], YEARS) or error from None

    return key


# 2. Values of states ----------------------------------------------------------------------


class StateSchema:
    """Columns of a state variable: they turn the tuples of a program into values that travel, and these into Rows."""

    def __init__(self, schema: Any, where: str) -> None:
        """`schema`: a StructType or a text. `where`: the variable, for errors. Raises UsageError."""
        from pyspark.sql.types import StructType

        self._where = where
        if isinstance(schema, str):
            text = re.sub(r"\s+NOT\s+NULL\b", "", schema, flags=re.IGNORECASE)  # any value of a state may be null
            try:
                schema = StructType.fromJson(json.loads(schema_json(parse_ddl(text))))
            except UsageError as error:
                raise UsageError(f"{where}: {error}") from None
        if not isinstance(schema, StructType):
            raise UsageError(f"{where}: The schema must be a StructType or a text as 'n LONG', not {schema!r:.80}.")
        for field in schema.fields:
            if (strange := stranger(field.dataType.jsonValue())) is not None:
                raise UsageError(f"{where}: A state cannot have the column {field.name!r} of type {strange}.")
        self._columns = columns_of(schema.json())
        self._make = kept_row([each.name for each in self._columns], [each.kind for each in self._columns])

    def __str__(self) -> str:
        return ", ".join(f"{column.name}: {type_text(column.kind)}" for column in self._columns)

    def inward(self, value: Any) -> tuple[Any, ...]:
        """Return a value as it travels. Raises TypeError or ValueError if it does not fit."""
        if not isinstance(value, tuple | list):
            names = ", ".join(column.name for column in self._columns)
            raise TypeError(
                f"{self._where}: A value must be a tuple or a Row of ({names}), but {value!r:.80} is of type "
                f"{type(value).__name__}."
            )
        if len(value) != len(self._columns):
            raise ValueError(f"{self._where}: {value!r:.80} has {len(value)} values for {len(self._columns)} columns.")
        made = []
        for column, each in zip(self._columns, value, strict=True):
            try:
                made.append(fitted(each, column.kind))
            except ValueError as error:
                raise type(error)(f"{self._where}: The column {column.name!r}: {error}") from None
            except TypeError as error:
                raise TypeError(f"{self._where}: The column {column.name!r}: {error}") from None
        return tuple(made)

    def as_key(self, value: Any) -> tuple[Any, ...]:
        """Return a value as the key of a dict. Raises TypeError or ValueError like `inward`."""
        key = self.inward(value)
        if any(each != each for each in key):
            raise ValueError(f"{self._where}: NaN cannot be a key, because it is not equal to itself.")
        return tuple(map(_hashable, key))

    def outward(self, value: tuple[Any, ...]) -> Any:
        """Return a value as a new Row."""
        return self._make(value)


def fitted(value: Any, kind: Any) -> Any:
    """Return a value of a state as it travels. Raises TypeError or ValueError with the reason.

    >>> fitted({"a": 1}, {"type": "struct", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "date"}]})
    (1, None)
    >>> fitted(1 << 31, "integer")
    Traceback (most recent call last):
        ...
    ValueError: 2147483648 is too large for integer.
    """
    if type(value).__module__ == "numpy" and hasattr(value, "dtype") and not getattr(value, "shape", ()):
        value = value.item()
    if value is None or type(value).__name__ in MISSING:
        return None
    name = kind.partition("(")[0] if isinstance(kind, str) else kind["type"]
    match name:
        case "array" if isinstance(value, list | tuple):
            return [fitted(each, kind["elementType"]) for each in value]
        case "map" if isinstance(value, dict):
            key = kind["keyType"]
            return {fitted(name, key): fitted(each, kind["valueType"]) for name, each in value.items()}
        case "struct" if isinstance(value, dict):
            return tuple([fitted(value.get(field["name"]), field["type"]) for field in kind["fields"]])
        case "struct" if isinstance(value, list | tuple):
            if len(value) != len(kind["fields"]):
                raise ValueError(f"{value!r:.80} has {len(value)} values for {len(kind['fields'])} fields.")
            return tuple([fitted(each, field["type"]) for each, field in zip(value, kind["fields"], strict=True)])
        case "byte" | "short" | "integer" | "long" if isinstance(value, int) and not isinstance(value, bool):
            if not -(1 << INTS[name] - 1) <= value < 1 << INTS[name] - 1:
                raise ValueError(f"{value} is too large for {name}.")
            return int(value)
        case "string" | "char" | "varchar" if isinstance(value, str | int):  # as Spark, which writes true for True
            return str(value).lower() if isinstance(value, bool) else str(value)
        case "float" if isinstance(value, float):
            return _single(value)
        case "double" if isinstance(value, float):
            return float(value)
        case "boolean" if isinstance(value, bool):
            return value
        case "binary" if isinstance(value, bytes | bytearray):
            return bytes(value)
        case "decimal" if isinstance(value, Decimal):
            return _rounded(value, kind)
        case "date" if isinstance(value, date):
            return DATES[name](value)
        case "timestamp" if isinstance(value, datetime):
            return micros_of(_plain_datetime(value))
        case "timestamp_ntz" if isinstance(value, datetime):
            return DATES[name](_plain_datetime(value).replace(tzinfo=None))
    if name.startswith("string collate") and isinstance(value, str):
        return str(value)
    raise TypeError(f"{value!r:.80} is of type {type(value).__name__}, but must be {type_text(kind)}. Convert it.")


def _plain_datetime(value: Any) -> datetime:
    found: datetime = value.to_pydatetime(warn=False) if hasattr(value, "to_pydatetime") else value
    return found


def _single(value: float) -> float:
    """Return a float as Spark's FLOAT has it."""
    try:
        found: float = unpack("f", pack("f", value))[0]
    except OverflowError:
        return copysign(inf, value)
    return found


def _rounded(value: Decimal, kind: str) -> Decimal:
    """Return a decimal with the digits of its type."""
    digits, after = map(int, kind[len("decimal(") : -1].split(","))
    found = value.quantize(Decimal(1).scaleb(-after), ROUND_HALF_UP) if value.is_finite() else value
    if not value.is_finite() or len(found.as_tuple().digits) > digits:
        raise ValueError(f"{value} does not fit {kind}.")
    return found


def _hashable(value: Any) -> Any:
    """Return a value of a map's key with tuples for lists."""
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def kept(kind: Any) -> Convert:
    """Return the converter of a type's values that travel to those that a state returns. It copies lists and dicts."""
    if isinstance(kind, str):
        if kind == "timestamp":
            from pyspark.sql.types import TimestampType

            return TimestampType().fromInternal
        return _unless_none(ARRIVING[kind]) if kind in ARRIVING else _as_it_is
    if kind["type"] == "array":
        element = kept(kind["elementType"])
        return _unless_none(lambda values: [*map(element, values)])
    if kind["type"] == "map":
        key, each = kept(kind["keyType"]), kept(kind["valueType"])
        return _unless_none(lambda pairs: {key(name): each(value) for name, value in pairs.items()})
    fields = kind["fields"]
    return _unless_none(kept_row([field["name"] for field in fields], [field["type"] for field in fields]))


def kept_row(names: Sequence[str], kinds: Sequence[Any]) -> Convert:
    """Return a function from values that travel to a Row of values that a state returns."""
    from pyspark.sql.types import Row

    make, converters = Row(*names), [*map(kept, kinds)]

    def row(values: Sequence[Any]) -> Any:
        try:
            return make(*[call(value) for call, value in zip(converters, values, strict=True)])
        except (OverflowError, ValueError) as error:
            raise unheld(names, converters, [values], YEARS) or error from None

    return row


# 3. Output rows ---------------------------------------------------------------------------


def returned(kind: Any, zone: tzinfo) -> Convert:
    """Return the converter of values of an output column to values of results. `zone`: that of naive datetimes.

    >>> returned({"type": "array", "elementType": "timestamp"}, UTC)([datetime(2026, 1, 1), None])
    [datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc), None]
    """
    if isinstance(kind, str):
        return partial(_returned_value, kind=kind, zone=zone)
    if kind["type"] == "array":
        element = returned(kind["elementType"], zone)
        return _unless_none(lambda values: [*map(element, _plain_number(values))])
    if kind["type"] == "map":
        key, each = returned(kind["keyType"], zone), returned(kind["valueType"], zone)
        return _unless_none(lambda pairs: {key(name): each(value) for name, value in dict(pairs).items()})
    converters = {field["name"]: returned(field["type"], zone) for field in kind["fields"]}

    def struct(row: Any) -> Any:
        found = _named(row)
        if isinstance(found, dict) and found.keys() <= converters.keys():
            return {name: call(found.get(name)) for name, call in converters.items()}
        return found  # a row of results is checked later

    return _unless_none(struct)


def _returned_value(value: Any, kind: str, zone: tzinfo) -> Any:
    value = _plain_number(value)
    if isinstance(value, datetime):
        value = _plain_datetime(value)
        if kind == "timestamp":
            return value.replace(tzinfo=zone) if value.tzinfo is None else value
        return value.date() if kind == "date" else value.replace(tzinfo=None)
    return value


def _plain_number(value: Any) -> Any:
    """Return a scalar or an array of numpy as a value of Python."""
    return value.tolist() if type(value).__module__ == "numpy" else value


def _named(row: Any) -> Any:
    """Return a Row or NamedTuple as a dict, any other value as it is."""
    names = getattr(row, "__fields__", None) or getattr(row, "_fields", None) if isinstance(row, tuple) else None
    return row if names is None else dict(zip(names, row, strict=True))


def row_outputs(schema: str) -> Callable[[Any], list[tuple[Any, ...]]]:
    """Return a function from an output row to records in the order of the columns. Raises ValueError or TypeError."""
    converters = {column.name: returned(column.kind, UTC) for column in columns_of(schema)}
    columns = [*converters]

    def records(row: Any) -> list[tuple[Any, ...]]:
        found = _named(row)
        if isinstance(found, tuple):
            if len(found) != len(columns):
                raise ValueError(f"The row {row!r:.200} has {len(found)} values for the columns {columns}.")
            found = dict(zip(columns, found, strict=True))
        if not isinstance(found, dict):
            raise TypeError(f"A processor must return an iterator of Rows, but it contains {row!r:.200}.")
        if not found.keys() <= converters.keys():
            raise ValueError(f"The row {row!r:.200} has {[*found]}, not the columns {columns}.")
        return [tuple([call(found.get(name)) for name, call in converters.items()])]

    return records


def frame_outputs(schema: str, zone: tzinfo) -> Callable[[Any], list[tuple[Any, ...]]]:
    """Return a function from a DataFrame of pandas to records. Raises ValueError or TypeError."""
    columns = columns_of(schema)
    names = [column.name for column in columns]

    def records(frame: Any) -> list[tuple[Any, ...]]:
        from pandas import DataFrame

        if not isinstance(frame, DataFrame):
            raise TypeError(f"A processor must return an iterator of pandas.DataFrame, but it contains {frame!r:.200}.")
        if frame.shape == (0, 0):  # DataFrame() has no columns
            return []
        if any(isinstance(name, str) for name in frame.columns):
            if sorted(map(str, frame.columns)) != sorted(names):
                raise ValueError(f"The DataFrame has the columns {[*frame.columns]}, not {names}.")
            frame = frame[names]
        elif len(frame.columns) != len(names):
            raise ValueError(f"The DataFrame has {len(frame.columns)} columns, not {names}.")
        found = [_column(frame.iloc[:, place], column.kind, zone) for place, column in enumerate(columns)]
        return [*zip(*found, strict=True)]

    return records


def _column(series: Any, kind: Any, zone: tzinfo) -> list[Any]:
    """Return the values of a column of pandas, with None for missing ones and ints for whole numbers of an int column.

    pandas has floats where an int is missing.
    """
    convert, made = returned(kind, zone), []
    for value, is_missing in zip(series.astype(object), series.isna(), strict=True):
        found = None if is_missing else convert(value)
        if isinstance(found, float) and isinstance(kind, str) and kind in INTS and found.is_integer():
            found = int(found)
        made.append(found)
    return made
