"""What `lines` means: files to be split, lines the launcher pushes, or a Spark query."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from megaflow.control.messages import Split
from megaflow.errors import UsageError
from megaflow.job.launcher.launcher_input import FileLines, IterableLines, PushedSource
from megaflow.job.splits import find_files, plan_splits
from megaflow.spark.query_spec import SparkSpec, parse_spark_spec

STDIN = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a job's lines come from; one of the three."""

    splits: tuple[Split, ...] = ()
    pushed: PushedSource | None = None
    spark: SparkSpec | Any | None = None  # or a streaming DataFrame


def find_origin(lines: Any, workers: int, encoding_errors: str) -> Origin:
    """Return what a specification, an iterable of str or a streaming DataFrame stands for.

    A specification is `-` (standard input), `spark:FORMAT:PATH`, or a file, directory or glob. Raises UsageError
    for what is neither and SourceError for missing files.
    """
    if lines == "-" and isinstance(lines, str):
        return Origin(pushed=FileLines(STDIN, "standard input", encoding_errors))
    if isinstance(lines, str) and lines.startswith("spark:"):
        return Origin(spark=parse_spark_spec(lines))
    if isinstance(lines, str | os.PathLike):
        return Origin(splits=tuple(plan_splits(find_files(os.fspath(lines)), workers)))
    if hasattr(lines, "isStreaming"):
        return Origin(spark=lines)
    if isinstance(lines, Iterable) and not isinstance(lines, bytes):
        return Origin(pushed=IterableLines(lines))
    raise UsageError(
        f"lines must be a specification such as 'books/*.txt', an iterable of str "
        f"or a streaming DataFrame, not {lines!r:.80} ({type(lines).__name__})"
    )
