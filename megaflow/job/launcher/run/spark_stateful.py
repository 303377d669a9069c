"""A fold as an operation on a DataFrame: `megaflow.spark.stateful`. Its result is a DataFrame, which one query reads.

The result is a data source of Spark in Python (see `spark.results_source`). A job starts when its query first asks for
an offset, and ends with the query. Readers reach the job through a door of this process that exists as long as the
frame (`Door`). The frame of a batch has no job: Spark's own tasks run the fold (see `spark.stateful_rows`).

Any process may be killed. Nevertheless each row enters the fold once, and each output row reaches the query's sink
once. Two records exist: the job's store and the query's checkpoint. The store is a folder in the checkpoint, so both
are removed, copied and restored together.

1. The job's store leads. A commit of the store contains, as of one time, the states, the position in the input (the
   newest batch of the query that feeds the job, see `spark.kept_query`), and the length of the log of results. After a
   crash the job continues from the newest commit. It cuts the log back to that length, and the feeding query repeats
   the batches behind that position, with the rows that Spark recorded for them. So the states and the log have the
   effect of each input row once.
2. The query's checkpoint follows. Its offsets are places in the log, with the id that the store gives the log. The
   query sees only rows below the length in a durable commit, and no cut goes below that. So the rows between two places
   never change, and nothing that the query has seen is computed again.
3. If the query crashed, it repeats at most its last batch: the same places, hence the same rows. Spark's sink drops the
   repeated batch by its number, like that of any source. The log keeps these rows, because it releases rows only
   when the query asks for those that follow them, and Spark asks after it has recorded the batch as done.
4. So there is no order in which the two must be written. The store may be ahead: the query then reads the rest. The
   query is never ahead, because it reads only what a commit contains. If it is ahead, or names another log, one of the
   two was exchanged, and the log refuses it (`results_log`, rule 6).
5. When a query ends, its job is ended at once, without another commit. It is the case of a crash, so the next start
   relies on nothing else. It waits until the ended job has released the store.
6. Each run of a query has its own job. A reader belongs to the query that asks first. Until that query has ended every
   other one is refused, because each row goes to one query. If two ask before a job exists, none of them gets it,
   because a reader cannot name its query.
"""

import contextlib
import logging
import os
import re
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from datetime import tzinfo
from functools import partial
from typing import Any, Final

from megaflow.control.client.conversation import Conversation
from megaflow.control.reports import JobStatus
from megaflow.control.results_messages import RESULTS_ROLE, Open, Opened, ResultsRefused
from megaflow.control.wording import quantity
from megaflow.errors import MegaflowError, ProtocolError, UsageError
from megaflow.job.kept_states import STORE
from megaflow.job.launcher.outputs.result_figures import watch_figures
from megaflow.job.launcher.outputs.spark_results import SparkResults
from megaflow.job.launcher.processes.agent_door import AgentDoor
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.job_control import JobControl
from megaflow.job.launcher.run.launch import LaunchOptions
from megaflow.job.launcher.run.published_job import job_title, program_name
from megaflow.job.launcher.run.python_function import FrameOptions, naming_arguments, takes_arguments, with_arguments
from megaflow.job.launcher.run.started_job import JobHandle
from megaflow.job.spec import PickledFunction
from megaflow.rows.ddl import parse_ddl, schema_json, schema_text
from megaflow.rows.result_rows import zone_of
from megaflow.spark.cluster import check_session
from megaflow.spark.kept_query import RESULTS
from megaflow.spark.query_spec import TIME_ZONE, RowFrames
from megaflow.spark.results_query import ATTEMPTS, LATE
from megaflow.spark.results_spec import check_arrow, check_python
from megaflow.spark.row_packing import check_columns
from megaflow.spark.spark_errors import root_cause, text_of
from megaflow.spark.stateful_frame import (
    batch_result,
    check_fold,
    check_trigger,
    event_column,
    feed_seconds,
    grouped_frame,
    key_places,
    streaming_result,
)
from megaflow.spark.stateful_rows import Fold, register_rows, stateful_flow
from megaflow.spark.stateful_timers import EventColumn, TimerFold, has_timers, timed_flow
from megaflow.timely.communication.role_handlers import Connection

