"""One query of a feed. Its batches are staged and committed one after another. A batch DataFrame is a single batch.

With a store, an answer means that the batch is durable. A query whose only batch was durable before is not started.

Each query has its own connection to the coordinator, which associates staged data with the connection.
"""

import functools
import logging
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from megaflow.control import messages
from megaflow.control.client.conversation import Conversation, Stopped
from megaflow.durable.commits import query_of
from megaflow.errors import ClusterError, CommandRefused, MegaflowError, SourceError
from megaflow.python_executable import named_python
from megaflow.quick_dataclass import dataclass
from megaflow.rows.packed_rows import BatchTimes
from megaflow.spark.batch_run import BatchRun, task_title
from megaflow.spark.batch_times import initial_times, recorded_times, time_of, waiting_time
from megaflow.spark.kept_query import KeptQuery
from megaflow.spark.push import LinePacking, Packing, StageJob, Transfer, push_frame
from megaflow.spark.query_spec import TRIGGER_SECONDS, SparkSpec, TimeMode
from megaflow.spark.row_packing import RowPacking, plain_rows
from megaflow.spark.spark_errors import INTERRUPTED, LOST_PYTHON, OTHER_PYTHON, root_cause, text_of
from megaflow.timely.communication.client import Client

CONNECT_TIMEOUT_SECONDS = 30.0
MOVED_SECONDS = 5.0  # for the launcher to learn the address of the next coordinator
ENDING_SECONDS = 5.0  # for a query to be stopped after its batch has failed
POLL_SECONDS = 0.02
FAREWELL_SECONDS = 5.0  # to inform the coordinator that a stopped source has ended

log = logging.getLogger("megaflow.spark")


@dataclass(eq=False)
class Contact:
    """Address of the coordinator, the job's name, and whether to end."""

    coordinator: tuple[str, int]  # host, port; written by the launcher
    secret: bytes = field(repr=False)
    job: str = ""  # for Spark's pages
    stopping: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False)
