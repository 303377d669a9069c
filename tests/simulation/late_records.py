"""Late records and contents of windows on a simulated cluster that reads partitions, compared with plain Python.

No partition is ever idle, so the partitions alone decide which records are late. The oracle therefore knows nothing of
epochs, workers or watermarks. Meanwhile bins and partitions move, and workers join and leave, as in `partitions`. There
are two `event_time` operators; the second one does not see all records. A fold with a state may stand between them and
their windows and give its outputs the stamps of the records. That must change nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any
from unittest.mock import patch

from megaflow import session, sliding, tumbling
from megaflow.control.coordinator.reading.seen_lateness import SeenLateness
from megaflow.event_time.lateness import bucket_of
from megaflow.testing import SimulatedCluster
from tests.event_time.naive_windows import days_in
from tests.simulation import partitions
from tests.simulation.event_moves import few

BINS = partitions.BINS
NEVER_IDLE_SECONDS = 1e6
SKIPS = 3  # in every this many records, the second operator misses one


BEGIN = round(datetime(2026, 3, 20, tzinfo=UTC).timestamp())  # of days in Berlin: nine before the clocks change


class Kind:
    """Windows of one kind, in seconds; windows of days in a time zone, in hours since `BEGIN`."""

    def __init__(self, random: Random, is_of_days: bool) -> None:
        """`is_of_days`: use days instead of windows of one size."""
        self.scale, self.begin = 1, 0
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
        if is_of_days and self.size == self.every != 0:
            self.scale, self.begin = 3_600, BEGIN
            self.windows = tumbling("1D", tz="Europe/Berlin")

    def stamp(self, second: int) -> int:
        """Return the timestamp that an operator assigns to a record."""
        return self.begin + second * self.scale

    def ends(self, second: int) -> list[int]:
        """Return the ends of all windows of a timestamp."""
        if self.begin:
            [(_, end)] = days_in("Europe/Berlin")(self.stamp(second) * 1_000_000)
            return [(end // 1_000_000 - self.begin) // self.scale]
        return [end for end in range(second + 1, second + self.size + 1) if (end - self.size) % self.every == 0]


def parse(line: str) -> tuple[str, int, int]:
    key, second, number = line.split()
    return key, int(second), int(number)


def numbered(key: str, number: int, count: int | None) -> Any:
    """Count a record and pass it on."""
    return (count or 0) + 1, [(key, number)]


def draw_lines(random: Random, partition: int, out_of_order: int) -> list[str]:
    """Draw lines whose timestamps rise, except some that are out of order by more or less than `out_of_order`."""
    lines, now = [], random.randint(50, 60)
    for number in range(random.choice([0, 5, 50, 100])):
        now += random.choice([0, 0, 1, 1, 2, 9])
        behind = random.choice([0, 0, 0, random.randint(0, out_of_order), out_of_order + random.randint(1, 20)])
        lines.append(f"{random.choice(partitions.KEYS)} {now - behind} {1000 * partition + number}")
    return lines


def run(seed: int) -> SimulatedCluster:
    """Run a seed. Raise an AssertionError that names it if the outputs do not follow from the partitions."""
    random = Random(f"late records {seed}")
    drawn, workers, changes = partitions.draw(random)
    out_of_order = [random.choice([0, 2, 5]), random.choice([0, 3])]
    days = Random(f"days {seed}")
    kinds = [Kind(random, days.random() < 0.3) for _ in range(2)]
    lines = [draw_lines(random, number, out_of_order[0]) for number, _ in enumerate(drawn)]
    behind_fold = Random(f"behind a fold {seed}").choice([0, 1, 2])  # how many of the windows have a fold before them

    def dataflow(flow: Any) -> Any:
        records = flow.lines().map(parse)
        outputs = []
        for number, kind in enumerate(kinds):
            seen = records.filter(lambda record: record[2] % SKIPS) if number else records
            slack = out_of_order[number] * kind.scale
            stamped = seen.event_time(lambda record, k=kind: k.stamp(record[1]), out_of_order=slack)
            pairs = stamped.map(lambda record: (record[0], record[2]))
            if number < behind_fold:
                pairs = pairs.stateful_state_machine(numbered, bins=BINS, name=f"numbered {number}", stamp="record")
            lateness = kind.lateness * kind.scale
            windows = pairs.window(kind.windows, allowed_lateness=lateness, bins=BINS, name=f"windows {number}")
            closed = windows.collect().plain()
            outputs.append(closed.map(lambda found, n=number, k=kind: of_result(n, k, *found)))
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
    assert seen == lateness_of(lines, kinds), f"seed {seed}: the last coordinator has counted {seen}"
    return cluster


def noting(made: list[SeenLateness]) -> Callable[[SeenLateness], None]:
    """Return an `__init__` of a coordinator's count that also notes the count. The last coordinator's has the most."""
    begin = SeenLateness.__init__

    def noted(self: SeenLateness) -> None:
        begin(self)
        made.append(self)

    return noted


def total_of(seen: SeenLateness) -> Counter[tuple[str, int]]:
    """Return the records of all partitions, by operator and bucket of lateness."""
    total: Counter[tuple[str, int]] = Counter()
    for operator, _, counts, _ in seen.state():
        total.update({(operator, bucket): records for bucket, records in counts})
    return total


def of_result(number: int, kind: Kind, key: str, window: Any, values: list[int]) -> Any:
    """Return the compared part of a closed window."""
    return number, key, (window.end - kind.begin) // kind.scale, tuple(sorted(values))


def lateness_of(lines: list[list[str]], kinds: list[Kind]) -> Counter[tuple[str, int]]:
    """Return the records by operator and bucket of lateness that follow from the lines of the partitions."""
    total: Counter[tuple[str, int]] = Counter()
    for number, operator in enumerate(("event_time", "event_time_2")):
        for partition in lines:
            greatest = 0
            for _, second, record in map(parse, partition):
                if number and not record % SKIPS:
                    continue
                greatest = max(greatest, second)
                if second < greatest:
                    total[operator, bucket_of((greatest - second) * 1_000_000 * kinds[number].scale)] += 1
    return total


def expected(number: int, kind: Kind, out_of_order: int, lines: list[list[str]]) -> Counter[Any]:
    """Return the expected output of one of the operators."""
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
