"""A frame whose rows are to be fed, in the driver: whether its columns can travel, and what its tasks make of them."""

import json
from typing import Any

from megaflow.control.row_values import stranger
from megaflow.errors import UsageError
from megaflow.spark.row_packing import RowPacking


def check_columns(name: str, frame: Any) -> None:
    """Raise UsageError if a frame has no columns, two of one name, or one of a type that cannot travel."""
    fields = frame.schema.fields
    if not fields:
        raise UsageError(f"the rows {name!r} have no columns")
    names = [field.name for field in fields]
    for field in fields:
        if names.count(field.name) > 1:
            raise UsageError(
                f"the rows {name!r} have two columns {field.name!r}: give one another name, by AS or alias"
            )
        if stranger(field.dataType.jsonValue()) is not None:
            raise UsageError(
                f"the rows {name!r} have the column {field.name!r} of type {field.dataType.simpleString()}, which "
                f"cannot travel: leave it out, or cast it, as in ?select=CAST({field.name} AS STRING) AS {field.name}"
            )


def plain_rows(name: str, frame: Any) -> tuple[Any, RowPacking]:
    """Return what a frame's batches are read as, and what packs them. Raises as `check_columns` does.

    Timestamps and dates become ints in Java, which costs a fraction of what it would in Python.
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
