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
    """What `Source.discover` has found, if it is to be asked again."""

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
    """There is nothing to read now. With none of the three, `read` is called again in a tenth of a second.

    With several, the first wakes it. To wake a reader that has something to read only costs the call.
    """

    fd: int | None = None  # a file descriptor that can be read when there is; it stays open until `read` is called
    on_ready: Callable[[Callable[..., None]], object] | None = None
    """Called with a function that wakes the reader, from any thread, whatever it is given. Called once, soon after
    `read` has returned: if something has come meanwhile, it must wake at once, as `Future.add_done_callback` does."""
    after_seconds: float | None = None  # of a clock that nobody sets


@dataclass(frozen=True, slots=True)
class Exhausted:
    """All records of the partition have been read, and no more will come."""


Read: TypeAlias = tuple[list[T], Position] | Idle | Exhausted
"""What `OpenPartition.read` returns: records and the position behind them, or why there are none."""


@runtime_checkable
class OpenPartition(Protocol[T]):
    """An open partition, on one worker; called by its thread only.

    A reader may also have `lag() -> int | None`: how many records are there that it has not read, as far as it knows;
    `megaflow control status` shows it, and asks for it; it must not block.
    """

    def read(self, limit: int) -> Read[T]:
        """Return at most `limit` records, of any type, and the position behind them; `Idle`; or `Exhausted`.

        The list is the caller's. It may be empty: then only the position has moved, and `read` is called again.
        """

    def close(self) -> None:
        """Let go of what is open; called once, whether or not the partition has ended. It is not read here any more."""


@runtime_checkable
class Source(Protocol[T]):
    """What `flow.read` takes: an object with these two methods; it need not inherit from this class.

    It may also have `lower_bound(partition)`, which returns a timestamp below which the partition holds no record, as
    the program's `event_time` counts them (a number, or a datetime with a time zone), or None: then windows need not
    stay open until something was read of it. Called where `discover` is, by the worker's thread; must not block.
    """

    def discover(self) -> Iterable[Partition] | Found:
        """Return the partitions: an iterable of them, if no more will ever come, or `Found`.

        Called in the coordinator's process, in a thread of its own, at the start of the job and of each resume, and
        then as often as `Found` says. May block. Partitions that are known already do no harm, and those that a
        checkpoint says are wholly read are not read again, but for what `Found.complete` says. A job ends when all its
        sources have said that no more will come, and all partitions have ended.
        """

    def open(self, partition: Partition, position: Position | None) -> OpenPartition[T]:
        """Return what reads a partition from a position on, which `read` has given here or elsewhere; None: from its
        beginning. Called on the worker that is to read it, by its thread."""