class FedQuery:
    """Query that feeds one input: lines, or rows by their name."""

    source: SparkSpec | Any  # or a DataFrame
    contact: Contact
    input: str | None = None  # None: lines
    kept: KeptQuery | None = None
    trigger_seconds: float | None = TRIGGER_SECONDS  # of a streaming DataFrame; None: its present data
    time_mode: TimeMode = ""  # unless "", batches are whole, and the query gives the watermark
    after: tuple[str, ...] = ()  # the ids of queries that are over before this one starts, whose rows enter before

    def __post_init__(self) -> None:
        # The id under which the batches are committed. It tells the coordinator which input they feed.
        self.id = query_of(self.input or "", uuid.uuid4().hex) if self.kept is None else self.kept.name
        self.is_over = self.kept is not None and self.kept.is_over  # all of it was committed before
        frame = "the streaming DataFrame" if self.input is None else f"the DataFrame of rows {self.input!r}"
        self.name = str(self.source) if isinstance(self.source, SparkSpec) else frame
        self.packing: Packing = LinePacking()  # replaced for rows, once their columns are known
        self._ordered = not (isinstance(self.source, SparkSpec) and self.source.unordered)
        self._connected_to = self.contact.coordinator  # the last address; written by the thread that asks
        self.batch_error: Exception | None = None  # of a failed batch; written by Spark's callback thread
        self._is_ending = threading.Event()  # the query is about to be stopped
        self._running: Any = None  # a StreamingQuery or a BatchRun
        self._python = named_python()  # of the executors
        self._offsets = Path()  # Spark's record of the batches' times, in the checkpoint
        self._is_stream = True  # otherwise it is one batch
        self._turn = threading.Lock()  # for the conversation, if two threads use it
        # The watermark that the query has given, also before the job resumed. In milliseconds.
        self._raised = None if self.kept is None or self.kept.watermark is None else self.kept.watermark // 1000
        self.waits = ""  # what the job waits for until the first lines come, and since when

    def awaits(self, what: str) -> None:
        """Note what Spark does now, before it has sent lines."""
        self.waits = f"waits for Spark since {time.strftime('%H:%M:%S')}: {what}"

    def open(self, session: Any) -> Any:
        """Return the frame to be read, made in this session if the source is a spec. Raises what `explain` returns."""
        from megaflow.spark import spark_session as spark

        try:
            if isinstance(self.source, SparkSpec):
                frame = spark.open_source(session, self.source)
            else:
                frame = spark.check_frame(self.source, f"the rows {self.input!r}" if self.input else "lines")
            self._python = frame.sparkSession.sparkContext.pythonExec
            if self.input is None:
                return spark.only_lines(frame)
            frame, self.packing = packed = plain_rows(self.input, frame)
            if self.kept is not None and not self.is_over:
                self.kept.opened(packed[1].schema)
            return frame
        except MegaflowError:
            raise
        except Exception as error:
            raise self.explain(error) from error

    def start(self, frame: Any, coordinator: Conversation, transfer: Transfer, checkpoint: str) -> None:
        """Start feeding the frame that `open` returned."""
        from megaflow.spark import spark_session as spark

        self.awaits("the first lines" if self.input is None else f"the first rows of {self.input!r}")
        self._offsets = Path(unquote(urlparse(checkpoint).path)) / "offsets"
        stage = functools.partial(self.stage_batch, coordinator, transfer)
        trigger = self.source.trigger_seconds if isinstance(self.source, SparkSpec) else self.trigger_seconds
        self._is_stream = frame.isStreaming
        title = task_title(self.contact.job, "lines" if self.input is None else f"rows {self.input!r}")
        if frame.isStreaming:
            self._running = spark.start_query(frame, checkpoint, trigger, stage, title)
        else:  # one batch
            self._running = BatchRun(frame.sparkSession, title, lambda stopping: stage(frame, 0))

    @property
    def is_active(self) -> bool:
        """Whether it was started and has not ended."""
        return self._running is not None and bool(self._running.isActive)

    def stop(self) -> None:
        """Stop the query in Spark."""
        self._is_ending.set()
        if self._running is not None:
            self._running.stop()

    def failure(self) -> Exception | None:
        """Return why it failed, once it has ended. None if it has not failed or was not started."""
        error: Exception | None = None if self._running is None else self._running.exception()
        return self.batch_error or error

    def converse(self) -> Conversation:
        """Return a conversation with the coordinator that follows its moves. Raises the errors of `Client.connect`.

        It keeps its connection as long as possible: if it ends, the coordinator considers the staging ended.
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
        """Connect to the next coordinator. None while the launcher knows of no other one."""
        coordinator = self.contact.coordinator
        return None if coordinator == self._connected_to else self._connect(*coordinator)

    def stage_batch(self, coordinator: Conversation, transfer: Transfer, frame: Any, batch: int) -> None:
        """Have Spark stage a batch, and commit it. Spark calls this, one batch after another.

        If the job or one of its attempts ends, a batch that is not committed never enters the stream. If the query
        resumes later, Spark must not record the batch as done, so the batch fails. Otherwise it just ends.
        """
        self._turn.acquire()
        try:
            times, packing = self._times(batch), self.packing
            if times is not None:
                assert isinstance(packing, RowPacking), "lines have no times"
                packing = packing.in_batch(times)
            with ThreadPoolExecutor(1, "megaflow-spark-sync") as aside:  # syncs while Spark's tasks run
                synced = None if self.kept is None else aside.submit(self.kept.sync)
                ports = tuple((worker, host, port) for worker, host, port in _ask(coordinator, messages.IngestPorts()))
                if not ports:
                    raise SourceError("No worker has a port for Spark's lines.")
                job = StageJob(self.id, uuid.uuid4().hex, batch, ports, self.contact.secret)
                winners = push_frame(frame, job, transfer, packing)
                if synced is not None:
                    synced.result()
            chosen = {w.partition: (w.worker, w.attempt, w.lines) for w in winners}
            self.waits = "" if any(each.lines for each in winners) else self.waits
            # Also without lines: a worker can leave only when it is certain that nothing is staged there.
            watermark = None
            if times is not None and self._is_stream:
                watermark = self._watermark(time_of(self.time_mode, times))
            commit = messages.CommitBatch(self.id, job.run, batch, chosen, times is not None, watermark)
            _ask(coordinator, messages.CommitRequest(commit, self._ordered, self.after))
        except Stopped:
            if self.kept is not None:
                self._end_quietly()
        except Exception as error:
            self.batch_error = self.batch_error or error
            self._end_quietly()
        finally:
            self._turn.release()

    def _times(self, batch: int) -> BatchTimes | None:
        """Return the times of a whole batch; None: the batches are not whole."""
        if not self.time_mode:
            return None
        raised = self._raised if self.time_mode == "EventTime" else None
        return recorded_times(self._offsets, batch, raised or 0) if self._is_stream else initial_times(time.time())

    def _watermark(self, milliseconds: int | None) -> int | None:
        """Return a watermark to give, in microseconds."""
        self._raised = milliseconds
        return None if milliseconds is None else milliseconds * 1000

    def raise_watermark(self, coordinator: Conversation) -> None:
        """Raise the watermark while no batch comes, as Spark does by batches without data."""
        is_wanted = self.time_mode and self._is_stream and self._running is not None
        if not (is_wanted and self._turn.acquire(blocking=False)):
            return
        try:
            now = waiting_time(self._running, self.time_mode)
            if now is not None and (self._raised is None or now > self._raised):
                _ask(coordinator, messages.RaiseWatermark(now * 1000))
                self._raised = now
        except (Stopped, ClusterError, OSError):
            if not self.contact.stopping.is_set():
                raise
        finally:
            self._turn.release()

    def _end_quietly(self) -> None:
        """Wait until the query is stopped, then end its batch as an interrupted one. Raises SourceError.

        Spark prints the error of a batch with two Java stacks, and a thousand lines if the error is long: it looks for
        a cause by a regular expression that takes a Java frame per character. If a stopped query is interrupted, it
        prints nothing.
        """
        self._is_ending.wait(ENDING_SECONDS)
        for _ in range(round(ENDING_SECONDS / POLL_SECONDS)):
            if not self.is_active:
                break
            time.sleep(POLL_SECONDS)
        raise SourceError(INTERRUPTED) from None

    def tell_ended(self, coordinator: Conversation) -> None:
        """Report once that the query is over, and wait for the answer. A stopping job may already be gone."""
        try:
            _ask(coordinator, messages.SourceEnded(self.id), FAREWELL_SECONDS)
        except (Stopped, ClusterError, OSError) as error:
            if not self.contact.stopping.is_set():
                raise
            log.info("the coordinator could not be informed that the stopped source has ended: %r", error)

    def explain(self, error: Exception) -> Exception:
        """Return the error to report: megaflow's unchanged, Spark's as a SourceError with its root cause."""
        if isinstance(error, MegaflowError):
            return error
        text = text_of(error)
        cause = root_cause(text)
        if "schema must be specified" in cause.lower() and isinstance(self.source, SparkSpec):
            column = "value string" if self.input is None else "id LONG, name STRING"
            flag, name = ("--lines", "") if self.input is None else ("--rows", f"{self.input}=")
            columns = f"{name}{self.source}?schema={column}"
            cause = f"{self.source.format!r} has no columns until you name them: {flag} {columns!r}"
        own = named_python()
        worded = OTHER_PYTHON if self._python == own else (*OTHER_PYTHON, *LOST_PYTHON)
        if any(each in text for each in worded):
            cause = (
                f"Spark's executors run {self._python}, which is not this Python, {own}, or lacks "
                f"megaflow. Set PYSPARK_PYTHON={own} before the session starts, or install megaflow "
                "there."
            )
        explained = SourceError(f"{self.name}: {cause}")
        explained.__cause__ = error
        return explained


def _ask(coordinator: Conversation, body: object, grace_seconds: float = 0.0) -> Any:
    """Return the result of the request, however long it takes; see `Conversation.ask`."""
    try:
        return coordinator.ask(body, grace_seconds=grace_seconds)
    except CommandRefused as error:
        what = type(body).__name__
        raise CommandRefused(f"The coordinator at {coordinator.address} refused {what}: {error}") from error
