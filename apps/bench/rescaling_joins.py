"""Latency of lines while two processes join two: the second figure of the report on rescaling timely dataflow.

Two processes of two workers each count words, in an open loop of a hundred lines a second with a hundred words each. A
process of two workers joins and is given its share of the bins; after a while another one does the same. All counts
are compared with those of `collections.Counter` on the lines that were read.

A latency is the time from the moment a line was due until its epoch was closed everywhere.
"""

import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from apps.bench.experiment import Experiment, Record, size
from apps.bench.job import Running
from apps.bench.rescaling_job import Growth, grow
from apps.bench.rescaling_latency import course, draw_timeline, phases, rows
from apps.bench.rescaling_load import words
from megaflow.cli.text import table_text
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.spec import Form

SEED = 7
PROCESSES = WORKERS = JOINS = 2  # at the start; in each process; processes that join
SECONDS_MAX = 90.0  # of lines, in addition to the rests
SETTLE_SECONDS = 1.0  # at the beginning, left out


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurement."""

    rate: float = size(100.0, "Lines per second.")
    words: int = size(100, "Words of a line.")
    vocabulary: int = size(10_000, "Different words, all equally frequent.")
    bins: int = size(256, "Bins, of which each process that joins is given its share, one by one.")
    rest: float = size(5.0, "Seconds before each join and after the last.")


class Counts(Writer):
    """The outputs of a word count: each word's last count, and whether each count was the previous one plus one."""

    form: Form = "records"

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self.steady = True

    def write(self, epoch: int, records: list[tuple[str, int]]) -> None:
        """Take the records of an epoch, which are in order for each word."""
        for word, count in records:
            self.steady = self.steady and count == self.last.get(word, 0) + 1
            self.last[word] = count


def measure(sizes: Sizes) -> Record:
    """Run the job with its joins; return the latencies of lines, in each phase and over time."""
    counts, growths = Counts(), list[Growth]()
    with tempfile.TemporaryDirectory(prefix="megaflow-bench-") as folder:
        path = Path(folder, "lines.txt")
        write_lines(path, sizes)
        size_of = {"processes": PROCESSES, "workers": WORKERS, "rate": sizes.rate, "args": (str(sizes.bins),)}
        with Running(words, str(path), counts, **size_of) as running:
            talk = running.converse()
            running.rest(SETTLE_SECONDS)
            for _ in range(JOINS):
                running.rest(sizes.rest)
                growths.append(grow(talk))
            running.rest(sizes.rest)
            over = time.monotonic()
            running.stop()
        account = running.account()
        with path.open(encoding="ascii") as text:
            expected = Counter(word for line in islice(text, account.lines) for word in line.split())
    origin = min(begin for begin, _ in account.flows)
    changes = [moment for each in growths for moment in (each.began, each.joined, each.ended)]
    names = ("2 processes", "one joins", "its moves", "3 processes", "one more joins", "its moves", "4 processes")
    return {
        "rate": sizes.rate,
        "words": sizes.words,
        "phases": phases(account, names, [origin + SETTLE_SECONDS, *changes, over]),
        **course(account, growths, over),
        "exact": counts.steady and counts.last == expected,
    }


def write_lines(path: Path, sizes: Sizes) -> None:
    """Write more lines than will be read."""
    rng = random.Random(SEED)
    vocabulary = [f"word{number}" for number in range(sizes.vocabulary)]
    lines = round(sizes.rate * (SECONDS_MAX + (1 + JOINS) * sizes.rest))
    with path.open("w", encoding="ascii") as text:
        text.writelines(" ".join(rng.choices(vocabulary, k=sizes.words)) + "\n" for _ in range(lines))


def text(record: Record) -> str:
    """Return the table."""
    return "\n".join((
        f"{record['rate']:g} lines/s of {record['words']} words on {PROCESSES} processes of {WORKERS} workers; "
        f"{JOINS} processes join",
        table_text(["", "seconds", "lines", "p50 ms", "p99 ms", "max ms"], rows(record)),
        f"counts {'equal to those of a Counter' if record['exact'] else 'WRONG'}",
    ))  # fmt: skip


def draw(record: Record, figure: Any) -> None:
    """Draw p50 and maximum over time, with the joins."""
    axes = figure.subplots()
    draw_timeline(axes, record, f"{record['rate']:g} lines/s of {record['words']} words, 2 × 2 workers, two joins")
    axes.set_xlabel("seconds")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=8, ncols=4)


JOINING = Experiment(
    "joins",
    "How late lines are while two processes join two, of two workers each.",
    Sizes,
    Sizes(words=20, vocabulary=50, bins=8, rest=0.1),
    measure,
    text,
    draw,
)
