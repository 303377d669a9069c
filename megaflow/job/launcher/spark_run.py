"""A job between Spark's DataFrames: `megaflow.spark.run`.

The program owns Spark's session. The session prepares the frames and feeds the job, and its executors run the worker
processes. A process without a slot waits (see `on_spark`). The job's launcher is a thread of the driver (see
`started_job`).
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from megaflow.control.ddl import parse_ddl, schema_json
from megaflow.durable.incarnation import CHECKPOINTS_KEPT
from megaflow.errors import UsageError
from megaflow.job.launcher.epoch_merge import NothingWriter
from megaflow.job.launcher.function_pickler import pickle_app
from megaflow.job.launcher.python_function import naming_arguments
from megaflow.job.launcher.spark_results import SparkResults
from megaflow.job.launcher.started_job import JobHandle
from megaflow.job.spec import JobSpec
from megaflow.quick_dataclass import dataclass
from megaflow.spark.cluster import check_session
from megaflow.spark.kept_query import RESULTS
from megaflow.spark.results_query import OwnQueries, frame_of, start_reading, watch
from megaflow.spark.results_spec import check_arrow, check_python

ONLY_ROWS = "rows"  # what a frame is called that is given without a name


@dataclass(frozen=True)
class Run:
    """A job whose rows come from Spark and whose worker processes run on its executors.

    job     the job itself: `status()`, `move_bins(…)`, `stop()`, `wait()`
    results the output records, as a streaming DataFrame
    start_query starts the query that reads them

    Run is a context manager, like the job: leaving the block stops the job.
    """

    job: JobHandle
    _session: Any = field(repr=False)
    _output: SparkResults | None = field(repr=False)  # None: nobody wants it

    @cached_property
    def results(self) -> Any:
        """The results as a streaming DataFrame of the frames' session, with the columns of `schema`.

        One query reads it, and may be started again with its checkpointLocation. The job ends when the query has read
        all results; so does a query with `trigger(availableNow=True)`, which waits for all of them. So a job with a
        schema waits for a query, until the block is left. A failure of the job also ends the query. If the query ends
        before it has read all results, the job fails when the program waits for its end. Raises UsageError if the job
        was started without `schema` or has ended, and its failure if it has failed.
        """
        if self._output is None:
            raise UsageError("results: Name their columns by schema=, as in schema='word STRING, n LONG'.")
        if not self.job.is_running:
            self.job.wait()
            raise UsageError("results: The job ended before any query asked for them.")
        return frame_of(self._session, self._output)

    def start_query(self, begin: Callable[[], Any]) -> Any:
        """Start a query that reads the results, and return it: `run.start_query(lambda: frame.writeStream.….start())`.

        Spark fails a query whose Python takes more than ten seconds to start, as on a busy machine. In that case
        `begin` is called again, at most ten times. Blocks until the query reads or has ended. Raises what `begin`
        raises; the query itself raises its other failures.
        """
        if self._output is None:
            raise UsageError("start_query: The job has no results. Name their columns by schema=.")
        return start_reading(begin, self._output)

    def __enter__(self) -> Self:
        self.job.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._forgo()
        self.job.__exit__(kind, error, at)

    def _forgo(self) -> None:
        """Stop waiting for a query if the program never asked for results before the end."""
        if self._output is not None and "results" not in vars(self):
            self._output.forgo()

    def _watch(self, output: SparkResults) -> None:
        """See that program and job do not wait for each other. A thread."""
        queries = OwnQueries(self._session, output.job)

        def trouble() -> str | None:
            reason = queries.trouble()
            if self.job.is_stopping:
                self._forgo()
                return reason if "results" in vars(self) else None
            return reason if queries.have_begun and output.has_ended and self.job.is_awaited else None

        watch(trouble, output, lambda: self.job.is_running)


def run(
    frames: Any,
    dataflow: Callable[[Any], Any],
    schema: str | None = None,
    *,
    processes: int = 1,
    workers: int = 1,
    args: Sequence[str] = (),
    on: Any = None,
    name: str | None = None,
    state: str | os.PathLike[str] | None = None,
    close_windows: bool = False,
    checkpoint_every: float = 1.0,
    checkpoints_kept: int = CHECKPOINTS_KEPT,
    restarts: int = 3,
    shrink: bool = False,
    rename_state: Mapping[str, str] | None = None,
    drop_state: Sequence[str] = (),
    take_over: bool = False,
    drain_timeout: float | None = None,
    idle_timeout: float = 5.0,
    start_timeout: float = 120.0,
    ship: Sequence[str | os.PathLike[str]] = (),
    debug: bool = False,
) -> Run:
    """Start `dataflow(flow)` on worker processes on the executors of the frames' session; return the running job.

    `frames` is a dict of the inputs that the dataflow reads by `flow.rows(name)`, each a DataFrame, streaming or not;
    or one DataFrame, which it reads by `flow.rows()`. Blocks until the processes are started, some seconds. Raises
    UsageError, or ClusterError for too few slots, if they cannot start. A batch frame ends with its rows, a streaming
    frame when the job is stopped; the job ends when all frames have ended.

    Each process takes a slot of Spark's as long as it runs. Spark needs another slot to read the frames. `on` names the
    session, if it is ambiguous. megaflow, the function's file, the files beside it and those in `ship` are sent to the
    executors. The function travels by value if the executors cannot import it.

    All other arguments are those of `megaflow.run`. `state` must be a folder that all machines see under one path.
    """
    given = frames if isinstance(frames, Mapping) else {ONLY_ROWS: frames}
    with naming_arguments():
        check_session(given, on)
        spec = JobSpec(
            pickle_app(dataflow), processes, workers, tuple(args), name=name, debug=debug, drain_timeout=drain_timeout,
            state=None if state is None else os.path.abspath(state), checkpoint_every=checkpoint_every,
            checkpoints_kept=checkpoints_kept, restarts=restarts, shrink=shrink,
            renamed=tuple((rename_state or {}).items()), dropped=tuple(drop_state), take_over=take_over,
            idle_timeout=idle_timeout, close_windows=close_windows,
            on="", start_timeout_seconds=start_timeout, shipped=tuple(os.fspath(path) for path in ship),
        )  # fmt: skip
        session = on if on is not None else next(iter(given.values())).sparkSession
        if schema is None:
            return Run(JobHandle(spec, NothingWriter, rows=given), session, None)
        if not isinstance(schema, str):
            raise UsageError(f"schema must name columns in SQL, as in 'word STRING, n LONG', not {schema!r:.80}.")
        check_arrow("schema")
        check_python("schema", session.sparkContext.pythonExec)
        columns, opened = schema_json(parse_ddl(schema)), list[SparkResults]()

        def open_output(resumes: bool) -> SparkResults:
            opened.append(SparkResults(columns, RESULTS, spec.state, resumes))
            return opened[-1]

        job = JobHandle(spec, lambda: open_output(False), rows=given, resume_output=lambda: open_output(True))
        run = Run(job, session, opened[-1])
        threading.Thread(target=run._watch, args=(opened[-1],), name="megaflow-readers", daemon=True).start()
        return run
