"""A job that does not exist, for tests of the page: statuses and events as a coordinator would report them.

`PretendedJob` has any number of bins and workers. Each `second()` yields the news of one second. The same seed yields
the same news.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

from megaflow.control import job_events as events
from megaflow.control.job_events import JobEvent
from megaflow.control.reports import (
    BusyWorker,
    CheckpointStatus,
    JobStatus,
    JoiningStatus,
    LatencyQuantiles,
    MissingPartition,
    OperatorLoad,
    OperatorStatus,
    StepReport,
    WorkerStatus,
)
from megaflow.control.watermark_messages import HoldsBack, WatermarkStatus

BEGIN = 1_790_000_000.0  # seconds since 1970


class PretendedJob:
    """A job whose state advances by `second`."""

    def __init__(
        self, bins: int = 256, workers: int = 4, operators: tuple[str, ...] = ("count",), seed: int = 0,
        job: str = "orders", begin: float = BEGIN, keys: tuple[str, ...] = ("river", "mountain", "the"),
    ) -> None:  # fmt: skip
        self.rng = random.Random(seed)
        self.job, self.operators, self.hot = job, operators, keys
        self.now, self.epoch, self.number, self.attempt = begin, 10, 0, 1
        self.workers = list(range(workers))
        self.table = [bin * workers // bins for bin in range(bins)]
        self.weights = [self.rng.lognormvariate(0.0, 1.2) for _ in range(bins)]
        self.lines = dict.fromkeys(self.workers, 0)
        self.blocked = 0.0
        self.checkpoint = 0
        self.busy: tuple[BusyWorker, ...] = ()
        self.missing: tuple[MissingPartition, ...] = ()
        self.joining: tuple[JoiningStatus, ...] = ()
        self.stuck = False  # output stands still

    def event(self, body: events.Body) -> JobEvent:
        self.number += 1
        return JobEvent(self.attempt, self.number, self.now, body)

    def second(self, moved: int = 0) -> Iterator[JobEvent | JobStatus]:
        """Yield the news of one second, in which so many bins move. The time is `now` when each is yielded."""
        if self.number == 0:
            yield self.event(events.CoordinatorStarted(0, tuple(self.workers)))
        self.now += 0.3
        yield self.status()
        if moved:
            yield from self.step(moved)
        if int(self.now) % 10 == 0:
            self.checkpoint += 1
            yield self.event(events.CheckpointStarted(self.checkpoint, self.epoch))
            self.now += 0.2
            yield self.event(events.CheckpointCommitted(self.checkpoint, 80_000, 0.2))
        self.now = float(int(self.now + 1))
        self.epoch += 20

    def step(self, moved: int) -> Iterator[JobEvent]:
        """Yield the events of one step: begun, arrived at each new owner, done."""
        chosen = sorted(self.rng.sample(range(len(self.table)), moved))
        moves = []
        for bin in chosen:
            source = self.table[bin]
            others = [worker for worker in self.workers if worker != source]
            moves.append((bin, source, self.rng.choice(others)))
        yield from self.move(moves)

    def move(self, moves: list[tuple[int, int, int]]) -> Iterator[JobEvent]:
        yield self.event(events.StepBegun(self.epoch, tuple(moves)))
        self.now += 0.2
        for operator in self.operators:
            for target in sorted({move[2] for move in moves}):
                bins = tuple(bin for bin, _, to in moves if to == target)
                yield self.event(events.BinsArrived(operator, self.epoch, target, bins, 900 * len(bins), 7, 0.012))
        for bin, _, target in moves:
            self.table[bin] = target
        report = StepReport(self.epoch, len(moves), 900 * len(moves), 7 * len(moves), 0.2)
        yield self.event(events.StepDone(report))

    def status(self) -> JobStatus:
        """Return the status at `now`."""
        bins = len(self.table)
        rates = [weight * self.rng.uniform(0.8, 1.2) * 40 for weight in self.weights]
        order = sorted(range(bins), key=lambda bin: -rates[bin])
        per_worker = dict.fromkeys(self.workers, 0.0)
        for bin, rate in enumerate(rates):
            per_worker[self.table[bin]] = per_worker.get(self.table[bin], 0.0) + rate
        load = OperatorLoad(
            "", tuple(order), tuple(rates[bin] for bin in order), tuple(rates[bin] / 90 for bin in order),
            tuple(int(self.weights[bin] * 30) for bin in order), tuple(int(self.weights[bin] * 4000) for bin in order),
            tuple((key, bin, rates[bin] / 3, 1.0) for key, bin in zip(self.hot, order)),
        )  # fmt: skip
        workers = []
        for worker in self.workers:
            rate = per_worker[worker]
            self.lines[worker] = self.lines.get(worker, 0) + (0 if self.stuck else int(rate))
            late = LatencyQuantiles(*(self.rng.uniform(0.9, 1.1) * each for each in (4.0, 18.0, 45.0)))
            lines = self.lines[worker]
            workers.append(WorkerStatus(
                worker, "running", 4000 + worker, f"127.0.0.1:{7000 + worker}", lines, lines, rate, late,
                self.table.count(worker), 900 + worker, max(0, lines - 40), 3, self.now, self.now / 2,
                memory_bytes=(180 + worker) << 20, blocked_seconds={"queues": self.now * 0.03},
            ))  # fmt: skip
        shown = tuple(
            OperatorStatus(name, bins, tuple(self.table), replace(load, operator=name)) for name in self.operators
        )
        held = HoldsBack("count", "orders", "partition 2", 17, 1)
        watermark = WatermarkStatus(int(self.now * 1e6), lag_seconds=1.5 + self.rng.random(), held_by=held)
        checkpoint = CheckpointStatus(self.checkpoint or None, self.epoch, self.now % 10, 80_000, 0.2)
        frontier = 5 if self.stuck else self.epoch - 2
        return JobStatus(
            self.job, "running", self.epoch, frontier, tuple(workers), shown, checkpoint=checkpoint,
            watermark=watermark, busy=self.busy, missing=self.missing,
            joining=self.joining,
        )  # fmt: skip
