"""Key-count on two processes under a steady load: started, warmed up and calm."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from apps.bench.experiment import Record
from apps.bench.job import Running, between, latency, write_numbers
from apps.bench.migration_load import Packed, key_count
from megaflow.control.client.commands import ask_status
from megaflow.control.client.conversation import Conversation
from megaflow.control.latency import WINDOW_SECONDS
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.launch import LaunchOptions, launch
from megaflow.job.launcher.run.run_summary import RunSummary
from megaflow.job.spec import JobSpec

PROCESSES = 2
RATE_SHARE = 0.2  # of the processes' capacity, so that a worker that owns a million keys keeps up
TRIAL_LINES = 200_000
TRIAL_KEYS = 10_000
CALM_SECONDS = 0.1  # between two samples
CALM_SHARE = 0.15  # greatest deviation of the reading rate from the rate of the load
PATIENCE_SECONDS = 40.0  # for the job to become calm


@dataclass(frozen=True, slots=True)
class Load:
    """Number of keys and rate of the lines of a job."""

    bins: int
    keys: int
    value_bytes: int
    rate: float  # lines per second
    turn_seconds: float = 0.0  # see `key_count`

    @property
    def args(self) -> tuple[str, ...]:
        """Arguments of the dataflow."""
        return str(self.bins), str(self.keys), str(self.value_bytes), str(self.turn_seconds)


class KeyCount:
    """A running job, made by `calm_job`."""

    def __init__(self, running: Running, talk: Conversation, outputs: Packed, load: Load) -> None:
        self.running = running
        self.talk = talk
        self.load = load
        self.account: RunSummary | None = None  # set when the job has ended
        self.pids = {worker.id: worker.pid for worker in ask_status(talk, tables=False).workers}
        self._outputs = outputs

    @property
    def ended(self) -> RunSummary:
        """Summary of the job, once it has ended."""
        assert self.account is not None, "it runs"
        return self.account

    def is_exact(self) -> bool:
        """Whether all counts are right, once the job has ended."""
        return self._outputs.is_exact(self.ended.lines)

    def figures(self, start: float, end: float) -> Record:
        """Return the latencies of the lines completed between two moments, once the job has ended."""
        late = between(self.ended.latency, start, end)
        return {"seconds": end - start, "lines": late.lines, **latency(late)}

    def await_calm(self) -> None:
        """Wait until lines are read as fast as they come, twice in a row. Raises ClickException if they never are."""
        until, calm, before = time.monotonic() + PATIENCE_SECONDS, 0, self._lines()
        while calm < 2:
            self.running.rest(CALM_SECONDS)
            now = self._lines()
            speed = (now[1] - before[1]) / (now[0] - before[0])
            calm = calm + 1 if abs(speed / self.load.rate - 1) < CALM_SHARE else 0
            before = now
            if time.monotonic() > until:
                raise click.ClickException(f"{self.load.rate:,.0f} lines/s are too many for this machine: use --rate")

    def _lines(self) -> tuple[float, int]:
        workers = ask_status(self.talk, tables=False).workers
        return time.monotonic(), sum(worker.lines for worker in workers)


@contextlib.contextmanager
def calm_job(load: Load, lines: str) -> Iterator[KeyCount]:
    """Run a job during the block, which begins when all keys have their state and the job keeps up."""
    outputs = Packed(load.keys)
    with Running(key_count, lines, outputs, processes=PROCESSES, rate=load.rate, args=load.args) as running:
        job = KeyCount(running, running.converse(), outputs, load)
        while not outputs.began:
            running.rest(CALM_SECONDS)
        job.await_calm()
        yield job
        running.stop()
    job.account = running.account()


def before(moment: float) -> float:
    """Return the end of a stretch whose latency windows all end before this moment."""
    return moment - WINDOW_SECONDS


def rate_for(given: float, value_bytes: int, folder: Path) -> float:
    """Return a rate that two processes can sustain: the given one, or else a share of what a short trial reaches."""
    if given:
        return given
    path = folder / "trial.txt"
    write_numbers(path, TRIAL_LINES)
    args = Load(bins=256, keys=TRIAL_KEYS, value_bytes=value_bytes, rate=0.0).args
    account = launch(LaunchOptions(JobSpec(pickle_app(key_count), processes=PROCESSES, args=args), f"{path}?unordered"))
    return max(1000.0, round(RATE_SHARE * account.lines / account.flow_seconds, -3))


def medians(records: list[Record], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the median of each named figure.

    >>> medians([{"max": 3.0}, {"max": 9.0}, {"max": 4.0}], ("max",))
    {'max': 4.0}
    """
    return {name: sorted(record[name] for record in records)[len(records) // 2] for name in names}
