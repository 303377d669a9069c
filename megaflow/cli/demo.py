"""`megaflow demo`: half of the state moves while two processes count words, and every count stays right.

Spark reads Python's own standard library as a stream of lines. Without Java, megaflow reads the files itself. At the
end the counts are compared with `collections.Counter`.
"""

import sys
import sysconfig
import tempfile
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import click

from megaflow.cli.doctor import EXTRAS, is_there
from megaflow.cli.help import Command
from megaflow.errors import MegaflowError, SourceError

LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3"}
LINES_PER_SECOND = 40_000  # without Spark: so that the move happens while lines flow
MOVE_AFTER_SHARE = 0.3  # of the words
BAR_EACH = 1000  # words


@dataclass
class Text:
    """The standard library, copied flat: Spark skips names with a leading _ or . and does not recurse."""

    folder: Path
    files: int = 0
    lines: int = 0
    words: Counter[str] = field(default_factory=Counter)


def copy_library(folder: Path) -> Text:
    """Copy the .py files of the standard library under plain names, and count their words with a Counter."""
    from megaflow.cli.templates.wordcount.app import words_of

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
                text.words.update(word for word, _ in words_of(line))
    return text


def start(folder: Path) -> tuple[Any, bool]:
    """Start the job; tell whether its lines come from Spark. Without Java they come from the files."""
    from megaflow.cli.templates.wordcount.app import dataflow
    from megaflow.job.launcher.run.python_function import start

    has_page = all(map(is_there, EXTRAS["web"][0]))
    options: dict[str, Any] = {"processes": 2, "name": f"demo-{folder.name[-6:]}", "web": 0 if has_page else None}
    try:
        job, has_spark = start(dataflow, lines=f"spark:text:{folder}?trigger=availableNow", **options), True
    except SourceError as error:
        click.echo(f"no Spark ({error}); reading the files directly")
        job, has_spark = start(dataflow, lines=f"{folder}/*.txt", rate=float(LINES_PER_SECOND), **options), False
    page = f"watch it at {job.web_url}" if has_page else "no live page; it needs pip install 'megaflow[web]'"
    click.echo(page, err=True)
    return job, has_spark


@dataclass
class Counts:
    """The job's output, as it comes: the last count of each word."""

    last: dict[str, int] = field(default_factory=dict)
    records: int = 0
    skipped: list[str] = field(default_factory=list)  # words whose counts did not go up by one

    def add(self, word: str, count: int) -> None:
        """Take in a record. The counts of a word come in order."""
        self.records += 1
        if count != self.last.get(word, 0) + 1:
            self.skipped.append(word)
        self.last[word] = count


@dataclass
class Move:
    """A move of bins: what moved, and between which two readings of `time.monotonic`."""

    text: str
    began: float
    ended: float


def move_half(job: Any, is_due: Event) -> Move:
    """Wait until it is due; give half of the bins to the other worker while the lines flow."""
    is_due.wait()
    table = job.status().operators[0].table or ()
    owners = [1 - owner if bin < len(table) // 2 else owner for bin, owner in enumerate(table)]
    began = time.monotonic()
    moved = job.move_bins(map=" ".join(map(str, owners)), strategy="batched", batch=8)
    ended = time.monotonic()
    text = f"{moved.bins} bins moved in {moved.steps} steps, {moved.keys:,} keys, {moved.bytes / 1024:.1f} KiB"
    return Move(f"{text}, {ended - began:.1f} s", began, ended)


def follow(job: Any, text: Text, is_due: Event) -> Counts:
    """Read the outputs until the job ends, and show its progress."""
    counts = Counts()
    total = text.words.total()
    with click.progressbar(length=total, label="counting", file=sys.stderr) as bar:
        for word, count in job.outputs():
            counts.add(word, count)
            if counts.records % BAR_EACH == 0:
                bar.update(BAR_EACH)
                if counts.records >= MOVE_AFTER_SHARE * total:
                    is_due.set()
        bar.update(total - bar.pos)
    is_due.set()
    return counts


def show(text: Text, counts: Counts, job: Any, move: Move) -> None:
    """Print what the run came to."""
    summary = job.wait()
    seconds = summary.flow_seconds
    click.echo(f"{summary.lines:,} lines, {counts.records:,} words, {len(text.words):,} different")
    click.echo(f"{counts.records / seconds:,.0f} words/s while lines flowed ({seconds:.1f} s)")
    click.echo(move.text)
    click.echo(f"{'latency':<16}{'p50 ms':>8}{'p99 ms':>8}{'max ms':>8}")
    forever = float("inf")
    parts = ("before", 0.0, move.began), ("during", move.began, move.ended), ("after", move.ended, forever)
    for name, start, end in parts:
        late = summary.latency_between(start, end)
        click.echo(f"{name + ' the move':<16}{late.p50:>8.1f}{late.p99:>8.1f}{late.max:>8.1f}")


def count_words(folder: Path) -> bool:
    """Run the demonstration in an empty folder; tell whether Spark took part. Raises MegaflowError for wrong counts."""
    text = copy_library(folder)
    click.echo(f"Python's standard library: {text.files} files, {text.lines:,} lines, {text.words.total():,} words")
    click.echo("starting two worker processes, and Spark (a few seconds)")
    is_due = Event()
    job, has_spark = start(text.folder)
    with ThreadPoolExecutor(1) as threads, job:
        move: Future[Move] = threads.submit(move_half, job, is_due)
        try:
            counts = follow(job, text, is_due)
        finally:
            is_due.set()
    show(text, counts, job, move.result())
    if counts.last != dict(text.words) or counts.skipped:
        raise MegaflowError("The counts differ from those of collections.Counter. Please report it.")
    click.echo("counts equal those of collections.Counter")
    return has_spark


@click.command(cls=Command)
def demo() -> None:
    """Show state that moves while the stream runs.

    \b
      megaflow demo

    Two processes count the words of Python's standard library, which Spark reads if there is Java. Meanwhile half of
    the counts move to the other process. At the end each count is compared with a plain one.
    """
    with tempfile.TemporaryDirectory(prefix="megaflow-demo-") as name:
        count_words(Path(name))


COMMANDS = [demo]
