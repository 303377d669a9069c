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
AS_NUMBERS = ("timestamp", "date")  # columns of these types arrive as ints


@dataclass(frozen=True, slots=True)
class RowPacking:
    """Packs the rows of one input."""

    input: str
    schema: str  # of the frame, before its timestamps and dates became numbers

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
        kinds = [column.kind for column in columns_of(self.schema)]
        return [None if isinstance(kind, str) and kind in AS_NUMBERS else leaving(kind) for kind in kinds]

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


def check_columns(name: str, frame: Any) -> None:
    """Raise UsageError if a frame has no columns, two columns of one name, or a column that cannot travel."""
    fields = frame.schema.fields
    if not fields:
        raise UsageError(f"The rows {name!r} have no columns.")
    names = [field.name for field in fields]
    for field in fields:
        if names.count(field.name) > 1:
            raise UsageError(f"The rows {name!r} have two columns {field.name!r}. Rename one of them by AS or alias.")
        if stranger(field.dataType.jsonValue()) is not None:
            raise UsageError(
                f"The rows {name!r} have the column {field.name!r} of type {field.dataType.simpleString()}, "
                f"which cannot be sent to a worker. Leave it out, or cast it, as in ?select=CAST({field.name} AS "
                f"STRING) AS {field.name}"
            )


def plain_rows(name: str, frame: Any) -> tuple[Any, RowPacking]:
    """Return the frame as its batches are read, and its packing. Raises UsageError like `check_columns`.

    Timestamps and dates become ints in Java, which costs a fraction of the cost in Python.
    """
    from pyspark.sql import functions

    check_columns(name, frame)
    numbers = {"timestamp": functions.unix_micros, "date": functions.unix_date}
    columns = []
    for field in frame.schema.fields:
        column = functions.col(f"`{field.name.replace('`', '``')}`")
        number = numbers.get(field.dataType.jsonValue()) if isinstance(field.dataType.jsonValue(), str) else None
        columns.append(column if number is None else number(column).alias(field.name))
    kinds = [{"name": field.name, "type": field.dataType.jsonValue()} for field in frame.schema.fields]
    return frame.select(*columns), RowPacking(name, json.dumps({"type": "struct", "fields": kinds}))
