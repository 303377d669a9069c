"""Worker processes on Spark's executors: each is a Spark job of one task, in its own job group.

1. Barrier mode is not used: a barrier stage fails as a whole, is not retried, and cannot grow.
2. The task's function travels by value (`in_task`), because executors may have no megaflow. It finds the files shipped
   with the job, adds them to the path, and only then unpickles its work.
3. Cancelling a job returns at once. Its slot is free after about 4 s, and then no part of the task is running.
4. Before it ends, a launcher waits a moment for the jobs (`join`). Spark reports the end of each task to the launcher's
   process, and would log an error if it were gone.
"""

import contextlib
import functools
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import InheritableThread, SparkContext, cloudpickle
from pyspark.sql import SparkSession

from megaflow.spark.shipping import serve
from megaflow.spark.slots import Slots, slots_seen
from megaflow.spark.spark_errors import root_cause
from megaflow.spark.spark_session import JAVA_ENDED, STOPPED, is_stopped, why_over

AVOID_SECONDS: Final = 10.0  # for Spark to learn which executor to avoid
JOIN_SECONDS: Final = 5.0  # for tasks to end after their processes
LOCAL: Final = "driver"  # the executor of a local master


def running(threads: list[threading.Thread]) -> Iterator[threading.Thread]:
    """Yield the threads that have not ended. A long job starts many, so the ended ones are forgotten."""
    return (each for each in threads if each.is_alive())


def in_task(archive: str, python: str, payload: bytes, _rows: Any) -> Any:
    """Run in a Spark task: execute the payload with the shipped files, and yield its result as text."""
    import os
    import pickle
    import sys
    from urllib.parse import parse_qs, urlsplit

    from pyspark import SparkFiles

    here = "{}.{}".format(*sys.version_info)
    if here != python:
        yield f"executors run Python {here}, but the launcher runs Python {python}"
        return
    folder = os.path.join(SparkFiles.getRootDirectory(), archive)
    for name in [name for name in sys.modules if name.partition(".")[0] == "megaflow"]:
        del sys.modules[name]  # left by an earlier task, perhaps of another version
    sys.path.insert(0, os.path.join(folder, "lib"))
    sys.path.append(os.path.join(folder, "deps"))
    log_url = os.environ.get("SPARK_LOG_URL_STDERR", "")
    parts = urlsplit(log_url)
    executor = parse_qs(parts.query).get("executorId", ["driver" if not log_url else "?"])[0]
    function = pickle.loads(payload)
    yield function(executor, parts.hostname or "", log_url, folder)


class TaskThread(InheritableThread):
    """Waits for the end of a worker process's task."""


class WorkerJobs:
    """Worker jobs of one session. Any thread may call it."""

    def __init__(self, session: SparkSession, archive: str, path: str) -> None:
        """`path` is a zip file with what executors need. They know it as `archive`."""
        self._session = session
        self._context: SparkContext = session.sparkContext
        self._archive = archive
        self._avoiding: list[threading.Thread] = []
        self._threads: list[threading.Thread] = []
        self._ids = f"megaflow-{uuid.uuid4().hex}"
        serve(self._context, archive, path)
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

    @property
    def master(self) -> str:
        """Spark's master."""
        return str(self._context.master)

    @property
    def is_local(self) -> bool:
        """Whether all executors are on this machine."""
        return self.master.startswith("local")

    @functools.cached_property
    def settings(self) -> dict[str, str]:
        """The settings that the session was started with."""
        return dict(self._context.getConf().getAll())

    @property
    def driver_host(self) -> str:
        """The address at which executors reach this machine, as Spark knows it."""
        return str(self._context.getConf().get("spark.driver.host", "127.0.0.1"))

    def slots(self) -> Slots:
        """Return how many tasks can run at the same time."""
        now = None
        with contextlib.suppress(Py4JError, OSError, TypeError, AttributeError):  # Java or the session is gone
            java = self._context._jsc.sc()
            now = int(java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()))
        return slots_seen(self.master, self.settings, now)

    def taken(self) -> int:
        """Return how many slots the worker processes of all jobs take or wait for. This process has one session."""
        return sum(isinstance(thread, TaskThread) for thread in threading.enumerate())

    def taken_by_others(self) -> int:
        """Return how many of these slots are of other jobs."""
        own = self._threads
        return sum(isinstance(thread, TaskThread) and thread not in own for thread in threading.enumerate())

    def submit(self, number: int, title: str, payload: bytes, ended: Callable[[str | None], None]) -> None:
        """Start a task that runs the payload. A thread calls `ended` with the error text, or with None.

        Spark's pages show the title.
        """
        python = "{}.{}".format(*sys.version_info)
        function = functools.partial(in_task, self._archive, python, payload)

        def run() -> None:
            try:
                for avoiding in self._avoiding:  # otherwise the task might start on the executor that does not answer
                    avoiding.join(AVOID_SECONDS)
                self._context.setJobGroup(self._group(number), title, interruptOnCancel=True)
                rows = self._context.parallelize([number], 1)
                answers = self._context.runJob(rows, function)
                ended(next((each for each in map(str, answers) if each != "done"), None))
            except Exception as error:
                ended(self._explain(error))

        thread = TaskThread(target=run, name=f"megaflow-task-{number}", daemon=True)
        thread.start()
        self._threads = [*running(self._threads), thread]

    def join(self) -> None:
        """Wait until all jobs have ended, at most JOIN_SECONDS."""
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def cancel(self, number: int) -> None:
        """End a job without waiting for its end."""
        self._aside("megaflow-cancel", lambda: self._context.cancelJobGroup(self._group(number)))

    def avoid(self, executor: str) -> None:
        """Start no more tasks on an executor whose machine does not answer. Spark would need two minutes to notice."""
        if executor not in (LOCAL, "?"):
            name, ask = "megaflow-avoid", lambda: self._context._jsc.sc().killAndReplaceExecutor(executor)
            self._avoiding = [*running(self._avoiding), self._aside(name, ask)]

    def why_lost(self, executor: str) -> str | None:
        """Return which part of Spark that an executor depends on has ended. None if none has, as far as is known."""
        process: subprocess.Popen[bytes] | None = getattr(self._context._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            return JAVA_ENDED
        if is_stopped(self._context):
            return STOPPED
        if executor in (LOCAL, "?"):
            return None
        try:
            alive = str(self._context._jsc.sc().getExecutorIds().mkString(",")).split(",")
        except (Py4JError, OSError, TypeError):
            return None
        return None if executor in alive else "its executor has ended"

    def _aside(self, name: str, ask: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            with contextlib.suppress(Py4JError, OSError, AttributeError):  # Java or the session is gone, with the task
                ask()

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def _group(self, number: int) -> str:
        return f"{self._ids}-{number}"

    def _explain(self, error: Exception) -> str:
        """Return in one line why a job has failed."""
        if over := why_over(self._session, error):
            return over
        text = str(error) or repr(error)
        if "PYTHON_VERSION_MISMATCH" in text:
            return f"executors run another Python than the launcher, {sys.version.split()[0]}: {PYTHON_REMEDY}"
        if "Cannot run program" in text:
            return f"executors have no {self._context.pythonExec}: {PYTHON_REMEDY}"
        return root_cause(text) if isinstance(error, Py4JJavaError) else text.partition("\n")[0]


PYTHON_REMEDY: Final = "set PYSPARK_PYTHON to a Python of the same version that all of them have"
