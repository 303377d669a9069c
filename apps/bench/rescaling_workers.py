"""Cost of tracking progress, by the number of workers and the kind of dataflow.

Workers of the engine run in one thread, far more of them than any machine here has cores. Each sends some records in
every epoch, and an epoch ends everywhere before the next one begins. A job whose workers keep up behaves like this,
and causes the most progress traffic.

The state is the greatest number of pointstamps that worker 0 counts at any moment, and the most bytes of the snapshot
that it would send to a joiner. The traffic is the number of batches that a worker broadcasts to all others, and their
bytes. For comparison, the table shows the messages of a tree that combines the progress of all workers in a pass: each
worker sends its batches up once, and receives one batch for each pass.

All of this is counted, so load on the machine affects only one figure, the CPU time per message. That is the time to
send, receive and fold it without a socket. It includes the work of the operators, whose part shrinks as the number of
workers grows.
"""

import random
import time
from dataclasses import dataclass
from typing import Any

from apps.bench.experiment import Experiment, Record, doubling_axes, size
from apps.bench.rescaling_shapes import SHAPES, Stepped
from megaflow.cli.text import table_text

SEED = 7
WARM_UP_EPOCHS = 3
SHADES = ("#0b6e99", "#d1601b", "#4a9d5b", "#7a7a7a")
STYLES = ("o-", "s-", "^-", "v-")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurement."""

    workers: str = size("2,4,8,16,32,64", "Numbers of workers.")
    shapes: str = size(",".join(SHAPES), "What they run.")
    records: int = size(4, "Records that each worker sends in an epoch, to each input.")
    epochs: int = size(20, "Epochs that are counted.")


def measure(sizes: Sizes) -> Record:
    """Count for each kind of dataflow and each number of workers."""
    numbers = [int(number) for number in sizes.workers.split(",")]
    shapes = [shape.strip() for shape in sizes.shapes.split(",")]
    points = [count(shape, number, sizes) for shape in shapes for number in numbers]
    return {"points": points, "records": sizes.records}


def count(shape: str, workers: int, sizes: Sizes) -> Record:
    """Run the epochs; return the greatest state, and the traffic of an epoch."""
    bench = Stepped(SHAPES[shape], workers, sizes.records, random.Random(SEED))
    traffic = bench.traffic
    seen: list[tuple[int, int]] = []
    for epoch in range(WARM_UP_EPOCHS + sizes.epochs):
        if epoch == WARM_UP_EPOCHS:
            traffic.clear()
            seen.clear()
            began = time.process_time()
        bench.advance(epoch)
        while bench.is_behind(epoch):
            bench.step()
            seen.append(bench.look())
    computed = time.process_time() - began
    stamps, snapshots = zip(*seen)
    told, others = traffic.batches / sizes.epochs, workers - 1
    return {
        "shape": shape,
        "workers": workers,
        "pointstamps": max(stamps),
        "snapshot": max(snapshots),
        "batches": told / workers,  # of a worker in an epoch
        "batch_bytes": traffic.bytes / max(1, traffic.batches),
        "messages": told * others,  # in an epoch, of all workers
        "bytes": traffic.bytes / sizes.epochs * others,
        "merged": traffic.merged / sizes.epochs,  # per epoch: passes with progress, for each dataflow
        "merged_bytes": traffic.merged_bytes / max(1, traffic.merged),
        "tree": told + traffic.merged / sizes.epochs * workers,  # messages in an epoch, between workers and the tree
        "message_us": 1e6 * computed / max(1, traffic.batches * others),
    }


def of_shapes(record: Record) -> dict[str, list[Record]]:
    """Return the points of each kind of dataflow, by the number of workers."""
    found: dict[str, list[Record]] = {}
    for point in sorted(record["points"], key=lambda point: int(point["workers"])):
        found.setdefault(point["shape"], []).append(point)
    return found


def text(record: Record) -> str:
    """Return the table, and the bytes that each further worker adds to a snapshot."""
    head = ["", "workers", "pointstamps", "snapshot bytes", "batches", "bytes each", "messages", "kB"]
    head += ["in a tree", "µs a message"]
    rows, grown = [], []
    for shape, points in of_shapes(record).items():
        for point in points:
            counted = [point["workers"], point["pointstamps"], f"{point['snapshot']:,}"]
            told = [f"{point['batches']:.2f}", f"{point['batch_bytes']:.0f}", f"{point['messages']:,.0f}"]
            all_of_them = [f"{point['bytes'] / 1e3:,.0f}", f"{point['tree']:,.0f}", f"{point['message_us']:.1f}"]
            rows.append([shape, *counted, *told, *all_of_them])
        first, last = points[0], points[-1]
        added = (last["snapshot"] - first["snapshot"]) / max(1, last["workers"] - first["workers"])
        grown.append(f"{shape} {added:.1f}")
    return "\n".join((
        f"{record['records']} records of each worker in an epoch; batches are a worker's in an epoch, messages and kB "
        "those of all",
        table_text(head, rows),
        f"bytes that a further worker adds to a snapshot: {', '.join(grown)}",
    ))  # fmt: skip


def draw(record: Record, figure: Any) -> None:
    """Draw the state and the traffic over the workers, a line for each kind of dataflow."""
    panels = (
        ("pointstamps", "counted in the tracker", "pointstamps"),
        ("snapshot", "of a snapshot for a joiner", "bytes"),
        ("batches", "told by a worker in an epoch", "batches"),
        ("messages", "between all in an epoch", "messages"),
    )
    for axes, (name, title, unit) in zip(figure.subplots(2, 2).flat, panels):
        for (shape, points), shade, style in zip(of_shapes(record).items(), SHADES, STYLES):
            workers = [point["workers"] for point in points]
            axes.plot(workers, [point[name] for point in points], style, color=shade, markersize=3.5, label=shape)
        doubling_axes(axes, title, "workers", unit, is_steep=name == "messages")
    handles = axes.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", frameon=False, fontsize=8, ncols=len(handles[0]))


WORKERS = Experiment(
    "workers",
    "What tracking progress takes, by the number of workers and what they run.",
    Sizes,
    Sizes(workers="2,8", epochs=3),
    measure,
    text,
    draw,
)
