"""Brute-force account of every count of every worker, with which simulated workers are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from megaflow.scope import Scope
from megaflow.testing.network import Network
from megaflow.testing.reference import PathSummaries, frontier_by_brute_force, path_summaries
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.explain import unsent
from megaflow.timely.order import Time
from megaflow.timely.progress.antichain import Antichain
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.worker import Worker as EngineWorker


class Violation(AssertionError):
    """The cluster broke a rule that must always hold. The message names the seed."""


@dataclass(slots=True)
class Monitor:
    """Brute-force account of all counts, with which frontiers are compared."""

    seed: int
    network: Network
    _paths: dict[int, PathSummaries] = field(default_factory=dict)  # dataflow -> summaries
    _truth: dict[int, ChangeBatch[tuple[int, Time]]] = field(default_factory=dict)  # dataflow -> counts of all workers
    _read: int = 0  # number of broadcasts in the truth

    def look(self, workers: Sequence[EngineWorker[Scope]], thorough: bool, at_rest: bool = False) -> None:
        """Check ownership and, if `thorough`, queues and frontiers, which are exact `at_rest`. Raises Violation."""
        self._check_owners(workers)
        self._account(workers)
        for graph in (graph for worker in workers if thorough for graph in worker.graphs()):
            graph.handoffs._check()
        if thorough and len(workers) > 1:
            for number in self._truth:
                running = [(worker.index, g) for worker in workers for g in worker.graphs() if g.number == number]
                if running:
                    self._check_frontiers(running, at_rest)
                if at_rest:
                    self._check_credit(running)

    def _account(self, workers: Sequence[EngineWorker[Scope]]) -> None:
        for worker in workers:
            for graph in worker.graphs():
                if graph.number not in self._truth:
                    self._paths[graph.number] = path_summaries(graph.builder)
                    counts: ChangeBatch[tuple[int, Time]] = ChangeBatch()
                    for location, time, count in graph.initial:
                        counts.update((location, time), count)
                    self._truth[graph.number] = counts
        for dataflow, _, batch in self.network.broadcasts[self._read :]:
            for location, time, delta in batch:
                self._truth[dataflow].update((location, time), delta)
        self._read = len(self.network.broadcasts)

    def _check_frontiers(self, running: list[tuple[int, Graph]], at_rest: bool) -> None:
        """Compare the workers' frontiers of one dataflow with those that all counts imply, sent or not."""
        number, builder = running[0][1].number, running[0][1].builder
        sums = ChangeBatch(self._truth[number])
        for _, graph in running:
            sums.extend(unsent(graph))
        least: dict[int, Antichain] = {}
        for (location, time), count in sums:
            if count > 0:
                least.setdefault(location, Antichain()).insert(time)
        counts = [(location, time, 1) for location, times in least.items() for time in times.elements]
        for location, name in enumerate(builder.names):
            truth = frontier_by_brute_force(builder, counts, location, self._paths[number])
            for index, graph in running:
                shown = graph.frontier(location)
                for time in truth.elements:
                    if not shown.less_equal(time):
                        raise Violation(
                            f"seed {self.seed}: worker {index} shows the frontier {shown} at {name}, but time "
                            f"{time!r} may still arrive there"
                        )
                if at_rest and shown != truth:
                    raise Violation(
                        f"seed {self.seed}: nothing is under way, but worker {index} shows the frontier {shown} "
                        f"at {name} instead of {truth}"
                    )

    def _check_credit(self, running: list[tuple[int, Graph]]) -> None:
        """Compare the senders' count of credit in use with what the receivers keep, when nothing is in flight."""
        for source, sender in running:
            for target, receiver in running:
                used, kept = sender.handoffs.credit_in_use(target), receiver.handoffs.credit_kept(source)
                if source != target and used != kept:
                    raise Violation(
                        f"seed {self.seed}: nothing is under way, but worker {source} waits for {used} records (by "
                        f"channel) of worker {target}, which keeps {kept}"
                    )

    def _check_owners(self, workers: Sequence[EngineWorker[Scope]]) -> None:
        owners: dict[tuple[int, int], int] = {}
        for worker in workers:
            for position, view in enumerate(worker.stateful):  # several operators may have the same name
                for bin in view.owned():
                    other = owners.setdefault((position, bin), worker.index)
                    if other != worker.index:
                        raise Violation(
                            f"seed {self.seed}: bin {bin} of {view.name!r} has two owners: workers {other} and "
                            f"{worker.index}"
                        )


def describe_pointstamps(graph: Graph) -> str:
    """Return this worker's known pointstamps as text: count, place and time of each."""
    return ", ".join(
        f"{count} at {graph.builder.names[location]} time {time!r}"
        for location, time, count in graph.progress.tracker.pointstamps()
    )
