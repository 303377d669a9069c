"""Random runs of whole durable jobs that read a source whose partitions appear and grow, as in `durable_jobs`.

Each record contains its key, its partition and its number there. A reader returns a few of the available records, or
`Idle` with one of the ways to be woken. Discovery finds partitions gradually, and may stop naming a partition once a
checkpoint contains it. Each attempt resumes from the remains of the previous one. At the end each record has arrived
once, and a key's records of one partition have arrived in order. This must hold through moves, through joins and leaves
(which hand partitions over), through lost processes, and through resumes. In one run a partition may end, resumably,
before its last record. Then the next run reads on, but no recovery does. In some runs, readers do not find their
partitions, until they learn that no other process does. Some partitions are files that are removed once a checkpoint
knows them, and whose names are used again for other files (`Files`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from random import Random
from typing import Any

from megaflow.connect import Exhausted, Found, Idle
from megaflow.connect.source_protocol import Gone, NotHere
from megaflow.durable.commits import Commit, SourcePartition
from megaflow.job.launcher.inputs.launcher_input import JobInput
from megaflow.testing.simulated_storage import JobStorage
from megaflow.timely.communication.codec.decode import decode
from tests.simulation.attempts import live
from tests.simulation.jobs import BINS

KEYS = "abc"

Record = tuple[str, tuple[str, int]]  # key, (partition, number among the records of the key there)


class Files:
    """Files that replace one another under the same name, as under the inode of a removed file.

    A file is removed when it is wholly read. A checkpoint has a position in it by then, from which a recovery can read
    its rest.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.records: dict[tuple[str, int], list[list[Record]]] = {}  # name -> the records of each file
        for number in range(random.choice((0, 0, 1, 2))):
            self.records["file", number] = [
                [(KEYS[place % 2], (f"file {number} {age}", place // 2 + 1)) for place in range(random.randint(0, 4))]
                for age in range(random.randint(1, 3))
            ]
        self.there = dict.fromkeys(self.records, 0)  # which of them has the name now, or had it last
        self.known: set[tuple[tuple[str, int], int]] = set()  # files of which a checkpoint has a position
        self.removed: set[tuple[tuple[str, int], int]] = set()
        self.opened: set[tuple[tuple[str, int], int]] = set()
        self.replaced = 0  # files opened in this attempt whose name another one had before

    def look(self, unread: Iterable[SourcePartition]) -> None:
        """Note which files the newest checkpoint knows. `unread` are its unread partitions."""
        for each in unread:
            name = decode(each.partition)
            if name in self.records and each.position is not None:
                self.known.add((name, decode(each.position)[0]))

    def named(self) -> list[tuple[str, int]]:
        """Let other files take the names of removed ones, sooner or later; return the names of all files."""
        for name, age in self.there.items():
            if (name, age) in self.removed and age + 1 < len(self.records[name]) and self.random.random() < 0.7:
                self.there[name] += 1
        return [name for name, age in self.there.items() if (name, age) not in self.removed]

    def may_end(self, unread: Iterable[SourcePartition]) -> bool:
        """Return whether the last file of each name is found, also after a recovery with these unread partitions."""
        last = {(name, len(ages) - 1) for name, ages in self.records.items()}
        left = [each for each in unread if decode(each.partition) in self.records and each.position is not None]
        begun = {(decode(each.partition), decode(each.position)[0]) for each in left if each.position is not None}
        return last <= self.removed | self.opened and begun <= last


class FileReader:
    """Reader of the file that has a name, or that had it when its position was noted."""

    def __init__(self, feed: Feed, name: tuple[str, int], position: tuple[int, int] | None) -> None:
        self.feed, self.name = feed, name
        self.age, self.place = (feed.files.there[name], 0) if position is None else position
        self.is_known = position is not None
        if position is None:
            assert (name, self.age) not in feed.files.removed, f"{name} is opened after it was removed"
            feed.files.replaced += self.age > 0
        feed.files.opened.add((name, self.age))

    def read(self, limit: int) -> Any:
        feed, files, file = self.feed, self.feed.files, (self.name, self.age)
        if not self.is_known:  # a checkpoint must know the file first
            self.is_known = True
            return [], (self.age, 0)
        records = files.records[self.name][self.age]
        if self.place == len(records):
            files.look(feed.latest.partitions)
            if file not in files.known:
                return Idle(after_seconds=0.02)
            files.removed.add(file)
            return Gone()
        if files.random.random() < 0.3:
            return Idle(after_seconds=0.02 * files.random.random())
        start, self.place = self.place, min(self.place + files.random.randint(0, min(2, limit)), len(records))
        return records[start : self.place], (self.age, self.place)

    def close(self) -> None:
        pass


class Feed:
    """The records to read, and how many of them are available: more with each call."""

    def __init__(self, random: Random, sight: Random, files: Files) -> None:
        self.random = random
        self.files = files
        self.sight = sight  # decides which readers do not find their partitions
        self.blindness = sight.choice((0.0, 0.4))
        self.stays = 0  # readers that learned in this attempt that no process finds their partitions
        self.storage = JobStorage(random)
        self.gone: set[tuple[str, int]] = set()  # partitions that discovery names no longer
        self.forgotten = 0  # those of `gone` that the newest checkpoint lacks
        self.wakes: list[Callable[..., None]] = []
        self.records: dict[tuple[str, int], list[Record]] = {}
        for number in range(random.randint(0, 5)):
            counts: Counter[str] = Counter()
            records = self.records["partition", number] = []
            for _ in range(random.randint(0, 12)):
                counts[key := random.choice(KEYS)] += 1
                records.append((key, (str(number), counts[key])))
        self.there = dict.fromkeys(self.records, 0)
        self.ends = dict.fromkeys(self.records, 0)  # how many records a partition has in the present run
        self.run = 0  # the number of that run
        self.is_last = False  # whether all records become available in the present run
        self.resumed = 0  # partitions read on in this attempt after they ended in an earlier run
        self.found = 0
        self.opened: Counter[tuple[str, int]] = Counter()  # in this attempt

    @property
    def wanted(self) -> Counter[tuple[Any, ...]]:
        ages = chain.from_iterable(self.files.records.values())
        return Counter((key, *value) for records in chain(self.records.values(), ages) for key, value in records)

    @property
    def latest(self) -> Commit:
        """The newest checkpoint."""
        assert self.storage.live is not None, "a job runs"
        return self.storage.live.latest

    def begin(self) -> None:
        """Check whether another run has begun; partitions have more records in it."""
        if self.run != self.storage.run:
            self.run = self.storage.run
            for partition, records in self.records.items():
                is_all = self.is_last or self.random.random() < 0.5
                end = len(records) if is_all else self.random.randint(self.ends[partition], len(records))
                self.ends[partition] = end

    def last(self) -> None:
        """Make all records available in the next run."""
        self.is_last = True

    def is_whole(self, partition: tuple[str, int]) -> bool:
        """Return whether no later run has more of a partition."""
        return self.ends[partition] == len(self.records[partition])

    def go_on(self) -> None:
        """Make some more records available, and wake the waiting readers."""
        for partition in self.records:
            self.there[partition] = min(self.ends[partition], self.there[partition] + self.random.randint(0, 2))
        while self.wakes:
            self.wakes.pop()("it is there", "any argument does")

    def discover(self) -> Found:
        self.begin()
        self.go_on()
        self.found = min(len(self.records), self.found + self.random.randint(0, 2))
        latest, files = self.latest, self.files
        files.look(latest.partitions)
        more = self.found < len(self.records) or not files.may_end(latest.partitions) or self.random.random() < 0.8
        kept = [decode(each.partition) for each in (*latest.partitions, *latest.finished)]
        kept = [each for each in kept if each in self.records]
        self.forgotten = len(self.gone.difference(kept))
        behind = {decode(each.partition) for each in latest.finished if each.ended_in not in (0, self.run)}
        may_go = [each for each in kept if self.is_whole(each) and each not in behind]
        self.gone.update(each for each in may_go if self.random.random() < 0.5)
        complete = self.random.random() < 0.7
        named: list[tuple[str, float]] = [each for each in [*self.records][: self.found] if each not in self.gone]
        if self.random.random() < 0.3:
            named = [(kind, float(number)) for kind, number in named]  # equal, but encoded differently
        named += files.named()
        return Found(named, 0.02 * self.random.random() if more else None, complete)

    def open(self, partition: tuple[str, int], position: Any) -> FeedReader | FileReader:
        self.begin()  # partitions of the checkpoint are opened before any are discovered
        self.opened[partition] += 1
        if partition in self.files.records:
            return FileReader(self, partition, position)
        for each in self.latest.finished:
            if decode(each.partition) == partition:
                assert each.ended_in not in (0, self.run), f"{partition} has ended in this run, or for good"
                self.resumed += 1
        return FeedReader(self, partition, position or 0)


class FeedReader:
    """Reader of one partition."""

    def __init__(self, feed: Feed, partition: tuple[str, int], position: int) -> None:
        self.feed, self.partition, self.position = feed, partition, position
        self.is_blind = feed.sight.random() < feed.blindness
        self.closed = False

    def read(self, limit: int) -> Any:
        assert not self.closed, "it was closed"
        feed, there = self.feed, self.feed.there[self.partition]
        feed.go_on()
        if self.is_blind:
            return NotHere(after_seconds=0.05, differs=feed.sight.random() < 0.3)
        if self.position == feed.ends[self.partition]:
            return Exhausted(not feed.is_whole(self.partition) or feed.random.random() < 0.5)
        if self.position >= there or feed.random.random() < 0.3:
            if feed.random.random() < 0.5:
                return Idle(on_ready=feed.wakes.append, after_seconds=0.05)
            return Idle() if feed.random.random() < 0.5 else Idle(after_seconds=0.02 * feed.random.random())
        end = min(self.position + feed.random.randint(0, min(3, limit)), there)
        records = feed.records[self.partition][self.position : end]
        self.position = end
        return records, end

    def stay(self) -> None:
        self.is_blind = False
        self.feed.stays += 1

    def lag(self) -> int:
        return self.feed.there[self.partition] - self.position

    def close(self) -> None:
        assert not self.closed, "it is closed twice"
        self.closed = True


def dataflow_of(feed: Feed) -> Callable[[Any], Any]:
    """Return a dataflow that emits each record and fails if a record does not follow the previous one."""

    def meet(key: str, value: tuple[str, int], last: Any) -> Any:
        partition, number = value
        last = dict(last or {})
        assert number == last.get(partition, 0) + 1, f"{key!r} has {number} after {last} of {partition}"
        return last | {partition: number}, [(key, *value)]

    def dataflow(flow: Any) -> Any:
        return flow.read(feed, "feed").stateful_state_machine(meet, bins=BINS, name="meet")

    return dataflow


def run(seed: int) -> Counter[str]:
    """Run a seed; return counts of what happened. Raise an AssertionError that names it if a rule is broken."""
    random = Random(f"growing sources {seed}")
    try:
        feed = Feed(random, Random(f"sight {seed}"), Files(Random(f"files {seed}")))
        dataflow, wanted = dataflow_of(feed), feed.wanted

        def lived() -> Counter[str]:
            moved = max(feed.opened.values(), default=0) > 1  # more than once without a crash in between
            feed.opened.clear()
            resumed, feed.resumed = feed.resumed, 0
            stayed, feed.stays = feed.stays, 0
            replaced, feed.files.replaced = feed.files.replaced, 0
            forgotten = feed.forgotten > 0
            return Counter(moved=moved, forgotten=forgotten, resumed=resumed, stayed=stayed, replaced=replaced)

        return live(random, seed, dataflow, JobInput(), wanted, lived, feed.storage, feed.last)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
