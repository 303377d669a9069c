"""Statistics: what a worker has done so far and has to do, as numbers, for tests and monitors."""

from collections.abc import Iterable
from dataclasses import dataclass

from megaflow.timely.dataflow.graph import Graph


@dataclass(frozen=True, slots=True)
class DataflowStatistics:
    """One running dataflow on one worker."""

    number: int
    name: str
    operators: int
    channels: int
    runs: int  # of operators, since the start
    queued_batches: int  # at inputs
    queued_records: int
    batches_sent: int  # of progress
    batches_received: int  # of progress
    pointstamps: int  # places and times with a count, as this worker knows them
    fused: tuple[tuple[str, ...], ...] = ()  # names of operators that are run as one, the first of which does it


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """One worker: its running dataflows, by number."""

    worker: int
    steps: int
    dataflows: tuple[DataflowStatistics, ...]


def dataflow_statistics(graph: Graph) -> DataflowStatistics:
    """Count. Costs a pass over what is queued and what is outstanding."""
    batches = [batch for queue in graph.queues for _, batch in queue.batches]
    return DataflowStatistics(
        graph.number,
        graph.name,
        len(graph.nodes),
        len(graph.queues),
        graph.runs,
        len(batches),
        sum(map(len, batches)),
        graph.caster.batches_sent,
        graph.caster.batches_received,
        sum(1 for _ in graph.tracker.pointstamps()),
        tuple(tuple(graph.nodes[member].title for member in node.fused) for node in graph.nodes if node.fused),
    )


def worker_statistics(worker: int, steps: int, graphs: Iterable[Graph]) -> WorkerStatistics:
    """Count for all dataflows of a worker."""
    return WorkerStatistics(worker, steps, tuple(map(dataflow_statistics, graphs)))
