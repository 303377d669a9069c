"""Running counts of the words of a text, beside the plain Python loop that calls the same fold.

    python apps/bench/wordcount.py [FILE] [--copies N] [--repeat R] [--json]

Without FILE the text is Python's own standard library. Each repetition runs the plain loop,
one process and two processes, in turn; the table shows medians with the spread, and ratios
to the plain loop. A job's time is from the first line read to the last epoch closed: the
processes' start is told apart. Nothing is gathered (`--output none`).
"""

import json
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from apps.wordcount import count, dataflow
from megaflow.control.screen import table_text
from megaflow.run.app import pickle_app
from megaflow.run.gather import NothingWriter
from megaflow.run.launch import RunOptions, launch


def plain(path: Path) -> float:
    """The loop that a Python programmer would write, with the same fold; seconds."""
    began = time.perf_counter()
    totals: dict[str, int] = {}
    outputs = 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            for word, n in [(word, 1) for word in line.split()]:
                totals[word], out = count(word, n, totals.get(word))
                outputs += len(out)
    return time.perf_counter() - began


def job(processes: int) -> Callable[[Path], float]:
    """The same on megaflow; seconds while lines flowed."""

    def run(path: Path) -> float:
        account = launch(RunOptions(pickle_app(dataflow), str(path), processes=processes), NothingWriter)
        return account.flow_seconds

    return run


def write_text(source: Path | None, copies: int, target: Path) -> int:
    """Write the text, `copies` times; return its number of words."""
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


@click.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--copies", default=10, show_default=True, help="How many times the text is read.")
@click.option("--repeat", default=5, show_default=True, help="Repetitions; medians are shown.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def main(file: Path | None, copies: int, repeat: int, as_json: bool) -> None:
    """Measure, and print the table."""
    contenders: dict[str, Callable[[Path], float]] = {
        "plain Python loop": plain,
        "megaflow, one process": job(1),
        "megaflow, two processes": job(2),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    with tempfile.TemporaryDirectory(prefix="megaflow-bench-") as folder:
        path = Path(folder, "text.txt")
        words = write_text(file, copies, path)
        for _ in range(repeat):
            for name, run in contenders.items():
                seconds[name].append(run(path))
    base = statistics.median(seconds["plain Python loop"])
    if as_json:
        click.echo(json.dumps({"words": words, "seconds": seconds}))
        return
    click.echo(f"{words:,} words, median of {repeat}")
    rows = []
    for name, times in seconds.items():
        median = statistics.median(times)
        rate, spread = words / median / 1e6, (max(times) - min(times)) / median
        rows.append([name, f"{rate:.2f}", f"{spread:.0%}", f"{base / median:.2f}"])
    click.echo(table_text(["", "M words/s", "spread", "of plain"], rows))


if __name__ == "__main__":
    sys.exit(main())
