"""A job between Spark's DataFrames: `megaflow.spark.run`.

The program owns Spark's session. The session prepares the frames and feeds the job, and its executors run the worker
processes. A process without a slot waits (see `spark_provisioner`). The job's launcher is a thread of the driver (see
`started_job`).
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Self

from megaflow.control.reports import JobStatus
from megaflow.errors import UsageError
from megaflow.job.launcher.outputs.result_figures import watch_figures
from megaflow.job.launcher.outputs.spark_results import SparkResults
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.job_control import TIMEOUT_SECONDS
from megaflow.job.launcher.run.launch import LaunchOptions
from megaflow.job.launcher.run.python_function import FrameOptions, naming_arguments, takes_arguments, with_arguments
from megaflow.job.launcher.run.started_job import JobHandle
from megaflow.job.watching import Wanted, Watcher
from megaflow.rows.ddl import parse_ddl, schema_json, schema_text
from megaflow.spark.cluster import check_session
from megaflow.spark.job_progress import listen
from megaflow.spark.kept_query import RESULTS
from megaflow.spark.query_spec import TIME_ZONE
from megaflow.spark.results_query import OwnQueries, frame_of, start_reading, watch
from megaflow.spark.results_spec import check_arrow, check_python

ONLY_ROWS = "rows"  # name of a frame given without a name


@dataclass(frozen=True)
class Run:
    """A job whose rows come from Spark and whose worker processes run on its executors.

    job     the job itself: `status()`, `move_bins(…)`, `stop()`, `wait()`
    results the output records, as a streaming DataFrame
    start_query starts the query that reads them
    add_listener tells a StreamingQueryListener of the job

    Run is a context manager, like the job: leaving the block stops the job.
    """

    job: JobHandle
    _session: Any = field(repr=False)
    _output: SparkResults | None = field(repr=False)  # None: the job has no results
    _observe: str = field(repr=False, default="")  # name of the figures in Spark's metrics; "": there are none

    @cached_property
    def results(self) -> Any:
        """The results as a streaming DataFrame of the frames' session, with the columns of `schema`.

        One query reads it, and may be started again with its checkpointLocation. The job ends when the query has read
        all results. A query with `trigger(availableNow=True)` waits for all of them and then also ends. With another
        trigger the query idles after the job's end, until it is stopped. So a job with a schema waits for a query,
        until the block is left. A failure of the job also ends the query. If the query ends before it has read all
        results, the job fails when the program waits for its end. Raises UsageError if the job was started without
        `schema` or has ended. Raises the job's failure if it has failed.
        """
        if self._output is None:
            raise UsageError("results: Name their columns by schema=, as in schema='word STRING, n LONG'.")
        if not self.job.is_running:
            self.job.wait()
            raise UsageError("results: The job ended before any query asked for them.")
        if self._observe:
            watch_figures(self.job.name, self._output.figures)
        return frame_of(self._session, self._output, self._observe)

    def start_query(self, begin: Callable[[], Any]) -> Any:
        """Start a query that reads the results, and return it: `run.start_query(lambda: frame.writeStream.….start())`.

        Spark fails a query whose Python takes more than ten seconds to start, as on a busy machine. In that case this
        method calls `begin` again, at most ten times. Blocks until the query reads or has ended. Raises what `begin`
        raises; the query itself raises its other failures.
        """
        if self._output is None:
            raise UsageError("start_query: The job has no results. Name their columns by schema=.")
        return start_reading(begin, self._output)

    def add_listener(self, listener: Any) -> None:
        """Tell a `StreamingQueryListener` of the job as Spark tells it of a query: start, progress once a second, end.

        Its functions run on a thread of this process. In `event.progress`, `batchId` is an epoch, `numInputRows` and
        `numRowsUpdated` count from the start of the job, and `durationMs` has the latency as `latencyP50` and
        `latencyP99`.
        """
        def statuses() -> Iterator[JobStatus]:
            seen = Watcher((self.job.name, None, TIMEOUT_SECONDS), Wanted(events=False)).watch()
            return (each for each in seen if isinstance(each, JobStatus))

        listen(listener, self.job.name, statuses, self.job.failure_text)

    def __enter__(self) -> Self:
        self.job.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._forgo()
        self.job.__exit__(kind, error, at)

    def _forgo(self) -> None:
        """Stop waiting for a query if neither the program nor a consumer has asked for results before the end."""
        if self._output is not None and "results" not in vars(self) and not self._output.consumer:
            self._output.forgo()

    def _watch(self, output: SparkResults) -> None:
        """Keep program and job from waiting for each other. Runs in a thread of its own."""
        queries = OwnQueries(self._session, output.job)

        def trouble() -> str | None:
            if output.consumer:
                is_wanted = self.job.is_stopping or (output.has_ended and self.job.is_awaited)
                return output.consumer_trouble() if is_wanted else None
            reason = queries.trouble()
            if self.job.is_stopping:
                self._forgo()
                return reason if "results" in vars(self) else None
            return reason if queries.have_begun and output.has_ended and self.job.is_awaited else None

        watch(trouble, output, lambda: self.job.is_running)


@dataclass(frozen=True, slots=True)
class SparkOptions(FrameOptions):
    """The arguments of `megaflow.spark.run`."""

    frames: Any
    dataflow: Callable[[Any], Any]
    schema: Any = None  # a text or a StructType


@takes_arguments(SparkOptions)
def run(*given: Any, **named: Any) -> Run:
    """Start `dataflow(flow)` on worker processes on the executors of the frames' session; return the running job.

    `frames` is a dict of the inputs that the dataflow reads by `flow.rows(name)`, each a DataFrame, streaming or not.
    It may also be one DataFrame, which the dataflow reads by `flow.rows()`. Blocks until the processes are started,
    some seconds. Raises UsageError, or ClusterError for too few slots, if they cannot start. A batch frame ends with
    its rows, a streaming frame when the job is stopped; the job ends when all frames have ended.

    Each process takes a slot of Spark while it runs. Spark needs another slot to read the frames. `on` names the
    session, if it is ambiguous. megaflow, the function's file, the files beside it and those in `ship` are sent to the
    executors. The function travels by value if the executors cannot import it.

    Spark's `observedMetrics` of a query of the results have the job's figures under the name `observe`; None: none. All
    other arguments are those of `megaflow.run`. `state` must be a folder that all machines see under one path.
    """
    options = SparkOptions(*given, **named)
    on, schema = options.on, options.schema
    frames = options.frames if isinstance(options.frames, Mapping) else {ONLY_ROWS: options.frames}
    with naming_arguments():
        check_session(frames, on)
        observe = options.observed()
        spec = options.spec(pickle_app(options.dataflow), on="")
        session = on if on is not None else next(iter(frames.values())).sparkSession
        if schema is None:
            launched = LaunchOptions(spec, rows=frames, page=options.page())
            return Run(JobHandle(launched, wording=with_arguments), session, None)
        columns, opened = schema_json(parse_ddl(schema_text(schema))), list[SparkResults]()
        check_arrow("schema")
        check_python("schema", session.sparkContext.pythonExec)
        zone = session.conf.get(TIME_ZONE)

        def open_output(resumes: bool) -> SparkResults:
            opened.append(SparkResults(columns, RESULTS, spec.state, resumes, zone=zone))
            return opened[-1]

        opening, resuming = partial(open_output, False), partial(open_output, True)
        launched = LaunchOptions(spec, None, opening, resuming, frames, page=options.page())
        run = Run(JobHandle(launched, wording=with_arguments), session, opened[-1], observe)
        threading.Thread(target=run._watch, args=(opened[-1],), name="megaflow-readers", daemon=True).start()
        return run
