"""Branches of event time with rare records, on a simulated cluster: what is late, and whether windows close.

Filters divide the records of a few partitions among three operators `event_time`. One of them gets most records, the
others get few or none. Bins and partitions move meanwhile, and workers join and leave. Some runs read files that end,
others a source whose partitions have no end until windows of the busy branch have closed.

1. Each record of a branch is in one window or late there, once.
2. Let m be the greatest timestamp that any branch has of a partition so far, and s the greatest `out_of_order` of all.
   A record is late only if its window ends at m - s or before, or by the bound of its own branch. So a branch without
   records makes none late that one operator before all branches would have kept.
3. In a run over files, only the bound of a record's own branch decides (`late_records`).
4. In a run over a source, windows of the busy branch close before its partitions end, though the others are without
   records for ever. If not, a partition gives more and more records, and fails in the end.
No partition is idle as a whole: at each moment a reader has records, or has them soon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from megaflow import Move, tumbling
from megaflow.connect import Exhausted, Found, Idle
from megaflow.control.coordinator.reading.watermarks import Watermarks
from megaflow.control.watermark_messages import PartitionsIdle
from megaflow.testing import Join, Leave, SimulatedCluster
from tests.simulation.event_moves import few

BINS = 8
SIZE = 5  # seconds of event time
BUSY = "clicks"
BRANCHES = (BUSY, "errors", "warnings")
IDLE_SECONDS = 0.1
MORE_MAX = 400  # records that a partition may give while windows of the busy branch are to close

Record = tuple[str, int, int]  # branch, second, number


class Feed:
    """Source of a few partitions, each read in order."""

    def __init__(self, random: Random, records: dict[int, list[Record]]) -> None:
        self.random, self.records = random, records
        self.target = min(max(second for _, second, _ in some) for some in records.values())
        self.closed = 0  # the latest end of a window of the busy branch that has closed
        self.more = Counter[int]()

    def discover(self) -> Found:
        return Found([*self.records])

    def open(self, partition: int, position: int | None) -> Reader:
        return Reader(self, partition, position or 0)

    def note(self, branch: str, end: int) -> None:
        """Note that a window has closed."""
        if branch == BUSY:
            self.closed = max(end, self.closed)

    def give_more(self, partition: int) -> None:
        """Add a record of the busy branch, later than all before."""
        self.more[partition] += 1
        assert self.more[partition] < MORE_MAX, f"no window of {BUSY} closes after {self.closed}"
        some = self.records[partition]
        latest = max(second for _, second, _ in some)
        some.append((BUSY, latest + 1, some[-1][2] + 1))


class Reader:
    """Reader of one partition."""

    def __init__(self, feed: Feed, partition: int, position: int) -> None:
        self._feed, self._partition, self._position = feed, partition, position

    def read(self, limit: int) -> Any:
        feed, some = self._feed, self._feed.records[self._partition]
        if feed.random.random() < 0.3:
            return Idle(after_seconds=0.01 * feed.random.random())
        if self._position == len(some):
            if feed.closed >= feed.target:
                return Exhausted()
            feed.give_more(self._partition)
        begin, self._position = self._position, min(self._position + feed.random.randint(1, min(3, limit)), len(some))
        return some[begin : self._position], self._position

    def close(self) -> None:
        """Do nothing: nothing is open."""


def draw_records(random: Random, partition: int, slack: int) -> list[Record]:
    """Draw records whose seconds rise, except some that are out of order by more or less than `slack`."""
    found, now = [], random.randint(100, 110)
    shares = [1.0, *(random.choice([0.0, 0.02, 0.1]) for _ in BRANCHES[1:])]
    for number in range(random.choice([30, 60, 120])):
        now += random.choice([0, 0, 1, 2])
        behind = random.choice([0, 0, 0, random.randint(0, slack), slack + random.randint(1, 12)])
        (branch,) = random.choices(BRANCHES, shares)
        found.append((branch, now - behind, 1000 * partition + number))
    return found


def parse(line: str) -> Record:
    branch, second, number = line.split()
    return branch, int(second), int(number)


def run(seed: int) -> Counter[str]:
    """Run a seed; return counts of what happened. Raise an AssertionError that names it if a rule is broken."""
    random = Random(f"branches {seed}")
    slacks = {branch: random.choice([0, 2, 6]) for branch in BRANCHES}
    records = {
        number: draw_records(random, number, max(slacks.values())) for number in range(random.choice([1, 2, 3]))
    }
    feed = Feed(random, records) if random.random() < 0.7 else None

    def dataflow(flow: Any) -> Any:
        read = flow.lines().map(parse) if feed is None else flow.read(feed, "feed")
        outputs = []
        for branch in BRANCHES:
            own = read.filter(lambda record, branch=branch: record[0] == branch)
            stamped = own.event_time(lambda record: record[1], out_of_order=slacks[branch], name=f"at {branch}")
            windows = stamped.map(lambda record: (record[0], record[2])).window(
                tumbling(SIZE), bins=BINS, name=f"windows of {branch}"
            )
            closed = windows.collect().plain()
            if feed is not None:
                closed = closed.inspect(lambda found: feed.note(found[0], found[1].end))
            outputs.append(closed.flat_map(lambda found: [("in", found[1].end, number) for number in found[2]]))
            outputs.append(windows.late().plain().map(lambda late: ("late", 0, late[1])))
        return outputs[0].concat(*outputs[1:])

    workers = random.choice([1, 2, 3])
    cluster = SimulatedCluster(seed, workers, rate=400.0, idle_timeout=IDLE_SECONDS)
    total = sum(map(len, records.values()))
    for _ in range(random.randint(0, 4)):
        change: Any = random.choice([Join(), Leave(random.choice([None, 0, 1])), Move(random.randrange(BINS), 0)])
        cluster.at(record=random.randint(0, total // 2), do=change)
    lines = [[" ".join(map(str, each)) for each in some] for some in records.values()]
    with noting_idle() as idle:
        found = cluster.run(dataflow, lines=None if feed else lines, outside=[feed] if feed else ())
    try:
        check(found, records, slacks, is_source=feed is not None, may_be_idle=bool(idle["wholly"]))
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from None
    is_late = any(kind == "late" for kind, *_ in found)
    return Counter(files=feed is None, idle=bool(idle["branch"]), late=is_late, changed=bool(cluster.happened))


@contextmanager
def noting_idle() -> Iterator[Counter[str]]:
    """Count the reports of idle partitions, and those of idle branches."""
    counts, learn = Counter[str](), Watermarks.learn

    def noted(self: Watermarks, source: Any, report: Any, now: float) -> None:
        if isinstance(report, PartitionsIdle):
            counts["branch" if report.operator else "wholly"] += 1
        learn(self, source, report, now)

    with patch.object(Watermarks, "learn", noted):
        yield counts


def check(
    found: list[tuple[str, int, int]], records: dict[int, list[Record]], slacks: dict[str, int], is_source: bool,
    may_be_idle: bool,
) -> None:  # fmt: skip
    """Check rules 1 to 3 in the outputs: ("in", end of the window, number) or ("late", 0, number)."""
    given = Counter(number for *_, number in found)
    wanted = Counter(number for some in records.values() for *_, number in some)
    assert given == wanted, f"missing are {few(wanted - given)}, too many {few(given - wanted)}"
    late = {number for kind, _, number in found if kind == "late"}
    ends = {number: end for kind, end, number in found if kind == "in"}
    for some in records.values():
        greatest: dict[str, int] = {}
        for branch, second, number in some:
            greatest[branch] = max(second, greatest.get(branch, second))
            end = second - second % SIZE + SIZE
            assert number in late or ends[number] == end, f"{branch} {second} is in the window to {ends[number]}"
            is_late = end <= greatest[branch] - slacks[branch]
            may_be_late = is_source and end <= max(greatest.values()) - max(slacks.values())
            assert number in late or not is_late, f"{branch} {second} is not late after {greatest}"
            is_right = is_late or may_be_late or may_be_idle
            assert number not in late or is_right, f"{branch} {second} is late after {greatest}, with {slacks}"
