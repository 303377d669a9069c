"""Operators whose logic the user writes: unary, binary, source, sink.

`build(capability, info)` gets the operator's initial capability and returns the closure
that runs. The plain forms run when data arrives; the `_frontier` forms also when a
frontier moves, and their inputs have `frontier`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from megaflow.timely.dataflow.builder import Input, OperatorBuilder, OperatorInfo, Output
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.graph import Port, ScopeRef
from megaflow.timely.dataflow.pact import Pact

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")

UnaryLogic = Callable[[Input[T], Output[R]], None]
UnaryBuild = Callable[[Capability, OperatorInfo], UnaryLogic[T, R]]
BinaryLogic = Callable[[Input[T], Input[U], Output[R]], None]
BinaryBuild = Callable[[Capability, OperatorInfo], BinaryLogic[T, U, R]]
SourceBuild = Callable[[Capability, OperatorInfo], Callable[[Output[R]], None]]
SinkBuild = Callable[[OperatorInfo], Callable[[Input[T]], None]]


def unary(port: Port[T], pact: Pact, name: str, build: UnaryBuild[T, R], notify: bool = False) -> Port[R]:
    """One input, one output; `notify` makes it the `_frontier` form."""
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
    """Two inputs, one output; `notify` makes it the `_frontier` form."""
    builder = OperatorBuilder(left.scope, name)
    first: Input[T] = builder.new_input(left, pacts[0], notify=notify)
    second: Input[U] = builder.new_input(right, pacts[1], notify=notify)
    output, result = builder.new_output()

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        logic = builder.checked(build(capabilities[0], info))
        return lambda: logic(first, second, output)

    builder.build_reader(make)
    return result


def source(scope: ScopeRef, name: str, build: SourceBuild[R]) -> Port[R]:
    """No input: it runs once at the start and then when `info.activator` says so."""
    builder = OperatorBuilder(scope, name)
    output: Output[Any]
    output, result = builder.new_output()

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        logic = builder.checked(build(capabilities[0], info))
        return lambda: logic(output)

    builder.build_reader(make)
    return result


def sink(port: Port[T], pact: Pact, name: str, build: SinkBuild[T]) -> None:
    """One input, no output; runs when data arrives or the frontier moves."""
    builder = OperatorBuilder(port.scope, name)
    made: Input[T] = builder.new_input(port, pact)

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        logic = builder.checked(build(info))
        return lambda: logic(made)

    builder.build_reader(make)
