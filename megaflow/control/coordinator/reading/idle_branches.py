"""Idle branches of event time, a part of `watermarks`: partitions whose records reach some operators, but not others.

A branch is an operator `event_time` and a partition that it follows. Filters before two operators can give each of them
few records of a busy partition. A branch without records would hold the watermark back for ever.

1. A branch is idle if the partition was read for the timeout, and none of its records reached the operator meanwhile.
   The worker that reads the partition reports that (`event_reports`). All workers read a query of Spark, so this module
   finds it out for them: batches were wholly taken in for the timeout, and none had a record for the operator.
2. An idle branch counts as far as the partition's other branches have come: the least of their maxima, less the
   greatest `out_of_order` of all of them. Let m be the greatest timestamp of the partition at any operator. No maximum
   is greater than m. So a record that makes an idle branch active again is late by the watermark only if it is below
   m - `out_of_order`. If the branches take the same timestamps, one operator before them would call it late as well.
3. If a partition is idle as a whole, everything that was read of it was processed. So each of its branches has come as
   far as the furthest one: m less the greatest `out_of_order`. Reports name no branch of an idle partition.
4. A branch is active again when one of its records has come, or when the partition changes hands.
5. A file that is read once has no idle branches. Otherwise the speed of a run would decide which of its records are
   late.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from megaflow.control.coordinator.base.job_state import TimedOperator
from megaflow.control.watermark_messages import Partition
from megaflow.megaphone.base.event_unit import NEVER


class IdleBranches:
    """The idle branches of one job. One writer: the watermarks. Times are arguments, in seconds.

    >>> operators = {"clicks": TimedOperator(1, frozenset()), "errors": TimedOperator(5, frozenset())}
    >>> branches, a = IdleBranches(2.0), ("partition", -1)
    >>> branches.report("errors", [a], 8.0)
    >>> branches.reached(a, operators, {("clicks", a): 100, ("errors", a): 7})
    (95, 'clicks')
    >>> branches.seen("errors", a)
    >>> branches.is_idle("errors", a)
    False
    """

    def __init__(self, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._since: dict[tuple[str, Partition], float] = {}  # idle branch -> since when
        self._quiet: dict[tuple[str, Partition], float] = {}  # branch of Spark -> its first batch without a record

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[tuple[str, Partition]]:
        return iter(self._since)

    def report(self, operator: str, partitions: Iterable[Partition], now: float) -> None:
        """Record a worker's report."""
        self._since.update(((operator, each), now) for each in partitions)

    def taken_in(self, query: Partition, operators: Iterable[str], now: float) -> None:
        """Record that a batch of Spark was wholly taken in; `seen` was called for the operators that its records
        reached.
        """
        for name in operators:
            if now - self._quiet.setdefault((name, query), now) >= self._idle_seconds:
                self._since.setdefault((name, query), now)

    def seen(self, operator: str, partition: Partition) -> None:
        """Record that a record of a partition has reached an operator."""
        self._since.pop((operator, partition), None)
        self._quiet.pop((operator, partition), None)

    def passed_on(self, partition: Partition, operators: Iterable[str]) -> None:
        """Record that a partition changes hands."""
        for name in operators:
            self._since.pop((name, partition), None)

    def is_idle(self, operator: str, partition: Partition) -> bool:
        return (operator, partition) in self._since

    def idle(self, partition: Partition, operators: Iterable[str]) -> Iterator[tuple[str, float]]:
        """Iterate over the operators at which a partition is idle, each with the time since when."""
        return ((name, self._since[name, partition]) for name in operators if self.is_idle(name, partition))

    def come(
        self, partition: Partition, operators: Mapping[str, TimedOperator],
        maxima: Mapping[tuple[str, Partition], int],
    ) -> int:  # fmt: skip
        """Return how far the branches of an idle partition have come; arguments and NEVER are as for `reached`."""
        seen = [maxima[name, partition] for name in operators if (name, partition) in maxima]
        return max(seen) - max(each.out_of_order for each in operators.values()) if seen else NEVER

    def reached(
        self, partition: Partition, operators: Mapping[str, TimedOperator],
        maxima: Mapping[tuple[str, Partition], int],
    ) -> tuple[int, str]:  # fmt: skip
        """Return how far the idle branches of a partition count, and the operator of the branch that decides it.

        `operators`: all that follow the partition. `maxima`: operator, partition -> microseconds. If no other branch
        has a maximum, the result is NEVER.
        """
        others = (name for name in operators if not self.is_idle(name, partition))
        seen = [(maxima[name, partition], name) for name in others if (name, partition) in maxima]
        if not seen:
            return NEVER, ""
        least, name = min(seen)
        return least - max(each.out_of_order for each in operators.values()), name

    def keep(self, unread: Collection[Partition]) -> None:
        """Forget the branches of all partitions except these."""
        self._since = {key: since for key, since in self._since.items() if key[1] in unread}

    def state(self, now: float) -> dict[tuple[str, Partition], float]:
        """Return what the next coordinator needs: idle branch -> for how many seconds."""
        return {key: now - since for key, since in self._since.items()}

    def resume(self, state: Mapping[tuple[str, Partition], float]) -> None:
        """Continue from the state of the previous coordinator, whose clock was 0 now."""
        self._since = {key: -seconds for key, seconds in state.items()}
