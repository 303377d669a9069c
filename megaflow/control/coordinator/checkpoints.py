"""Checkpoints as the coordinator sees them: when one begins, whom it waits for, and what comes of it.

A state machine of values, a part of the controller.

    due, or asked for ─ CheckpointBegun, Checkpoint ─▶ written and positions known ─ CheckpointReady ─▶ committed
                                          └ a worker cannot write ─ CheckpointAbandoned ─▶ ✗ ◀─ CommitFailed ┘

1. One is under way at a time, in an epoch t of its own. The launcher hears of it before that epoch is left, so before
   any output of t or later can be complete: the word comes by the way on which this process closes its epochs.
2. It waits for all members at its begin. Whoever joins later owned nothing and read nothing before t: bins and splits
   are given by commands, which are later ones.
3. What is left of a split at t is told by the source that holds it then, by the commands before t, or it is in the pool
   when t is issued, or comes back by a revocation that was issued before and had not come back: a source obeys that
   first, so it hands back before it says where it is, and what comes back after t was issued is given on after t. One
   that was revoked after t was issued is in its source's report. None is begun from `Withdraw` until the source has
   closed; then what it had is in the pool, or given on; it says nothing any more, and holds none.
4. A leave waits for the checkpoint under way before it closes sources, and none is begun until the process is gone:
   each worker that is waited for is there and reads the control stream until it has reported. (If one left
   nevertheless, its report would be lost, and the checkpoint is abandoned.)
5. A hand-over waits for the one under way, and none is begun before it: then no report is owed, and the next
   coordinator goes on with the number and the last commit. A number is never used twice in an incarnation.
6. One that is abandoned costs nothing but its time: the next one follows the same commit. Reports of it that still come
   bear its number, and are ignored.
7. The next one is due `every` seconds after a commit, and not before PACE times what the slowest worker spent on the
   last one; after a failure, `every` seconds after that. Each time that one had nothing new the wait is doubled, to
   IDLE_SECONDS_MAX at most: what has changed meanwhile is not lost by that, only done again after a crash.
   A batch of Spark's that is wholly taken in and waits to be durable comes before that, but not before a failure's.
8. What sinks have prepared is in it, from all members; and from workers that have joined since its begin, to whom
   records of before t may come from others: they are told of it. What sinks of a worker that leaves have prepared since
   the last one is in the next one, or in that of the end.
9. At a stop there is a last one, after which the launcher ends the workers: nothing that was read later counts. At the
   end of all lines there is one of another kind, for which nobody reports here: see `checkpoint_messages`.
"""

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Final

from megaflow.control.checkpoint_messages import (
    CheckpointAbandoned,
    CheckpointBegun,
    CommitFailed,
    Committed,
    CutFailed,
    CutWritten,
    PositionsAt,
    TokensAt,
    TokensLeft,
    UnderWayAtJoin,
)
from megaflow.control.coordinator.checkpoint_under_way import Report, UnderWay, name_of
from megaflow.control.coordinator.epoch_clock import CommandStream
from megaflow.control.coordinator.events import Asked, Instruction, Mail, Reply
from megaflow.control.coordinator.job_state import CheckpointState, Durable
from megaflow.control.coordinator.lines_to_read import LinesToRead
from megaflow.control.coordinator.request_progress import done
from megaflow.control.coordinator.roster import Roster
from megaflow.control.coordinator.spark_commits import Commits
from megaflow.control.coordinator.watermarks import Watermarks
from megaflow.control.messages import Accepted, Refused, Split
from megaflow.control.reports import CheckpointStatus
from megaflow.control.wording import workers_text
from megaflow.durable.commits import Portion, SinkToken, check_checkpoint_name
from megaflow.errors import CommandRefused, UsageError
from megaflow.megaphone.routing import Checkpoint, RoutingTable

