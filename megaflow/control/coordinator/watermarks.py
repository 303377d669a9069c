"""How far event time is: the watermark, by what workers have seen of partitions, and the job's own clock.

A state machine of values, a part of the controller.

    MaximaSeen, PartitionsIdle ─▶ w, the least of (maximum - out_of_order) ─ with a tick: Watermark(w) ─▶ operators

A watermark is exclusive: what has a timestamp below w is late. It acts at the close of t, so on records of later epochs
only, and never falls.

1. Maxima are kept by operator and *partition*, whoever reads it: of two files of a day that one worker reads, the one
   that it reads later is not late. w is the least over the operators that take timestamps, and over all partitions of
   the inputs that they follow which are not read to their ends: read by somebody, given, handed back, or in the pool.
2. A partition of which nothing was seen may have anything, and w does not rise; unless its source has told a bound
   (`lower_bound`), or the input is read in an order: a file that has not begun has nothing before the first record of a
   file before it. That first record counts as reported by who was given the file from its beginning, and like a maximum
   it may be out of order. Of a file that was begun before a resume it is not known.
3. One that is idle does not count, as whoever reads it says, until something is seen of it or it changes hands. If all
   are: see `idle_time`. If none is left, w stays, until all lines of the job are read.
4. Reports may come late, for they go apart from what sources say. It does no harm. Records that are not reported make a
   maximum too small, so w. That a partition is read, or handed back, is heard when control is past the epoch of its
   last record (`source_operator`, rule 6), so a watermark that is issued then acts on none of them.
5. A query of Spark's is one partition, which all workers read. What was seen of it when its newest batch was b counts
   once all batches up to b are wholly taken in: a worker may have read its part while another has not begun. It is idle
   when for the timeout no batch was to be taken in, if there has been one: Spark may take long to start.
6. A source whose partitions are not known yet, since the job began, is as one of which nothing was seen.
7. At most one is issued each PERIOD_SECONDS, with a tick, so none has an epoch of its own; none while the coordinator's
   part changes hands, whose next holder knows all of this. The last ones: `event_time_end`.
8. A checkpoint has w and the clock as they were issued last, so what all epochs before it have seen. A job that
   goes on from it issues w before it gives anybody something to read: every record has a later epoch. Nothing else is
   kept: nothing was seen of any partition then, so w waits until something is.
9. The clock counts the microseconds that the job has run, in all its lives. It is issued while a worker has timers by
   it, and goes on whether it is issued or not.
10. A source may find partitions for ever. One that is read to its end counts no more and never has a reader again, so
   what was seen of it is forgotten in the end, and what is reported late (rule 4) as well. Of all that was seen the
   greatest stays: it shows how far the watermark is behind.
"""

from typing import Any, Final

from megaflow.control.coordinator.epoch_clock import CommandStream
from megaflow.control.coordinator.event_time_end import EventTimeEnd
from megaflow.control.coordinator.events import Instruction
from megaflow.control.coordinator.idle_time import MICROS, IdleTime
from megaflow.control.coordinator.job_state import Durable, EventTime, TimedOperator, WatermarksState
from megaflow.control.coordinator.lines_to_read import LinesToRead
from megaflow.control.coordinator.roster import Roster
from megaflow.control.coordinator.seen_lateness import SeenLateness
from megaflow.control.coordinator.spark_commits import Commits
from megaflow.control.coordinator.unread_partitions import Unread, UnreadPartitions, input_of, shown
from megaflow.control.messages import CommitTaken, Split
from megaflow.control.watermark_messages import (
    ClockWanted,
    HoldsBack,
    IdlePartition,
    MaximaSeen,
    MaximaTold,
    Partition,
    PartitionsIdle,
    WatermarkStatus,
)
from megaflow.durable.commits import Portion
from megaflow.megaphone.event_unit import INFINITE, NEVER
from megaflow.megaphone.routing import Clock, Watermark
from megaflow.timely.membership import WorkerId

PERIOD_SECONDS: Final = 0.1
"""Between two watermarks at least, and between two readings of the clock: each costs a round of progress."""
KEPT_MIN: Final = 1_000
"""So many maxima and idle partitions may have come before it is worth while to look which of all are read."""


