"""Sources: inputs that a program reads by `flow.read(source, name)`.

A source has *partitions*, each a sequence of records. A partition is the unit of reading and of order. One worker at a
time reads it, and its records are processed in their order, key by key, even if another worker takes it over.

    discover   in the process that coordinates the job, in a thread: which partitions there are
    open       on the worker that is to read a partition: from its beginning, or from a position
    read       there: the next records and the position after them; or that there are none now, or none in the future
    close      there: another worker continues, or reading ends

1. Each worker process makes the source by calling the dataflow function, and each worker thread has its own. Only
   partitions and positions travel and are kept in checkpoints. They are plain values, like keys and states. Partitions
   must be hashable; equal partitions are one partition.
2. Each record is in the list of one call of `read`, and the position is the one after the last record of the list. A
   reader that opens the partition at a position returns the records after it, in the same order, in lists of any size.
   After a crash, records after the position in the checkpoint are read again. Records may be lost only if a source
   cannot go back; its documentation then states that.
3. No call may block the worker. If there is nothing to read *now*, `read` returns `Idle`, with the condition that wakes
   the reader. Only `discover` may take long, because it has a thread of its own.
4. An exception in a source ends the job. The error names the source, the partition and the position.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from megaflow.quick_dataclass import dataclass

T = TypeVar("T")

Partition: TypeAlias = Any
"""A part of a source: a hashable plain value, such as a str, an int or a tuple of them."""
Position: TypeAlias = Any
"""A position in a partition: a plain value, but never None, which stands for the beginning."""


@dataclass(frozen=True, slots=True)
class Found:
    """Result of `Source.discover` that requests another call."""

    partitions: Iterable[Partition]  # all, or only the new ones
    again_seconds: float | None = None  # until the next call; None: no further partitions will come
    complete: bool = False
    """Whether these are all existing partitions. If so, the job forgets ended partitions that are missing here.

    Otherwise the job keeps every partition and writes it into each checkpoint: some 50 bytes each, and half a second
    more per checkpoint with 100,000. Set it only if the source never lists a partition again after leaving it out,
    because that may be read again; so the source must raise if it could not look. A partition that is left out before a
    checkpoint contains it (say, a minute after it was first listed) is not read after a crash."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Result of `read`: there is nothing to read now.

    Without any of the three fields, `read` is called again in a tenth of a second. If several are given, the first to
    happen wakes the reader. Waking a reader that has something to read only costs the call.
    """

    fd: int | None = None  # a file descriptor, readable when there is something; it stays open until the next `read`
    on_ready: Callable[[Callable[..., None]], object] | None = None
    """Called with a function that wakes the reader, from any thread and with any arguments. Called once, soon after
    `read` has returned. If something has come by then, it must wake at once, as `Future.add_done_callback` does."""
    after_seconds: float | None = None  # of a monotonic clock
    is_held: bool = False  # it may have records that cannot be read now, so event time still waits for it


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Result of `read`: all records of the partition have been read, and it gets no further ones in this run."""

    resumable: bool = False
    """Whether it may get more before the next run. If so, checkpoints keep its last position, and the next run opens it
    there once `discover` names it. A recovery belongs to the same run and does not open it again."""


@dataclass(frozen=True, slots=True)
class NotHere:
    """Result of `read`: this process cannot open the partition, but another process may. Used by followed files.

    Another process then reads the partition. If no process can, one keeps trying, and `stay` is called there.
    """

    after_seconds: float  # of a monotonic clock, until the next `read`
    why: str = ""  # what this process lacks, and why
    unread: int | None = None  # bytes that the partition has and that were not read; None: unknown
    is_held: bool = False  # it is known to exist, so event time waits for it even if no process can open it
    differs: bool = False  # this process finds another one, so the coordinator's process tries, even if it has tried


@dataclass(frozen=True, slots=True)
class Gone:
    """Result of `read`: all records were read, and the partition does not exist any longer. Used by followed files.

    If a later call of `discover` names the partition, it is another one and is read from its beginning.
    """


Read: TypeAlias = tuple[list[T], Position] | Idle | Exhausted | NotHere | Gone
"""Result of `OpenPartition.read`: records and the position after them, or why there are none."""


@runtime_checkable
class OpenPartition(Protocol[T]):
    """An open partition on one worker. Only that worker's thread calls it.

    A reader may also have `lag() -> int | None`, the number of records that are there but not yet read, as far as it
    knows. `megaflow control status` calls it and shows the result, so it must not block.
    """

    def read(self, limit: int) -> Read[T]:
        """Return at most `limit` records, of any type, and the position after them; or `Idle`; or `Exhausted`.

        The caller owns the list. An empty list means that only the position has moved; `read` is then called again.
        """

    def close(self) -> None:
        """Release all resources. Called once, also if the partition has not ended. This worker then no longer reads it.
        """


@runtime_checkable
class Source(Protocol[T]):
    """Protocol of the sources of `flow.read`: any object with these two methods. It need not inherit from this class.

    It may also have `lower_bound(partition)`. It returns a timestamp below which the partition has no record, as the
    program's `event_time` counts them (a number, or a datetime with a time zone), or None. With a bound, windows need
    not stay open until the first record of the partition is read. The coordinator's
    worker thread calls it for each partition that `discover` returns; it must not block.

    It may also have `check(partitions)`. A process that joins by hand, or runs on an executor of Spark, calls it in a
    thread before it takes part, with the partitions that are not read to their ends. If `check` raises, the process
    does not join. `check` may block.

    It may also have `recall(partitions)`. The coordinator's worker thread calls it before it calls `discover`, with the
    partitions that are known from a checkpoint or an earlier coordinator, and have not been forgotten. So a source that
    cuts its records into partitions can return the same ones in every run. It must not block.
    """

    def discover(self) -> Iterable[Partition] | Found:
        """Return the partitions: an iterable of all that will ever come, or `Found`.

        The coordinator's process calls it in a separate thread, at the start of the job, at each resume, and then as
        often as `Found` requests. It may block. Known partitions do no harm. Partitions that a checkpoint lists as
        completely read are not read again, except as `Exhausted.resumable` and `Found.complete` state. A job ends when
        all its sources have returned their last partitions and all partitions have ended.
        """

    def open(self, partition: Partition, position: Position | None) -> OpenPartition[T]:
        """Return a reader of a partition from a position on; None: from its beginning.

        `read` returned the position, here or on another worker. The thread of the worker that reads the partition calls
        `open`.
        """
