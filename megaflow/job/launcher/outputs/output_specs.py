"""The meaning of `--output`: SPEC for the stream that the dataflow function returns, NAME=SPEC for a named output.

SPEC is `-`, `none`, or begins with a word and a colon. So the text before a first `=` is a name if it has no colon. No
two outputs of a job may go to the same file or to standard output.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TextIO

from megaflow.errors import UsageError, similar
from megaflow.job.launcher.inputs.launcher_input import files_read
from megaflow.job.launcher.outputs.csv_file import CsvWriter
from megaflow.job.launcher.outputs.opened_output import STDOUT, STDOUT_NAMES, Mode
from megaflow.job.launcher.outputs.output_file import FileWriter, TextWriter, check_is_no_input, refusal
from megaflow.job.launcher.outputs.several_outputs import together
from megaflow.job.launcher.outputs.writer import NothingWriter, Writer
from megaflow.spark import launching as spark

COLUMNS: Final = re.compile(r"(.+)\?columns=(.*)", re.DOTALL)
KINDS: Final = "- (standard output), jsonl:PATH, csv:PATH, spark:FORMAT:PATH or none"


def parse_outputs(given: Iterable[str]) -> dict[str, str]:
    """Return the specifications that `--output` gives, by output name; "" is the returned stream. Raises UsageError.

    >>> parse_outputs(["late=jsonl:late=1.jsonl"]), parse_outputs(["csv:a=b.csv"])
    ({'': '-', 'late': 'jsonl:late=1.jsonl'}, {'': 'csv:a=b.csv'})
    """
    found: dict[str, str] = {}
    for text in given:
        name, mark, spec = text.partition("=")
        if not mark or ":" in name:
            name, spec = "", text
        elif not name.isidentifier():
            raise UsageError(
                f"--output {text}: {name!r} cannot name an output. Use an identifier, as in --output late=jsonl:PATH."
            )
        if name in found:
            other, hint = f"{name}={found[name]}" if name else found[name], "NAME=SPEC is for a named output"
            raise UsageError(f"--output {other} and --output {text}: Give only one of them; {hint}.")
        found[name] = spec
    return {"": "-", **found}


def open_outputs(
    given: Mapping[str, str | Writer],
    lines: str | Collection[str | spark.SparkSpec] = "-",
    mode: Mode = "new",
    open_results: Callable[[str, Mode], Writer] | None = None,
) -> Writer:
    """Return one writer for all outputs of a job that reads `lines`: by name, each a specification or a writer.

    `open_results` opens results for Spark. Raises UsageError as `open_writer` does, and for two outputs in one place.
    """
    has_files = any(map(is_file, given.values()))
    writers: dict[str, Writer] = {}
    with contextlib.ExitStack() as stack:
        for name, spec in given.items():
            own = mode if mode == "resume" or is_file(spec) or not has_files else "new"  # it concerns files
            if not isinstance(spec, str):
                writers[name] = spec
            elif open_results is not None and not name and spec.startswith("spark:"):
                writers[name] = open_results(spec, own)
            else:
                writers[name] = open_writer(spec, lines, own, name)
            stack.callback(writers[name].close)
        check_apart(writers, given)
        stack.pop_all()
    return together(writers)


def open_writer(
    output: str, lines: str | Collection[str | spark.SparkSpec] = "-", mode: Mode = "new", name: str = ""
) -> Writer:
    """Return the writer for one specification of `--output`, for a job that reads `lines`; `name` is the output's.

    Raises UsageError for a wrong specification, and for files that cannot or must not be written to.
    """
    kind, _, path = output.partition(":")
    whole = f"{name}={output}" if name else output
    if kind in ("jsonl", "csv") and path.partition("?")[0] == "-":
        raise UsageError(f"--output {whole}: Standard output is {kind}:/dev/stdout; a file named '-' is {kind}:./-.")
    if kind in ("jsonl", "csv") and path:
        writer = file_writer(kind, path, mode, name)
        try:
            writer.check(files_read(lines))
        except BaseException:
            writer.close()
            raise
        return writer
    if name and kind == "spark":
        raise UsageError(f"--output {whole}: Spark reads only the stream that the dataflow returns, not named outputs.")
    if output not in ("-", "none"):
        hint = f"; did you mean {name and f'{name}='}jsonl:{output}?" if output.endswith((".jsonl", ".json")) else "."
        hint = f"; did you mean {name and f'{name}='}csv:{output}?" if output.endswith(".csv") else hint
        if path and (near := similar(kind, ("jsonl", "csv", "spark"))):
            hint = f"; did you mean {name and f'{name}='}{near}:{path}?"
        raise UsageError(f"--output {whole}: must be {KINDS}{hint}")
    if mode in ("overwrite", "append"):
        raise UsageError(
            f"--{mode} says what to do with an existing file: it goes with --output jsonl:PATH, not with {output}."
        )
    if output == "none":
        return NothingWriter()
    if sys.stdout is None:
        raise UsageError("--output -: Standard output is closed. Give --output jsonl:PATH or none, or leave it open.")
    check_is_no_input(STDOUT, files_read(lines), whole)
    return TextWriter(own_stream(sys.stdout))


def is_written_by_spark(spec: str) -> bool:
    """Return whether Spark writes an output in a query of the job, which needs a slot.

    >>> is_written_by_spark("spark:noop?schema=n LONG"), is_written_by_spark("spark:megaflow?schema=n LONG")
    (True, False)
    """
    return spec.startswith("spark:") and not spec.startswith("spark:megaflow?")


def is_file(spec: object) -> bool:
    """Return whether a specification of `--output` names a file."""
    return isinstance(spec, str) and spec.startswith(("jsonl:", "csv:"))


def file_writer(kind: str, path: str, mode: Mode, name: str) -> FileWriter:
    """Open a file of JSON lines or CSV. Raises UsageError."""
    if kind == "jsonl":
        return FileWriter(os.path.expanduser(path), mode, output=name)
    columns: tuple[str, ...] = ()
    if found := COLUMNS.fullmatch(path):
        path, columns = found[1], tuple(next(csv.reader([found[2]]), ()))
        if not columns or "" in columns or len(set(columns)) < len(columns):
            spec = f"{name and f'{name}='}{kind}:{path}?columns={found[2]}"
            raise refusal(spec, "columns= must name each column once, as in ?columns=word,count")
    return CsvWriter(os.path.expanduser(path), mode, name, columns)


def check_apart(writers: Mapping[str, Writer], given: Mapping[str, str | Writer]) -> None:
    """Raise UsageError if two outputs go to the same file or to standard output."""
    seen: dict[object, str] = {}
    for name, writer in writers.items():
        if not isinstance(writer, TextWriter):
            continue
        place: object = STDOUT
        if isinstance(writer, FileWriter) and writer.path not in STDOUT_NAMES:
            status = os.stat(writer.path)
            place = (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
        said = f"--output {name}={given[name]}" if name else f"--output {given[name]}"
        if place is not None and place in seen:
            hint = "; --output none drops the records of the returned stream" if place == STDOUT else ""
            raise UsageError(f"{seen[place]} and {said}: Both would write to the same place. Name another{hint}.")
        seen[place] = said


def own_stream(stream: TextIO) -> TextIO:
    """Return a new stream to the same file, if there is one. Otherwise Python, at its end, could hang in flushing it.

    The new stream writes UTF-8, as all outputs do, whatever the locale or PYTHONIOENCODING says.
    """
    try:
        file = stream.fileno()
    except OSError:
        return stream
    return open(file, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
