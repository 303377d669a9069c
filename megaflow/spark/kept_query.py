"""A query that resumes where it stopped: Spark's record of each batch's content, in the folder of the job's store.

1. The record is STORE/spark/QUERY, and a commit names QUERY and the newest committed batch. So neither is used without
   the other. A record that no commit names belongs to a query of which no batch was ever answered; it is removed.
2. The content of a batch is synced to disk before the coordinator is asked to commit it, while its lines are staged. So
   a commit of the store only names batches that are on disk. Spark does not sync its files: without this rule, a power
   failure could keep the commit but lose the record, and Spark would put more into a batch of the same number. A synced
   file does not change again.
3. Record and store must match: Spark knows the content of the newest committed batch, and answered no later one.
   Otherwise only one of them was restored from a backup, and lines would be lost.
4. Java outlives a killed launcher, by a minute if the machine is busy. It inherits the lock on the file LOCK, which is
   released when the last process that holds it ends, so one query at a time writes the record. LOCK names that process.
   A launcher that finds LOCK locked already holds the lock of the store, so the old Java has no purpose: it is killed
   if it has LOCK open, and leaves what any crash may leave. If the process cannot be found, the launcher waits for its
   end. A launcher whose store was taken over cannot commit. It also has the lock of its results open, and ends
   likewise.
5. A Java process that has not inherited LOCK (its session is older than the job, or also runs its processes) may live
   for a moment beside the next one. It cannot write to the record: Spark only knows a link to the record. Each life of
   a job makes a new link and first removes the earlier ones, which then lead nowhere.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from megaflow.durable.local_folder import LOCK, SPARK
from megaflow.durable.query_record import sync_path
from megaflow.errors import SourceError, StoreError
from megaflow.quick_dataclass import dataclass

POLL_SECONDS: Final = 0.1
RESULTS: Final = "results"
"""Beside it: the folder with what a query reads that comes after the job, see `megaflow.job.launcher.spark_results`."""
LOCK_SECONDS: Final = 60.0
"""For Java to end by itself: Spark gives itself some ten seconds."""
JAVA: Final = 0  # a place in the file LOCK
LAUNCHER: Final = 1
_PID_BYTES: Final = 20
NOT_SYNCED: Final = ("commits", "state")
"""Unsynced: the record of answered batches, as a lost answer is repeated; states, which only user queries have."""


@dataclass(eq=False)
class KeptQuery:
    """What a job with a store is fed by. One writer: the feed."""

    lines: Any  # a SparkSpec, or a streaming DataFrame
    name: str  # QUERY
    store: Path
    way: Path = Path()  # the link to its record that Spark is told
    _synced: set[tuple[str, int]] = field(default_factory=set)  # path, time of its last change; of those there

    @property
    def record(self) -> Path:
        """The folder that is Spark's."""
        return self.store / SPARK / self.name

    def sync(self) -> None:
        """Wait until what Spark has written is on the disk. Raises StoreError."""
        found = set[tuple[str, int]]()
        try:
            self._sync(self.record, found)
        except OSError as error:
            raise StoreError(f"Cannot write to {self.record}: {error.strerror}.") from error
        self._synced = found

    def _sync(self, folder: Path, found: set[tuple[str, int]]) -> bool:
        """Sync what is new in a folder, then the folder; return whether something was. Puts all files into `found`."""
        is_new = False
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                is_new |= entry.name not in NOT_SYNCED and self._sync(Path(entry.path), found)
                continue
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile, as it is old
                status = entry.stat(follow_symlinks=False)
                file = entry.path, status.st_mtime_ns
                if stat.S_ISREG(status.st_mode) and file not in self._synced:
                    sync_path(entry.path)
                    is_new = True
                found.add(file)
        if is_new:
            sync_path(folder)
        return is_new

    def held(
        self, stopping: Callable[[float], bool], report: Callable[[str], None]
    ) -> contextlib.AbstractContextManager[int]:
        """Give, for the block, the descriptor of the record's lock: see `held_lock`."""
        return held_lock(self.store / SPARK, stopping, report)


@contextlib.contextmanager
def held_lock(
    folder: Path,
    stopping: Callable[[float], bool | None],
    report: Callable[[str], None],
    ending: Sequence[int] = (JAVA,),
) -> Iterator[int]:
    """Give, for the block, the descriptor of a folder's lock, for a Java process to inherit.

    Ends an earlier one, or waits until it has ended, and then `report` is told why; `ending` says who of those that are
    noted is ended. `stopping` waits for so many seconds, and says whether not to go on.
    """
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
        os.close(lock)


def note_holder(lock: int, pid: int, place: int = JAVA) -> None:
    """Write down who has a lock."""
    os.pwrite(lock, f"{pid:{_PID_BYTES}}".encode(), place * _PID_BYTES)


def end_holder(lock: int, place: int = JAVA) -> bool:
    """Kill the process that is noted in a lock's file, if that is another one and has it open; return whether it was.
    """
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, ValueError, OverflowError):  # it is gone, or another user's; or none is noted
        if (pid := int(os.pread(lock, _PID_BYTES, place * _PID_BYTES).strip(b"\0"))) == os.getpid():
            return False
        process = os.pidfd_open(pid)  # it stays that process's, whatever comes to have its number
        try:
            for file in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(file.stat(), os.fstat(lock)):
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                        return True
        finally:
            os.close(process)
    return False


def check_record(store: str, named: Iterable[tuple[str, int]], rows: Sequence[str] = ()) -> None:
    """Raise StoreError unless Spark's record is where a commit says that it is, and of these rows; none: of lines."""
    for query, batch in named:
        if (before := query.rpartition("-")[0]) != "-".join(rows):
            kind = f"the rows {before!r}" if before else "Spark's lines"
            raise StoreError(
                f"The store {store} belongs to {kind}. Name them again, or start over with a new --state folder."
            )
        folder = Path(store, SPARK, query)
        remedy = "Restore the store and its folder spark from the same backup, or start over with a new --state folder."
        if not (folder / "offsets" / str(batch)).is_file():
            raise StoreError(f"{folder} lacks batch {batch}, which the last checkpoint includes. {remedy}")
        done = folder / "commits"  # not there before a batch is done
        answered = [int(name) for name in os.listdir(done) if name.isdigit()] if done.is_dir() else []
        if max(answered, default=batch) > batch:
            raise StoreError(
                f"{folder} reports batch {max(answered)} as done, but the last checkpoint ends at batch {batch}. "
                f"{remedy}"
            )


def keep_query(store: str, named: Iterable[tuple[str, int]], lines: Any, rows: Sequence[str] = ()) -> KeptQuery:
    """Return the query that goes on, or a new one if no commit names one. Raises StoreError.

    `rows`: the name of its input; none: it gives lines.
    """
    query = next((query for query, _ in named), "-".join([*rows, uuid.uuid4().hex]))
    kept = KeptQuery(lines, query, Path(os.path.abspath(store)))
    folder = kept.store / SPARK
    try:
        for made in (folder, kept.record):
            made.mkdir(mode=0o700, exist_ok=True)
        for entry in list(os.scandir(folder)):
            if entry.is_symlink():
                os.unlink(entry.path)
            elif entry.name not in (LOCK, RESULTS, query):
                shutil.rmtree(entry.path, ignore_errors=True)  # an old Java may write there; the next life removes that
        kept.way = folder / f"way-{uuid.uuid4().hex}"
        kept.way.symlink_to(query)
        for synced in (folder, kept.store):
            sync_path(synced)
    except OSError as error:
        raise StoreError(f"Cannot write to {folder}: {error.strerror}.") from error
    return kept
