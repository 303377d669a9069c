"""Random runs of whole durable jobs that write to sinks, with all the faults of `durable_jobs`.

The outside system that the sinks write to outlives all processes. The test may also kill a process just before or just
after it prepares, commits or delivers something there. All rules of durable jobs hold. In addition,
1. no row ever appears twice outside, and in the end each appears once;
2. when a job has ended or was stopped, all of its output is also outside;
3. outside there is only what the newest commit contains, and none of the commit's tokens is forgotten;
4. after a job has ended or was stopped, no token waits, and the next job commits nothing again;
5. if one sink writes everything in order, each key's rows appear in order, otherwise each token's rows do.

There are three sinks: one that prepares rows itself; an outbox behind an `exchange`, which may bring records of any
epoch to a worker that has just joined; and an outbox with one worker that writes everything in order.
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
from tests.simulation.durable_jobs import Attempts, Plan, dataflow

SINKS = ("rows", "box", "one")
CRASH_SHARE = 0.01  # share of the outside operations


class Outside:
    """The outside system, where rows are prepared and become visible, and the simulated job that writes there."""

    def __init__(self, random: Random) -> None:
        self.job: SimulatedJob | None = None
        self.crashes = 0
        self.is_quiet = False  # whether nothing is killed
        self.prepared: dict[str, list[Any]] = {}  # token -> rows
        self.marks: dict[str, set[str]] = {name: set() for name in SINKS}  # sink -> visible tokens
        self.seen: dict[str, list[Any]] = {name: [] for name in SINKS}  # sink -> visible rows
        self._random = random

    def token(self) -> str:
        """Return a new token."""
        return f"{len(self.prepared)} of these"

    def see(self, sink: str, token: str, rows: list[Any]) -> None:
        """Make rows visible."""
        if token in self.marks[sink]:
            return
        last: dict[Any, int] = {}
        for word, number, when in rows:
            assert when == "again" or number > last.get(word, 0), f"{sink}: {word!r} is {number} after {last[word]}"
            last[word] = number if when == "now" else last.get(word, 0)
        self.marks[sink].add(token)
        self.seen[sink] += rows

    def may_crash(self, worker: int) -> None:
        """Perhaps kill the process of a worker."""
        assert self.job is not None
        if self.is_quiet or self._random.random() >= CRASH_SHARE:
            return
        for process in self.job.processes:
            if worker in process.programs and process.exit_code is None:
                self.crashes += 1
                self.job.kill(process)
                raise Crashed

    def check(self, sink: str) -> Counter[Any]:
        """Return the visible rows; check that each appears once."""
        rows = Counter(self.seen[sink])
        assert not rows or max(rows.values()) == 1, f"{sink} has twice {[row for row in rows if rows[row] > 1]}"
        return rows


class PreparingSink(Sink[Any]):
    """Sink that prepares rows itself."""

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
    """Sink whose rows an outbox delivers."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def open(self, place: SinkPlace) -> None:
        self._place = place

    def deliver(self, n: int, token: str, records: Iterable[Any]) -> None:
        self._outside.may_crash(self._place.worker)
        self._outside.see(self._place.sink, token, list(records))
        self._outside.may_crash(self._place.worker)


class OneBox(Box):
    """Outbox with one worker that writes everything in order."""

    parallel = False
    ordered = True


class SinkAttempts(Attempts):
    """The attempts of a job that writes to sinks."""

    kinds: tuple[type[PreparingSink], type[Box], type[OneBox]] = PreparingSink, Box, OneBox  # for SINKS
    outside: Outside

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.outside = Outside(Random(f"sinks {seed}"))

    def job(self, flow: Callable[[Any], Any] = dataflow, **options: Any) -> SimulatedJob:
        outside, (rows, box, one) = self.outside, self.kinds

        def with_sinks(given: Any) -> Any:
            stream = flow(given)
            stream.write(rows(outside), "rows")
            stream.exchange(lambda row: row[1]).write(box(outside), "box")
            return stream.write(one(outside), "one")

        outside.job = super().job(with_sinks, **options)
        return outside.job

    def live(self, plan: Plan) -> SimulatedLaunch:
        self.outside.is_quiet = plan.is_quiet
        launch = super().live(plan)
        self.seen["crashed outside"] += self.outside.crashes > 0
        if launch.outcome in ("ended", "stopped"):
            self.check_all()
            keeper = self.storage.live
            failed = any("delivers the last rows again" in report for report in launch.reports)
            assert keeper is not None and (failed or not keeper.latest.tokens), "what is committed waits in the store"
        return launch

    def end(self) -> None:
        """End as `Attempts.end` does, but run a job that is over once more if it still has something to commit."""
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
        """Check that the rows outside equal the output."""
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
    """Run a seed; return counts of what happened. Raise an AssertionError that names it if a rule is broken."""
    return durable_jobs.run(seed, SinkAttempts)
