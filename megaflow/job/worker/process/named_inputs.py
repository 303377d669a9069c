"""The inputs of a job by name, of lines or of rows, and the form in which its program takes the rows.

The inputs that a job was given and those that its program reads must have the same names. Each worker checks this after
it has built its dataflow, before it reads anything. Lines may have no name: then they are the only input. Rows arrive
packed (`megaflow.rows.packed_rows`) and are unpacked here when they are taken.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from operator import itemgetter
from typing import Any

from megaflow.connect.source_protocol import Source
from megaflow.errors import BuildError, SourceError, UsageError
from megaflow.job.files.file_descriptors import FileDescriptors
from megaflow.job.files.followed_files import FollowedFiles
from megaflow.job.formats.record_format import LINES, RecordFormat
from megaflow.job.formats.text_encoding import ReplacedBytes
from megaflow.program import Worker
from megaflow.quick_dataclass import dataclass
from megaflow.rows.packed_rows import RowPack, columns_of, names_text, times_of, unpack_rows
from megaflow.rows.row_values import as_datetimes
from megaflow.timely.communication.codec.user_types import is_named_tuple
from megaflow.timely.dataflow.argument_checks import function as check_function

TIMESTAMPS = ("micros", "datetime")
BARE = "if the first part of a path has a =, write ./NAME=…"


@dataclass(frozen=True, slots=True)
class RowShape:
    """The form of rows: the type of a row, and whether timestamps and dates are datetimes."""

    kind: type = tuple  # tuple, dict or a NamedTuple
    timestamps: str = "micros"

    def records(self, pack: RowPack) -> list[Any]:
        """Return the rows, of a whole batch with its times. Raises the errors of `_rows`."""
        times = times_of(pack.schema)
        if times is None:
            return self._rows(pack)
        plain = tuple(times)
        return [(plain, row) for row in self._rows(pack)]

    def _rows(self, pack: RowPack) -> list[Any]:
        """Return the rows. Raises SourceError if the fields of the NamedTuple differ from the columns, or for a value.

        It is a value that no datetime can hold.
        """
        names = tuple(column.name for column in columns_of(pack.schema))
        columns = as_datetimes(pack) if self.timestamps == "datetime" else pack.columns
        rows = zip(*columns, strict=True)
        if self.kind is tuple:
            return [*rows]
        if self.kind is dict:
            return [dict(zip(names, row)) for row in rows]
        if (fields := self.kind._fields) == names:  # type: ignore[attr-defined]
            return [*map(self.kind._make, rows)]  # type: ignore[attr-defined]
        if sorted(fields) != sorted(names):
            raise SourceError(
                f"The rows {pack.input!r} have the columns {', '.join(names)}, but {self.kind.__qualname__} has "
                f"the fields {', '.join(fields)}. Make the fields match, or choose columns, as in "
                f"?select={','.join(fields)}."
            )
        in_order = itemgetter(*map(names.index, fields))
        return [*map(self.kind._make, map(in_order, rows))]  # type: ignore[attr-defined]


def shape_of(name: str, kind: Any, timestamps: str) -> RowShape:
    """Return the form of rows that `flow.rows(name, …)` requests. Raises UsageError.

    >>> shape_of("orders", "dict", "datetime")
    RowShape(kind=<class 'dict'>, timestamps='datetime')
    """
    kind = {"tuple": tuple, "dict": dict}.get(kind, kind) if isinstance(kind, str) else kind
    if kind is not tuple and kind is not dict and not (isinstance(kind, type) and is_named_tuple(kind)):
        raise UsageError(
            f"flow.rows({name!r}): as_ must be tuple, dict or one of the program's NamedTuples with a field for "
            f"each column, not {kind!r:.80}."
        )
    if timestamps not in TIMESTAMPS:
        raise UsageError(f"flow.rows({name!r}): timestamps must be 'micros' or 'datetime', not {timestamps!r:.80}.")
    return RowShape(kind, timestamps)


@dataclass(eq=False)
class SkippedLines:
    """Records that one worker could not parse and left out, as the program wants. One writer: the worker."""

    tell: Callable[[str, str], None] = lambda about, text: None  # the input, and its first fault
    counts: dict[str, int] = field(default_factory=dict)  # input -> faults; "": the only one, without a name
    others: dict[str, dict[str, int]] = field(default_factory=dict)  # kind of remark -> input -> count

    def note(self, input: str, text: Callable[[], str]) -> None:
        """Count a fault; `text` describes it, and is called only for the first fault of each input."""
        if input not in self.counts:
            left_out = "it is skipped like all records that cannot be parsed; control status counts them"
            self.tell(f"lines of {input!r}", f"{text()}; {left_out}")
        self.counts[input] = self.counts.get(input, 0) + 1

    def count(self, input: str, kind: str, count: int, text: Callable[[], str] | None = None) -> None:
        """Add to the count of a kind of remark: see `record_format`."""
        counts = self.others.setdefault(kind, {})
        if text is not None and input not in counts:
            self.tell(f"{kind} of {input!r}", text())
        counts[input] = counts.get(input, 0) + count


@dataclass(eq=False)
class NamedInputs:
    """The inputs of one worker. One writer: the code that builds its dataflow."""

    rows: Sequence[str] | None = ()  # names of the job's inputs of rows; None: unknown, any are possible
    lines: Sequence[str] | None = ()  # names of the inputs of lines; if both are empty, its lines, if any, have no name
    items: Sequence[str] | None = ()  # those of `lines` that are of items; None: unknown, any are possible
    skipped: SkippedLines = field(default_factory=SkippedLines)  # records that were left out
    followed: Mapping[str, Callable[[RecordFormat], FollowedFiles]] = field(default_factory=dict)
    """Input of lines whose files are followed, "" the only one without a name -> builds its reader for a format."""
    unordered: Sequence[str] = ()  # inputs of lines, "" the only one, whose files are split among workers
    has_input: bool = True  # whether the job was given an input
    shapes: dict[str, RowShape] = field(default_factory=dict)  # of the inputs of rows that the program reads
    read_lines: list[str] = field(default_factory=list)  # names of the inputs of lines that the program reads
    sources: set[str] = field(default_factory=set)  # names of the sources that the program reads by `flow.read`
    formats: dict[str, RecordFormat] = field(default_factory=dict)  # input of lines that is parsed -> its format
    plain: RecordFormat = LINES  # of the inputs of lines that are not parsed; all formats have its limit

    @property
    def are_several(self) -> bool:
        """Whether each batch must carry the name of its input."""
        return len(self.rows or ()) + len(self.lines or ()) > 1

    def are_cut(self, name: str) -> bool:
        """Return whether the records of this input are taken out of batches of several inputs.

        If the job's inputs are not known, each input with a name has an operator of its own.
        """
        return self.are_several or (bool(name) and self.rows is None and self.lines is None)

    def only(self) -> str:
        """Return the name of the only input of rows. Raises BuildError if there are several, or none."""
        names = ("rows",) if self.rows is None else self.rows
        if len(names) != 1:
            given = f"rows {names_text(names)}" if names else "no rows"
            raise BuildError(
                f"flow.rows() without a name needs a job with one input, but this job was given {given}. Name one of "
                "them."
            )
        return names[0]

    def read(self, name: Any, shape: RowShape) -> None:
        """Note that the program reads an input of rows. Raises BuildError or UsageError."""
        if self.rows is not None and name not in self.rows:
            given = f"rows {names_text(self.rows)}" if self.rows else "no rows"
            given += f", but {self._given()}" if self.lines else ""
            raise BuildError(
                f"The dataflow reads the rows {name!r}, but the job was given {given}. Bind them by --rows "
                f"{name}=spark:FORMAT:PATH or rows={{{name!r}: frame}}."
            )
        if self.shapes.setdefault(name, shape) != shape:
            raise UsageError(f"flow.rows({name!r}) is called twice with different arguments. Use the same ones.")

    def read_as_lines(self, name: Any) -> None:
        """Note that the program reads an input of lines; None: the only one. Raises BuildError."""
        if not self.has_input:
            reads, hint = ("lines", "PATH") if name is None else (f"the lines {name!r}", f"{name}=PATH")
            raise BuildError(f"The dataflow reads {reads}, but the job was given none. Give --lines {hint}.")
        if self.rows:
            reads = "lines" if name is None else f"the lines {name!r}"
            raise BuildError(
                f"The dataflow reads {reads}, but the job was given the rows {names_text(self.rows)}. Read them "
                f"by flow.rows({self.rows[0]!r}), or give lines."
            )
        if name is None and self.items and not self._named_lines():
            hint = repr(self.items[0]) if len(self.items) > 1 else ""
            raise BuildError(
                "The dataflow reads lines, by flow.lines() or a format, but the job was given items. Read them by "
                f"flow.items({hint}), or give lines= in place of items=."
            )
        if name is None and self.lines:
            raise BuildError(
                f"The dataflow reads lines without a name, by flow.lines(), but the job was given {self._given()}. "
                f"Read them by flow.lines({self._named_lines()[0]!r}), or give --lines PATH alone ({BARE})."
            )
        if name is not None and self.lines is not None and name not in self.lines:
            given = self._given() if self.lines else "no named lines"
            raise BuildError(
                f"The dataflow reads the lines {name!r}, but the job was given {given}. Bind them by --lines "
                f"{name}=PATH or lines={{{name!r}: …}}."
            )
        if (name or "") in (self.items or ()):
            raise BuildError(
                f"The dataflow reads the lines {name!r}, but the job was given items of this name. Read them by "
                f"flow.items({name!r})."
            )
        self.read_lines.append(name)

    def _named_lines(self) -> list[str]:
        return [name for name in self.lines or () if name not in (self.items or ())]

    def _given(self) -> str:
        """Return a text that lists the named inputs of the job."""
        kinds = {"lines": self._named_lines(), "items": self.items, "rows": self.rows}
        return " and ".join(f"the {kind} {names_text(names)}" for kind, names in kinds.items() if names)

    def parse(self, name: str, format: RecordFormat) -> None:
        """Note the format in which the program parses an input of lines. Raises BuildError."""
        what = f"The input {name!r}" if name else "The input"
        if format.uncut and name in self.unordered:
            raise BuildError(f"{what} has ?unordered. {format.uncut}")
        if format.unfollowed and name in self.followed:
            raise BuildError(f"{what} is followed. {format.unfollowed}")
        self.formats[name] = format

    def read_items(self, name: Any) -> str:
        """Note that the program reads an input of items, None: the only one; return its name. Raises BuildError.

        >>> NamedInputs(lines=("clicks", "orders"), items=("clicks",)).read_items(None)
        'clicks'
        """
        if name is None and self.items is not None and len(self.items) == 1:
            [name] = self.items
        elif self.items is not None and name not in self.items:
            reads = "items without a name, by flow.items()" if name is None else f"the items {name!r}"
            given = "none" if not self.lines and not self.rows else self._given()
            fix = f"Give them by megaflow.start(dataflow, items={{{name or 'name'!r}: …}}) or megaflow.run."
            if name is None and self.items:
                fix = f"Read each by its name, as in flow.items({self.items[0]!r})."
            raise BuildError(f"The dataflow reads {reads}, but the job was given {given}. {fix}")
        self.read_lines.append(name)
        return name or "items"

    def read_source(self, source: object, name: Any) -> None:
        """Note the name under which the program reads a source. Raises BuildError."""
        if not isinstance(name, str) or not name.isidentifier():
            raise BuildError(f"flow.read(…, {name!r:.80}): The name must be an identifier, such as 'orders'.")
        if isinstance(source, type) or not isinstance(source, Source):
            lacks = [method for method in ("discover", "open") if not callable(getattr(source, method, None))]
            why = f"which has no {' and no '.join(lacks)}" if lacks else "which is a class; create an instance of it"
            raise BuildError(
                f"flow.read({source!r:.80}, {name!r}): Give a megaflow.connect.Source, not this object, {why}."
            )
        for method in ("discover", "open"):
            check_function(f"flow.read(…, {name!r})", getattr(source, method), f"the source's method {method}")
        if name in self.sources:
            raise BuildError(f"flow.read(…, {name!r}) is called twice. Read the source once and use the stream twice.")
        if name in (*(self.rows or ()), *(self.lines or ())):
            what = "rows" if name in (self.rows or ()) else "items" if name in (self.items or ()) else "lines"
            raise BuildError(f"flow.read(…, {name!r}): The job was also given the {what} {name!r}. Rename one of them.")
        self.sources.add(name)

    def check_read(self) -> None:
        """Raise BuildError if the job was given an input that the program does not read."""
        if "" in self.followed and not self.read_lines:
            raise BuildError("The dataflow function never calls flow.lines(), so its lines would never be read.")
        what = "lines" if self.lines else "rows"
        given, read = (self.lines, self.read_lines) if self.lines else (self.rows, list(self.shapes))
        if unread := [name for name in given or () if name not in read]:
            what = "items" if self.items and {*unread} <= {*self.items} else what
            only = f"reads only {names_text([*dict.fromkeys(read)])}" if read else f"does not call flow.{what}"
            hint = f"; {BARE}" if what == "lines" else ""
            raise BuildError(
                f"The job was given the {what} {names_text(unread)}, but the dataflow {only}. Leave them out{hint}."
            )

    def unpack(self, data: bytes) -> tuple[str, list[Any]]:
        """Return the input's name and its rows in the wanted form. Raises ProtocolError or SourceError."""
        pack = unpack_rows(data)
        if pack.input not in self.shapes:
            raise SourceError(f"Rows {pack.input!r} arrived, but the dataflow reads {names_text(list(self.shapes))}.")
        return pack.input, self.shapes[pack.input].records(pack)


def followers(
    followed: Iterable[tuple[str, str, str]], errors: str, replaced: ReplacedBytes, tell: Callable[[str, str], None],
    worker: Worker, count: Callable[..., None], descriptors: FileDescriptors,
) -> dict[str, Callable[[RecordFormat], FollowedFiles]]:
    """Return the builders of readers for followed inputs, each given as its name, a pattern and an encoding."""

    def decides() -> bool:
        """Return whether this process coordinates the job. A process that joins is not in the table yet."""
        coordinator, processes = worker.membership.coordinator, worker.rescaling.processes.values()
        return coordinator == worker.index or any({coordinator, worker.index} <= {*ids} for _, _, ids in processes)

    make = partial(
        FollowedFiles, replaced=replaced, tell=tell, now=worker.now, descriptors=descriptors, decides=decides
    )
    return {
        name: partial(make, pattern, errors, input=name, encoding=encoding, count=partial(count, name))
        for name, pattern, encoding in followed
    }


def select_input(name: str) -> Callable[[tuple[str, list[Any]]], list[Any]]:
    """Return a function that takes the rows of one input out of batches of several."""
    return lambda batch: batch[1] if batch[0] == name else []
