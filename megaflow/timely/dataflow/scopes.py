"""Scopes within scopes: opening one, and which streams may meet in an operator.

A scope is a name for a part of a dataflow. A region is nothing else; an iterative scope also gives its times one more
coordinate, the round. Streams go from a scope to a child with `enter` and back with `leave`; an operator's inputs are
all of its own scope, so the times that it sees are of one kind, and its name says where it stands.
"""

from megaflow.errors import BuildError
from megaflow.timely.dataflow import given
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.graph import ScopeRef
from megaflow.timely.path_summary import Step, Summary, advancing, feedback


def open_child(parent: ScopeRef, name: str, rounds: bool) -> ScopeRef:
    """Open a scope inside `parent`; with `rounds` its times have one coordinate more.

    Raises BuildError if the block that builds `parent` has ended.
    """
    check_open(parent, f"scope {given.name(name, 'a scope')!r}")
    return ScopeRef(parent.graph, parent.rounds + rounds, parent, name, user_line())


def check_open(scope: ScopeRef, what: str) -> None:
    """Raise BuildError if the block that builds `scope` has ended (the root's end is the dataflow's start)."""
    if not scope.open:
        assert scope.parent is not None
        raise BuildError(
            f"{what} ({user_line()}): it would go into {describe(scope)}, whose `with` block has ended; bring the "
            f"stream out to {describe(scope.parent)} with leave()"
        )


def check_same(source: ScopeRef, scope: ScopeRef, what: str) -> None:
    """Raise BuildError unless a stream of `source` can be used in `scope` as it is."""
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
    """Return the scope in words, for messages."""
    if scope.parent is None:
        return f"the root scope of dataflow {scope.graph.name!r}"
    return f"scope {'/'.join(scope.path)!r} ({scope.where})"


def path_that_advances(scope: ScopeRef, step: Step) -> Summary:
    """Return the summary of a path inside `scope` on which time advances by `step`: in a nested one, so many rounds.

    Raises ValueError with what such a step is.
    """
    if scope.rounds:
        return feedback(scope.depth, *advancing(step, 0).adds)
    return advancing(step, scope.least)


def around(scope: ScopeRef) -> list[ScopeRef]:
    """Return the scopes around this one, from the root on."""
    return [] if scope.parent is None else [*around(scope.parent), scope.parent]
