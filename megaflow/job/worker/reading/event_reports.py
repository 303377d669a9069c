"""Reports of event time from a worker's source to the coordinator: the progress of its partitions, and idle ones.

1. If a dataflow takes timestamps, each batch is tagged: its tag is the partition from which it was read.
2. At most once in PERIOD_SECONDS, the source reports the greatest timestamps that operators have seen since its last
   report, by operator and partition. If they have seen nothing, it reports nothing.
3. A partition is idle if one of two things is true for the timeout: it has nothing to read (`LineQueue.empty`), or it
   is read but none of its records comes to an operator, as when a filter drops them all. Only records that the dataflow
   has processed count as read: a record in a queue may still come to an operator. So a partition that is held back, in
   the source or behind it, is not idle. To find out, the source watches one batch at a time of each partition, until
   the batch's epoch is closed at the output of the dataflow.
4. With several operators, the source also reports at which of them alone a partition is idle: it was read for the
   timeout, and its records came to others only. It names only partitions of sources and followed files (for Spark's
   queries see `idle_branches`), and none that is idle as a whole.
5. The source reports an idle partition once, until a record of it comes or the partition is handed back. It forgets a
   partition that is read to its end, as new partitions may appear without end. It still reports the maxima of records
   that are under way. Each round reports maxima first and then idle partitions. So the coordinator knows the maxima of
   a partition's processed records before it learns that the partition is idle.
No clock: times are arguments. A batch costs a copy of its list and a lookup, or one per operator if there are several;
no work is done per record.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from megaflow.control.checkpoint_messages import LeftOut
from megaflow.control.coordinator.base.job_state import EventTime, TimedOperator
from megaflow.control.launcher_messages import Unfinished
from megaflow.control.watermark_messages import (
    MaximaSeen,
    MaximaTold,
    Partition,
    PartitionsIdle,
    may_have_idle_branches,
)
from megaflow.errors import BuildError
from megaflow.job.spec import ChildSpec
from megaflow.megaphone.base.event_inputs import EventTimes
from megaflow.megaphone.base.event_unit import NEVER, seconds_meant
from megaflow.megaphone.folds.stateful_core import Core
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.dataflow.partition_tag import Tagged

PERIOD_SECONDS: Final = 0.05
LAST_MAX: Final = 64  # bounds that are kept, also of partitions that have ended since
ANY: Final = ""  # any operator


@dataclass(slots=True)
class Unseen:
    """A partition that was read, but no record of it has come to an operator, or to any, since."""

    since: float  # seconds, when its first batch was read
    watched: tuple[int, float] | None  # a batch under way: its epoch, and when it was read
    until: float  # seconds, when the last batch was read that is known to be processed by now


class EventReports:
    """The reports of one source. One writer: the source."""

    def __init__(
        self, times: EventTimes, report: Callable[[MaximaSeen | PartitionsIdle | MaximaTold], None],
        idle_seconds: float, hint: Callable[[str, str], None] = lambda about, text: None,
    ) -> None:  # fmt: skip
        """`hint` shows the user a text about a subject once."""
        self._hint = hint
        self._looked_at: set[str] = set()  # operators whose unit was compared with a maximum
        self._operators = times.operators  # complete when the dataflow is built
        self._report = report
        self._idle_seconds = idle_seconds
        self._settled = float("-inf")  # seconds, when `settle` last reported
        self._unseen: dict[tuple[str, Partition], Unseen] = {}  # operator or ANY, partition
        self._idle: set[tuple[str, Partition]] = set()  # the same, as they were reported
        self._last: dict[Partition, int] = {}  # the last reported bounds, also of partitions that are forgotten

    @property
    def are_wanted(self) -> bool:
        """Whether any operator takes timestamps."""
        return bool(self._operators)

    def bound(self, partition: Partition) -> int | None:
        """Return the microseconds below which no operator here expects a record of a partition; None if unknown."""
        clocks = (each.clock for each in self._operators.values())
        bounds = [clock.bound(partition) for clock in clocks if partition in clock.running]
        return min(bounds) if bounds else self._last.get(partition)

    def is_idle(self, partition: Partition) -> bool:
        """Tell whether a partition was reported as idle, and no record of it has come since."""
        return (ANY, partition) in self._idle

    def _watching(self, partition: Partition) -> Iterable[str]:
        """Return for which operators, and whether for ANY, this source finds out whether a partition is idle."""
        return (ANY, *self._operators) if len(self._operators) > 1 and may_have_idle_branches(partition) else (ANY,)

    def tagged(self, batch: list[Any], partition: Partition, epoch: int, now: float) -> list[Any]:
        """Return a batch that is read now, with its tag. `now` excludes the time for which its input was held."""
        for name in self._watching(partition):
            unseen = self._unseen.get((name, partition))
            if unseen is None:
                self._unseen[name, partition] = Unseen(now, (epoch, now), now)
            elif unseen.watched is None:
                unseen.watched = epoch, now
        return Tagged(batch, partition)

    def settle(
        self, now: float, frontier: int | None, empty: Callable[[float], Iterable[tuple[Partition, float]]]
    ) -> None:
        """Report what is due; epochs before `frontier` are closed at the output, with None all epochs.

        `empty` returns the partitions that have nothing to read, each with the time since when.
        """
        if now - self._settled < PERIOD_SECONDS:
            return
        self._settled = now
        self.tell_maxima()
        idle = [(ANY, each) for each, since in empty(now) if now - since >= self._idle_seconds]
        for key, unseen in self._unseen.items():
            if unseen.watched is not None and (frontier is None or unseen.watched[0] < frontier):
                unseen.until, unseen.watched = unseen.watched[1], None
            if unseen.until - unseen.since >= self._idle_seconds:
                idle.append(key)
        self._tell_idle([key for key in dict.fromkeys(idle) if key[1][0] != "spark"])

    def _tell_idle(self, idle: list[tuple[str, Partition]]) -> None:
        """Report those that were not reported before, first whole partitions."""
        for operator in (ANY, *self._operators):
            fresh = [key for key in idle if key[0] == operator and key not in self._idle]
            if operator != ANY:
                fresh = [key for key in fresh if not self.is_idle(key[1])]
            if fresh:
                self._idle.update(fresh)
                self._report(PartitionsIdle(tuple(partition for _, partition in fresh), operator))

    def tell_maxima(self, *more: MaximaTold) -> None:
        """Report the greatest timestamps that operators have seen since the last report, then send `more`."""
        for name, operator in self._operators.items():
            maxima, firsts, late = operator.clock.take()
            if maxima and name not in self._looked_at:
                self._looked_at.add(name)
                if text := seconds_meant(operator.unit.known, max(maxima.values())):
                    self._hint(f"unit of {name}", f"{operator.unit.title}: {text}")
            if maxima:
                self._report(MaximaSeen(name, tuple(maxima.items()), tuple(firsts.items()), tuple(late)))
            for partition in maxima:
                for key in ((ANY, partition), (name, partition)):
                    self._unseen.pop(key, None)
                    self._idle.discard(key)
                if (bound := self.bound(partition)) is not None:
                    self._last.pop(partition, None)
                    self._last[partition] = bound
        while len(self._last) > LAST_MAX:
            del self._last[next(iter(self._last))]
        for each in more:
            self._report(each)

    def ended(self, number: int) -> Partition:
        """Forget and return a partition that is read to its end; a file's number is not negative, a source's is."""
        partition: Partition = "partition" if number < 0 else "split", number
        for name in self._watching(partition):
            self._unseen.pop((name, partition), None)
            self._idle.discard((name, partition))
        return partition

    def keep(self, partitions: Iterable[Partition]) -> None:
        """Forget all partitions except these, which are still read here."""
        here = {*partitions}
        self._idle = {key for key in self._idle if key[1] in here}
        self._unseen = {key: unseen for key, unseen in self._unseen.items() if key[1] in here}


def check_skew(graph: Graph, files: Collection[str]) -> None:
    """Raise BuildError if `--max-skew` has no effect on a built dataflow; `files`: the names of its inputs of files."""
    timed = {input for each in graph.extension(EventTimes).operators.values() for input in each.follows}
    if len(timed.intersection(files)) < 2:
        raise BuildError(
            "--max-skew bounds how far apart the files of two inputs are read, but the dataflow takes timestamps of "
            "fewer than two inputs of files. Call event_time on the streams of both, or leave out --max-skew."
        )


def event_time_of(graph: Graph, spec: ChildSpec) -> EventTime:
    """Return what the coordinator must know of a built dataflow: the operators that take timestamps, and their inputs.

    Raises BuildError if `--max-skew` has no effect on it.
    """
    if spec.job.max_skew is not None:
        check_skew(graph, {*spec.inputs.lines} - {*spec.pushed} - {name for name, *_ in spec.inputs.followed})
    operators = graph.extension(EventTimes).operators.items()
    return EventTime(
        {name: TimedOperator(each.out_of_order, frozenset(each.follows), each.unit.known, each.advances)
         for name, each in operators},
        spec.inputs.ordered,
        tuple(("items" if each in spec.inputs.items else "pushed", each) for each in spec.pushed),
        (spec.inputs.rows or ("",)) if spec.spark_queries else (),
        spec.job.idle_timeout,
        spec.job.close_windows,
        None if spec.job.max_skew is None else round(spec.job.max_skew * 1_000_000),
    )


def windowed(operators: Iterable[Core]) -> LeftOut:
    """Return how many records each operator with windows received, and how many it left out as late."""
    counts = {each.name: each.windowed() for each in operators}
    return LeftOut(
        windowed={name: records for name, (records, _) in counts.items() if records},
        late={name: late for name, (_, late) in counts.items() if late},
    )


def unfinished(operators: Iterable[Core]) -> tuple[Unfinished, Unfinished, int | None]:
    """Return what is open in a worker's operators, what the end has closed, and the latest deadline of the latter."""
    left, early, deadline = Unfinished(), Unfinished(), NEVER
    for each in operators:
        closed = each.store.events.early
        left += Unfinished(*each.unfinished())
        early += Unfinished(closed.windows, closed.timers, closed.clock_timers)
        deadline = max(closed.deadline, deadline)
    return left, early, None if deadline == NEVER else deadline