ROWS: Final = "rows"  # name of the job's input
POLL_SECONDS: Final = 0.5
ENDING_SECONDS: Final = 60.0  # for the job of an ended query to release its store
SOURCE: Final = "megaflow_"  # prefix of the data source of a frame, which the plans of its queries contain
_TEMPORARY: Final = re.compile(r"temporary-[0-9a-f-]{36}")  # Spark's name for a checkpoint that it removes
_SOURCES: Final = re.compile(rf"\b{SOURCE}[0-9a-f]{{32}}\b")

log = logging.getLogger("megaflow.job")


@dataclass(frozen=True, slots=True)
class StatefulOptions(FrameOptions):
    """The arguments of `megaflow.spark.stateful`."""

    grouped: Any
    fold: Fold | TimerFold
    schema: Any  # a text or a StructType
    _: KW_ONLY
    event_time: str | None = None
    tuples: bool = False


class FrameJob(JobControl):
    """The job behind a stateful frame: `totals.megaflow`. It exists while the frame's query runs.

    It has the commands of `megaflow control`. `handle` is its JobHandle.
    """

    def __init__(self, door: "Door") -> None:
        self._door = door

    @property
    def handle(self) -> JobHandle:
        """The job of the running or latest query. Raises UsageError if none has started."""
        if self._door.handle is None:
            raise UsageError("The job of a stateful frame starts with the frame's query, and none has started one yet.")
        return self._door.handle

    @property
    def is_running(self) -> bool:
        """Whether a job has started and not ended."""
        return self._door.handle is not None and self._door.handle.is_running

    @property
    def name(self) -> str:
        """The job's name, for `megaflow control --job`."""
        return self.handle.name

    def status(self) -> JobStatus:
        """Return workers, rates, latency, bins and moves.

        While the job starts for a query, the state is "starting", and `output` says what the job waits for.
        """
        return self._door.starting or super().status()

    def start_query(self, start: Callable[[], Any]) -> Any:
        """Start the frame's query, and return it once its job runs: `start_query(lambda: writer.start(path))`.

        Spark fails a query whose Python takes more than ten seconds to start, as on a busy machine. In that case this
        method calls `start` again, at most ten times. Blocks until the job has started or the query has ended. Raises
        what `start` raises; the query itself raises its other failures.
        """
        for _ in range(ATTEMPTS):
            before, query = self._door.handle, start()
            while query.isActive and self._door.handle is before:
                time.sleep(POLL_SECONDS)
            if self._door.handle is not before or LATE not in str(query.exception()):
                break
        return query

    def _conversation(self, back_seconds: float | None = None) -> contextlib.AbstractContextManager[Conversation]:
        return self.handle._conversation(back_seconds)


