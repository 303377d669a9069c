"""Results without Arrow: a Spark job writes each batch into a separate folder.

A streaming query reads results by a data source in Python, which needs Arrow. This module needs none. `results_query`
uses it in place of such a query.

1. A batch holds all results that exist when the previous batch is done. It goes to PATH/from_row=N, where N is the
   number of rows before it. So Spark reads PATH as a whole, with N as an additional column.
2. The number of finished rows is recorded durably beside the log. Only then is the launcher informed, which deletes
   these rows. So after any crash the unfinished batch is found again. It begins at the same row and is written to the
   same folder, over the old content. It may now have more rows. No row is in two folders, and none is missing.
3. Java inherits the lock of the log's folder, as with a query, so the Java of an earlier attempt cannot write.
"""

import contextlib
import json
import os
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession, types

from megaflow.durable.local_folder import sync_path
from megaflow.spark.batch_run import BatchRun, task_title
from megaflow.spark.results_source import Code, Poll, ResultsPlace, parts, read_tuples
from megaflow.spark.results_spec import ResultsSpec

PAUSE_SECONDS: Final = 0.2


def start_batches(spec: ResultsSpec, session: SparkSession, place: ResultsPlace, noted: Path) -> BatchRun:
    """Start writing. `noted` is the file with the number of rows that are done."""
    return BatchRun(session, task_title("", "results"), partial(write_batches, spec, session, place, noted))


def write_batches(
    spec: ResultsSpec, session: SparkSession, place: ResultsPlace, noted: Path, stopping: threading.Event
) -> None:
    """Write results as they arrive, until `stopping` is set."""
    poll = Poll(replace(place, code=Code()))  # this process has megaflow
    done = read_note(noted)
    with contextlib.closing(poll):
        while not stopping.is_set():
            began = time.monotonic()
            if (end := poll.latest(done)) > done:
                write_batch(spec, session, place, done, end)
                note(noted, done := end)
            stopping.wait(max(PAUSE_SECONDS, spec.trigger_seconds - (time.monotonic() - began)))


def write_batch(spec: ResultsSpec, session: SparkSession, place: ResultsPlace, start: int, end: int) -> None:
    """Write the rows between two places."""
    pieces = parts(start, end)
    rows = session.sparkContext.parallelize(pieces, len(pieces)).mapPartitions(partial(read_tuples, place))
    frame = session.createDataFrame(rows, ints_as(place.schema), verifySchema=False)
    writer = frame.write.format(spec.format).options(**spec.options).mode("overwrite")
    writer.save(os.path.join(spec.path, f"from_row={start:015}"))


def ints_as(schema: str) -> types.StructType:
    """Return the type of rows whose timestamps and dates are already ints, as in Java.

    Spark's own type makes these ints of datetimes, which do not hold all of them.
    """

    class StructType(types.StructType):  # types of Spark have the names of their classes; a class here travels by value
        def toInternal(self, obj: Any) -> Any:
            return obj

    return StructType(types.StructType.fromJson(json.loads(schema)).fields)


def read_note(noted: Path) -> int:
    """Return how many rows are done."""
    return int(noted.read_text()) if noted.exists() else 0


def note(noted: Path, rows: int) -> None:
    """Record durably that so many rows are done."""
    new = noted.with_suffix(".new")
    new.write_text(str(rows))
    sync_path(new)
    new.rename(noted)
    sync_path(noted.parent)
