"""The demonstration that `make demo` runs.

Spark reads Python's own standard library as a stream of lines; two worker processes count
its words; half of the bins change their owner while it runs; at the end the counts are
compared with `collections.Counter`. Then the other way round: a program of Spark's has two worker processes on its
executors, which fold a stream of orders while half of their bins move (`spark_orders.py`). Without Java the files are
read directly, and that is all.
"""

import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import click

from apps.wordcount import dataflow
from megaflow.cli.text import bytes_text, table_text
from megaflow.control.client.commands import ask_status, run_plan, total
from megaflow.control.client.conversation import Conversation
from megaflow.control.client.move_request import Plan, Selection, make_plan, table_of
from megaflow.control.launcher_messages import LatencyWindow
from megaflow.control.reports import JobStatus, MoveReport
from megaflow.control.worker.latency import merged
from megaflow.errors import MegaflowError, SourceError
from megaflow.job.job_file import Job
from megaflow.job.launcher.epoch_merge import Writer
from megaflow.job.launcher.function_pickler import pickle_app
from megaflow.job.launcher.launch import launch
from megaflow.job.launcher.run_summary import RunSummary
from megaflow.job.spec import Form, JobSpec
from megaflow.spark.preflight import find_java
from megaflow.timely.communication.client import Client

LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3"}
LINES_PER_SECOND = 40_000  # without Spark: so that the move happens while lines flow
MOVE_AFTER_SHARE = 0.3  # of the lines
BINS_PER_STEP = 8
RETRY_SECONDS = 0.1
ORDERS = Path(__file__).with_name("spark_orders.py")


@dataclass
class Counts(Writer):
    """The job's output as it is written: the last count of each word."""

    form: Form = "records"
    last: dict[str, int] = field(default_factory=dict)
    records: int = 0
    skipped: list[str] = field(default_factory=list)  # words whose counts did not go up by one

    def write(self, epoch: int, records: list[tuple[str, int]]) -> None:
        """Take in the records of one closed epoch; within an epoch those of a word are in order."""
        self.records += len(records)
        for word, count in records:
            if count != self.last.get(word, 0) + 1:
                self.skipped.append(word)
            self.last[word] = count


class Running:
    """The job, launched on a thread of its own so that this one can steer it."""

    def __init__(self, spec: JobSpec, lines: str) -> None:
        self.counts = Counts()
        self.summary: RunSummary | None = None
        self.error: BaseException | None = None
        self._spec, self._lines = spec, lines
        self._job: Job | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.summary = launch(self._spec, self._lines, lambda: self.counts, started=self._show, report=click.echo)
        except BaseException as error:  # handed to the main thread by `finish`
            self.error = error
        self._started.set()

    def _show(self, job: Job) -> None:
        self._job = job
        self._started.set()

    def converse(self) -> Conversation:
        """A conversation with the job's coordinator, once there is one."""
        self._started.wait()
        while self.alive and self._job is not None:
            try:
                job = self._job
                return Conversation(Client.connect(job.host, job.port, job.secret.encode(), "control", {}), 60.0)
            except OSError:
                time.sleep(RETRY_SECONDS)
        self._fail()

    @property
    def alive(self) -> bool:
        """Whether the job has not ended."""
        return self._thread.is_alive()

    def finish(self) -> RunSummary:
        """Wait for the end; raise what the job raised."""
        self._thread.join()
        if self.summary is None:
            self._fail()
        return self.summary

    def _fail(self) -> NoReturn:
        self._thread.join()
        raise self.error or SourceError("the job ended before it could be steered")


@dataclass
class Text:
    """The standard library, copied flat: Spark skips names with a leading _ or . and does not recurse."""

    folder: Path
    files: int = 0
    lines: int = 0
    words: Counter[str] = field(default_factory=Counter)


def copy_library(folder: Path) -> Text:
    """Copy the .py files of the standard library under plain names, and count them the plain way."""
    text = Text(folder)
    root = Path(sysconfig.get_path("stdlib"))
    for source in sorted(root.rglob("*.py")):
        if LEFT_OUT.isdisjoint(source.relative_to(root).parts):
            content = source.read_bytes().decode("utf-8", "replace")
            (folder / f"f{text.files:04}.txt").write_bytes(content.encode())
            text.files += 1
            lines = content.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
            text.lines += len(lines) if content else 0
            for line in lines:
                text.words.update(line.split())
    return text


