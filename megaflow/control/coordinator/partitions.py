"""The partitions of a job's sources: which there are, which are still to be read, and who reads them.

Sources are asked for partitions in the coordinator's process (`megaflow.job.worker.discovery`), not in the launcher,
which imports nothing of the program's: only workers call the dataflow function, which makes the sources. What is found
comes here as a value, and from here to a worker by command; so whoever coordinates next needs these values only.

1. A partition that is known is given out once, however often it is found: equal ones have equal bytes here, which
   whoever asks the source sees to. Those that are wholly read stay known, also in checkpoints and after a hand-over,
   but for rule 7.
2. It is in one worker's hands until that reports its end or returns it: `source_operator`, rule 6.
3. What was known when a checkpoint was begun, and is not left at its time, is wholly read before it: nothing else can
   have become of it, for a partition that a worker has at that time is in its report.
4. The job goes on until each source has said that no more will come, and all partitions are read. A coordinator that
   takes over asks those again that have not.
5. Numbers are negative: splits have the others.
6. If a reader has at least two more than another, half of the difference is taken back, the last it was given first,
   and goes to who has the fewest: so a process that has joined gets its share. One revocation is under way at a time;
   each makes the sum of the squares of what readers have smaller. What a source hands back after a checkpoint was
   issued, and was told to before, is in no source's report of that: `cut` has it. See `lines_to_read`, 5 to 7.
7. Of a source that names all that there are (`Found.complete`) what it does not name any more, and is wholly read, is
   forgotten: such a source never names it again. Each answer was asked for after all that is known here was found, for
   a source is asked once at a time, and by a successor anew; so what it leaves out had not yet to come. A checkpoint
   that began before has it as read, or what is left of it; one that begins later does not know it, and has the effects
   of all its records, as it was wholly read before (rule 3). So to go on from either, older or newer, is the same, and
   nothing waits for a checkpoint. The last one that was found of each source stays, for its number: all numbers follow
   the least that is known, and what is still under way of one that has ended must meet no other. By it a store also
   tells which sources its job reads.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import replace

from megaflow.control.coordinator.epoch_clock import CommandStream
from megaflow.control.coordinator.events import Discovered, Instruction
from megaflow.control.coordinator.job_state import Durable, PartitionsState
from megaflow.control.coordinator.roster import Roster
from megaflow.control.reading_messages import (
    AssignPortions,
    PortionsRevoked,
    RevokePortions,
    SplitRead,
    SplitsReturned,
)
from megaflow.durable.commits import Portion
from megaflow.timely.membership import WorkerId


class Partitions:
    """The partitions of one job. One writer: the controller."""

    def __init__(
        self,
        roster: Roster,
        stream: CommandStream,
        sources: Iterable[str],
        durable: Durable | None = None,
    ) -> None:
        """`sources` are the names of those that the program reads; `durable`: what a checkpoint has left."""
        self._roster = roster
        self._stream = stream
        self._asked = set(sources)  # those that may still find partitions
        self._known: dict[tuple[str, bytes], Portion] = {}  # without positions
        self._numbers: dict[int, Portion] = {}  # the same, by their numbers
        self._unread: dict[int, WorkerId | None] = {}  # number -> who has it; None: nobody was told to read it
        self._unheard = set(sources)  # those that have not said yet which there are
        self.bounds: dict[int, int] = {}  # number -> microseconds of event time before which it has nothing; unread
        self._next = -1  # the number of the next one
        self._revoked: tuple[int, ...] = ()  # that somebody was told to hand back, and has not
        self._owed = False  # these are part of the checkpoint that was issued last
        self.cut: tuple[Portion, ...] = ()  # what has come back of that, which no source reports
        self._left = () if durable is None else durable.portions  # to be given out at the start
        for portion in (*self._left, *(() if durable is None else durable.finished)):
            self._know(portion)
        self._unread.update((portion.number, None) for portion in self._left)

    @property
    def over(self) -> bool:
        """Whether no more will come, and all are read."""
        return not (self._asked or self._unread)

    @property
    def asked(self) -> frozenset[str]:
        """The sources that are to be asked for partitions."""
        return frozenset(self._asked)

    @property
    def unheard(self) -> tuple[str, ...]:
        """The sources that have not said yet which partitions they have, since the job began or was resumed."""
        return tuple(sorted(self._unheard))

    @property
    def unread(self) -> Iterator[tuple[Portion, WorkerId | None]]:
        """Those that are not read to their ends, without positions, and who has them; None: nobody."""
        return ((self._numbers[number], worker) for number, worker in self._unread.items())

    @property
    def known(self) -> tuple[Portion, ...]:
        """All that there are, the first first; without positions."""
        return tuple(self._known.values())

    def go_on(self, out: list[Instruction], now: float) -> None:
        """Give out what a checkpoint has left, and see that all readers have about as many; after each event."""
        self._give(self._left, out, now)
        self._left = ()
        readers = self._roster.readers
        if self._revoked or len(readers) < 2:
            return
        loads = self._loads(readers)
        poor, rich = min(readers, key=loads.__getitem__), max(readers, key=loads.__getitem__)
        if surplus := (loads[rich] - loads[poor]) // 2:
            self._revoked = tuple(sorted(number for number, worker in self._unread.items() if worker == rich)[:surplus])
            self._stream.issue([RevokePortions(rich, self._revoked)], out, now)

    @property
    def at_rest(self) -> bool:
        """Whether nobody is to hand something back."""
        return not self._revoked

    def begin_cut(self) -> None:
        """Note what is to come back that is part of the checkpoint that is issued now."""
        self._owed, self.cut = bool(self._revoked), ()

    def found(self, event: Discovered, out: list[Instruction], now: float) -> None:
        """Take in what a source has found, and give out what is new; not once the job is ending: see rule 3."""
        new = [each for each in dict.fromkeys(event.partitions) if (event.input, each) not in self._known]
        portions = [self._know(Portion(self._next, event.input, each)) for each in new]
        self._unheard.discard(event.input)
        if event.over:
            self._asked.discard(event.input)
        self._give(portions, out, now)
        for partition, bound in zip(event.partitions, event.bounds):
            number = self._known[event.input, partition].number
            if bound is not None and number in self._unread:
                self.bounds[number] = bound
        if event.complete:
            self._forget(event.input, {*event.partitions})

    def is_known(self, input: str, partition: bytes) -> bool:
        """Tell whether a partition was found, and is not forgotten."""
        return (input, partition) in self._known

    def learn(self, report: object, ended: bool, out: list[Instruction], now: float) -> None:
        """Take in what a worker reports; give what it has returned to others unless the job has `ended`."""
        match report:
            case SplitRead(number):
                self._unread.pop(number, None)
                self.bounds.pop(number, None)
            case PortionsRevoked(portions):
                self.cut += portions if self._owed else ()
                self._revoked, self._owed = (), False
                if not ended:
                    self._give(portions, out, now)
            case SplitsReturned(portions=portions):
                if not ended:
                    self._give(portions, out, now)

    def _give(self, portions: Collection[Portion], out: list[Instruction], now: float) -> None:
        """Give each to a worker that has the fewest, the lowest of several."""
        if not portions:
            return
        self._unread.update((portion.number, None) for portion in portions)
        loads = self._loads(self._roster.readers)
        given: dict[WorkerId, tuple[Portion, ...]] = {}
        for portion in portions:
            worker = min(loads, key=lambda worker: (loads[worker], worker))
            loads[worker] += 1
            self._unread[portion.number] = worker
            given[worker] = (*given.get(worker, ()), portion)
        self._stream.issue([AssignPortions(given)], out, now)

    def _loads(self, readers: Iterable[WorkerId]) -> dict[WorkerId, int]:
        """Return how many each of them has."""
        holders = Counter(self._unread.values())
        return {worker: holders[worker] for worker in readers}

    def _know(self, portion: Portion) -> Portion:
        at_begin = replace(portion, position=None, maxima=())
        self._known[portion.input, portion.partition] = self._numbers[portion.number] = at_begin
        self._next = min(self._next, portion.number - 1)
        return portion

    def _forget(self, input: str, named: Set[bytes]) -> None:
        """Forget what a source names no more: see rule 7. Cost: linear in all that are known."""
        own = [portion for portion in self._known.values() if portion.input == input]
        last = min((portion.number for portion in own), default=0)
        for portion in own:
            if portion.partition not in named and portion.number not in self._unread and portion.number != last:
                del self._known[input, portion.partition], self._numbers[portion.number]

    def state(self) -> PartitionsState:
        """Return what whoever goes on with this must know."""
        held = tuple((number, worker) for number, worker in self._unread.items() if worker is not None)
        assert len(held) == len(self._unread), "all was given out"
        bounds = tuple(self.bounds.items())
        return PartitionsState(tuple(sorted(self._asked)), self.known, held, self.unheard, bounds)

    def resume(self, state: PartitionsState) -> None:
        """Go on from there."""
        self._asked, self._unheard, self.bounds = set(state.asked), set(state.unheard), dict(state.bounds)
        for portion in state.known:
            self._know(portion)
        self._unread, self._left = dict(state.held), ()

    def _check(self) -> None:
        numbers = {portion.number for portion in self._known.values()}
        assert len(numbers) == len(self._known) and max(numbers, default=-1) < 0
        assert self._unread.keys() <= numbers and self.bounds.keys() <= self._unread.keys()
        assert self._next < min(numbers, default=0)
