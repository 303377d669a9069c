"""buffer: a handoff that the program places, with its own bound and policy.

Waiting records are in the queue of the operator's input, so they count like all queued records: they hold their times
back, and `explain` shows them. Dropped records count as consumed. Whenever the operator runs, it sends as many records
as there is room for. The policy decides about the others:

  wait          they stay in the queue; when it is full it stops the sources before it
  grow          they stay, without a bound
  drop_newest   the oldest stay, up to the bound; the newest are dropped
  drop_oldest   the newest stay, up to the bound
  fail          more than the bound end the job with an error
  merge         one record for each time stays: the program's `join` combines all records of a time

1. A buffer shields the sources before it. A full queue after the buffer stops the buffer and nothing before it, so the
   buffer absorbs a burst. See `handoffs`.
2. Only `wait` stops sources. No queue in a loop is bounded, so `wait` means `grow` there.
3. The bound applies to the records that wait after the operator has run. Records that arrive during one pass of the
   worker are passed on first. So a buffer drops nothing while the operators after it keep up. A producer sends a whole
   batch while there is any room.
4. Only `join` looks at records. A policy that drops records cuts lists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import reduce
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

from megaflow.errors import BuildError, ProgramError
from megaflow.timely.dataflow.builder import Input, NodeBuilder
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.order import Time

T = TypeVar("T")

WhenFull: TypeAlias = Literal["wait", "grow", "drop_newest", "drop_oldest", "fail"]
Policy: TypeAlias = Literal[WhenFull, "merge"]
LOSING: Final = ("drop_newest", "drop_oldest", "merge")
"""The policies that do not pass on every record."""


class BufferHandle:
    """Report of a buffer on this worker; `stream.buffer(…, handle=handle)` attaches it. Counts are of records."""

    def __init__(self) -> None:
        self.most = 0  # greatest number of records left waiting after a run of the buffer
        self.dropped = 0
        self.merged = 0  # records that were merged into another
        self._source: Input[Any] | None = None

    @property
    def waiting(self) -> int:
        """Number of records that wait now."""
        return 0 if self._source is None else self._source.queue.records

    def attach(self, source: Input[Any]) -> None:
        """Report on this buffer. Raises BuildError if the handle already has a buffer."""
        if self._source is not None:
            raise BuildError("buffer: the handle already belongs to a buffer; give each buffer its own BufferHandle()")
        self._source = source


def buffer(
    port: Port[T],
    records: int | None,
    when_full: WhenFull,
    merge: Callable[[T, T], T] | None,
    handle: BufferHandle | None,
) -> Port[T]:
    """Build a buffer; the arguments are those of `Stream.buffer`."""
    policy = _checked(records, when_full, merge)
    if handle is not None and not isinstance(handle, BufferHandle):
        raise BuildError(f"buffer: handle={handle!r}; give it a BufferHandle()")
    builder = NodeBuilder(port.scope, f"Buffer({policy if records is None else f'{policy}, {records}'})")
    source: Input[T] = builder.new_input(port, Pipeline(), notify=False)
    output, result = builder.new_output()
    told = BufferHandle() if handle is None else handle
    told.attach(source)
    limit = builder.graph.handoffs.bounds.queue_records if records is None else records
    mark = records if policy == "wait" else sys.maxsize
    if policy not in ("wait", "grow"):  # the queue has no gate: the buffer runs when a batch arrives and so many wait
        mark = source.queue.mark = 1 if merge is not None else limit + 1
        source.queue.trims = True
    builder.graph.handoffs.placed[source.location] = mark
    builder.node.loses = policy if policy in LOSING else None

    def logic() -> None:
        if merge is not None:
            _merge(source, merge, told)
        for time, batch in source.take_while_room(output):
            output.ship(time, batch)
        excess = source.queue.records - limit
        if excess > 0 and policy in ("drop_newest", "drop_oldest"):
            source.drop(excess, newest=policy == "drop_newest")
            told.dropped += excess
            builder.graph.context.log.dropped(builder.graph.number, builder.node.index, excess)
        elif excess > 0 and policy == "fail":
            raise ProgramError(
                f"{builder.node.title} ({builder.where}): {source.queue.records} records wait, more than {limit}: "
                "the operators after it are too slow. Give it more room, or let it wait, grow or drop: buffer(…, "
                "when_full=…)"
            )
        told.most = max(told.most, source.queue.records)

    builder.build_releasing(logic)
    return result


def _merge(source: Input[T], join: Callable[[T, T], T], told: BufferHandle) -> None:
    """Replace all waiting records by one record for each time."""
    before = source.queue.records
    merged: dict[Time, T] = {}  # in the order in which the times arrived
    for time, batch in source.queue.batches:
        left = iter(batch)  # for the error's note
        merged[time] = reduce(join, left, merged[time]) if time in merged else reduce(join, left)
        if merged[time] is None:
            raise ProgramError(f"buffer: merge made None of records at time {time!r}; it must return the merged record")
    if len(merged) < before:
        source.replace([(time, [record]) for time, record in merged.items()])
        told.merged += before - len(merged)


def _checked(records: Any, when_full: Any, merge: Any) -> Policy:
    """Return the policy. Raises BuildError for invalid or contradictory arguments."""
    if when_full not in get_args(WhenFull):
        raise BuildError(f"buffer: when_full={when_full!r}; choose one of {', '.join(get_args(WhenFull))}")
    if records is not None and (not isinstance(records, int) or isinstance(records, bool) or records < 1):
        raise BuildError(f"buffer({records!r}): give the number of records that may wait, an int of at least 1")
    if merge is not None and (when_full != "wait" or records is not None or not callable(merge)):
        raise BuildError(
            "buffer: merge=join, a function of two records, is its own policy, with which one record per time waits; "
            "leave out records and when_full"
        )
    if when_full == "grow" and records is not None:
        raise BuildError(
            f"buffer({records!r}, when_full='grow'): a buffer that grows has no limit; leave out {records!r}"
        )
    policy: Policy = when_full if merge is None else "merge"
    return policy