@takes_arguments(StatefulOptions)
def stateful(*given: Any, **named: Any) -> Any:
    """Fold the rows of each key of a grouped DataFrame, in order, with a state per key; return the outputs' DataFrame.

        def add(customer, order, total):
            total = (total or 0) + order.amount
            return total, [(customer, total)]

        totals = megaflow.spark.stateful(orders.groupBy("customer"), add, schema="customer STRING, total LONG")

    `grouped` is `frame.groupBy(…)` of one or several columns, by name, of simple types. `fold(key, row, state) ->
    (state, outputs)` gets the key, a Row of all columns, and the key's state, None for a new key. The key is the value
    of the column, or a Row of those of several columns. Values are those of Spark's Python functions, so a TIMESTAMP is
    a naive datetime in the worker's time zone. Return None as state to forget the key. `outputs` is a list of tuples,
    or of Rows, dicts or NamedTuples with the names of the columns. `schema` names and types them in SQL.

    With `tuples`, keys and rows are the values that travel, and the fold is faster: a row is a tuple, a timestamp an
    int of microseconds, a date an int of days.

    For timers, `fold` is an object with the methods `on_row(key, row, state, timers)` and `on_timer(key, payload,
    state, timers)`, which return (state, outputs). `timers` is a RowTimers, with `at_event(timestamp, payload)`,
    `after(seconds, payload)` and `watermark`. Event time is the column that `withWatermark` names. `event_time` chooses
    one of several, and names the column of a batch frame. A window counts as its start. Below a union, `withWatermark`
    is refused: call it after the union. With a store, timers that are left at the end of the input wait for the next
    run, unless `close_windows` is set.

    A streaming frame gives a streaming DataFrame. The call itself starts nothing. A query of the DataFrame starts a job
    of `processes` worker processes on the session's executors. Each takes a slot. The query blocks in its first batch
    until the job has started, some seconds. The job ends with the query. The same code resumes both from the
    query's checkpointLocation. Each row counts once, also if workers, executors or the driver are killed. The job's
    store is in the checkpoint, or in the folder `state`; all machines must see it under one path. If a query reads
    several results, as in a union, each needs a `state` and an `observe` of its own. Without a
    checkpointLocation nothing resumes, and the loss of a worker process fails the query.

    The rows of a key come in Spark's order within a batch, batch after batch. One query at a time reads the DataFrame;
    a second one fails, as does a query that reads it twice. `trigger(availableNow=True)`, from PySpark 4.2 on, folds
    the rows that exist at the start. The interval of `trigger(processingTime=…)` is also that of reading the input. An
    error of the fold fails the query. Its `exception()` has the traceback.

    `frame.megaflow` of the result is a FrameJob, with the running job. Spark's `observedMetrics` have the job's figures
    under the name `observe`; None: they have none. The other arguments are those of `megaflow.run`. Cost of a row: some
    microseconds more than a fold on tuples, to make the Row.

    A batch frame gives a batch DataFrame without a job, and the other arguments do not matter. Spark shuffles the rows
    by key and runs the fold in its tasks, whenever the result is computed. Each task keeps the states of its keys in
    memory. The rows of a key come in no particular order, or by event time if the fold has timers.

    Raises UsageError for wrong arguments. Needs `megaflow[arrow]` in the Python that Spark starts.
    """
    options = StatefulOptions(*given, **named)
    with naming_arguments():
        frame, keys = grouped_frame(options.grouped)
        check_frame(frame, options.on)
        check_fold(options.fold)
        places = key_places(frame, keys)
        columns = schema_text(options.schema)
        schema = schema_json(parse_ddl(columns))
        event = event_column(frame, options.fold, options.event_time)
        if not frame.isStreaming:
            return batch_result(frame, options.fold, places, columns, event, options.tuples)
        zone = zone_of(frame.sparkSession.conf.get(TIME_ZONE))
        app = pickle_app(dataflow_of(options.fold, frame.schema.json(), places, event, options.tuples, zone))
        name = getattr(options.fold, "__name__", type(options.fold).__name__)
        return streaming_frame(options, app, RowFrames({ROWS: frame}, is_of_a_query=True), name, schema)


def check_frame(frame: Any, session: Any) -> None:
    """Raise UsageError for a frame whose rows cannot travel, or of another session."""
    check_session({ROWS: frame}, session)
    check_columns(None, frame)


def streaming_frame(options: FrameOptions, app: PickledFunction, rows: RowFrames, name: str, schema: str) -> Any:
    """Return the streaming DataFrame whose query starts the job of an app on these rows. `name`: that of its fold."""
    frame: Any = rows.frames[ROWS]
    session = frame.sparkSession
    app = replace(app, name=name)  # not that of the function around the fold, which users do not know
    check_arrow("schema")
    check_python("schema", session.sparkContext.pythonExec)
    register_rows()  # as states, which `control.get` returns
    observe = options.observed()
    door = Door(session, partial(begin, options, app, rows, name, schema), bool(observe))
    result = streaming_result(session, door.source, door.addresses, schema, door.secret, observe)
    result.megaflow = FrameJob(door)
    return result


def dataflow_of(
    fold: Any, schema: str, places: list[int], event: EventColumn | None, has_tuples: bool, zone: tzinfo
) -> Callable[[Any], Any]:
    """Return the dataflow of a fold. It counts as the fold's module, whose file and neighbours travel to executors."""

    def dataflow(flow: Any) -> Any:
        if has_timers(fold):
            return timed_flow(flow, fold, schema, places, event, has_tuples, zone)
        return stateful_flow(flow, fold, schema, places, has_tuples, zone)

    dataflow.__module__ = getattr(fold, "__module__", None) or type(fold).__module__
    return dataflow


