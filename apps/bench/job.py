"""A job under measurement: it reads numbered lines, runs on a thread of its own, and is steered like any other job."""

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from megaflow.control.client.commands import ask_status, stop_job
from megaflow.control.client.conversation import Conversation
from megaflow.control.latency import WINDOW_SECONDS, Histogram, merged
from megaflow.control.launcher_messages import LatencyWindow
from megaflow.errors import MegaflowError, SourceError
from megaflow.job.job_file import Job
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.launch import LaunchOptions, launch
from megaflow.job.launcher.run.run_summary import RunSummary
from megaflow.job.spec import JobSpec
from megaflow.timely.communication.client import Client

LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 60.0


class Running:
    """A job that runs during the `with` block, unless its lines end before."""

    def __init__(self, dataflow: Callable[[Any], Any], lines: Any, writer: Writer, **more: Any) -> None:
        self._spec, self._lines = JobSpec(pickle_app(dataflow), **more), lines
        self._writer = writer
        self._account: RunSummary | None = None
        self._error: BaseException | None = None
        self._job: Job | None = None
        self._known = threading.Event()  # the job has started, or will never start
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
        """Return a conversation with the coordinator, once every worker has read or applied a record."""
        talk = self._connect()
        while not all(worker.lines or worker.records for worker in ask_status(talk, tables=False).workers):
            time.sleep(LOOK_SECONDS)
        return talk

    def rest(self, seconds: float) -> None:
        """Let the job run for some seconds; raise its error if it fails or ends."""
        self._thread.join(seconds)
        if not self._thread.is_alive():
            self._fail()

    def stop(self) -> None:
        """Drain the job and stop it."""
        with self._dial() as client:
            stop_job(Conversation(client, PATIENCE_SECONDS))

    def account(self) -> RunSummary:
        """Wait for the end of the job; return its summary, or raise its error."""
        self._thread.join()
        if self._account is None:
            self._fail()
        return self._account

    def _run(self) -> None:
        try:
            self._account = launch(LaunchOptions(self._spec, self._lines, lambda: self._writer), started=self._show)
        except BaseException as error:  # raised in the main thread
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
                time.sleep(LOOK_SECONDS)  # the job is still starting
        self._fail()

    def _fail(self) -> NoReturn:
        self._thread.join()
        raise self._error or SourceError("the job has ended too early: it needs more lines for what is measured")


def write_numbers(path: Path, lines: int, line_bytes: int = 0) -> None:
    """Write lines that begin with their number, padded to `line_bytes`."""
    with path.open("w", encoding="ascii") as text:
        if line_bytes:
            text.writelines(f"{number} ".ljust(line_bytes - 1, ".") + "\n" for number in range(lines))
        else:
            text.writelines(f"{number}\n" for number in range(lines))


def between(windows: Iterable[LatencyWindow], start: float, end: float) -> Histogram:
    """Return the latencies of the lines completed between two moments, including windows that only overlap."""
    return merged(window for window in windows if start - WINDOW_SECONDS < window.start < end)


def timeline(windows: Iterable[LatencyWindow], origin: float) -> list[dict[str, Any]]:
    """Return for each tenth of a second: its second since the origin, completed lines, their p50, p99 and max in ms.

    The last three are None where no line was completed.
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
    """Return p50, p99 and max of a histogram, in ms."""
    return {"p50": late.quantile(0.5), "p99": late.quantile(0.99), "max": late.max_ms}
