"""A Spark session that megaflow starts: its Java process starts quietly and ends cleanly.

This module imports pyspark at its top level, like `worker_jobs`, `results_source` and `results_batches`. All other
modules import these four inside functions, where Spark is used.
"""

import contextlib
import logging
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from py4j import java_gateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.version import __version__

from megaflow.control.wording import Notice
from megaflow.errors import SourceError, UsageError
from megaflow.own_files import forget, handing_on, keep
from megaflow.python_executable import python_path
from megaflow.spark.kept_query import note_holder
from megaflow.spark.query_spec import SparkSpec
from megaflow.spark.spark_errors import SHUT_DOWN, root_cause, start_failure

MASTER = "local[*,4]"  # plain local[*] gives a task one attempt; 4 is Spark's own default on a cluster
LOG = "spark.log"
STOP_TIMEOUT_SECONDS = 10
CLOSED_SECONDS = 1.0  # from the end of Java's sockets to that of its process
JAVA_ENDED = "Spark's Java process has ended unexpectedly"
STOPPED = "the Spark session was stopped while the job used it"
OPTIONS = {
    "spark.executorEnv.PYTHONSAFEPATH": "1",  # its Python processes import nothing from their start directory
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.adaptive.enabled": "false",  # streaming queries cannot use it, and print a warning
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.streaming.stopTimeout": f"{STOP_TIMEOUT_SECONDS}s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

log = logging.getLogger("megaflow.spark")


@contextlib.contextmanager
def spark_session(
    folder: Path,
    held: Sequence[int] = (),
    master: str = "",
    more: Mapping[str, str] | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Iterator[SparkSession]:
    """Yield a session for the block. Everything that it writes, including its log, goes below `folder`.

    An active session of this process is used and left running. A session that starts here ends with its Java process,
    which inherits the locks `held`. `master` replaces the default, all cores of this machine. `more` are settings that
    override megaflow's. `report` tells the user that Spark starts. Raises SourceError if Spark cannot start. Blocks for
    some seconds.
    """
    if (active := SparkContext._active_spark_context) is not None:
        if master and active.master != master:
            raise UsageError(f"This process already has a Spark session on {active.master}, not on {master}.")
        yield SparkSession.builder.getOrCreate()
        return
    report(Notice("waiting for Spark to start"))
    conf = SparkConf().setMaster(master or MASTER).setAppName("megaflow").setAll([*OPTIONS.items()])
    if "spark.pyspark.python" not in (more or {}):
        conf.set("spark.pyspark.python", python_path())
    conf.set("spark.sql.warehouse.dir", str(folder / "warehouse"))
    if (master or MASTER).startswith("local"):
        conf.set("spark.local.dir", str(folder / "local"))
    conf.setAll([*(more or {}).items()])
    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet_connections())
        gateway = SparkContext._gateway  # Java left from a stopped session: it is not ours to end
        if gateway is None:
            gateway = stack.enter_context(_java_process(conf, folder / LOG, held))
        with kept_signals(), worded_failure(master or MASTER, folder / LOG):
            context = SparkContext(conf=conf, gateway=gateway)
            session = SparkSession(context)
        # When Java is killed, this would print a traceback. We report the end ourselves.
        context._accumulatorServer.handle_error = lambda *request: None  # type: ignore[method-assign]
        # Without PYSPARK_PYTHON it would be the python3 on PATH. Executors elsewhere may have another Python than this.
        given = "" if str(context.master).startswith("local") else os.environ.get("PYSPARK_PYTHON", "")
        context.pythonExec = (more or {}).get("spark.pyspark.python") or given or python_path()
        stack.callback(_stop, session)
        yield session


@contextlib.contextmanager
def worded_failure(master: str, log_path: Path) -> Iterator[None]:
    """Turn the error that keeps a session from starting into a SourceError of one sentence. Java writes the log."""
    try:
        yield
    except Py4JError as error:
        said = log_path.read_text(errors="replace") if log_path.exists() else ""
        raise start_failure(master, text_of(error), said, __version__) from None


def text_of(error: Exception) -> str:
    """Return the text of an error, which Java may have."""
    try:
        return str(error)
    except Py4JError:  # Java is gone
        return repr(error)


@contextlib.contextmanager
def kept_signals() -> Iterator[None]:
    """Keep the handler of Ctrl-C: a SparkContext made in the main thread sets one that cancels all jobs."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def quiet_connections() -> Iterator[None]:
    """Keep py4j's log records about broken connections to Java from the root logger, for the block.

    They are tracebacks of errors that are also raised. Our log has them at level DEBUG.
    """

    def is_of_others(record: logging.LogRecord) -> bool:
        if record.pathname != java_gateway.__file__:
            return True
        log.debug("py4j: %s", record.getMessage(), exc_info=record.exc_info)
        return False

    root = logging.getLogger()
    root.addFilter(is_of_others)
    try:
        yield
    finally:
        root.removeFilter(is_of_others)


@contextlib.contextmanager
def _java_process(conf: SparkConf, log_path: Path, held: Sequence[int]) -> Iterator[java_gateway.JavaGateway]:
    """Yield a connection to a new Java process, which ends with the block.

    It has its own process group. So signals that a terminal or a service manager sends to our group do not reach it,
    and this process can end the query first. The Java process ends by itself when this process does.
    """
    with log_path.open("wb") as output:
        try:
            options = {"stdout": output, "stderr": output, "process_group": 0, "pass_fds": tuple(held)}
            with handing_on(*held):
                gateway = launch_gateway(conf, options)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            lines = map(str.strip, log_path.read_text(errors="replace").splitlines())
            said = [line for line in lines if line and not line.startswith(("at ", "... "))]  # without Java's frames
            cause = root_cause(said[-1] if said else str(error))
            raise SourceError(f"Spark's Java process did not start: {cause}") from error
    process: subprocess.Popen[bytes] = gateway.proc
    assert process.stdin is not None
    keep(process.stdin.fileno())  # Java ends when this pipe closes
    try:
        for lock in held:
            note_holder(lock, process.pid)
        yield gateway
    finally:
        with contextlib.suppress(Py4JError, OSError):  # the process may already be gone
            gateway.shutdown()
        forget(process.stdin.fileno())
        process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # pyspark would offer the dead process to the next session of this process.
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None


def _stop(session: SparkSession) -> None:
    try:
        session.stop()
    except (Py4JError, OSError) as error:
        log.info("Spark was gone before it was stopped: %s", error)


def why_over(session: SparkSession, error: BaseException) -> str:
    """Return why a session that raised `error` cannot be used any more; "" if it can, as far as is known."""
    if java_ended(session, error):
        return JAVA_ENDED
    return STOPPED if is_stopped(session.sparkContext) else ""


def is_stopped(context: SparkContext) -> bool:
    """Return whether the program has stopped a context, or is stopping it."""
    java = context._jsc
    try:
        return java is None or bool(java.sc().isStopped())
    except (Py4JError, OSError):  # Java has ended
        return False


def java_ended(session: SparkSession, error: BaseException) -> bool:
    """Return whether `error` comes from the end of a Java process that this process started.

    A signal such as SIGTERM makes Java stop the session before it ends. Until then it still raises exceptions.
    """
    process: subprocess.Popen[bytes] | None = getattr(session.sparkContext._gateway, "proc", None)
    if process is None or not isinstance(error, Py4JError | PySparkException | OSError):
        return False
    seconds = CLOSED_SECONDS
    if isinstance(error, Py4JJavaError | PySparkException):  # from a living Java process
        is_stopped_here = session.sparkContext._jsc is None
        if is_stopped_here or not any(each in text_of(error) for each in SHUT_DOWN):
            return False
        seconds = STOP_TIMEOUT_SECONDS
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def check_frame(frame: object, what: str = "lines") -> DataFrame:
    """Return a caller's DataFrame if it can feed a job as lines or rows. Raises UsageError if not."""
    if not isinstance(frame, ClassicDataFrame):
        kind = "a streaming DataFrame" if what == "lines" else "a DataFrame"
        raise UsageError(
            f"{what} must be {kind} of a classic Spark session, not "
            f"{type(frame).__module__}.{type(frame).__qualname__}: Spark Connect cannot run code on the "
            "executors."
        )
    if is_stopped(frame.sparkSession.sparkContext):
        raise UsageError("The Spark session has been stopped. Create a new one, and create its DataFrames again.")
    if what == "lines" and not frame.isStreaming:
        raise UsageError("lines must be a streaming DataFrame, from spark.readStream, but this one is not streaming.")
    return frame


def open_source(session: SparkSession, spec: SparkSpec) -> DataFrame:
    """Return the streaming DataFrame that a spec describes."""
    reader = session.readStream.format(spec.format)
    for name, value in spec.options.items():
        reader = reader.schema(value) if name == "schema" else reader.option(name, value)
    logging.getLogger("SQLQueryContextLogger").disabled = True  # it also prints raised errors, over many lines
    frame = reader.load(spec.path) if spec.path else reader.load()
    if not (spec.select or spec.where):
        return frame
    view = f"megaflow_{uuid.uuid4().hex}"
    frame.createTempView(view)
    try:
        return session.sql(f"SELECT {spec.select or '*'} FROM {view} WHERE {spec.where or 'true'}")
    finally:
        session.catalog.dropTempView(view)


def only_lines(frame: DataFrame) -> DataFrame:
    """Return the one column of `frame` that holds the lines, as text.

    This is the column `value` (text, Kafka, rate and socket have it), or else the only column, if it is text. Raises
    SourceError, naming the columns, if there is no such column.
    """
    columns = frame.dtypes
    if any(name == "value" for name, _ in columns):
        name = "value"
    elif len(columns) == 1 and columns[0][1] == "string":
        name = columns[0][0]
    else:
        found = ", ".join(f"{name} {kind}" for name, kind in columns)
        raise SourceError(f"lines need a column 'value' or a single column of text, but Spark's source has: {found}")
    return frame.select(frame[f"`{name}`"].cast("string").alias("value"))


def start_query(
    frame: DataFrame, checkpoint: str, trigger_seconds: float | None, stage: Any, title: str
) -> StreamingQuery:
    """Start the query that calls `stage(frame, batch)` for each batch. Its name is the title, which pages show.

    If the frame aggregates, a batch has the groups that have changed. A frame without such a mode (an outer join of two
    streams) gives each row when it is final.
    """
    writer = frame.writeStream.foreachBatch(stage).option("checkpointLocation", checkpoint).queryName(title)
    if trigger_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(trigger_seconds * 1000)} milliseconds")
    try:
        return writer.outputMode("update").start()
    except AnalysisException as error:
        if "output mode" not in str(error):
            raise
        return writer.outputMode("append").start()
