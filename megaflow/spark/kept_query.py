"""Kept queries: queries that resume where they stopped. The job's store holds Spark's record of each batch's content.

1. Each query has a record of its own, STORE/spark/QUERY, and a commit names QUERY and its newest committed batch. So
   neither is used without the other. If no commit names a record, none of its query's batches was ever answered, and
   the record is removed. QUERY begins with the name of its input. So a new input begins with its first batch, and the
   others continue. An input that has a batch in the commit must be given again, because the commit may have the rest of
   that batch.
2. The content of a batch is synced to disk before the coordinator is asked to commit it, while its lines are staged. So
   a commit of the store names only batches that are on disk. Spark does not sync its files. Without this rule, a power
   failure could keep the commit but lose the record, and Spark would put more into a batch of the same number. A synced
   file does not change again.
3. Record and store must match: Spark knows the content of the newest committed batch, and answered no later one.
   Otherwise only one of them was restored from a backup, and lines would be lost.
4. Java outlives a killed launcher, by a minute if the machine is busy. It inherits the lock on the file LOCK, which is
   released when the last process that holds it ends. So one query at a time writes the record. LOCK names the Java
   process. A launcher that finds LOCK locked already holds the lock of the store, so the old Java is useless. The
   launcher kills it if it has LOCK open. This leaves what any crash may leave. If the process cannot be found, the
   launcher waits for its end. A launcher that has lost its store to another cannot commit. It also has the lock of its
   results open, and is killed in the same way.
5. A Java process that has not inherited LOCK (its session is older than the job, or also runs its processes) may live
   for a moment beside the next one. It cannot write to the record, because Spark knows only a link to the record. Each
   attempt of a job makes a new link and first removes the earlier ones, so their paths lead nowhere.
6. The query of a batch DataFrame has one batch, number 0, and no record. If a commit names it, the frame is not read
   again: what is not taken in is in the commit. Otherwise the store has none of its rows, so it is read again from its
   beginning, with its present content. Its QUERY ends with BATCH. So a stream cannot continue it: the stream's first
   batch has the same number, and the coordinator would answer it without taking it in.
7. A commit has the columns of all inputs of rows that have a batch in it (`megaflow.rows.kept_columns`). A DataFrame is
   compared with them before the job takes over the store. The columns of a source are known once Spark has opened it,
   and are compared before its query starts. A batch DataFrame that is not read again is not compared.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from megaflow.durable.commits import BATCH, input_of, is_of_a_batch, query_of
from megaflow.durable.local_folder import LOCK, SPARK, sync_path
from megaflow.errors import SourceError, StoreError, naming
from megaflow.own_files import close_own, open_own
from megaflow.quick_dataclass import dataclass
from megaflow.rows.kept_columns import KeptColumns, check_kept_columns, kept_columns
from megaflow.spark.query_spec import RowFrames, SparkSpec, is_a_batch, sources_of

POLL_SECONDS: Final = 0.1
RESULTS: Final = "results"
"""Folder beside the record of the lines, for the record of a query that reads the job's results: see
`job.launcher.outputs.spark_results`."""
LOCK_SECONDS: Final = 60.0
"""For Java to end by itself: Spark allows itself about ten seconds."""
JAVA: Final = 0  # place of an entry in the file LOCK
LAUNCHER: Final = 1
_PID_BYTES: Final = 20
NOT_SYNCED: Final = ("commits", "state")
"""Not synced: the record of answered batches, because a lost answer is repeated; and states, as only user queries have
them."""


@dataclass(eq=False)
class KeptQuery:
    """Query that feeds a job with a store. Only the feed writes it."""

    name: str  # QUERY
    store: Path
    is_over: bool = False  # it is of a batch DataFrame, and a commit has its batch
    way: Path = Path()  # the link to its record that Spark knows
    watermark: int | None = None  # of the commit, in microseconds
    columns: KeptColumns | None = None  # of its rows: first those of the commit, then its own; None: not known
    _synced: set[tuple[str, int]] = field(default_factory=set)  # existing synced files: path, time of the last change

    @property
    def record(self) -> Path:
        """The folder of Spark's record."""
        return self.store / SPARK / self.name

    def opened(self, schema: str) -> None:
        """Compare its columns, of a schema as in `StructType.json`, with those of the commit. Raises StoreUnfit."""
        now = kept_columns(schema)
        if self.columns is not None:
            check_kept_columns(input_of(self.name), self.columns, now)
        self.columns = now

    def sync(self) -> None:
        """Wait until everything that Spark has written is on disk. Raises StoreError."""
        if is_of_a_batch(self.name):
            return
        found = set[tuple[str, int]]()
        with naming(StoreError, f"Cannot write to {self.record}"):
            self._sync(self.record, found)
        self._synced = found

    def _sync(self, folder: Path, found: set[tuple[str, int]]) -> bool:
        """Sync the new files of a folder, then the folder. Return whether there were any. Adds all files to `found`."""
        is_new = False
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                is_new |= entry.name not in NOT_SYNCED and self._sync(Path(entry.path), found)
                continue
            with contextlib.suppress(FileNotFoundError):  # Spark has removed it meanwhile, because it is old
                status = entry.stat(follow_symlinks=False)
                file = entry.path, status.st_mtime_ns
                if stat.S_ISREG(status.st_mode) and file not in self._synced:
                    sync_path(entry.path)
                    is_new = True
                found.add(file)
        if is_new:
            sync_path(folder)
        return is_new


