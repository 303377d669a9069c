"""The source of a job's lines: files, which the workers read; lines that the launcher reads; a Spark query.

The launcher reads standard input or an iterable (see `megaflow.job.launcher.line_reader`). A job has either lines
without a name, or named inputs of lines, each of which follows the same rules.
"""

import contextlib
import difflib
import glob
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain
from typing import Any, TypeAlias

from megaflow.control.messages import Split
from megaflow.control.packed_rows import names_text
from megaflow.errors import SourceError, UsageError
from megaflow.job.launcher.file_lines import FileLines
from megaflow.job.launcher.line_options import options_meant, split_options
from megaflow.job.launcher.pulled_source import PulledItems, PulledLines, is_pulled
from megaflow.job.splits import find_files, plan_splits
from megaflow.quick_dataclass import dataclass
from megaflow.spark.preflight import local_files
from megaflow.spark.query_spec import (
    ORDERED,
    UNORDERED,
    RowFrames,
    SparkSpec,
    parse_row_specs,
    parse_spark_spec,
    spark_spec_of,
)
from megaflow.spark.row_packing import check_columns

STDIN = 0
SIMILAR = 0.85  # of 1: of names with letters exchanged, left out or doubled, but not of a.txt and b.txt
ONLY_ITEMS = "items"  # what those are called that are given without a name
BARE = "if the first part of a path has a =, write ./NAME=…"


PushedLines: TypeAlias = FileLines | PulledLines | PulledItems
"""Lines or items that the launcher reads and sends to the coordinator's process."""


@dataclass(frozen=True, slots=True)
class JobInput:
    """Where a job's lines come from: one of the three is given, or, if they have names, several may be."""

    splits: tuple[Split, ...] = ()
    pushed: Mapping[str, PushedLines] = field(default_factory=dict)  # by the name of the input; "": it has none
    spark: SparkSpec | RowFrames | Any | None = None  # or a streaming DataFrame, of lines
    rows: tuple[str, ...] = ()  # the names of the inputs of rows
    lines: tuple[str, ...] = ()  # and of those of lines and items; none: there are only lines, without a name
    items: tuple[str, ...] = ()  # those of these that are of items
    followed: tuple[tuple[str, str, str], ...] = ()  # name, pattern, encoding
    ordered: tuple[str, ...] = ()  # inputs of lines, "" without a name, whose files are begun in the order of names
    unordered: tuple[str, ...] = ()  # inputs of lines, likewise, whose files are cut
    is_given: bool = True  # whether there is an input at all: a program may read sources only

    @property
    def spark_queries(self) -> int:
        """How many queries of Spark feed the job."""
        return 0 if self.spark is None else max(1, len(self.rows))


def find_rows(rows: Any) -> JobInput:
    """Return what a dict of names stands for, each with a specification `spark:FORMAT:PATH` or a DataFrame.

    Raises UsageError for what is neither, and for a frame with a column that cannot travel.
    """
    if not isinstance(rows, Mapping) or not rows:
        raise UsageError(f'rows must be a dict such as {{"orders": frame}}, not {rows!r:.80}.')
    frames = {}
    for name, frame in rows.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise UsageError(f"rows: {name!r:.80} must be a name, as in flow.rows('orders').")
        if isinstance(frame, str):
            frame = parse_row_specs([f"{name}={frame}"])[name]
        elif hasattr(frame, "isStreaming"):
            check_columns(name, frame)
        elif not isinstance(frame, SparkSpec):
            raise UsageError(f"The rows {name!r} must be a DataFrame or 'spark:FORMAT:PATH', not {frame!r:.80}.")
        frames[name] = frame
    given = RowFrames(frames)
    return JobInput(spark=given, rows=given.names)


def find_items(items: Any, lines: JobInput) -> JobInput:
    """Return what items stand for, beside these lines: a dict of names, or only some. Raises UsageError."""
    given = items if isinstance(items, Mapping) else {ONLY_ITEMS: items}
    if not given:
        raise UsageError("items is an empty dict. Give an input for each name that the dataflow reads.")
    if lines.spark is not None or (not lines.lines and (lines.splits or lines.pushed)):
        raise UsageError(
            'To combine lines with items, give the lines names, as in lines={"orders": …}. Spark\'s lines '
            "cannot be combined with items."
        )
    for name, each in given.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise UsageError(f"items: {name!r:.80} must be a name, as in flow.items('clicks').")
        if name in lines.lines:
            raise UsageError(f"lines and items both have the name {name!r}. Rename one of them.")
        if isinstance(each, str | bytes | Mapping) or not is_pulled(each):
            raise UsageError(
                "items must be an iterable, an async iterable, a queue, or a dict of these by name, not "
                f"{each!r:.80} ({type(each).__name__})."
            )
    return replace(
        lines,
        pushed={**lines.pushed, **{name: PulledItems(each) for name, each in given.items()}},
        lines=tuple(sorted((*lines.lines, *given))),
        items=tuple(sorted(given)),
    )