def begin(
    options: FrameOptions, app: PickledFunction, rows: RowFrames, name: str, schema: str, query: Any, door: AgentDoor,
    note: Callable[[str, str], None],
) -> tuple[JobHandle, SparkResults]:  # fmt: skip
    """Start the job for a query. Blocks until its processes are started. Raises why they cannot start.

    `note` gets the job's name, and what it reports.
    """
    opened = list[SparkResults]()
    run = query._jsq.streamingQuery()
    state = options.state
    if state is None and (state := store_of(str(run.resolvedCheckpointRoot()))) is not None:
        check_alone(str(run.analyzedPlan().toString()))
    title = title_of(query.name, name)
    spec = replace(options, state=state).spec(app, on="", title=title)
    processes = quantity(options.processes, "worker process")
    note(title, f"it starts {processes} in Spark")
    log.info("the %s starts the job %r of %s", titled(query), title, processes)

    def open_output(resumes: bool) -> SparkResults:
        opened.append(SparkResults(schema, RESULTS, spec.state, resumes, door=door, zone=zone))
        return opened[-1]

    frame: Any = rows.frames[ROWS]
    zone = frame.sparkSession.conf.get(TIME_ZONE)
    fed = replace(rows, trigger_seconds=feed_seconds(run.trigger().toString()))
    launched = LaunchOptions(
        spec, None, partial(open_output, False), partial(open_output, True), fed, page=options.page()
    )

    def wording(text: str) -> str:
        note(title, text)
        return with_arguments(text)

    return JobHandle(launched, wording=wording), opened[-1]


def title_of(query: str | None, fold: str) -> str:
    """Return the default name of a job: that of the query, or those of the program and the fold.

    >>> title_of("totals", "add"), title_of(None, "add").rpartition("-")[2]
    ('totals', 'add')
    """
    return job_title(query or f"{program_name()}-{fold}")


def check_alone(plan: str) -> None:
    """Raise UsageError if a query reads several stateful frames, because one store in its checkpoint is for one job.

    >>> check_alone(f"StreamingRelation {SOURCE}{'0' * 32}")
    """
    if len({*_SOURCES.findall(plan)}) > 1:
        raise UsageError(
            "The query reads several stateful frames, and the job of each needs a folder for its states. Name a "
            "different one for each by state=."
        )


def store_of(checkpoint: str) -> str | None:
    """Return the folder of the job's store in a query's checkpoint; None for a checkpoint that Spark removes.

    >>> store_of("file:/data/a b"), store_of("file:/tmp/temporary-a5157434-780a-4473-b654-f4f542ec21fa")
    ('/data/a b/megaflow', None)
    >>> store_of("hdfs://host/data")
    Traceback (most recent call last):
        ...
    megaflow.errors.UsageError: The query's checkpoint is at hdfs://host/data, where the job's store cannot be. ...
    """
    scheme, colon, path = checkpoint.partition(":")
    if scheme != "file" or not colon:
        raise UsageError(
            f"The query's checkpoint is at {checkpoint}, where the job's store cannot be. Name a folder for it by "
            "state=."
        )
    path = "/" + path.lstrip("/")
    return None if _TEMPORARY.fullmatch(os.path.basename(path)) else os.path.join(path, STORE)


