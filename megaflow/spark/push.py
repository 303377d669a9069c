"""How the lines or rows of a batch leave Spark: each Spark task sends those of its partition to a worker.

The tasks run inside Spark's executors, so no line passes through the driver. A task succeeds only after the worker has
acknowledged the count. If anything fails, the task raises, and Spark runs it again as another attempt.

A partition arrives as rows (`push_rows`) or as Arrow record batches (`push_batches`), and is sent the same either way.
Rows are packed by column (`megaflow.spark.row_packing`). Lines are sent as text: the lines of a message are joined by a
separator that is in none of them. Joining Arrow's bytes makes no Python object per line, and the worker needs no Arrow.
Bytes that are not UTF-8 become U+FFFD: in Java with rows, here with Arrow, because Spark puts the bytes of a file into
Arrow unchanged (an encoded surrogate becomes one U+FFFD in Java, three here).

Arrow is used automatically if everything that Spark needs for it is installed here (`pip install 'megaflow[arrow]'`).
`MEGAFLOW_SPARK_TRANSFER=rows` forces rows. The staged and committed data, and the protocol, are the same either way.
Executors on other machines are assumed to have the packages that are installed here, as they must have megaflow. If
they have no Arrow, force rows.

A task that loses its worker also ends without an error, and reports the loss in `Winner.trouble`. If it failed, Spark
would try it again on the same worker, and print a traceback with Java frames for each attempt. If a worker does not
answer a connection in time, the task connects again, because the worker may be in a long step.

Staged data does not prove that the task succeeded. If an earlier part of the pipeline fails (a user's UDF, for
example), the rows here just end early, and the part is staged and acknowledged before Spark fails the attempt. Only the
results that Spark returns to the driver tell which attempts count.
"""

import functools
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from itertools import chain, count
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from megaflow.control.messages import Refused
from megaflow.control.staging_messages import Staged, StageEnd, StageLines
from megaflow.errors import PeerLost, ProtocolError, SourceError, SourceLost, UsageError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.client import Client

CHUNK_BYTES = 64 << 10  # text in one message: large against its frame, small against the worker's step
CONNECT_TIMEOUT_SECONDS = 30.0
CONNECT_ATTEMPTS = 4
ANSWER_TIMEOUT_SECONDS = 300.0  # the worker may be in a long step of user code; TCP notices a dead worker


VARIABLE = "MEGAFLOW_SPARK_TRANSFER"

Transfer: TypeAlias = Literal["arrow", "rows"]


@dataclass(frozen=True, slots=True)
class StageJob:
    """Facts for all tasks of one call of foreachBatch."""

    query: str
    run: str
    batch: int
    ports: tuple[tuple[int, str, int], ...]  # worker, host, port
    secret: bytes = field(repr=False)


class Winner(NamedTuple):
    """Task attempt that has staged its partition or has lost its worker."""

    partition: int
    worker: int
    attempt: int
    lines: int
    trouble: str = ""  # how it lost the worker; "": it did not


WINNER_SCHEMA = "partition long, worker long, attempt long, lines long, trouble string"  # of a Winner, for Spark


class Parcel(NamedTuple):
    """Content of one message: lines as one text, `text.split(separator)`, or packed rows."""

    lines: int  # number of lines or rows, at least one
    text: str | bytes
    separator: str  # "" for rows


class Packing(Protocol):
    """Divides a partition into pieces of about so many bytes."""

    def of_rows(self, rows: Iterable[Any], limit_bytes: int) -> Iterator[Parcel]:
        """Pack a partition of rows."""

    def of_batches(self, batches: Iterable[Any], limit_bytes: int) -> Iterator[Parcel]:
        """Pack a partition of Arrow record batches."""


class LinePacking:
    """Packing that joins lines, the one text column of a frame.

    A null is not a line. It is left out here, because a filter in Spark would evaluate a preceding UDF twice.
    """

    def of_rows(self, rows: Iterable[tuple[str | None]], limit_bytes: int) -> Iterator[Parcel]:
        """Pack a partition of rows."""
        lines = (line for (line,) in rows if line is not None)
        return (join_lines(chunk) for chunk in chunks(lines, limit_bytes))

    def of_batches(self, batches: Iterable[Any], limit_bytes: int) -> Iterator[Parcel]:
        """Pack a partition of Arrow record batches."""
        return (piece for batch in batches for piece in join_column(batch.column(0), limit_bytes))


def choose_transfer(environ: Mapping[str, str] = os.environ, what: str = "lines") -> tuple[Transfer, str]:
    """Return how lines or rows (`what`) will travel, and a sentence that reports it with the reason.

    Imports pyspark, and pandas and pyarrow if they are installed. Raises UsageError if the environment asks for an
    unknown transfer.
    """
    asked = environ.get(VARIABLE, "")
    if asked not in ("", "rows"):
        raise UsageError(f"{VARIABLE}={asked}: must be rows or unset. Without it, Arrow is used where it is installed.")
    singly = "as rows" if what == "lines" else "one by one"
    if asked:
        return "rows", f"{what} leave Spark {singly} ({VARIABLE}={asked})"
    from pyspark.sql.pandas.utils import require_minimum_pandas_version, require_minimum_pyarrow_version

    try:
        require_minimum_pandas_version()
        require_minimum_pyarrow_version()
    except ImportError as error:
        wanted = str(error).rpartition("] ")[2].partition(";")[0]  # Pandas >= 2.2.0 must be installed
        return (
            "rows",
            f"{what} leave Spark {singly}; for Arrow, which is faster, {wanted}: pip install 'megaflow[arrow]'",
        )
    return "arrow", f"{what} leave Spark as Arrow batches"


