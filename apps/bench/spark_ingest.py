"""S10: how fast lines, and rows, come from Spark into a job that only counts them, beside a bare socket.

Bare is what a Spark job cannot do without: each task of a `foreachPartition` sends its lines as text to a socket of
another process, which counts their ends and answers how many. Both are streaming queries over the same files, each to
their end, in one session that is warm. Timed is, for both, from the moment that Spark says its first batch began (the
query's start and the worker's are before) until the last line is counted: until the call of foreachBatch is done, and
for megaflow until the last epoch is closed.

With `--state` a batch is answered when it is in a checkpoint, so each costs a fixed time more: nothing beside one batch
of all lines, and the more the smaller they are. So there are twenty small ones, too, with it and without.

Rows have four columns, a timestamp among them, and come from Parquet; bare, a row is sent as the text of its values.

Both leave Spark without Arrow unless what that needs is installed; `MEGAFLOW_SPARK_TRANSFER=rows` does without it all
the same, so both ways can be measured in one run.
"""

import importlib.util
import os
import queue
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from apps.bench.report import Found, Goal
from apps.bench.workload import ROOT, Absent, Setting, Step, Workload, check_count, one
from megaflow.errors import SourceError
from megaflow.job.launcher.epoch_merge import NothingWriter
from megaflow.job.launcher.function_pickler import pickle_app
from megaflow.job.launcher.launch import launch
from megaflow.job.spec import JobSpec
from megaflow.job.worker.flow import Flow
from megaflow.spark.preflight import find_java
from megaflow.spark.spark_session import spark_session, start_query
from megaflow.stream import Stream

RATE = "k lines/s"
BARE, MEGAFLOW, ARROW = "bare foreachPartition to a socket", "megaflow", "megaflow[arrow]"
KEPT, SMALL, SMALL_KEPT = "megaflow --state", "megaflow, 20 small batches", "megaflow --state, 20 small batches"
OF_ROWS = "{}, rows of four columns"
COLUMNS = ("id", "concat('customer ', id % 1000) AS customer", "id * 0.5D AS amount", "timestamp_micros(id) AS at")
SCHEMA = "id LONG, customer STRING, amount DOUBLE, at TIMESTAMP"
FILES = 20
LINES, LINES_QUICK = 3_000_000, 100_000
ROWS_SHARE = 3  # of so many lines there is a row
LINES_SMALL = 5_000 * FILES  # in a batch for each file
FEW = 100 * FILES  # to get warm
CHUNK_BYTES = 1 << 16
LINE = "{} the quick brown fox jumps over the lazy dog\n"
TRANSFER = "MEGAFLOW_SPARK_TRANSFER"
KILO = 1e3
WORD_SECONDS = 30.0  # for Spark to say when a query's batch began


def dataflow(flow: Flow) -> Stream[Any]:
    """Only count lines: what is counted is what comes out."""
    return flow.lines()


def rows_dataflow(flow: Flow) -> Stream[Any]:
    """Only count rows."""
    return flow.rows("orders")


def write_rows(session: Any, folder: Path, rows: int) -> str:
    """Write so many rows in some files; return the folder's name."""
    session.range(0, rows, 1, FILES).selectExpr(*COLUMNS).write.parquet(str(folder))
    return str(folder)


def write_folder(folder: Path, lines: int) -> str:
    """Write so many lines in some files; return the folder's name."""
    folder.mkdir()
    for number in range(FILES):
        with (folder / f"{number}.txt").open("w", encoding="ascii") as text:
            text.writelines(LINE.format(line) for line in range(number, lines, FILES))
    return str(folder)


# Bare


def push(port: int, rows: Iterable[tuple[Any, ...]]) -> None:
    """Send the lines, or rows, of a partition; runs in Spark's task."""
    chunk: list[str] = []
    size = count = 0
    with socket.create_connection(("127.0.0.1", port)) as sink:
        for row in rows:
            line = row[0] if len(row) == 1 else " ".join(map(str, row))
            chunk.append(line)
            size += len(line) + 1
            count += 1
            if size > CHUNK_BYTES:
                sink.sendall(("\n".join(chunk) + "\n").encode())
                chunk, size = [], 0
        if chunk:
            sink.sendall(("\n".join(chunk) + "\n").encode())
        sink.shutdown(socket.SHUT_WR)
        answer = sink.makefile("r").readline()
    if int(answer) != count:
        raise RuntimeError(f"the socket counted {answer} of {count} lines")