class Door:
    """Port of a stateful frame for the readers of its queries: starts a job for each query, one after another.

    The port and its thread stay until the program ends.
    """

    def __init__(self, session: Any, begin: Callable[..., tuple[JobHandle, SparkResults]], observes: bool) -> None:
        """`begin` starts the job for a query. `observes`: whether Spark's metrics have the job's figures."""
        self.source = f"{SOURCE}{uuid.uuid4().hex}"  # name of the data source
        self.secret = secrets.token_hex(32).encode()
        self.handle: JobHandle | None = None
        self.starting: JobStatus | None = None  # the status of a job that starts
        self._session = session
        self._begin = begin
        self._observes = observes
        self._query: Any = None  # the query to which the job belongs
        self._attending: threading.Thread | None = None  # until that query and its job have ended
        self._results: SparkResults | None = None
        self._readers: dict[Connection, SparkResults | None] = {}  # None: its job starts. Used by the door's thread
        self._turn = threading.Lock()  # for starting a job
        context = session.sparkContext
        driver = str(context.getConf().get("spark.driver.host", "127.0.0.1"))
        is_local = str(context.master).startswith("local")
        self._door = AgentDoor(is_local, driver, self.secret, self, RESULTS_ROLE)
        self.addresses = self._door.addresses

    # Calls of the door's thread

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Accept a reader, or a task that takes rows."""

    def received(self, connection: Connection, value: Any) -> None:
        """Start a job for a reader, or pass its question on. Raises ProtocolError."""
        if type(value) is Open:
            self._readers[connection] = None
            threading.Thread(target=self._open, args=(connection,), name="megaflow-query", daemon=True).start()
            return
        results = self._readers.get(connection, self._results)
        if results is None:
            raise ProtocolError("A reader asked for rows before its job had started.")
        results.received(connection, value)

    def lost(self, connection: Connection) -> None:
        """Forget a reader."""
        if (results := self._readers.pop(connection, self._results)) is not None:
            results.lost(connection)

    # A thread for each reader

    def _open(self, connection: Connection) -> None:
        """Start the job of a reader's query, and answer."""
        results: SparkResults | None = None
        answer: Opened | ResultsRefused
        try:
            with self._turn, naming_arguments():
                results = self._start(self._asking())
            answer = Opened(results.job)
        except Exception as error:  # of the start, or raised by py4j
            text = str(error) if isinstance(error, MegaflowError) else root_cause(text_of(error))
            answer = ResultsRefused(text)

        def tell() -> None:
            if connection in self._readers:
                self._readers[connection] = results
                connection.send(answer)

        self._door.call(tell)

    def _asking(self) -> Any:
        """Return the query of a reader that has no job. Raises UsageError if it may not have one."""
        active = {str(query.runId): query for query in self._session.streams.active if self._count_in(query)}
        if self._query is not None and self._query.isActive:
            raise UsageError(one_reader(titled(self._query)))
        if len(active) != 1:
            raise UsageError(one_reader(" and ".join(map(titled, active.values())) or "no running query"))
        [query] = active.values()
        if self._count_in(query) > 1:
            raise UsageError(
                f"The {titled(query)} reads a stateful frame twice, as a join or union with itself does. Each row goes "
                "to one reader: write the frame to a table, and join that."
            )
        check_trigger(query._jsq.streamingQuery().trigger().toString())
        return query

    def _count_in(self, query: Any) -> int:
        return str(query._jsq.streamingQuery().analyzedPlan().toString()).count(self.source)

    def _start(self, query: Any) -> SparkResults:
        """Start the job of a query, after the end of the previous query's job."""
        if self._attending is not None:
            self._attending.join(ENDING_SECONDS)
            if self._attending.is_alive():
                raise UsageError(
                    f"The job of the previous query has not ended after {ENDING_SECONDS:g} s. Start the query again."
                )

        def note(job: str, text: str) -> None:
            if is_starting:
                self.starting = JobStatus(job, "starting", None, None, (), (), output=text)

        is_starting = True
        try:
            self.handle, self._results = self._begin(query, self._door, note)
        finally:
            is_starting, self.starting = False, None
        self._query = query
        work = partial(attend, query, self.handle, self._results)
        self._attending = threading.Thread(target=work, name="megaflow-query-end", daemon=True)
        self._attending.start()
        if self._observes:
            watch_figures(self.handle.name, self._results.figures)
        return self._results


def titled(query: Any) -> str:
    """Return a query's name or id for a message."""
    return f"query {query.name!r}" if query.name else f"query {query.id}"


def one_reader(active: str) -> str:
    """Return the error text for a second query."""
    return (
        f"One query at a time reads a stateful frame, and these do: {active}. To write its rows to several places, use "
        "foreachBatch; for another query with states of its own, call megaflow.spark.stateful again."
    )


def attend(query: Any, handle: JobHandle, results: SparkResults) -> None:
    """Wait for the end of a query, then end its job. Runs on a thread of its own.

    A job that has done its work and waits only for the query ends by itself. Another is ended at once: see rule 5.
    """
    with contextlib.suppress(Exception):  # the query's error, which its user sees, or Java is gone
        while handle.is_running and not query.awaitTermination(POLL_SECONDS):
            pass
    results.forgo()
    with contextlib.suppress(MegaflowError, TimeoutError):
        if results.has_ended:
            handle.wait(ENDING_SECONDS)
    if handle.is_running:
        handle.end()
    log.info("the job %r has ended with its query", handle.name)
