"""S1 and S2: running counts of the words of a text; each record emits its word's new count.

A job's time is from the first line read to the last epoch closed. The start of the processes is shown apart, as for
the other systems. Outputs are not collected (`--output none`).
"""

import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from apps.bench.report import Found, Goal
from apps.bench.workload import PLAIN, Absent, Setting, Step, Workload, check_count, one, peer, plain
from apps.wordcount import dataflow
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.launch import LaunchOptions, launch
from megaflow.job.spec import JobSpec

RATE = "M words/s"
ONE = "megaflow, one process"
TWO, ORDERED = "megaflow, two processes, ?unordered", "megaflow, two processes, in order"
BYTEWAX = ("Bytewax, one worker", "Bytewax, two threads")
BYTEWAX_TWO = "Bytewax, two processes"
COPIES, COPIES_QUICK = 10, 1  # of the text
SPARK_SHARE = 20  # Spark gets one in so many lines, otherwise its run would take too long
MEGA = 1e6


def run_plain(path: Path) -> dict[str, Any]:
    """Run the plain Python loop."""
    return plain("words", path)


def run_job(job: Callable[[Any], Any], lines: str, processes: int, expected: int) -> float:
    """Run a job to the end of its lines; return the seconds while they flowed. Raises WrongCounts."""
    account = launch(LaunchOptions(JobSpec(pickle_app(job), processes=processes), lines))
    check_count(f"{processes} processes", account.records, expected)
    return account.flow_seconds


def write_text(source: Path | None, copies: int, target: Path) -> int:
    """Write the text `copies` times; return its number of words. Without a text, use Python's standard library."""
    if source is not None:
        content = source.read_text(encoding="utf-8", errors="replace")
    else:
        root = Path(sysconfig.get_path("stdlib"))
        content = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted(root.glob("*.py")))
    if not content.endswith("\n"):
        content += "\n"
    with target.open("w", encoding="utf-8") as text:
        for _ in range(copies):
            text.write(content)
    return copies * len(content.split())


def write_share(source: Path, share: int, target: Path) -> None:
    """Write one in `share` lines of a text."""
    with source.open(encoding="utf-8", errors="replace") as lines, target.open("w", encoding="utf-8") as text:
        text.writelines(line for number, line in enumerate(lines) if number % share == 0)


def plain_step(path: Path, words: int) -> Step:
    """Return the plain loop as a contender."""

    def run() -> Found:
        record = run_plain(path)
        check_count(PLAIN, record["records"], words)
        return one(PLAIN, {RATE: words / record["seconds"] / MEGA})

    return Step(PLAIN, run)


def job_step(name: str, lines: str, words: int, processes: int) -> Step:
    """Return megaflow as a contender."""
    return Step(name, lambda: one(name, {RATE: words / run_job(dataflow, lines, processes, words) / MEGA}))


def peer_step(setting: Setting, script: str, name: str, path: Path, *sizes: str) -> Step:
    """Return Bytewax or Pathway as a contender."""

    def run() -> Found:
        record = peer(setting.peers, script, name, path, "words", *sizes)
        return one(name, {RATE: record["records"] / record["seconds"] / MEGA})

    return Step(name, run)


def spark_step(setting: Setting, path: Path) -> Step:
    """Return Spark as a contender, with a small part of the text. Its row names the way in which it counts."""
    part = setting.folder / "part.txt"
    write_share(path, setting.size(SPARK_SHARE, SPARK_SHARE // 4), part)

    def run() -> Found:
        record = peer(sys.executable, "spark_wordcount.py", "Spark", part, "words")
        if not record["records"]:
            raise Absent("Spark counted nothing")
        return one(f"Spark, {record['way']}", {RATE: record["records"] / record["seconds"] / MEGA})

    return Step("Spark", run, setting.size(3, 1))


def open_one(setting: Setting) -> Sequence[Step]:
    """Write the text; return the contenders with one process."""
    path = setting.folder / "text.txt"
    words = write_text(setting.text, setting.size(COPIES, COPIES_QUICK), path)
    return (
        plain_step(path, words),
        job_step(ONE, str(path), words, 1),
        peer_step(setting, "bytewax_wordcount.py", BYTEWAX[0], path, "1", "1"),
        peer_step(setting, "bytewax_wordcount.py", BYTEWAX[1], path, "1", "2"),
        peer_step(setting, "pathway_wordcount.py", "Pathway, one process", path, "1"),
        spark_step(setting, path),
    )


def open_two(setting: Setting) -> Sequence[Step]:
    """Write the text; return the contenders with two processes."""
    path = setting.folder / "text.txt"
    words = write_text(setting.text, setting.size(COPIES, COPIES_QUICK), path)
    return (
        plain_step(path, words),
        job_step(ONE, str(path), words, 1),
        job_step(TWO, f"{path}?unordered", words, 2),
        job_step(ORDERED, str(path), words, 2),
        peer_step(setting, "bytewax_wordcount.py", BYTEWAX_TWO, path, "2", "1"),
        peer_step(setting, "pathway_wordcount.py", "Pathway, two processes", path, "2"),
    )


S1 = Workload(
    "S1",
    "word count, one process",
    open_one,
    (
        Goal(ONE, RATE, 0.85, at_least=True, of=(PLAIN,)),
        Goal(ONE, RATE, 3.0, at_least=True, of=BYTEWAX),
    ),
    notes=(
        "Pathway coalesces: it emits a count only for some of the records",
        f"Spark reads one in {SPARK_SHARE} lines (with --quick more), after a query that warms it up; its fold in "
        "Python needs pandas, pyarrow and protobuf: without them it counts in Java, an output for a key and batch",
    ),
)
S2 = Workload(
    "S2",
    "word count, two processes",
    open_two,
    (
        Goal(TWO, RATE, 1.15, at_least=True, of=(PLAIN,)),
        Goal(TWO, RATE, 1.3, at_least=True, of=(ONE,)),
        Goal(TWO, RATE, 6.0, at_least=True, of=(BYTEWAX_TWO,)),
    ),
    notes=(
        "Pathway coalesces: it emits a count only for some of the records",
        "in order: one process reads the file for both; ?unordered: each reads pieces of it",
    ),
)

