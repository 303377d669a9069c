"""S21: what the viewers of a job's page cost its workers: processor time of a record, and latency.

S1's words in one process, and S4's lines that are due at 50,000 a second in two processes: without a page, with a page
that nobody opens, with one viewer, and with twenty. A viewer is a thread of this process that reads the page's events
as fast as they come. The page's server also runs in this process, so the processor time is that of the workers alone.
At the same rate of lines, a thread of this process asks the page for `/livez` 500 times a second, as many load
balancers would together.
"""

import contextlib
import http.client
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from apps.bench.job import between, write_numbers
from apps.bench.latency import BINS, P50, P99, WARM_UP_SECONDS
from apps.bench.report import Found, Goal
from apps.bench.rescaling_load import LIGHT, numbered
from apps.bench.wordcount import write_text
from apps.bench.workload import Setting, Step, Workload, check_count, one
from apps.wordcount import dataflow
from megaflow.control.latency import BUCKET_RATIO
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.launch import LaunchOptions
from megaflow.job.launcher.run.live_page import LivePage
from megaflow.job.launcher.run.run_summary import RunSummary
from megaflow.job.launcher.run.started_job import JobHandle
from megaflow.job.spec import JobSpec

COST = "µs of a worker a record"
COPIES, COPIES_QUICK = 20, 1
RATE = 50_000
SECONDS, SECONDS_QUICK = 10, 2
VIEWERS = (None, 0, 1, 20)  # None: no page
PROBES = 500  # requests of /livez per second
PROBED = f"a page, {PROBES} /livez a second"
ANSWERED = "requests a second"
READ_BYTES = 1 << 16
DUE: dict[str, Any] = {"processes": 2, "rate": float(RATE), "args": (BINS, *LIGHT)}
MICRO = 1e6


class Viewer(threading.Thread):
    """Reads a page's events until the page ends."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
        self._connection.request("GET", "/events")
        self._events = self._connection.getresponse()
        if self._events.status != http.HTTPStatus.OK:
            raise ConnectionError(f"{url} answers {self._events.status}")
        self.start()

    def run(self) -> None:
        """Read, as fast as something comes."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            while self._events.read1(READ_BYTES):
                pass
        self._connection.close()


class Prober(threading.Thread):
    """Asks a page for `/livez` at a fixed rate until the page ends; requests that are behind follow at once."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
        self.answers = 0
        self.seconds = 0.0
        self.start()

    def run(self) -> None:
        """Ask, when a request is due."""
        began = time.monotonic()
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                time.sleep(max(0.0, began + self.answers / PROBES - time.monotonic()))
                self._connection.request("GET", "/livez")
                answer = self._connection.getresponse()
                if answer.read() and answer.status == http.HTTPStatus.OK:
                    self.answers += 1
                self.seconds = time.monotonic() - began
        self._connection.close()


def probed_step(path: Path) -> Step:
    """Return the step that measures the latency of lines that are due while the page answers health probes."""

    def run() -> Found:
        job = JobHandle(LaunchOptions(JobSpec(pickle_app(numbered), **DUE), f"{path}?unordered", page=LivePage("0")))
        prober = Prober(str(job.web_url))
        summary = job.wait()
        prober.join()
        return {PROBED: {**latency(PROBED, summary), ANSWERED: [prober.answers / prober.seconds]}}

    return Step(f"latency, {PROBED}", run)


def run_job(program: Callable[[Any], Any], lines: str, viewers: int | None, **more: Any) -> tuple[RunSummary, float]:
    """Run a job to the end of its lines; return its summary and the processor seconds of its workers."""
    page = None if viewers is None else LivePage("0")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    job = JobHandle(LaunchOptions(JobSpec(pickle_app(program), **more), lines, page=page))
    watching = [Viewer(str(job.web_url)) for _ in range(viewers or 0)]
    summary = job.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    for viewer in watching:
        viewer.join()
    return summary, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def latency(name: str, summary: RunSummary) -> dict[str, list[float]]:
    """Return the latencies of lines that were due, after the warm-up."""
    check_count(name, summary.records, summary.lines)
    late = between(summary.latency, min(begin for begin, _ in summary.flows) + WARM_UP_SECONDS, float("inf"))
    return {P50: [late.quantile(0.5)], P99: [late.quantile(0.99)]}


def row(viewers: int | None) -> str:
    """Return the name of a contender."""
    return "no page" if viewers is None else f"{viewers} viewer{'s' if viewers != 1 else ''}"


def words_step(path: Path, words: int, viewers: int | None) -> Step:
    """Return the step that counts words."""

    def run() -> Found:
        summary, seconds = run_job(dataflow, str(path), viewers)
        check_count(row(viewers), summary.records, words)
        return one(row(viewers), {COST: MICRO * seconds / words})

    return Step(f"words, {row(viewers)}", run)


def latency_step(path: Path, viewers: int | None) -> Step:
    """Return the step that measures the latency of lines that are due."""

    def run() -> Found:
        summary, _ = run_job(numbered, f"{path}?unordered", viewers, **DUE)
        return {row(viewers): latency(row(viewers), summary)}

    return Step(f"latency, {row(viewers)}", run)


def open_viewers(setting: Setting) -> Sequence[Step]:
    """Return the contenders."""
    return list(steps(setting))


def steps(setting: Setting) -> Iterator[Step]:
    """Yield the contenders: all that count words, then all with a rate."""
    words = write_text(setting.text, setting.size(COPIES, COPIES_QUICK), text := setting.folder / "text.txt")
    for viewers in VIEWERS:
        yield words_step(text, words, viewers)
    numbers = setting.folder / "numbers.txt"
    write_numbers(numbers, round(RATE * (setting.size(SECONDS, SECONDS_QUICK) + WARM_UP_SECONDS)))
    for viewers in VIEWERS:
        yield latency_step(numbers, viewers)
    yield probed_step(numbers)


def goals() -> Iterator[Goal]:
    """Yield the goals, each a multiple of the figure without a page. Latencies are counted in steps of 4 %."""
    for viewers, limit in ((0, 1.01), (1, 1.01), (20, 1.05)):
        yield Goal(row(viewers), COST, limit, of=(row(None),))
        yield Goal(row(viewers), P99, BUCKET_RATIO**2, of=(row(None),))
    yield Goal(PROBED, P99, BUCKET_RATIO**2, of=(row(None),))
    yield Goal(PROBED, ANSWERED, 0.9 * PROBES, at_least=True)


S21 = Workload(
    "S21",
    "what the viewers of a page cost a job: words in one process; 50,000 lines a second in two",
    open_viewers,
    tuple(goals()),
    base=row(None),
    notes=("the time of the workers' processes with their start; the page's server runs in the launcher",),
)
