"""The data sources of Spark that programs find by name: `megaflow.spark.register`."""

import pickle
from typing import Any

from megaflow.errors import UsageError
from megaflow.job.kept_states import choose_states, read_as_json
from megaflow.spark import launching
from megaflow.spark.cluster import check_session
from megaflow.spark.results_spec import check_arrow, check_python


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

    Raises UsageError for a session of Spark Connect, or without `megaflow[arrow]` in the Python that Spark starts.
    """
    if not hasattr(session, "readStream"):
        raise UsageError(f"register: session must be a SparkSession, not {session!r:.80} ({type(session).__name__}).")
    check_session({}, session)
    check_arrow("register")
    check_python("register", session.sparkContext.pythonExec)
    launching.register_sources(session, pickle.dumps((choose_states, read_as_json)))
