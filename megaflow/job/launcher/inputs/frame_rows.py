"""Rows of tables that a program gives as items: DataFrames of pandas, and tables with the Arrow PyCapsule interface.

Each row is a dict from column name to value. The thread that pulls items makes the rows.

1. Nothing here imports a library of tables, except pyarrow for a table that only pyarrow can read.
2. A missing value (NaN, NaT, NA, null) is None for every library. So one test finds it, and it can be a key, which NaN
   cannot. In columns of floats NaN stays NaN, because it may also be the result of arithmetic.
3. Rows of pandas contain Timestamps and Timedeltas, with nanoseconds. Rows of other tables contain datetimes, times and
   timedeltas, which have no nanoseconds. So such a table is refused if nanoseconds would be lost. In a struct or list,
   nanoseconds are always refused.
4. A table with two columns of the same name is refused, because a dict has only one value for it. Pandas, pyarrow and
   DuckDB give the names before the job starts. Other tables are refused when their first row is read.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from importlib import import_module
from typing import Any, Final

from megaflow.errors import UsageError

ROWS_AT_ONCE: Final = 1000
PLAIN_KINDS: Final = "biufc"  # of numpy: NaN of floats stays, the others have no missing values


def is_table(value: object) -> bool:
    """Return whether a value is a table, whose rows are the items."""
    if is_pandas_frame(value):
        return True
    kind = type(value)
    is_arrow = hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__")
    return is_arrow and (hasattr(value, "columns") or hasattr(value, "schema") or not isinstance(value, Iterable))


def is_pandas_frame(value: object) -> bool:
    """Return whether a value is a DataFrame of pandas."""
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)
    return frame is not None and isinstance(value, frame)


class FrameRows:
    """Iterable of the rows of a table, each a dict by column."""

    def __init__(self, table: Any) -> None:
        """Raise UsageError for a table that cannot be read as rows."""
        self._table = table
        self._pyarrow: Any = None
        if is_pandas_frame(table):
            check_columns([*table.columns])
            return
        try:
            self._pyarrow = import_module("pyarrow")
        except ImportError:
            kind = type(table)
            raise UsageError(
                f"items: the rows of a {kind.__module__.partition('.')[0]} {kind.__name__} are read by pyarrow, which "
                "is not installed. Install megaflow[arrow], or give an iterable of rows."
            ) from None
        check_columns(names_of(table))

    def __iter__(self) -> Iterator[dict[Any, Any]]:
        if self._pyarrow is None:
            return rows_of_pandas(self._table)
        return rows_of_arrow(self._table, self._pyarrow)


def names_of(table: Any) -> list[Any]:
    """Return the names of the columns if an Arrow table gives them without being read; else none."""
    names = getattr(getattr(table, "schema", None), "names", None)
    if not isinstance(names, list):
        names = getattr(table, "columns", None)
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def check_columns(names: Sequence[Any]) -> None:
    """Raise UsageError for two columns of the same name, which a dict cannot hold."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UsageError(
            f"items: the table has several columns of the name {twice[0]!r}, and each row is a dict by columns. Rename "
            "these columns."
        )


def rows_of_pandas(frame: Any) -> Iterator[dict[Any, Any]]:
    """Yield the rows of a DataFrame, without its index."""
    names = [*frame.columns]
    for start in range(0, len(frame), ROWS_AT_ONCE):
        part = frame.iloc[start : start + ROWS_AT_ONCE]
        columns = [values_of_pandas(part.iloc[:, place]) for place in range(len(names))]
        yield from rows_of_columns(names, columns, len(part))


def values_of_pandas(column: Any) -> list[Any]:
    """Return the values of a Series in Python's types; times in the types of pandas."""
    values: list[Any] = column.tolist()
    if getattr(column.dtype, "kind", "") in PLAIN_KINDS and type(column.dtype).__module__.startswith("numpy"):
        return values
    missing = column.isna().tolist()
    return [None if gone else value for value, gone in zip(values, missing, strict=True)] if any(missing) else values


def rows_of_columns(names: Sequence[Any], columns: Sequence[Sequence[Any]], count: int) -> Iterator[dict[Any, Any]]:
    """Yield a dict for each row; there may be no columns."""
    if not columns:
        yield from ({} for _ in range(count))
    for row in zip(*columns, strict=True):
        yield dict(zip(names, row, strict=True))


def rows_of_arrow(table: Any, pyarrow: Any) -> Iterator[dict[Any, Any]]:
    """Yield the rows of a table with the Arrow PyCapsule interface. Raises UsageError if nanoseconds would be lost."""
    if hasattr(type(table), "__arrow_c_stream__"):
        batches = pyarrow.RecordBatchReader.from_stream(table)
        check_columns(batches.schema.names)
    else:
        batches = [pyarrow.record_batch(table)]
        check_columns(batches[0].schema.names)
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            part = batch.slice(start, ROWS_AT_ONCE)
            columns = [
                values_of_arrow(name, column, pyarrow)
                for name, column in zip(part.schema.names, part.columns, strict=True)
            ]
            yield from rows_of_columns(part.schema.names, columns, part.num_rows)


def values_of_arrow(name: str, column: Any, pyarrow: Any) -> list[Any]:
    """Return the values of an Arrow array in Python's types. Raises UsageError if nanoseconds would be lost."""
    kind = column.type
    if has_nanoseconds(kind):
        types = pyarrow.types
        if types.is_timestamp(kind):
            wanted = pyarrow.timestamp("us", kind.tz)
        else:
            wanted = pyarrow.duration("us") if types.is_duration(kind) else pyarrow.time64("us")
        try:
            if kind.num_fields:
                raise pyarrow.ArrowInvalid("within a struct or list")
            column = column.cast(wanted)
        except pyarrow.ArrowInvalid:
            raise UsageError(
                f"items: the column {name!r} of type {kind} has nanoseconds, which the times of Python cannot hold. "
                "Round its times to microseconds, or convert them to integers."
            ) from None
    values: list[Any] = column.to_pylist()
    return [*map(in_python_zone, values)] if pyarrow.types.is_timestamp(kind) and kind.tz is not None else values


def has_nanoseconds(kind: Any) -> bool:
    """Return whether an Arrow type has a unit of nanoseconds, itself or in a nested field."""
    fields = (kind.field(place) for place in range(kind.num_fields))
    return getattr(kind, "unit", "") == "ns" or any(has_nanoseconds(field.type) for field in fields)


def in_python_zone(value: datetime | None) -> datetime | None:
    """Return a datetime with a zone of Python, in place of pytz zones from older versions of pyarrow."""
    zone: Any = None if value is None else value.tzinfo
    if value is None or zone is None or type(zone).__module__.partition(".")[0] != "pytz":
        return value
    offset = value.utcoffset() or timedelta()
    return value.astimezone(import_module("zoneinfo").ZoneInfo(zone.zone) if zone.zone else timezone(offset))
