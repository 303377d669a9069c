"""A query of a feed: its batches are staged and committed one after another. A batch DataFrame is a single batch.

Each query has its own connection to the coordinator, which knows by the connection what is being staged.
"""

import functools
import logging
import re
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import Any

from megaflow.control import messages
from megaflow.control.client.conversation import Conversation, Stopped
from megaflow.errors import ClusterError, CommandRefused, MegaflowError, SourceError
from megaflow.quick_dataclass import dataclass
from megaflow.spark.kept_query import KeptQuery
from megaflow.spark.push import LinePacking, Packing, StageJob, Transfer, push_frame
from megaflow.spark.query_spec import TRIGGER_SECONDS, SparkSpec
from megaflow.timely.communication.client import Client

CONNECT_TIMEOUT_SECONDS = 30.0
MOVED_SECONDS = 5.0  # for the launcher to hear where the next coordinator is
FAREWELL_SECONDS = 5.0  # to tell the coordinator that a stopped source has ended
OTHER_PYTHON = ("No module named 'megaflow", "No module named 'msgpack", "PYTHON_VERSION_MISMATCH", "different minor")
LOST_PYTHON = ("Error from python worker", "worker exited unexpectedly")  # what another one may end with, too

log = logging.getLogger("megaflow.spark")


@dataclass(eq=False)
class Contact:
    """Where the coordinator is, and whether to end."""

    coordinator: tuple[str, int]  # host, port; written by the launcher
    secret: bytes = field(repr=False)
    stopping: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False)
