"""What a Spark task does: send the lines of its partition to a worker.

Runs inside Spark's executors, so that no line passes through the driver. The task ends well
only after the worker has acknowledged the count; if anything fails it raises, and Spark runs it
again as another attempt.

What is staged is no proof that the task went well: if something before it in the pipeline fails (a
user's UDF, say), the rows here just end, early, and the part is staged and acknowledged before Spark
fails the attempt. Only the results that Spark hands to the driver tell which attempts count.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from megaflow.control.messages import Refused, Stage, Staged, StageEnd
from megaflow.errors import ProtocolError, SourceError
from megaflow.timely.communication.client import Client

CHUNK_BYTES = 64 << 10  # text in one message: large against its frame, small against the worker's step
CONNECT_TIMEOUT_SECONDS = 30.0
ANSWER_TIMEOUT_SECONDS = 300.0  # the worker may be in a long step of user code; a dead one is noticed by TCP


@dataclass(frozen=True, slots=True)
class StageJob:
    """What all tasks of one call of foreachBatch are told."""

    query: str
    run: str
    batch: int
    ports: tuple[tuple[int, str, int], ...]  # worker, host, port
    secret: bytes = field(repr=False)
    chunk_bytes: int = CHUNK_BYTES


class Winner(NamedTuple):
    """A task attempt that has staged its partition."""

    partition: int
    worker: int
    attempt: int
    lines: int


def push_partition(job: StageJob, partition: int, rows: Iterable[tuple[str | None]]) -> Iterator[Winner]:
    """Stage the one-column rows of a partition and yield how it went: nothing if it has no lines.

    A null is no line. It is left out here, as a filter of Spark would evaluate a UDF before it twice.
    """
    from pyspark.taskcontext import TaskContext

    context = TaskContext.get()
    if context is None:
        raise SourceError("push_partition runs inside a Spark task only")
    attempt = context.taskAttemptId()
    lines = (line for (line,) in rows if line is not None)
    first = next(lines, None)
    if first is None:
        return
    worker, host, port = job.ports[(job.batch + partition) % len(job.ports)]
    name = (job.query, job.run, job.batch, partition, attempt, worker)
    count = 0
    with Client.connect(host, port, job.secret, "ingest", {}, CONNECT_TIMEOUT_SECONDS) as client:
        for chunk in chunks(first, lines, job.chunk_bytes):
            client.send(Stage(*name, chunk))
            count += len(chunk)
        client.send(StageEnd(*name, count))
        answer = client.receive(ANSWER_TIMEOUT_SECONDS)
    if isinstance(answer, Refused):
        raise SourceError(f"worker {worker} at {host}:{port} refused the lines of a Spark task: {answer.reason}")
    if answer != Staged(attempt, count):
        raise ProtocolError(f"worker {worker} at {host}:{port} was to acknowledge {count} lines, not {answer!r:.200}")
    yield Winner(partition, worker, attempt, count)


def chunks(first: str, lines: Iterable[str], limit_bytes: int) -> Iterator[list[str]]:
    """Cut lines into lists of about `limit_bytes` of text.

    >>> list(chunks("abc", iter(["de", "f", "", "ghi"]), 5))
    [['abc', 'de'], ['f', '', 'ghi']]
    """
    chunk, room = [first], limit_bytes - len(first)
    for line in lines:
        if room <= 0:
            yield chunk
            chunk, room = [], limit_bytes
        chunk.append(line)
        room -= len(line) + 1  # an empty line takes room too
    yield chunk