PACE: Final = 20
"""A worker spends a twentieth of its time on checkpoints at most."""
IDLE_SECONDS_MAX: Final = 60.0
ASKED_MAX: Final = 100  # requests that wait for the next one
REPORTS: Final = (CutWritten, CutFailed, PositionsAt, TokensAt, TokensLeft)
"""What workers say of checkpoints, the last of them of none that is under way."""


class Checkpoints:
    """The checkpoints of one job, perhaps of one that is not durable. One writer: the controller."""

    def __init__(
        self,
        job: str,
        roster: Roster,
        stream: CommandStream,
        durable: Durable | None,
        commits: Commits,
        lines: LinesToRead,
        watermarks: Watermarks,
    ) -> None:
        """`durable`: None if there are no checkpoints. `commits`: of Spark's batches, which wait to be durable."""
        self.stopped = False  # the last one is committed
        self._job = job
        self._roster = roster
        self._stream = stream
        self._durable = durable
        self._commits = commits
        self._lines = lines
        self._watermarks = watermarks
        committed = durable.committed if durable is not None else None
        self._since = committed if durable is not None and not durable.whole else None
        self._number = (committed or 0) + 1  # of the next one
        self._next_worker = durable.next_worker if durable is not None else 0
        self._asked: list[Asked] = []  # for the next one
        self._under_way: UnderWay | None = None
        self._wait = durable.every_seconds if durable is not None else 0.0  # from a commit to the next one
        self._left: list[Split | Portion] | None = None  # at the last one; None: there was none
        self._due: float | None = None  # seconds; None: nobody has said yet what time it is
        self._kept = CheckpointStatus(committed, durable.epoch if durable is not None else 0)
        self._committed_at: float | None = None  # seconds; None: as above
        self._failing_since: float | None = None  # seconds
        self._tokens: list[SinkToken] = []  # of workers that have left, and that no committed one has
        self._in_last: tuple[SinkToken, ...] = ()  # that the last one has, of all workers

    @property
    def under_way(self) -> bool:
        """Whether one has begun and is neither committed nor given up."""
        return self._under_way is not None

    def keeps_open(self, stopping: bool) -> bool:
        """Whether the job may not end yet: one is under way, or the last one before a stop is not committed."""
        return self.under_way or (stopping and self._durable is not None and not self.stopped)

    @property
    def asked(self) -> list[Asked]:
        """The requests that wait for one to begin."""
        return list(self._asked)

    def ask(self, asked: Asked) -> None:
        """Take in a client's request for one. Raises CommandRefused."""
        if self._durable is None:
            raise CommandRefused(
                f"job {self._job!r} has no store, so it takes no checkpoints: start it with --state FOLDER"
            )
        if (name := name_of(asked)) is not None:
            try:
                check_checkpoint_name(name)
            except UsageError as error:
                raise CommandRefused(str(error)) from error
        if len(self._asked) >= ASKED_MAX:
            raise CommandRefused(f"{ASKED_MAX} requests already wait for the next checkpoint; try again later")
        self._asked.append(asked)

    def gone(self, client: Hashable) -> None:
        """Drop what a client has asked for that has gone."""
        self._asked = [asked for asked in self._asked if asked.client is not client]

    def cancel(self, reason: str, out: list[Instruction]) -> None:
        """Refuse what waits for one to begin."""
        out += [Reply(asked.client, Refused(asked.request.id, reason)) for asked in self._asked]
        self._asked.clear()

    # How one goes

    def go_on(
        self, may_begin: bool, last: bool, frontier: int | None, table: RoutingTable, out: list[Instruction], now: float
    ) -> None:
        """Do what can be done by now; to be called after each event.

        `last`: the job is to stop; `frontier` of the output; `table` after all that was issued.
        """
        if self._durable is None or self.stopped:
            return
        if self._due is None:
            self._due = now + self._durable.every_seconds
        if self._committed_at is None:
            self._committed_at = now - self._kept.age_seconds
            if self._kept.failing_seconds is not None:
                self._failing_since = now - self._kept.failing_seconds
        one = self._under_way
        if one is None:
            presses = last or self._commits.wait_for_a_checkpoint
            is_due = now >= self._due or self._asked or (presses and self._failing_since is None)
            if may_begin and is_due:
                self._begin(last, table, out, now)
        elif one.is_reported and not one.ready and (frontier is None or frontier >= one.epoch):
            one.portions += self._lines.partitions.cut
            ready = one.conclude(self._lines.cut, min(self._roster.members.ids))
            out.append(replace(ready, bound=self._watermarks.end.bound))

    def _begin(self, last: bool, table: RoutingTable, out: list[Instruction], now: float) -> None:
        asked, self._asked = self._asked, []
        assert self._durable is not None
        cuts = set(self._roster.members.ids if self._durable.operators else ())
        positions = set(self._roster.sources)
        names = tuple(sorted({name for name in map(name_of, asked) if name is not None}))
        spark = self._commits.newest
        command = self._next(table, out, last=last, names=names)
        self._lines.begin_cut()
        epoch = self._stream.issue([command], out, now)
        sinks = set(self._roster.members.ids if self._durable.sinks else ())
        self._under_way = UnderWay(
            command.number, epoch, now, last, asked, cuts, positions, sinks, list(self._tokens), spark=spark
        )
        out += [Reply(each.client, Accepted(each.request.id, epoch)) for each in asked]

    def at_end(self, table: RoutingTable, out: list[Instruction]) -> list[Checkpoint]:
        """Return the command that is to be issued next, with the end of all lines; none if nothing is durable."""
        return [self._next(table, out, at_end=True)] if self._durable is not None else []

    def _next(
        self,
        table: RoutingTable,
        out: list[Instruction],
        last: bool = False,
        at_end: bool = False,
        names: tuple[str, ...] = (),
    ) -> Checkpoint:
        """Tell the launcher of the next one; return its command, which is to be issued at once."""
        assert self._durable is not None
        number, since, epoch = self._number, self._since, self._stream.epoch
        self._number += 1
        self._next_worker = max(self._next_worker, *(id + 1 for id in self._roster.members.ids))
        operators, code, newest = self._durable.operators, self._durable.code, self._commits.newest
        out.append(
            CheckpointBegun(
                number, epoch, since, operators, table, self._next_worker, last, at_end, code, newest, names,
                self._lines.partitions.known, self._durable.sinks, tuple(self._tokens if at_end else ()),
                self._watermarks.micros, self._watermarks.told, self._durable.sources,
                self._roster.members.ids,
            )
        )
        return Checkpoint(number, since, at_end)

    # What workers and the launcher say

    def learn(self, source: int, report: Report | TokensLeft, out: list[Instruction], now: float) -> None:
        """Take in a worker's report; one of a checkpoint that is not under way is ignored."""
        one = self._under_way
        if isinstance(report, TokensLeft):
            self._tokens += [token for token in report.tokens if token not in self._in_last]
            return
        if one is None or one.number != report.checkpoint or one.ready:
            return
        if (reason := one.learn(source, report)) is not None:
            self._abandon(reason, out, now)

    def joined(self, ids: Iterable[int], out: list[Instruction]) -> None:
        """Note that workers have joined: their sinks may get what the one under way is to have, and wait for a word."""
        if self._durable is None or not self._durable.sinks:
            return
        one = self._under_way if self._under_way is not None and not self._under_way.ready else None
        word = UnderWayAtJoin(0, None, None) if one is None else UnderWayAtJoin(one.epoch, one.number, self._since)
        for worker in ids:
            out.append(Mail(worker, word))
            if one is not None:
                one.sinks.add(worker)

    def left(self, ids: Iterable[int], out: list[Instruction], now: float) -> None:
        """Note that workers have left."""
        one = self._under_way
        if one is not None and (gone := one.missing(ids)):
            self._abandon(f"{workers_text(gone)} left before it was written", out, now)

    def _abandon(self, reason: str, out: list[Instruction], now: float) -> None:
        one = self._under_way
        assert one is not None
        out.append(CheckpointAbandoned(one.number, reason))
        self._fail(reason, out, now)

    def answered(self, answer: Committed | CommitFailed, out: list[Instruction], now: float) -> None:
        """Take in what has come of the one that the launcher was to commit."""
        one = self._under_way
        assert one is not None and one.number == answer.checkpoint and one.ready, answer
        assert self._durable is not None
        if isinstance(answer, CommitFailed):
            self._fail(answer.reason, out, now)
            return
        self._under_way = None
        self._since, self.stopped = one.number, one.last
        self._commits.kept(one.spark)
        self._wait = self._wait_after(one)
        self._due = now + max(self._wait, PACE * one.seconds)
        files = (*one.segments, *(each.segment for each in one.untaken))
        size = sum(segment.length for segment in files)
        self._kept = CheckpointStatus(one.number, one.epoch, 0.0, size, now - one.begun)
        self._committed_at, self._failing_since = now, None
        self._tokens, self._in_last = [token for token in self._tokens if token not in one.tokens_left], one.tokens
        first = min(self._roster.members.ids)
        for worker in self._roster.members.ids:
            out.append(Mail(worker, Committed(answer.checkpoint, (), one.adopted if worker == first else ())))
        for asked in one.asked:
            why = dict(answer.refused).get(name_of(asked) or "")
            out.append(done(asked, self._kept) if why is None else Reply(asked.client, Refused(asked.request.id, why)))

    def _wait_after(self, one: UnderWay) -> float:
        """Return how long the next one waits for after this: longer and longer while there is nothing new."""
        assert self._durable is not None
        every = self._durable.every_seconds
        left: list[Split | Portion] = [*one.splits, *one.portions]
        left.sort(key=lambda each: each.number)
        is_new = bool(one.segments or one.untaken or one.tokens) or left != self._left
        self._left = left
        return every if is_new else max(every, min(2 * self._wait, IDLE_SECONDS_MAX))

    def _fail(self, reason: str, out: list[Instruction], now: float) -> None:
        one, self._under_way = self._under_way, None
        assert one is not None and self._durable is not None
        self._due = now + self._durable.every_seconds
        self._failing_since = now if self._failing_since is None else self._failing_since
        self._kept = replace(self._kept, reason=reason)
        why = f"checkpoint {one.number} failed: {reason}; the last committed checkpoint stays valid"
        out += [Reply(asked.client, Refused(asked.request.id, why)) for asked in one.asked]

    # What others are to know

    def status(self, now: float) -> CheckpointStatus | None:
        """Return what a status shows; None if nothing is durable."""
        if self._durable is None:
            return None
        age = 0.0 if self._committed_at is None or self._kept.number is None else now - self._committed_at
        failing = None if self._failing_since is None else now - self._failing_since
        return replace(self._kept, age_seconds=age, under_way=self.under_way, failing_seconds=failing)

    def state(self, now: float) -> CheckpointState | None:
        """Return what whoever goes on with this must know; none is under way."""
        assert not self.under_way
        status = self.status(now)
        assert status is not None or self._durable is None
        if status is None:
            return None
        return CheckpointState(self._number, self._since, self._next_worker, status, tuple(self._tokens))

    def resume(self, state: CheckpointState | None) -> None:
        """Go on from there."""
        if state is not None:
            self._number, self._since, self._next_worker = state.next, state.since, state.next_worker
            self._kept, self._tokens = state.status, list(state.tokens)

    def _check(self) -> None:
        one = self._under_way
        assert self._durable is not None or (one is None and not self._asked)
        assert self._since is None or self._since < self._number
        if one is not None:
            assert one.number < self._number and one.epoch < self._stream.epoch
            one._check()
