"""What is late, and what windows have, on a simulated cluster that reads partitions, held against plain Python.

Which records are late follows from the partitions alone, as no partition is ever idle: so the oracle knows nothing of
epochs, workers or watermarks. Meanwhile bins and partitions change hands, and workers join and leave, as in
`partitions`. There are two operators that take timestamps, of which the second one sees not all records.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

from megaflow import session, sliding, tumbling
from megaflow.control.coordinator.seen_lateness import SeenLateness
from megaflow.megaphone.lateness import bucket_of
from megaflow.testing import SimulatedCluster
from tests.simulation import partitions
from tests.simulation.event_moves import few

BINS = partitions.BINS
NEVER_IDLE_SECONDS = 1e6
SKIPS = 3  # of so many records the second operator does not see one


class Kind:
    """Windows of one kind, in seconds."""

    def __init__(self, random: Random) -> None:
        self.lateness = random.choice([0, 0, 3])
        self.size, self.every, self.gap = 0, 0, 0
        match random.choice(["tumbling", "sliding", "session"]):
            case "tumbling":
                self.size = self.every = random.choice([4, 10])
                self.windows: Any = tumbling(self.size)
            case "sliding":
                self.size, self.every = random.choice([(6, 2), (10, 5), (9, 6)])
                self.windows = sliding(self.size, every=self.every)
            case _:
                self.gap = random.choice([2, 5])
                self.windows = session(self.gap)

    def ends(self, second: int) -> list[int]:
        """The ends of all windows of a timestamp."""
        return [end for end in range(second + 1, second + self.size + 1) if (end - self.size) % self.every == 0]


def parse(line: str) -> tuple[str, int, int]:
    key, second, number = line.split()
    return key, int(second), int(number)


def draw_lines(random: Random, partition: int, out_of_order: int) -> list[str]:
    """Lines whose timestamps rise, but for some that are out of order by more or less than is said."""
    lines, now = [], random.randint(50, 60)
    for number in range(random.choice([0, 5, 50, 100])):
        now += random.choice([0, 0, 1, 1, 2, 9])
        behind = random.choice([0, 0, 0, random.randint(0, out_of_order), out_of_order + random.randint(1, 20)])
        lines.append(f"{random.choice(partitions.KEYS)} {now - behind} {1000 * partition + number}")
    return lines


def run(seed: int) -> SimulatedCluster:
    """Run a seed; raise AssertionError, naming it, if what comes out is not what the partitions say."""
    random = Random(f"late records {seed}")
    drawn, workers, changes = partitions.draw(random)
    out_of_order = [random.choice([0, 2, 5]), random.choice([0, 3])]
    kinds = [Kind(random), Kind(random)]
    lines = [draw_lines(random, number, out_of_order[0]) for number, _ in enumerate(drawn)]

    def dataflow(flow: Any) -> Any:
        records = flow.lines().map(parse)
        outputs = []
        for number, kind in enumerate(kinds):
            seen = records.filter(lambda record: record[2] % SKIPS) if number else records
            stamped = seen.event_time(lambda record: record[1], out_of_order=out_of_order[number])
            pairs = stamped.map(lambda record: (record[0], record[2]))
            windows = pairs.window(kind.windows, allowed_lateness=kind.lateness, bins=BINS, name=f"windows {number}")
            closed = windows.collect().plain()
            outputs.append(closed.map(lambda found, n=number: (n, found[0], found[1].end, tuple(sorted(found[2])))))
            outputs.append(windows.late().plain().map(lambda late, n=number: (n, *late)))
        return outputs[0].concat(*outputs[1:])

    total = sum(map(len, lines))
    coordinators: list[SeenLateness] = []
    cluster = SimulatedCluster(seed, workers, idle_timeout=NEVER_IDLE_SECONDS)
    for record, change in changes:
        cluster.at(record=min(record, total // 2), do=change)
    with patch.object(SeenLateness, "__init__", noting(coordinators)):
        found = Counter(cluster.run(dataflow, lines=lines))
    right: Counter[Any] = Counter()
    for number, kind in enumerate(kinds):
        right += expected(number, kind, out_of_order[number], lines)
    assert found == right, f"seed {seed}: missing are {few(right - found)}, too many {few(found - right)}"
    seen = max((total_of(each) for each in coordinators), key=lambda counts: sum(counts.values()))
    assert seen == lateness_of(lines), f"seed {seed}: the last coordinator has counted {seen}"
    return cluster


def noting(made: list[SeenLateness]) -> Callable[[SeenLateness], None]:
    """What begins a coordinator's count, and notes it. That of the last coordinator has most."""
    begin = SeenLateness.__init__

    def noted(self: SeenLateness) -> None:
        begin(self)
        made.append(self)

    return noted


def total_of(seen: SeenLateness) -> Counter[tuple[str, int]]:
    """The records of all partitions, by operator and bucket of lateness."""
    total: Counter[tuple[str, int]] = Counter()
    for operator, _, counts, _ in seen.state():
        total.update({(operator, bucket): records for bucket, records in counts})
    return total


def lateness_of(lines: list[list[str]]) -> Counter[tuple[str, int]]:
    """The same, by all that partitions have."""
    total: Counter[tuple[str, int]] = Counter()
    for number, operator in enumerate(("event_time", "event_time_2")):
        for partition in lines:
            greatest = 0
            for _, second, record in map(parse, partition):
                if number and not record % SKIPS:
                    continue
                greatest = max(greatest, second)
                if second < greatest:
                    total[operator, bucket_of((greatest - second) * 1_000_000)] += 1
    return total


def expected(number: int, kind: Kind, out_of_order: int, lines: list[list[str]]) -> Counter[Any]:
    """What one of the operators puts out."""
    kept: dict[tuple[str, int], list[int]] = defaultdict(list)  # key, end of a window -> numbers
    taken: dict[str, list[tuple[int, int]]] = defaultdict(list)  # key -> (second, number), of sessions
    out: Counter[Any] = Counter()
    for partition in lines:
        greatest = 0
        for key, second, record in map(parse, partition):
            if number and not record % SKIPS:
                continue
            greatest = max(greatest, second)
            bound = greatest - out_of_order
            if kind.gap and second + kind.lateness >= bound:
                taken[key].append((second, record))
                continue
            ends = [end for end in kind.ends(second) if end + kind.lateness > bound] if kind.size else []
            for end in ends:
                kept[key, end].append(record)
            if not ends:
                out[number, key, record] += 1
    for key, some in taken.items():
        run: list[tuple[int, int]] = []
        for each in sorted(some):
            if run and each[0] - run[-1][0] >= kind.gap:
                kept[key, run[-1][0] + kind.gap] = [record for _, record in run]
                run = []
            run.append(each)
        kept[key, run[-1][0] + kind.gap] = [record for _, record in run]
    out.update((number, key, end, tuple(sorted(some))) for (key, end), some in kept.items())
    return out
