"""A Spark session whose executors run worker processes: checks it, starts it, ends it. Imports pyspark on first use."""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from megaflow.errors import ClusterError, UsageError
from megaflow.spark.preflight import find_java, folder_of_a_session
from megaflow.spark.shipping import ship
from megaflow.spark.worker_settings import check_settings, parse_on, slots_of, too_few
from megaflow.timely.communication.tcp import parse_address

POLL_SECONDS: Final = 0.2
TOLD_SECONDS: Final = 10.0
MASTER_SECONDS: Final = 10.0  # for a master to let in who connects
RETRIES: Final = 4  # Spark's own default on a cluster; of a local master it is 1


class Jobs(Protocol):
    """Worker processes as jobs of Spark; see `worker_jobs.WorkerJobs`."""

    @property
    def is_local(self) -> bool:
        """Whether all executors are on this machine."""

    @property
    def is_elastic(self) -> bool:
        """Whether Spark has executors come as tasks wait."""

    @property
    def driver_host(self) -> str:
        """The address under which executors reach this machine, as Spark knows it."""

    def slots(self) -> int | None:
        """How many tasks can run at the same time by now."""

    def submit(self, number: int, payload: bytes, ended: Callable[[str | None], None]) -> None:
        """Have a task run the payload."""

    def cancel(self, number: int) -> None:
        """End a job."""

    def avoid(self, executor: str) -> None:
        """Have no more tasks on an executor whose machine does not answer."""

    def why_lost(self, executor: str) -> str | None:
        """Say what of Spark's has ended that an executor depends on."""


@contextlib.contextmanager
def worker_jobs(
    master: str, conf: Mapping[str, str], app: str | None, shipped: Sequence[str], processes: int, feeds: bool
) -> Iterator[Jobs]:
    """Give what submits worker processes, in a session that begins and ends with the block, or is there already.

    `master` is "" for that, or else for one of this machine with as many slots as are needed. `feeds`: the session
    reads the lines, too. Raises UsageError, SourceError; blocks for some seconds.
    """
    from pyspark import SparkContext

    if SparkContext._active_spark_context is None:
        find_java()
    elif conf:
        raise UsageError(
            f"--conf {next(iter(conf))}: A Spark session already exists. Set this where the session is created."
        )
    check_settings(conf)
    need = processes + feeds
    slots = slots_of(master)
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
        session = stack.enter_context(spark_session(folder, master=master, more={**more, **conf}))
        jobs = WorkerJobs(session, name, path)
        check_settings(jobs.settings)
        stack.callback(jobs.join)
        yield jobs


def check_session(frames: Mapping[str, Any], on: Any = None) -> None:
    """Raise UsageError unless these are DataFrames of one session, that of `on` if it is given, which can run jobs."""
    if on is not None:
        master_of(on)
    for name, frame in frames.items():
        if not hasattr(frame, "isStreaming"):
            raise UsageError(f"The rows {name!r} must be a DataFrame, not {frame!r:.80} ({type(frame).__name__}).")
        from megaflow.spark.spark_session import check_frame

        check_frame(frame, f"the rows {name!r}")
        master_of(frame.sparkSession)


def master_of(on: Any) -> str:
    """Return the master that `on="spark[:MASTER]"` names, "" for that of a session that is there, or for a session.

    Raises UsageError for what is neither, and for a session that no code can be run by.
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


def check_master(master: str) -> None:
    """Raise ClusterError if no standalone master answers at any of its addresses: Spark would try for a minute."""
    if not master.startswith("spark://"):
        return
    troubles = []
    for place in master.removeprefix("spark://").split(","):
        try:
            host, port = parse_address(place)
            with socket.create_connection((host, port), MASTER_SECONDS):
                return
        except OSError as error:
            troubles.append(f"{place} ({error.strerror or error})")
    raise ClusterError(f"--on spark:{master}: No Spark master answers at {', '.join(troubles)}.")


def reachable_driver(master: str) -> dict[str, str]:
    """Return the settings by which executors find the driver: the address that faces the master.

    >>> reachable_driver("spark://127.0.0.1:7077")["spark.driver.host"]
    '127.0.0.1'
    """
    host = urlsplit(master.partition(",")[0]).hostname
    if host is None:
        return {}
    try:
        found = socket.getaddrinfo(host, 7077, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[4])  # of a datagram socket: nothing is sent
            own = probe.getsockname()[0]
    except OSError as error:
        raise UsageError(f"--on spark:{master}: Cannot reach {host}: {error.strerror or error}.") from error
    return {"spark.driver.host": own, "spark.driver.bindAddress": own}


def await_slots(
    jobs: Jobs,
    processes: int,
    feeds: bool,
    seconds: float,
    report: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until Spark has as many slots as are needed; raises ClusterError, with both numbers, if it has not in time.

    A starved source is silent, and a process that is not started keeps the others waiting. Where executors come as
    tasks wait, nobody waits here.
    """
    need, began, told = processes + feeds, time.monotonic(), 0.0
    while not jobs.is_elastic:
        slots = jobs.slots()
        if slots is None or slots >= need:
            return
        waited = time.monotonic() - began
        if waited >= seconds:
            raise ClusterError(f"{too_few(slots, processes, feeds)} (waited {seconds:g} s: --start-timeout)")
        if waited - told >= TOLD_SECONDS:
            told = waited
            report(f"waiting for Spark's executors: they have {slots} of {need} slots")
        pause(POLL_SECONDS)
