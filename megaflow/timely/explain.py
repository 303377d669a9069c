"""Why a time is not complete: which worker holds what, in which operator.

No worker knows this alone. Each worker knows exactly what it holds itself: the capabilities of its operators and
inputs, the records queued at their inputs, and its changes that it has not broadcast. So a worker that explains asks
all workers by mail. It keeps those of their holdings that could lead to the probe at the time in question or before.

The answers date from slightly different moments. In a running job they show a recent state. In a job that is stuck they
are exact.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import field
from typing import Any, Literal, TypeAlias

from megaflow.errors import NoAnswer
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.dataflow.signature import places
from megaflow.timely.membership import Membership
from megaflow.timely.order import Time, in_order, sort_key
from megaflow.timely.progress.change_batch import ChangeBatch

ASK, ANSWER = "megaflow.explain", "megaflow.explained"  # topics of the mail between workers

Kind: TypeAlias = Literal["capability", "records", "under way", "not built", "needs a Bootstrap"]

Stamps: TypeAlias = list[tuple[int, Time, int]]  # (location, time, count)

# One worker's report on a dataflow: capabilities, queued records, unsent changes, nodes that need a Bootstrap.
# None: the worker has not built it.
Report: TypeAlias = tuple[Stamps, Stamps, Stamps, list[int]] | None


@dataclass(frozen=True, slots=True)
class Holding:
    """Something that holds a time back."""

    dataflow: str
    operator: str  # with the scopes around it
    where: str  # file:line of the user's declaration
    port: str  # output 0: capabilities; input 0: records
    worker: int | None  # None for records that are under way between workers
    time: Time
    count: int
    kind: Kind
    """capability: the operator (or the program, through an input) may still send at this time or later; records: they
    are queued; under way: sent to a worker, not yet there; not built: the worker has yet to build the dataflow;
    needs a Bootstrap: the operator keeps records, because its worker has joined and does not know the bins' owners."""


def report_on(graph: Graph) -> Report:
    """Return what this worker holds in a running dataflow."""
    capabilities = graph.progress.caster.capabilities()
    for (location, time), delta in graph.changes:
        if location in graph.listeners:
            capabilities.update((location, time), delta)
    queued: ChangeBatch[tuple[int, Time]] = ChangeBatch()
    for node in graph.nodes:
        for location, queue in zip(node.targets, node.queues, strict=True):
            queued.extend(((location, time), len(batch)) for time, batch in queue.batches)
    needy = [untold for view in graph.views if (untold := view.untold()) is not None]
    return _stamps(capabilities), _stamps(queued), _stamps(unsent(graph)), needy


def unsent(graph: Graph) -> list[tuple[tuple[int, Time], int]]:
    """Return changes made here that are in no tracker yet: ((location, time), delta). A place may occur twice."""
    return [*graph.changes, *graph.progress.caster.held]


def _stamps(changes: Iterable[tuple[tuple[int, Time], int]]) -> Stamps:
    return [(location, time, count) for (location, time), count in changes]


@dataclass(slots=True)
class Inquiry:
    """A question to all workers that waits for answers. Written by the explainer."""

    probe: ProbeHandle
    time: Time
    silent: set[int]  # workers that have not answered
    reports: dict[int, dict[int, Report]] = field(default_factory=dict)  # worker -> dataflow -> its report

    def holdings(self) -> list[Holding]:
        """Return what holds the time back according to the reports so far, least times first."""
        found: list[Holding] = []
        for graph, location in self.probe.places():
            if not graph.over and graph.started:
                number = graph.number
                said = {worker: report[number] for worker, report in self.reports.items() if number in report}
                found += _explain(graph, location, self.time, said)
        unique = dict.fromkeys(found)
        return in_order(unique, lambda each: (sort_key(each.time), -1 if each.worker is None else each.worker))


