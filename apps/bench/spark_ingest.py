"""S10: rate of lines and rows from Spark into a job that only counts them, compared with a bare socket.

The bare version does the least that a Spark job must do: each task of a `foreachPartition` sends its lines as text to
a socket of another process, which counts the line ends and answers with the number. Both versions are streaming
queries over the same files, run to their end in one warm session. The time starts for both when Spark reports that its
first batch began, so it does not include the start of the query and of the worker. It ends when the last line is
counted. For the bare version, that is the end of the call of foreachBatch; for megaflow, the close of the last epoch.

With `--state`, megaflow answers a batch once the batch is in a checkpoint. This adds a fixed time to each batch. It is
negligible for one batch of all lines, and matters more as batches get smaller. So the workload also runs twenty small
batches, with `--state` and without.

Rows have four columns, including a timestamp, and come from Parquet. The bare version sends a row as the text of its
values.

In both versions, data leaves Spark without Arrow unless Arrow's packages are installed. `MEGAFLOW_SPARK_TRANSFER=rows`
also avoids Arrow when they are, so one run can measure both ways.
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
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.launch import LaunchOptions, launch
from megaflow.job.spec import JobSpec
from megaflow.job.worker.process.flow import Flow
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
ROWS_SHARE = 3  # lines for each row
LINES_SMALL = 5_000 * FILES  # of a small batch, all files together
FEW = 100 * FILES  # lines for the warm-up
CHUNK_BYTES = 1 << 16
LINE = "{} the quick brown fox jumps over the lazy dog\n"
TRANSFER = "MEGAFLOW_SPARK_TRANSFER"
KILO = 1e3
WORD_SECONDS = 30.0  # for Spark to report when a query's batch began


def dataflow(flow: Flow) -> Stream[Any]:
    """Emit only the number of lines."""
    return flow.lines()


def rows_dataflow(flow: Flow) -> Stream[Any]:
    """Emit only the number of rows."""
    return flow.rows("orders")


def write_rows(session: Any, folder: Path, rows: int) -> str:
    """Write `rows` rows in some files; return the folder's name."""
    session.range(0, rows, 1, FILES).selectExpr(*COLUMNS).write.parquet(str(folder))
    return str(folder)


def write_folder(folder: Path, lines: int) -> str:
    """Write `lines` lines in some files; return the folder's name."""
    folder.mkdir()
    for number in range(FILES):
        with (folder / f"{number}.txt").open("w", encoding="ascii") as text:
            text.writelines(LINE.format(line) for line in range(number, lines, FILES))
    return str(folder)


# Bare


def push(port: int, rows: Iterable[tuple[Any, ...]]) -> None:
    """Send the lines, or rows, of a partition. Runs in a task of Spark."""
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
        """End the process."""
        self._process.kill()
        self._process.communicate()


class Starts(StreamingQueryListener):
    """Start of the first batch of a query, as Spark reports it."""

    def __init__(self) -> None:
        self._began: queue.SimpleQueue[float] = queue.SimpleQueue()  # one entry per query, from a thread of Spark

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing, as no batch has begun."""

    def onQueryProgress(self, event: Any) -> None:
        """Note when the first batch began."""
        if event.progress.batchId == 0:
            self._began.put(datetime.fromisoformat(event.progress.timestamp).timestamp())

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing, as no batch has begun."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing, as the first batch was reported before."""

    def clear(self) -> None:
        """Forget a query that failed."""
        while not self._began.empty():
            self._began.get()

    def take(self) -> float:
        """Wait for the report; return the moment in seconds of the wall clock."""
        return self._began.get(timeout=WORD_SECONDS)


def run_bare(frame: Any, port: int, checkpoint: Path) -> float:
    """Run the query of a frame; return when its last batch was done, in seconds of the wall clock."""
    done: list[float] = []

    def stage(frame: Any, batch: int) -> None:
        frame.foreachPartition(lambda rows: push(port, rows))
        done.append(time.time())

    start_query(frame, str(checkpoint), None, stage, "megaflow: benchmark").awaitTermination()
    return done[-1]


# megaflow


def run_job(
    folder: str, lines: int, transfer: str | None, options: str = "", store: Callable[[], str] | None = None,
    *, rows: bool = False,
) -> float:
    """Run the job, optionally with a new store; return when its last epoch was closed, in seconds of the wall clock."""
    before = os.environ.pop(TRANSFER, None)
    if transfer is not None:
        os.environ[TRANSFER] = transfer
    try:
        spec = JobSpec(pickle_app(rows_dataflow if rows else dataflow), state=None if store is None else store())
        if rows:
            inputs = {"orders": f"spark:parquet:{folder}?schema={SCHEMA}&trigger=availableNow{options}"}
            account = launch(LaunchOptions(spec, None, rows=inputs))
        else:
            account = launch(LaunchOptions(spec, f"spark:text:{folder}?trigger=availableNow{options}"))
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
    """Start Spark, write the lines and warm up. Raises Absent without a Java that can run Spark."""
    try:
        find_java()
    except SourceError as error:
        raise Absent(str(error)) from error
    lines = setting.size(LINES, LINES_QUICK)
    few, many = write_folder(setting.folder / "few", FEW), write_folder(setting.folder / "many", lines)
    small = write_folder(setting.folder / "small", LINES_SMALL)
    session = setting.stack.enter_context(spark_session(setting.folder))
    sink = setting.stack.enter_context(closing(Sink()))
    queries = iter(range(1_000_000))  # each query has a checkpoint of its own

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
    """Report why there is no such row."""
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
