"""Volume of progress messages between real processes, by the number of processes and of epochs per second.

Engine programs run with one worker in each process, on the dataflow of `rescaling_shapes.stateful`. Each worker sends
some records in every epoch and ends the epoch when it is due, in an open loop, without waiting for the others. A batch
goes to every other process as one message. If the processes together need more than the cores can do, they step more
rarely and combine more progress in a batch. The reached epochs per second and the CPU time show this.
"""

import time
from dataclasses import dataclass
from typing import Any

from apps.bench.cluster import run_cluster
from apps.bench.experiment import COLOURS, Experiment, Record, doubling_axes, size
from apps.bench.rescaling_shapes import Traffic, stateful
from megaflow.cli.text import table_text
from megaflow.program import Worker

STYLES = ("o-", "s-", "^-", "v-")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurement."""

    processes: str = size("2,4,8,16", "Numbers of processes.")
    rates: str = size("4,20,100", "Epochs a second: a job has 4 when idle, 20 when saturated, 100 otherwise.")
    records: int = size(4, "Records that each worker sends in an epoch.")
    seconds: float = size(5.0, "How long each is measured.")


def main(worker: Worker) -> list[float]:
    """Run the epochs; return this worker's batches and bytes of progress, elapsed seconds, and CPU seconds.

    `worker.args`: epochs per second, number of epochs, records in each.
    """
    rate, epochs, records = float(worker.args[0]), int(worker.args[1]), int(worker.args[2])
    traffic, fed = Traffic(), stateful(worker)
    fed.advance(worker.index, 0, records)
    worker.step_while(lambda: fed.is_behind(0))  # all processes have started
    unsubscribe = worker.log.subscribe(traffic.hear)
    began, computed = time.monotonic(), time.process_time()
    for epoch in range(1, epochs + 1):
        due = began + epoch / rate
        while (left := due - time.monotonic()) > 0:
            worker.step_or_park(left)
        fed.advance(worker.index, epoch, records)
        worker.step()
    worker.step_while(lambda: fed.is_behind(epochs))
    seconds, computed = time.monotonic() - began, time.process_time() - computed
    unsubscribe()
    return [traffic.batches, traffic.bytes, seconds, computed]


def measure(sizes: Sizes) -> Record:
    """Run each number of processes at each rate."""
    points = []
    for processes in map(int, sizes.processes.split(",")):
        for rate in map(float, sizes.rates.split(",")):
            epochs = max(1, round(rate * sizes.seconds))
            found = run_cluster(main, processes, [rate, epochs, sizes.records])
            batches, told, seconds, computed = zip(*found)
            messages = sum(batches) * (processes - 1)
            points.append({
                "processes": processes,
                "rate": rate,
                "reached": epochs / max(seconds),
                "batches": sum(batches) / processes / epochs,  # of a worker in an epoch
                "messages": messages / max(seconds),  # a second, of all
                "bytes": sum(told) * (processes - 1) / max(seconds),  # a second, of all
                "computed": sum(computed) / max(seconds),  # cores
                "message_us": 1e6 * sum(computed) / max(1, messages),  # all CPU time, divided by the messages
            })  # fmt: skip
    return {"points": points, "records": sizes.records}


def text(record: Record) -> str:
    """Return the table."""
    head = ["processes", "epochs/s", "reached", "batches", "messages/s", "kB/s", "cores", "µs a message"]
    rows = [
        [
            point["processes"], f"{point['rate']:g}", f"{point['reached']:.1f}", f"{point['batches']:.2f}",
            f"{point['messages']:,.0f}", f"{point['bytes'] / 1e3:,.0f}", f"{point['computed']:.2f}",
            f"{point['message_us']:.0f}",
        ]
        for point in record["points"]
    ]  # fmt: skip
    return "\n".join((
        f"{record['records']} records of each worker in an epoch; batches are a worker's in an epoch, the rest is "
        "that of all processes",
        table_text(head, rows),
    ))  # fmt: skip


def draw(record: Record, figure: Any) -> None:
    """Draw the batches of a worker and the messages of all, a line for each rate."""
    panels = (("batches", "told by a worker in an epoch", "batches"), ("messages", "between all", "messages a second"))
    rates = sorted({point["rate"] for point in record["points"]})
    for axes, (name, title, unit) in zip(figure.subplots(1, 2), panels):
        for place, rate in enumerate(rates):
            points = [point for point in record["points"] if point["rate"] == rate]
            processes, found = [point["processes"] for point in points], [point[name] for point in points]
            label, colour = f"{rate:g} epochs/s", COLOURS[place % len(COLOURS)]
            axes.plot(processes, found, STYLES[place % len(STYLES)], color=colour, markersize=3.5, label=label)
        doubling_axes(axes, title, "processes", unit, is_steep=name == "messages")
    axes.legend(frameon=False, fontsize=8)


TRAFFIC = Experiment(
    "traffic",
    "How much progress real processes tell each other.",
    Sizes,
    Sizes(processes="2", rates="50", seconds=0.4),
    measure,
    text,
    draw,
)
