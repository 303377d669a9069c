"""What a worker's source tells the coordinator of event time: how far its partitions are, and which are idle.

1. As soon as a dataflow takes timestamps each batch is traced: its origin is the partition that it was read from.
2. Every PERIOD_SECONDS at most the greatest timestamps that operators have seen since the last time are reported, by
   operator and partition; nothing is, if they have seen nothing.
3. A partition is idle that for the timeout has had nothing to read (`LineQueue.empty`), or has been read without a
   record of it having come to an operator, as when all are filtered out before. Only what the dataflow has worked off
   counts as read: of what waits in a queue nobody knows yet whether it comes to one. So one that is held back, be it
   in the source or behind it, is not idle. To know it, one batch at a time of each partition is watched, until its
   epoch is closed at the output of the dataflow.
4. That one is idle is said once, until a record of it comes, or it is handed back. One that is read to its end is
   forgotten, as partitions may come for ever; maxima of what is still under way are reported as ever. In a round maxima
   are reported first, then who is idle: what was worked off by now has been seen by now.
No clock: times are arguments. A batch costs a copy of its list and a lookup, and nothing is counted by the record.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from megaflow.control.coordinator.job_state import EventTime, TimedOperator
from megaflow.control.launcher_messages import Unfinished
from megaflow.control.watermark_messages import MaximaSeen, MaximaTold, Partition, PartitionsIdle
from megaflow.job.spec import ChildSpec
from megaflow.megaphone.event_clock import EventTimes
from megaflow.megaphone.event_unit import NEVER
from megaflow.megaphone.stateful_core import Core
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.dataflow.origin import Traced

PERIOD_SECONDS: Final = 0.05


@dataclass(slots=True)
class Unseen:
    """A partition that has been read, and no record of it has come to an operator since."""

    since: float  # seconds, when the first batch was read
    watched: tuple[int, float] | None  # a batch under way: its epoch, and when it was read
    until: float  # seconds, when the last batch was read that is known to be worked off


class EventReports:
    """The reports of one source. One writer: the source."""

    def __init__(
        self, times: EventTimes, report: Callable[[MaximaSeen | PartitionsIdle | MaximaTold], None], idle_seconds: float
    ) -> None:
        self._operators = times.operators  # complete when the dataflow is built
        self._report = report
        self._idle_seconds = idle_seconds
        self._settled = float("-inf")  # seconds, the last time
        self._unseen: dict[Partition, Unseen] = {}
        self._idle: set[Partition] = set()  # that are, and were reported

    @property
    def are_wanted(self) -> bool:
        """Whether anybody takes timestamps."""
        return bool(self._operators)

    def traced(self, batch: list[Any], partition: Partition, epoch: int, now: float) -> list[Any]:
        """Return a batch with its origin, which is read now."""
        unseen = self._unseen.get(partition)
        if unseen is None:
            self._unseen[partition] = Unseen(now, (epoch, now), now)
        elif unseen.watched is None:
            unseen.watched = epoch, now
        return Traced(batch, partition)

    def settle(
        self, now: float, frontier: int | None, empty: Callable[[float], Iterable[tuple[Partition, float]]]
    ) -> None:
        """Report what is due; epochs before `frontier` are closed at the output, None: all are.

        `empty` gives the partitions that have nothing to read, and since when.
        """
        if now - self._settled < PERIOD_SECONDS:
            return
        self._settled = now
        self.tell_maxima()
        idle = [each for each, since in empty(now) if now - since >= self._idle_seconds]
        for partition, unseen in self._unseen.items():
            if unseen.watched is not None and (frontier is None or unseen.watched[0] < frontier):
                unseen.until, unseen.watched = unseen.watched[1], None
            if unseen.until - unseen.since >= self._idle_seconds:
                idle.append(partition)
        fresh = [each for each in dict.fromkeys(idle) if each not in self._idle and each[0] != "spark"]
        if fresh:
            self._idle.update(fresh)
            self._report(PartitionsIdle(tuple(fresh)))

    def tell_maxima(self, *more: MaximaTold) -> None:
        """Report the greatest timestamps that operators have seen since the last time, and then what else is given."""
        for name, operator in self._operators.items():
            maxima, firsts, late = operator.clock.take()
            if maxima:
                self._report(MaximaSeen(name, tuple(maxima.items()), tuple(firsts.items()), tuple(late)))
            for partition in maxima:
                self._unseen.pop(partition, None)
                self._idle.discard(partition)
        for each in more:
            self._report(each)

    def ended(self, number: int) -> Partition:
        """Forget a file, or a partition of a source, which has a negative number: it is read to its end; return it."""
        partition: Partition = "portion" if number < 0 else "split", number
        self._unseen.pop(partition, None)
        self._idle.discard(partition)
        return partition

    def keep(self, partitions: Iterable[Partition]) -> None:
        """Forget all partitions but these, which are read here still."""
        here = {*partitions}
        self._idle &= here
        for each in self._unseen.keys() - here:
            del self._unseen[each]


def event_time_of(graph: Graph, spec: ChildSpec) -> EventTime:
    """Return what the coordinator is to know of a dataflow that is built: who takes timestamps, and from where."""
    operators = graph.extension(EventTimes).operators.items()
    return EventTime(
        {name: TimedOperator(each.out_of_order, frozenset(each.follows), each.unit.known, each.advances)
         for name, each in operators},
        spec.ordered,
        tuple(("items" if each in spec.items else "pushed", each) for each in spec.pushed),
        (spec.rows or ("",)) if spec.spark_queries else (),
        spec.job.idle_timeout,
        spec.job.close_windows,
    )


def unfinished(operators: Iterable[Core]) -> tuple[Unfinished, Unfinished, int | None]:
    """Return what is open in a worker's operators, what the end has closed, and the greatest deadline of that."""
    left, early, deadline = Unfinished(), Unfinished(), NEVER
    for each in operators:
        closed = each.store.events.early
        left += Unfinished(*each.unfinished())
        early += Unfinished(closed.windows, closed.timers, closed.clock_timers)
        deadline = max(closed.deadline, deadline)
    return left, early, None if deadline == NEVER else deadline
