"""The launcher's keeper of a job's store: takes it over, and commits checkpoints in a thread.

1. It opens the store before anything else is touched: a launcher that is refused has changed nothing. `begin` takes the
   store over. After that it takes the lock of a launcher that does not answer, cuts the output back, starts processes.
2. From `start` on the thread alone uses the store; `commit` gives it one checkpoint at a time, and `results` has what
   has become of them. A commit that is in doubt is tried again until it is known (see `megaflow.durable.incarnation`):
   neither answer could be given.
3. What is not needed any more is removed once a commit has been told, before the next; if that fails, after the next.
   A name is dropped in between, by a commit that says nothing else that is new.
4. When the job has lost its processes it goes on under a new incarnation of the same launcher, `begin_anew`: after the
   commit that is being written, without those that wait. One in doubt is not tried again: what the store then has is
   what counts, and nobody has been told otherwise. `latest` and `length` are of one commit, also if that was in doubt.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, Literal, TypeAlias
from uuid import uuid4

from megaflow.control.checkpoint_messages import CommitFailed, Committed
from megaflow.control.launcher_messages import DropName, NameDropped
from megaflow.control.messages import Split
from megaflow.durable.commits import Commit, OutputLength
from megaflow.durable.copying import Origin
from megaflow.durable.incarnation import Incarnation, begin, check_named, read_commits, taken_text
from megaflow.durable.inspection import check_whole
from megaflow.durable.local_folder import LocalFolder, open_for_a_job
from megaflow.durable.query_record import keep_record, restore_record
from megaflow.durable.reading import open_newest
from megaflow.durable.store import FolderStore
from megaflow.errors import CommitInDoubt, StoreError
from megaflow.job.launcher.kept_input import KeptInput
from megaflow.job.launcher.several_outputs import compare_outputs
from megaflow.quick_dataclass import dataclass

DOUBT_SECONDS: Final = 1.0  # between two attempts to find out
DOUBT_SECONDS_MAX: Final = 600.0  # then the job is ended
FAREWELL_SECONDS: Final = 5.0  # for a sync that is under way
DROP_SECONDS_MAX: Final = 10.0  # for a commit without a name: many times what it takes


@dataclass(frozen=True, slots=True)
class ToCommit:
    """A checkpoint."""

    commit: Commit  # but for its splits
    left: tuple[Split, ...]  # of these
    length: int  # of the outputs together
    names: tuple[str, ...]  # that it is to have


@dataclass(frozen=True, slots=True)
class ToDrop:
    """A name that is to keep no checkpoint any more."""

    name: str
    done: Future[None]  # for who has asked


Task: TypeAlias = ToCommit | ToDrop | Literal["collect"]


class StoreKeeper:
    """A store that this launcher has locked. To be closed."""

    def __init__(
        self,
        path: str,
        app: str,
        kept: int,
        open_folder: Callable[[str], LocalFolder] = open_for_a_job,
        origin: Origin | None = None,
    ) -> None:
        """Open the store and read what it says. Raises StoreError, and nothing has changed then.

        A new store begins with the `origin`, which is closed with it; by the caller if this raises.
        """
        self.path = path
        self._app, self._kept = app, kept
        self._folder = open_folder(path)
        self._store = FolderStore(self._folder)
        self.taken_from = self._folder.taken_from  # whose place this launcher takes; None: nobody's, or not known
        self._wanted = threading.Condition()
        self._tasks: deque[Task | None] = deque()  # None: begin anew
        self._results: list[Committed | CommitFailed | BaseException] = []
        self._lengths: dict[int, int] = {}  # checkpoint -> of the outputs, of the newest commit and what may follow it
        self._begun: Commit | None = None  # anew
        self._doubtful: Commit | None = None  # to be tried again
        self._doubtful_since = 0.0  # seconds of the clock
        self._is_closed = False
        self._wake: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="megaflow-store", daemon=True)
        self._incarnation: Incarnation | None = None
        self.input = KeptInput(())  # set before `start`
        self.origin = origin  # with which the store begins, if no job has begun with it
        try:
            self._found = read_commits(self._store) if self.taken_from is None else open_newest(self._folder)
            if self._found and origin is not None:
                origin.close()
                self.origin = None
            self.found = next(iter(self._found), None) if self.origin is None else self.origin.commit  # the newest
            self.opened = (self.origin or self._folder).opened  # files of that which another job may remove
            if self.found is not None and self.found.app != app:
                raise StoreError(
                    f"The store {self.origin.path if self.origin else path} belongs to {self.found.app!r}, not "
                    f"to {app!r}. Run that program, or name another --state folder."
                )
        except OSError as error:
            self._folder.close_folder()
            raise StoreError(f"Cannot read the store {path}: {error.strerror}.") from error
        except BaseException:
            self._folder.close_folder()
            raise

    @property
    def is_new(self) -> bool:
        """Whether no job has begun with the store."""
        return self.found is None or self.origin is not None

    @property
    def latest(self) -> Commit:
        """The newest commit that is durable."""
        assert self._incarnation is not None, "it has not begun"
        return self._incarnation.latest

    @property
    def length(self) -> int:
        """How long the outputs are in that, together: bytes of files, records in memory."""
        return self._lengths[self.latest.checkpoint]

    def check_outputs(self, given: Sequence[OutputLength]) -> None:
        """Raise StoreError unless outputs are those that the store names, or are not its origin's."""
        if self.origin is not None:
            for each in given:
                self.origin.check_output(each.output)
        elif self.found is not None:
            compare_outputs(self.path, self.found.outputs, given)

    def check_whole(self) -> None:
        """Raise StoreError unless all that the job goes on from is as it was written: an origin's, as it is copied."""
        try:
            if self.found is not None and self.origin is None:
                check_whole(self._store, self.found)
        except OSError as error:
            raise StoreError(f"Cannot read the store {self.path}: {error.strerror}.") from error

    def begin(self, outputs: tuple[OutputLength, ...]) -> Commit:
        """Take the store over, for a job with these outputs, which have these lengths if the store is new.

        Returns the newest commit, of a new incarnation. Raises StoreError.
        """
        try:
            if self.origin is not None:
                self._found = [self.origin.copy_into(self._store, outputs, uuid4().hex)]
                self.origin.close()
            self._incarnation = begin(self._store, self._app, self._kept, outputs, self._found)
            self._folder.take_lock_over()
            restore_record(self._store, self.path, self._incarnation.latest)
        except OSError as error:
            raise StoreError(f"Cannot write to the store {self.path}: {error.strerror}.") from error
        self._lengths = {self.latest.checkpoint: sum(each.length for each in self.latest.outputs)}
        return self.latest

    def start(self, wake: Callable[[], None]) -> None:
        """Have the thread begin, if it has not; it calls this `wake` when there are `results`, or it has begun anew."""
        self._wake = wake
        if self._thread.ident is None:
            self._thread.start()

    def commit(self, commit: Commit, left: tuple[Split, ...], length: int, names: tuple[str, ...] = ()) -> None:
        """Have a checkpoint committed, with this left to be read and so much output. Does not block.

        It gets the `names` that no other one has; what becomes of the others is said with its result.
        """
        self._put(ToCommit(commit, left, length, names))

    def _put(self, task: Task | None) -> None:
        with self._wanted:
            self._tasks.append(task)
            self._wanted.notify()

    def drop_name(self, request: DropName) -> NameDropped:
        """Have a name keep no checkpoint any more; blocks until that is durable, DROP_SECONDS_MAX at most."""
        self._put(task := ToDrop(request.name, Future()))
        try:
            task.done.result(DROP_SECONDS_MAX)
        except StoreError as error:
            return NameDropped(str(error))
        except TimeoutError:
            return NameDropped(f"the store {self.path} did not write in time, so the name may or may not be removed")
        return NameDropped()

    def begin_anew(self) -> None:
        """Have a new incarnation begun, under which the job goes on from the newest commit; `begun_anew` tells when."""
        with self._wanted:
            self._begun = None
            self._tasks.clear()
            self._put(None)

    def begun_anew(self) -> Commit | None:
        """Return the newest commit, of the new incarnation; None: not yet. Raises what keeps it from beginning."""
        self.results()
        return self._begun

    def results(self) -> list[Committed | CommitFailed]:
        """Return what has become of checkpoints since the last call; raises what has made the thread fail."""
        with self._wanted:
            results, self._results = self._results, []
        for each in results:
            if isinstance(each, BaseException):
                raise each
        return [each for each in results if not isinstance(each, BaseException)]

    def close(self) -> None:
        """Let go of the store, once; what is being written may be there or not."""
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
            self._folder.close_folder()  # else it goes with the process: the thread may be writing

    @property
    def has_work(self) -> bool:
        """Whether the thread has something to do."""
        return bool(self._tasks)

    def _run(self) -> None:
        while self._await_task():
            self.work()

    def _await_task(self) -> bool:
        """Wait until there is something to do; return False if this is closed."""
        with self._wanted:
            if self._doubtful is not None:
                self._wanted.wait_for(lambda: self._is_closed or None in self._tasks, DOUBT_SECONDS)
            self._wanted.wait_for(lambda: self._tasks or self._is_closed)
            return not self._is_closed

    def work(self) -> None:
        """Do what the thread has to do next; a commit that is in doubt then stays to be done."""
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
        if task is not None and result is None:
            return  # nobody waits, or who has asked knows
        with contextlib.suppress(OSError):  # the loop has ended
            self._wake()

    def _do(self, task: Task | None) -> Committed | CommitFailed | None:
        """Do it; return what is to be said of it. In doubt `_doubtful` is set."""
        if task is None:
            self._begin_anew()
            return None
        if task == "collect":
            assert self._incarnation is not None, "it has begun"
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
                commit = replace(commit, splits=self.input.remainders(task.left))
                commit = keep_record(self._store, self.path, commit) if free else commit
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
        """Drop a name. In doubt `_doubtful` is set, and it is to be done again."""
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
        """Write a commit; in doubt set `_doubtful` and return False. Raises OSError."""
        incarnation = self._incarnation
        assert incarnation is not None, "it has begun"
        try:
            write(incarnation)
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
        self.results()  # of the incarnation before: an error, that of a fenced launcher above all, keeps from it
        assert self._incarnation is not None, "it has not begun"
        try:
            self._incarnation = self._incarnation.begin_anew()
        except OSError as error:
            raise StoreError(f"Cannot write to the store {self.path}: {error.strerror}.") from error
        self._begun = begun = self._incarnation.latest
        self._lengths = {begun.checkpoint: self._lengths[begun.checkpoint]}

    def _fail(self, commit: Commit, reason: str) -> CommitFailed:
        """Give a checkpoint up, and with it the segments that were written for it."""
        assert self._incarnation is not None, "it has not begun"
        self._incarnation.give_up(commit.own_files)
        return CommitFailed(commit.checkpoint, reason.rstrip("."))
