"""Rows packed column by column, as they travel from an executor to a worker and are kept there, or in a store.

1. A pack says all that is needed to read it: whose rows they are, and Spark's schema of them as JSON. So a worker that
   joined later, or a job that goes on from a checkpoint, needs to be told nothing else, and no Arrow.
2. Its values are plain: a timestamp is an int of microseconds since 1970-01-01 in UTC (one without a time zone, since
   that moment of its own clock), a date an int of days since then, a nested row a tuple. The unit is that of the
   column's type in the schema.
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
    kind: Any  # as Spark's JSON has it: a name such as "long", or a dict

    @property
    def unit(self) -> str | None:
        """What its ints count; None if that is not said by its type."""
        return UNITS.get(self.kind) if isinstance(self.kind, str) else None


class RowPack(NamedTuple):
    """Rows of one input, by column."""

    input: str  # its name
    schema: str  # as `StructType.json` writes it
    columns: list[list[Any]]  # of one length, one at least

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.columns[0])

    def rest(self, start: int) -> "RowPack":
        """Return the rows from the one of that number on."""
        return self._replace(columns=[column[start:] for column in self.columns])


def pack_rows(pack: RowPack) -> bytes:
    """Return rows as bytes. Raises CannotTravel. Cost: linear, no Python code runs for a plain value."""
    return encode((pack.input, pack.schema, *pack.columns))


def unpack_rows(data: bytes) -> RowPack:
    """Return what was packed. Raises ProtocolError for any other bytes.

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


def names_text(names: Sequence[str]) -> str:
    """Return names as a sentence has them.

    >>> names_text(["orders"]), names_text(["orders", "views"])
    ("'orders'", "'orders' and 'views'")
    """
    *first, last = map(repr, names)
    return f"{', '.join(first)} and {last}" if first else last
