"""Operators whose logic the user writes: unary, binary, source, sink.

`build(capability, info)` gets the operator's initial capability and returns the logic. The logic runs when data arrives
and, with `notify`, when the frontier of an input moves. The engine releases the capability unless `build` keeps it. The
logic is called with the operator's inputs and its output. Forms with a notificator need no `build`: `notified` takes
the logic. Users can assemble operators of other shapes; `finish` completes those also.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from megaflow.errors import BuildError
from megaflow.timely.dataflow.argument_checks import function, iterable
from megaflow.timely.dataflow.builder import Input, NodeBuilder, Output
from megaflow.timely.dataflow.capability import Capability, Invocation, release_ignored
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.graph import Port, ScopeRef
from megaflow.timely.dataflow.notificator import FrontierNotificator
from megaflow.timely.dataflow.pact import PactOrClass
from megaflow.timely.order import Time

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")

UnaryBuild = Callable[[Capability, OperatorInfo], Callable[[Input[T], Output[R]], None]]
BinaryBuild = Callable[[Capability, OperatorInfo], Callable[[Input[T], Input[U], Output[R]], None]]
SourceBuild = Callable[[Capability, OperatorInfo], Callable[[Output[R]], None]]
NotifyLogic = Callable[[Input[T], Output[R], FrontierNotificator], None]
BinaryNotifyLogic = Callable[[Input[T], Input[U], Output[R], FrontierNotificator], None]
_Build = Callable[[Capability, OperatorInfo], Callable[..., None]]  # any of the builds with a capability
SinkBuild = Callable[[OperatorInfo], Callable[[Input[T]], None]]


def operator(
    scope: ScopeRef,
    name: str,
    inputs: Sequence[tuple[Port[Any], PactOrClass]],
    build: _Build,
    notify: bool = True,
    joinable: bool = False,
    stateless: bool = False,
) -> Port[Any]:
    """Build an operator with these inputs and one output. Without inputs, it runs once at the start and on request."""
    function(str(name), build, "build")
    builder = NodeBuilder(scope, name)
    sources = [builder.new_input(port, pact, notify=notify) for port, pact in inputs]
    output, result = builder.new_output()

    def call_build(capabilities: list[Capability], info: OperatorInfo) -> Callable[..., None]:
        return build(capabilities[0], info)

    finish(builder, sources, [output], call_build, joinable, stateless)
    return result


def sink(port: Port[T], pact: PactOrClass, name: str, build: SinkBuild[T], stateless: bool = False) -> None:
    """Build an operator with one input and no output. It runs when data arrives or the frontier moves."""
    function(str(name), build, "build")
    builder = NodeBuilder(port.scope, name)
    finish(builder, [builder.new_input(port, pact)], [], lambda _, info: build(info), stateless=stateless)


def notified(
    scope: ScopeRef,
    name: str,
    inputs: Sequence[tuple[Port[Any], PactOrClass]],
    logic: Callable[..., None],
    init: Iterable[Time],
    stateless: bool,
) -> Port[Any]:
    """Build an operator whose logic gets a notificator that persists between runs. `init`: times requested first."""
    given: object = logic
    if not callable(given) and callable(init):
        raise BuildError(f"{name} ({user_line()}): the logic comes before the times: …_notify(…, logic, init)")
    function(str(name), logic, "logic")
    times = list(iterable(f"init= of {name}", init, "a list of times"))
    builder = NodeBuilder(scope, name)
    sources = [builder.new_input(port, pact) for port, pact in inputs]
    output, result = builder.new_output()

    def build(capabilities: list[Capability], info: OperatorInfo) -> Callable[..., None]:
        [capability] = capabilities
        notificator = FrontierNotificator(info.activator, sources)
        for time in times if capability.held else ():
            notificator.notify_at(capability.delayed(time))
        capability.release()
        return lambda *ports: logic(*ports, notificator)

    finish(builder, sources, [output], build, stateless=stateless)
    return result


def finish(
    builder: NodeBuilder,
    inputs: Sequence[Input[Any]],
    outputs: Sequence[Output[Any]],
    build: Callable[[list[Capability], OperatorInfo], Callable[..., None]],
    joinable: bool = False,
    stateless: bool = False,
    hand_over: bool = True,
) -> None:
    """Finish a user's operator: when its logic returns, capability references end and open sessions are flushed.

    `stateless`: the user states that the operator keeps nothing beyond a time. `hand_over`: the logic is called with
    the inputs and outputs; otherwise it already has them. Raises BuildError if `build` returns something not callable.
    """
    builder.node.by_hand = not stateless
    ports = (*inputs, *outputs) if hand_over else ()
    takes = "of its inputs and its output" if hand_over else "without arguments"

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        logic = build(list(capabilities), info)
        if not callable(logic):
            raise BuildError(
                f"{info.name} ({builder.where}): build returned {logic!r}, a {type(logic).__name__}; "
                f"it must return the operator's logic, a function {takes}"
            )
        release_ignored(capabilities)

        def run() -> None:
            invocation = Invocation()
            for each in inputs:
                each.invocation = invocation
            try:
                logic(*ports)
            except BaseException:
                time = invocation.time  # noqa: F841  # for the error's note
                raise
            invocation.end()
            for output in outputs:
                output.end_sessions()

        return run

    builder.build(make, joinable)
