"""Event time of a job: the watermark w, computed from what workers report about partitions, and the job's own clock.

    MaximaSeen, PartitionsIdle ─▶ w, the least of (maximum - out_of_order) ─ with a tick: Watermark(w) ─▶ operators

A part of the controller. A watermark is exclusive: a record is late if its timestamp is below w. A watermark that is
issued at epoch t acts when t closes, so only on records of later epochs. It never falls.

1. Maxima are kept by operator and *partition*, no matter which worker reads it. So if one worker reads two files of the
   same day, the second is not late. w is the least over all operators that take timestamps, and over all partitions of
   their inputs that are not read to their ends: partitions being read, given, handed back, or in the pool.
2. If no record of a partition was seen, it may contain any timestamp, and w does not rise. There are two exceptions.
   Its source may have given a bound (`lower_bound`). Or the input is read in an order: a file that has not begun has
   nothing before the first record of an earlier file. Only the worker that received a file from its beginning may
   report that first record, and like a maximum it may be out of order. For a file that began before a resume, it is not
   known.
3. A partition that its reader has reported idle does not count, until a record of it is seen or it changes hands. If
   all partitions are idle, see `idle_time`; if one is idle at some operators only, `idle_branches`. If none is left, w
   stays until all lines of the job are read, except for partitions that are gone: see rule 5 of `idle_time`.
4. Maxima may arrive late, because they travel separately from the sources' reports. That does no harm. Records that are
   not reported yet make a maximum, and so w, too small. The news that a partition is read or handed back arrives when
   control has passed the epoch of its last record (`source_operator`, rule 6). So a watermark issued then acts on none
   of its records.
5. A Spark query is one partition that all workers read. One worker may have read its part of a batch before another
   begins. So maxima that were seen while the newest batch was b count once all batches up to b are wholly taken in.
   The query is idle if there was no batch to take in for the timeout, but not before its first batch: Spark may take
   long to start.
6. A source that has not named its partitions since the job began or was resumed counts as one partition without seen
   records.
7. At most one watermark is issued in each PERIOD_SECONDS, together with a tick, so none has an epoch of its own. None
   is issued while the coordinator's part changes hands; the next coordinator receives all of this state. For the last
   watermarks see `event_time_end`.
8. A checkpoint has w and the clock as they were issued last, before its epoch. So it has what all earlier epochs have
   seen. A job that resumes from it issues w before it gives any worker something to read, so every record has a later
   epoch. Apart from the greatest bound (`event_time_end`) nothing else of this module is in a checkpoint. After the
   resume no record of any partition has been seen, so w waits until there is one.
9. The clock counts the microseconds that the job has run, in all its attempts. It is issued while a worker has timers
   by it, and runs whether it is issued or not.
10. A source may find partitions without end. A partition that is read to its end never counts again. So its maxima are
   forgotten later, and so are late reports (rule 4). The greatest of all stays, because status shows the lag.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from megaflow.control import watermark_messages
from megaflow.control.coordinator.base.epoch_clock import CommandStream
from megaflow.control.coordinator.base.job_state import Durable, EventTime, TimedOperator, WatermarksState
from megaflow.control.coordinator.base.roster import Roster
from megaflow.control.coordinator.reading.event_time_end import EventTimeEnd
from megaflow.control.coordinator.reading.idle_branches import IdleBranches
from megaflow.control.coordinator.reading.idle_time import MICROS, IdleTime
from megaflow.control.coordinator.reading.input_fronts import InputFronts
from megaflow.control.coordinator.reading.lines_to_read import LinesToRead
from megaflow.control.coordinator.reading.seen_lateness import SeenLateness
from megaflow.control.coordinator.reading.spark_commits import Commits
from megaflow.control.coordinator.reading.split_pool import name_key, place_of
from megaflow.control.coordinator.reading.unread_partitions import Describe, Unread, UnreadPartitions, decoded, shown
from megaflow.control.launcher_messages import ToldOnce
from megaflow.control.messages import CommitTaken, Split
from megaflow.control.reading_messages import SplitRead
from megaflow.control.watermark_messages import EventTimeReport, Partition, may_have_idle_branches
from megaflow.durable.commits import ANEW, SourcePartition, input_of
from megaflow.megaphone.base.event_unit import INFINITE, NEVER
from megaflow.megaphone.base.routing import Clock, Watermark
from megaflow.timely.membership import WorkerId

PERIOD_SECONDS: Final = 0.1
"""The least time between two watermarks, and between two readings of the clock: each costs a round of progress."""
KEPT_MIN: Final = 1_000
"""This many maxima and idle partitions may accumulate before a search for finished partitions is worthwhile."""


class Watermarks:
    """The event time of one job. One writer: the controller."""

    def __init__(
        self, given: EventTime, stream: CommandStream, lines: LinesToRead, commits: Commits, roster: Roster,
        durable: Durable | None = None, describe: Describe = decoded,
    ) -> None:  # fmt: skip
        """A job without timed operators has no watermark, but may have timers by the clock.

        `describe` returns the text by which a status names a source's partition.
        """
        self._describe = describe
        self.is_over = False  # the infinite watermark is issued
        before = (None, None) if durable is None else (durable.bound, durable.furthest)
        self.end = EventTimeEnd(given.closes or durable is None, *before)
        self._micros = None if durable is None else durable.watermark  # None: there was none
        self._operators = {name: each for name, each in given.operators.items() if each.inputs}
        self.is_on = bool(self._operators) or given.max_skew is not None  # else only the clock may be wanted
        self.wanting: set[WorkerId] = set()  # workers with timers by the clock
        self._stream = stream
        self._lines = lines
        self._commits = commits
        self._roster = roster
        self._unread = UnreadPartitions(lines, commits, roster, given.pushed, given.spark)
        self._idle_seconds = given.idle_seconds
        self._maxima: dict[tuple[str, Partition], int] = {}  # operator, partition -> microseconds
        self._firsts: dict[tuple[str, str], dict[str, int]] = {}  # operator, input -> path -> microseconds
        self._latest: dict[tuple[str, str], tuple[int, Split]] = {}  # the same key -> the greatest of these, its file
        self._unordered: set[tuple[str, str]] = set()  # those keys whose files break their order, and were reported
        self._idle: dict[Partition, float] = {}  # idle partition -> since when, in seconds of `_time`
        self._branches = IdleBranches(given.idle_seconds)
        self._taken: dict[str, int] = {}  # Spark query -> batch up to which all were taken in
        self._all_idle = IdleTime(name for name, each in self._operators.items() if each.advances)
        self._late = SeenLateness()
        self._fronts = InputFronts(given.max_skew, self._operators, lines)
        self._left = 0  # how many maxima and idle partitions the last search kept
        self._seen: dict[str, dict[int, dict[str, int]]] = {}  # Spark input -> batch -> operator -> microseconds
        self._active: dict[str, float] = {}  # Spark input -> seconds, when it last had activity
        self._clock = 0 if durable is None else durable.clock  # microseconds, when this coordinator began
        self.told = self._clock  # microseconds, as the clock was issued last
        self._began: float | None = None  # seconds; None until the first call with the time
        self._rose: float | None = None  # seconds, when the watermark last rose; None: not under this coordinator
        self._was_still = 0.0  # seconds since the watermark rose, when this coordinator began
        self._issued = self._read = float("-inf")  # seconds: the last watermark, the last reading of the clock

    # Watermarks and clock

    @property
    def micros(self) -> int | None:
        """The watermark, as it was issued last; None: there was none. A Spark query may give it: see `spark_commits`.
        """
        known = [each for each in (self._micros, self._commits.state.watermark) if each is not None]
        return max(known, default=None)

    def begin(self, now: float) -> None:
        """Issue the watermark of a job that resumes; called before any worker is given something to read."""
        self._time(now)
        if self._micros is not None:
            self._stream.issue(Watermark(self._micros))

    def due(self, may_issue: bool, now: float) -> list[Any]:
        """Return the commands that are due in the present epoch, if `may_issue`; the caller issues them."""
        if not may_issue:
            self._read = now  # otherwise the clock would be due all the time, and each turn would begin an epoch
            return []
        commands: list[Any] = [*self._fronts.due(now)]
        if self._operators and now - self._issued >= PERIOD_SECONDS:
            least, _ = self._least(now)
            if least is not None and least > (NEVER if self.micros is None else self.micros):
                self._micros, self._issued, self._rose = least, now, now
                commands.append(Watermark(least))
        if now >= self.clock_due:
            self._read = now
            self.told = self.clock(now)
            commands.append(Clock(self.told))
        return commands

    def has_all(self) -> bool:
        """Tell whether sources have reported all maxima; ask for them if not. All lines must be processed."""
        if self._operators and (ask := self.end.ask(self._roster.sources)):
            self._stream.issue(*ask)
        return not self._operators or self.end.has_all(self._roster.sources)

    def at_end(self, stops: bool) -> list[Watermark]:
        """Issue the last finite watermark; return the infinite one, to be issued last, which no checkpoint has.

        The infinite one is for timers that folds have set, even in jobs without timestamps.
        """
        self._settle_spark()
        bound = self.end.bound
        if not stops and bound is not None and bound > (NEVER if self._micros is None else self._micros):
            self._micros = bound
            self._stream.issue(Watermark(bound))
        infinite = self.end.commands(stops) if self._commits.state.watermark is None else []
        self.is_over = bool(infinite)
        return infinite

    @property
    def clock_due(self) -> float:
        """The time of the next reading of the clock, in seconds; infinite unless a worker has timers by it."""
        is_wanted = not self.wanting.isdisjoint(self._roster.members.workers)
        return self._read + PERIOD_SECONDS if is_wanted else float("inf")

    def clock(self, now: float) -> int:
        """Return how long the job has run in all its attempts, in microseconds."""
        return self._clock + round(self._time(now) * MICROS)

    def _time(self, now: float) -> float:
        """Return how many seconds this coordinator has run."""
        if self._began is None:
            self._began = now
        return now - self._began

    # Reports

    def learn(self, source: WorkerId, report: EventTimeReport, now: float) -> None:
        """Record a worker's report on event time."""
        match report:
            case watermark_messages.MaximaSeen(operator, maxima, firsts, late):
                self._late.add(operator, late)
                self._fronts.see(operator, maxima, now)
                for partition, micros in maxima:
                    self._see(operator, partition, micros, now)
                for (kind, number), micros in firsts:
                    split = self._lines.begun(number, source) if kind == "split" and isinstance(number, int) else None
                    if split is not None:
                        self._firsts.setdefault((operator, split.input), {})[split.path] = micros
                        self._check_order(operator, split, micros)
            case watermark_messages.PartitionsIdle(partitions, operator) if operator:
                self._branches.report(operator, partitions, self._time(now))
            case watermark_messages.PartitionsIdle(partitions):
                self._idle.update((each, self._time(now)) for each in partitions if each[0] != "spark")
            case watermark_messages.ClockWanted(wanted):
                (self.wanting.add if wanted else self.wanting.discard)(source)
            case watermark_messages.MaximaTold():
                self.end.told(source)
        if self._kept > 2 * self._left + KEPT_MIN:
            self._forget_read()

    def _check_order(self, operator: str, split: Split, micros: int) -> None:
        """Report a file whose first record is earlier than that of a file before it, once for each input."""
        key = operator, split.input
        latest, before = self._latest.setdefault(key, (micros, split))
        if micros >= latest:
            self._latest[key] = micros, split
            return
        is_earlier = micros < latest - self._operators[operator].out_of_order
        if is_earlier and key not in self._unordered and place_of(before) < place_of(split):
            self._unordered.add(key)
            fix = "Rename the files in the order of their times."
            if not split.natural and name_key(split.path, True) < name_key(before.path, True):
                fix = "If the digits in the names are numbers, use ?ordered-by=natural."
            text = (
                f"{split.path!r} begins earlier than {before.path!r}, which is before it in the order of names. Its "
                f"records may be late and left out. {fix}"
            )
            worker = self._roster.members.coordinator
            self._stream.out.append(ToldOnce(worker, f"order of {operator} {split.input}", text))

    def passed_on(self, report: object, now: float) -> None:
        """Record a worker's report that it has read partitions or handed them back."""
        if isinstance(report, CommitTaken):
            self._active[input_of(report.query)] = now
        for end in report.left if isinstance(report, SplitRead) else ():
            if end.ended_in == ANEW:
                self._leave(end, now)
        for each in self._unread.passed_on(report):
            self._idle.pop(each, None)
            self._branches.passed_on(each, self._operators)

    def _leave(self, end: SourcePartition, now: float) -> None:
        """Record that a partition is gone; it has the maxima of all its records."""
        each = Unread(("partition", end.number), end.input, None, end)
        for name, micros in end.maxima:
            self._count(name, each.partition, micros)
        following = self._following(each)
        come = self._branches.come(each.partition, following, self._maxima)
        bounds = {name: max(come, self._value(name, operator, each)) for name, operator in following.items()}
        waits = 0.0 if each.partition in self._idle else self._idle_seconds
        self._all_idle.leave(bounds, self._time(now) + waits)

    def _see(self, operator: str, partition: Partition, micros: int, now: float) -> None:
        self._idle.pop(partition, None)
        kind, query = partition
        if kind == "spark":
            assert isinstance(query, str), partition
            batch, input = self._commits.newest_of(query), input_of(query)
            self._branches.seen(operator, (kind, input))
            seen = self._seen.setdefault(input, {}).setdefault(batch, {})
            seen[operator] = max(micros, seen.get(operator, NEVER))
            self._active[input] = now
        else:
            self._branches.seen(operator, partition)
            self._count(operator, partition, micros)

    def _count(self, operator: str, partition: Partition, micros: int) -> None:
        self._maxima[operator, partition] = max(micros, self._maxima.get((operator, partition), NEVER))
        self.end.see(micros, self._operators[operator].out_of_order)

    def _forget_read(self) -> None:
        """Forget the maxima of partitions that are read to their ends: see rule 10."""
        branches = chain(self._maxima, self._branches)
        unread = self._unread.among({*self._idle, *(partition for _, partition in branches)})
        self._branches.keep(unread)
        self._maxima = {key: micros for key, micros in self._maxima.items() if key[1] in unread}
        self._idle = {each: since for each, since in self._idle.items() if each in unread}
        self._late.keep(unread)
        self._left = self._kept

    @property
    def _kept(self) -> int:
        return len(self._maxima) + len(self._idle) + len(self._branches)

    # Computation of the watermark

    def _least(self, now: float) -> tuple[int | None, tuple[str, Unread] | None]:
        """Return how far the watermark may rise, and the operator and partition that hold it there.

        Either is None if no partition counts. Cost: linear in the unread partitions, but the search ends at the first
        one that may contain any timestamp. Of files that are read in an order, only those that have begun and one more
        count.
        """
        self._settle_spark()
        self._watch_spark(now)
        least, held = None, None
        idle = dict(self._all_idle.gone)  # operator -> the greatest bound of its idle partitions
        for each in self._unread.all(self._has_begun):
            following = self._following(each)
            if not following:
                continue
            is_idle, has_branches = self._is_idle(each, now), may_have_idle_branches(each.partition)
            come = self._branches.come(each.partition, following, self._maxima) if has_branches else NEVER
            for name, operator in following.items():
                value, holder = self._value(name, operator, each), name
                if is_idle:
                    idle[name] = max(value, come, idle.get(name, NEVER))
                    continue
                if self._branches.is_idle(name, each.partition):
                    value, holder = max((value, name), self._branches.reached(each.partition, following, self._maxima))
                if least is None or value < least:
                    least, held = value, (holder, each)
            if least == NEVER:
                break
        if least is not None or not idle or self._all_idle.waits(self._time(now)):
            self._all_idle.end()
            return least, held
        return self._all_idle.reached(idle, self.micros, now), None

    def _following(self, each: Unread) -> dict[str, TimedOperator]:
        """Return the operators that take timestamps of a partition's records, by name."""
        return {name: some for name, some in self._operators.items() if each.input in some.inputs}

    def _value(self, name: str, operator: TimedOperator, each: Unread) -> int:
        """Return the timestamp below which an operator expects no further record of a partition."""
        maximum = self._maxima.get((name, each.partition))
        if maximum is not None:
            return maximum - operator.out_of_order
        bound = self._bound(name, operator, each)
        return NEVER if bound is None else bound

    def _bound(self, name: str, operator: TimedOperator, each: Unread) -> int | None:
        """Return the same for a partition without seen records; None if it is not known."""
        match each.what:
            case SourcePartition(number):
                return self._lines.partitions.state.bounds.get(number)
            case Split(path=path, input=input):
                firsts = self._firsts.get((name, input), {})
                place = name_key(path, each.what.natural)
                before = [micros for file, micros in firsts.items() if name_key(file, each.what.natural) < place]
                return max(before) - operator.out_of_order if before else None
        return None

    def _has_begun(self, partition: Partition) -> bool:
        return any((name, partition) in self._maxima for name in self._operators)

    def _is_idle(self, each: Unread, now: float) -> bool:
        if each.partition[0] != "spark":
            return each.partition in self._idle
        if any(input_of(query) == each.input and self._commits.has_batches(query) for query, _ in self._commits.newest):
            self._active[each.input] = now
        if self._has_begun(each.partition):  # perhaps known from the previous coordinator
            self._active.setdefault(each.input, now)
        return now - self._active.get(each.input, now) >= self._idle_seconds

    def _settle_spark(self) -> None:
        """Count the maxima of batches that are wholly taken in."""
        for query, _ in self._commits.newest:
            seen, taken = self._seen.get(input_of(query), {}), self._commits.taken_up_to(query)
            for batch in [batch for batch in seen if batch <= taken]:
                for operator, micros in seen.pop(batch).items():
                    self._count(operator, ("spark", input_of(query)), micros)

    def _watch_spark(self, now: float) -> None:
        """Find idle branches of queries: see rule 1 of `idle_branches`."""
        for query, _ in self._commits.newest:
            taken, input = self._commits.taken_up_to(query), input_of(query)
            if taken > self._taken.get(query, -1):
                self._taken[query] = taken
                names = [name for name, some in self._operators.items() if input in some.inputs]
                self._branches.taken_in(("spark", input), names, self._time(now))

    # For status and hand-over

    def status(self, now: float) -> watermark_messages.WatermarkStatus | None:
        """Return the event-time part of a status; None if no operator takes timestamps, and no query gives them."""
        if not self._operators and self._commits.state.watermark is None:
            return None
        (_, held), unread = self._least(now), [*self._unread.all(self._has_begun)]
        idle = tuple(chain.from_iterable(self._resting(each, now) for each in unread))
        holds, lag = None if held is None or self.is_over else self._holds(*held), self.end.lag(self.micros)
        return watermark_messages.WatermarkStatus(
            self.micros, self.is_over, self._age(now), lag, holds, idle, self._all_idle.seconds(now),
            self._all_idle.stands_at, self._late.statuses(unread, self._describe), self._fronts.limits,
        )  # fmt: skip

    def _age(self, now: float) -> float:
        """Return for how many seconds the watermark has not risen."""
        rose = self._commits.raised_at if self._rose is None else self._rose
        return self._time(now) + self._was_still if rose is None else now - rose

    def _holds(self, name: str, each: Unread) -> watermark_messages.HoldsBack:
        maximum = self._maxima.get((name, each.partition))
        bound = self._bound(name, self._operators[name], each) if maximum is None else None
        in_order = self._unread.are_ordered(each)
        lag, partition = self.end.lag(maximum), shown(each, self._describe)
        return watermark_messages.HoldsBack(name, each.input, partition, maximum, each.worker, bound, in_order, lag)

    def _resting(self, each: Unread, now: float) -> Iterator[watermark_messages.IdlePartition]:
        """Iterate over the status of a partition that is idle, or of its idle branches."""
        names = self._following(each)
        if not self._is_idle(each, now):
            for name, since in self._branches.idle(each.partition, names):
                yield self._idle_partition(each, self._time(now) - since, [name], name)
            return
        since_all = self._idle.get(each.partition)
        by_spark = now - self._active.get(each.input, now) - self._idle_seconds
        yield self._idle_partition(each, by_spark if since_all is None else self._time(now) - since_all, names)

    def _idle_partition(
        self, each: Unread, seconds: float, names: Iterable[str], operator: str | None = None
    ) -> watermark_messages.IdlePartition:
        """Return one status, with the least of the maxima that the named operators have seen."""
        maxima = [self._maxima[key] for name in names if (key := (name, each.partition)) in self._maxima]
        lag = self.end.lag(min(maxima, default=None))
        return watermark_messages.IdlePartition(each.input, shown(each, self._describe), seconds, lag, operator)

    def state(self, now: float) -> WatermarksState:
        """Return what the next coordinator needs. All Spark batches must be taken in."""
        self._settle_spark()
        self._forget_read()
        return WatermarksState(
            self.micros, self.clock(now), self.told, self.wanting, self._maxima, self.end.greatest, self._firsts,
            {each: self._time(now) - since for each, since in self._idle.items()}, self._unread.pushed,
            self._unread.spark, self._idle_seconds, self._age(now), self.end.bound, self.end.closes, self._late.state(),
            self._branches.state(self._time(now)), self.end.furthest, self._all_idle.gone,
            self._all_idle.waits(self._time(now)),
        )  # fmt: skip

    def resume(self, state: WatermarksState) -> None:
        """Continue from the state of the previous coordinator."""
        self._micros, self._was_still = state.micros, state.age_seconds
        self._clock, self.told, self.wanting = state.clock, state.told, state.wanting
        self._maxima, self._firsts = state.maxima, state.firsts
        self.end.greatest, self.end.bound, self.end.closes = state.greatest, state.bound, state.closes
        self.end.furthest = state.furthest
        self._all_idle.leave(state.gone, state.gone_waits)
        self._idle = {partition: -seconds for partition, seconds in state.idle.items()}
        self._unread.pushed, self._unread.spark = state.pushed, state.spark
        self._idle_seconds = state.idle_seconds
        self._branches = IdleBranches(state.idle_seconds)
        self._branches.resume(state.branches)
        self._late.resume(state.late)

    def _check(self) -> None:
        assert self.micros is None or NEVER < self.micros < INFINITE
        assert all(partition[0] != "spark" for partition in self._idle)
