"""Query of `--output spark:…`: reads a job's results and writes them to the given place.

It runs in the session that feeds the job or holds its workers. If there is none, it starts a session, which the feed
also uses. It begins before the job does. Its checkpoint is stored with the results: in the job's store, or with the
job.

Spark gives the Python process of a data source ten seconds to start. No setting extends this, and it can be too little
on a busy machine. A query that fails for this reason is restarted from its checkpoint, at most ATTEMPTS times.

A program may start, end and restart queries of its own (`OwnQueries`) as it likes; the job runs without one.
`start_reading` starts them, and handles those ten seconds. If the program waits for a job that waits for its results to
be read, and no query reads them for a while, neither would ever end. In that case the job fails, and its error gives
the reason why the query ended (`watch`).
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from megaflow.control.wording import Notice, quantity
from megaflow.errors import MegaflowError, OutputError
from megaflow.spark.kept_query import location_of
from megaflow.spark.preflight import temporary_folder
from megaflow.spark.query_spec import FILE_FORMATS, TIME_ZONE
from megaflow.spark.results_spec import FLAG, PASSING, ResultsSpec, check_arrow, check_python, has_arrow
from megaflow.spark.spark_errors import root_cause, text_of

POLL_SECONDS: Final = 0.5
FAREWELL_SECONDS: Final = 5.0
ATTEMPTS: Final = 10
LATE: Final = "failed to connect back"
ALONE_SECONDS: Final = 10.0  # for a program to restart its query
QUERY: Final = "query"  # the folder of the checkpoint
NOTED: Final = "done"  # the file of a query without Arrow
SHOWN_ROWS: Final = 20  # of a batch that is printed on the console, as in Spark
SHOWN_CHARACTERS: Final = 20


class Served(Protocol):
    """Results that a query reads: see `megaflow.job.launcher.outputs.spark_results`."""

    folder: Path
    job: str
    schema: str
    lock: int | None
    has_ended: bool  # no more rows will be written
    questions: int  # number of readers' questions so far

    @property
    def secret(self) -> bytes:
        """The secret that a reader proves to know."""

    def open_door(self, is_local: bool, driver: str) -> tuple[tuple[str, int], ...]:
        """Start serving readers. Return the addresses."""

    @property
    def unread(self) -> int:
        """The number of rows that Spark has not finished."""

    def fail(self, error: MegaflowError) -> None:
        """End the job, because the query has failed."""

    def use_zone(self, zone: str) -> None:
        """Let naive datetimes be in this time zone, in workers that start."""

    def forgo(self) -> None:
        """Stop waiting for readers."""

    def report(self, text: str) -> None:
        """Report a text to the user."""


def frame_of(session: Any, results: Served, observe: str = "") -> Any:
    """Return the streaming DataFrame of results, in a session whose executors can reach this process.

    `observe`: the name of the job's figures in Spark's metrics; "": there are none.
    """
    from megaflow.spark.results_source import results_frame

    return results_frame(session, replace(_place_of(session, results), observe=observe))


def _place_of(session: Any, results: Served) -> Any:
    from megaflow.spark.results_source import ResultsPlace

    context = session.sparkContext
    driver = str(context.getConf().get("spark.driver.host", "127.0.0.1"))
    addresses = results.open_door(str(context.master).startswith("local"), driver)
    return ResultsPlace(results.job, addresses, results.schema, results.secret)


@contextlib.contextmanager
def running_query(spec: ResultsSpec, results: Served, is_resumed: bool = False) -> Iterator[None]:
    """Run the query during the block. Raises OutputError, SourceError or UsageError if it cannot begin."""
    from megaflow.spark.spark_session import spark_session

    held = [] if results.lock is None else [results.lock]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(temporary_folder("megaflow-results-")))
        session = stack.enter_context(spark_session(folder, held, report=results.report))
        results.use_zone(session.conf.get(TIME_ZONE) or "")
        results.report(Notice("waiting for Spark to start the query of the results"))
        if is_resumed and not spec.is_compared and spec.format not in PASSING:
            results.report(Notice(f"not checked: whether {spec} and the store are of one moment"))
        query = Query(partial(failure, spec, session), _beginning(spec, session, results), results.fail)
        query.start()
        query.watcher.start()
        try:
            yield
        finally:
            query.stop()


def _beginning(spec: ResultsSpec, session: Any, results: Served) -> Callable[[], Any]:
    """Return a function that starts the query: one of Spark's or, without Arrow, its replacement."""
    checkpoint, noted = results.folder / QUERY, results.folder / NOTED
    if spec.format in FILE_FORMATS and (noted.exists() or not has_arrow()):
        if checkpoint.exists():
            check_arrow(f"{FLAG}{spec}: it began with Arrow")
        from megaflow.spark.results_batches import note, read_note, start_batches
        from megaflow.spark.results_source import reachable_place

        note(noted, read_note(noted))
        return lambda: start_batches(spec, session, reachable_place(session, _place_of(session, results)), noted)
    check_python(f"{FLAG}{spec}", session.sparkContext.pythonExec)
    return lambda: start_query(spec, frame_of(session, results), location_of(checkpoint))