def lines_spec(folder: Path) -> tuple[str, float | None]:
    """Where the lines come from, and how fast: through Spark if there is a Java that can run it."""
    try:
        find_java()
    except SourceError as error:
        click.echo(f"no Spark ({error}); reading the files directly")
        return f"{folder}/*.txt", float(LINES_PER_SECOND)
    return f"spark:text:{folder}?trigger=availableNow", None


def await_lines(running: Running, talk: Conversation, text: Text, bar: Any, share: float) -> JobStatus:
    """Show progress until a share of the lines is read; return the job's status then."""
    while True:
        status = ask_status(talk)
        read = sum(worker.lines for worker in status.workers)
        bar.update(max(0, read - bar.pos))
        if read >= share * text.lines or not running.alive:
            return status
        time.sleep(RETRY_SECONDS)


def half_of(status: JobStatus) -> Plan:
    """A plan after which half of the bins have the other owner."""
    table = table_of(status)
    swapped = [1 - worker if bin < len(table) // 2 else worker for bin, worker in enumerate(table)]
    return make_plan(status, Selection(map_text=" ".join(map(str, swapped)), strategy="batched", batch=BINS_PER_STEP))


def steer(running: Running, text: Text) -> tuple[MoveReport, float, float]:
    """Move half of the bins in the middle of the run; return what was moved and when (seconds)."""
    talk = running.converse()
    with click.progressbar(length=text.lines, label="counting", file=sys.stderr) as bar:
        status = await_lines(running, talk, text, bar, MOVE_AFTER_SHARE)
        plan = half_of(status)
        began = time.monotonic()
        moved = []
        for done in run_plan(talk, plan, time.sleep):
            moved.append(done)
            await_lines(running, talk, text, bar, 0.0)
        ended = time.monotonic()
        while running.alive:
            try:
                await_lines(running, talk, text, bar, 1.0)
            except MegaflowError:
                break  # the job has ended between two questions
            time.sleep(RETRY_SECONDS)
        bar.update(max(0, text.lines - bar.pos))
    return total(moved), began, ended


def latency_rows(windows: list[LatencyWindow], began: float, ended: float) -> list[list[str]]:
    """p50, p99 and max of the lines done before, during and after the move."""
    parts = {
        "before": [window for window in windows if window.start < began],
        "during": [window for window in windows if began <= window.start < ended],
        "after": [window for window in windows if window.start >= ended],
    }
    rows = []
    for name, part in parts.items():
        late = merged(part)
        figures = [f"{late.quantile(q):.1f}" for q in (0.5, 0.99)] + [f"{late.max_ms:.1f}"]
        rows.append([f"{name} the move", f"{late.lines:,}", *figures])
    return rows


def main() -> int:
    """Run the demonstration; 0 if the counts are equal."""
    with tempfile.TemporaryDirectory(prefix="megaflow-demo-") as name:
        folder = Path(name)
        text = copy_library(folder)
        click.echo(f"Python's standard library: {text.files} files, {text.lines:,} lines, {text.words.total():,} words")
        lines, rate = lines_spec(folder)
        if rate is None:
            click.echo("starting two worker processes, and Spark (a few seconds)")
        job = f"demo-{folder.name[-6:]}"
        running = Running(JobSpec(pickle_app(dataflow), processes=2, rate=rate, name=job), lines)
        moved, began, ended = steer(running, text)
        summary = running.finish()
    show(text, running.counts, summary, moved, began, ended)
    counts = running.counts
    if counts.last != dict(text.words) or counts.skipped:
        click.echo("counts DIFFER")
        return 1
    click.echo("counts equal")
    if rate is not None:
        return 0
    click.echo("\nNow Spark is the engine: a stream of orders, folded on its executors while half of the bins move")
    return subprocess.run([sys.executable, str(ORDERS)], check=False).returncode


def show(text: Text, counts: Counts, summary: RunSummary, moved: MoveReport, began: float, ended: float) -> None:
    """Print the table."""
    windows = sorted(summary.latency, key=lambda window: window.start)
    click.echo(f"{summary.lines:,} lines, {counts.records:,} words, {len(text.words):,} different")
    seconds = summary.flow_seconds
    click.echo(f"{counts.records / seconds:,.0f} words/s while lines flowed ({seconds:.1f} s)")
    click.echo(
        f"{moved.bins} bins moved in {moved.steps} steps, {moved.keys:,} keys, "
        f"{bytes_text(moved.bytes)}, {ended - began:.1f} s"
    )
    click.echo(table_text(["latency", "lines", "p50 ms", "p99 ms", "max ms"], latency_rows(windows, began, ended)))


if __name__ == "__main__":
    sys.exit(main())
