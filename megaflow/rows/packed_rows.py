"""Rows packed column by column. They travel in this form from an executor to a worker, which keeps them or stores them.

1. A pack contains all that a reader needs: the name of the rows' input, and their Spark schema as JSON. So a worker
   that joined later, or a job that resumes from a checkpoint, can read it without further messages and without Arrow.
2. Its values are plain. A timestamp is an int of microseconds since 1970-01-01 in UTC; without a time zone, since that
   date on its own clock. A date is an int of days since then, and a nested row a tuple. The column's type in the schema
   determines the unit.
3. A pack of a whole batch (see `spark_commits`) also has the batch's times, in its schema. Then a record is a pair of
   the times, as a tuple, and the row.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from megaflow.errors import ProtocolError
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

UNITS = {"timestamp": "microseconds", "timestamp_ntz": "microseconds", "date": "days"}  # since 1970-01-01


class Column(NamedTuple):
    """A column of a frame."""

    name: str
    kind: Any  # as in Spark's JSON: a name such as "long", or a dict

    @property
    def unit(self) -> str | None:
        """The unit of its ints; None if its type has none."""
        return UNITS.get(self.kind) if isinstance(self.kind, str) else None


class RowPack(NamedTuple):
    """Rows of one input, by column."""

    input: str  # its name
    schema: str  # as in `StructType.json`
    columns: list[list[Any]]  # at least one, all of one length

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.columns[0])

    def rest(self, start: int) -> "RowPack":
        """Return the rows from number `start` on."""
        return self._replace(columns=[column[start:] for column in self.columns])


class BatchTimes(NamedTuple):
    """Times of a batch of Spark."""

    number: int
    processing_ms: int  # when Spark began it
    watermark_ms: int  # of this batch; 0 in a query without a watermark
    late_ms: int  # of the batch before, which decides whether a row is late


def with_times(schema: str, times: BatchTimes) -> str:
    """Return a schema with the times of a batch.

    >>> schema = with_times('{"type": "struct", "fields": []}', BatchTimes(3, 2000, 1000, 0))
    >>> times_of(schema), columns_of(schema), times_of("{}")
    (BatchTimes(number=3, processing_ms=2000, watermark_ms=1000, late_ms=0), (), None)
    """
    return json.dumps({**json.loads(schema), "batch": times})


def pack_rows(pack: RowPack) -> bytes:
    """Return rows as bytes. Raises CannotTravel. Cost: linear, without Python code per plain value."""
    return encode((pack.input, pack.schema, *pack.columns))


def unpack_rows(data: bytes) -> RowPack:
    """Return the rows of a pack. Raises ProtocolError for any other bytes.

    >>> unpack_rows(pack_rows(RowPack("orders", "{}", [[1, 2], ["a", None]])))
    RowPack(input='orders', schema='{}', columns=[[1, 2], ['a', None]])
    """
    match decode(data):
        case (str() as name, str() as schema, list() as first, *others):
            if all(type(each) is list and len(each) == len(first) for each in others):
                return RowPack(name, schema, [first, *others])
    raise ProtocolError(f"cannot decode {len(data)} received bytes as rows")


@lru_cache(maxsize=64)
def columns_of(schema: str) -> tuple[Column, ...]:
    """Return the columns that a schema names.

    >>> columns_of('{"type": "struct", "fields": [{"name": "at", "type": "timestamp"}]}')[0].unit
    'microseconds'
    """
    return tuple(Column(field["name"], field["type"]) for field in json.loads(schema)["fields"])


@lru_cache(maxsize=64)
def times_of(schema: str) -> BatchTimes | None:
    """Return the times that `with_times` has added to a schema."""
    times = json.loads(schema).get("batch")
    return None if times is None else BatchTimes(*times)


def names_text(names: Sequence[str]) -> str:
    """Return names as part of a sentence.

    >>> names_text(["orders"]), names_text(["orders", "views"])
    ("'orders'", "'orders' and 'views'")
    """
    *first, last = map(repr, names)
    return f"{', '.join(first)} and {last}" if first else last
