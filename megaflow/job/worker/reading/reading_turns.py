"""The order in which a worker reads its inputs: the slowest by event time first; each in turn if that is not known.

A pure decision, made for each batch. The line queue asks the inputs for a batch in this order, and reads the first one
that has any.

1. Each input has a *turn*. A turn that was used goes to the end, so inputs without timestamps get a batch each.
2. An input has a *bound* if operators on this worker take timestamps of it: the least timestamp that they expect of the
   open file, or of the partitions that have something to read. Inputs with bounds share their turns, and the input with
   the least bound goes first. So an input is *held* only while one with a smaller bound has batches. The queue passes
   over an empty input in the same look. So no input waits for an empty one, and two inputs never wait for each other.
3. The skew: the queue chooses a batch when the batch before is taken, so before operators have seen that one. While two
   inputs both have something to read, one is ahead of the other by its last two batches, and by the batches between
   the source and the operators, which backpressure limits.
4. A file from which no operator has seen a timestamp has the bound of the file before it in its input. Otherwise many
   small files in the order of time would never be held.
5. Three kinds of inputs have no bound, and are not held. An input whose file is idle has none, because its records come
   to no operator, so reading does not raise the bound. Rows from Spark have none, because they have no order within a
   batch. The launcher's lines have none once it has sent the last, because a stop waits for them.
6. A held input is not idle. The time for which it was held does not count (`took` returns it). Held lines of the
   launcher may keep lines of its other inputs from coming. So none of its inputs is idle meanwhile (`are_held`).
7. Only the coordinator knows what other workers read. With `--max-skew` it sets a limit for each input. A file whose
   bound is above the limit is *barred*; `megaflow.control.coordinator.reading.input_fronts` shows that no input waits
   without end. If all inputs with batches are barred, the queue has nothing until the limits change. Only files are
   barred: a leaving worker hands its files back, and reads everything else that it has.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from megaflow.control.watermark_messages import Partition
from megaflow.job.worker.reading.event_reports import EventReports
from megaflow.megaphone.base.event_unit import INFINITE, NEVER

Lane: TypeAlias = tuple[str, str]
"""An input, as the kind of its partitions and its name."""
NONE: Final = frozenset[Lane]()
SPARK: Final[Lane] = "spark", ""
"""The input of all rows from Spark, which has no bound."""

RECENT_MAX: Final = 8
"""The files of an input that may be under way from the source to the operators."""


def in_order(turns: Sequence[Lane], bounds: Mapping[Lane, int]) -> list[Lane]:
    """Return the inputs in the order in which to ask them; `turns` begins with the one that was read longest ago.

    >>> lanes = [("split", "a"), ("split", "b"), ("partition", "c")]
    >>> [name for _, name in in_order(lanes, {("split", "a"): 9, ("partition", "c"): 5})]
    ['c', 'b', 'a']
    """
    slowest = iter(sorted((each for each in turns if each in bounds), key=bounds.__getitem__))
    return [next(slowest) if each in bounds else each for each in turns]


class ReadingTurns:
    """The inputs that one worker may read. One writer: its line queue."""

    def __init__(self) -> None:
        self.progress: EventReports | None = None  # None: nothing is known
        self.limits: Mapping[str, int] = {}  # input -> the bound up to which its files are read
        self.barred = NONE  # inputs above their limits, as of the last `order`
        self._turns: list[Lane] = [SPARK]
        self._are_several = False  # whether several inputs may have bounds
        self._order: list[Lane] = []  # the last result of `order`
        self._bounds: dict[Lane, int] = {}
        self._recent: dict[Lane, deque[Partition]] = {}  # input -> its last read partitions, the newest first
        self._unlooked: dict[Lane, int] = {}  # input -> for how many more looks its bound is not computed again
        self._held: dict[Lane, float] = {}  # input -> seconds, since when
        self._waited: dict[Lane, float] = {}  # input -> seconds for which it was held so far

    def add(self, lane: Lane) -> None:
        """Also read this input."""
        if lane not in self._turns:
            self._turns.append(lane)
            self._are_several = sum(each != SPARK for each in self._turns) > 1

    def order(self, partitions: Callable[[Lane], Sequence[Partition]]) -> Sequence[Lane]:
        """Return the inputs in the order in which to ask them for a batch.

        `partitions` returns the partitions of an input that are read next, none if their bound does not count. Cost:
        O(inputs).
        """
        self._order, self.barred = self._turns, NONE
        if self._are_weighed and self.progress is not None and self.progress.are_wanted:
            for each in self._turns:
                self._look(self.progress, each, partitions)
            if self.limits:
                self.barred = frozenset(each for each in self._turns if self._is_above(each))
            self._order = in_order(self._turns, self._bounds)
        return self._order

    def took(self, place: int, partition: Partition, now: float) -> float:
        """Note which input had a batch, of a partition; return the seconds for which the input was held so far."""
        lane = self._order[place]
        if self._are_weighed:
            recent = self._recent.setdefault(lane, deque(maxlen=RECENT_MAX))
            if not recent or recent[0] != partition:
                recent.appendleft(partition)
        if self._bounds:
            for each in self._order[: place + 1]:
                if each not in self.barred:
                    self._release(each, now)
            bound = self._bounds.get(lane, INFINITE)
            for each in (*self._order[place + 1 :], *self.barred):
                if each in self.barred or self._bounds.get(each, bound) > bound:
                    self._held.setdefault(each, now)
        if place < len(self._turns) - 1:
            self._turns = [*self._turns[:place], *self._turns[place + 1 :], self._turns[place]]
        return self._waited.get(lane, 0.0)

    def found_none(self, now: float) -> None:
        """Note that no input had a batch."""
        for each in self._held.keys() - self.barred:
            self._release(each, now)
        for each in self.barred:
            self._held.setdefault(each, now)

    def are_held(self, kind: str) -> bool:
        """Tell whether an input of this kind is held."""
        return any(each[0] == kind for each in self._held)

    @property
    def _are_weighed(self) -> bool:
        return self._are_several or bool(self.limits)

    def _is_above(self, lane: Lane) -> bool:
        kind, input = lane
        return kind == "split" and self._bounds.get(lane, NEVER) > self.limits.get(input, INFINITE)

    def _release(self, lane: Lane, now: float) -> None:
        since = self._held.pop(lane, None)
        if since is not None:
            self._waited[lane] = self._waited.get(lane, 0.0) + now - since

    def _look(self, progress: EventReports, lane: Lane, partitions: Callable[[Lane], Sequence[Partition]]) -> None:
        """Find the bound of an input, less often the more partitions it has."""
        if self._unlooked.get(lane, 0) > 0:
            self._unlooked[lane] -= 1
            return
        some = partitions(lane)
        self._unlooked[lane] = len(some) - 1
        active = [each for each in some if not progress.is_idle(each)]
        bounds = [bound for each in active if (bound := progress.bound(each)) is not None]
        if active and not bounds:
            known = map(progress.bound, self._recent.get(lane, ()))
            bounds = [bound for bound in known if bound is not None][:1]
        if not active:
            self._bounds.pop(lane, None)
        elif bounds:
            self._bounds[lane] = min(bounds)
