"""Operators whose logic the user writes: unary, binary, source, sink.

`build(capability, info)` gets the operator's initial capability and returns the closure
that runs. The plain forms run when data arrives; the `_frontier` forms also when a
frontier moves, and their inputs have `frontier`. The `_notify` forms need no build: they
are given the logic itself, and a notificator that outlives its runs.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from megaflow.timely.dataflow.builder import Input, OperatorBuilder, Output
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.graph import Port, ScopeRef
from megaflow.timely.dataflow.notificator import FrontierNotificator
from megaflow.timely.dataflow.pact import Pact
from megaflow.timely.order import Time

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")

UnaryLogic = Callable[[Input[T], Output[R]], None]
UnaryBuild = Callable[[Capability, OperatorInfo], UnaryLogic[T, R]]
BinaryLogic = Callable[[Input[T], Input[U], Output[R]], None]
BinaryBuild = Callable[[Capability, OperatorInfo], BinaryLogic[T, U, R]]
SourceBuild = Callable[[Capability, OperatorInfo], Callable[[Output[R]], None]]
NotifyLogic = Callable[[Input[T], Output[R], FrontierNotificator], None]
BinaryNotifyLogic = Callable[[Input[T], Input[U], Output[R], FrontierNotificator], None]
SinkBuild = Callable[[OperatorInfo], Callable[[Input[T]], None]]


def unary(port: Port[T], pact: Pact, name: str, build: UnaryBuild[T, R], notify: bool = False) -> Port[R]:
    """Build an operator with one input and one output; `notify` makes it the `_frontier` form."""
    builder = OperatorBuilder(port.scope, name)
    source: Input[T] = builder.new_input(port, pact, notify=notify)
    output, result = builder.new_output()

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        logic = builder.checked(build(capabilities[0], info))
        return lambda: logic(source, output)

    builder.build_reader(make)
    return result


def binary(
    left: Port[T],
    right: Port[U],
    pacts: tuple[Pact, Pact],
    name: str,
    build: BinaryBuild[T, U, R],
    notify: bool = False,
) -> Port[R]:
    """Build an operator with two inputs and one output; `notify` makes it the `_frontier` form."""
    builder = OperatorBuilder(left.scope, name)
    first: Input[T] = builder.new_input(left, pacts[0], notify=notify)
    second: Input[U] = builder.new_input(right, pacts[1], notify=notify)
    output, result = builder.new_output()

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        logic = builder.checked(build(capabilities[0], info))
        return lambda: logic(first, second, output)

    builder.build_reader(make)
    return result


def source(scope: ScopeRef, name: str, build: SourceBuild[R], joinable: bool = False) -> Port[R]:
    """Build an operator without inputs: it runs once at the start and then when `info.activator` says so."""
    builder = OperatorBuilder(scope, name)
    output: Output[Any]
    output, result = builder.new_output()

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        logic = builder.checked(build(capabilities[0], info))
        return lambda: logic(output)

    builder.build_reader(make, joinable)
    return result


def sink(port: Port[T], pact: Pact, name: str, build: SinkBuild[T]) -> None:
    """Build an operator with one input and no output; it runs when data arrives or the frontier moves."""
    builder = OperatorBuilder(port.scope, name)
    made: Input[T] = builder.new_input(port, pact)

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        logic = builder.checked(build(info))
        return lambda: logic(made)

    builder.build_reader(make)


def unary_notify(
    port: Port[T], pact: Pact, name: str, logic: NotifyLogic[T, R], init: Iterable[Time] = ()
) -> Port[R]:
    """Build an operator with one input, one output and a notificator that is asked for the times `init` first."""
    builder = OperatorBuilder(port.scope, name)
    source: Input[T] = builder.new_input(port, pact)
    output, result = builder.new_output()

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        notificator = _notificator(capabilities[0], info, init)
        return lambda: logic(source, output, notificator)

    builder.build_reader(make)
    return result


def binary_notify(
    left: Port[T],
    right: Port[U],
    pacts: tuple[Pact, Pact],
    name: str,
    logic: BinaryNotifyLogic[T, U, R],
    init: Iterable[Time] = (),
) -> Port[R]:
    """Build an operator with two inputs, one output and a notificator that is asked for the times `init` first."""
    builder = OperatorBuilder(left.scope, name)
    first: Input[T] = builder.new_input(left, pacts[0])
    second: Input[U] = builder.new_input(right, pacts[1])
    output, result = builder.new_output()

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        notificator = _notificator(capabilities[0], info, init)
        return lambda: logic(first, second, output, notificator)

    builder.build_reader(make)
    return result


def _notificator(capability: Capability, info: OperatorInfo, init: Iterable[Time]) -> FrontierNotificator:
    notificator = FrontierNotificator(info.activator)
    for time in init if capability.held else ():
        notificator.notify_at(capability.delayed(time))
    capability.release()
    return notificator
