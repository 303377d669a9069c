"""Size of the progress state that a joiner receives. It must not grow with the number of past epochs.

Two workers of the engine run in one thread, on a dataflow with an exchange, bins and a control stream. Inputs advance
from epoch to epoch, and each worker takes one step in each. At certain epochs (marks) the benchmark notes the
pointstamps that the tracker counts and the bytes of the snapshot that a joiner would receive, as the maximum over some
epochs before the mark. Nothing is drained first, so records on their way count. Bytes grow a little with the numbers
in them: an epoch above 65,535 takes two more bytes.
"""

import time
from dataclasses import dataclass
from typing import Any

from apps.bench.experiment import COLOURS, Experiment, Record, plain_axes, size, verdict
from apps.bench.rescaling_shapes import Stepped, stateful
from megaflow.cli.text import table_text

WORKERS = 2
LOOK_EPOCHS = 100  # before a mark


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurement."""

    first: int = size(1_000, "The epochs to compare with.")
    epochs: int = size(100_000, "How many epochs there are.")


def marks(first: int, epochs: int) -> list[int]:
    """Return round numbers of epochs, with `first` and the last.

    >>> marks(400, 1000)
    [100, 200, 400, 500, 1000]
    """
    rounds = {digit * 10**power for power in range(2, 10) for digit in (1, 2, 5)}
    return sorted({mark for mark in rounds if mark < epochs} | {first, epochs})


def measure(sizes: Sizes) -> Record:
    """Run the epochs; return the state at each mark."""
    bench, wanted = Stepped(stateful, WORKERS), marks(sizes.first, sizes.epochs)
    points: list[dict[str, int]] = []
    seen: list[tuple[int, int]] = []
    began = time.perf_counter()
    for epoch in range(sizes.epochs):
        bench.advance(epoch)
        bench.step()
        mark = wanted[len(points)]
        if epoch >= mark - LOOK_EPOCHS:
            seen.append(bench.look())
        if epoch == mark - 1:
            stamps, sizes_seen = zip(*seen)
            points.append({"epochs": mark, "pointstamps": max(stamps), "bytes": max(sizes_seen)})
            seen.clear()
    assert not bench.is_behind(sizes.epochs - LOOK_EPOCHS), "the workers keep up"
    return {"points": points, "seconds": time.perf_counter() - began, "first": sizes.first}


def text(record: Record) -> str:
    """Return the table, and whether the state stays constant."""
    rows = [[f"{point['epochs']:,}", point["pointstamps"], point["bytes"]] for point in record["points"]]
    first = next(point for point in record["points"] if point["epochs"] == record["first"])
    last = record["points"][-1]
    stamps, size_ratio = (last[name] / first[name] for name in ("pointstamps", "bytes"))
    return "\n".join((
        table_text(["epochs", "pointstamps", "snapshot bytes"], rows),
        f"{last['epochs']:,} epochs to {first['epochs']:,}: {stamps:.2f} times the pointstamps "
        f"({verdict(stamps <= 1)}: no more), {size_ratio:.2f} times the bytes (numbers grow longer)",
    ))  # fmt: skip


def draw(record: Record, figure: Any) -> None:
    """Draw both over the epochs."""
    epochs = [point["epochs"] for point in record["points"]]
    for axes, name, unit, colour in zip(
        figure.subplots(2, 1, sharex=True), ("pointstamps", "bytes"), ("pointstamps", "bytes"), COLOURS
    ):
        axes.plot(epochs, [point[name] for point in record["points"]], "o-", color=colour)
        axes.set_ylim(0, 1.2 * max(point[name] for point in record["points"]))
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        title = "counted in the tracker" if name == "pointstamps" else "of a snapshot for a joiner"
        plain_axes(axes, title, "epochs gone by" if name == "bytes" else "", unit)


PROGRESS = Experiment(
    "progress",
    "How large the progress state is after few and after many epochs.",
    Sizes,
    Sizes(first=200, epochs=1_000),
    measure,
    text,
    draw,
)
