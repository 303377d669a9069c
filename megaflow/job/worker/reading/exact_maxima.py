"""Running maxima of a source's partitions, exact whenever a partition is handed over or written to a checkpoint.

The bound at a record follows from all records before it in its partition (`record_bounds`), on whatever worker they
were read. So the rest of a partition (`Split`, `SourcePartition`) carries its position and, for each operator that
takes timestamps, the running maximum of exactly the records before that position. But records that the source has read
may still be under way to these operators. Hence these rules:

1. A report with positions waits until the output of the dataflow has passed the last epoch with which the source had
   read when it made the report. So the operators have seen all these records, and get no others of a partition that was
   handed back.
2. While the report for a checkpoint at t waits, the source reads on, with epochs from t on. Each operator saves its
   maxima when the first batch of such an epoch comes to it. If none has come, its current maxima are the right ones.
3. These reports leave in the order in which they were put here. Their receivers need no stronger order: other reports
   of the source may overtake them.
4. A worker that receives a partition begins with the maxima that come with it, even if it had the partition before.
5. The maxima of a partition that is read to its end are forgotten only after the wait of rule 1, because its last
   records may be under way. If the next run may read on from there, the report of the end carries the maxima, so it
   also waits. It was put here before the report of any later checkpoint, so it leaves first.
6. Lines and items that the launcher pushes have no position. Their maxima go with `PushedEnded`, the report after which
   another worker reads them.
If no operator takes timestamps, nothing waits.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from megaflow.control.messages import PushedEnded, Split
from megaflow.control.reading_messages import SplitRead, partition_of
from megaflow.control.watermark_messages import Partition
from megaflow.durable.commits import SourcePartition
from megaflow.megaphone.base.event_inputs import EventTimeSpec
from megaflow.quick_dataclass import dataclass

Part = TypeVar("Part", bound=Split | SourcePartition)
Running: TypeAlias = Mapping[str, Mapping[Partition, int]]
"""Operator -> partition -> its running maximum, in microseconds."""


@dataclass(eq=False, repr=False)
class ExactMaxima:
    """Reports that wait until maxima are exact. One writer: the source."""

    _operators: Mapping[str, EventTimeSpec]  # those that take timestamps; complete once the dataflow is built
    _report: Callable[[Any], None]
    _before: Callable[[], None] = lambda: None  # reports seen maxima, which the coordinator must know before positions
    waiting: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque, init=False)  # (epoch to pass, act)

    def after(self, epoch: int, act: Callable[[], None]) -> None:
        """Call `act` when all records that were read with this epoch or an earlier one have come to the operators."""
        if self._operators:
            self.waiting.append((epoch, act))
        else:
            act()

    def settle(self, frontier: int | None) -> None:
        """Run the actions whose epoch has passed: the output has passed all epochs before `frontier`, with None all."""
        while self.waiting and (frontier is None or self.waiting[0][0] < frontier):
            _, act = self.waiting.popleft()
            self._before()
            act()

    # Partitions that this worker receives -------------------------------------------------

    def begin(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Begin with the maxima of these partitions; return the partitions."""
        for each in parts:
            known = dict(each.maxima)
            for name, operator in self._operators.items():
                operator.clock.begin_with(partition_of(each), known.get(name))
        return parts

    def begin_pushed(self, maxima: Iterable[tuple[str, Partition, int]]) -> None:
        """Begin with the maxima of pushed lines and items, after another worker has read some of them."""
        for name, partition, micros in maxima:
            if name in self._operators:
                self._operators[name].clock.begin_with(partition, micros)

    # Reports to others --------------------------------------------------------------------

    def hand_back(self, epoch: int, make: Callable[..., Any], *rests: Sequence[Split | SourcePartition]) -> None:
        """Report the rests of partitions that this worker stops reading; `make` builds the report from the rests."""

        def act() -> None:
            running = self._now()
            self._report(make(*(with_maxima(running, rest) for rest in rests)))
            self._forget(map(partition_of, chain.from_iterable(rests)))

        self.after(epoch, act)

    def hand_pushed_on(self, epoch: int, report: PushedEnded, partitions: Sequence[Partition]) -> None:
        """Report that another worker reads the launcher's lines and items from now on."""

        def act() -> None:
            running = self._now()
            maxima = [(name, each, micros) for each in partitions for name, micros in maxima_of(running, each)]
            self._report(replace(report, maxima=tuple(maxima)))
            self._forget(partitions)

        self.after(epoch, act)

    def ended(self, epoch: int, report: SplitRead, partition: Partition) -> None:
        """Report that a partition is read to its end, with its maxima if the next run may read on."""
        if report.left:
            self.hand_back(epoch, partial(SplitRead, report.number), report.left)
        else:
            self.after(epoch, partial(self._forget, (partition,)))
            self._report(report)

    def tell(
        self, time: int, splits: tuple[Split, ...], partitions: tuple[SourcePartition, ...],
        tell: Callable[[tuple[Split, ...], tuple[SourcePartition, ...]], None],
    ) -> None:  # fmt: skip
        """Call `tell` with the rests of partitions at a checkpoint, with maxima as of before its time.

        No record with that time has been read yet.
        """
        for operator in self._operators.values():
            operator.clock.cut(time)

        def act() -> None:
            running = {name: operator.clock.at_cut(time) for name, operator in self._operators.items()}
            tell(with_maxima(running, splits), with_maxima(running, partitions))

        self.after(time - 1, act)

    def _now(self) -> Running:
        return {name: operator.clock.running for name, operator in self._operators.items()}

    def _forget(self, partitions: Iterable[Partition]) -> None:
        for each in partitions:
            for operator in self._operators.values():
                operator.clock.forget(each)


def with_maxima(running: Running, parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the rests of partitions with these maxima, and no others.

    >>> with_maxima({"clicks": {("split", 0): 7, ("split", 1): 9}}, [Split(0, "a", 5, 10)])[0].maxima
    (('clicks', 7),)
    """
    return tuple(replace(each, maxima=maxima_of(running, partition_of(each))) for each in parts)


def maxima_of(running: Running, partition: Partition) -> tuple[tuple[str, int], ...]:
    """Return the maxima of one partition, by operator."""
    return tuple((name, maxima[partition]) for name, maxima in running.items() if partition in maxima)