def find_input(lines: Any, workers: int, encoding_errors: str, rows: Any = None, items: Any = None) -> JobInput:
    """Return what a specification, an iterable of str or a streaming DataFrame stands for; or `rows`: see `find_rows`.

    A specification is `-` (standard input), `spark:FORMAT:PATH`, or a file, directory or glob, each file of which is
    read by one worker, in order; with `?unordered` behind it by several; with `?ordered-by=name` they are begun in the
    order of their names, and each has nothing that is earlier than the first record of one before. `?encoding=latin-1`
    names the encoding of the text. A dict has one of these for each name. None is for a program that reads sources
    only. Raises UsageError for what is neither, and SourceError for missing files and for files that have no lines.
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
        return JobInput(is_given=False)
    if isinstance(lines, Mapping):
        return find_named(lines, workers, encoding_errors)
    if isinstance(lines, str) and lines.startswith("spark:"):
        return JobInput(spark=parse_spark_spec(lines))
    if isinstance(lines, str | os.PathLike):
        path, options = split_options(os.fspath(lines))
        if path == "-" and isinstance(lines, str):
            return JobInput(pushed={"": FileLines(STDIN, "standard input", encoding_errors, options.encoding)})
        order, one, none = options.order, ("",), ()
        splits = tuple(plan_splits(_find_files(path), workers if order == UNORDERED else None, options.encoding))
        return JobInput(
            splits=splits, ordered=one if order == ORDERED else none, unordered=one if order == UNORDERED else none
        )
    if hasattr(lines, "isStreaming"):
        return JobInput(spark=lines)
    if is_pulled(lines) and not isinstance(lines, bytes):
        return JobInput(pushed={"": PulledLines(lines)})
    raise UsageError(
        "lines must be a specification such as 'books/*.txt', an iterable of str, a streaming DataFrame, or a "
        f"dict of these by name, not {lines!r:.80} ({type(lines).__name__})."
    )


def find_named(lines: Mapping[Any, Any], workers: int, encoding_errors: str) -> JobInput:
    """Return what inputs of lines stand for, by name. Raises what `find_input` does, and UsageError for wrong names."""
    if not lines:
        raise UsageError("lines is an empty dict. Give an input for each name that the dataflow reads.")
    found: dict[str, JobInput] = {}
    for name, each in lines.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise UsageError(f"lines: {name!r:.80} must be a name, as in flow.lines('orders').")
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
    return JobInput(
        tuple(replace(split, number=number) for number, split in enumerate(splits)),
        {name: each for name, one in found.items() for each in one.pushed.values()},
        lines=tuple(sorted(found)),
        ordered=tuple(name for name, one in found.items() if one.ordered),
        unordered=tuple(name for name, one in found.items() if one.unordered),
    )


def parse_line_specs(given: Sequence[str]) -> str | dict[str, str]:
    """Return what `--lines` says: one specification, or several by name, each NAME=SPEC. Raises UsageError.

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
    """Do what `find_files` does; if there is none, ask whether an option, or a file with a similar name, was meant."""
    try:
        return find_files(path)
    except SourceError as error:
        if meant := options_meant(path):
            raise SourceError(f"{error} Did you mean {meant!r}?") from None
        if spec := spark_spec_of(path):
            raise SourceError(f"{error} Did you mean {spec!r}?") from None
        folder, name = os.path.split(path)
        if near := difflib.get_close_matches(name, glob.glob("*", root_dir=folder or None), n=1, cutoff=SIMILAR):
            raise SourceError(f"{error} Did you mean {os.path.join(folder, near[0])!r}?") from None
        raise


def files_read(lines: str | Collection[str | SparkSpec]) -> Iterator[str | int]:
    """Yield the files of this machine that specifications stand for, by name; standard input by its number."""
    if not isinstance(lines, str):
        yield from chain.from_iterable(files_read(e) if isinstance(e, str) else local_files(e) for e in lines)
        return
    path, _ = split_options(lines)
    if path == "-":
        yield STDIN
    elif lines.startswith("spark:"):
        yield from local_files(parse_spark_spec(lines))
    else:
        with contextlib.suppress(SourceError):  # there is none yet
            yield from _find_files(path)