def _explain(graph: Graph, location: int, asked: Time, said: dict[int, Report]) -> list[Holding]:
    """Return what holds `asked` back at one location, given the reports `said` of the workers with this dataflow."""
    where, tracker = places(graph), graph.builder.build()

    def leads_there(place: int, time: Time) -> bool:
        tracker.extend([(place, time, 1)])
        tracker.propagate()
        tracker.extend([(place, time, -1)])  # taken in by the next call
        return tracker.frontier(location).less_equal(asked)

    def held(
        worker: int | None, kind: Kind, stamps: Iterable[tuple[int, Time, int]], needy: Collection[int] = ()
    ) -> list[Holding]:
        found = []
        for place, time, count in stamps:
            if count > 0 and leads_there(place, time):
                node, side, number = where[place]
                port = f"{side} {number}"
                why: Kind = "needs a Bootstrap" if node.index in needy else kind
                found.append(Holding(graph.name, node.title, node.where, port, worker, time, count, why))
        return found

    graph.progress.show()
    outstanding = ChangeBatch(((place, time), count) for place, time, count in graph.progress.tracker.pointstamps())
    rows: list[Holding] = []
    for worker, report in said.items():
        if report is None:
            rows += held(worker, "not built", [(place, time, 1) for place, time, _ in graph.initial])
            continue
        capabilities, queued, unsent, needy = report
        rows += held(worker, "capability", capabilities, needy) + held(worker, "records", queued)
        outstanding.extend(((place, time), delta) for place, time, delta in unsent)
        outstanding.extend(((place, time), -count) for place, time, count in queued)
    between = [(place, time, count) for (place, time), count in outstanding if place not in graph.listeners]
    return rows + held(None, "under way", between)


@dataclass(eq=False)
class Explainer:
    """One worker's part in questions and answers. Only the worker's thread writes it."""

    membership: Callable[[], Membership]
    post: Callable[[int, str, Any], None]
    find: Callable[[int], Graph | Literal["later"] | None]  # None: complete; "later": not built yet
    _numbers: Iterator[int] = field(default_factory=itertools.count)  # of the inquiries
    _open: dict[int, Inquiry] = field(default_factory=dict)  # number -> inquiry

    def ask(self, probe: ProbeHandle, time: Time) -> Inquiry:
        """Ask all workers. The answers arrive as the worker is stepped."""
        number, members = next(self._numbers), self.membership().ids
        inquiry = self._open[number] = Inquiry(probe, time, set(members))
        dataflows = sorted({graph.number for graph, _ in probe.places()})
        for member in members:
            self.post(member, ASK, (number, dataflows))
        return inquiry

    def forget(self, inquiry: Inquiry) -> None:
        """Stop waiting for an inquiry."""
        self._open = {number: each for number, each in self._open.items() if each is not inquiry}

    def conclude(self, inquiry: Inquiry, seconds: float) -> list[Holding]:
        """Return what holds the time back. Raises NoAnswer, naming workers, if some were silent for `seconds`."""
        self.forget(inquiry)
        if inquiry.silent:
            names = ", ".join(map(str, sorted(inquiry.silent)))
            raise NoAnswer(
                f"explain: no answer from worker {names} within {seconds:g} seconds; it may be in a long step of "
                "user code, or its program does not step it"
            )
        return inquiry.holdings()

    def answer(self, source: int, body: Any) -> None:
        """Report what this worker holds in some dataflows."""
        number, dataflows = body
        found = [(dataflow, graph) for dataflow in dataflows if (graph := self.find(dataflow)) is not None]
        said = [(dataflow, None if graph == "later" else report_on(graph)) for dataflow, graph in found]
        self.post(source, ANSWER, (number, said))

    def hear(self, source: int, body: Any) -> None:
        """Store another worker's report."""
        number, said = body
        inquiry = self._open.get(number)
        if inquiry is not None:
            inquiry.reports[source] = dict(said)
            inquiry.silent.discard(source)
            if not inquiry.silent:
                del self._open[number]
