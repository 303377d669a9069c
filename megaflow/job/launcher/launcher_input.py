"""Where a job's lines come from: files, which the workers read; lines that the launcher reads; a Spark query.

The launcher reads its standard input or an iterable (see `megaflow.job.launcher.line_reader`).

A path may be followed by `?` and an option. `?` is a character of globs and of file names, too, so what exists is taken
literally, and a last `?` begins an option only if the name of one follows.
"""

import difflib
import os
import select
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from megaflow.control.messages import Split
from megaflow.errors import SourceError, UsageError
from megaflow.job.launcher.wakeups import Wakeup
from megaflow.job.splits import LINE_BYTES_MAX, decode_lines, find_files, plan_splits, whole_lines
from megaflow.spark.preflight import local_files
from megaflow.spark.query_spec import (
    UNORDERED,
    RowFrames,
    SparkSpec,
    parse_row_specs,
    parse_spark_spec,
    spark_spec_of,
)
from megaflow.spark.row_packing import check_columns

BLOCK_BYTES = 64 * 1024
STDIN = 0


class TextSplitter:
    """Cuts a byte stream into lines as `megaflow.job.splits` cuts files.

    >>> splitter = TextSplitter("standard input")
    >>> splitter.feed(b"a\\r"), splitter.feed(b"\\nb\\nc"), splitter.end()
    ([], ['a', 'b'], ['c'])
    """

    def __init__(self, name: str, errors: str = "replace") -> None:
        self._name = name
        self._errors = errors
        self._parts: list[bytes] = []  # start a line, without any line end but perhaps a last \r
        self._parts_bytes = 0
        self._position = 0  # of the parts in the stream

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        if self._parts_bytes + len(data) > LINE_BYTES_MAX:
            raise SourceError(
                f"{self._name} has a line of more than {LINE_BYTES_MAX >> 20} MiB at byte {self._position}: is it text?"
            )
        self._parts.append(data)
        self._parts_bytes += len(data)
        if b"\n" not in data and b"\r" not in data and not self._parts[0].endswith(b"\r"):
            return []
        whole = b"".join(self._parts)
        length = whole_lines(whole, ends_line=False)
        return self._cut(whole, length)

    def end(self) -> list[str]:
        """Return the last line, if it has no end."""
        whole = b"".join(self._parts)
        return self._cut(whole, len(whole))

    def _cut(self, whole: bytes, length: int) -> list[str]:
        lines = decode_lines(whole[:length], self._errors, self._name, self._position)
        self._position += length
        self._parts = [whole[length:]] if length < len(whole) else []
        self._parts_bytes = len(whole) - length
        return lines


class FileLines:
    """Lines of an open file descriptor: a pipe, a terminal, a regular file. Does not close it."""

    def __init__(self, file: int, name: str, errors: str) -> None:
        self.done = False
        self._file = file
        self._name = name
        self._splitter = TextSplitter(name, errors)
        try:
            os.fstat(file)
        except OSError as error:
            raise SourceError(f"cannot read {name}: {error.strerror}") from error

    def wait(self, stopped: Wakeup) -> bool:
        """Wait until there is something to read, or its end; return False if `stopped` is woken."""
        poller = select.poll()
        poller.register(self._file, select.POLLIN)
        poller.register(stopped, select.POLLIN)
        return all(file != stopped.fileno() for file, _ in poller.poll())

    def read(self) -> list[str]:
        """Return the lines completed by one more block."""
        try:
            data = os.read(self._file, BLOCK_BYTES)
        except OSError as error:
            raise SourceError(f"cannot read {self._name}: {error.strerror}") from error
        if data:
            return self._splitter.feed(data)
        self.done = True
        return self._splitter.end()


@dataclass(frozen=True, slots=True)
class IterableLines:
    """An iterable of str, pulled only as far as needed."""

    lines: Iterable[Any]


def without_end(line: Any) -> str:
    """Return a line of an iterable without its end. Raises UsageError for what is no str.

    >>> without_end("a\\r\\n")
    'a'
    """
    if not isinstance(line, str):
        raise UsageError(f"lines must be an iterable of str, but one is {line!r:.80} ({type(line).__name__})")
    return line.removesuffix("\n").removesuffix("\r")


PushedLines: TypeAlias = FileLines | IterableLines
"""Lines that the launcher reads and sends to the coordinator's process."""


