"""The launcher's keeper of a job's store: takes it over, and commits checkpoints in a thread.

1. The keeper opens the store before anything else changes, so a refused launcher has changed nothing. `begin` takes
   over the store, and only then the lock of a launcher that does not answer. After that the launcher cuts the output
   back and starts processes.
2. From `start` on, only the thread uses the store. `commit` gives it one checkpoint at a time, and `results` returns
   the outcomes. The thread repeats a commit in doubt until its outcome is known (see `megaflow.durable.incarnation`),
   because the keeper can report neither success nor failure before that. After DOUBT_SECONDS_MAX the job ends.
3. After the keeper has reported a commit, and before the next one, the thread removes files that the store no longer
   needs. If that fails, it tries again after the next commit. It also drops names between two commits, each by a commit
   with no other news.
4. A job that has lost its processes continues under a new incarnation of the same launcher (`begin_anew`). The thread
   first finishes the commit that it is writing, and drops the commits that wait. It does not repeat a commit in doubt:
   the content of the store decides, and the keeper has reported no other outcome. `latest` and `length` belong to the
   same commit, even if that was in doubt.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, Literal, TypeAlias
from uuid import uuid4

from megaflow.control.checkpoint_messages import CommitFailed, Committed
from megaflow.control.launcher_messages import DropName, NameDropped
from megaflow.durable.commits import Commit, OutputLength
from megaflow.durable.copying import Origin
from megaflow.durable.incarnation import Incarnation, begin, check_arrived, check_named, read_commits, taken_text
from megaflow.durable.inspection import check_whole, naming_way_out
from megaflow.durable.local_folder import LocalFolder, open_for_a_job
from megaflow.durable.query_record import keep_record, restore_records
from megaflow.durable.reading import open_newest
from megaflow.durable.relocation import relocate
from megaflow.durable.store import Store
from megaflow.errors import CommitInDoubt, StoreError, naming
from megaflow.job.launcher.outputs.several_outputs import compare_outputs
from megaflow.job.launcher.store.commit_draft import ToCommit, with_columns
from megaflow.job.launcher.store.input_positions import InputPositions
from megaflow.quick_dataclass import dataclass
from megaflow.rows.kept_columns import KeptColumns

DOUBT_SECONDS: Final = 1.0  # between two attempts to find the outcome
DOUBT_SECONDS_MAX: Final = 600.0  # then the job ends
FAREWELL_SECONDS: Final = 5.0  # for a sync in progress
DROP_SECONDS_MAX: Final = 10.0  # for a commit without a name: many times what it takes


@dataclass(frozen=True, slots=True)
class ToDrop:
    """Name to drop, so that it keeps no checkpoint."""

    name: str
    done: Future[None]  # for the requester


Task: TypeAlias = ToCommit | ToDrop | Literal["collect"]


class StoreKeeper:
    """Store that this launcher has locked. Must be closed."""

    def __init__(
        self, path: str, app: str, kept: int, open_folder: Callable[[str], LocalFolder] = open_for_a_job,
        origin: Origin | None = None, moved: Sequence[tuple[str, str]] = (), dropped: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Open the store and read its commits. If it raises StoreError, nothing has changed.

        A new store begins with `origin`. The keeper closes it, or the caller if this raises. `moved`: see `relocate`.
        `dropped`: operators and sinks whose content is given up.
        """
        self.path = path
        self.dropped = tuple(dropped)
        self._app, self._kept = app, kept
        self._folder = open_folder(path)
        self._store = Store(self._folder)
        self.word, self.words_before = self._folder.word, self._folder.words_before  # in the lock
        self.taken_from = self._folder.taken_from  # the launcher that this one replaces; None: none, or not known
        self._wanted = threading.Condition()
        self._tasks: deque[Task | None] = deque()  # None: begin a new incarnation
        self._results: list[Committed | CommitFailed | BaseException] = []
        self._lengths: dict[int, int] = {}  # checkpoint -> output length, for the newest commit and the next
        self._begun: Commit | None = None  # newest commit of the new incarnation
        self._doubtful: Commit | None = None  # must be tried again
        self._doubtful_since = 0.0  # seconds of the clock
        self._is_closed = False
        self._wake: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="megaflow-store", daemon=True)
        self._incarnation: Incarnation  # from `begin` on
        self.input = InputPositions(())  # set before `start`
        self.columns: Callable[[], Mapping[str, KeptColumns]] = dict  # of inputs of rows; set before `start`
        self.origin = origin  # the store begins with it, if no job has begun with the store
        with contextlib.ExitStack() as opened:
            opened.callback(self._folder.close_folder)
            opened.enter_context(naming(StoreError, f"Cannot read the store {self.path}"))
            opened.enter_context(naming_way_out(self._store, path))
            self._found = read_commits(self._store) if self.taken_from is None else open_newest(self._folder)
            if self._found:
                self._found[0] = relocate(self._found[0], moved, path)
            if self._found and origin is not None:
                origin.close()
                self.origin = None
            self.found = next(iter(self._found), None) if self.origin is None else self.origin.commit  # newest
            self.opened = (self.origin or self._folder).opened  # its files, which another job may remove
            if self.found is not None and self.found.app != app:
                raise StoreError(
                    f"The store {self.origin.path if self.origin else path} belongs to {self.found.app!r}, not "
                    f"to {app!r}. Run that program, or name another --state folder."
                )
            opened.pop_all()

    @property
    def is_new(self) -> bool:
        """Whether no job has begun with the store."""
        return self.found is None or self.origin is not None

    @property
    def latest(self) -> Commit:
        """Newest durable commit."""
        return self._incarnation.latest

    @property
    def length(self) -> int:
        """Common length of the outputs in that commit: bytes of files, records in memory."""
        return self._lengths[self.latest.checkpoint]

    def check_outputs(self, given: Sequence[OutputLength]) -> None:
        """Raise StoreError if the store names other outputs, or if its origin names one of these."""
        if self.origin is not None:
            for each in given:
                self.origin.check_output(each.output)
        elif self.found is not None:
            compare_outputs(self.path, self.found.outputs, given)

    def check_whole(self) -> None:
        """Raise StoreError if data from which the job resumes is damaged.

        An origin is checked while it is copied.
        """
        with naming(StoreError, f"Cannot read the store {self.path}"), naming_way_out(self._store, self.path):
            if self.found is not None and self.origin is None:
                check_whole(self._store, self.found)

    def begin(self, outputs: tuple[OutputLength, ...], renews: bool = False, settled: Collection[str] = ()) -> Commit:
        """Take over the store for a job; return the newest commit, of a new incarnation. Raises StoreError.

        `outputs` have their lengths if the store is new. The commit describes the input as `found` does. `renews`: the
        store gets another lineage, and forgets what the `settled` sinks have delivered.
        """
        with naming(StoreError, f"Cannot write to the store {self.path}"):
            if self.origin is not None:
                self._found = [self.origin.copy_into(self._store, outputs, lambda: uuid4().hex)]
                self.origin.close()
            if (known := self.found) is not None:
                self._found[0] = replace(self._found[0], splits=known.splits, partitions=known.partitions)
            self._incarnation = begin(self._store, self._app, self._kept, outputs, self._found, renews, settled)
            self._folder.take_lock_over()
            restore_records(self._store, self.path, self._incarnation.latest)
        self._lengths = {self.latest.checkpoint: sum(each.length for each in self.latest.outputs)}
        return self.latest

    def start(self, wake: Callable[[], object]) -> None:
        """Start the thread unless it runs. It calls `wake` when `results` has news or a new incarnation has begun."""
        self._wake = wake
        if self._thread.ident is None:
            self._thread.start()

    def commit(self, task: ToCommit) -> None:
        """Let the thread commit a checkpoint. Does not block. The result lists names already taken."""
        self._put(task)

    def _put(self, task: Task | None) -> None:
        with self._wanted:
            self._tasks.append(task)
            self._wanted.notify()

    def drop_name(self, request: DropName) -> NameDropped:
        """Drop a name, so that it keeps no checkpoint; block until that is durable, at most DROP_SECONDS_MAX."""
        self._put(task := ToDrop(request.name, Future()))
        try:
            task.done.result(DROP_SECONDS_MAX)
        except StoreError as error:
            return NameDropped(str(error))
        except TimeoutError:
            return NameDropped(f"the store {self.path} did not write in time, so the name may or may not be removed")
        return NameDropped()

    def begin_anew(self) -> None:
        """Begin a new incarnation in the thread, to resume from the newest commit; see `begun_anew`."""
        with self._wanted:
            self._begun = None
            self._tasks.clear()
            self._put(None)

    def begun_anew(self) -> Commit | None:
        """Return the newest commit once the new incarnation has begun, else None. Raises what prevents it."""
        self.results()
        return self._begun

    def results(self) -> list[Committed | CommitFailed]:
        """Return the outcomes of checkpoints since the last call. Raises the error of a failed thread."""
        with self._wanted:
            results, self._results = self._results, []
        for each in results:
            if isinstance(each, BaseException):
                raise each
        return [each for each in results if not isinstance(each, BaseException)]

    def close(self) -> None:
        """Close the store, once; a commit that is being written may take effect or not."""
        if self._is_closed:
            return
        if self.origin is not None:
            self.origin.close()
        with self._wanted:
            self._is_closed = True
            self._wanted.notify()
        if self._thread.ident is not None:
            self._thread.join(FAREWELL_SECONDS)
        if not self._thread.is_alive():
            self._folder.close_folder()  # otherwise it closes with the process, because the thread may be writing

    def _run(self) -> None:
        while self._await_task():
            self.work()

    def _await_task(self) -> bool:
        """Wait for a task; return False if this is closed."""
        with self._wanted:
            if self._doubtful is not None:
                self._wanted.wait_for(lambda: self._is_closed or None in self._tasks, DOUBT_SECONDS)
            self._wanted.wait_for(lambda: self._tasks or self._is_closed)
            return not self._is_closed

    def work(self) -> None:
        """Do the thread's next task; a commit in doubt stays the next task."""
        with self._wanted:
            task = self._tasks.popleft()
        try:
            result: Committed | CommitFailed | BaseException | None = self._do(task)
        except BaseException as error:
            result, self._doubtful = error, None
        with self._wanted:
            if None not in self._tasks and self._doubtful is not None:
                self._tasks.appendleft(task)
                return
            if result is not None:
                self._results.append(result)
        if task is None or result is not None:  # otherwise no caller waits, or it has its answer
            self._wake()

    def _do(self, task: Task | None) -> Committed | CommitFailed | None:
        """Do a task; return the outcome to report. In doubt, set `_doubtful`."""
        if task is None:
            self._begin_anew()
            return None
        if task == "collect":
            with contextlib.suppress(OSError):
                self._incarnation.collect()
            return None
        if self._doubtful is None:
            self._doubtful_since = time.monotonic()
        if isinstance(task, ToDrop):
            self._drop(task)
            return None
        commit, length = task.commit, task.length
        taken = dict(self.latest.named)
        refused = tuple((name, taken_text(name)) for name in task.names if name in taken)
        free = [name for name in task.names if name not in taken]
        if self._doubtful is None:
            try:
                left = commit.splits if task.left is None else self.input.remainders(task.left, task.read)
                commit = with_columns(replace(commit, splits=left), self.columns())
                commit = keep_record(self._store, self.path, commit) if free else commit
                check_arrived(self._store, self.path, commit, self.latest)
            except OSError as error:
                return self._fail(commit, f"cannot read {error.filename!r}: {error.strerror}")
            except StoreError as error:
                return self._fail(commit, str(error))
        commit, self._doubtful = self._doubtful or commit, None
        self._lengths[commit.checkpoint] = length
        try:
            if not self._write(commit, lambda incarnation: incarnation.commit(commit, free)):
                return None
        except OSError as error:
            return self._fail(commit, f"cannot write to the store {self.path}: {error.strerror}")
        self._lengths = {commit.checkpoint: length}
        return Committed(commit.checkpoint, refused)

    def _drop(self, task: ToDrop) -> None:
        """Drop a name. In doubt, set `_doubtful`, and the task must be repeated."""
        self._doubtful = None
        try:
            check_named(self.latest, task.name)
        except StoreError as error:
            task.done.set_exception(error)
            return
        try:
            if self._write(self.latest, lambda incarnation: incarnation.drop_name(task.name)):
                task.done.set_result(None)
        except OSError as error:
            task.done.set_exception(StoreError(f"Cannot write to the store {self.path}: {error.strerror}."))

    def _write(self, commit: Commit, write: Callable[[Incarnation], object]) -> bool:
        """Write a commit. In doubt, set `_doubtful` and return False. Raises OSError."""
        try:
            write(self._incarnation)
        except CommitInDoubt as error:
            if time.monotonic() - self._doubtful_since > DOUBT_SECONDS_MAX:
                raise StoreError(f"Cannot write to the store {self.path}: {error}") from error
            self._doubtful = commit
            return False
        with self._wanted:
            self._tasks.appendleft("collect")
        return True

    def _begin_anew(self) -> None:
        self._doubtful = None
        self.results()  # of the previous incarnation: an error, such as that of a fenced launcher, prevents the new one
        with naming(StoreError, f"Cannot write to the store {self.path}"):
            self._incarnation = self._incarnation.begin_anew()
        self._begun = begun = self._incarnation.latest
        self._lengths = {begun.checkpoint: self._lengths[begun.checkpoint]}

    def _fail(self, commit: Commit, reason: str) -> CommitFailed:
        """Give up a checkpoint, and the segments written for it."""
        self._incarnation.give_up(commit.own_files)
        return CommitFailed(commit.checkpoint, reason.rstrip("."))
