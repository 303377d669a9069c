"""Lines from Spark Structured Streaming, fed into a running job.

`SparkFeed` runs in the launcher. For each micro-batch of the query

1. the coordinator tells the ingest ports of the workers,
2. every Spark task stages its partition at one of them (`megaflow.spark.push`),
3. the coordinator is asked to commit the attempts that Spark reports as successful, one a
   partition, and answers when the workers can take more.

Staged lines that are not committed never enter the stream, and a batch is committed once, so
retried tasks and replayed batches neither add nor lose a line while the job lives. The
checkpoint is the job's and goes with it. If the job has a store it is in there and stays
(`megaflow.spark.kept_query`), and what the coordinator answers means that the batch is durable.

Each partition is staged at one worker, which keeps its order. The lines of a batch enter the stream when all of the
one before have (see `megaflow.control.coordinator.spark_commits`); meanwhile Spark stages it, so between two batches
that costs a tick or two, some 10 ms. If the specification says `unordered` they need not wait. Measured in turns with
twelve batches of 100,000 lines, in order and unordered: 143 and 142 thousand lines/s as rows in one process, 176 and
195 in two, 305 and 315 as Arrow in two, where runs of one kind differed by a third and more.

The coordinator may change, but not while a batch is being staged. The old one says where the next one is, which knows
what was committed; if the old one has left when it is asked, the launcher has been told where the next one is (`move`).
"""

import functools
import logging
import re
import tempfile
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megaflow.control import messages
from megaflow.control.client.conversation import Conversation, Stopped
from megaflow.errors import ClusterError, CommandRefused, MegaflowError, SourceError, SourceLost
from megaflow.spark.kept_query import KeptQuery
from megaflow.spark.preflight import check_spark
from megaflow.spark.push import StageJob, Transfer, choose_transfer, push_frame
from megaflow.spark.query_spec import TRIGGER_SECONDS, SparkSpec
from megaflow.timely.communication.client import Client

CONNECT_TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.1  # how late a stop or the end of the query is noticed
MOVED_SECONDS = 5.0  # for the launcher to hear where the next coordinator is
FAREWELL_SECONDS = 5.0  # to tell the coordinator that a stopped source has ended

log = logging.getLogger("megaflow.spark")


