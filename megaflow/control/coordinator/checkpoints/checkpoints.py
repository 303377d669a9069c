"""Checkpoints as the coordinator sees them: when one begins, which workers it waits for, and how it ends.

A state machine of values, and a part of the controller.

    due, or asked for ─ CheckpointBegun, Checkpoint ─▶ written and positions known ─ CheckpointReady ─▶ committed
                                          └ a worker cannot write ─ CheckpointAbandoned ─▶ ✗ ◀─ CommitFailed ┘

1. One checkpoint is under way at a time, and it has an epoch t of its own. The launcher hears of it before the control
   stream leaves t, because the message takes the path on which this process closes its epochs. So it hears before any
   output of t or later can be complete.
2. A checkpoint waits for the workers that were members when it began. A worker that joins later owned nothing and read
   nothing before t, because the commands that give it bins and splits come after t.
3. The rest of each split at t comes from one of three places. It is in the report of the source that holds the split
   by the commands before t. Or it was in the pool when the checkpoint was issued. Or it comes back by a revocation that
   was issued before t and not yet answered. The source obeys that revocation first, so it hands the split back before
   it reports its positions. The command that gives such a split to another reader comes after t. A split that was
   revoked after t is in its source's report. No checkpoint begins between `Withdraw` and the closing of the source.
   After that the source's splits are in the pool or with other readers; the source holds none and reports nothing.
4. A leave waits for the checkpoint under way before it closes sources. From then on no checkpoint begins until the
   process has left. So each worker that owes a report is present and reads the control stream until it has reported.
   If a worker left nevertheless, its report would be lost and the checkpoint would be abandoned.
5. A hand-over waits for the checkpoint under way, and no other begins before it. So no report is owed, and the next
   coordinator continues with the number and the last commit. An incarnation never uses a number twice.
6. An abandoned checkpoint costs only its time, because the next one follows the same commit. Its late reports carry its
   number and are ignored.
7. The next checkpoint is due `every` seconds after a commit, and not before PACE times the time that the slowest worker
   spent on the last one. After a failure it is due `every` seconds later. Each checkpoint without anything new doubles
   the wait, up to IDLE_SECONDS_MAX. A longer wait loses no change; it only means that a crash repeats more work.
   A client's request makes the next checkpoint due at once. So does a Spark batch that is wholly taken in and waits to
   be durable, except after a failure.
8. A checkpoint contains what the sinks of all members have prepared. It also contains the tokens of workers that joined
   since it began, because other workers may send them records from before t. The coordinator informs those workers of
   the checkpoint. If a worker leaves, the next checkpoint, or the one at the end, has what its sinks prepared since the
   last one.
9. A command names the last delivery of each sink before its checkpoint: see rule 7 of `megaflow.durable.lineage`. It is
   known, because that checkpoint is committed.
10. A stop takes a last checkpoint, and then the launcher ends the workers: nothing that was read later counts. The end
   of all lines takes a checkpoint of another kind, on which no worker reports here: see `checkpoint_messages`.
"""

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Final, TypeAlias

from megaflow.control import checkpoint_messages
from megaflow.control.coordinator.base.epoch_clock import CommandStream
from megaflow.control.coordinator.base.events import Asked, Mail
from megaflow.control.coordinator.base.job_state import CheckpointState, Durable
from megaflow.control.coordinator.base.roster import Roster
from megaflow.control.coordinator.checkpoints.checkpoint_under_way import Report, UnderWay, name_of
from megaflow.control.coordinator.reading.lines_to_read import LinesToRead
from megaflow.control.coordinator.reading.spark_commits import Commits
from megaflow.control.coordinator.reading.watermarks import Watermarks
from megaflow.control.messages import Split
from megaflow.control.reports import CheckpointStatus
from megaflow.control.wording import workers_text
from megaflow.durable.commits import LastDelivery, SinkToken, SourcePartition, check_checkpoint_name, deliveries_of
from megaflow.errors import CommandRefused, UsageError
from megaflow.megaphone.base.routing import Checkpoint, RoutingTable
from megaflow.quick_dataclass import dataclass

