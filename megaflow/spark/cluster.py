"""A Spark session whose executors run worker processes: checks, starts and ends it. Imports pyspark on first use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from megaflow.errors import UsageError
from megaflow.spark import launching
from megaflow.spark.masters import check_master, check_name, reachable_driver
from megaflow.spark.preflight import check_installation, folder_of_a_session
from megaflow.spark.shipping import ship
from megaflow.spark.slots import slots_of, too_few
from megaflow.spark.worker_settings import check_settings, parse_on

RETRIES: Final = 4  # Spark's own default on a cluster; for a local master it is 1


@contextlib.contextmanager
def worker_jobs(
    master: str,
    conf: Mapping[str, str],
    app: str | None,
    shipped: Sequence[str],
    processes: int,
    feeds: bool,
    report: Callable[[str], None] = lambda text: None,
) -> Iterator[launching.WorkerJobs]:
    """Yield an object that submits worker processes, in an existing session or one that ends with the block.

    `master` "" means the existing session or, if there is none, a local master with as many slots as are needed.
    `feeds`: the session also reads the lines. `report` tells the user what the start waits for. Raises UsageError,
    SourceError or ClusterError. Blocks for some seconds.
    """
    from pyspark import SparkContext

    if SparkContext._active_spark_context is None:
        check_installation()
    elif conf:
        raise UsageError(
            f"--conf {next(iter(conf))}: A Spark session already exists. Set this where the session is created."
        )
    check_name(master)
    check_settings(conf)
    need = processes + feeds
    slots = slots_of(master, conf)
    if slots is not None and slots < need:
        raise UsageError(f"--on spark:{master}: {too_few(slots, processes, feeds)}.")

    from megaflow.spark.spark_session import spark_session
    from megaflow.spark.worker_jobs import WorkerJobs

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(folder_of_a_session())
        name, path = ship(folder, app, shipped)
        if not master and SparkContext._active_spark_context is None:
            master = f"local[{max(os.cpu_count() or 1, need)},{RETRIES}]"
        elif master.startswith("local[") and "," not in master:
            master = f"{master[:-1]},{RETRIES}]"
        check_master(master)
        more = {} if master.startswith("local") else reachable_driver(master)
        session = stack.enter_context(spark_session(folder, (), master, {**more, **conf}, report))
        jobs = WorkerJobs(session, name, path)
        check_settings(jobs.settings)
        stack.callback(jobs.join)
        yield jobs


def check_session(frames: Mapping[str, Any], on: Any = None) -> None:
    """Raise UsageError unless these are DataFrames of one session that can run jobs: that of `on`, if it is given."""
    if on is not None:
        master_of(on)
    for name, frame in frames.items():
        if not hasattr(frame, "isStreaming"):
            raise UsageError(
                f"The rows {name!r} must be a DataFrame of Spark, not {frame!r:.80} ({type(frame).__name__})."
            )
        from megaflow.spark.spark_session import check_frame

        check_frame(frame, f"the rows {name!r}")
        master_of(frame.sparkSession)


def master_of(on: Any) -> str:
    """Return the master that `on="spark[:MASTER]"` names. "" for an existing session, or if `on` is a session.

    Raises UsageError if `on` is neither, and for a session that cannot run code.
    """
    if isinstance(on, str):
        return parse_on(on)
    if not hasattr(on, "readStream"):
        raise UsageError(f"on must be 'spark', 'spark:MASTER' or a SparkSession, not {on!r:.80} ({type(on).__name__}).")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if not isinstance(on, SparkSession):
        raise UsageError(
            f"on must be a classic Spark session, not {type(on).__module__}.{type(on).__qualname__}: Spark "
            "Connect cannot run worker processes on the executors."
        )
    if on.sparkContext._jsc is None or SparkContext._active_spark_context is not on.sparkContext:
        raise UsageError("The Spark session has been stopped. Create a new one, and create its DataFrames again.")
    return ""
