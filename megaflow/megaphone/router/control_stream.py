"""The stream of numbered commands to which stateful operators listen.

Operators that share a control stream share its numbering and move together, so they must have the same number of bins.
A flow sets a default stream whose commands are already numbered. A worker that joins receives the tables of all these
operators.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from megaflow.errors import BuildError
from megaflow.megaphone.base.event_unit import NEVER
from megaflow.megaphone.base.routing import Bootstrap, Numbered, validate
from megaflow.megaphone.router.introduction import Numbering
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.graph import Graph, Port, ScopeRef
from megaflow.timely.dataflow.operators.linear import linear
from megaflow.timely.dataflow.pact import Broadcast
from megaflow.timely.dataflow.scopes import check_same, describe
from megaflow.timely.membership import WorkerId
from megaflow.timely.order import Time


@dataclass(slots=True)
class Controls:
    """The control streams of one dataflow."""

    default: Port[Numbered] | None = None
    numbered: dict[Port[Any], Port[Numbered]] = field(default_factory=dict)  # stream as given -> its commands
    # stream as given -> what numbers its commands on this worker; others come numbered, as in a job
    numberings: dict[Port[Any] | None, Numbering] = field(default_factory=dict)
    bins: dict[Port[Numbered], int] = field(default_factory=dict)  # commands -> number of bins of their operators
    kept: Mapping[WorkerId, Iterable[int]] = field(default_factory=dict)  # of founders: see `initial_table`
    watermark: int = NEVER  # left by an earlier run, for founding workers
    clock: int = NEVER  # likewise


def founders_of(graph: Graph) -> tuple[WorkerId, ...]:
    """Return the workers that know a dataflow's first routing table by themselves; all others must receive a table."""
    return graph.founders.ids


def number_commands(port: Port[Any], bins: int) -> Port[Numbered]:
    """Validate, number and broadcast the commands of a stream, as F expects its control input.

    All commands must be injected on one worker. An invalid command raises CommandRefused there. A command that already
    has a number is passed on: a program that moves the injection to another worker numbers and validates by itself.
    Workers that join receive the routing state: see `introduction`. A leaver receives no command that is injected after
    its leave is committed, so wait until it is gone before you move bins at a time for which it may still have records.
    """
    context = port.scope.graph.context
    numbering = Numbering(context.membership, context.allocator.index, founders_of(port.scope.graph))
    port.scope.graph.extension(Controls).numberings[port] = numbering

    def apply(time: Time, batch: list[Any]) -> list[Numbered]:
        members = context.membership().workers
        numbered = []
        for record in batch:
            if not isinstance(record, Numbered):
                validate(record, bins, members, members.symmetric_difference(context.audience()))
                if isinstance(record, Bootstrap):
                    continue
                record = Numbered(numbering.next, record)
            numbering.next = record.number + 1
            numbered.append(record)
        return numbered

    def note(time: Time, batch: list[Numbered]) -> list[Numbered]:
        numbering.passed = batch[-1].number + 1
        return batch

    everywhere = linear(linear(port, "Commands", apply), "Broadcast", note, Broadcast(Lane.MAIL))
    numbering.queue = port.scope.graph.nodes[everywhere.node].queues[0]
    return everywhere


def set_default(
    port: Port[Numbered],
    kept: Mapping[WorkerId, Iterable[int]] | None = None,
    watermark: int = NEVER,
    clock: int = NEVER,
) -> None:
    """Let the stateful operators of this dataflow listen to `port`, a broadcast stream of numbered commands.

    `kept`, worker -> bins, lists the bins with which workers begin: see `initial_table`. `watermark` and `clock`, in
    microseconds, come from the checkpoint from which a run resumes; timers that were due by then have fired.
    """
    controls = port.scope.graph.extension(Controls)
    controls.kept = kept or {}
    controls.watermark, controls.clock = watermark, clock
    controls.default = controls.numbered[port] = port  # so that control=flow.control is the default


def control_for(scope: ScopeRef, control: Port[Any] | None, bins: int, name: str = "") -> Port[Numbered] | None:
    """Return the numbered commands for the operator of this name with this many bins; None if it has no control.

    Raises BuildError in three cases. Another operator on the same stream has another number of bins. The stream comes
    out of a broadcast(), so that every worker would inject every command. The stream belongs to a nested scope:
    commands have the times of the root, wherever the operator is.
    """
    if control is not None and (scope.rounds or control.scope.rounds):
        _check_outside(control, scope)
    controls = scope.graph.extension(Controls)
    numbered = controls.default if control is None else controls.numbered.get(control)
    if numbered is None:
        if control is None:
            return None
        _check_injected(control, name)
        numbered = controls.numbered[control] = number_commands(control, bins)
    known = controls.bins.setdefault(numbered, bins)
    if known != bins:
        raise BuildError(
            f"bins={bins}, but another stateful operator on the same control stream has bins={known}; operators that "
            "share a control stream move together, so they need the same number"
        )
    if (numbered.scope.graph, numbered.scope.depth) == (scope.graph, scope.depth):
        return Port(scope, numbered.node, numbered.output)  # commands need not enter a region
    return numbered


def _check_injected(control: Port[Any], name: str) -> None:
    graph = control.scope.graph
    node = graph.nodes[control.node]
    if any(edge.target in node.targets and edge.pact == Broadcast.__name__ for edge in graph.edges):
        raise BuildError(
            f"control of {name!r} is a broadcast stream ({node.where}): each worker would receive each command from "
            "every worker; inject commands on one worker and pass the stream without broadcast(), because the "
            "operator broadcasts them itself"
        )


def _check_outside(control: Port[Any], scope: ScopeRef) -> None:
    """Raise BuildError unless `control` is in the dataflow of `scope` and has the times of its root."""
    if control.scope.graph is not scope.graph:
        check_same(control.scope, scope, "control")
    if control.scope.rounds:
        raise BuildError(
            "control: commands have int times, also those that move state in loops, but times of "
            f"{describe(control.scope)} are like {control.scope.least!r}; pass the outer stream, without enter()"
        )


def hears_default(scope: ScopeRef, commands: Port[Numbered] | None) -> bool:
    """Tell whether these commands are the dataflow's default; True if the dataflow has no default."""
    default = scope.graph.extension(Controls).default
    if default is None or commands is None:
        return default is None
    return (commands.node, commands.output) == (default.node, default.output)