@dataclass(frozen=True, slots=True)
class JobInput:
    """Where a job's lines come from: exactly one of the three is given."""

    splits: tuple[Split, ...] = ()
    pushed: PushedLines | None = None
    spark: SparkSpec | RowFrames | Any | None = None  # or a streaming DataFrame, of lines
    rows: tuple[str, ...] = ()  # the names of the inputs of rows

    @property
    def spark_queries(self) -> int:
        """How many queries of Spark feed the job."""
        return 0 if self.spark is None else max(1, len(self.rows))


def find_rows(rows: Any) -> JobInput:
    """Return what a dict of names stands for, each with a specification `spark:FORMAT:PATH` or a DataFrame.

    Raises UsageError for what is neither, and for a frame with a column that cannot travel.
    """
    if not isinstance(rows, Mapping) or not rows:
        raise UsageError(f'rows must be a dict such as {{"orders": frame}}, not {rows!r:.80}')
    frames = {}
    for name, frame in rows.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise UsageError(f"rows: {name!r:.80} must be a name, as in flow.rows('orders')")
        if isinstance(frame, str):
            frame = parse_row_specs([f"{name}={frame}"])[name]
        elif hasattr(frame, "isStreaming"):
            check_columns(name, frame)
        elif not isinstance(frame, SparkSpec):
            raise UsageError(f"the rows {name!r} must be a DataFrame or 'spark:FORMAT:PATH', not {frame!r:.80}")
        frames[name] = frame
    given = RowFrames(frames)
    return JobInput(spark=given, rows=given.names)


def find_input(lines: Any, workers: int, encoding_errors: str, rows: Any = None) -> JobInput:
    """Return what a specification, an iterable of str or a streaming DataFrame stands for; or `rows`: see `find_rows`.

    A specification is `-` (standard input), `spark:FORMAT:PATH`, or a file, directory or glob, each file of which is
    read by one worker, in order; with `?unordered` behind it by several. Raises UsageError for what is neither and
    SourceError for missing files.
    """
    if rows is not None and lines is not None:
        raise UsageError("lines and rows do not go together: Spark reads lines as rows, too, by spark:text:FOLDER")
    if rows is not None:
        return find_rows(rows)
    if isinstance(lines, str) and lines.startswith("spark:"):
        return JobInput(spark=parse_spark_spec(lines))
    if isinstance(lines, str | os.PathLike):
        path, unordered = split_option(os.fspath(lines))
        if path == "-" and isinstance(lines, str):
            return JobInput(pushed=FileLines(STDIN, "standard input", encoding_errors))
        return JobInput(splits=tuple(plan_splits(_find_files(path), workers if unordered else None)))
    if hasattr(lines, "isStreaming"):
        return JobInput(spark=lines)
    if isinstance(lines, Iterable) and not isinstance(lines, bytes):
        return JobInput(pushed=IterableLines(lines))
    raise UsageError(
        f"lines must be a specification such as 'books/*.txt', an iterable of str "
        f"or a streaming DataFrame, not {lines!r:.80} ({type(lines).__name__})"
    )


def split_option(spec: str) -> tuple[str, bool]:
    """Return the path, and whether its option says that order does not matter.

    >>> split_option("books/*.txt?unordered"), split_option("books/?.txt")
    (('books/*.txt', True), ('books/?.txt', False))
    """
    path, mark, option = spec.rpartition("?")
    if mark and option == UNORDERED and not os.path.exists(spec):
        return path, True
    return spec, False


def _find_files(path: str) -> list[str]:
    """Do what `find_files` does; if there is none, ask whether an option was meant."""
    try:
        return find_files(path)
    except SourceError as error:
        body, mark, option = path.rpartition("?")
        if mark and difflib.get_close_matches(option.lower(), [UNORDERED]):
            raise SourceError(f"{error}; did you mean {f'{body}?{UNORDERED}'!r}?") from None
        if meant := spark_spec_of(path):
            raise SourceError(f"{error}; did you mean {meant!r}?") from None
        raise


def files_read(lines: str | Collection[SparkSpec]) -> Iterator[str | int]:
    """Yield the files of this machine that specifications stand for, by name; standard input by its number."""
    if not isinstance(lines, str):
        yield from chain.from_iterable(map(local_files, lines))
        return
    path, _ = split_option(lines)
    if path == "-":
        yield STDIN
    elif lines.startswith("spark:"):
        yield from local_files(parse_spark_spec(lines))
    else:
        yield from _find_files(path)
