"""Packs the rows of a frame: checks its columns in the driver, and encodes rows in Spark's executors.

A pack has about as many bytes as requested. The number of rows follows from the previous packs, starting with few,
because a row may be large.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from megaflow.errors import UsageError
from megaflow.quick_dataclass import dataclass
from megaflow.rows.packed_rows import BatchTimes, RowPack, columns_of, pack_rows, with_times
from megaflow.rows.row_values import Convert, leaving, stranger
from megaflow.spark.push import Parcel

ROWS_FIRST = 16
ROWS_MAX = 10_000
GROWTH = 8  # greatest growth from one pack to the next
EPOCH = "TIMESTAMP_NTZ'1970-01-01'"


@dataclass(frozen=True, slots=True)
class RowPacking:
    """Packs the rows of one input."""

    input: str
    schema: str  # of the frame, before its timestamps and dates became ints

    def in_batch(self, times: BatchTimes) -> "RowPacking":
        """Return the packing for a whole batch with these times."""
        return RowPacking(self.input, with_times(self.schema, times))

    def of_rows(self, rows: Iterable[Sequence[Any]], limit_bytes: int) -> Iterator[Parcel]:
        """Pack rows as they arrive. Reads only as many as it packs."""
        converters, rows, count = self._converters(), iter(rows), ROWS_FIRST
        while some := list(islice(rows, count)):
            piece = self._pack([*map(list, zip(*some, strict=True))], converters)
            yield piece
            count = next_count(piece, limit_bytes)

    def of_batches(self, batches: Iterable[Any], limit_bytes: int) -> Iterator[Parcel]:
        """Pack Arrow record batches."""
        converters, count = self._converters(), ROWS_FIRST
        for batch in batches:
            start = 0
            while start < batch.num_rows:
                some = batch.slice(start, count)
                piece = self._pack([column.to_pylist() for column in some.columns], converters)
                yield piece
                start, count = start + piece.lines, next_count(piece, limit_bytes)

    def _converters(self) -> list[Convert | None]:
        return [leaving(column.kind) for column in columns_of(self.schema)]

    def _pack(self, columns: list[list[Any]], converters: list[Convert | None]) -> Parcel:
        made = [[*map(call, each)] if call else each for call, each in zip(converters, columns, strict=True)]
        return Parcel(len(made[0]), pack_rows(RowPack(self.input, self.schema, made)), "")


def next_count(piece: Parcel, limit_bytes: int) -> int:
    """Return how many rows the pack after this one should have.

    >>> next_count(Parcel(16, b"12345678", ""), 1000), next_count(Parcel(16, b"12345678", ""), 4)
    (128, 8)
    """
    fitting = limit_bytes * piece.lines // len(piece.text)
    return max(1, min(fitting, GROWTH * piece.lines, ROWS_MAX))


def check_columns(name: str | None, frame: Any) -> None:
    """Raise UsageError if a frame has no columns, two columns of one name, or a column that cannot travel.

    `name` None: its user gave it no name, because it is the frame of a query.
    """
    fields, its = frame.schema.fields, "The DataFrame has" if name is None else f"The rows {name!r} have"
    if not fields:
        raise UsageError(f"{its} no columns.")
    names = [field.name for field in fields]
    for field in fields:
        if names.count(field.name) > 1:
            raise UsageError(f"{its} two columns {field.name!r}. Rename one of them by AS or alias.")
        if stranger(field.dataType.jsonValue()) is not None:
            cast = f"?select=CAST({field.name} AS STRING) AS {field.name}"
            if name is None:
                cast = f"frame.withColumn({field.name!r}, frame[{field.name!r}].cast('string'))"
            raise UsageError(
                f"{its} the column {field.name!r} of type {field.dataType.simpleString()}, which cannot be sent to a "
                f"worker. Leave it out, or cast it, as in {cast}"
            )


def plain_rows(name: str, frame: Any) -> tuple[Any, RowPacking]:
    """Return the frame as its batches are read, and its packing. Raises UsageError like `check_columns`.

    Timestamps and dates become ints in Java. This costs a fraction of the cost in Python, and Python's datetimes do not
    hold all of them.
    """
    check_columns(name, frame)
    kinds = [{"name": field.name, "type": field.dataType.jsonValue()} for field in frame.schema.fields]
    return with_ints(frame), RowPacking(name, json.dumps({"type": "struct", "fields": kinds}))


def with_ints(frame: Any) -> Any:
    """Return a frame with ints for timestamps and dates, also for nested ones."""
    return _with(frame, frame.schema, ints_for(frame.schema))


def with_timestamps(frame: Any, kind: Any) -> Any:
    """Return a frame of `ints_for(kind)` with the timestamps and dates of a StructType in place of ints."""
    return _with(frame, ints_for(kind), kind)


def ints_for(kind: Any) -> Any:
    """Return a type of Spark with types of ints for timestamps and dates, also for nested ones."""
    from pyspark.sql import types

    match kind.typeName():
        case "timestamp" | "timestamp_ntz":
            return types.LongType()
        case "date":
            return types.IntegerType()
        case "array":
            return types.ArrayType(ints_for(kind.elementType), kind.containsNull)
        case "map":
            return types.MapType(ints_for(kind.keyType), ints_for(kind.valueType), kind.valueContainsNull)
        case "struct":
            fields = kind.fields
            return types.StructType([types.StructField(each.name, ints_for(each.dataType)) for each in fields])
    return kind


def _with(frame: Any, kind: Any, wanted: Any) -> Any:
    """Return a frame of a StructType with the columns of another one, whose types differ as in `ints_for`."""
    from pyspark.sql import functions

    columns = []
    for before, after in zip(kind.fields, wanted.fields, strict=True):
        column = functions.col(f"`{before.name.replace('`', '``')}`")
        is_same = before.dataType.jsonValue() == after.dataType.jsonValue()
        columns.append(column if is_same else _changed(column, before.dataType, after.dataType).alias(before.name))
    return frame.select(*columns)


def _changed(column: Any, kind: Any, wanted: Any) -> Any:
    """Return a column of a type with the values of another type, which differs as in `ints_for`."""
    from pyspark.sql import functions, types

    match wanted.typeName():
        case "array":
            return functions.transform(column, lambda each: _changed(each, kind.elementType, wanted.elementType))
        case "map":
            keys, values = (kind.keyType, wanted.keyType), (kind.valueType, wanted.valueType)
            column = functions.transform_values(column, lambda _, each: _changed(each, *values))
            return functions.transform_keys(column, lambda key, _: _changed(key, *keys))
        case "struct":
            # By place: names of fields may differ only in case, which Spark's getField does not see.
            places = [types.StructField(f"_{place}", each.dataType) for place, each in enumerate(kind.fields)]
            row = column.cast(types.StructType(places))
            fields = [
                _changed(row[place.name], place.dataType, each.dataType).alias(each.name)
                for place, each in zip(places, wanted.fields, strict=True)
            ]
            return functions.when(column.isNotNull(), functions.struct(*fields))
    match kind.typeName(), wanted.typeName():
        case "timestamp", "long":
            return functions.unix_micros(column)
        case "date", "integer":
            return functions.unix_date(column)
        case "timestamp_ntz", "long":  # a cast to TIMESTAMP would move times that the session's time zone skips
            length = (column - functions.expr(EPOCH)).cast("interval second")
            return (length.cast("decimal(20, 6)") * 1_000_000).cast("long")
        case "long", "timestamp":
            return functions.timestamp_micros(column)
        case "integer", "date":
            return functions.date_from_unix_date(column)
        case "long", "timestamp_ntz":
            return functions.timestamp_add("MICROSECOND", column, functions.expr(EPOCH))
    return column
