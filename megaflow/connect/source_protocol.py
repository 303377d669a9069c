"""Sources: what a program reads by `flow.read(source, name)`.

A source has *partitions*, each a sequence of records of its own. A partition is the unit of reading and of order: it is
read by one worker at a time, and its records are processed in their order, key by key, also where it changes hands.

    discover   in the process that coordinates the job, in a thread: what partitions there are
    open       on the worker that is to read a partition: from its beginning, or from a position
    read       there: the next records, and the position behind them; or that there are none now, or none any more
    close      there: somebody else reads it on, or nobody

1. Each worker process makes the source by calling the dataflow function, and each worker thread has its own. Only
   partitions and positions travel, and are kept in checkpoints: they are plain values, as keys and states are. Equal
   partitions are one partition, so they can be hashed.
2. `read` gives all that it gives: each record is in one call's list, and the position is the one behind the last of
   them. Who opens the partition there gets the records that follow, in the same order, however they are cut into lists.
   Records of a position that no checkpoint has are read again after a crash; records may be lost only where a source
   cannot go back, which its documentation then says.
3. Nothing blocks the worker but by what it takes: `read` returns `Idle` when there is nothing to read *now*, with what
   wakes it. `discover` alone may take long, for it has a thread.
4. What a source raises ends the job; the error names the source, the partition and the position.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from megaflow.quick_dataclass import dataclass

T = TypeVar("T")

Partition: TypeAlias = Any
"""Which part of a source: a plain value that can be hashed, such as a str, an int or a tuple of them."""
Position: TypeAlias = Any
"""Where in a partition: a plain value, never None, which stands for the beginning."""


@dataclass(frozen=True, slots=True)
class Found:
    """Result of `Source.discover` that requests another call."""

    partitions: Iterable[Partition]  # all that there are, or only those that are new
    again_seconds: float | None = None  # from now until it is asked again; None: there will be no more
    complete: bool = False
    """Whether these are all that there are: then what has ended and is not among them is forgotten.

    Else a job keeps every partition for ever, and writes it into each checkpoint: some 50 bytes each, and a checkpoint
    takes half a second more with 100,000. Only for a source that never names again what it has left out once, for that
    may be read again; so it raises if it could not look. What it leaves out before a checkpoint has it (a minute after
    it was named first, say) is not read after a crash."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Result of `read`: there is nothing to read now.

    Without any of the three fields, `read` is called again in a tenth of a second. If several are given, the first to
    happen wakes the reader. Waking a reader that has something to read only costs the call.
    """

    fd: int | None = None  # a file descriptor that can be read when there is; it stays open until `read` is called
    on_ready: Callable[[Callable[..., None]], object] | None = None
    """Called with a function that wakes the reader, from any thread, whatever it is given. Called once, soon after
    `read` has returned: if something has come meanwhile, it must wake at once, as `Future.add_done_callback` does."""
    after_seconds: float | None = None  # of a clock that nobody sets


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Result of `read`: all records of the partition have been read, and it gets no further ones."""


Read: TypeAlias = tuple[list[T], Position] | Idle | Exhausted
"""What `OpenPartition.read` returns: records and the position behind them, or why there are none."""


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
    """

    def discover(self) -> Iterable[Partition] | Found:
        """Return the partitions: an iterable of all that will ever come, or `Found`.

        The coordinator's process calls it in a separate thread, at the start of the job, at each resume, and then as
        often as `Found` requests. It may block. Known partitions do no harm. Partitions that a checkpoint lists as
        completely read are not read again, except as `Found.complete` states. A job ends when all its sources have
        returned their last partitions and all partitions have ended.
        """

    def open(self, partition: Partition, position: Position | None) -> OpenPartition[T]:
        """Return a reader of a partition from a position on; None: from its beginning.

        `read` returned the position, here or on another worker. The thread of the worker that reads the partition calls
        `open`.
        """
