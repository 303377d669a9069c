"""The input of a job: files, which the workers read; lines or items that the launcher reads; Spark queries.

The launcher reads standard input and iterables (see `megaflow.job.launcher.inputs.line_reader`). A job has either lines
without a name or named inputs. The same rules apply to each input.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain
from typing import Any, TypeAlias

from megaflow.control.messages import InputNames, Split
from megaflow.durable.commits import Fingerprint
from megaflow.durable.incarnation import DurablePart
from megaflow.errors import SourceError, UsageError, similar
from megaflow.job.exit_report import KeptBins
from megaflow.job.files.splits import find_files, plan_splits
from megaflow.job.launcher.inputs.file_lines import FileLines
from megaflow.job.launcher.inputs.frame_rows import FrameRows, is_table
from megaflow.job.launcher.inputs.line_options import NATURAL, ORDERED, UNORDERED, options_meant, split_options
from megaflow.job.launcher.inputs.pulled_source import PulledItems, PulledLines, is_pulled
from megaflow.quick_dataclass import dataclass
from megaflow.rows.packed_rows import names_text
from megaflow.spark import launching

STDIN = 0
ONLY_ITEMS = "items"  # the name of items that are given without one
BARE = "if the first part of a path has a =, write ./NAME=…"


PushedLines: TypeAlias = FileLines | PulledLines | PulledItems
"""Lines or items that the launcher reads and sends to the coordinator's process."""


@dataclass(frozen=True, slots=True)
class JobInput:
    """The inputs of a job: one of `splits`, `pushed` and `spark`, or several if they have names."""

    splits: tuple[Split, ...] = ()
    pushed: Mapping[str, PushedLines] = field(default_factory=dict)  # by the name of the input; "": without a name
    spark: launching.SparkSpec | launching.RowFrames | Any | None = None  # Any: a streaming DataFrame of lines
    names: InputNames = InputNames()

    @property
    def spark_specs(self) -> tuple[launching.SparkSpec, ...]:
        """The sources that megaflow's own Spark session reads."""
        if self.spark is None:
            return ()
        given = self.spark.frames.values() if isinstance(self.spark, launching.RowFrames) else (self.spark,)
        return tuple(each for each in given if isinstance(each, launching.SparkSpec))

    @property
    def spark_queries(self) -> int:
        """The number of Spark queries that feed the job."""
        return 0 if self.spark is None else max(1, len(self.names.rows))


def check_names(kind: str, given: Mapping[Any, Any], example: str) -> None:
    """Raise UsageError for a dict of inputs that is empty, or has a key that cannot be the name of an input."""
    if not given:
        raise UsageError(f"{kind} is an empty dict. Give an input for each name that the dataflow reads.")
    for name in given:
        if not isinstance(name, str) or not name.isidentifier():
            raise UsageError(f"{kind}: {name!r:.80} must be a name, as in flow.{kind}({example!r}).")


@dataclass(frozen=True, slots=True)
class Resumption:
    """Everything with which a job begins."""

    job_input: JobInput  # still to be read
    part: DurablePart | None = None  # for the worker processes; None: not durable
    is_over: bool = False  # all lines were read, and there are no new ones
    code: Fingerprint | None = None  # of the program's files; None: not known
    kept: KeptBins = ()  # with which each worker begins, by id; empty: they are dealt in turn
    gone: str = ""  # text about workers that owned bins and are gone


def find_rows(rows: Any) -> JobInput:
    """Return the input for a dict from names to specifications `spark:FORMAT:PATH` or DataFrames, or for a RowFrames.

    Raises UsageError for other values, and for a frame with a column that cannot travel.
    """
    prepared = rows if isinstance(rows, launching.RowFrames) else None
    rows = rows if prepared is None else prepared.frames
    if not isinstance(rows, Mapping) or not rows:
        raise UsageError(f'rows must be a dict such as {{"orders": frame}}, not {rows!r:.80}.')
    frames = {}
    check_names("rows", rows, "orders")
    for name, frame in rows.items():
        if isinstance(frame, str):
            frame = launching.parse_row_specs([f"{name}={frame}"])[name]
        elif hasattr(frame, "isStreaming"):
            launching.check_columns(name, frame)
        elif not isinstance(frame, launching.SparkSpec):
            found = f"{frame!r:.80}."
            if is_table(frame):
                found = f"a table of another library ({type(frame).__name__}). Give it as items=, for its rows."
            raise UsageError(f"The rows {name!r} must be a DataFrame of Spark or 'spark:FORMAT:PATH', not {found}")
        frames[name] = frame
    if prepared is not None and prepared.first and not launching.is_a_batch(frames.get(prepared.first)):
        raise UsageError(f"The rows {prepared.first!r}, which come first, must be a batch DataFrame among the rows.")
    given = launching.RowFrames(frames) if prepared is None else replace(prepared, frames=frames)
    return JobInput(spark=given, names=InputNames(rows=given.names))


