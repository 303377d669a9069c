"""S4: latency of records in an open loop, on two processes, over 10,000 keys.

Every 10 ms a number of records is due, even if no worker is ready to read them. Each carries the moment at which it
was due, on the clock that all processes of a machine share. Its latency is the time from then until the worker that
owns its key emits the new count. So the time that a record waits for a busy worker counts in full (no coordinated
omission): a late tick is sent late, with its original moment in it.

This is an engine program, like those of the peers. Beside it runs a job of `megaflow run` at the same rate, with the
engine's own measure of latency: from the moment at which the first line of a batch was due until its *epoch was closed
everywhere*. Epochs are 10 ms long, so this adds about 10 ms. No goal refers to it.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from apps.bench.cluster import run_cluster
from apps.bench.job import between, write_numbers
from apps.bench.plain import TICK_SECONDS, keys_of_ticks
from apps.bench.report import Found, Goal
from apps.bench.rescaling_load import LIGHT, numbered
from apps.bench.workload import PLAIN, Setting, Step, Workload, check_count, one, plain
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.launch import LaunchOptions, launch
from megaflow.job.spec import JobSpec
from megaflow.timely import InputHandle, ProbeHandle, Worker

P50, P99, MAX = "p50 ms", "p99 ms", "max ms"
RATES = (10_000, 50_000, 100_000)  # records per second, of both processes together
RATES_QUICK = (1_000,)
SECONDS, SECONDS_QUICK = 3, 1
WARM_UP_SECONDS = 1.0  # left out
PROCESSES = 2
HEAD_START_SECONDS = 0.1  # until the first tick is due, so that both processes are ready
BINS = "256"

Late = list[tuple[float, int]]  # (ms, records with this latency)


def count(key: int, due: float, total: int | None) -> tuple[int, list[tuple[float, int]]]:
    """Return a key's new count, with the moment when the record was due."""
    total = (total or 0) + 1
    return total, [(due, total)]


@dataclass(eq=False)
class Counted:
    """Records that come out of the fold at a worker."""

    late: Late = field(default_factory=list)
    came: int = 0  # records, including those of the warm-up
    ready: float = float("inf")  # from when latencies count, seconds

    def note(self, epoch: object, batch: list[tuple[float, int]]) -> None:
        """Count a batch that comes out now."""
        now, ready = time.monotonic(), self.ready
        self.came += len(batch)
        by_moment = Counter(map(itemgetter(0), batch))
        self.late.extend(((now - due) * 1000, records) for due, records in by_moment.items() if due >= ready)


def main(worker: Worker) -> dict[str, Any]:
    """Send this worker's share of the records when they are due; return the latencies of its outputs."""
    rate, seconds = (float(word) for word in worker.args)
    ticks = keys_of_ticks(rate / worker.peers, round((seconds + WARM_UP_SECONDS) / TICK_SECONDS), worker.index)
    handle: InputHandle[tuple[int, float]] = InputHandle()
    probe = ProbeHandle()
    counted = Counted()
    with worker.dataflow("latency") as scope:
        scope.input_from(handle).stateful_state_machine(count).inspect_batch(counted.note).probe_with(probe)
    handle.advance_to(1)
    worker.step_while(lambda: probe.less_than(1))  # both processes have started
    start = time.monotonic() + HEAD_START_SECONDS
    counted.ready = start + WARM_UP_SECONDS
    for tick, keys in enumerate(ticks):
        due = start + tick * TICK_SECONDS
        while (left := due - time.monotonic()) > 0:
            worker.step_or_park(left)
        handle.send_batch([(key, due) for key in keys])
        handle.advance_to(tick + 2)
        worker.step()
    handle.close()
    worker.step_while(lambda: not probe.done())
    return {"late": counted.late, "came": counted.came, "sent": sum(map(len, ticks))}


def figures(late: Sequence[tuple[float, int]]) -> dict[str, float]:
    """Return p50, p99 and max of (ms, records).

    >>> figures([(5.0, 1), (1.0, 98), (2.0, 1)])
    {'p50 ms': 1.0, 'p99 ms': 2.0, 'max ms': 5.0}
    """
    ordered = sorted(late)
    records = sum(number for _, number in ordered)

    def quantile(share: float) -> float:
        wanted = share * records
        for ms, number in ordered:
            wanted -= number
            if wanted <= 0:
                return ms
        return ordered[-1][0]

    return {P50: quantile(0.5), P99: quantile(0.99), MAX: ordered[-1][0]}


def row(name: str, rate: int) -> str:
    """Return the name of a contender at a rate."""
    return f"{name}, {rate // 1000} k/s"


def run_program(name: str, rate: int, seconds: int) -> Found:
    """Run the engine program on two processes."""
    found = run_cluster(main, PROCESSES, [rate, seconds])
    check_count(name, sum(process["came"] for process in found), sum(process["sent"] for process in found))
    return one(name, figures([each for process in found for each in process["late"]]))


def run_job(name: str, path: Path, rate: int) -> Found:
    """Run a job whose lines are due at this rate."""
    spec = JobSpec(pickle_app(numbered), processes=PROCESSES, rate=float(rate), args=(BINS, *LIGHT))
    account = launch(LaunchOptions(spec, f"{path}?unordered"))
    check_count(name, account.records, account.lines)
    late = between(account.latency, min(begin for begin, _ in account.flows) + WARM_UP_SECONDS, float("inf"))
    return one(name, {P50: late.quantile(0.5), P99: late.quantile(0.99), MAX: late.max_ms})


def run_plain(name: str, rate: int, seconds: int) -> Found:
    """Run the plain loop, which sleeps until records are due."""
    return one(name, figures(plain("latency", str(rate), str(seconds), str(WARM_UP_SECONDS))["late"]))


def turns(setting: Setting, rate: int, seconds: int) -> Sequence[Step]:
    """Return the contenders at one rate."""
    path = setting.folder / f"{rate}.txt"
    write_numbers(path, round(rate * (seconds + WARM_UP_SECONDS)))
    loop, program, job = (row(name, rate) for name in (PLAIN, "megaflow", "megaflow run, epoch closed"))
    return (
        Step(loop, lambda: run_plain(loop, rate, seconds)),
        Step(program, lambda: run_program(program, rate, seconds)),
        Step(job, lambda: run_job(job, path, rate)),
    )


def open_latency(setting: Setting) -> Sequence[Step]:
    """Return the contenders, rate by rate."""
    rates = RATES_QUICK if setting.quick else RATES
    return [step for rate in rates for step in turns(setting, rate, setting.size(SECONDS, SECONDS_QUICK))]


S4 = Workload(
    "S4",
    "latency in an open loop, two processes, ticks of 10 ms, 10,000 keys",
    open_latency,
    (
        Goal(row("megaflow", 10_000), P50, 2.0),
        Goal(row("megaflow", 10_000), P99, 6.0),
        Goal(row("megaflow", 50_000), P99, 10.0),
        Goal(row("megaflow", 100_000), P99, 20.0),
    ),
    base=None,
    notes=(
        "each record carries the moment it was due; it is late until its new count is out (no coordinated omission)",
        "'megaflow run' is told by the engine: from when a batch's first line was due until its epoch is closed",
    ),
)