def start_query(spec: ResultsSpec, frame: Any, checkpoint: str) -> Any:
    """Start the query. Output for the console is printed here, because Java's own output is not shown."""
    writer = frame.writeStream.option("checkpointLocation", checkpoint).outputMode("append")
    if spec.trigger_seconds:
        writer = writer.trigger(processingTime=f"{round(spec.trigger_seconds * 1000)} milliseconds")
    if spec.format != "console":
        return writer.format(spec.format).options(**spec.options).start(spec.path or None)
    rows = int(spec.options.get("numRows", SHOWN_ROWS))
    width = 0 if spec.options.get("truncate") == "false" else SHOWN_CHARACTERS

    def show(batch: Any, number: int) -> None:
        sys.stdout.write(f"Batch {number}\n{batch._jdf.showString(rows, width, False)}\n")
        sys.stdout.flush()

    return writer.foreachBatch(show).start()


class Query:
    """A running query, watched until it is stopped."""

    def __init__(
        self, failure: Callable[[Exception], OutputError], begin: Callable[[], Any],
        fail: Callable[[MegaflowError], None],
    ) -> None:  # fmt: skip
        """`begin` starts the query. `fail` is called if it ends by itself. `failure` words Spark's errors."""
        self._failure = failure
        self._begin = begin
        self._fail = fail
        self._attempts = 0
        self._query: Any = None
        self._stopping = threading.Event()
        self.watcher = threading.Thread(target=self._watch, name="megaflow-results", daemon=True)

    def start(self) -> None:
        """Start the query, several times if necessary. Raises OutputError."""
        while True:
            self._attempts += 1
            try:
                self._query = self._begin()
                return
            except MegaflowError:
                raise
            except Exception as error:
                if not self._may_be_late(error):
                    raise self._failure(error) from error

    def stop(self) -> None:
        """Stop the query."""
        self._stopping.set()
        self.watcher.join(FAREWELL_SECONDS)
        with contextlib.suppress(Exception):  # Java is gone or hangs; the end of the session handles this
            self._query.stop()

    def _may_be_late(self, error: BaseException) -> bool:
        return LATE in str(error) and self._attempts < ATTEMPTS and not self._stopping.is_set()

    def _watch(self) -> None:
        """Report if the query ends before it is stopped. Runs on its own thread."""
        while not self._stopping.wait(POLL_SECONDS):
            try:
                if self._query.isActive:
                    continue
                error = self._query.exception() or RuntimeError("the query was stopped from outside")
            except Exception as lost:  # raised by py4j or pyspark
                error = lost
            try:
                if not self._may_be_late(error):
                    raise self._failure(error)
                self.start()
            except MegaflowError as told:
                if not self._stopping.is_set():
                    self._fail(told)
                return


def start_reading(begin: Callable[[], Any], results: Served) -> Any:
    """Start a program's own query by `begin`. Return it once it reads results or has ended."""
    for _ in range(ATTEMPTS):
        before = results.questions
        query = begin()
        while query.isActive and results.questions == before:
            time.sleep(POLL_SECONDS)
        if results.questions > before or LATE not in str(query.exception()):
            break
    return query


class OwnQueries:
    """Queries of a program that read a job's results. For use by one thread."""

    def __init__(self, session: Any, job: str) -> None:
        from megaflow.spark.results_source import source_name

        self._session = session
        self._source = source_name(job)
        self._known = set[str]()  # runs of all queries seen so far
        self._last: Any = None  # the query that began last among those that read results

    @property
    def have_begun(self) -> bool:
        """Whether there has ever been such a query."""
        return self._last is not None

    def trouble(self) -> str | None:
        """Return why no query reads. None if one does, or if Spark does not report it."""
        try:
            for query in self._session.streams.active:
                if str(query.runId) not in self._known:
                    self._known.add(str(query.runId))
                    if self._source in str(query._jsq.streamingQuery().analyzedPlan().toString()):
                        self._last = query
            if self._last is None:
                return "no query reads them"
            if self._last.isActive:
                return None
            error = self._last.exception()
        except Exception:  # Java is gone, which ends the job anyway
            return None
        return "their query was stopped" if error is None else f"their query failed: {root_cause(text_of(error))}"


def watch(trouble: Callable[[], str | None], results: Served, is_running: Callable[[], bool]) -> None:
    """Fail a job that waits in vain for a program's own query to read its results. Returns when the job has ended.

    `trouble` returns why nothing reads the results that the program waits for, or None.
    """
    since: float | None = None
    while is_running():
        time.sleep(POLL_SECONDS)
        if (reason := trouble()) is None:
            since = None
            continue
        since = since or time.monotonic()
        if time.monotonic() - since < ALONE_SECONDS:
            continue
        if rows := results.unread:
            results.fail(OutputError(f"{quantity(rows, 'row')} of the results have no reader: {reason}"))
        elif results.has_ended:
            results.forgo()


def failure(spec: ResultsSpec, session: Any, error: Exception) -> OutputError:
    """Return the error for Spark's error, in one line."""
    from megaflow.spark.spark_session import why_over

    return OutputError(f"{FLAG}{spec}: {why_over(session, error) or root_cause(text_of(error))}")