def find_items(items: Any, lines: JobInput) -> JobInput:
    """Return the input of `lines` together with items: one input of items, or a dict by name. Raises UsageError."""
    given = items if isinstance(items, Mapping) else {ONLY_ITEMS: items}
    check_names("items", given, "clicks")
    if lines.spark is not None or (not lines.names.lines and (lines.splits or lines.pushed)):
        raise UsageError(
            'To combine lines with items, give the lines names, as in lines={"orders": …}. Spark\'s lines '
            "cannot be combined with items."
        )
    for name, each in given.items():
        if name in lines.names.lines:
            raise UsageError(f"lines and items both have the name {name!r}. Rename one of them.")
        if isinstance(each, str | bytes | Mapping) or not (is_pulled(each) or is_table(each)):
            raise UsageError(
                "items must be an iterable, a table such as a DataFrame, an async iterable, a queue, or a dict of "
                f"these by name, not {each!r:.80} ({type(each).__name__}). {_item_remedy(each, given is items)}"
            )
    pulled = {name: PulledItems(FrameRows(each) if is_table(each) else each) for name, each in given.items()}
    names = replace(lines.names, lines=tuple(sorted((*lines.names.lines, *given))), items=tuple(sorted(given)))
    return replace(lines, pushed={**lines.pushed, **pulled}, names=names)


def _item_remedy(each: object, is_named: bool) -> str:
    """Return advice on what to give in place of an invalid input of items."""
    if isinstance(each, Mapping) or is_named:
        return "To send a dict as an item, give a list of dicts."
    if isinstance(each, str | bytes):
        return f"To send it as one item, give a list: items=[{each!r:.20}]. For text or files, use lines=."
    return "Collect it first, by .collect()." if hasattr(each, "collect") else "To send it as one item, give a list."


def find_input(lines: Any, workers: int, encoding_errors: str, rows: Any = None, items: Any = None) -> JobInput:
    """Return the input of a job.

    `lines` is one of:

    - a specification: `-` (standard input), `spark:FORMAT:PATH`, or a file, directory or glob;
    - an iterable of str, or a streaming DataFrame;
    - a dict from names to these;
    - None, for a program that reads only sources.

    One worker reads each file, in order. With `?unordered` after the path, several workers read it. With
    `?ordered-by=name`, files are begun in the order of their names, and no file may contain a record that is earlier
    than the first record of a file before it. With `?ordered-by=natural`, digits in these names count as numbers, so
    `part-2` is before `part-10`. `?encoding=latin-1` names the encoding of the text. `rows` and `items`:
    see `find_rows` and `find_items`. Raises UsageError for other values, and SourceError for missing files and for
    files without lines.
    """
    if rows is not None and lines is not None:
        raise UsageError("lines and rows cannot be combined. Let Spark also read the lines as rows: spark:text:FOLDER")
    if rows is not None and items is not None:
        raise UsageError(
            "rows and items cannot be combined. Turn the items into a DataFrame, or write Spark's rows to files."
        )
    if items is not None:
        return find_items(items, JobInput() if lines is None else find_input(lines, workers, encoding_errors))
    if rows is not None:
        return find_rows(rows)
    if lines is None:
        return JobInput(names=InputNames(is_given=False))
    if isinstance(lines, Mapping):
        return find_named(lines, workers, encoding_errors)
    if isinstance(lines, str) and lines.startswith("spark:"):
        return JobInput(spark=launching.parse_spark_spec(lines))
    if isinstance(lines, str | os.PathLike):
        path, options = split_options(os.fspath(lines))
        if path == "-" and isinstance(lines, str):
            return JobInput(pushed={"": FileLines(STDIN, "standard input", encoding_errors, options.encoding)})
        order, one, none = options.order, ("",), ()
        splits = tuple(plan_splits(_find_files(path), workers if order == UNORDERED else None, options.encoding))
        splits = tuple(replace(split, natural=order == NATURAL) for split in splits)
        is_ordered = order in (ORDERED, NATURAL)
        names = InputNames(ordered=one if is_ordered else none, unordered=one if order == UNORDERED else none)
        return JobInput(splits, names=names)
    if hasattr(lines, "isStreaming"):
        return JobInput(spark=lines)
    if is_table(lines):
        raise UsageError(f"lines must be text, not a table ({type(lines).__name__}). Give it as items=, for its rows.")
    if is_pulled(lines) and not isinstance(lines, bytes):
        return JobInput(pushed={"": PulledLines(lines)})
    raise UsageError(
        "lines must be a specification such as 'books/*.txt', an iterable of str, a streaming DataFrame, or a "
        f"dict of these by name, not {lines!r:.80} ({type(lines).__name__})."
    )


