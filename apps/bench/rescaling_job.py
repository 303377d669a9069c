"""A job of the rescaling benchmarks: launched on a thread of its own, steered as `megaflow control` steers one."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, NoReturn, Self

from apps.bench.rescaling_load import key_of
from megaflow.control.commands import (
    Conversation,
    add_processes,
    ask_status,
    check_removal,
    remove_worker,
    run_plan,
    stop_job,
    total,
)
from megaflow.control.messages import LatencyWindow
from megaflow.control.selection import Selection, make_plan, plan_removal
from megaflow.control.statistics import WINDOW_SECONDS, Histogram, merged
from megaflow.errors import MegaflowError, SourceError
from megaflow.run.app import pickle_app
from megaflow.run.gather import Writer
from megaflow.run.job import Job
from megaflow.run.launch import RunOptions, launch
from megaflow.run.loop import Account
from megaflow.run.rendering import Form
from megaflow.timely.communication.client import Client

LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 60.0


class Running:
    """A job that runs while the `with` block does, unless its lines end before."""

    def __init__(self, dataflow: Callable[[Any], Any], lines: Any, writer: Writer, **more: Any) -> None:
        self._options = RunOptions(pickle_app(dataflow), lines, **more)
        self._writer = writer
        self._account: Account | None = None
        self._error: BaseException | None = None
        self._job: Job | None = None
        self._known = threading.Event()  # whether there is a job, or will never be one
        self._client: Client | None = None
        self._thread = threading.Thread(target=self._run, name="launcher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.close()
        if error is None:
            self.account()
        elif self._known.is_set() and self._job is not None and self._thread.is_alive():
            try:
                self.stop()
            except MegaflowError as other:
                error.add_note(f"and the job could not be stopped: {other}")
            self._thread.join(PATIENCE_SECONDS)

    def converse(self) -> Conversation:
        """Return a conversation with the coordinator, once all workers have read or applied something."""
        talk = self._connect()
        while not all(worker["lines"] or worker["records"] for worker in ask_status(talk)["workers"]):
            time.sleep(LOOK_SECONDS)
        return talk

    def rest(self, seconds: float) -> None:
        """Let it run for a while; raise what made it fail."""
        self._thread.join(seconds)
        if not self._thread.is_alive():
            self._fail()

    def stop(self) -> None:
        """Drain it and have it end."""
        with self._dial() as client:
            stop_job(Conversation(client, PATIENCE_SECONDS))

    def account(self) -> Account:
        """Wait for its end; return the account, or raise what made it fail."""
        self._thread.join()
        if self._account is None:
            self._fail()
        return self._account

    def _run(self) -> None:
        try:
            self._account = launch(self._options, lambda: self._writer, started=self._show)
        except BaseException as error:  # for the main thread
            self._error = error
        self._known.set()

    def _show(self, job: Job) -> None:
        self._job = job
        self._known.set()

    def _connect(self) -> Conversation:
        self._client = self._dial()
        return Conversation(self._client, PATIENCE_SECONDS)

    def _dial(self) -> Client:
        self._known.wait()
        while self._job is not None and self._thread.is_alive():
            try:
                return Client.connect(self._job.host, self._job.port, self._job.secret.encode(), "control", {})
            except OSError:
                time.sleep(LOOK_SECONDS)  # it is starting
        self._fail()

    def _fail(self) -> NoReturn:
        self._thread.join()
        raise self._error or SourceError("the job has ended too early: it needs more lines for what is measured")


@dataclass(frozen=True, slots=True)
class Growth:
    """One process was added, as `add-workers 1 --balance` adds it. Moments are seconds of the machine's clock."""

    began: float
    joined: float  # and may own bins
    ended: float  # and owns its share
    worker: int
    seconds: dict[str, float]  # phase -> duration; together they are all
    bytes: int  # of progress
    moved: dict[str, Any]  # the account of the moves

    def record(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return asdict(self)


def grow(talk: Conversation) -> Growth:
    """Add a process and give it its share of the bins."""
    began = time.monotonic()
    record = add_processes(talk, 1)
    joined = time.monotonic()
    [join] = record["joins"]
    moved = total(list(run_plan(talk, make_plan(ask_status(talk), Selection(balance=True)), time.sleep)))
    ended = time.monotonic()
    asking = joined - began - sum(join["seconds"].values())  # until it was heard, and until the answer had come
    seconds = {"asking": asking, **join["seconds"], "moves": ended - joined}
    return Growth(began, joined, ended, join["workers"][0], seconds, join["bytes"], moved)


def shrink(talk: Conversation, worker: int) -> None:
    """Have a process leave, as `remove-workers` does."""
    check_removal(talk, worker)
    for _ in run_plan(talk, plan_removal(ask_status(talk), worker), time.sleep):
        pass
    remove_worker(talk, worker)


class Tally:
    """The outputs of `rescaling_load.numbered`: which lines were counted, and when each worker first did it."""

    form: Form = "records"

    def __init__(self, lines: int) -> None:
        """`lines` is how many there are to read, at most."""
        self.first: dict[int, float] = {}  # worker -> when its first output came, seconds
        self._times = bytearray(lines)  # number of a line -> how often it was counted
        self._last: dict[int, int] = {}  # key -> count
        self._wrong = 0  # counts that were not the one before and one more

    def write(self, epoch: int, records: list[tuple[int, int, int]]) -> None:
        """Take in the records of an epoch; those of a key are in order."""
        last, now = self._last, time.monotonic()
        for worker, number, count in records:
            key = key_of(number)
            if count != last.get(key, 0) + 1:
                self._wrong += 1
            last[key] = count
            self._times[number] += 1
            if worker not in self.first:
                self.first[worker] = now

    def is_exact(self, read: int) -> bool:
        """Whether so many different lines were counted, each once, as a Counter counts them."""
        once = [number for number, times in enumerate(self._times) if times == 1]
        return not self._wrong and len(once) == read and Counter(map(key_of, once)) == self._last

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing is open."""


def between(windows: Iterable[LatencyWindow], start: float, end: float) -> Histogram:
    """Return the latencies of the lines that were done then; windows that begin before or end after are included."""
    return merged(window for window in windows if start - WINDOW_SECONDS < window.start < end)


def timeline(windows: Iterable[LatencyWindow], origin: float) -> list[dict[str, Any]]:
    """Return for each tenth of a second: its second since the origin, lines done, their p50, p99 and max in ms.

    The latter are None where no line was done.
    """
    by_start: dict[int, list[LatencyWindow]] = {}
    for window in windows:
        by_start.setdefault(round(window.start / WINDOW_SECONDS), []).append(window)
    points = []
    for number in range(min(by_start), max(by_start) + 1) if by_start else ():
        late = merged(by_start.get(number, ()))
        known = latency(late) if late.lines else dict.fromkeys(latency(late))
        points.append({"second": number * WINDOW_SECONDS - origin, "lines": late.lines, **known})
    return points


def latency(late: Histogram) -> dict[str, float]:
    """Return the figures of a histogram that are shown: p50, p99 and max in ms."""
    return {"p50": late.quantile(0.5), "p99": late.quantile(0.99), "max": late.max_ms}