def push_frame(frame: Any, job: StageJob, transfer: Transfer, packing: Packing) -> list[Winner]:
    """Stage a batch in Spark's tasks. Return the good attempts, one per partition. Raises SourceLost or Spark's errors.
    """
    if transfer == "rows":
        pushed = frame.rdd.mapPartitionsWithIndex(functools.partial(push_rows, job, packing))
    else:
        pushed = frame.mapInArrow(functools.partial(push_batches, job, packing), WINNER_SCHEMA)
    winners = [Winner(*row) for row in pushed.collect()]
    for winner in winners:
        if winner.trouble:
            raise SourceLost(winner.trouble)
    return winners


def push_rows(job: StageJob, packing: Packing, partition: int, rows: Iterable[Any]) -> Iterator[Winner]:
    """Stage the rows of a partition and yield the outcome. Yields nothing if there are no rows."""
    return _push(job, partition, packing.of_rows(rows, CHUNK_BYTES))


def push_batches(job: StageJob, packing: Packing, batches: Iterable[Any]) -> Iterator[Any]:
    """Do the same as `push_rows` with a partition of record batches: for `DataFrame.mapInArrow`."""
    partition = _task().partitionId()
    import pyarrow

    for winner in _push(job, partition, packing.of_batches(batches, CHUNK_BYTES)):
        yield pyarrow.RecordBatch.from_pylist([winner._asdict()])


def _push(job: StageJob, partition: int, texts: Iterator[Parcel]) -> Iterator[Winner]:
    attempt = _task().taskAttemptId()
    first = next(texts, None)
    if first is None:
        return
    worker, host, port = job.ports[(job.batch + partition) % len(job.ports)]
    name = (job.query, job.run, job.batch, partition, attempt, worker)
    lines = 0
    try:
        with _connect(host, port, job.secret) as client:
            for text in chain([first], texts):
                client.send(StageLines(*name, *text))
                lines += text.lines
            client.send(StageEnd(*name, lines))
            answer = client.receive(ANSWER_TIMEOUT_SECONDS)
    except (PeerLost, OSError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        yield Winner(partition, worker, attempt, 0, f"worker {worker} at {host}:{port} is lost to Spark: {reason}")
        return
    if isinstance(answer, Refused):
        raise SourceError(f"Worker {worker} at {host}:{port} refused the lines of a Spark task: {answer.reason}")
    if answer != Staged(attempt, lines):
        raise ProtocolError(
            f"Worker {worker} at {host}:{port} should acknowledge {lines} lines, but answered {answer!r:.200}."
        )
    yield Winner(partition, worker, attempt, lines)


def _connect(host: str, port: int, secret: bytes) -> Client:
    """Connect to a worker. Raises the errors of `Client.connect`."""
    for _ in range(CONNECT_ATTEMPTS - 1):
        with suppress(TimeoutError):
            return Client.connect(host, port, secret, "ingest", {}, CONNECT_TIMEOUT_SECONDS)
    return Client.connect(host, port, secret, "ingest", {}, CONNECT_TIMEOUT_SECONDS)


def _task() -> Any:
    from pyspark.taskcontext import TaskContext

    context = TaskContext.get()
    if context is None:
        raise SourceError("Spark's lines can be pushed only from inside a Spark task.")
    return context


def chunks(lines: Iterable[str], limit_bytes: int) -> Iterator[list[str]]:
    """Cut lines into lists of about `limit_bytes` of text.

    >>> list(chunks(["abc", "de", "f", "", "ghi"], 5))
    [['abc', 'de'], ['f', '', 'ghi']]
    """
    chunk: list[str] = []
    room = limit_bytes
    for line in lines:
        chunk.append(line)
        room -= len(line) + 1  # an empty line also takes room
        if room <= 0:
            yield chunk
            chunk, room = [], limit_bytes
    if chunk:
        yield chunk


def join_lines(lines: list[str]) -> Parcel:
    """Join lines. There must be at least one.

    >>> join_lines(["a", "b"])
    Parcel(lines=2, text='a\\nb', separator='\\n')
    >>> join_lines(["a\\nb", "\\0"])
    Parcel(lines=2, text='a\\nb\\x000\\n\\x00', separator='\\x000\\n')
    """
    return _join(len(lines), lambda separator: separator.join(lines))


def join_column(column: Any, limit_bytes: int) -> Iterator[Parcel]:
    """Join the strings of an Arrow array, about `limit_bytes` of UTF-8 at a time. Nulls are left out.

    Cost: some microseconds per text, plus the time to copy it.
    """
    import pyarrow
    from pyarrow import compute

    if column.null_count:
        column = column.drop_null()
    wide = pyarrow.types.is_large_string(column.type)
    ends = memoryview(column.buffers()[1]).cast("q" if wide else "i") if len(column) else []
    start, stop = column.offset, column.offset + len(column)
    while start < stop:
        # The longest run of strings within the limit; one string, if even that is longer.
        end = max(start + 1, bisect_right(ends, ends[start] + limit_bytes, start, stop + 1) - 1)
        strings = column.slice(start - column.offset, end - start)
        whole = pyarrow.ListArray.from_arrays([0, len(strings)], strings)

        def joined(separator: str, whole: Any = whole) -> str:
            text = compute.binary_join(whole, pyarrow.scalar(separator, column.type))[0]
            return str(text.as_buffer(), "utf-8", "replace")

        yield _join(len(strings), joined)
        start = end


def _join(lines: int, joined: Callable[[str], str]) -> Parcel:
    """Join with the first separator that is in no line.

    If the separator occurs exactly as often as it was inserted, it is nowhere else: no two occurrences can overlap.
    """
    for separator in chain("\n\0", (f"\0{number}\n" for number in count())):
        text = joined(separator)
        if text.count(separator) == lines - 1:
            return Parcel(lines, text, separator)
    raise AssertionError("a text of finite length holds every number")
