"""Sinks: destinations of a stream, written by `stream.write(sink, name)` from each worker, in parallel.

    open     on each worker: the sink may connect
    write    takes records as they come; they need not be visible yet
    prepare  makes the written records durable but not yet visible, and returns a *token*: a plain value with which any
             process can make them visible
    commit   makes the records of a token visible
    close    the worker ends: drop records that were written but not prepared

With `--state`, n is the number of a checkpoint. Each record becomes visible exactly once, whatever is killed when:
 1. `prepare(n)` is called when all records before the checkpoint's time have been written, and none of that time or
    later. Its token goes into the checkpoint.
 2. `commit(n, token)` is called once the checkpoint is durable, never before. If a process ends before the commit is
    done, the job that resumes from this checkpoint calls it again. It does so in another process, with any number of
    workers, where nothing was written yet. So the token contains all that `commit` needs, and a second call does
    nothing.
 3. After a crash before `write`, between `write` and `prepare`, or before the checkpoint is complete, the job resumes
    from the checkpoint before. The records are read again, and the prepared ones never become visible: no call ever has
    their token. They stay where `prepare` put them. A token is never given again, so it must be a new name
    (`uuid.uuid4().hex`).
 4. If a checkpoint fails without a crash, its token goes into the next checkpoint, beside that one's own token. So
    `commit` may be called with several tokens of one worker and one n, in the order of their `prepare`. That n is then
    higher than the n of their `prepare`.
 5. All tokens of a checkpoint are committed before the next one is durable. So a sink that notes its committed tokens
    may forget those with a lower n, but for the tokens that `expect` names.
 6. The last checkpoint, at the end of the input or at a stop, is committed before the job ends. The store then forgets
    its tokens, so the next run does not commit them again. A leaving worker prepares its records; another worker
    commits its tokens.

Without `--state`, n counts flushes on each worker: one per second in which something was written, and one at the end.
Each is `prepare(n)`, followed at once by `commit(n, token)`. If a run is repeated, it writes again.

A store and an outside system are restored apart. A sink may define `delivered(lineage) -> tuple[int, list] | None`,
which returns the greatest n of all its commits under this lineage, and the list of tokens that were committed with it,
or None without any. It has to note token, lineage and n with each commit, and with a second one of a token to replace
what it noted: `place.lineage` is that of the store. The job compares this with the store before it
writes anything, after `open`. If the store is older, rows would be written twice; if the outside system is older, they
would be missing. Both are refused.

A process on another machine may see another outside system under the same address. A sink may define three methods with
which the job finds that out. Before the process takes part, `probe() -> token` writes something beside the records, and
returns a token for it, a plain value. The coordinator's worker calls `sees(token) -> bool` of its own copy of the sink.
If that does not see the probe for 5 seconds, a process that wants to join is refused, and a job that starts on several
machines ends. `forget(token)` then removes the probe.

The outside system may also be restored while the job runs. A sink with `delivered` may define `expect(tokens)`. The
worker calls it before each commit, with the tokens of the sink's last commits before this checkpoint, of all workers.
The list is empty if there are none, or if the outside system was emptied; it leaves out tokens that are no texts of at
most 64 bytes. If one of these tokens is not noted any more, the commit must raise an error and change nothing. Best it
looks in its own transaction. Otherwise later commits could hide the missing ones from `delivered`.

Most databases cannot keep rows durable but invisible. For those, write an `OutboxSink`: megaflow keeps the rows in the
store until they may become visible.

The sink that a program makes is never opened. Each worker has its own shallow copy (`copy.copy`), and only that
worker's thread calls these methods. They may block. The worker does nothing else meanwhile, its sources wait, and so
does the checkpoint. So `open` and all calls over a network should have time limits. An exception ends the job; the
error names the sink, the worker and n. With `--restarts`, only lost processes are retried.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from megaflow.quick_dataclass import dataclass

T = TypeVar("T")

Token: TypeAlias = Any
"""A plain value, as keys and states are, of 64 KiB at most; never None, which says that there is nothing to commit."""


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """Place where a sink is opened."""

    sink: str  # the name that the program gave it
    worker: int  # unique in a run of the job; another worker may have had it in a run before
    job: str  # its name
    durable: bool  # whether the job was started with --state
    lineage: str = ""  # of the store, the same for all copies of it; "": there is none
    joined: bool = False  # whether the worker has joined a running job, whose other workers opened the sink before


class Sink(Generic[T]):
    """Base class of sinks, which take the records of a stream on each worker. The module's header states the rules.

    Subclasses define `write`, `prepare` and `commit`. `stream.write` refuses a sink that lacks one, and names it. (An
    abstract class would also require them of an `OutboxSink`, which does not need them.)
    """

    _to_define: ClassVar[tuple[str, ...]] = ("write(epoch, records)", "prepare(n)", "commit(n, token)")

    parallel: bool = True
    """Whether each worker writes its own records. False: all records go to the worker with the lowest id. When that
    worker leaves, they go to the next one, and for a moment to both."""
    ordered: bool = False
    """Whether records are written in the order of their epochs, each epoch once it is over at all workers. Without it,
    the outputs of a key before and after its bin moves may reach different workers, or one worker in the wrong order.
    If the last record of a key must win, as in an upsert, set `parallel = False, ordered = True`."""
    rewrites: bool = False
    """Whether a record that is written again replaces itself, as in an upsert. If so, a store that is older than the
    rows may go on."""

    def open(self, place: SinkPlace) -> None:
        """Start the sink on one worker, before any other call. Called once, also on workers that write nothing."""

    def write(self, epoch: int, records: list[T]) -> None:
        """Take records of one epoch: at least one, at most some hundreds.

        Records of one key from one partition come in the partition's order, over all calls, except as `ordered` states.
        An epoch has several calls, and epochs may come slightly out of order. Other operators share the list: copy it
        to change it.
        """
        raise NotImplementedError

    def prepare(self, n: int) -> Token:
        """Make all records since the last `prepare` durable but not yet visible, and return a token for them.

        Called at each checkpoint. Returns None if nothing was written. n rises from call to call.
        """
        raise NotImplementedError

    def commit(self, n: int, token: Token) -> None:
        """Make the records of this token visible, durably, unless they are. A second call must have no further effect.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release all resources as this worker ends. Records that were not prepared must not become visible.

        Called once if `open` was called, also after an error, but not if the process is killed.
        """


class OutboxSink(Sink[T]):
    """Sink whose records wait in the store until they may become visible. Then `deliver` writes them all.

    With `--state` the records of an interval go into a segment of the store, the outbox, and stay there until they are
    delivered. So they must be able to travel between processes. Without `--state` they wait in memory for a flush.
    Inherit from this class and define `deliver`. `check`, `open` and `close` are optional; set `parallel` to False if
    one worker writes all records.

    A record that `deliver` cannot write ends every run that resumes from the checkpoint. So `check` refuses, before a
    record is stored, each record that is invalid by itself. If only the external system can refuse a record, `deliver`
    raises `megaflow.errors.RecordRefused`. The error then explains how `megaflow state outbox` drops or rewrites the
    record.
    """

    _to_define = ("deliver(n, token, records)",)

    def check(self, records: list[T]) -> None:
        """Raise ProgramError for a record that `deliver` could not write. Called before records are stored.

        It should need no network, and must not change the list, which other operators share.
        """

    def deliver(self, n: int, token: str, records: Iterable[T]) -> None:
        """Write these records and a mark of (sink, token, n) in one transaction. Do nothing if the mark is there.

        The sink's name is `place.sink` of `open`. A token, 32 random letters and digits, never stands for other records
        in any run. The rules and the moment of a call are those of `commit`. The same transaction may remove marks of
        this sink with a lower n (rule 5 of the module), but not marks of this token with another n. Without `--state`,
        n begins at 1 on each worker and in each run. Then only the token counts, and no mark is needed.

        Each iteration over `records` reads them from the store bit by bit, in the order in which they were written. So
        a transaction that is tried again iterates again. After a crash before the commit of the transaction, `deliver`
        is called again with equal records.
        """
        raise NotImplementedError


def undefined(sink: Sink[Any]) -> list[str]:
    """Return the methods that a sink must define and does not, with their arguments."""
    kind, base = type(sink), OutboxSink if isinstance(sink, OutboxSink) else Sink
    named = ((each, each.partition("(")[0]) for each in base._to_define)
    return [each for each, name in named if getattr(kind, name) is getattr(base, name)]
