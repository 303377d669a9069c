"""Results for Spark: the writer that appends them to a log, and the door through which a query reads that log.

`results_log` argues why Spark gets each row once. This module has the threads: the output's thread writes and makes
durable, the launcher's thread reports commits and waits for the end, the door's thread answers. `_changed` guards the
log.

1. The log is in the folder RESULTS of the store, together with the query's checkpoint and a lock that Spark's Java
   process inherits. Without a store it is in a folder of its own, which is removed with the job.
2. The writer waits while the log is full. So the outputs wait, and the job with them. The job continues as Spark reads.
3. The door answers `Latest` when there are more rows, or when the rows have ended. Until then it does not answer, and a
   reader repeats its request after a moment.
4. A job that has failed tells its readers why. A job that has ended well stays until all rows are read, and then tells
   its readers that the rows have ended, so a query idles instead of failing. Both answer the queries of a program for
   LINGER_SECONDS after the end, because such a query may be starting.
"""

import contextlib
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from megaflow.control.launcher_messages import Ended, ResultsAt, WhereResults
from megaflow.control.results_messages import (
    RESULTS_ROLE,
    AskFigures,
    Claim,
    Latest,
    Offset,
    ResultRows,
    ResultsRefused,
    Take,
)  # fmt: skip
from megaflow.control.shapes import conforms
from megaflow.durable.local_folder import LOCK, SPARK, sync_path
from megaflow.errors import CommandRefused, MegaflowError, OutputError, ProtocolError, StoreError, UsageError, naming
from megaflow.job.launcher.outputs.opened_output import Mode
from megaflow.job.launcher.outputs.result_figures import ResultFigures
from megaflow.job.launcher.outputs.results_consumer import ResultsConsumer
from megaflow.job.launcher.outputs.results_log import ResultsFiles, ResultsLog
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.launcher.processes.agent_door import AgentDoor
from megaflow.job.launcher.processes.wakeups import call_later
from megaflow.rows.result_rows import in_zone, row_count
from megaflow.spark.kept_query import JAVA, LAUNCHER, RESULTS, held_lock, note_holder
from megaflow.spark.results_query import QUERY, Served, running_query
from megaflow.spark.results_spec import NAMED, check_results, parse_results_spec
from megaflow.timely.communication.role_handlers import Connection

WAIT_SECONDS: Final = 0.2  # between two checks for the end, while a writer waits for room
LOOK_SECONDS: Final = 0.05  # likewise, while the launcher waits until all is read
LINGER_SECONDS: Final = 60.0  # after the end, for queries that are starting
SLOW_SECONDS: Final = 10.0  # without a question from Spark, though there are rows for it
JOB: Final = "job"  # file with the id that offsets name


Query: TypeAlias = contextlib.AbstractContextManager[None]


