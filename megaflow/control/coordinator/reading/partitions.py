"""Partitions of a job's sources: the known ones, the unread ones, and their readers.

The coordinator's process asks sources for partitions (`megaflow.job.worker.process.discovery`). The launcher cannot,
because it imports nothing of the program: only workers call the dataflow function, which makes the sources. New
partitions arrive here as values and go to workers by command. So a coordinator that takes over needs only these values.

1. A known partition is given out once, however often a source names it. Equal partitions have equal bytes here;
   `discovery` sees to that. Partitions that are wholly read stay known, also in checkpoints and after a hand-over,
   except by rules 7 and 10.
2. One worker holds a partition until it reports the end or returns the partition: `source_operator`, rule 6.
3. If a partition was known when a checkpoint began and nothing is left of it at the checkpoint's time, it was wholly
   read before that. There is no other possibility, because a worker that holds a partition at that time reports it.
4. The job continues until each source has said that it will name no others, and all partitions are read. A coordinator
   that takes over asks the remaining sources again.
5. Partitions have negative numbers; splits have the others.
6. If a reader has at least two partitions more than another, half of the difference is taken back, beginning with those
   that were found last. They go to the readers with the fewest, so a process that has joined gets its share. One
   revocation is under way at a time, and each makes the sum of the squares of the readers' counts smaller. If a
   partition was revoked before a checkpoint was issued and comes back after it, no source reports it for that
   checkpoint: `cut` has it. See `lines_to_read`, rules 5 to 7.
7. Some sources name all their partitions each time (`Found.complete`). If such a source omits a partition that is
   wholly read, the partition is forgotten, because the source will never name it again. Each answer was requested after
   all partitions known here were found: a source is asked once at a time, and a successor asks anew. So an omitted
   partition is not one that was still to appear. A checkpoint that began earlier has it as read, or has the rest of it.
   A checkpoint that begins later does not know it, but has the effects of all its records, because it was wholly read
   before (rule 3). So resuming from either checkpoint has the same result, and forgetting waits for no checkpoint.
   The last partition that was found of each source stays, for its number. All new numbers lie below the least known
   one, and messages about an ended partition that are still under way must not meet another one with its number. By the
   last partition a store also shows which sources its job reads. The position at which it ended is forgotten.
8. A partition that has ended but may continue (`Exhausted.resumable`) is known with its end and with the run that read
   it so far. When its source names it in a later run, that run gives it out from this end, under its old number; no
   other part knows that number by then. A recovery belongs to the same run, and leaves the partition alone. A worker
   reports an end before its positions at a later checkpoint. So when a checkpoint is complete, `ended` has the ends
   that were under way when it began.
9. A worker may not find a partition, such as a file on a machine that does not mount its folder, or may be unable to
   open it (`PartitionMissing`). The partition is then revoked and given to a worker of another process, and so on. Each
   process gets it once, unless it has seen the partition meanwhile, because rule 6 also spares it. So this comes to an
   end. A worker that gets it again, because others have left, reports anew what it finds. If no process can open it,
   its holder keeps trying, until a process joins that has not tried. Meanwhile the holder does not report it as idle,
   so it holds back event time. There is one exception: no process finds it. It may be gone for good, so event time does
   not wait for it any longer.
10. A partition that is `Gone` is known as ended ANEW. If its source names it after that, it is another partition: it
   gets a new number and is read from its beginning. An answer that was requested before the end was learned may still
   mean the old one. So the first answer after the end does not count, as a source is asked once at a time. A successor
   needs no note of that, because it asks anew. If a complete answer omits the partition, rule 7 forgets it. If it is
   the last one of its source it stays ANEW, also in checkpoints, so that after a resume its name is not taken for read.
11. A process may find another partition in the place of the right one, such as another file with the same inode. A
   reader recognizes that by the position or, if nothing was read yet, by what the source said when it found the
   partition (`Discovered.sights`). It cannot tell whether the partition has changed since, for example was truncated.
   The coordinator's process decides that, because its source has found the partition. So it is tried after a process
   that `differs`, even if it has tried before. At the start of an attempt nothing is compared: processes of other
   machines have compared all inputs (`megaflow.job.worker.process.inputs_check`), and files may have changed between
   two runs.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import replace

from megaflow.control import reading_messages
from megaflow.control.coordinator.base.epoch_clock import CommandStream
from megaflow.control.coordinator.base.events import Discovered
from megaflow.control.coordinator.base.job_state import Durable, PartitionsState
from megaflow.control.coordinator.base.roster import Roster
from megaflow.control.reports import MissingPartition
from megaflow.durable.commits import ANEW, SourcePartition
from megaflow.timely.membership import WorkerId


class Partitions:
    """The partitions of one job. One writer: the controller."""

    def __init__(
        self, roster: Roster, stream: CommandStream, sources: Iterable[str], durable: Durable | None = None
    ) -> None:
        """`sources`: names of the sources that the program reads. `durable`: the checkpoint to resume from."""
        self._roster = roster
        self._stream = stream
        self.state = PartitionsState({*sources}, {*sources}, {}, {}, {}, {}, {}, {})
        self._run = 0 if durable is None else durable.run
        self._numbers: dict[int, SourcePartition] = {}  # the known ones, by their numbers
        self._next = -1  # the number of the next partition
        self.revoked: tuple[int, ...] = ()  # that a worker must still hand back
        self._owed = False  # whether these are part of the checkpoint that was issued last
        self.cut: tuple[SourcePartition, ...] = ()  # handed back since, part of that checkpoint: no source reports them
        self.ended: tuple[SourcePartition, ...] = ()  # ends reported since that checkpoint was issued
        self._unsettled: set[int] = set()  # ended ANEW since the last answer of their source
        self._left = () if durable is None else durable.partitions  # to be given out at the start
        self._is_news = True  # whether to look for other readers of missing partitions; else it was done for `_asked`
        self._asked: tuple[WorkerId, ...] = ()
        for partition in (*self._left, *(() if durable is None else durable.finished)):
            self._know(partition)
        self.state.holders.update((partition.number, None) for partition in self._left)

    @property
    def over(self) -> bool:
        """Whether all partitions are read and no source will find others."""
        return not (self.state.asked or self.state.holders)

    @property
    def unread(self) -> Iterator[tuple[SourcePartition, WorkerId | None]]:
        """Each partition that is not read to its end, without position, and its holder; None: it has none."""
        return ((self._numbers[number], worker) for number, worker in self.state.holders.items())

    @property
    def unopened(self) -> tuple[MissingPartition, ...]:
        """The partitions with unread bytes that their holders cannot open. A report of the holder is the newest."""
        found = []
        for number, told in sorted(self.state.missing.items(), reverse=True):
            holder = self.state.holders[number]
            if holder is None or holder not in told or told[holder].unread == 0:
                continue
            reports = [told[holder], *told.values()]
            unread = next((each.unread for each in reports if each.unread is not None), None)
            why = "; ".join(dict.fromkeys(each.why for each in reports))
            found.append(MissingPartition(self._numbers[number].input, why, holder, tuple(sorted(told)), unread))
        return tuple(found)

    @property
    def known(self) -> tuple[SourcePartition, ...]:
        """All known partitions in the order in which they became known, without positions except the ends of rule 8."""
        return tuple(self.state.known.values())

    def go_on(self) -> None:
        """Give out partitions that a checkpoint has left, and balance the readers; called after each event."""
        self._give(self._left, at_start=True)
        self._left = ()
        readers = self._roster.readers
        if self.state.missing and (self._is_news or readers != self._asked):
            self._look_elsewhere(readers)
        if self.revoked or len(readers) < 2:
            return
        loads = self._loads(readers)
        poor, rich = min(readers, key=loads.__getitem__), max(readers, key=loads.__getitem__)
        if surplus := (loads[rich] - loads[poor]) // 2:
            held = sorted(number for number, worker in self.state.holders.items() if worker == rich)
            self._revoke(rich, [number for number in held if poor not in self.state.missing.get(number, ())][:surplus])

    def _revoke(self, worker: WorkerId, numbers: Iterable[int]) -> None:
        """Take back partitions from a worker, if there are any."""
        self.revoked = tuple(numbers)
        if self.revoked:
            self._stream.issue(reading_messages.RevokePartitions(worker, self.revoked))

    def _look_elsewhere(self, readers: tuple[WorkerId, ...]) -> None:
        """Take back a partition that its holder does not find, or make the holder stay with it: see rule 9."""
        self._is_news, self._asked = bool(self.revoked), readers  # a revocation under way delays others
        for number, tried in self.state.missing.items():
            holder = self.state.holders[number]
            if holder is None or holder not in tried:
                continue
            if not tried.keys() >= {*readers}:
                self._is_news = True  # others may follow
                if not self.revoked:
                    self._revoke(holder, (number,))
            elif self.state.staying.get(number) != holder and number not in self.revoked:
                self.state.staying[number] = holder
                self._stream.issue(reading_messages.StayWithPartition(holder, number))

    def begin_cut(self) -> None:
        """Record that partitions still to be handed back are part of the checkpoint issued now."""
        self._owed, self.cut, self.ended = bool(self.revoked), (), ()

    def found(self, event: Discovered) -> None:
        """Record what a source has found and give out new partitions. Not called once the job is ending: see rule 3."""
        new = []
        for partition in dict.fromkeys(event.partitions):
            known = self.state.known.get((event.input, partition))
            if known is None or (known.ended_in == ANEW and known.number not in self._unsettled):
                self._drop(known)
                new.append(self._know(SourcePartition(self._next, event.input, partition)))
            elif known.ended_in not in (0, ANEW, self._run):
                new.append(self._know(replace(known, ended_in=0)))
        self._unsettled = {each for each in self._unsettled if self._numbers[each].input != event.input}
        sights = dict(event.sights)
        self.state.sights |= {each.number: sights[each.partition] for each in new if each.partition in sights}
        self.state.unheard.discard(event.input)
        if event.over:
            self.state.asked.discard(event.input)
        self._give(new)
        for partition, bound in zip(event.partitions, event.bounds):
            number = self.state.known[event.input, partition].number
            if bound is not None and number in self.state.holders:
                self.state.bounds[number] = bound
        if event.complete:
            self._forget(event.input, {*event.partitions})

    def is_known(self, input: str, partition: bytes) -> bool:
        """Tell whether a partition was found and is not forgotten."""
        return (input, partition) in self.state.known

    def is_unread(self, input: str, partition: bytes) -> bool:
        """Tell whether a partition was found and is not read to its end."""
        known = self.state.known.get((input, partition))
        return known is not None and known.number in self.state.holders

    def learn(self, report: object, ended: bool, source: WorkerId) -> None:
        """Record a worker's report. Give returned partitions to others unless the job has `ended`."""
        self._is_news = True
        match report:
            case reading_messages.PartitionMissing(number) if number in self.state.holders:
                told = dict.fromkeys(self._process_of(source), report)
                self.state.missing.setdefault(number, {}).update(told)
                if report.differs and self._roster.members.coordinator not in told:
                    for worker in self._process_of(self._roster.members.coordinator):
                        self.state.missing[number].pop(worker, None)
            case reading_messages.PartitionSeen(number) if number in self.state.missing:
                for worker in self._process_of(source):
                    self.state.missing[number].pop(worker, None)
            case reading_messages.SplitRead(number, left):
                state = self.state
                for each in (state.holders, state.bounds, state.missing, state.staying, state.sights):
                    each.pop(number, None)
                for partition in left:
                    self._end(partition)
            case reading_messages.PartitionsRevoked(partitions):
                self.cut += partitions if self._owed else ()
                self.revoked, self._owed = (), False
                if not ended:
                    self._give(partitions)
            case reading_messages.SplitsReturned(partitions=partitions):
                if not ended:
                    self._give(partitions)

    def _end(self, partition: SourcePartition) -> None:
        """Record the end of a partition that a later run continues, or that is gone: see rules 8 and 10."""
        if partition.ended_in == ANEW:
            self._unsettled.add(partition.number)
            self._know(end := replace(partition, position=None, maxima=()))
        elif self._run:
            self._know(end := replace(partition, ended_in=self._run))
        else:
            return
        self.ended += (end,)

    def _process_of(self, worker: WorkerId) -> tuple[WorkerId, ...]:
        return self._roster.state.process.get(worker, (worker,))

    def _give(self, partitions: Collection[SourcePartition], at_start: bool = False) -> None:
        """Give each partition to the worker with the fewest, the lowest-numbered of several; but see rule 9."""
        if not partitions:
            return
        self.state.holders.update((partition.number, None) for partition in partitions)
        loads = self._loads(self._roster.readers)
        given: dict[WorkerId, tuple[SourcePartition, ...]] = {}
        for partition in partitions:
            tried = self.state.missing.get(partition.number, {})
            worker = min(loads, key=lambda worker: (worker in tried, loads[worker], worker))
            loads[worker] += 1
            self.state.holders[partition.number] = worker
            self.state.staying.pop(partition.number, None)
            for each in self._process_of(worker) if tried else ():
                tried.pop(each, None)  # what it found earlier is old: others may have read the partition since
            given[worker] = (*given.get(worker, ()), partition)
        known = self.state.sights
        sights = {each.number: known[each.number] for each in partitions if each.number in known}
        self._stream.issue(reading_messages.AssignPartitions(given, None if at_start else sights))

    def _loads(self, readers: Iterable[WorkerId]) -> dict[WorkerId, int]:
        """Return how many partitions each reader has."""
        holders = Counter(self.state.holders.values())
        return {worker: holders[worker] for worker in readers}

    def _know(self, partition: SourcePartition) -> SourcePartition:
        kept = partition if partition.ended_in else replace(partition, position=None, maxima=())
        self.state.known[partition.input, partition.partition] = self._numbers[partition.number] = kept
        self._next = min(self._next, partition.number - 1)
        return partition

    def _forget(self, input: str, named: Set[bytes]) -> None:
        """Forget partitions that a source no longer names: see rule 7. Cost: linear in all known partitions."""
        own = [partition for partition in self.state.known.values() if partition.input == input]
        last = min((partition.number for partition in own), default=0)
        for partition in own:
            if partition.partition not in named and partition.number not in self.state.holders:
                if partition.number != last:
                    self._drop(partition)
                elif partition.ended_in != ANEW:
                    self._know(replace(partition, ended_in=0))

    def _drop(self, partition: SourcePartition | None) -> None:
        if partition is not None:
            del self.state.known[partition.input, partition.partition], self._numbers[partition.number]
            self._unsettled.discard(partition.number)

    def resume(self, state: PartitionsState) -> None:
        """Continue from the state of the previous coordinator."""
        assert None not in state.holders.values(), "all was given out"
        self.state, self._left = state, ()
        for partition in [*state.known.values()]:
            self._know(partition)

    def _check(self) -> None:
        numbers = {partition.number for partition in self.state.known.values()}
        assert len(numbers) == len(self.state.known) and max(numbers, default=-1) < 0
        assert self.state.holders.keys() <= numbers and self.state.bounds.keys() <= self.state.holders.keys()
        assert self._next < min(numbers, default=0) and self._unsettled <= numbers
        assert self.state.missing.keys() <= self.state.holders.keys() >= self.state.staying.keys()
        assert self.state.sights.keys() <= self.state.holders.keys()
