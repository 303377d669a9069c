"""Lines of a job that are still to be read, and the assignment of splits to readers.

Spark's lines are in `spark_commits`.

1. Each unread split is in exactly one place: in the pool, or with one worker. A worker holds a split from the command
   that gives it until a report that it is read or handed back. So no worker gets a split that another may still read.
2. A reader holds of each input the split that it reads and at least one more, and at least HELD_BYTES. Its report of a
   split that it has read asks for more, so it asks before it runs dry. So it can read its inputs interleaved
   (`megaflow.job.worker.reading.reading_turns`). The rest stays in the pool, for the fastest readers.
3. If the pool is empty, and one reader has at most one split while another has at least two more, the coordinator takes
   back half of the difference (`RevokeSplits`). It begins with the splits that it gave last. The first split of each
   input comes at the end, because the reader may have begun it. Lines that are read stay read, and the rest returns to
   the pool (`SplitsRevoked`) with its position, for a reader that lacks splits. So a process that has joined gets its
   share, and a slow one does not keep what others could read. No split is taken back for a reader that has at least as
   many bytes as the other would keep, because the pool would give it to the other again. Each revocation makes the sum
   of the squares of what readers have smaller, so revocations come to an end.
4. A worker has at most one revocation under way, so its next `SplitsRevoked` is the answer. A worker that must close
   its source (`Withdraw`) hands back everything and receives nothing. It answers an earlier revocation first.
5. A source reads and reports in the order of commands. So the rule for `Withdraw` also holds for `RevokeSplits`: the
   next reader begins at a later epoch than any earlier line, see rule 6 of
   `megaflow.job.worker.reading.source_operator`.
6. A checkpoint at t has these splits: the pool when it is issued, the reports of sources when they obey it, and the
   answers to revocations that were issued before t but not yet answered. See `checkpoints`.
7. The coordinator's part is not handed over while a revocation is under way. No split is given or revoked while the
   hand-over waits only for rest. The next coordinator receives the pool and the holder of each split, and reports that
   are still on their way reach it.
8. Splits that a source hands back go to other readers. There always are some, because no process may leave with the
   only open sources while lines are to come (`check_leave`).
9. One worker at a time reads the launcher's lines, in the coordinator's process. After a hand-over, that worker first
   takes the last line that arrived in its process. Then the next coordinator commands its own worker to continue.
10. Files of an `ordered` input are given in the order of their names. So a file that has not begun has no record that
   is earlier than the first record of any file before it. Event time need not wait for it; see `watermarks`.
11. The workers that hold splits share `--rate` equally. When that set changes, a command reports the new one.
12. A worker may be unable to open the file of a split (`PartitionMissing`): its machine does not show the file, or the
   process may not read it. The split is then revoked and given at once to a worker of a process that has not tried it.
   Each process gets it once, because rule 3 spares it. So this comes to an end. The last holder must then open the file
   (`StayWithPartition`). If it cannot, the job fails. If that holder leaves instead, another one tries again. All the
   time the split is unread, so it holds back event time.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from megaflow.control import reading_messages
from megaflow.control.coordinator.base.epoch_clock import CommandStream
from megaflow.control.coordinator.base.job_state import Durable, LinesState, PartitionsState
from megaflow.control.coordinator.base.roster import Roster
from megaflow.control.coordinator.reading.partitions import Partitions
from megaflow.control.coordinator.reading.split_pool import SplitPool, size_of
from megaflow.control.messages import PushedEnded, ReadPushed, Split, SplitEnd
from megaflow.errors import CommandRefused
from megaflow.timely.membership import WorkerId

Reading: TypeAlias = reading_messages.PartReport | PushedEnded
"""Sources' reports on these lines."""

HELD_MIN: Final = 2  # splits of an input: the present one and the next
HELD_BYTES: int = 1 << 20  # of an input; about 20 ms of reading, which is longer than it takes to get others


