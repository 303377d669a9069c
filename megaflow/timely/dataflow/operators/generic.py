"""Operators whose logic the user writes: unary, binary, source, sink.

`build(capability, info)` gets the operator's initial capability and returns the logic, which runs when data arrives
and, with `notify`, when the frontier of an input moves. The logic is called with the operator's inputs and its output.
Forms with a notificator need no build of the user's: `notified` makes one from the logic. An operator of any other
shape is the user's to assemble, and `finish` ends that, too.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from megaflow.errors import BuildError
from megaflow.timely.dataflow.builder import Input, NodeBuilder, Output
from megaflow.timely.dataflow.capability import Capability, Invocation
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.given import function, iterable
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
_Build = Callable[[Capability, OperatorInfo], Callable[..., None]]  # any of those
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
    """Build an operator with these inputs and one output. Without inputs it runs once at the start, then on request."""
    function(str(name), build, "build")
    builder = NodeBuilder(scope, name)
    sources = [builder.new_input(port, pact, notify=notify) for port, pact in inputs]
    output, result = builder.new_output()
    finish(builder, sources, [output], lambda capabilities, info: build(capabilities[0], info), joinable, stateless)
    return result


def sink(port: Port[T], pact: PactOrClass, name: str, build: SinkBuild[T], stateless: bool = False) -> None:
    """Build an operator with one input and no output; it runs when data arrives or the frontier moves."""
    function(str(name), build, "build")
    builder = NodeBuilder(port.scope, name)
    finish(builder, [builder.new_input(port, pact)], [], lambda _, info: build(info), stateless=stateless)


def notified(logic: Callable[..., None], init: Iterable[Time]) -> _Build:
    """Give the logic a notificator that outlives its runs, and is asked for the times `init` first."""
    function("an operator with a notificator", logic, "logic")
    times = list(iterable("init= of an operator with a notificator", init, "a list of times"))

    def build(capability: Capability, info: OperatorInfo) -> Callable[..., None]:
        notificator = FrontierNotificator(info.activator)
        for time in times if capability.held else ():
            notificator.notify_at(capability.delayed(time))
        capability.release()
        return lambda *ports: logic(*ports, notificator)

    return build


def finish(
    builder: NodeBuilder,
    inputs: Sequence[Input[Any]],
    outputs: Sequence[Output[Any]],
    build: Callable[[list[Capability], OperatorInfo], Callable[..., None]],
    joinable: bool = False,
    stateless: bool = False,
    hand_over: bool = True,
) -> None:
    """Finish an operator of the user's: capability references end, and open sessions flush, when its logic returns.

    `stateless`: nothing of it outlives a time, as the user says. `hand_over`: the logic is called with the inputs and
    the outputs; else it knows them. Raises BuildError if `build` returns nothing that can be called.
    """
    builder.node.by_hand = not stateless
    ports = (*inputs, *outputs) if hand_over else ()
    takes = "of its inputs and its output" if hand_over else "without arguments"

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        logic = build(capabilities, info)
        if not callable(logic):
            raise BuildError(
                f"{info.name} ({builder.where}): build returned {logic!r}, a {type(logic).__name__}; "
                f"it must return the operator's logic, a function {takes}"
            )

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