class FedQuery:
    """Feeds one input: lines, or rows by their name."""

    source: SparkSpec | Any  # or a DataFrame
    contact: Contact
    input: str | None = None  # None: lines
    kept: KeptQuery | None = None

    def __post_init__(self) -> None:
        # The id under which the batches are committed; the coordinator knows by it which input they feed.
        self.id = "-".join([*filter(None, [self.input]), uuid.uuid4().hex]) if self.kept is None else self.kept.name
        frame = "the streaming DataFrame" if self.input is None else f"the DataFrame of rows {self.input!r}"
        self.name = str(self.source) if isinstance(self.source, SparkSpec) else frame
        self.packing: Packing = LinePacking()  # another one of rows, once their columns are known
        self._ordered = not (isinstance(self.source, SparkSpec) and self.source.unordered)
        self._connected_to = self.contact.coordinator  # at last; written by the thread that asks
        self._batch_error: Exception | None = None  # written by Spark's callback thread, read when the query is over
        self._running: Any = None  # a StreamingQuery, or a BatchRun
        self._python = sys.executable  # of the executors
        self._told_ended = False

    def open(self, session: Any) -> Any:
        """Return the frame to be read: of this session, if the source is a spec. Raises what `explain` returns."""
        from megaflow.spark import spark_session as spark
        from megaflow.spark.row_packing import plain_rows

        try:
            if isinstance(self.source, SparkSpec):
                frame = spark.open_source(session, self.source)
            else:
                frame = spark.check_frame(self.source, f"the rows {self.input!r}" if self.input else "lines")
            self._python = frame.sparkSession.sparkContext.pythonExec
            if self.input is None:
                return spark.only_lines(frame)
            frame, self.packing = plain_rows(self.input, frame)
            return frame
        except Exception as error:
            raise self.explain(error) from error

    def start(self, frame: Any, coordinator: Conversation, transfer: Transfer, checkpoint: str) -> None:
        """Start feeding what `open` has returned."""
        from megaflow.spark import spark_session as spark
        from megaflow.spark.batch_run import BatchRun

        stage = functools.partial(self.stage_batch, coordinator, transfer)
        trigger = self.source.trigger_seconds if isinstance(self.source, SparkSpec) else TRIGGER_SECONDS
        if frame.isStreaming:
            self._running = spark.start_query(frame, checkpoint, trigger, stage)
        else:  # one batch
            self._running = BatchRun(frame.sparkSession, "rows for a megaflow job", lambda stopping: stage(frame, 0))

    @property
    def is_active(self) -> bool:
        """Whether it was started and has not ended."""
        return self._running is not None and bool(self._running.isActive)

    def stop(self) -> None:
        """Have Spark end it."""
        if self._running is not None:
            self._running.stop()

    def failure(self) -> Exception | None:
        """Return why it failed, once it has ended."""
        error: Exception | None = self._running.exception()
        return error and (self._batch_error or error)

    def converse(self) -> Conversation:
        """Return a conversation with the coordinator that follows it. Raises what `Client.connect` does.

        It keeps its connection as long as that lasts: the coordinator takes its end for the end of what is staged.
        """
        client = self._connect(*self.contact.coordinator)
        return Conversation(
            client, None, self._connect, self._find, patience_seconds=MOVED_SECONDS,
            stopping=self.contact.stopping.wait,
        )  # fmt: skip

    def _connect(self, host: str, port: int) -> Client:
        self._connected_to = (host, port)
        return Client.connect(host, port, self.contact.secret, "control", {}, CONNECT_TIMEOUT_SECONDS)

    def _find(self) -> Client | None:
        """Connect to the next coordinator; None as long as the launcher has not heard of another one."""
        coordinator = self.contact.coordinator
        return None if coordinator == self._connected_to else self._connect(*coordinator)

    def stage_batch(self, coordinator: Conversation, transfer: Transfer, frame: Any, batch: int) -> None:
        """Have Spark stage a batch, and commit it. Called by Spark, one batch after another.

        A batch that is not committed, as the job or one of its lives ends, never enters the stream. Where the query
        goes on later Spark must not note it as done: so it fails. Else it just ends.
        """
        try:
            with ThreadPoolExecutor(1, "megaflow-spark-sync") as aside:  # what Spark's tasks need not wait for
                synced = None if self.kept is None else aside.submit(self.kept.sync)
                ports = tuple((worker, host, port) for worker, host, port in _ask(coordinator, messages.IngestPorts()))
                if not ports:
                    raise SourceError("No worker has a port for Spark's lines.")
                job = StageJob(self.id, uuid.uuid4().hex, batch, ports, self.contact.secret)
                winners = push_frame(frame, job, transfer, self.packing)
                if synced is not None:
                    synced.result()
            chosen = {w.partition: (w.worker, w.attempt, w.lines) for w in winners}
            # Also without lines: a worker leaves only when it is known that nothing is staged there any more.
            commit = messages.CommitBatch(self.id, job.run, batch, chosen)
            _ask(coordinator, messages.CommitRequest(commit, self._ordered))
        except Stopped:
            if self.kept is not None:
                raise
        except Exception as error:
            self._batch_error = self._batch_error or error
            raise

    def tell_ended(self, coordinator: Conversation) -> None:
        """Say, once, that the query is over, and see that it was heard; a job that is stopping may be gone already."""
        if self._told_ended:
            return
        self._told_ended = True
        try:
            _ask(coordinator, messages.SourceEnded(self.id), FAREWELL_SECONDS)
        except (Stopped, ClusterError, OSError) as error:
            if not self.contact.stopping.is_set():
                raise
            log.info("the coordinator could not be informed that the stopped source has ended: %r", error)

    def explain(self, error: Exception) -> Exception:
        """Return the error to report: ours as it is, Spark's as a SourceError with its root cause."""
        if isinstance(error, MegaflowError):
            return error
        text = str(error) or repr(error)
        cause = root_cause(text)
        if "schema must be specified" in cause.lower() and isinstance(self.source, SparkSpec):
            column = "value string" if self.input is None else "id LONG, name STRING"
            flag, name = ("--lines", "") if self.input is None else ("--rows", f"{self.input}=")
            columns = f"{name}{self.source}?schema={column}"
            cause = f"{self.source.format!r} has no columns until you name them: {flag} {columns!r}"
        worded = OTHER_PYTHON if self._python == sys.executable else (*OTHER_PYTHON, *LOST_PYTHON)
        if any(each in text for each in worded):
            cause = (
                f"Spark's executors run {self._python}, which is not this Python, {sys.executable}, or lacks "
                f"megaflow. Set PYSPARK_PYTHON={sys.executable} before the session starts, or install megaflow "
                "there."
            )
        explained = SourceError(f"{self.name}: {cause}")
        explained.__cause__ = error
        return explained


def _ask(coordinator: Conversation, body: object, grace_seconds: float = 0.0) -> Any:
    """Return what the request is done with, however long that takes; see `Conversation.ask`."""
    try:
        return coordinator.ask(body, grace_seconds=grace_seconds)
    except CommandRefused as error:
        what = type(body).__name__
        raise CommandRefused(f"The coordinator at {coordinator.address} refused {what}: {error}") from error


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
