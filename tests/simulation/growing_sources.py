"""Random runs of whole durable jobs that read a source whose partitions come and grow, as in `durable_jobs`.

Each record says its key, its partition and its number there. A reader gives a few of those that are there by then, or
is idle, and says in one of the ways what wakes it; partitions are found bit by bit, and may be named no more once a
checkpoint has them. One life after the other goes on from what the one before has left. In the end each record has come
once, and a key's records of one partition in its order: through moves, joins and leaves, which have partitions change
hands, lost processes, and resumes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from megaflow.connect import Exhausted, Found, Idle
from megaflow.job.launcher.launcher_input import JobInput
from megaflow.testing.simulated_storage import JobStorage
from megaflow.timely.communication.codec.decode import decode
from tests.simulation.jobs import BINS
from tests.simulation.lives import live

KEYS = "abc"

Record = tuple[str, tuple[str, int]]  # key, (partition, number among the records of the key there)


class Feed:
    """What there is to be read, and how much of it is there by now: the more often it is asked, the more."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.storage = JobStorage(random)
        self.gone: set[tuple[str, int]] = set()  # partitions that are named no more
        self.forgotten = 0  # of these, by the newest checkpoint
        self.wakes: list[Callable[..., None]] = []
        self.records: dict[tuple[str, int], list[Record]] = {}
        for number in range(random.randint(0, 5)):
            counts: Counter[str] = Counter()
            records = self.records["partition", number] = []
            for _ in range(random.randint(0, 12)):
                counts[key := random.choice(KEYS)] += 1
                records.append((key, (str(number), counts[key])))
        self.there = dict.fromkeys(self.records, 0)
        self.found = 0
        self.opened: Counter[tuple[str, int]] = Counter()  # in this life

    @property
    def wanted(self) -> Counter[tuple[Any, ...]]:
        return Counter((key, *value) for records in self.records.values() for key, value in records)

    def go_on(self) -> None:
        """Have some more come, and wake those who wait for it."""
        for partition, records in self.records.items():
            self.there[partition] = min(len(records), self.there[partition] + self.random.randint(0, 2))
        while self.wakes:
            self.wakes.pop()("it is there", "any argument does")

    def discover(self) -> Found:
        self.go_on()
        self.found = min(len(self.records), self.found + self.random.randint(0, 2))
        more = self.found < len(self.records) or self.random.random() < 0.8
        assert self.storage.live is not None, "a job runs"
        latest = self.storage.live.latest
        kept = [decode(each.partition) for each in (*latest.portions, *latest.finished)]
        self.forgotten = len(self.gone.difference(kept))
        self.gone.update(each for each in kept if self.random.random() < 0.5)
        complete = self.random.random() < 0.7
        named: list[tuple[str, float]] = [each for each in [*self.records][: self.found] if each not in self.gone]
        if self.random.random() < 0.3:
            named = [(kind, float(number)) for kind, number in named]  # equal, and encoded otherwise
        return Found(named, 0.02 * self.random.random() if more else None, complete)

    def open(self, partition: tuple[str, int], position: int | None) -> FeedReader:
        self.opened[partition] += 1
        return FeedReader(self, partition, position or 0)


class FeedReader:
    """Reads one partition."""

    def __init__(self, feed: Feed, partition: tuple[str, int], position: int) -> None:
        self.feed, self.partition, self.position = feed, partition, position
        self.closed = False

    def read(self, limit: int) -> Any:
        assert not self.closed, "it was closed"
        feed, there = self.feed, self.feed.there[self.partition]
        feed.go_on()
        if self.position == len(feed.records[self.partition]):
            return Exhausted()
        if self.position >= there or feed.random.random() < 0.3:
            if feed.random.random() < 0.5:
                return Idle(on_ready=feed.wakes.append, after_seconds=0.05)
            return Idle() if feed.random.random() < 0.5 else Idle(after_seconds=0.02 * feed.random.random())
        end = min(self.position + feed.random.randint(0, min(3, limit)), there)
        records = feed.records[self.partition][self.position : end]
        self.position = end
        return records, end

    def lag(self) -> int:
        return self.feed.there[self.partition] - self.position

    def close(self) -> None:
        assert not self.closed, "it is closed twice"
        self.closed = True


def dataflow_of(feed: Feed) -> Callable[[Any], Any]:
    """Return a dataflow that puts each record out, and fails if it does not come behind the one before."""

    def meet(key: str, value: tuple[str, int], last: Any) -> Any:
        partition, number = value
        last = dict(last or {})
        assert number == last.get(partition, 0) + 1, f"{key!r} has {number} after {last} of {partition}"
        return last | {partition: number}, [(key, *value)]

    def dataflow(flow: Any) -> Any:
        return flow.read(feed, "feed").stateful_state_machine(meet, bins=BINS, name="meet")

    return dataflow


def run(seed: int) -> Counter[str]:
    """Run a seed; return what was seen. Raises AssertionError, naming it, if something does not hold."""
    random = Random(f"growing sources {seed}")
    try:
        feed = Feed(random)
        dataflow, wanted = dataflow_of(feed), feed.wanted

        def lived() -> Counter[str]:
            moved = max(feed.opened.values(), default=0) > 1  # without a crash between
            feed.opened.clear()
            return Counter(moved=moved, forgotten=feed.forgotten > 0)

        return live(random, seed, dataflow, JobInput(), wanted, lived, feed.storage)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
