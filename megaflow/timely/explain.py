"""Why a time is not over: which worker holds what, in which operator.

No worker knows that alone. Each knows exactly what it holds itself: the capabilities of its operators and inputs, the
records queued at their inputs, and what it has done and not told yet. So a worker that is to explain asks all workers,
by mail, and keeps of what they hold that which could lead to the probe at the time in question or before.

The answers are of slightly different moments. In a job that goes on they show a recent state; in a job that is stuck
they are exact.
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
from megaflow.timely.order import Time, less_equal, sort_key
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.progress.reference import summaries_to

ASK, ANSWER = "megaflow.explain", "megaflow.explained"  # topics of the mail between workers

Kind: TypeAlias = Literal["capability", "records", "under way", "not built", "needs a Bootstrap"]

Stamps: TypeAlias = list[tuple[int, Time, int]]  # (location, time, count)

# What a worker says of one dataflow: capabilities, queued records, changes not told yet, nodes that need a Bootstrap;
# None: it has not built it.
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
    are queued; under way: sent to a worker and not there yet; not built: the worker has still to build the dataflow;
    needs a Bootstrap: the operator keeps records, as its worker has joined and was not told who owns which bin."""


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
    """Return what was done here and is in no tracker yet: ((location, time), delta), one place perhaps twice."""
    return [*graph.changes, *graph.progress.caster.held()]


def describe_pointstamps(graph: Graph) -> str:
    """Return what holds time back as far as this worker knows: count, place and time of each pointstamp, in words."""
    return ", ".join(
        f"{count} at {graph.builder.names[location]} time {time!r}"
        for location, time, count in graph.progress.tracker.pointstamps()
    )


def _stamps(changes: Iterable[tuple[tuple[int, Time], int]]) -> Stamps:
    return [(location, time, count) for (location, time), count in changes]


@dataclass(slots=True)
class Inquiry:
    """A question to all workers, until they have answered. Written by the explainer."""

    probe: ProbeHandle
    time: Time
    silent: set[int]  # workers that have not answered
    reports: dict[int, dict[int, Report]] = field(default_factory=dict)  # worker -> dataflow -> what it said

    def holdings(self) -> list[Holding]:
        """Return what holds the time back, by what is known so far; least times first."""
        found: list[Holding] = []
        for graph, location in self.probe.places():
            if not graph.over and graph.started:
                number = graph.number
                said = {worker: report[number] for worker, report in self.reports.items() if number in report}
                found += _explain(graph, location, self.time, said)
        unique = dict.fromkeys(found)
        return sorted(unique, key=lambda each: (sort_key(each.time), -1 if each.worker is None else each.worker))


def _explain(graph: Graph, location: int, asked: Time, said: dict[int, Report]) -> list[Holding]:
    """Return what holds `asked` back at one location, given what each worker that runs the dataflow said of it."""
    where, paths = places(graph), summaries_to(graph.builder, location)

    def held(
        worker: int | None, kind: Kind, stamps: Iterable[tuple[int, Time, int]], needy: Collection[int] = ()
    ) -> list[Holding]:
        found = []
        for place, time, count in stamps:
            ends = [path.apply(time) for path in paths.get(place, ())] if count > 0 else []
            if any(end is not None and less_equal(end, asked) for end in ends):
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
    """One worker's part in questions and answers. One writer: the worker's thread."""

    membership: Callable[[], Membership]
    post: Callable[[int, str, Any], None]
    find: Callable[[int], Graph | Literal["later"] | None]  # None: it is complete; "later": it is not built yet
    _numbers: Iterator[int] = field(default_factory=itertools.count)  # of the inquiries
    _open: dict[int, Inquiry] = field(default_factory=dict)  # number -> inquiry

    def ask(self, probe: ProbeHandle, time: Time) -> Inquiry:
        """Ask all workers; the answers come in as the worker is stepped."""
        number, members = next(self._numbers), self.membership().ids
        inquiry = self._open[number] = Inquiry(probe, time, set(members))
        dataflows = sorted({graph.number for graph, _ in probe.places()})
        for member in members:
            self.post(member, ASK, (number, dataflows))
        return inquiry

    def forget(self, inquiry: Inquiry) -> None:
        """Wait for it no more."""
        self._open = {number: each for number, each in self._open.items() if each is not inquiry}

    def conclude(self, inquiry: Inquiry, seconds: float) -> list[Holding]:
        """Return what holds the time back. Raises NoAnswer, naming them, if workers were silent for `seconds`."""
        self.forget(inquiry)
        if inquiry.silent:
            names = ", ".join(map(str, sorted(inquiry.silent)))
            raise NoAnswer(
                f"explain: no answer from worker {names} within {seconds:g} seconds; it may be in a long step of "
                "user code, or its program does not step it"
            )
        return inquiry.holdings()

    def answer(self, source: int, body: Any) -> None:
        """Say what this worker holds in some dataflows."""
        number, dataflows = body
        found = [(dataflow, graph) for dataflow in dataflows if (graph := self.find(dataflow)) is not None]
        said = [(dataflow, None if graph == "later" else report_on(graph)) for dataflow, graph in found]
        self.post(source, ANSWER, (number, said))

    def hear(self, source: int, body: Any) -> None:
        """Take in what another says."""
        number, said = body
        inquiry = self._open.get(number)
        if inquiry is not None:
            inquiry.reports[source] = dict(said)
            inquiry.silent.discard(source)
            if not inquiry.silent:
                del self._open[number]
