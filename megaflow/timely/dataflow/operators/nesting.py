"""Operators at the borders of scopes: enter, leave, and the loop variable of an iterative scope."""

from typing import Any, TypeVar

from megaflow.errors import BuildError
from megaflow.timely.dataflow.builder import Input, OperatorBuilder
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.graph import Port, ScopeRef
from megaflow.timely.dataflow.operators.movement import LoopHandle, feedback
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.dataflow.scopes import check_open, describe
from megaflow.timely.order import Summary
from megaflow.timely.order import enter as entering
from megaflow.timely.order import leave as leaving

T = TypeVar("T")


def enter(port: Port[T], scope: ScopeRef) -> Port[T]:
    """Bring a stream into a child of its scope: time t becomes Product(t, 0), in a region it stays t.

    Raises BuildError if `scope` is no child of the stream's scope or its block has ended.
    """
    if scope.parent is not port.scope:
        parent = "the scope of a whole dataflow" if scope.parent is None else f"inside {describe(scope.parent)}"
        raise BuildError(
            f"enter ({user_line()}): the stream is of {describe(port.scope)}, but {describe(scope)} is {parent}; "
            "a stream enters scopes one by one, from the scope around them"
        )
    check_open(scope, "enter")
    if scope.depth == port.scope.depth:
        return Port(scope, port.node, port.output)
    return _cross(port, scope, "Enter", entering(port.scope.depth))


def leave(port: Port[T]) -> Port[T]:
    """Bring a stream out of its scope: time Product(t, i) becomes t, in a region it stays.

    Raises BuildError for a stream of the root scope.
    """
    parent = port.scope.parent
    if parent is None:
        raise BuildError(f"leave ({user_line()}): the stream is of {describe(port.scope)}; there is no scope around it")
    if parent.depth == port.scope.depth:
        return Port(parent, port.node, port.output)
    return _cross(port, parent, "Leave", leaving(port.scope.depth))


def _cross(port: Port[T], scope: ScopeRef, name: str, path: Summary) -> Port[T]:
    """Build an operator of `scope` that takes in a stream of the scope next to it."""
    builder = OperatorBuilder(scope, name)
    source: Input[T] = builder.new_input(port, Pipeline(), {0: path}, notify=False, crossing=True)
    output, result = builder.new_output()

    def logic() -> None:
        for time, batch in source.drain():
            output.ship(path.apply(time), batch)

    builder.build_releasing(logic)
    return result


def loop_variable(scope: ScopeRef, advance: int) -> tuple[LoopHandle[Any], Port[Any]]:
    """Return the open end of a loop in an iterative scope, `advance` rounds later each time around.

    Raises BuildError in a scope whose times have no round.
    """
    if scope.depth == 0:
        raise BuildError(
            f"loop_variable ({user_line()}): times of {describe(scope)} have no round; "
            "open `with scope.iterative() as inner`, or use feedback to advance the time itself"
        )
    return feedback(scope, advance, "loop_variable")