def find_named(lines: Mapping[Any, Any], workers: int, encoding_errors: str) -> JobInput:
    """Return the input for named lines. Raises the errors of `find_input`, and UsageError for invalid names."""
    check_names("lines", lines, "orders")
    found: dict[str, JobInput] = {}
    for name, each in lines.items():
        if isinstance(each, Mapping):
            raise UsageError(f"The lines {name!r} must be a specification or an iterable of str, not a dict.")
        try:
            found[name] = find_input(each, workers, encoding_errors)
        except SourceError as error:
            hint = f" ({name!r} names an input: {BARE})" if isinstance(each, str) else ""
            raise SourceError(f"Cannot read the lines {name!r}: {error}{hint}") from None
    if from_spark := [name for name, one in found.items() if one.spark is not None]:
        raise UsageError(
            f"The lines {names_text(from_spark)} come from Spark, whose named inputs are rows. Give them alone "
            f"by --rows {from_spark[0]}=spark:…, and read them by flow.rows({from_spark[0]!r})."
        )
    piped = [name for name, one in found.items() if isinstance(one.pushed.get(""), FileLines)]
    if len(piped) > 1:
        raise UsageError(f"The lines {names_text(piped)} all read standard input. Only one of them can.")
    splits = (replace(split, input=name) for name, one in found.items() for split in one.splits)
    names = InputNames(
        lines=tuple(sorted(found)),
        ordered=tuple(name for name, one in found.items() if one.names.ordered),
        unordered=tuple(name for name, one in found.items() if one.names.unordered),
    )
    return JobInput(
        tuple(replace(split, number=number) for number, split in enumerate(splits)),
        {name: each for name, one in found.items() for each in one.pushed.values()},
        names=names,
    )


def parse_line_specs(given: Sequence[str]) -> str | dict[str, str]:
    """Return the value of `--lines`: one specification, or several by name, each NAME=SPEC. Raises UsageError.

    >>> parse_line_specs(["books/a=b.txt"]), parse_line_specs(["./date=2026/x"]), parse_line_specs(["spark:text:a=b"])
    ('books/a=b.txt', './date=2026/x', 'spark:text:a=b')
    >>> parse_line_specs(["orders=o/*.csv?ordered-by=name", "payments=-"]), parse_line_specs(["a?ordered-by=name"])
    ({'orders': 'o/*.csv?ordered-by=name', 'payments': '-'}, 'a?ordered-by=name')
    """
    named: dict[str, str] = {}
    bare: list[str] = []
    for text in given:
        name, mark, rest = text.partition("=")
        if not mark or "/" in name or "?" in name or text.startswith("spark:"):
            bare.append(text)
            continue
        if not name.isidentifier():
            raise UsageError(
                f"--lines {text}: {name!r} cannot name an input. Use an identifier, as in --lines orders=PATH; {BARE}."
            )
        if name in named:
            raise UsageError(
                f"--lines {name}={named[name]} and --lines {text}: The lines {name!r} are given twice. To read "
                f"several files, name a folder or a quoted glob: --lines {name}='FOLDER/*'"
            )
        if not rest:
            raise UsageError(f"--lines {text}: The path is missing. Give {name}=PATH.")
        named[name] = rest
    if not named and len(bare) == 1:
        return bare[0]
    if bare:
        first, *others = [*bare, *(f"{name}={spec}" for name, spec in named.items())]
        raise UsageError(
            f"--lines {first} and --lines {others[0]}: Give only one of them. A folder or a quoted glob stands "
            "for several files. Several inputs need names: --lines orders=PATH --lines payments=PATH"
        )
    return named


def _find_files(path: str) -> list[str]:
    """Call `find_files`; if it finds none, suggest an option or a file with a similar name in the error."""
    try:
        return find_files(path)
    except SourceError as error:
        if error.__cause__ is not None:
            raise  # a folder cannot be searched
        if meant := options_meant(path):
            raise SourceError(f"{error} Did you mean {meant!r}?") from None
        if spec := launching.spark_spec_of(path):
            raise SourceError(f"{error} Did you mean {spec!r}?") from None
        folder, name = os.path.split(path)
        others = [each for each in glob.glob("*", root_dir=folder or None) if each != name]
        if near := similar(name, others):
            raise SourceError(f"{error} Did you mean {os.path.join(folder, near)!r}?") from None
        raise


def files_read(lines: str | Collection[str | launching.SparkSpec]) -> Iterator[str | int]:
    """Yield the names of files on this machine that specifications match; standard input as its descriptor."""
    if not isinstance(lines, str):
        yield from chain.from_iterable(files_read(e) if isinstance(e, str) else launching.local_files(e) for e in lines)
        return
    path, _ = split_options(lines)
    if path == "-":
        yield STDIN
    elif lines.startswith("spark:"):
        yield from launching.local_files(launching.parse_spark_spec(lines))
    else:
        with contextlib.suppress(SourceError):  # no file matches yet
            yield from find_files(path, closed=lambda folder, error: None)
