"""S10: how fast lines come from Spark into a job that only counts them, beside a bare socket.

Bare is what a Spark job cannot do without: each task of a `foreachPartition` sends its lines as text to a socket of
another process, which counts their ends and answers how many. Both are streaming queries over the same files, each to
their end, in one session that is warm. Both have a part that does not grow with the lines (the query's start and end,
the worker's start), so a turn runs over a folder of a few lines as well, and the rate is that of the lines in between:
(lines - few) / (seconds - seconds of the few).

Lines leave Spark as rows unless what Arrow needs is installed; `MEGAFLOW_SPARK_TRANSFER=rows` has them as rows all the
same, so both ways can be measured in one run.
"""

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from apps.bench.report import Found, Goal
from apps.bench.workload import ROOT, Absent, Setting, Step, Workload, check_count, one
from megaflow.errors import SourceError
from megaflow.run.app import pickle_app
from megaflow.run.flow import Flow
from megaflow.run.gather import NothingWriter
from megaflow.run.launch import RunOptions, launch
from megaflow.spark.java import find_java
from megaflow.stream import Stream

RATE, WHOLE = "k lines/s", "seconds, whole"
BARE, MEGAFLOW, ARROW = "bare foreachPartition to a socket", "megaflow", "megaflow[arrow]"
FILES = 4
LINES, LINES_QUICK = 4_000_000, 100_000
FEW = 100 * FILES
CHUNK_BYTES = 1 << 16
LINE = "{} the quick brown fox jumps over the lazy dog\n"
TRANSFER = "MEGAFLOW_SPARK_TRANSFER"
KILO = 1e3


def dataflow(flow: Flow) -> Stream[Any]:
    """Only count lines: what is counted is what comes out."""
    return flow.lines()


def write_folder(folder: Path, lines: int) -> str:
    """Write so many lines in some files; return the folder's name."""
    folder.mkdir()
    for number in range(FILES):
        with (folder / f"{number}.txt").open("w", encoding="ascii") as text:
            text.writelines(LINE.format(line) for line in range(number, lines, FILES))
    return str(folder)


# Bare


def push(port: int, rows: Iterable[tuple[str]]) -> None:
    """Send the lines of a partition; runs in Spark's task."""
    chunk: list[str] = []
    size = count = 0
    with socket.create_connection(("127.0.0.1", port)) as sink:
        for (line,) in rows:
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


def run_bare(session: Any, port: int, folder: str, checkpoint: Path) -> float:
    """Run the query; seconds."""
    from megaflow.spark.session import start_query

    def stage(frame: Any, batch: int) -> None:
        frame.foreachPartition(lambda rows: push(port, rows))

    began = time.perf_counter()
    query = start_query(session.readStream.text(folder), checkpoint, None, stage)
    query.awaitTermination()
    return time.perf_counter() - began


# megaflow


def run_job(folder: str, lines: int, transfer: str | None) -> float:
    """Run the job; seconds, the start and the end of its worker included."""
    before = os.environ.pop(TRANSFER, None)
    if transfer is not None:
        os.environ[TRANSFER] = transfer
    try:
        options = RunOptions(pickle_app(dataflow), f"spark:text:{folder}?trigger=availableNow")
        account = launch(options, NothingWriter)
    finally:
        os.environ.pop(TRANSFER, None)
        if before is not None:
            os.environ[TRANSFER] = before
    check_count("lines from Spark", account.records, lines)
    return account.seconds


# The workload


def in_between(name: str, lines: int, run: Callable[[str, int], float], few: str, many: str) -> Found:
    """Run over both folders; return the rate of the lines that the one has more."""
    short, long = run(few, FEW), run(many, lines)
    return one(name, {RATE: (lines - FEW) / max(1e-9, long - short) / KILO, WHOLE: long})


def open_ingest(setting: Setting) -> Sequence[Step]:
    """Start Spark, write the lines, warm up. Raises Absent without a Java that can run Spark."""
    try:
        find_java()
    except SourceError as error:
        raise Absent(str(error)) from error
    from megaflow.spark.session import spark_session

    lines = setting.size(LINES, LINES_QUICK)
    few, many = write_folder(setting.folder / "few", FEW), write_folder(setting.folder / "many", lines)
    session = setting.stack.enter_context(spark_session(setting.folder))
    sink = setting.stack.enter_context(closing(Sink()))
    queries = iter(range(1_000_000))  # each has a checkpoint of its own

    def bare(folder: str, _: int) -> float:
        return run_bare(session, sink.port, folder, setting.folder / f"checkpoint-{next(queries)}")

    ways: dict[str, Callable[[str, int], float]] = {BARE: bare, MEGAFLOW: partial(run_job, transfer="rows")}
    if importlib.util.find_spec("pyarrow") is not None and importlib.util.find_spec("pandas") is not None:
        ways[ARROW] = partial(run_job, transfer=None)
    for run in ways.values():
        run(few, FEW)
    steps = [Step(name, partial(in_between, name, lines, run, few, many)) for name, run in ways.items()]
    return steps if ARROW in ways else [*steps, Step(ARROW, without_arrow)]


def without_arrow() -> Found:
    """Say why there is no such row."""
    raise Absent("pandas and pyarrow are not installed (pip install 'megaflow[arrow]')")


S10 = Workload(
    "S10",
    "lines from Spark into a job that only counts them, warm",
    open_ingest,
    (Goal(MEGAFLOW, RATE, 0.7, at_least=True, of=(BARE,)),),
    base=BARE,
    notes=("the rate leaves out what a run over a few lines takes as well; 'whole' is with that",),
)
