"""The stream of numbered commands that stateful operators listen to.

Operators that share a control stream share one numbering of it, and move together; so
they must have the same number of bins. A flow sets a default that is numbered already.
One Bootstrap lets all of them on the new worker know their tables.
"""

from dataclasses import dataclass, field
from typing import Any

from megaflow.errors import BuildError
from megaflow.megaphone.routing import Bootstrap, Numbered, validate
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.graph import Graph, Port, ScopeRef
from megaflow.timely.dataflow.operators.linear import linear
from megaflow.timely.dataflow.operators.movement import broadcast
from megaflow.timely.dataflow.scopes import check_same, describe
from megaflow.timely.membership import WorkerId
from megaflow.timely.order import Time


@dataclass(slots=True)
class Controls:
    """The control streams of one dataflow."""

    default: Port[Numbered] | None = None
    numbered: dict[Port[Any], Port[Numbered]] = field(default_factory=dict)  # stream as given -> its commands
    bins: dict[Port[Numbered], int] = field(default_factory=dict)  # commands -> how many bins their operators have


def founders_of(graph: Graph) -> tuple[WorkerId, ...]:
    """The workers that know a dataflow's first routing table by themselves; all others need a Bootstrap."""
    return graph.founders.ids


def number_commands(port: Port[Any], bins: int) -> Port[Numbered]:
    """Validate and number the commands of a stream, and broadcast them: what F expects of its control.

    The commands must be injected on one worker. An invalid one raises CommandRefused there; so does one that names a
    worker which has joined, until it has been bootstrapped: from the next command on it may be named. One that is
    numbered already is passed on: a program that moves the writing to another worker numbers and validates itself.
    """
    membership = port.scope.graph.context.membership
    know = set(founders_of(port.scope.graph))  # the workers that know the table, or will: their Bootstrap was issued
    issued = 0

    def apply(time: Time, batch: list[Any]) -> list[Numbered]:
        nonlocal issued
        numbered = []
        for record in batch:
            if isinstance(record, Numbered):
                numbered.append(record)
                continue
            present = membership().workers
            validate(record, bins, present & know, present - know)
            if isinstance(record, Bootstrap):
                know.add(record.worker)
            numbered.append(Numbered(issued, record))
            issued += 1
        return numbered

    return broadcast(linear(port, "Commands", apply), Lane.MAIL)


def set_default(port: Port[Numbered]) -> None:
    """Let the stateful operators of this dataflow listen to `port`, a broadcast stream of numbered commands."""
    controls = port.scope.graph.extension(Controls)
    controls.default = controls.numbered[port] = port  # the second: control=flow.control is the same as the default


def control_for(scope: ScopeRef, control: Port[Any] | None, bins: int) -> Port[Numbered] | None:
    """The numbered commands for an operator with this many bins; None if it has no control at all.

    Raises BuildError if another operator on the same stream has another number of bins, and for a stream of a nested
    scope: commands have the times of the root, wherever the operator is.
    """
    if control is not None and (scope.rounds or control.scope.rounds):
        _check_outside(control, scope)
    controls = scope.graph.extension(Controls)
    numbered = controls.default if control is None else controls.numbered.get(control)
    if numbered is None:
        if control is None:
            return None
        numbered = controls.numbered[control] = number_commands(control, bins)
    known = controls.bins.setdefault(numbered, bins)
    if known != bins:
        raise BuildError(
            f"bins={bins}, but another stateful operator on the same control stream has bins={known}; "
            "operators that share a control stream move together and need the same number"
        )
    if (numbered.scope.graph, numbered.scope.depth) == (scope.graph, scope.depth):
        return Port(scope, numbered.node, numbered.output)  # commands need not enter a region
    return numbered


def _check_outside(control: Port[Any], scope: ScopeRef) -> None:
    """Raise BuildError unless `control` is a stream of the root's times, of the dataflow of `scope`."""
    if control.scope.graph is not scope.graph:
        check_same(control.scope, scope, "control")
    if control.scope.rounds:
        raise BuildError(
            f"control: commands have int times, which also move state in loops, but those of {describe(control.scope)} "
            f"are like {control.scope.least!r}; give the stream as it is outside, without enter()"
        )


def hears_default(scope: ScopeRef, commands: Port[Numbered] | None) -> bool:
    """Tell whether these are the commands that are the dataflow's default, if it has one."""
    default = scope.graph.extension(Controls).default
    if default is None or commands is None:
        return default is None
    return (commands.node, commands.output) == (default.node, default.output)
