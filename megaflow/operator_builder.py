"""OperatorBuilder: a custom operator of any shape, with several outputs that depend on some of its inputs.

It covers three things that `unary` and `binary` do not: the number of ports; for each output, the inputs from which its
records may come; for each input, whether a move of its frontier runs the operator. The first two also inform progress
tracking: an output's frontier waits only for the inputs on which the output depends.

    builder = OperatorBuilder(scope, "Count")
    words = builder.new_input(stream, Pipeline)
    questions = builder.new_input(asked, Pipeline, notify=False)
    counts, counted = builder.new_output(depends_on=[words])
    answers, answered = builder.new_output(depends_on=[questions])
    builder.build(build)

An operator cannot break these promises, because the right to send is a capability. No input yields a capability for an
output that does not depend on it, nor for an earlier time than promised. `retain` and `session` refuse that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from megaflow.errors import BuildError
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.timely.dataflow.argument_checks import shown
from megaflow.timely.dataflow.builder import Input, NodeBuilder, Output
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.operators.generic import finish
from megaflow.timely.dataflow.pact import PactOrClass
from megaflow.timely.dataflow.scopes import path_that_advances
from megaflow.timely.path_summary import Step, Summary

T = TypeVar("T")

Build = Callable[[list[Capability], OperatorInfo], Callable[[], None]]


class OperatorBuilder:
    """Builder of one operator: its inputs, then its outputs, then `build`, in the same order on all workers."""

    def __init__(self, scope: Scope, name: str) -> None:
        """Start an operator of `scope`, whose streams are its inputs. Raises BuildError after the scope's block."""
        if not isinstance(scope, Scope):
            raise BuildError(
                f"OperatorBuilder: a {type(scope).__name__} is not a scope; give it the scope of a `with` block"
            )
        self._name = name
        self._scope = scope.ref
        self._builder = NodeBuilder(scope.ref, name)
        self._inputs: list[Input[Any]] = []
        self._outputs: list[Output[Any]] = []
        self._paths: list[dict[int, Summary]] = []  # input -> output number -> path of times; filled by `build`
        self._advances: list[dict[int, Summary] | None] = []  # output -> input number -> path; None: every input, none
        self._built = False

    def new_input(self, stream: Stream[T], pact: PactOrClass, notify: bool = True) -> Input[T]:
        """Add an input that `stream` feeds. Iterate over it for times and batches; `input.frontier` is its frontier.

        With `notify=False`, a move of this input's frontier does not run the operator. It runs when records arrive at
        any input, when the frontier of an input with notifications moves, and when its activator requests it.
        """
        self._check_open("new_input")
        if not isinstance(stream, Stream):
            raise BuildError(
                f"new_input: {self._title()} needs a stream, not a {type(stream).__name__}; scope.to_stream(…) makes "
                "a stream from an iterable"
            )
        paths: dict[int, Summary] = {}
        made = self._builder.new_input(stream.port, pact, paths, notify)
        self._paths.append(paths)
        self._inputs.append(made)
        return made

    def new_output(
        self, depends_on: Collection[Input[Any]] | Mapping[Input[Any], Step] | None = None
    ) -> tuple[Output[Any], Stream[Any]]:
        """Add an output; return it, for the operator to send through, and the stream of the records that it sends.

        `depends_on` lists the inputs whose records, or times, may lead to records here; None means all of them. A
        mapping also states, for each input, by how much time has advanced at least, as for a `feedback`: `{words: 1}`.
        Records and times of other inputs do not hold this output's frontier back. An output that depends on no input
        stays open while the operator holds its initial capability or capabilities made from it.
        """
        self._check_open("new_output")
        advances: dict[int, Summary] | None = None
        if isinstance(depends_on, Input):  # an input is also iterable
            raise BuildError(f"new_output: {self._title()}: depends_on takes a list of inputs; write [input]")
        if depends_on is not None and not isinstance(depends_on, Collection):
            raise BuildError(f"new_output: {self._title()}: depends_on takes a list of inputs, not {shown(depends_on)}")
        if depends_on is not None:
            amounts = depends_on if isinstance(depends_on, Mapping) else dict.fromkeys(depends_on, 0)
            advances = {self._number(each): self._checked(amount) for each, amount in amounts.items()}
        self._advances.append(advances)
        output, port = self._builder.new_output()
        self._outputs.append(output)
        return output, Stream(port)

    def build(self, build: Build, joinable: bool = False, *, stateless: bool = False) -> None:
        """Finish: `build(capabilities, info)` returns `logic()`, which reads the inputs and sends through the outputs.

        `capabilities` are the initial ones, one per output in the order of `new_output`. The engine releases those that
        `build` does not keep. While `build` keeps a capability, the output stays open at its time, so `release()` it
        when it is no longer needed. For a time that came by an input, `time.retain(output)` is the right to send at an
        output that depends on the input. On a worker that joins later, the initial capabilities are absent; with
        `joinable` they are filled as those of a `source` are. `stateless` is as in `Stream.unary`.
        """
        self._check_open("build")
        if not callable(build):
            raise BuildError(f"build: {self._title()}: {build!r} is not a function; give it build(capabilities, info)")
        if not self._inputs and not self._outputs:
            raise BuildError(f"{self._title()}: it has neither an input nor an output; add one before build")
        self._built = True
        for output, advances in enumerate(self._advances):
            if advances is None:
                advances = dict.fromkeys(range(len(self._inputs)), self._checked(0))
            for number, summary in advances.items():
                self._paths[number][output] = summary
        finish(self._builder, self._inputs, self._outputs, build, joinable, stateless, hand_over=False)

    def _title(self) -> str:
        return f"{self._name} ({self._builder.where})"

    def _check_open(self, verb: str) -> None:
        if self._built:
            raise BuildError(f"{verb}: {self._title()} is already built; make another OperatorBuilder")

    def _number(self, made: Any) -> int:
        if made in self._inputs:
            return self._inputs.index(made)
        raise BuildError(
            f"new_output: {self._title()} depends on {made!r}, which is not one of its inputs; depends_on takes "
            "inputs that new_input of this builder returned"
        )

    def _checked(self, advance: Step) -> Summary:
        try:
            return path_that_advances(self._scope, advance)
        except ValueError as error:
            raise BuildError(
                f"new_output: {self._title()} advances time by {advance!r}; an advance must be {error}"
            ) from None
