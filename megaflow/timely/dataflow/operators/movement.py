"""Operators that move records unchanged: between workers, between streams, around a loop, into and out of scopes."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from megaflow.errors import BuildError
from megaflow.timely import path_summary
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.builder import Input, NodeBuilder, Output
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.fusion.stage import Stage, run_whole
from megaflow.timely.dataflow.graph import Port, ScopeRef
from megaflow.timely.dataflow.operators.linear import staged
from megaflow.timely.dataflow.pact import Broadcast, Exchange, Pipeline
from megaflow.timely.dataflow.scopes import check_open, check_same, describe, path_that_advances
from megaflow.timely.path_summary import Step, Summary

T = TypeVar("T")


def exchange(port: Port[T], key: Callable[[T], int]) -> Port[T]:
    """Send each record to the worker `sorted(peer_ids)[key(record) % peers]`.

    The operator follows the membership: when workers join or leave, a key may change its worker, sender by sender.
    """
    return staged(port, "Exchange", "same", pact=Exchange(key, follow=True))[0]


def broadcast(port: Port[T], lane: Lane = Lane.DATA) -> Port[T]:
    """Send a copy of each record to every worker."""
    return staged(port, "Broadcast", "same", pact=Broadcast(lane))[0]


def concatenate(scope: ScopeRef, ports: Sequence[Port[T]]) -> Port[T]:
    """Merge several streams on the same worker. Records of different streams come in the order of arrival."""
    builder = NodeBuilder(scope, "Concat")
    inputs: list[Input[T]] = [builder.new_input(port, Pipeline(), notify=False) for port in ports]
    output, result = builder.new_output()
    builder.build_releasing(run_whole(inputs, [output], output.ship), Stage("same", None, inputs, [output]))
    return result


class LoopHandle(Generic[T]):
    """Open end of a loop. `connect_loop` closes it, once."""

    def __init__(self, scope: ScopeRef, where: str, close: Callable[[Port[T]], None]) -> None:
        self._scope = scope
        self._where = where  # file:line of the feedback
        self._close: Callable[[Port[T]], None] | None = close

    def connect(self, port: Port[T]) -> None:
        """Feed `port` back. Raises BuildError if the loop is already closed or belongs to another scope."""
        if self._close is None:
            raise BuildError(f"connect_loop: the feedback at {self._where} is already connected")
        check_same(port.scope, self._scope, f"connect_loop to the feedback at {self._where}")
        close, self._close = self._close, None
        close(port)


def feedback(scope: ScopeRef, advance: Step, verb: str = "feedback") -> tuple[LoopHandle[Any], Port[Any]]:
    """Return a stream of the records that will be fed back. Each pass advances their time by `advance`.

    In a nested scope, `advance` counts rounds. A record is dropped if the PathSummary gives None for its time. Raises
    BuildError unless `advance` is a step of the scope's times (for ints and rounds, an int of at least 0). A cycle that
    does not advance is refused when the dataflow starts.
    """
    try:
        summary = path_that_advances(scope, advance)
    except ValueError as error:
        raise BuildError(f"{verb}({advance!r}): the summary, by how much time advances, must be {error}") from None
    builder = NodeBuilder(scope, "Feedback")
    loop: Input[Any] = builder.new_input(None, Pipeline(), {0: summary}, notify=False)
    output, result = builder.new_output()

    def close(port: Port[Any]) -> None:
        builder.build_releasing(_along(summary, loop, output))
        builder.connect(loop, port)
        if not scope.rounds:
            builder.node.carries = "records on their way round"

    return LoopHandle(scope, builder.where, close), result


def enter(port: Port[T], scope: ScopeRef) -> Port[T]:
    """Bring a stream into a child of its scope. Time t becomes Product(t, 0); in a region it stays t.

    Raises BuildError if `scope` is not a child of the stream's scope, or if its block has ended.
    """
    if scope.parent is not port.scope:
        parent = "the scope of a whole dataflow" if scope.parent is None else f"inside {describe(scope.parent)}"
        raise BuildError(
            f"enter ({user_line()}): the stream is of {describe(port.scope)}, but {describe(scope)} is {parent}; a "
            "stream enters one scope at a time, from the scope around it"
        )
    check_open(scope, "enter")
    if scope.depth == port.scope.depth:
        return Port(scope, port.node, port.output)
    return _cross(port, scope, "Enter", path_summary.enter(port.scope.depth))


def leave(port: Port[T], scope: ScopeRef | None = None) -> Port[T]:
    """Bring a stream out of its scope. Time Product(t, i) becomes t; in a region it stays the same.

    Raises BuildError for a stream of the root scope, or if `scope` is given and is not the enclosing scope.
    """
    parent = port.scope.parent
    if parent is None:
        raise BuildError(f"leave ({user_line()}): the stream is of {describe(port.scope)}; there is no scope around it")
    if scope is not None and scope is not parent:
        raise BuildError(
            f"leave ({user_line()}): the stream is of {describe(port.scope)}, inside {describe(parent)}, not inside "
            f"{describe(scope)}; a stream leaves one scope at a time, for the scope around it"
        )
    if parent.depth == port.scope.depth:
        return Port(parent, port.node, port.output)
    return _cross(port, parent, "Leave", path_summary.leave(port.scope.depth))


def _cross(port: Port[T], scope: ScopeRef, name: str, path: Summary) -> Port[T]:
    """Build an operator of `scope` that receives a stream of a neighbouring scope."""
    builder = NodeBuilder(scope, name)
    source: Input[T] = builder.new_input(port, Pipeline(), {0: path}, notify=False, crossing=True)
    output, result = builder.new_output()
    builder.build_releasing(_along(path, source, output))
    return result


def _along(path: Summary, source: Input[T], output: Output[T]) -> Callable[[], None]:
    """Return the logic of an operator that sends records on at the time to which the path leads, if there is one."""

    def logic() -> None:
        for time, batch in source.drain():
            later = path.apply(time)
            if later is not None:
                output.ship(later, batch)

    return logic


def loop_variable(scope: ScopeRef, advance: int) -> tuple[LoopHandle[Any], Port[Any]]:
    """Return the open end of a loop in an iterative scope. Each pass adds `advance` rounds.

    Raises BuildError in a scope whose times have no round.
    """
    if scope.rounds == 0:
        raise BuildError(
            f"loop_variable ({user_line()}): times of {describe(scope)} have no round; "
            "open `with scope.iterative() as inner`, or use feedback to advance the time itself"
        )
    return feedback(scope, advance, "loop_variable")
