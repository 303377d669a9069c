"""Which lines of a job are still to be read, and who is given the splits; Spark's lines are in `spark_commits`.

1. Each split that is not read is in one place: in the pool, or held by a worker, from the command that gives it on
   until a report says that it is read or handed back. So nobody is given what somebody else may still read.
2. A reader has one that it reads and at least one more, HELD_BYTES if they are small: the report that it has read one
   comes before it runs dry, and is how it asks for more. The rest stays in the pool, for whoever is fastest.
3. If the pool is empty and a reader has at most one while another has at least two more, half of the difference is
   taken back (`RevokeSplits`), the last it was given first: what it has read of them stays, the rest comes to the pool
   (`SplitsRevoked`) with its position and goes to whoever lacks some. So a process that has joined gets its share, and
   one that is slow does not keep what others could read. Each revocation makes the sum of the squares of what readers
   have smaller, so there is an end to them.
4. A worker has one revocation under way at most, so its next `SplitsRevoked` is the answer. One that is told to close
   hands back all (`Withdraw`) and is given nothing; what was revoked before comes before.
5. A source reads and reports in the order of commands, so what holds for `Withdraw` holds for `RevokeSplits`: who reads
   on begins at a later epoch than any line before, see rule 6 of `megaflow.job.worker.source_operator`.
6. For a checkpoint at t the splits are: the pool when it is issued; what sources report when they obey it; and what
   comes back of revocations that were issued before, and had not come back then. See `checkpoints`.
7. No part is handed over while a revocation is under way, and nothing is given or revoked while the hand-over waits for
   rest alone. The next coordinator gets the pool and who holds what; reports that are under way reach it.
8. What a source hands back is given to others, which there are: no process may leave that has the only open sources
   while lines are to come (`check_leave`).
9. The launcher's lines are read by one worker at a time, in the coordinator's process. When that has taken the last one
   that came there, the next coordinator tells its own worker to go on.
10. The files of an input that is `ordered` are given in the order of their names. So one that has not begun has nothing
   that is earlier than the first record of any before it, and event time need not wait for it; see `watermarks`.
11. Those who hold splits read `--rate` in equal parts, and are told when these are others than before.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from megaflow.control.coordinator.epoch_clock import CommandStream
from megaflow.control.coordinator.events import Instruction
from megaflow.control.coordinator.job_state import Durable, LinesState
from megaflow.control.coordinator.partitions import Partitions
from megaflow.control.coordinator.roster import Roster
from megaflow.control.coordinator.split_pool import SplitPool, size_of
from megaflow.control.messages import PushedEnded, ReadPushed, Split
from megaflow.control.reading_messages import (
    AssignSplits,
    PortionsRevoked,
    RevokeSplits,
    ShareRate,
    SplitRead,
    SplitsReturned,
    SplitsRevoked,
)
from megaflow.errors import CommandRefused
from megaflow.timely.membership import WorkerId

Reading: TypeAlias = SplitRead | SplitsRevoked | SplitsReturned | PortionsRevoked | PushedEnded
"""What sources report of these lines."""

HELD_MIN: Final = 2  # splits: one is read, one is next
HELD_BYTES: int = 1 << 20  # some 20 ms of reading: more than it takes to be given others


class LinesToRead:
    """The splits and pushed lines of one job. One writer: the controller."""

    def __init__(
        self, roster: Roster, stream: CommandStream, splits: Sequence[Split], pushed: bool, rated: bool = False,
        sources: Iterable[str] = (), durable: Durable | None = None, ordered: Collection[str] = (),
    ) -> None:  # fmt: skip
        """`pushed`: the launcher sends lines; `rated`: there is a rate; `ordered`: inputs whose files come in an order.

        The rest is as `Partitions` takes it.
        """
        self.ordered = frozenset(ordered)
        self._begun: dict[int, tuple[WorkerId, Split]] = {}  # number -> who was given it from its beginning; of these
        self._roster = roster
        self._stream = stream
        self._pool = SplitPool(splits, self.ordered)
        self._held: dict[WorkerId, dict[int, Split]] = {}  # worker -> number -> split, in the order of reading
        self._revoked: dict[WorkerId, tuple[int, ...]] = {}  # worker -> numbers that it was told to hand back
        self._rated = rated
        self._sharers: tuple[WorkerId, ...] = ()  # of the rate, as all were told last
        self._cut: list[Split] = []  # of the checkpoint that was issued last: what no source reports of it
        self._owed: set[WorkerId] = set()  # who have still to hand back what is part of it
        self.pushed = pushed  # the launcher has more lines
        self.partitions = Partitions(roster, stream, sources, durable)
        self._reads_pushed = True  # somebody was told to read them

    @property
    def over(self) -> bool:
        """Whether all are read."""
        return self.partitions.over and not (self._pool or any(self._held.values()) or self.pushed)

    @property
    def at_rest(self) -> bool:
        """Whether no source is to hand back splits, and nobody is yet to be told to read the launcher's lines."""
        return self.partitions.at_rest and not self._revoked and (self._reads_pushed or not self.pushed)

    def begin_cut(self) -> None:
        """Note what no source reports of the checkpoint that is issued now: see rule 6."""
        self._cut, self._owed = list(self._pool.splits), set(self._revoked)
        self.partitions.begin_cut()

    @property
    def cut(self) -> list[Split]:
        """What was in the pool then, or has come back since; to be asked when all sources have reported."""
        assert not self._owed, f"workers {sorted(self._owed)} have reported before they handed back"
        return self._cut

    def state(self) -> LinesState:
        """Return what whoever goes on with this must know; all is at rest."""
        held = tuple((worker, tuple(some.values())) for worker, some in sorted(self._held.items()) if some)
        order = tuple(sorted(self.ordered)), tuple(self._begun.values())
        return LinesState(self._pool.splits, held, self._sharers, self.pushed, self.partitions.state(), *order)

    def resume(self, state: LinesState) -> None:
        """Go on where another controller has stopped."""
        self.ordered = frozenset(state.ordered)
        self._begun = {split.number: (worker, split) for worker, split in state.begun}
        self._pool = SplitPool(state.pool, self.ordered)
        self._held = {worker: {split.number: split for split in some} for worker, some in state.held}
        self._sharers, self.pushed, self._reads_pushed = state.sharers, state.pushed, False
        self.partitions.resume(state.partitions)

    @property
    def unread(self) -> Iterator[tuple[Split, WorkerId | None]]:
        """The splits that are not read to their ends, and who was given them; None, behind all others: nobody."""
        for worker, some in self._held.items():
            for split in some.values():
                yield split, worker
        for split in self._pool:
            yield split, None

    def begun(self, number: int, worker: WorkerId) -> Split | None:
        """Return a file of an input that is read in an order, if it is this worker that was given its beginning."""
        given, split = self._begun.get(number, (None, None))
        return split if given == worker else None

    def learn(self, source: WorkerId, report: Reading, ended: bool, out: list[Instruction], now: float) -> None:
        """Take in what a source reports; nobody is told to read anything if the job has `ended`."""
        self.partitions.learn(report, ended, out, now)
        held = self._held.get(source, {})
        match report:
            case SplitRead(number):
                held.pop(number, None)
            case PushedEnded(elsewhere, places, maxima):
                self.pushed, self._reads_pushed = elsewhere, True
                if self.pushed and not ended:
                    self._stream.issue([ReadPushed(self._roster.pushed_to, places, maxima)], out, now)
            case SplitsRevoked(splits):
                for number in self._revoked.pop(source):
                    held.pop(number, None)
                self._pool.put(splits)
                if source in self._owed:
                    self._owed.discard(source)
                    self._cut += splits
            case SplitsReturned(splits, _):
                assert source not in self._revoked, f"worker {source} has closed its source before it handed back"
                self._roster.closed(source)
                held.clear()
                self._pool.put(splits)

    def go_on(self, out: list[Instruction], now: float) -> None:
        """Give what can be given by now, and have handed back what others lack; to be called after each event."""
        self.partitions.go_on(out, now)
        readers = self._roster.readers
        lacking = [worker for worker in readers if self._lacks(worker)]
        commands: list[Any] = []
        if lacking and self._pool:
            if given := self._give(readers, lacking):
                commands.append(AssignSplits(given))
        elif lacking and (revoked := self._choose(readers, lacking)):
            self._revoked |= revoked
            commands.append(RevokeSplits(revoked))
        sharers = tuple(sorted(worker for worker, some in self._held.items() if some))
        if self._rated and sharers and sharers != self._sharers:
            self._sharers = sharers
            commands.append(ShareRate(sharers))
        if commands:
            self._stream.issue(commands, out, now)

    def _lacks(self, worker: WorkerId) -> bool:
        """Tell whether a worker may soon run dry."""
        held = self._held.get(worker, {})
        return len(held) < HELD_MIN or 2 * sum(map(size_of, held.values())) < HELD_BYTES

    def _give(self, readers: Sequence[WorkerId], lacking: Sequence[WorkerId]) -> dict[WorkerId, tuple[Split, ...]]:
        """Take splits from the pool, for each in turn until none lacks any that it is to have."""
        loads = {worker: sum(map(size_of, self._held.get(worker, {}).values())) for worker in readers}
        given: dict[WorkerId, list[Split]] = {}
        hungry = sorted(lacking, key=lambda worker: (len(self._held.get(worker, ())), worker))
        while hungry:
            for worker in list(hungry):
                split = self._pool.take(worker, loads)
                if split is None:
                    hungry.remove(worker)
                    continue
                held = self._held.setdefault(worker, {})
                held[split.number] = split
                if split.input in self.ordered and not (split.start or split.skip):
                    self._begun[split.number] = worker, split
                loads[worker] += size_of(split)
                given.setdefault(worker, []).append(split)
                if len(held) >= HELD_MIN and loads[worker] >= HELD_BYTES:
                    hungry.remove(worker)
        return {worker: tuple(some) for worker, some in sorted(given.items())}

    def _choose(self, readers: Sequence[WorkerId], lacking: Sequence[WorkerId]) -> dict[WorkerId, tuple[int, ...]]:
        """Return what is to be taken back, and from whom, for those who have one split at most: see rule 3."""
        counts = {worker: len(self._held.get(worker, ())) for worker in readers}
        poor = sorted((worker for worker in lacking if counts[worker] < HELD_MIN), key=counts.__getitem__)
        rich = sorted((worker for worker in readers if worker not in self._revoked), key=lambda each: -counts[each])
        chosen = {}
        for to, source in zip(poor[len(self._revoked) :], rich):
            if surplus := max(0, counts[source] - counts[to]) // 2:
                chosen[source] = tuple(self._held[source])[-surplus:]
        return chosen

    def check_leave(self, ids: Sequence[WorkerId], commits_over: bool) -> None:
        """Raise CommandRefused if nobody would read the lines that are left, once these workers are gone."""
        roster = self._roster
        if roster.members.coordinator in ids and self.pushed and roster.successor not in roster.readers:
            raise CommandRefused(
                f"worker {roster.successor} would have to read the launcher's lines (standard input or an iterable), "
                "but has closed its source: stop the job instead"
            )
        if not (self.over and commits_over) and set(ids).issuperset(roster.readers):
            raise CommandRefused(
                "no remaining worker could read the lines that are left: add a process and try again when its "
                "workers are ready for bins, or stop the job"
            )

    def _check(self) -> None:
        places = [split.number for split in self._pool.splits]
        places += [number for some in self._held.values() for number in some]
        assert len(places) == len(set(places)), f"a split is in two places: {sorted(places)}"
        assert self._revoked.keys() <= self._held.keys()
