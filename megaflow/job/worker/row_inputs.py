"""The inputs of rows that a job has, by name, and how its program wants their rows.

What a job is given and what its program reads must be the same names; each worker sees to that when it has built its
dataflow. Rows come packed (`megaflow.control.packed_rows`) and are unpacked here, when they are taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from megaflow.control.packed_rows import RowPack, columns_of, names_text, unpack_rows
from megaflow.control.row_values import arriving
from megaflow.errors import BuildError, SourceError, UsageError
from megaflow.timely.communication.codec.user_types import is_named_tuple

TIMESTAMPS = ("micros", "datetime")


@dataclass(frozen=True, slots=True)
class RowShape:
    """How rows are wanted: as what, and whether timestamps and dates as datetimes."""

    kind: type = tuple  # tuple, dict or a NamedTuple
    timestamps: str = "micros"

    def records(self, pack: RowPack) -> list[Any]:
        """Return the rows. Raises SourceError if the NamedTuple has other fields than there are columns."""
        names = tuple(column.name for column in columns_of(pack.schema))
        columns = pack.columns
        if self.timestamps == "datetime":
            converters = [arriving(column.kind) for column in columns_of(pack.schema)]
            columns = [[*map(call, each)] if call else each for call, each in zip(converters, columns, strict=True)]
        rows = zip(*columns, strict=True)
        if self.kind is tuple:
            return [*rows]
        if self.kind is dict:
            return [dict(zip(names, row)) for row in rows]
        if (fields := self.kind._fields) == names:  # type: ignore[attr-defined]
            return [*map(self.kind._make, rows)]  # type: ignore[attr-defined]
        if sorted(fields) != sorted(names):
            raise SourceError(
                f"the rows {pack.input!r} have the columns {', '.join(names)}, and {self.kind.__qualname__} has the "
                f"fields {', '.join(fields)}: give it those, or choose columns, as in ?select={','.join(fields)}"
            )
        in_order = itemgetter(*map(names.index, fields))
        return [*map(self.kind._make, map(in_order, rows))]  # type: ignore[attr-defined]


def shape_of(name: str, kind: Any, timestamps: str) -> RowShape:
    """Return how `flow.rows(name, …)` wants rows. Raises UsageError.

    >>> shape_of("orders", "dict", "datetime")
    RowShape(kind=<class 'dict'>, timestamps='datetime')
    """
    kind = {"tuple": tuple, "dict": dict}.get(kind, kind) if isinstance(kind, str) else kind
    if kind is not tuple and kind is not dict and not (isinstance(kind, type) and is_named_tuple(kind)):
        raise UsageError(
            f"flow.rows({name!r}): as_ must be tuple, dict or a NamedTuple of the program with a field for each "
            f"column, not {kind!r:.80}"
        )
    if timestamps not in TIMESTAMPS:
        raise UsageError(f"flow.rows({name!r}): timestamps must be 'micros' or 'datetime', not {timestamps!r:.80}")
    return RowShape(kind, timestamps)


@dataclass(eq=False)
class RowInputs:
    """The inputs of one worker. One writer: whoever builds its dataflow."""

    names: Sequence[str] | None = ()  # that the job was given; None: not known, any may be read
    shapes: dict[str, RowShape] = field(default_factory=dict)  # of those that the program reads

    @property
    def are_several(self) -> bool:
        """Whether a batch of records must say whose rows they are."""
        return len(self.names or ()) > 1

    def read(self, name: Any, shape: RowShape) -> None:
        """Note that the program reads an input. Raises BuildError or UsageError."""
        if self.names is not None and name not in self.names:
            given = f"rows {names_text(self.names)}" if self.names else "no rows"
            raise BuildError(
                f"the dataflow reads the rows {name!r}, and the job was given {given}: bind them by "
                f"--rows {name}=spark:FORMAT:PATH, or rows={{{name!r}: frame}}"
            )
        if self.shapes.setdefault(name, shape) != shape:
            raise UsageError(f"flow.rows({name!r}) is called twice, and wants other rows the second time")

    def check_read(self) -> None:
        """Raise BuildError if the job was given an input that the program does not read."""
        if unread := [name for name in self.names or () if name not in self.shapes]:
            read = f"reads only {names_text(list(self.shapes))}" if self.shapes else "calls flow.rows for none"
            raise BuildError(
                f"the job was given the rows {names_text(unread)}, and the dataflow {read}: leave them out"
            )

    def unpack(self, data: bytes) -> tuple[str, list[Any]]:
        """Return whose rows these are, and the rows as they are wanted. Raises ProtocolError or SourceError."""
        pack = unpack_rows(data)
        if pack.input not in self.shapes:
            raise SourceError(f"rows {pack.input!r} have come, and the dataflow reads {names_text(list(self.shapes))}")
        return pack.input, self.shapes[pack.input].records(pack)


def select_input(name: str) -> Callable[[tuple[str, list[Any]]], list[Any]]:
    """Return what takes the rows of one input out of batches of several."""
    return lambda batch: batch[1] if batch[0] == name else []
