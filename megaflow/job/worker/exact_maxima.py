"""The running maxima of a source's partitions, exact wherever a partition is handed over or a checkpoint has it.

The bound at a record follows from all records before it in its partition (`record_bounds`), whoever has read them. So
what is left of a partition (`Split`, `Portion`) has the running maximum of each operator that takes timestamps, beside
the position: as of the records before that position, all of them and no others. What the source has read may be under
way to these operators. So

1. A report that has positions waits until the output of the dataflow has passed the last epoch that the source has read
   with by then: those operators have seen all of that, and of a partition that was handed back they get nothing more.
2. At a checkpoint at t the source reads on meanwhile, with epochs from t on. Each operator keeps the maxima as they are
   when the first batch of such an epoch comes to it; if none has come, they are what they are.
3. These reports leave in the order in which they were put here. Their receivers need no more: what else a source
   reports may come before.
4. Who is given a partition begins with the maxima that come with it, also where it had the partition before.
5. A partition that is read to its end is forgotten likewise: its last records may be under way.
6. What the launcher pushes has no position. Its maxima go with the word that it is read elsewhere from now on.
Where nothing takes timestamps, nothing waits.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from megaflow.control.messages import PushedEnded, Split
from megaflow.control.watermark_messages import Partition
from megaflow.durable.commits import Portion
from megaflow.megaphone.event_clock import EventTimeSpec

Part = TypeVar("Part", bound=Split | Portion)
Running: TypeAlias = Mapping[str, Mapping[Partition, int]]
"""Operator -> partition -> its running maximum, in microseconds."""


class ExactMaxima:
    """What waits for maxima to be exact. One writer: the source."""

    def __init__(
        self, operators: Mapping[str, EventTimeSpec], report: Callable[[Any], None],
        before: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`operators`: those that take timestamps, complete when the dataflow is built.

        `before` reports what these have seen: so the coordinator knows all maxima before it knows a position.
        """
        self._operators = operators
        self._report = report
        self._before = before
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # (epoch to be passed, what to do then)

    @property
    def are_waited_for(self) -> bool:
        """Whether something waits."""
        return bool(self._waiting)

    def after(self, epoch: int, act: Callable[[], None]) -> None:
        """Do something when all that was read with an epoch, or before, has come to the operators."""
        if self._operators:
            self._waiting.append((epoch, act))
        else:
            act()

    def settle(self, frontier: int | None) -> None:
        """Do what has waited long enough: the output has passed all epochs before `frontier`; None: all there are."""
        while self._waiting and (frontier is None or self._waiting[0][0] < frontier):
            _, act = self._waiting.popleft()
            self._before()
            act()

    # What is given to this worker ----------------------------------------------------------

    def begin(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Begin with partitions; return them."""
        for each in parts:
            known = dict(each.maxima)
            for name, operator in self._operators.items():
                operator.clock.begin_with(partition_of(each), known.get(name))
        return parts

    def begin_pushed(self, maxima: Iterable[tuple[str, Partition, int]]) -> None:
        """Begin with what the launcher pushes, of which another worker has read a part."""
        for name, partition, micros in maxima:
            if name in self._operators:
                self._operators[name].clock.begin_with(partition, micros)

    # What others are to know ---------------------------------------------------------------

    def hand_back(self, epoch: int, make: Callable[..., Any], *rests: Sequence[Split | Portion]) -> None:
        """Report what is left of partitions that are not read here any more; `make` makes the report of the rests."""

        def act() -> None:
            running = self._now()
            self._report(make(*(with_maxima(running, rest) for rest in rests)))
            self._forget(map(partition_of, chain.from_iterable(rests)))

        self.after(epoch, act)

    def hand_pushed_on(self, epoch: int, report: PushedEnded, partitions: Sequence[Partition]) -> None:
        """Report that what the launcher pushes is read elsewhere from now on."""

        def act() -> None:
            running = self._now()
            maxima = [(name, each, micros) for each in partitions for name, micros in maxima_of(running, each)]
            self._report(replace(report, maxima=tuple(maxima)))
            self._forget(partitions)

        self.after(epoch, act)

    def ended(self, epoch: int, partition: Partition) -> None:
        """Note that a partition is read to its end."""
        self.after(epoch, partial(self._forget, (partition,)))

    def tell(
        self, time: int, splits: tuple[Split, ...], portions: tuple[Portion, ...],
        tell: Callable[[tuple[Split, ...], tuple[Portion, ...]], None],
    ) -> None:  # fmt: skip
        """Have what is left of partitions at a checkpoint told, as of before its time, of which nothing was read."""
        for operator in self._operators.values():
            operator.clock.cut(time)

        def act() -> None:
            running = {name: operator.clock.at_cut(time) for name, operator in self._operators.items()}
            tell(with_maxima(running, splits), with_maxima(running, portions))

        self.after(time - 1, act)

    def _now(self) -> Running:
        return {name: operator.clock.running for name, operator in self._operators.items()}

    def _forget(self, partitions: Iterable[Partition]) -> None:
        for each in partitions:
            for operator in self._operators.values():
                operator.clock.forget(each)


def partition_of(part: Split | Portion) -> Partition:
    """Return which partition is left here."""
    return ("split" if isinstance(part, Split) else "portion"), part.number


def with_maxima(running: Running, parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return what is left of partitions with these maxima, and no others.

    >>> with_maxima({"clicks": {("split", 0): 7, ("split", 1): 9}}, [Split(0, "a", 5, 10)])[0].maxima
    (('clicks', 7),)
    """
    return tuple(replace(each, maxima=maxima_of(running, partition_of(each))) for each in parts)


def maxima_of(running: Running, partition: Partition) -> tuple[tuple[str, int], ...]:
    """Return the maxima of one partition."""
    return tuple((name, maxima[partition]) for name, maxima in running.items() if partition in maxima)