class Stock:
    """The splits that a worker holds of each input, counted."""

    def __init__(self, splits: Iterable[Split]) -> None:
        self.sizes = Counter[str]()  # input -> bytes
        self._counts = Counter[str]()  # input -> splits
        for each in splits:
            self.add(each)

    def add(self, split: Split) -> None:
        """Count one more split."""
        self.sizes[split.input] += size_of(split)
        self._counts[split.input] += 1

    def lacks(self, input: str) -> bool:
        """Tell whether the worker may soon run dry of an input."""
        return self._counts[input] < HELD_MIN or 2 * self.sizes[input] < HELD_BYTES

    def is_short(self, input: str) -> bool:
        """Tell whether the worker gets more of an input when splits are given."""
        return self._counts[input] < HELD_MIN or self.sizes[input] < HELD_BYTES


class LinesToRead:
    """The splits and pushed lines of one job. One writer: the controller."""

    def __init__(
        self, roster: Roster, stream: CommandStream, splits: Sequence[Split], pushed: bool, rated: bool = False,
        sources: Iterable[str] = (), durable: Durable | None = None, ordered: Collection[str] = (),
    ) -> None:  # fmt: skip
        """`pushed`: the launcher sends lines. `rated`: there is a rate. `ordered`: inputs with files in an order.

        `sources` and `durable` are as for `Partitions`.
        """
        self.state = LinesState(frozenset(ordered), pushed)
        self._roster = roster
        self._stream = stream
        self.pool = SplitPool(splits, self.state.ordered)
        self._revoked: dict[WorkerId, tuple[int, ...]] = {}  # worker -> numbers that it must hand back
        self._rated = rated
        self._cut: list[Split] = []  # splits of the checkpoint issued last that no source reports
        self._owed: set[WorkerId] = set()  # workers that must still hand back splits of that checkpoint
        self.partitions = Partitions(roster, stream, sources, durable)
        self._reads_pushed = True  # a worker has the command to read them

    @property
    def over(self) -> bool:
        """Whether all lines are read."""
        return not (any(self.state.held.values()) or self.state.pushed or self.pool) and self.partitions.over

    @property
    def at_rest(self) -> bool:
        """Whether no source must hand back splits, and no command to read the launcher's lines is pending."""
        return not (self.partitions.revoked or self._revoked) and (self._reads_pushed or not self.state.pushed)

    def begin_cut(self) -> None:
        """Record the splits of the checkpoint issued now that no source will report: see rule 6."""
        self._cut, self._owed = list(self.pool.splits), set(self._revoked)
        self.partitions.begin_cut()

    @property
    def cut(self) -> list[Split]:
        """Splits in the pool at `begin_cut` or handed back since. Valid once all sources have reported."""
        assert not self._owed, f"workers {sorted(self._owed)} have reported before they handed back"
        return self._cut

    @property
    def read(self) -> tuple[tuple[int, SplitEnd], ...]:
        """Number and end of each split that was read to its end and that no checkpoint has yet."""
        return tuple(self.state.read.items())

    def committed(self, read: Iterable[tuple[int, SplitEnd]]) -> None:
        """Record that a checkpoint has these ends."""
        for number, _ in read:
            self.state.read.pop(number, None)

    def resume(self, state: LinesState, pool: Iterable[Split], partitions: PartitionsState) -> None:
        """Continue from the state of the previous coordinator."""
        self.state, self.pool, self._reads_pushed = state, SplitPool(pool, state.ordered), False
        self.partitions.resume(partitions)

    @property
    def unread(self) -> Iterator[tuple[Split, WorkerId | None]]:
        """Each split that is not read to its end, with its holder. Splits without a holder (None) come last."""
        for worker, some in self.state.held.items():
            for split in some.values():
                yield split, worker
        for split in self.pool:
            yield split, None

    def begun(self, number: int, worker: WorkerId) -> Split | None:
        """Return a file of an ordered input if this worker received it from its beginning; else None."""
        given, split = self.state.begun.get(number, (None, None))
        return split if given == worker else None

    def learn(self, source: WorkerId, report: Reading, ended: bool) -> None:
        """Record a source's report. If the job has `ended`, no command to read is issued."""
        if self.partitions.state.holders or isinstance(report, reading_messages.PartitionsRevoked):
            self.partitions.learn(report, ended, source)
        held = self.state.held.get(source, {})
        match report:
            case reading_messages.PartitionMissing(number) if number in held:
                self.state.missing.setdefault(number, set()).update(self._roster.process_of(source))
                self.state.refused[number] = source
            case reading_messages.SplitRead(number, _, end):
                held.pop(number, None)
                self.state.missing.pop(number, None)
                if end is not None:
                    self.state.read[number] = end
            case PushedEnded(elsewhere, places, maxima):
                self.state.pushed, self._reads_pushed = elsewhere, True
                if self.state.pushed and not ended:
                    self._stream.issue(ReadPushed(self._roster.pushed_to, places, maxima))
            case reading_messages.SplitsRevoked(splits):
                for number in self._revoked.pop(source):
                    held.pop(number, None)
                self._put_back(splits)
                if source in self._owed:
                    self._owed.discard(source)
                    self._cut += splits
            case reading_messages.SplitsReturned(splits, _, taken):
                assert source not in self._revoked, f"worker {source} has closed its source before it handed back"
                self._roster.closed(source)
                self.state.held.pop(source, None)
                self._put_back(splits)
                self._note_taken(source, taken)

    def taken_before(self, present: Collection[WorkerId]) -> dict[str, int]:
        """Return how many lines of each input were read by other workers than these, whose sources have closed."""
        return dict(sum((Counter(each) for id, each in self.state.taken.items() if id not in present), Counter[str]()))

    def _note_taken(self, source: WorkerId, taken: Mapping[str, int]) -> None:
        """Keep what a closed source has read. Add up the counts of workers that have left, so that they stay few."""
        members = self._roster.members.workers
        if before := self.taken_before(members):
            self.state.taken = {id: each for id, each in self.state.taken.items() if id in members} | {-1: before}
        if taken:
            self.state.taken[source] = {**taken}

    def _put_back(self, splits: Sequence[Split]) -> None:
        self.pool.put(splits)
        self.state.refused.update((split.number, None) for split in splits if split.number in self.state.missing)

    def go_on(self) -> None:
        """Give splits to readers that need them, or revoke splits that others lack; called after each event."""
        if self.partitions.state.holders:
            self.partitions.go_on()
        readers = self._roster.readers
        commands: list[Any] = self._pass_on(readers) if self.state.refused else []
        if self.pool:
            if given := self._give(readers):
                commands.append(reading_messages.AssignSplits(given))
        elif revoked := self._choose(readers):
            self._revoked |= revoked
            commands.append(reading_messages.RevokeSplits(revoked))
        sharers = tuple(sorted(worker for worker, some in self.state.held.items() if some))
        if self._rated and sharers and sharers != self.state.sharers:
            self.state.sharers = sharers
            commands.append(reading_messages.ShareRate(sharers))
        if commands:
            self._stream.issue(*commands)

    def _pass_on(self, readers: Sequence[WorkerId]) -> list[Any]:
        """Return the commands that bring splits to processes that may open them: see rule 12."""
        commands: list[Any] = []
        revoked: dict[WorkerId, tuple[int, ...]] = {}
        given: dict[WorkerId, tuple[Split, ...]] = {}
        for number, holder in [*self.state.refused.items()] if readers else ():
            tried = self.state.missing[number]
            if holder is None:
                worker = min(readers, key=lambda each: (each in tried, self._load(each), each))
                split = self.pool.pull(number)
                self._hand(worker, split)
                given[worker] = (*given.get(worker, ()), split)
            elif holder in self._revoked:
                continue  # until it has answered
            elif tried.issuperset(readers):
                commands.append(reading_messages.StayWithPartition(holder, number))
            else:
                revoked[holder] = (*revoked.get(holder, ()), number)
            del self.state.refused[number]
        self._revoked |= revoked
        commands += [reading_messages.RevokeSplits(revoked)] if revoked else []
        return [*commands, reading_messages.AssignSplits(given)] if given else commands

    def _hand(self, worker: WorkerId, split: Split) -> None:
        """Note that a worker gets a split."""
        self.state.held.setdefault(worker, {})[split.number] = split
        if split.input in self.state.ordered and not (split.start or split.skip):
            self.state.begun[split.number] = worker, split

    def _give(self, readers: Sequence[WorkerId]) -> dict[WorkerId, tuple[Split, ...]]:
        """Take splits from the pool, for one worker after another, until each has what it needs."""
        stocks = {worker: Stock(self.state.held.get(worker, {}).values()) for worker in readers}
        loads = {worker: sum(stock.sizes.values()) for worker, stock in stocks.items()}
        given: dict[WorkerId, list[Split]] = {}
        hungry = [worker for worker in readers if any(stocks[worker].lacks(input) for input in self.pool.inputs)]
        hungry.sort(key=lambda worker: (len(self.state.held.get(worker, ())), worker))
        while hungry:
            for worker in list(hungry):
                split = self.pool.take(worker, loads, stocks[worker].is_short)
                if split is None:
                    hungry.remove(worker)
                    continue
                self._hand(worker, split)
                loads[worker] += size_of(split)
                stocks[worker].add(split)
                given.setdefault(worker, []).append(split)
        return {worker: tuple(some) for worker, some in sorted(given.items())}

    def _choose(self, readers: Sequence[WorkerId]) -> dict[WorkerId, tuple[int, ...]]:
        """Return the splits to take back from each worker, for readers with at most one split: see rule 3."""
        counts = {worker: len(self.state.held.get(worker, ())) for worker in readers}
        poor = sorted((worker for worker in readers if counts[worker] < HELD_MIN), key=counts.__getitem__)
        rich = sorted((worker for worker in readers if worker not in self._revoked), key=lambda each: -counts[each])
        chosen = {}
        for to, source in zip(poor[len(self._revoked) :], rich):
            surplus = max(0, counts[source] - counts[to]) // 2
            if surplus and (load := self._load(to)) < (most := self._load(source)):
                spared = self._spared(source, surplus)
                if spared and load < most - sum(size_of(self.state.held[source][number]) for number in spared):
                    chosen[source] = spared
        return chosen

    def _load(self, worker: WorkerId) -> int:
        """Return the bytes that a worker still has to read."""
        return sum(map(size_of, self.state.held.get(worker, {}).values()))

    def _spared(self, worker: WorkerId, count: int) -> tuple[int, ...]:
        """Return the splits to take back from a worker, in the order in which it holds them, none by rule 12."""
        held = self.state.held[worker]
        firsts = {split.input: number for number, split in reversed(held.items())}
        latest = [*held][::-1]
        spared = {*sorted(latest, key=lambda number: firsts[held[number].input] == number)[:count]}
        return tuple(number for number in held if number in spared and number not in self.state.missing)

    def check_leave(self, ids: Sequence[WorkerId], commits_over: bool) -> None:
        """Raise CommandRefused if no worker could read the remaining lines after these workers have left."""
        roster = self._roster
        if roster.members.coordinator in ids and self.state.pushed and roster.successor not in roster.readers:
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
        places = [split.number for split in self.pool.splits]
        places += [number for some in self.state.held.values() for number in some]
        assert len(places) == len(set(places)), f"a split is in two places: {sorted(places)}"
        assert self._revoked.keys() <= self.state.held.keys()
        assert self.state.refused.keys() <= self.state.missing.keys() <= {*places}