class Sink:
    """The process that counts line ends (see `apps.bench.plain`)."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]
            command = [sys.executable, "-m", "apps.bench.plain", "count", str(listener.fileno())]
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[listener.fileno()], stdout=subprocess.PIPE)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


class Starts(StreamingQueryListener):
    """When Spark began the first batch of a query, by its own account."""

    def __init__(self) -> None:
        self._began: queue.SimpleQueue[float] = queue.SimpleQueue()  # put by a thread of Spark's, once for each query

    def onQueryStarted(self, event: Any) -> None:
        """Nothing has begun yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Note when the first batch began."""
        if event.progress.batchId == 0:
            self._began.put(datetime.fromisoformat(event.progress.timestamp).timestamp())

    def onQueryIdle(self, event: Any) -> None:
        """Nothing has begun."""

    def onQueryTerminated(self, event: Any) -> None:
        """It has been told before."""

    def clear(self) -> None:
        """Forget a query that failed."""
        while not self._began.empty():
            self._began.get()

    def take(self) -> float:
        """Return when it was, in seconds of the wall clock; waits for the word."""
        return self._began.get(timeout=WORD_SECONDS)


def run_bare(frame: Any, port: int, checkpoint: Path) -> float:
    """Run the query of a frame; return when its last batch was done, in seconds of the wall clock."""
    done: list[float] = []

    def stage(frame: Any, batch: int) -> None:
        frame.foreachPartition(lambda rows: push(port, rows))
        done.append(time.time())

    start_query(frame, str(checkpoint), None, stage).awaitTermination()
    return done[-1]


# megaflow


def run_job(
    folder: str, lines: int, transfer: str | None, options: str = "", store: Callable[[], str] | None = None,
    *, rows: bool = False,
) -> float:
    """Run the job, perhaps with a new store; return when its last epoch was closed, in seconds of the wall clock."""
    before = os.environ.pop(TRANSFER, None)
    if transfer is not None:
        os.environ[TRANSFER] = transfer
    try:
        spec = JobSpec(pickle_app(rows_dataflow if rows else dataflow), state=None if store is None else store())
        if rows:
            inputs = {"orders": f"spark:parquet:{folder}?schema={SCHEMA}&trigger=availableNow{options}"}
            account = launch(spec, None, NothingWriter, rows=inputs)
        else:
            account = launch(spec, f"spark:text:{folder}?trigger=availableNow{options}", NothingWriter)
    finally:
        os.environ.pop(TRANSFER, None)
        if before is not None:
            os.environ[TRANSFER] = before
    check_count("lines from Spark", account.records, lines)
    return max(end for _, end in account.flows) - time.monotonic() + time.time()


# The workload


def timed(name: str, lines: int, run: Callable[[str, int], float], folder: str, starts: Starts) -> Found:
    """Run over the folder; return the rate."""
    starts.clear()
    ended = run(folder, lines)
    return one(name, {RATE: lines / (ended - starts.take()) / KILO})


def open_ingest(setting: Setting) -> Sequence[Step]:
    """Start Spark, write the lines, warm up. Raises Absent without a Java that can run Spark."""
    try:
        find_java()
    except SourceError as error:
        raise Absent(str(error)) from error
    lines = setting.size(LINES, LINES_QUICK)
    few, many = write_folder(setting.folder / "few", FEW), write_folder(setting.folder / "many", lines)
    small = write_folder(setting.folder / "small", LINES_SMALL)
    session = setting.stack.enter_context(spark_session(setting.folder))
    sink = setting.stack.enter_context(closing(Sink()))
    queries = iter(range(1_000_000))  # each has a checkpoint of its own

    def bare(folder: str, _: int, *, rows: bool = False) -> float:
        reader = session.readStream
        frame = reader.schema(SCHEMA).parquet(folder) if rows else reader.text(folder)
        return run_bare(frame, sink.port, setting.folder / f"checkpoint-{next(queries)}")

    def store() -> str:
        return str(setting.folder / f"store-{next(queries)}")

    ways: dict[str, Callable[..., float]] = {BARE: bare, MEGAFLOW: partial(run_job, transfer="rows")}
    ways[KEPT] = partial(run_job, transfer="rows", store=store)
    if importlib.util.find_spec("pyarrow") is not None and importlib.util.find_spec("pandas") is not None:
        ways[ARROW] = partial(run_job, transfer=None)
    starts = Starts()
    session.streams.addListener(starts)
    for name, run in ways.items():
        timed(name, FEW, run, few, starts)
    steps = [Step(name, partial(timed, name, lines, run, many, starts)) for name, run in ways.items()]
    for name, new_store in ((SMALL, None), (SMALL_KEPT, store)):
        run = partial(run_job, transfer="rows", options="&maxFilesPerTrigger=1", store=new_store)
        steps.append(Step(name, partial(timed, name, LINES_SMALL, run, small, starts)))
    few_rows = write_rows(session, setting.folder / "few rows", FEW)
    many_rows = write_rows(session, setting.folder / "many rows", lines // ROWS_SHARE)
    for name in (BARE, MEGAFLOW, ARROW):
        if name in ways:
            row, run = OF_ROWS.format(name), partial(ways[name], rows=True)
            timed(row, FEW, run, few_rows, starts)
            steps.append(Step(row, partial(timed, row, lines // ROWS_SHARE, run, many_rows, starts)))
    return steps if ARROW in ways else [*steps, Step(ARROW, without_arrow)]


def without_arrow() -> Found:
    """Say why there is no such row."""
    raise Absent("pandas and pyarrow are not installed (pip install 'megaflow[arrow]')")


S10 = Workload(
    "S10",
    "lines from Spark into a job that only counts them, warm",
    open_ingest,
    (
        Goal(MEGAFLOW, RATE, 0.7, at_least=True, of=(BARE,)),
        Goal(OF_ROWS.format(MEGAFLOW), RATE, 0.7, at_least=True, of=(OF_ROWS.format(BARE),)),
    ),
    base=BARE,
    notes=("from the moment that Spark's first batch begins until the last line is counted",),
)