@dataclass(frozen=True, slots=True)
class KeptFeed:
    """What feeds a job with a store."""

    lines: Any  # a SparkSpec, a streaming DataFrame, or a RowFrames
    queries: Mapping[str, KeptQuery]  # by input; "": lines
    folder: Path  # of the records

    def columns(self) -> dict[str, KeptColumns]:
        """Return the columns of each input of rows, if they are known."""
        return {input: each.columns for input, each in self.queries.items() if each.columns is not None}


def location_of(folder: Path) -> str:
    """Return a folder as Spark's option `checkpointLocation`. It is no URI: Spark would write to `a%20b`.

    >>> location_of(Path("/data/a b"))
    'file:/data/a b'
    """
    return f"file:{folder.absolute()}"


@contextlib.contextmanager
def held_lock(
    folder: Path,
    stopping: Callable[[float], bool | None],
    report: Callable[[str], None],
    ending: Sequence[int] = (JAVA,),
) -> Iterator[int]:
    """Hold a folder's lock for the block, and yield its descriptor, which a Java process may inherit.

    Kills the earlier holders noted at the places `ending`. If none can be killed, calls `report` with the reason and
    waits until the holder has ended. `stopping` waits for so many seconds, and returns whether to give up.
    """
    lock = open_own(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for attempt in range(round(LOCK_SECONDS / POLL_SECONDS)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(lock, 0)
                break
            except BlockingIOError:
                if not attempt and not sum(end_holder(lock, place) for place in ending):
                    report(f"waiting up to {LOCK_SECONDS:g} s for Spark's Java process of an earlier run to end")
                if stopping(POLL_SECONDS):
                    raise SourceError("the job was stopped before Spark started") from None
        else:
            raise SourceError(
                f"Spark's Java process of an earlier run still uses {folder} after {LOCK_SECONDS:g} s. End that "
                "process, and run the same command again."
            )
        yield lock
    finally:
        close_own(lock)  # without an unlock, because Java also has the lock


def note_holder(lock: int, pid: int, place: int = JAVA) -> None:
    """Write the holder of a lock into its file."""
    os.pwrite(lock, f"{pid:{_PID_BYTES}}".encode(), place * _PID_BYTES)


def end_holder(lock: int, place: int = JAVA) -> bool:
    """Kill the process noted in a lock's file, if it is another process and has the file open. Return whether it was.
    """
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, ValueError, OverflowError):  # it is gone, or another user's, or not noted
        if (pid := int(os.pread(lock, _PID_BYTES, place * _PID_BYTES).strip(b"\0"))) == os.getpid():
            return False
        process = os.pidfd_open(pid)  # stays valid for this process even if its number is reused
        try:
            for file in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(file.stat(), os.fstat(lock)):
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                        return True
        finally:
            os.close(process)
    return False


def check_records(store: str, named: Iterable[tuple[str, int]], lines: Any, restored: Collection[str] = ()) -> None:
    """Raise StoreError unless Spark's records match the commit, and the given lines or rows are those of its queries.

    The records of the queries `restored` will be written from the commit.
    """
    given, named = sources_of(lines), [*named]
    first = lines.first if isinstance(lines, RowFrames) else ""
    if first and named and first not in {input_of(query) for query, _ in named}:
        raise StoreError(
            f"The store {store} has read other rows, but none of {first!r}, which must come first. Leave it out, or "
            "start over with a new --state folder."
        )
    for query, batch in named:
        if (input := input_of(query)) not in given:
            kind = f"the rows {input!r}" if input else "Spark's lines"
            raise StoreError(
                f"The store {store} belongs to {kind}. Name them again, or start over with a new --state folder."
            )
        if is_of_a_batch(query) != is_a_batch(given[input]):
            before, now = ("batch", "streaming") if is_of_a_batch(query) else ("streaming", "batch")
            raise StoreError(
                f"The store {store} has read the rows {input!r} from a {before} DataFrame, but now it is a {now} "
                f"DataFrame. Give a {before} DataFrame again, or start over with a new --state folder."
            )
        if not (is_of_a_batch(query) or query in restored):
            check_record(Path(store, SPARK, query), batch)


def check_record(folder: Path, batch: int) -> None:
    """Raise StoreError unless Spark's record of a query matches the newest batch in a commit."""
    remedy = "Restore the store and its folder spark from the same backup, or start over with a new --state folder."
    if not (folder / "offsets" / str(batch)).is_file():
        raise StoreError(f"{folder} lacks batch {batch}, which the last checkpoint includes. {remedy}")
    done = folder / "commits"  # does not exist before a batch is done
    answered = [int(name) for name in os.listdir(done) if name.isdigit()] if done.is_dir() else []
    if max(answered, default=batch) > batch:
        raise StoreError(
            f"{folder} reports batch {max(answered)} as done, but the last checkpoint ends at batch {batch}. {remedy}"
        )


def check_frames(named: Iterable[tuple[str, int]], lines: Any, columns: Mapping[str, KeptColumns]) -> None:
    """Raise StoreUnfit if a DataFrame of rows that is read on has other columns than the commit has for its input."""
    read_on = {input_of(query) for query, _ in named if not is_of_a_batch(query)}
    is_of_a_query = isinstance(lines, RowFrames) and lines.is_of_a_query
    for input, source in sources_of(lines).items():
        if input and input in read_on and input in columns and not isinstance(source, SparkSpec):
            check_kept_columns(input, columns[input], kept_columns(source.schema.json()), is_of_a_query)


def keep_queries(
    store: str, named: Iterable[tuple[str, int]], lines: Any, watermark: int | None = None,
    columns: Mapping[str, KeptColumns] = MappingProxyType({}),
) -> KeptFeed:  # fmt: skip
    """Return the queries that feed a job: those that resume, and new ones that no commit names. Raises StoreError.

    `watermark`: that of the commit, in microseconds. `columns`: with which those of inputs of rows are compared.
    """
    before = {input_of(query): query for query, _ in named}
    path = Path(os.path.abspath(store))
    queries = dict[str, KeptQuery]()
    for input, source in sources_of(lines).items():
        name = before.get(input) or query_of(input, BATCH if is_a_batch(source) else uuid.uuid4().hex)
        known = columns.get(input) if input and input in before else None
        is_over = is_of_a_batch(name) and input in before
        queries[input] = KeptQuery(name, path, is_over, watermark=watermark, columns=known)
    recorded = [each for each in queries.values() if not is_of_a_batch(each.name)]
    folder = path / SPARK
    with naming(StoreError, f"Cannot write to {folder}"):
        for made in (folder, *(each.record for each in recorded)):
            made.mkdir(mode=0o700, exist_ok=True)
        stay = {LOCK, RESULTS, *(each.name for each in recorded)}
        for entry in list(os.scandir(folder)):
            if entry.is_symlink():
                os.unlink(entry.path)
            elif entry.name not in stay:
                shutil.rmtree(entry.path, ignore_errors=True)  # an old Java may still write; the next attempt retries
        for each in recorded:
            each.way = folder / f"way-{uuid.uuid4().hex}"
            each.way.symlink_to(each.name)
        for synced in (folder, path):
            sync_path(synced)
    return KeptFeed(lines, queries, folder)