PACE: Final = 20
"""A worker spends at most a twentieth of its time on checkpoints."""
IDLE_SECONDS_MAX: Final = 60.0
ASKED_MAX: Final = 100  # requests that wait for the next checkpoint
AnyReport: TypeAlias = Report | checkpoint_messages.TokensLeft
"""Workers' reports on checkpoints. A `TokensLeft` belongs to no checkpoint under way."""


@dataclass(eq=False, repr=False)
class Checkpoints:
    """The checkpoints of one job, which may be one without a store. One writer: the controller."""

    _job: str
    _roster: Roster
    _stream: CommandStream
    _given: Durable | None  # None: the job takes no checkpoints
    _commits: Commits  # Spark batches, which wait to be durable
    _lines: LinesToRead
    _watermarks: Watermarks

    def __post_init__(self) -> None:
        self.takes_any = self._given is not None
        self.stopped = False  # the last checkpoint is committed
        self.under_way: UnderWay | None = None  # has begun, and is neither committed nor abandoned
        self.asked: list[Asked] = []  # requests that wait for the next checkpoint
        self._durable = durable = self._given or Durable((), 0.0)
        self._since = None if durable.whole else durable.committed
        self._number = (durable.committed or 0) + 1  # of the next checkpoint
        self._next_worker = durable.next_worker
        self._wait = durable.every_seconds  # between checkpoints
        self._left: list[Split | SourcePartition] | None = None  # unread at the last commit; None: no commit yet
        self._due: float | None = None  # seconds; None until the first call with the time
        self._kept = CheckpointStatus(durable.committed, durable.epoch)
        self._committed_at: float | None = None  # seconds; None until the first call with the time
        self._failing_since: float | None = None  # seconds
        self._tokens: list[SinkToken] = []  # of workers that have left; no committed checkpoint has them
        self._in_last: tuple[SinkToken, ...] = ()  # of all workers, in the last committed checkpoint
        self._last = {each[0]: each for each in durable.last}  # delivery of each sink, with those of that checkpoint

    def keeps_open(self, stopping: bool) -> bool:
        """Whether the job may not end yet: a checkpoint is under way, or the last one of a stop is not committed."""
        return self.under_way is not None or (stopping and self.takes_any and not self.stopped)

    def ask(self, asked: Asked) -> None:
        """Queue a client's request for a checkpoint. Raises CommandRefused."""
        if not self.takes_any:
            raise CommandRefused(
                f"job {self._job!r} has no store, so it takes no checkpoints: start it with --state FOLDER"
            )
        if (name := name_of(asked)) is not None:
            try:
                check_checkpoint_name(name)
            except UsageError as error:
                raise CommandRefused(str(error)) from error
        if len(self.asked) >= ASKED_MAX:
            raise CommandRefused(f"{ASKED_MAX} requests already wait for the next checkpoint; try again later")
        self.asked.append(asked)

    def gone(self, client: Hashable) -> None:
        """Drop the requests of a client that has disconnected."""
        self.asked = [asked for asked in self.asked if asked.client is not client]

    def cancel(self, reason: str) -> None:
        """Refuse the requests that wait for a checkpoint to begin."""
        self._stream.out += [asked.refused(reason) for asked in self.asked]
        self.asked.clear()

    # Stages of a checkpoint

    def go_on(self, may_begin: bool, last: bool, frontier: int | None, table: RoutingTable, now: float) -> None:
        """Begin or conclude a checkpoint if it is time; called after each event of a job with a store.

        `last`: the job is stopping. `frontier`: of the output. `table`: after all commands issued so far.
        """
        if self.stopped:
            return
        if self._due is None:
            self._due = now + self._durable.every_seconds
            self._committed_at = now - self._kept.age_seconds
            if self._kept.failing_seconds is not None:
                self._failing_since = now - self._kept.failing_seconds
        one = self.under_way
        if one is None:
            presses = last or self._commits.wait_for_a_checkpoint
            is_due = now >= self._due or self.asked or (presses and self._failing_since is None)
            if may_begin and is_due:
                self._begin(last, table, now)
        elif one.is_reported and not one.ready and (frontier is None or frontier >= one.epoch):
            one.partitions += self._lines.partitions.cut
            ready = one.conclude(self._lines.cut, min(self._roster.members.ids))
            one.read, ended = self._lines.read, self._lines.partitions.ended
            end = self._watermarks.end
            self._stream.out.append(
                replace(ready, bound=end.bound, furthest=end.furthest, ended=ended, read=one.read)
            )

    def _begin(self, last: bool, table: RoutingTable, now: float) -> None:
        asked, self.asked = self.asked, []
        cuts = set(self._roster.members.ids if self._durable.operators else ())
        positions = set(self._roster.sources)
        names = tuple(sorted({name for name in map(name_of, asked) if name is not None}))
        spark = self._commits.newest
        command = self._next(table, last=last, names=names)
        self._lines.begin_cut()
        epoch = self._stream.issue(command)
        sinks = set(self._roster.members.ids if self._durable.sinks else ())
        self.under_way = UnderWay(
            command.number, epoch, now, last, asked, cuts, positions, sinks, list(self._tokens), spark=spark
        )
        self._stream.out += [each.accepted(epoch) for each in asked]

    def at_end(self, table: RoutingTable) -> list[Checkpoint]:
        """Return the command to issue next, together with the end of all lines; none if the job has no store."""
        return [self._next(table, at_end=True)] if self.takes_any else []

    def _next(
        self, table: RoutingTable, last: bool = False, at_end: bool = False, names: tuple[str, ...] = ()
    ) -> Checkpoint:
        """Announce the next checkpoint to the launcher; return its command, which the caller issues at once."""
        number, since, epoch = self._number, self._since, self._stream.epoch
        self._number += 1
        self._next_worker = max(self._next_worker, *(id + 1 for id in self._roster.members.ids))
        operators, code, newest = self._durable.operators, self._durable.code, self._commits.newest
        self._stream.out.append(
            checkpoint_messages.CheckpointBegun(
                number, epoch, since, operators, table, self._next_worker, last, at_end, code, newest, names,
                self._lines.partitions.known, self._durable.sinks, tuple(self._tokens if at_end else ()),
                self._watermarks.micros, self._watermarks.told, self._durable.sources,
                self._roster.members.ids, self._durable.columns, self._lines.read if at_end else (),
                self._watermarks.end.furthest,
            )
        )
        return Checkpoint(number, since, at_end, self._all_last)

    @property
    def _all_last(self) -> tuple[LastDelivery, ...]:
        return tuple(self._last[sink] for sink in sorted(self._last))

    # Reports of workers and the launcher

    def learn(self, source: int, report: AnyReport, now: float) -> None:
        """Record a worker's report. Ignore reports on checkpoints that are not under way."""
        one = self.under_way
        if isinstance(report, checkpoint_messages.TokensLeft):
            self._tokens += [token for token in report.tokens if token not in self._in_last]
        elif one is None or one.number != report.checkpoint or one.ready:
            return
        elif (reason := one.learn(source, report)) is not None:
            self._abandon(one, reason, now)

    def joined(self, ids: Iterable[int]) -> None:
        """Tell workers that have joined which checkpoint is under way, if any.

        Their sinks may receive records that belong to it, and wait for this message.
        """
        if not self._durable.sinks:
            return
        one = None if self.under_way is None or self.under_way.ready else self.under_way
        place = (0, None, None, ()) if one is None else (one.epoch, one.number, self._since, self._all_last)
        word = checkpoint_messages.UnderWayAtJoin(*place)
        for worker in ids:
            self._stream.out.append(Mail(worker, word))
            if one is not None:
                one.sinks.add(worker)

    def left(self, ids: Iterable[int], now: float) -> None:
        """Note that workers have left."""
        one = self.under_way
        if one is not None and (gone := one.missing(ids)):
            self._abandon(one, f"{workers_text(gone)} left before it was written", now)

    def _abandon(self, one: UnderWay, reason: str, now: float) -> None:
        self._stream.out.append(checkpoint_messages.CheckpointAbandoned(one.number, reason))
        self._fail(one, reason, now)

    def answered(self, answer: checkpoint_messages.Committed | checkpoint_messages.CommitFailed, now: float) -> None:
        """Record whether the launcher has committed the checkpoint; tell the workers and the clients."""
        one = self.under_way
        assert one is not None and one.number == answer.checkpoint and one.ready, answer
        if isinstance(answer, checkpoint_messages.CommitFailed):
            self._fail(one, answer.reason, now)
            return
        self.under_way = None
        self._since, self.stopped = one.number, one.last
        self._commits.kept(one.spark)
        self._lines.committed(one.read)
        self._wait = self._wait_after(one)
        self._due = now + max(self._wait, PACE * one.seconds)
        files = (*one.segments, *(each.segment for each in one.untaken))
        size = sum(segment.length for segment in files)
        total = self._kept.total_bytes + size
        self._kept = CheckpointStatus(one.number, one.epoch, 0.0, size, now - one.begun, total_bytes=total)
        self._committed_at, self._failing_since = now, None
        self._tokens, self._in_last = [token for token in self._tokens if token not in one.tokens_left], one.tokens
        self._last |= deliveries_of(one.number, one.tokens)
        first = min(self._roster.members.ids)
        for worker in self._roster.members.ids:
            word = checkpoint_messages.Committed(answer.checkpoint, (), one.adopted if worker == first else ())
            self._stream.out.append(Mail(worker, word))
        for asked in one.asked:
            why = dict(answer.refused).get(name_of(asked) or "")
            self._stream.out.append(asked.done(self._kept) if why is None else asked.refused(why))

    def _wait_after(self, one: UnderWay) -> float:
        """Return how long the next checkpoint waits after this one: twice as long each time if nothing is new."""
        every = self._durable.every_seconds
        left: list[Split | SourcePartition] = [*one.splits, *one.partitions]
        left.sort(key=lambda each: each.number)
        is_new = bool(one.segments or one.untaken or one.tokens) or left != self._left
        self._left = left
        return every if is_new else max(every, min(2 * self._wait, IDLE_SECONDS_MAX))

    def _fail(self, one: UnderWay, reason: str, now: float) -> None:
        self.under_way = None
        self._due = now + self._durable.every_seconds
        self._failing_since = now if self._failing_since is None else self._failing_since
        self._kept = replace(self._kept, reason=reason)
        why = f"checkpoint {one.number} failed: {reason}; the last committed checkpoint stays valid"
        self._stream.out += [asked.refused(why) for asked in one.asked]

    # For status and hand-over

    def status(self, now: float) -> CheckpointStatus | None:
        """Return the checkpoint part of a status; None if the job has no store."""
        if not self.takes_any:
            return None
        age = 0.0 if self._committed_at is None or self._kept.number is None else now - self._committed_at
        failing = None if self._failing_since is None else now - self._failing_since
        return replace(self._kept, age_seconds=age, under_way=self.under_way is not None, failing_seconds=failing)

    def state(self, now: float) -> CheckpointState | None:
        """Return what the next coordinator needs. No checkpoint may be under way."""
        assert self.under_way is None
        if (status := self.status(now)) is None:
            return None
        tokens, last = tuple(self._tokens), self._all_last
        return CheckpointState(self._number, self._since, self._next_worker, status, tokens, last)

    def resume(self, state: CheckpointState | None) -> None:
        """Continue from the state of the previous coordinator."""
        if state is not None:
            self._number, self._since, self._next_worker = state.next, state.since, state.next_worker
            self._kept, self._tokens = state.status, list(state.tokens)
            self._last = {each[0]: each for each in state.last}

    def _check(self) -> None:
        one = self.under_way
        assert self.takes_any or (one is None and not self.asked)
        assert self._since is None or self._since < self._number
        if one is not None:
            assert one.number < self._number and one.epoch < self._stream.epoch
            one._check()
