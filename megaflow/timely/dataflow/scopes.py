"""Scopes within scopes: how a scope is opened, and which streams may meet in an operator.

A scope is a named part of a dataflow. A region adds nothing else. An iterative scope also gives its times one more
coordinate, the round. Streams enter a child scope with `enter` and leave it with `leave`. All inputs of an operator
belong to its own scope, so all its times are of one kind, and its title names the scopes around it.

A scope is built in a `with` block, or by a function of the scope whose value is returned (`block_or_value`).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from megaflow.errors import BuildError
from megaflow.timely.dataflow import argument_checks
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.graph import ScopeRef
from megaflow.timely.order import Product, least_of
from megaflow.timely.path_summary import Step, Summary, advancing, feedback

S = TypeVar("S")


def block_or_value(
    verb: str, open_block: Callable[[str | None], AbstractContextManager[S]], name: Any, build: Any
) -> Any:
    """Return the block for a `with` statement. If the program gives a function, run it in the block; return its value.

    Programs may write `verb(build)` or `verb(name, build)`.
    """
    if build is None and callable(name):
        name, build = None, name
    if build is None:
        return open_block(name)
    argument_checks.function(verb, build, "build")
    with open_block(name) as scope:
        return build(scope)


def open_child(parent: ScopeRef, name: str, rounds: bool) -> ScopeRef:
    """Open a scope inside `parent`. With `rounds`, its times have one more coordinate.

    Raises BuildError if the block that builds `parent` has ended.
    """
    check_open(parent, f"scope {argument_checks.name(name, 'a scope')!r}")
    return ScopeRef(parent.graph, parent.rounds + rounds, parent, name, user_line())


def adds_rounds(parent: ScopeRef, timestamp: Any) -> bool:
    """Return whether a child scope with times of this kind (see `least_of`) has rounds.

    Raises BuildError unless its times are those of `parent`, or `Product` of such a time and a round.
    """
    least = least_of(timestamp)
    rounds = Product(parent.least, 0)
    if least not in (parent.least, rounds):
        raise BuildError(
            f"scoped ({user_line()}): timestamp={least!r} is not a time of a child of {describe(parent)}; give "
            f"{parent.least!r} for the times of that scope, or {rounds!r} for a scope with rounds"
        )
    return least == rounds


def check_open(scope: ScopeRef, what: str) -> None:
    """Raise BuildError if the block that builds `scope` has ended. The root's block ends when the dataflow starts."""
    if not scope.open:
        assert scope.parent is not None
        raise BuildError(
            f"{what} ({user_line()}): it would go into {describe(scope)}, whose `with` block has ended; bring the "
            f"stream out to {describe(scope.parent)} with leave()"
        )


def check_same(source: ScopeRef, scope: ScopeRef, what: str) -> None:
    """Raise BuildError unless a stream of `source` can be used in `scope` unchanged."""
    if source is scope:
        return
    if source.graph is not scope.graph:
        raise BuildError(
            f"{what} ({user_line()}): its input comes from dataflow {source.graph.name!r}, "
            f"not from {scope.graph.name!r}; streams cannot cross dataflows, use capture and replay"
        )
    if scope in around(source):
        advice = "bring it out with leave()"
    elif source in around(scope):
        advice = "bring it in with enter(scope)"
    else:
        advice = "bring it out with leave() and in with enter(scope)"
    raise BuildError(
        f"{what} ({user_line()}): its input comes from {describe(source)}, not from {describe(scope)}; {advice}"
    )


def describe(scope: ScopeRef) -> str:
    """Return a description of the scope for messages."""
    if scope.parent is None:
        return f"the root scope of dataflow {scope.graph.name!r}"
    return f"scope {'/'.join(scope.path)!r} ({scope.where})"


def path_that_advances(scope: ScopeRef, step: Step) -> Summary:
    """Return the summary of a path inside `scope` that advances time by `step`. In a nested scope, `step` is rounds.

    Raises ValueError with a description of a valid step.
    """
    if scope.rounds:
        return feedback(scope.depth, *advancing(step, 0).adds)
    return advancing(step, scope.least)


def around(scope: ScopeRef) -> list[ScopeRef]:
    """Return the scopes around this one, starting with the root."""
    return [] if scope.parent is None else [*around(scope.parent), scope.parent]
