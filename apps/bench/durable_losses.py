"""Cost of the loss of one or both of two processes, by the number of keys that each of them has.

    python apps/bench/durable_losses.py all [--json] [--plots DIR]

The measurement is that of S16 (`durable_restart`), for several numbers of keys. If one process is killed, the other
one stays and reads only the keys that it has changed since the checkpoint. A new process reads the keys of the lost
one; with `--shrink` the remaining process reads them. If both are killed, all keys are read.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from apps.bench.durable_restart import AGAIN, BOTH, KILLED, STILL, Kept, kill_some
from apps.bench.experiment import COLOURS, Experiment, Record, commands, main, plain_axes, size
from megaflow.cli.text import table_text

PROCESSES = 2
SHRUNK = "killed, one of two processes, not replaced"
ROWS: tuple[tuple[str, int, tuple[str, ...]], ...] = ((KILLED, 1, ()), (SHRUNK, 1, ("--shrink",)), (BOTH, 2, ()))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurement."""

    keys: str = size("100000,500000,1000000,2000000", "Numbers of keys, of both processes together.")
    rate: int = size(5000, "Lines a second.")
    repeat: int = size(5, "Losses for each.")


def measure(sizes: Sizes) -> Record:
    """Kill processes of jobs with each number of keys."""
    points = []
    for keys in map(int, sizes.keys.split(",")):
        with tempfile.TemporaryDirectory(prefix="megaflow-losses-") as folder:
            kept = Kept(Path(folder), "ints", keys, PROCESSES)
            for row, killed, words in ROWS:
                found = [kill_some(kept, row, killed, sizes.rate, *words)[row] for _ in range(sizes.repeat)]
                values = {name: [value for each in found for value in each[name]] for name in (AGAIN, STILL)}
                points.append({"keys": keys // PROCESSES, "row": row, **values})
    return {"points": points, "rate": sizes.rate}


def text(record: Record) -> str:
    """Return the table."""
    rows = [
        [f"{point['keys']:,}", point["row"], *(f"{median(point[name]):.2f}" for name in (AGAIN, STILL))]
        for point in record["points"]
    ]
    return f"medians, {record['rate']:,} lines a second\n{table_text(['keys a process', 'what', AGAIN, STILL], rows)}"


def draw(record: Record, figure: Any) -> None:
    """Draw the time without output over the keys of a process."""
    axes = figure.subplots()
    for (row, *_), colour in zip(ROWS, COLOURS):
        points = [point for point in record["points"] if point["row"] == row]
        keys = [point["keys"] for point in points]
        axes.plot(keys, [median(point[AGAIN]) for point in points], "o-", color=colour, label=row)
        for point in points:
            axes.plot([point["keys"]] * len(point[AGAIN]), point[AGAIN], ".", color=colour, markersize=3)
    plain_axes(axes, "from the last output before a loss to the first after it", "keys of each process", "s")
    axes.set_ylim(0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False, fontsize=8)


LOSSES = Experiment(
    "losses",
    "What a loss costs, by the number of keys of a process.",
    Sizes,
    Sizes(keys="2000,20000", rate=1000, repeat=1),
    measure,
    text,
    draw,
)

if __name__ == "__main__":
    main(commands("losses", "Measure what the loss of processes costs.", (LOSSES,)))
