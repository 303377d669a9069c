"""Duration of a join, phase by phase.

One process counts under load. Another is started, joins, gets half of the bins and leaves again, several times. The
phases are those that `megaflow control add-workers` prints:
- *start*: the process, until it asks to join
- *connect*: it loads and builds the program, and connects to all workers
- *back-fill*, *snapshot* and *ranges*: it learns the progress made so far
- *mint* and *settle*: its capabilities
- *routing*: the routing table
- *moves*: its bins, one by one
- *asking*: the remaining time until the command is heard and answered

Bytes are those of progress. The first record is the time from the command to the first output of the joiner, on the
launcher's clock.
"""

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.bench.experiment import COLOURS, Experiment, Record, plain_axes, size, verdict
from apps.bench.job import Running, write_numbers
from apps.bench.rescaling_job import Growth, Tally, grow, shrink
from apps.bench.rescaling_load import LIGHT, numbered
from megaflow.cli.text import table_text

FIRST_RECORD_SECONDS_MAX = 1.0
WARM_UP_SECONDS = 1.0
SECONDS_MAX = 300.0  # of lines
PROTOCOL = ("back-fill", "snapshot", "ranges", "mint", "settle", "routing")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurement."""

    repeat: int = size(5, "Joins.")
    bins: int = size(256, "Bins, of which half move at each join.")
    rate: float = size(5_000.0, "Records per second, meanwhile.")
    rest: float = size(0.5, "Seconds between a leave and the next join.")


def measure(sizes: Sizes) -> Record:
    """Let processes join and leave; return the durations of each join."""
    lines = round(sizes.rate * SECONDS_MAX)
    tally = Tally(lines)
    growths: list[Growth] = []
    with tempfile.TemporaryDirectory(prefix="megaflow-bench-") as folder:
        path = Path(folder, "lines.txt")
        write_numbers(path, lines)
        with Running(numbered, str(path), tally, rate=sizes.rate, args=(str(sizes.bins), *LIGHT)) as running:
            talk = running.converse()
            running.rest(WARM_UP_SECONDS)
            for _ in range(sizes.repeat):
                growths.append(grow(talk))
                running.rest(sizes.rest)
                shrink(talk, growths[-1].worker)
                running.rest(sizes.rest)
            running.stop()
        account = running.account()
    joins = [{**each.record(), "first_record": tally.first[each.worker] - each.began} for each in growths]
    return {"joins": joins, "exact": tally.is_exact(account.lines)}


def phases(record: Record) -> dict[str, list[float]]:
    """Return phase -> its duration in each join, in the order of the phases."""
    joins = record["joins"]
    return {phase: [join["seconds"][phase] for join in joins] for phase in joins[0]["seconds"]}


def text(record: Record) -> str:
    """Return the table of phases."""
    found = phases(record)
    parts = {**found, "the protocol's part": sums(found, PROTOCOL), "all": sums(found, tuple(found))}
    rows = [[name, *(f"{value * 1000:.1f}" for value in (statistics.median(each), min(each), max(each)))]
            for name, each in parts.items()]  # fmt: skip
    joins = record["joins"]
    first = statistics.median(join["first_record"] for join in joins)
    size_bytes, keys_moved = (statistics.median(found) for found in (
        [join["bytes"] for join in joins], [join["moved"]["keys"] for join in joins]))  # fmt: skip
    return "\n".join((
        table_text(["phase", "median ms", "least", "most"], rows),
        f"{len(joins)} joins; {size_bytes:.0f} bytes of progress; {joins[0]['moved']['bins']} bins, "
        f"{keys_moved:,.0f} keys moved; counts {'exact' if record['exact'] else 'WRONG'}",
        f"from the command to the first record of the new process {first:.2f} s, at most "
        f"{FIRST_RECORD_SECONDS_MAX:.0f} s wanted: {verdict(first <= FIRST_RECORD_SECONDS_MAX)}",
    ))  # fmt: skip


def sums(found: dict[str, list[float]], names: tuple[str, ...]) -> list[float]:
    """Return the total of these phases in each join."""
    return [sum(parts) for parts in zip(*(found[name] for name in names))]


def draw(record: Record, figure: Any) -> None:
    """Draw a bar for each phase and a point for each join: all phases, and those of the protocol enlarged."""
    found = phases(record)
    for axes, names in zip(figure.subplots(1, 2), (tuple(found), PROTOCOL)):
        for place, name in enumerate(names):
            values = [value * 1000 for value in found[name]]
            colour = COLOURS[0] if name in PROTOCOL else COLOURS[2]
            axes.barh(place, statistics.median(values), height=0.6, color=colour, alpha=0.75)
            axes.plot(values, [place] * len(values), "o", color="black", markersize=3)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        title = "a join, phase by phase" if len(names) > len(PROTOCOL) else "the protocol's part of it"
        plain_axes(axes, title, "ms", "")


BOOTSTRAP = Experiment(
    "bootstrap",
    "What a join takes, phase by phase.",
    Sizes,
    Sizes(repeat=2, bins=16, rate=500.0, rest=0.1),
    measure,
    text,
    draw,
)
