"""Results for Spark: the writer that puts them into a log, and the door through which a query reads that log.

The argument for "each row once" is that of `results_log`. Here are its threads: the output's writes and makes durable,
the launcher's says what is committed and waits for the end, the door's answers. `_changed` guards the log.

1. The log is in the folder RESULTS of the store, with the query's checkpoint, and a lock that Spark's Java inherits; or
   in a folder of its own that goes with the job.
2. Who writes waits while the log is full, so the outputs wait, and the job with them. It goes on as Spark reads.
3. The door answers `Latest` when there is more, or never: a reader asks again after a moment.
4. A job that has failed says why to whoever asks, a program's own query for a while after its end, too: it may just be
   starting. One that has ended well stays until all is read.
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
from typing import Any, Final, Self, TypeAlias

from megaflow.control.result_rows import row_count
from megaflow.control.results_messages import RESULTS_ROLE, Latest, Offset, ResultRows, ResultsRefused, Take
from megaflow.control.shapes import conforms
from megaflow.durable.local_folder import LOCK, SPARK
from megaflow.durable.query_record import sync_path
from megaflow.errors import CommandRefused, MegaflowError, OutputError, ProtocolError, StoreError, UsageError
from megaflow.job.launcher.agent_door import AgentDoor
from megaflow.job.launcher.epoch_merge import Writer
from megaflow.job.launcher.output_file import Mode
from megaflow.job.launcher.results_files import ResultsFiles
from megaflow.job.launcher.results_log import ResultsLog
from megaflow.job.reachable import interfaces
from megaflow.spark.kept_query import JAVA, LAUNCHER, RESULTS, held_lock, note_holder
from megaflow.spark.results_query import Served, running_query
from megaflow.spark.results_spec import check_results, parse_results_spec
from megaflow.timely.communication.role_handlers import Connection

WAIT_SECONDS: Final = 0.2  # between two looks of who waits for room whether it is to end
LOOK_SECONDS: Final = 0.05  # likewise of who waits for the end
LINGER_SECONDS: Final = 60.0  # for a query that is starting to hear why the job has failed
SLOW_SECONDS: Final = 10.0  # without a question from Spark, though there are rows for it
JOB: Final = "job"  # the file that has the id by which offsets know their job


Query: TypeAlias = contextlib.AbstractContextManager[None]


class SparkResults(Writer):
    """ResultRows of one schema. To be closed."""

    unit = "row"

    def __init__(
        self, schema: str, name: str, state: str | None, resumes: bool, query: Callable[[Served], Query] | None = None
    ) -> None:
        """`schema` is as `StructType.json` writes it, `state` the folder of the store; None: there is none.

        `resumes`: what that has of results goes on. `query` runs as long as they are served; None: the user has one.
        """
        self.schema = schema
        self.form = f"rows:{schema}"
        self.name = name
        self._resumes = resumes
        self._query = query
        self._secret = b""
        self._report: Callable[[str], None] = lambda text: None
        self._on_failure: Callable[[MegaflowError], None] = lambda error: None
        self._stack = contextlib.ExitStack()
        self._is_stored = state is not None
        self.folder = Path(state, SPARK, RESULTS) if state is not None else Path(tempfile.mkdtemp("", "megaflow-rows-"))
        self._files = ResultsFiles(self.folder)
        self.job = uuid.uuid4().hex  # by which an offset knows whose it is
        self.lock: int | None = None  # for a Java process to inherit
        self._changed = threading.Condition()
        self._door: AgentDoor | None = None
        self._waiting: dict[Connection, Latest] = {}  # the door's thread's
        self._asked_at = time.monotonic()  # by Spark, last
        self.questions = 0  # of readers, so far; the door's thread counts
        self.has_ended = False  # nothing is written any more
        self._is_let_go = False
        self._is_answered = self._is_unwanted = False  # a reader has heard of an end; none will ever ask
        self._durable = 0  # rows that a commit has
        self._failure: MegaflowError | None = None
        self._reason = ""  # why readers are refused
        if state is None:
            self._open()

    # The output's writer

    def hold(self, take_over: bool = False) -> int:
        """Lock the log, end what an earlier run has left, and return how many rows there are. Raises StoreError.

        `take_over`: end its launcher, too, which is suspended, but not if that is a program. Without a store the folder
        is this job's own.
        """
        if not self._is_stored:
            return 0
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            ending = (JAVA, LAUNCHER) if take_over else (JAVA,)
            self.lock = self._stack.enter_context(held_lock(self.folder, time.sleep, lambda text: None, ending))
            if self._query is not None:  # else this process is the user's
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
            self._open()
        except OSError as error:
            raise StoreError(f"Cannot write to {self.folder}: {error.strerror}.") from error
        return self._log.rows

    def write(self, epoch: int, records: list[Any]) -> None:
        """Append packs of rows; waits while the log is full. Raises OutputError, or what has made the query fail."""
        with self._writing():
            for data in records:
                while self._log.is_full and not self._is_let_go and self._failure is None:
                    self._changed.wait(WAIT_SECONDS)
                if self._failure is not None:
                    raise self._failure
                if not self._is_let_go:
                    self._log.append(epoch, row_count(data), data)

    def flush(self) -> None:
        """Have readers told."""
        self._tell()

    def sync(self) -> int:
        """Make the rows durable, and return how many there are."""
        with self._writing():
            return self._log.sync()

    def cut_back(self, length: int) -> None:
        """Take back the rows behind a commit, and show those before it."""
        with self._writing():
            self._log.cut_back(length)
        self._tell()

    def committed(self, length: int) -> None:
        """Show the rows that a commit has, which is durable. Any thread; does not wait for a sync that is under way."""
        self._durable = length
        self._tell()

    def close(self) -> None:
        """Close what is open; without a store the rows go."""
        with self._changed:
            self._is_let_go = True
        self._files.close()
        self._stack.close()
        if not self._is_stored:
            shutil.rmtree(self.folder, ignore_errors=True)

    # The launcher

    @contextlib.contextmanager
    def served(
        self, secret: bytes, fail: Callable[[MegaflowError], None], report: Callable[[str], None]
    ) -> Iterator[None]:
        """Have readers served, and the query run, during the block. Blocks for some seconds if Spark is to start."""
        self._secret, self._on_failure, self._report = secret, fail, report
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
        """Begin to serve readers; return where they find this. `is_local`: they are all on this machine."""
        if self._door is None:
            self._door = AgentDoor("127.0.0.1" if is_local else "", self._secret, self, RESULTS_ROLE)
            self._door.start()
        hosts = ["127.0.0.1"] if is_local else list(dict.fromkeys([driver, *interfaces()]))
        return tuple((host, self._door.port) for host in hosts)

    @property
    def secret(self) -> bytes:
        """What a reader proves that it knows."""
        return self._secret

    def _close_door(self, reason: str, has_failed: bool) -> None:
        """Refuse whoever reads still, and let go whoever waits."""
        with self._changed:
            self._is_let_go, self._reason = True, reason
            self._changed.notify_all()
        if self._door is not None:
            self._door.call(self._answer_waiting)
            if has_failed and self._query is None:
                timer = threading.Timer(LINGER_SECONDS, self._door.close)
                timer.daemon = True
                timer.start()
            else:
                self._door.close()

    def report(self, text: str) -> None:
        """Tell the user."""
        self._report(text)

    def fail(self, error: MegaflowError) -> None:
        """Have whoever writes or waits raise this, and the job end: the query has failed. Any thread."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
        self._on_failure(error)

    def await_read(self, pause: Callable[[float], None]) -> None:
        """Wait until Spark has done with all: nothing more will be written. Raises what has made the query fail.

        Also for a program that has not asked for its results yet: a short job is through with all before it can.
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
        """How many rows Spark has not done with. Any thread."""
        with self._changed:
            return self._log.rows - self._log.released

    def forgo(self) -> None:
        """Wait for no reader: the program has not asked for its results, and will not."""
        self._is_unwanted = True

    def waits_text(self) -> str:
        """Say since which epoch results wait for Spark, if it is slow; "" if not. Any thread."""
        with self._changed:
            epoch = self._log.waiting_since
            is_slow = self._log.is_full or time.monotonic() - self._asked_at > SLOW_SECONDS
        return "" if epoch is None or not is_slow else f"results wait for Spark since epoch {epoch}"

    # Readers, on the door's thread

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Let a reader in."""

    def received(self, connection: Connection, value: Any) -> None:
        """Answer a reader, or have it wait. Raises ProtocolError."""
        if type(value) not in (Latest, Take) or not conforms(value, type(value)):
            raise ProtocolError(f"A reader of results sent an unknown message: {value!r:.100}")
        self.questions += 1
        if isinstance(value, Latest):
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

    def _answer_waiting(self) -> None:
        for connection, asked in list(self._waiting.items()):
            with self._changed, self._refusing(connection):
                self._check_open()
                self._log.show(self._durable)
                place = self._log.latest(asked.after)
                ended = self.has_ended and place == self._log.rows
                if place > (asked.after or 0) or ended:
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

    def _open(self) -> None:
        self._log = ResultsLog(self._files, self._is_stored)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Self]:
        try:
            with self._changed:
                yield self
        except OSError as error:
            raise OutputError(f"Cannot write the results to {self.folder}: {error.strerror}.") from error

    def _tell(self) -> None:
        if self._door is not None:
            self._door.call(self._answer_waiting)




def open_results(output: str, state: str | None, mode: Mode = "new") -> SparkResults:
    """Return the writer for `--output spark:…`, of a job with this store; its query runs while it is served.

    Raises UsageError for what is wrong with it, SourceError if there is no Java.
    """
    spec = parse_results_spec(output)
    if mode in ("overwrite", "append"):
        raise UsageError(
            f"--{mode} says what to do with an existing file: it goes with --output jsonl:PATH, not with {spec}."
        )
    check_results(spec)
    if mode == "new":
        spec.check_new()
    return SparkResults(spec.schema, spec.name, state, mode == "resume", partial(running_query, spec))