class Watermarks:
    """The event time of one job. One writer: the controller."""

    def __init__(
        self, given: EventTime, stream: CommandStream, lines: LinesToRead, commits: Commits, roster: Roster,
        durable: Durable | None = None,
    ) -> None:  # fmt: skip
        """Without operators the job has no watermark, and perhaps timers by the clock."""
        self.is_over = False  # the infinite one is issued
        self.end = EventTimeEnd(given.closes or durable is None, None if durable is None else durable.bound)
        self.micros = None if durable is None else durable.watermark  # None: there was none
        self._operators = {name: each for name, each in given.operators.items() if each.inputs}
        self._stream = stream
        self._lines = lines
        self._commits = commits
        self._roster = roster
        self._unread = UnreadPartitions(lines, commits, roster, given.pushed, given.spark)
        self._idle_seconds = given.idle_seconds
        self._maxima: dict[tuple[str, Partition], int] = {}  # operator, partition -> microseconds
        self._firsts: dict[tuple[str, str], dict[str, int]] = {}  # operator, input -> path -> microseconds
        self._idle: dict[Partition, float] = {}  # since when, in seconds of `_time`
        self._all_idle = IdleTime(name for name, each in self._operators.items() if each.advances)
        self._late = SeenLateness()
        self._left = 0  # how many of both were of partitions not read to their ends, when that was looked up last
        self._seen: dict[str, dict[int, dict[str, int]]] = {}  # input of Spark's -> batch -> operator -> microseconds
        self._active: dict[str, float] = {}  # input of Spark's -> seconds, when something came of it last
        self._wanting: set[WorkerId] = set()
        self._clock = 0 if durable is None else durable.clock  # microseconds, when this part began
        self.told = self._clock  # microseconds, as the clock was issued last
        self._began: float | None = None  # seconds; None: nobody has said yet what time it is
        self._rose: float | None = None  # seconds; None: not here
        self._age = 0.0  # seconds, when this part began
        self._issued = self._read = float("-inf")  # seconds: the last watermark, the last reading of the clock

    # What is issued

    def begin(self, out: list[Instruction], now: float) -> None:
        """Issue the watermark of a job that goes on; before anything is given to be read."""
        self._time(now)
        if self.micros is not None:
            self._stream.issue([Watermark(self.micros)], out, now)

    def end_epoch(self, may_issue: bool, out: list[Instruction], now: float) -> None:
        """Begin the next epoch, and issue in the present one what is due, if it may be."""
        if not may_issue:
            self._read = now  # or the clock would be due all the time, and each turn begin an epoch
        if commands := self._due(now) if may_issue else []:
            self._stream.issue(commands, out, now)
        else:
            self._stream.advance(out, now)

    def _due(self, now: float) -> list[Any]:
        commands: list[Any] = []
        if self._operators and now - self._issued >= PERIOD_SECONDS:
            least, _ = self._least(now)
            if least is not None and least > (NEVER if self.micros is None else self.micros):
                self.micros, self._issued, self._rose = least, now, now
                commands.append(Watermark(least))
        if now >= self.clock_due:
            self._read = now
            self.told = self.clock(now)
            commands.append(Clock(self.told))
        return commands

    def has_all(self, out: list[Instruction], now: float) -> bool:
        """Tell whether all is known that operators have seen; ask for it if not. All lines are worked off."""
        if self._operators and (ask := self.end.ask(self._roster.sources)):
            self._stream.issue(ask, out, now)
        return not self._operators or self.end.has_all(self._roster.sources)

    def at_end(self, stops: bool, out: list[Instruction], now: float) -> list[Watermark]:
        """Issue the last finite watermark; return what is to be issued last, which no checkpoint has.

        That is for timers that folds have set, also where nobody takes timestamps.
        """
        self._settle_spark()
        bound = self.end.bound
        if not stops and bound is not None and bound > (NEVER if self.micros is None else self.micros):
            self.micros = bound
            self._stream.issue([Watermark(bound)], out, now)
        infinite = self.end.commands(stops)
        self.is_over = bool(infinite)
        return infinite

    @property
    def clock_due(self) -> float:
        """When the clock is to be read, in seconds; never, unless a worker has timers by it."""
        is_wanted = not self._wanting.isdisjoint(self._roster.members.workers)
        return self._read + PERIOD_SECONDS if is_wanted else float("inf")

    def clock(self, now: float) -> int:
        """Return how long the job has run, in microseconds."""
        return self._clock + round(self._time(now) * MICROS)

    def _time(self, now: float) -> float:
        """Return how many seconds this part has run."""
        if self._began is None:
            self._began = now
        return now - self._began

    # What is heard

    def learn(self, source: WorkerId, report: object, now: float) -> bool:
        """Take in what a worker reports, also of what it has read or handed back; tell whether nobody else needs it."""
        match report:
            case MaximaSeen(operator, maxima, firsts, late):
                self._late.add(operator, late)
                for partition, micros in maxima:
                    self._see(operator, partition, micros, now)
                for (kind, number), micros in firsts:
                    split = self._lines.begun(number, source) if kind == "split" and isinstance(number, int) else None
                    if split is not None:
                        self._firsts.setdefault((operator, split.input), {})[split.path] = micros
            case PartitionsIdle(partitions):
                self._idle.update((each, self._time(now)) for each in partitions if each[0] != "spark")
            case ClockWanted(wanted):
                (self._wanting.add if wanted else self._wanting.discard)(source)
            case MaximaTold():
                self.end.told(source)
            case CommitTaken(query):
                self._active[input_of(query)] = now
        for each in self._unread.passed_on(report):
            self._idle.pop(each, None)
        if len(self._maxima) + len(self._idle) > 2 * self._left + KEPT_MIN:
            self._forget_read()
        return isinstance(report, MaximaSeen | MaximaTold | PartitionsIdle | ClockWanted)

    def _see(self, operator: str, partition: Partition, micros: int, now: float) -> None:
        self._idle.pop(partition, None)
        kind, query = partition
        if kind == "spark":
            assert isinstance(query, str), partition
            batch, input = self._commits.newest_of(query), input_of(query)
            seen = self._seen.setdefault(input, {}).setdefault(batch, {})
            seen[operator] = max(micros, seen.get(operator, NEVER))
            self._active[input] = now
        else:
            self._count(operator, partition, micros)

    def _count(self, operator: str, partition: Partition, micros: int) -> None:
        self._maxima[operator, partition] = max(micros, self._maxima.get((operator, partition), NEVER))
        self.end.see(micros, self._operators[operator].out_of_order)

    def _forget_read(self) -> None:
        """Forget what was seen of partitions that are read to their ends: see rule 10."""
        unread = self._unread.among({*self._idle, *(partition for _, partition in self._maxima)})
        self._maxima = {key: micros for key, micros in self._maxima.items() if key[1] in unread}
        self._idle = {each: since for each, since in self._idle.items() if each in unread}
        self._late.keep(unread)
        self._left = len(self._maxima) + len(self._idle)

    # What follows

    def _least(self, now: float) -> tuple[int | None, tuple[str, Unread] | None]:
        """Return where the watermark may be, and the operator and partition that keep it there.

        It is None where nothing counts. Cost: linear in the partitions that are not read to their ends, but if one may
        have anything it ends there; of files that are read in an order those count that have begun, and one more.
        """
        self._settle_spark()
        least, held = None, None
        idle: dict[str, int] = {}  # operator -> the greatest that an idle partition has come to
        for each in self._unread.all(self._has_begun):
            following = [(name, some) for name, some in self._operators.items() if each.input in some.inputs]
            if not following:
                continue
            is_idle = self._is_idle(each, now)
            for name, operator in following:
                value = self._value(name, operator, each)
                if is_idle:
                    idle[name] = max(value, idle.get(name, NEVER))
                elif least is None or value < least:
                    least, held = value, (name, each)
            if least == NEVER:
                break
        if least is not None or not idle:
            self._all_idle.end()
            return least, held
        return self._all_idle.reached(idle, self.micros, now), None

    def _value(self, name: str, operator: TimedOperator, each: Unread) -> int:
        """Return the timestamp below which an operator gets nothing more of a partition."""
        maximum = self._maxima.get((name, each.partition))
        if maximum is not None:
            return maximum - operator.out_of_order
        bound = self._bound(name, operator, each)
        return NEVER if bound is None else bound

    def _bound(self, name: str, operator: TimedOperator, each: Unread) -> int | None:
        """Return that of one of which nothing was seen; None: it is not known."""
        match each.what:
            case Portion(number):
                return self._lines.partitions.bounds.get(number)
            case Split(path=path, input=input):
                firsts = self._firsts.get((name, input), {})
                before = [micros for file, micros in firsts.items() if file < path]
                return max(before) - operator.out_of_order if before else None
        return None

    def _has_begun(self, partition: Partition) -> bool:
        return any((name, partition) in self._maxima for name in self._operators)

    def _is_idle(self, each: Unread, now: float) -> bool:
        if each.partition[0] != "spark":
            return each.partition in self._idle
        if any(input_of(query) == each.input and self._commits.has_batches(query) for query, _ in self._commits.newest):
            self._active[each.input] = now
        if self._has_begun(each.partition):  # perhaps by what another coordinator knew
            self._active.setdefault(each.input, now)
        return now - self._active.get(each.input, now) >= self._idle_seconds

    def _settle_spark(self) -> None:
        """Count what was seen of batches that are wholly taken in."""
        for query, _ in self._commits.newest:
            seen, taken = self._seen.get(input_of(query), {}), self._commits.taken_up_to(query)
            for batch in [batch for batch in seen if batch <= taken]:
                for operator, micros in seen.pop(batch).items():
                    self._count(operator, ("spark", input_of(query)), micros)

    # What others are to know

    def status(self, now: float) -> WatermarkStatus | None:
        """Return what a status shows; None if no operator takes timestamps."""
        if not self._operators:
            return None
        _, held = self._least(now)
        age = self._time(now) + self._age if self._rose is None else now - self._rose
        unread = [*self._unread.all(self._has_begun)]
        idle = tuple(self._resting(each, now) for each in unread if self._is_idle(each, now))
        holds, lag = None if held is None or self.is_over else self._holds(*held), self.end.lag(self.micros)
        return WatermarkStatus(
            self.micros, self.is_over, age, lag, holds, idle, self._all_idle.seconds(now), self._late.statuses(unread)
        )

    def _holds(self, name: str, each: Unread) -> HoldsBack:
        maximum = self._maxima.get((name, each.partition))
        bound = self._bound(name, self._operators[name], each) if maximum is None else None
        in_order = self._unread.are_ordered(each)
        return HoldsBack(name, each.input, shown(each), maximum, each.worker, bound, in_order, self.end.lag(maximum))

    def _resting(self, each: Unread, now: float) -> IdlePartition:
        """Return what a status shows of an idle partition; of its maxima the operator's that has seen least of it."""
        maxima = [self._maxima[key] for name in self._operators if (key := (name, each.partition)) in self._maxima]
        since = self._idle.get(each.partition)
        gone = now - self._active[each.input] - self._idle_seconds if since is None else self._time(now) - since
        return IdlePartition(each.input, shown(each), gone, self.end.lag(min(maxima, default=None)))

    def state(self, now: float) -> WatermarksState:
        """Return what whoever goes on with this must know; all batches of Spark's are taken in."""
        self._settle_spark()
        self._forget_read()
        age = self._time(now) + self._age if self._rose is None else now - self._rose
        return WatermarksState(
            self.micros, self.clock(now), self.told, tuple(sorted(self._wanting)),
            tuple((name, partition, micros) for (name, partition), micros in self._maxima.items()), self.end.greatest,
            tuple((*key, *each) for key, firsts in self._firsts.items() for each in firsts.items()),
            tuple((each, self._time(now) - since) for each, since in self._idle.items()),
            self._unread.pushed, self._unread.spark, self._idle_seconds, age, self.end.bound, self.end.closes,
            self._late.state(),
        )  # fmt: skip

    def resume(self, state: WatermarksState | None) -> None:
        """Go on from there."""
        if state is None:
            return
        self.micros, self._age = state.micros, state.age_seconds
        self._clock, self.told, self._wanting = state.clock, state.told, set(state.wanting)
        self._maxima = {(name, partition): micros for name, partition, micros in state.maxima}
        self.end.greatest, self.end.bound, self.end.closes = state.greatest, state.bound, state.closes
        for name, input, path, micros in state.firsts:
            self._firsts.setdefault((name, input), {})[path] = micros
        self._idle = {partition: -seconds for partition, seconds in state.idle}
        self._unread.pushed, self._unread.spark = state.pushed, state.spark
        self._idle_seconds = state.idle_seconds
        self._late.resume(state.late)

    def _check(self) -> None:
        assert self.micros is None or NEVER < self.micros < INFINITE
        assert all(partition[0] != "spark" for partition in self._idle)
