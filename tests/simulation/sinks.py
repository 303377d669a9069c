"""Random runs of whole durable jobs that write to sinks, beside all that happens to `durable_jobs`.

What is outside, where the sinks write, outlives all processes. A process may also be killed just before or just after
it has prepared, committed or delivered something there. Beside what holds of every durable job
1. no row is ever seen twice outside, and in the end each is seen once;
2. a job that has ended or was stopped has all of its output outside, too;
3. nothing is seen that the newest commit does not have, and no token of it is forgotten;
4. where one sink writes all, in order, the rows of a key are seen in theirs; else those of each token are.
There are three: one that prepares by itself; an outbox behind an `exchange`, by which records of any epoch may come to
a worker that has just joined; and an outbox where one worker writes all in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from megaflow.connect.sink import OutboxSink, Sink, SinkPlace
from megaflow.testing.simulated_disk import Crashed
from megaflow.testing.simulated_job import SimulatedJob
from megaflow.testing.simulated_launch import SimulatedLaunch
from tests.simulation import durable_jobs
from tests.simulation.durable_jobs import Lives, Plan, dataflow

SINKS = ("rows", "box", "one")
CRASH_SHARE = 0.01  # of what is done outside


class Outside:
    """Where rows are prepared and seen, and what the simulated job is that does so."""

    def __init__(self, random: Random) -> None:
        self.job: SimulatedJob | None = None
        self.crashes = 0
        self.is_quiet = False  # nobody is killed
        self.prepared: dict[str, list[Any]] = {}  # token -> rows
        self.marks: dict[str, set[str]] = {name: set() for name in SINKS}  # sink -> tokens that are seen
        self.seen: dict[str, list[Any]] = {name: [] for name in SINKS}  # sink -> rows
        self._random = random

    def token(self) -> str:
        """Return one that was never given."""
        return f"{len(self.prepared)} of these"

    def see(self, sink: str, token: str, rows: list[Any]) -> None:
        """Have rows seen."""
        if token in self.marks[sink]:
            return
        last: dict[Any, int] = {}
        for word, number, when in rows:
            assert when == "again" or number > last.get(word, 0), f"{sink}: {word!r} is {number} after {last[word]}"
            last[word] = number if when == "now" else last.get(word, 0)
        self.marks[sink].add(token)
        self.seen[sink] += rows

    def may_crash(self, worker: int) -> None:
        """Kill the process of a worker, if the dice say so."""
        assert self.job is not None
        if self.is_quiet or self._random.random() >= CRASH_SHARE:
            return
        for process in self.job.processes:
            if worker in process.programs and process.exit_code is None:
                self.crashes += 1
                self.job.kill(process)
                raise Crashed

    def check(self, sink: str) -> Counter[Any]:
        """Return the rows that are seen; none is twice."""
        rows = Counter(self.seen[sink])
        assert not rows or max(rows.values()) == 1, f"{sink} has twice {[row for row in rows if rows[row] > 1]}"
        return rows


class PreparingSink(Sink[Any]):
    """Prepares by itself."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def open(self, place: SinkPlace) -> None:
        self._place, self._rows = place, list[Any]()

    def write(self, epoch: int, records: list[Any]) -> None:
        assert records
        self._rows += records

    def prepare(self, n: int) -> str | None:
        rows, self._rows = self._rows, []
        if not rows:
            return None
        self._outside.may_crash(self._place.worker)
        token = self._outside.token()
        self._outside.prepared[token] = rows
        self._outside.may_crash(self._place.worker)
        return token

    def commit(self, n: int, token: str) -> None:
        self._outside.may_crash(self._place.worker)
        self._outside.see(self._place.sink, token, self._outside.prepared[token])
        self._outside.may_crash(self._place.worker)


class Box(OutboxSink[Any]):
    """Has its rows delivered."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def open(self, place: SinkPlace) -> None:
        self._place = place

    def deliver(self, n: int, token: str, records: Iterable[Any]) -> None:
        self._outside.may_crash(self._place.worker)
        self._outside.see(self._place.sink, token, list(records))
        self._outside.may_crash(self._place.worker)


class OneBox(Box):
    """The same, on one worker, in order."""

    parallel = False
    ordered = True


class SinkLives(Lives):
    """The lives of a job that writes to sinks."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.outside = Outside(Random(f"sinks {seed}"))

    def job(self, flow: Callable[[Any], Any] = dataflow, **options: Any) -> SimulatedJob:
        outside = self.outside

        def with_sinks(given: Any) -> Any:
            stream = flow(given)
            stream.write(PreparingSink(outside), "rows")
            stream.exchange(lambda row: row[1]).write(Box(outside), "box")
            return stream.write(OneBox(outside), "one")

        outside.job = super().job(with_sinks, **options)
        return outside.job

    def live(self, plan: Plan) -> SimulatedLaunch:
        self.outside.is_quiet = plan.is_quiet
        launch = super().live(plan)
        self.seen["crashed outside"] += self.outside.crashes > 0
        if launch.outcome in ("ended", "stopped"):
            self.check_all()
        return launch

    def end(self) -> None:
        """As `Lives.end`; but what is over with something to commit is begun once more, to commit it."""
        self.outside.is_quiet = True
        for outcomes in (("ended", "over"), ("ended", "over"), ("over",), ("ended",)):
            if outcomes == ("ended",):
                self.write(4)
            launch = self.job(processes=self.random.randint(1, 3)).run()
            assert launch.outcome in outcomes, f"{launch.outcome}: {launch.error}"
            self.check_output(whole=True)

    def check_output(self, whole: bool = False) -> None:
        super().check_output(whole)
        for name in SINKS:
            self.outside.check(name)
        if whole:
            self.check_all()

    def check_all(self) -> None:
        """Rows outside are those of the output."""
        wanted = Counter(tuple(line["record"]) for line in self.lines)
        for name in SINKS:
            found = self.outside.check(name)
            assert found == wanted, f"{name}: missing are {wanted - found}, too many {found - wanted}"
        last: dict[str, int] = {}
        for word, number, when in self.outside.seen["one"]:
            if when == "now":
                assert number == last.get(word, 0) + 1, f"one: {word!r} is {number} after {last.get(word)}"
                last[word] = number


def run(seed: int) -> Counter[str]:
    """Run a seed; return what was seen. Raises AssertionError, naming it, if something does not hold."""
    return durable_jobs.run(seed, SinkLives)