class SparkResults(Writer):
    """Writer of rows of one schema. Must be closed."""

    unit = "row"

    def __init__(
        self, schema: str, name: str, state: str | None, resumes: bool, query: Callable[[Served], Query] | None = None,
        door: AgentDoor | None = None, check: Callable[[Path], None] = lambda checkpoint: None,
        in_program: bool = False, zone: str = "",
    ) -> None:  # fmt: skip
        """`schema` is in the form of `StructType.json`; `state` is the store's folder, None without a store.

        With `resumes`, results already in the store continue. `query` runs while results are served; None: the user
        runs one. `door` is a door that passes readers' requests on, and outlives the job; None: the job opens its own.
        `check` raises StoreError if a query's checkpoint does not match what it has written. `in_program`: this process
        is a user's program, so a take-over must not end it. `zone` is the time zone of naive datetimes.
        """
        self.schema = schema
        self.use_zone(zone)
        self.name = name
        self._resumes = resumes
        self._query = query
        self._check = check
        self._is_launcher = query is not None and not in_program
        self.secret = b""  # by which readers authenticate
        self._on_failure: Callable[[MegaflowError], None] = lambda error: None
        self._stack = contextlib.ExitStack()
        self._is_stored = state is not None
        self.folder = Path(state, SPARK, RESULTS) if state is not None else Path(tempfile.mkdtemp("", "megaflow-rows-"))
        self._files = ResultsFiles(self.folder)
        self._consumer = ResultsConsumer(self.folder)
        self.job = uuid.uuid4().hex  # offsets name it, so each belongs to one job
        self.lock: int | None = None  # for a Java process to inherit
        self._changed = threading.Condition()
        self._door = door
        self._owns_door = door is None
        self._waiting: dict[Connection, Latest] = {}  # belongs to the door's thread
        self._curious = set[Connection]()  # readers that ask for figures; likewise
        self._asked_at = time.monotonic()  # Spark's last request
        self.figures = ResultFigures()
        self.questions = 0  # readers' requests so far; the door's thread counts
        self.has_ended = False  # no more rows will be written
        self._is_let_go = False
        self._is_answered = self._is_unwanted = False  # a reader got an answer; none will ever ask
        self._durable = 0  # rows in a durable commit
        self._failure: MegaflowError | None = None
        self._reason = ""  # why readers are refused
        self._is_over = False  # the job ended well, and all rows are read
        if state is None:
            self._log = ResultsLog(self._files, self._is_stored)

    def use_zone(self, zone: str) -> None:
        """Let naive datetimes be in this time zone of a Spark session, "" that of the machine, in workers that start.
        """
        self.form = f"rows:{in_zone(self.schema, zone)}"

    # Calls of the output queue, which makes them on every writer

    def hold(self, take_over: bool = False) -> int:
        """Lock the log, end an earlier run's Java process, and return the number of rows. Raises StoreError.

        With `take_over`, also end the suspended launcher that has the lock, unless it is a user's program. Without a
        store this does nothing, because the folder belongs to this job alone.
        """
        if not self._is_stored:
            return 0
        with naming(StoreError, f"Cannot write to {self.folder}"):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            ending = (JAVA, LAUNCHER) if take_over else (JAVA,)
            self.lock = self._stack.enter_context(held_lock(self.folder, time.sleep, lambda text: None, ending))
            if self._is_launcher:
                note_holder(self.lock, os.getpid(), LAUNCHER)
            if not self._resumes:
                for entry in os.scandir(self.folder):
                    if entry.is_dir():
                        shutil.rmtree(entry)
                    elif entry.name != LOCK:
                        os.unlink(entry)
            known = self.folder / JOB
            if known.exists():
                self.job = known.read_text(encoding="ascii")
            else:
                known.write_text(self.job, encoding="ascii")
                for path in (known, self.folder, *self.folder.parents[:2]):
                    sync_path(path)
            self._log = ResultsLog(self._files, self._is_stored)
            self._consumer.load()
        if self._resumes:
            self._check(self.folder / QUERY)
        return self._log.rows

    def write(self, epoch: int, records: list[Any]) -> None:
        """Append packs of rows; wait while the log is full. Raises OutputError, or the query's error."""
        with self._writing():
            for data in records:
                while self._log.is_full and not self._is_let_go and self._failure is None:
                    self._changed.wait(WAIT_SECONDS)
                if self._failure is not None:
                    raise self._failure
                if not self._is_let_go:
                    self._log.append(epoch, row_count(data), data)

    def flush(self) -> None:
        """Answer readers that wait for rows."""
        self._tell()

    def sync(self) -> int:
        """Make the rows durable, and return their number."""
        with self._writing():
            return self._log.sync()

    def cut_back(self, length: int) -> None:
        """Remove the rows after a commit, and show those before it."""
        with self._writing():
            self._log.cut_back(length)
        self._tell()

    def committed(self, length: int) -> None:
        """Show the rows of a durable commit. Any thread; does not wait for a sync in progress."""
        self._durable = length
        self._tell()

    def note_end(self, ended: Ended) -> None:
        """Note the last report of a worker for the figures."""
        self.figures.note_end(ended)

    def close(self) -> None:
        """Close files and lock; without a store, remove the rows."""
        with self._changed:
            self._is_let_go = True
        self._files.close()
        self._stack.close()
        if not self._is_stored:
            shutil.rmtree(self.folder, ignore_errors=True)

    # Calls of the launcher

    @contextlib.contextmanager
    def served(self, secret: bytes, fail: Callable[[MegaflowError], None]) -> Iterator[None]:
        """Serve readers and run the query during the block. Blocks for some seconds if Spark must start."""
        self.secret, self._on_failure = secret, fail
        reason, has_failed = "the job has ended", False
        try:
            with contextlib.nullcontext() if self._query is None else self._query(self):
                yield
        except BaseException as error:
            reason, has_failed = f"the job has failed: {error}", True
            raise
        finally:
            self._close_door(reason, has_failed)

    def open_door(self, is_local: bool, driver: str) -> tuple[tuple[str, int], ...]:
        """Begin to serve readers; return this door's addresses. `is_local`: all readers are on this machine."""
        with self._changed:
            if self._door is None:
                self._door = AgentDoor(is_local, driver, self.secret, self, RESULTS_ROLE)
            return self._door.addresses

    def where(self, asked: WhereResults) -> ResultsAt:
        """Begin to serve readers of another program. Any thread."""
        if self._query is not None or not self._owns_door:
            return ResultsAt(refused="Its own query reads its results. Read what that query has written.")
        addresses = self.open_door(asked.is_local, asked.driver)
        if not asked.is_local and is_loopback(addresses):
            return ResultsAt(
                refused="An earlier reader had a local master, so only this machine can read its results. Read them "
                "with a local master, or start the job again."
            )
        return ResultsAt(self.job, self.schema, addresses)

    @property
    def consumer(self) -> str:
        """The name of the consumer in another program; "" if there is none. Any thread."""
        return self._consumer.name

    def consumer_trouble(self) -> str | None:
        """Return why the consumer does not read, or None if it does. Any thread."""
        return None if self._consumer.is_reading else f"their consumer {self.consumer!r} is not connected"

    def _close_door(self, reason: str, has_failed: bool) -> None:
        """Refuse further reads, and release waiting readers and writers."""
        with self._changed:
            self._is_over = not has_failed and self._log.is_read
            self._is_let_go, self._reason = True, reason
            self._changed.notify_all()
        if self._door is not None:
            self._door.call(self._answer_waiting)
            if not self._owns_door:
                return
            if (has_failed or self._is_over) and self._query is None:
                call_later(LINGER_SECONDS, self._door.close)
            else:
                self._door.close()

    def fail(self, error: MegaflowError) -> None:
        """End the job because the query has failed; writers and waiters raise this error. Any thread."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
        self._on_failure(error)

    def await_read(self, pause: Callable[[float], None]) -> None:
        """Wait until Spark is done with all rows. Call it after the last `write`. Raises the query's error.

        This also waits for a program that has not asked for its results yet, because a short job ends before it can.
        """
        with self._changed:
            self.has_ended = True
        self._tell()
        while True:
            with self._changed:
                self._log.show(self._durable)
                if self._failure is not None:
                    raise self._failure
                if self._is_unwanted or (self._is_answered and self._log.is_read):
                    return
            pause(LOOK_SECONDS)

    @property
    def unread(self) -> int:
        """Number of rows that Spark is not done with. Any thread."""
        with self._changed:
            return self._log.rows - self._log.released

    def forgo(self) -> None:
        """Wait for no reader: the program has not asked for its results, and will not."""
        self._is_unwanted = True

    def waits_text(self) -> str:
        """Return since which epoch results wait for Spark, if Spark is slow; otherwise "". Any thread."""
        with self._changed:
            epoch = self._log.waiting_since
            is_slow = self._log.is_full or time.monotonic() - self._asked_at > SLOW_SECONDS
        return "" if epoch is None or not is_slow else f"results wait for Spark since epoch {epoch}"

    # Calls of the door's thread, for readers

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Accept a reader."""

    def received(self, connection: Connection, value: Any) -> None:
        """Answer a reader, or let it wait. Raises ProtocolError."""
        if type(value) not in (AskFigures, Claim, Latest, Take) or not conforms(value, type(value)):
            raise ProtocolError(f"A reader of results sent an unknown message: {value!r:.100}")
        self.questions += 1
        if isinstance(value, Claim):
            with self._refusing(connection):
                connection.send(self._consumer.claim(connection, value))
            return
        if isinstance(value, AskFigures):
            self._curious.add(connection)
            door = self._door
            assert door is not None, "the reader is connected to it"
            self.figures.ask(lambda: door.call(partial(self._tell_figures, connection)))
            return
        if isinstance(value, Latest):
            with self._refusing(connection):
                self._consumer.check(connection)
                self._waiting[connection] = value
            self._asked_at = time.monotonic()
            self._answer_waiting()
            return
        with self._changed, self._refusing(connection):
            self._check_open()
            pack, data = self._log.read(value.place)
            connection.send(ResultRows(pack.start, data))

    def lost(self, connection: Connection) -> None:
        """Forget a reader."""
        self._waiting.pop(connection, None)
        self._curious.discard(connection)
        self._consumer.lost(connection)

    def _tell_figures(self, connection: Connection) -> None:
        if connection in self._curious:
            self._curious.remove(connection)
            connection.send(self.figures.newest)

    def _answer_waiting(self) -> None:
        for connection, asked in list(self._waiting.items()):
            with self._changed, self._refusing(connection):
                if self._is_over and asked.after in (None, self._log.rows):
                    connection.send(Offset(asked.number, self._log.rows, True))
                    del self._waiting[connection]
                    continue
                self._check_open()
                self._log.show(self._durable)
                place = self._log.latest(asked.after)
                ended = self.has_ended and place == self._log.rows
                if place > (asked.after or 0) or ended:
                    self._consumer.fix()
                    connection.send(Offset(asked.number, place, ended and place == asked.after))
                    del self._waiting[connection]
                    self._is_answered = True
                self._changed.notify_all()

    def _check_open(self) -> None:
        if self._reason:
            raise CommandRefused(self._reason)

    @contextlib.contextmanager
    def _refusing(self, connection: Connection) -> Iterator[None]:
        try:
            yield
        except (MegaflowError, OSError) as error:
            self._waiting.pop(connection, None)
            connection.send(ResultsRefused(str(error)))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with naming(OutputError, f"Cannot write the results to {self.folder}"), self._changed:
            yield

    def _tell(self) -> None:
        if self._door is not None:
            self._door.call(self._answer_waiting)


def is_loopback(addresses: tuple[tuple[str, int], ...]) -> bool:
    """Return whether only this machine reaches these addresses."""
    return all(host == "127.0.0.1" for host, _ in addresses)


def open_results(output: str, state: str | None, mode: Mode = "new", in_program: bool = False) -> SparkResults:
    """Return the writer for `--output spark:…` of a job with this store; its query runs while it is served.

    The format `megaflow` has no query: another program reads the results. `in_program`: see SparkResults.

    Raises UsageError for a wrong specification, SourceError if there is no Java.
    """
    spec = parse_results_spec(output)
    if mode in ("overwrite", "append"):
        raise UsageError(
            f"--{mode} says what to do with an existing file: it goes with --output jsonl:PATH, not with {spec}."
        )
    if spec.format == NAMED:
        return SparkResults(spec.schema, spec.name, state, mode == "resume")
    check_results(spec)
    if mode == "new":
        spec.check_new()
    resumes, query = mode == "resume", partial(running_query, spec, is_resumed=mode == "resume")
    return SparkResults(spec.schema, spec.name, state, resumes, query, check=spec.check_same_batches,
                        in_program=in_program)  # fmt: skip