@dataclass(eq=False, repr=False)
class SparkFeed:
    """One streaming query that feeds a job.

    `lines` is a spec, for which a Spark session is started and ended, or a streaming DataFrame of the
    caller's session; or either as a KeptQuery. `on_change` is called once, on a thread of the feed's own,
    when the query has ended or failed; from then on `done` is true and `error` says why if it failed.
    `report` is told, on the same thread, how the lines leave Spark.
    """

    _lines: SparkSpec | Any
    _coordinator: tuple[str, int]  # host, port; written by `move`
    _secret: bytes
    _on_change: Callable[[], None] = lambda: None
    _report: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        self._kept = self._lines if isinstance(self._lines, KeptQuery) else None
        if self._kept is not None:
            self._lines = self._kept.lines
        self._name = str(self._lines) if isinstance(self._lines, SparkSpec) else "the streaming DataFrame"
        # The id under which the batches are committed.
        self.query = uuid.uuid4().hex if self._kept is None else self._kept.name
        self._ordered = not (isinstance(self._lines, SparkSpec) and self._lines.unordered)
        self._connected_to = self._coordinator  # at last; written by the thread that asks
        self._stopping = threading.Event()
        self.error: Exception | None = None  # why the query failed; written by the feed's thread, before `done`
        self.done = False  # whether the query has ended or failed; written by the feed's thread
        self._batch_error: Exception | None = None  # written by Spark's callback thread, read when the query is over
        self._thread = threading.Thread(target=self._run, name="megaflow-spark", daemon=True)

    def start(self) -> None:
        """Begin, without blocking."""
        self._thread.start()

    def move(self, coordinator: tuple[str, int]) -> None:
        """Learn where the coordinator is from now on. Any thread."""
        self._coordinator = coordinator

    def stop(self) -> None:
        """Ask the query to end, without blocking; what is committed stays. Any thread, any time, more than once."""
        self._stopping.set()

    def join(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the session is shut down and its files are gone; False if the time was too short."""
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                try:
                    self._feed(stack)
                except Exception as error:
                    self.error = self._explain(error)
                self.done = True
                self._on_change()
        except Exception:
            # The query is over and reported; only the cleaning up went wrong.
            log.warning("the Spark session did not end cleanly", exc_info=True)

    def _feed(self, stack: ExitStack) -> None:
        """Run the query to its end, leaving to `stack` what is to be cleaned up."""
        if isinstance(self._lines, SparkSpec):
            check_spark(self._lines)
        from megaflow.spark import spark_session as spark  # the first import of pyspark

        transfer, how = choose_transfer()
        self._report(how)
        temporary = tempfile.TemporaryDirectory(prefix="megaflow-spark-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(temporary))
        coordinator = self._converse()
        stack.callback(coordinator.close)
        held, checkpoint = list[int](), str(folder / "checkpoint")
        if self._kept is not None:
            held.append(stack.enter_context(self._kept.held(self._stopping.wait, self._report)))
            checkpoint = self._kept.record.as_uri()
        if isinstance(self._lines, SparkSpec):
            session = stack.enter_context(spark.spark_session(folder, held))
            frame, trigger_seconds = spark.open_source(session, self._lines), self._lines.trigger_seconds
        else:
            frame, trigger_seconds = spark.check_frame(self._lines), TRIGGER_SECONDS
            session = frame.sparkSession
        try:
            stage = functools.partial(self._stage_batch, coordinator, transfer)
            query = spark.start_query(spark.only_lines(frame), checkpoint, trigger_seconds, stage)
            while query.isActive:
                if self._stopping.wait(POLL_SECONDS):
                    query.stop()
            failure = query.exception()
        except Exception as error:
            if spark.java_ended(session, error):
                raise SourceLost(f"{self._name}: Spark's Java process has ended unexpectedly") from error
            raise
        if failure is not None and not self._stopping.is_set():
            raise self._batch_error or failure
        if self._kept is None or not self._stopping.is_set():  # a query that is stopped has not ended: it goes on later
            self._tell_ended(coordinator)

    def _converse(self) -> Conversation:
        """Return a conversation with the coordinator that follows it. Raises what `Client.connect` does.

        It keeps its connection as long as that lasts: the coordinator takes its end for the end of what is staged.
        """
        client = self._connect(*self._coordinator)
        return Conversation(
            client, None, self._connect, self._find, patience_seconds=MOVED_SECONDS, stopping=self._stopping.wait
        )

    def _connect(self, host: str, port: int) -> Client:
        self._connected_to = (host, port)
        return Client.connect(host, port, self._secret, "control", {}, CONNECT_TIMEOUT_SECONDS)

    def _find(self) -> Client | None:
        """Connect to the next coordinator; None as long as the launcher has not heard of another one."""
        coordinator = self._coordinator
        return None if coordinator == self._connected_to else self._connect(*coordinator)

    def _stage_batch(self, coordinator: Conversation, transfer: Transfer, frame: Any, batch: int) -> None:
        """Have Spark stage a batch, and commit it. Called by Spark, one batch after another."""
        try:
            with ThreadPoolExecutor(1, "megaflow-spark-sync") as aside:  # what Spark's tasks need not wait for
                synced = None if self._kept is None else aside.submit(self._kept.sync)
                ports = tuple((worker, host, port) for worker, host, port in _ask(coordinator, messages.IngestPorts()))
                if not ports:
                    raise SourceError("no worker has a port for Spark's lines")
                job = StageJob(self.query, uuid.uuid4().hex, batch, ports, self._secret)
                chosen = {w.partition: (w.worker, w.attempt, w.lines) for w in push_frame(frame, job, transfer)}
                if synced is not None:
                    synced.result()
            # Also without lines: a worker leaves only when it is known that nothing is staged there any more.
            commit = messages.CommitBatch(self.query, job.run, batch, chosen)
            _ask(coordinator, messages.CommitRequest(commit, self._ordered))
        except Stopped:
            return  # the query is being stopped; what was not committed never enters the stream
        except Exception as error:
            self._batch_error = self._batch_error or error
            raise

    def _tell_ended(self, coordinator: Conversation) -> None:
        """Say that the query is over, and see that it was heard; a job that is stopping may be gone already."""
        try:
            _ask(coordinator, messages.SourceEnded(self.query), FAREWELL_SECONDS)
        except (Stopped, ClusterError, OSError) as error:
            if not self._stopping.is_set():
                raise
            log.info("the coordinator was not told that the stopped source has ended: %r", error)

    def _explain(self, error: Exception) -> Exception:
        """Return the error to report: ours as it is, Spark's as a SourceError with its root cause."""
        if isinstance(error, MegaflowError):
            return error
        cause = root_cause(str(error) or repr(error))
        if "schema must be specified" in cause.lower() and isinstance(self._lines, SparkSpec):
            columns = f"{self._name}?schema=value string"
            cause = f"{self._lines.format!r} has no columns until they are named: --lines {columns!r}"
        explained = SourceError(f"{self._name}: {cause}")
        explained.__cause__ = error
        return explained


def _ask(coordinator: Conversation, body: object, grace_seconds: float = 0.0) -> Any:
    """Return what the request is done with, however long that takes; see `Conversation.ask`."""
    try:
        return coordinator.ask(body, grace_seconds=grace_seconds)
    except CommandRefused as error:
        what = type(body).__name__
        raise CommandRefused(f"the coordinator at {coordinator.address} refused {what}: {error}") from error


def root_cause(text: str) -> str:
    """Return the sentence that matters in the many lines of a Spark error.

    >>> root_cause("[PATH_NOT_FOUND] Path does not exist: /books. SQLSTATE: 42K03")
    'Path does not exist: /books.'
    >>> root_cause("Job aborted …\\nTraceback (most recent call last):\\n  File …\\nValueError: no\\n at org.apache…")
    'ValueError: no'
    """
    text = text.partition("=== Streaming Query ===")[0]
    _, traceback, frames = text.rpartition("Traceback (most recent call last):")
    if traceback:
        text = next((line for line in frames.splitlines() if line and not line[0].isspace()), text)
    text = re.sub(r"An error occurred while calling \S+\s*:\s*", "", text).strip()
    text = re.sub(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ", "", text)
    text = re.sub(r"^(?:[\w$]+\.)+[\w$]*(?:Exception|Error): ", "", text)
    text = re.sub(r"^\[[A-Z0-9_.]+\] ", "", text)
    return re.sub(r"\s*SQLSTATE: \w+", "", text.partition("\n")[0]).strip()
