"""The data sources of Spark that programs find by name: `megaflow.spark.register`."""

import pickle
import time
from typing import Any, Final

from megaflow.control.launcher_messages import ResultsAt, WhereResults
from megaflow.errors import NoAnswer, UsageError
from megaflow.job.admin_socket import ask_launcher
from megaflow.job.job_file import find
from megaflow.job.kept_states import choose_states, read_as_json
from megaflow.job.spec import Address
from megaflow.spark import launching
from megaflow.spark.cluster import check_session
from megaflow.spark.results_spec import check_arrow, check_python

ANSWER_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.1


def register(session: Any) -> None:
    """Let a Spark session find megaflow's data sources by name.

        megaflow.spark.register(spark)
        states = spark.read.format("megaflow-state").option("operator", "count").load("kept")

    `megaflow-state` reads the states of an operator from a store, the `state` folder of a job, which may be running.
    The path may also be the checkpointLocation of a query of `megaflow.spark.stateful`. The columns are `key` and
    `value`, as JSON in the form of `megaflow state export`, and `partition_id`, the bin of the key. Options:

    operator    the operator, if the store has several
    checkpoint  a checkpoint by number or name; by default the newest one when the frame is loaded
    modules     modules that define classes of keys and states, with commas between them; Spark's Python imports them

    `megaflow` reads the results of a job that another program of this user runs on this machine. That program started
    it by `megaflow run --output 'spark:megaflow?schema=COLUMNS'`, or by `megaflow.spark.run(…, schema=…)` without using
    `run.results`. Options:

    job         the name of the job
    consumer    the name of the only consumer; each row goes to one. "default", if it is not given

        totals = spark.readStream.format("megaflow").option("job", "spent").load()

    Raises UsageError for a session of Spark Connect, or without `megaflow[arrow]` in the Python that Spark starts.
    """
    if not hasattr(session, "readStream"):
        raise UsageError(f"register: session must be a SparkSession, not {session!r:.80} ({type(session).__name__}).")
    check_session({}, session)
    check_arrow("register")
    check_python("register", session.sparkContext.pythonExec)
    launching.register_sources(session, pickle.dumps((choose_states, read_as_json)), pickle.dumps(find_results))


def find_results(name: str, is_local: bool, driver: str) -> tuple[str, str, tuple[Address, ...], bytes]:
    """Return the id of a job's results, their schema, the addresses of their port, and the job's secret.

    Raises JobNotFound, NoAnswer, and UsageError if the job has no results for other programs.
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        job = find(name)
        try:
            answer = ask_launcher(job, WhereResults(is_local, driver), ResultsAt, ANSWER_SECONDS)
            break
        except NoAnswer:  # perhaps its launcher has just begun
            if time.monotonic() >= deadline:
                raise
        time.sleep(POLL_SECONDS)
    if answer.refused:
        raise UsageError(f"Job {name!r} has no results to read. {answer.refused}")
    return answer.job, answer.schema, answer.addresses, job.secret.encode()
