"""A program that is built, but not run: for `megaflow graph` and `check`, and for the bins of a program's keys.

An engine program's `main(worker)` runs until it would first step its worker, or to its end. All code before that runs
as usual, with its side effects. For a flow program's function see `megaflow.job.worker.process.build_only`.
"""

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from megaflow.durable.restored import Restored, StateDescriptor
from megaflow.errors import PeerFailed, ProgramError, UsageError
from megaflow.job.app import find_app
from megaflow.job.spec import AppFile
from megaflow.job.worker.process.build_only import Enough, build_dry, build_only_worker
from megaflow.job.worker.process.flow import Flow, build_flow
from megaflow.job.worker.process.named_inputs import NamedInputs
from megaflow.job.worker.process.program_loading import load
from megaflow.job.worker.writing.output import NamedOutputs
from megaflow.megaphone.base.durability import Durability
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.error_notes import format_user_traceback, user_line
from megaflow.timely.dataflow.graph import Graph, Port
from megaflow.timely.dataflow.picture import draw

MAIN = "main"  # an engine program's function, where there is no flow


@contextmanager
def building(debug: bool = False, but: type[Exception] | tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Build a program in the block, at most up to its first step.

    An error of a class in `but` passes through. Any other error of the program raises PeerFailed with its
    traceback, which has megaflow's own frames only if `debug`.
    """
    try:
        yield
    except Enough:
        pass
    except KeyboardInterrupt:
        raise
    except but:
        raise
    except BaseException as error:
        raise PeerFailed(format_user_traceback(error, debug)) from error


class AppOperators:
    """The stateful operators of a program, which know the bin of each key, and its sinks, which know their records.

    Building loads the program and the classes of its states. While it is built, each operator asks for the states that
    it begins with. It gets none, and its descriptor is kept here.
    """

    def __init__(self, text: str, args: Sequence[str]) -> None:
        """Load FILE[:FUNCTION] and build its dataflow. Raises UsageError, or PeerFailed with its traceback."""
        self._text = text
        self._found: dict[str, StateDescriptor] = {}  # by name
        app = find_app(text)
        with building(but=UsageError):
            function = load(app)

            def build(flow: Flow) -> Any:
                flow.scope.ref.graph.extension(Durability).restore = self._note
                return function(flow)

            _, self._sinks = build_dry(build_only_worker(args), build, args)

    def _note(self, descriptor: StateDescriptor, bins: Collection[int]) -> Restored:
        self._found[descriptor.name] = descriptor
        return Restored({}, {})

    def bin_of_key(self, operator: str, bins: int) -> Callable[[Any], int]:
        """Return a function from a key of this operator to its bin. Raises UsageError if there is no such operator."""
        if operator not in self._found:
            there = ", ".join(sorted(self._found)) or "none"
            raise UsageError(f"The program {self._text!r} has no stateful operator {operator!r}. It has: {there}.")
        return self._found[operator].binning(bins, None)

    def check_record(self, sink: str, record: Any) -> None:
        """Ask a sink about a record. Raises ProgramError if it refuses it, UsageError if there is no such sink."""
        with building(but=(ProgramError, UsageError)):
            self._sinks.check(sink, record)


@dataclass(frozen=True, slots=True)
class Built:
    """Dataflows of a program, and facts about it that the build has shown."""

    app: AppFile
    function: Callable[..., Any]
    graphs: Sequence[Graph]
    is_flow: bool  # False: an engine program
    outputs: Mapping[str, Port[Any]]  # name -> its stream; "": the returned one
    inputs: Sequence[str]  # such as "rows 'orders'"; lines and items with a name are "input 'clicks'"
    states: Sequence[tuple[StateDescriptor, str]]  # the stateful operators of a flow program, each with its file:line
    modules: Sequence[ModuleType]  # that were imported meanwhile


def build_program(
    text: str, args: Sequence[str], inputs: NamedInputs, outputs: NamedOutputs, has_lines: bool, debug: bool = False
) -> Built:
    """Build what FILE[:FUNCTION] or MODULE[:FUNCTION] names, with all checks that a job's workers make of it.

    `has_lines`: the job has lines or rows to read. Raises UsageError if it builds nothing or if an engine program is
    given an input or output, and PeerFailed with the traceback of what the program raises.
    """
    app, worker, before = find_function(text), build_only_worker(args), set(sys.modules)
    states: list[tuple[StateDescriptor, str]] = []
    returned: dict[str, Port[Any]] = {}

    def note(descriptor: StateDescriptor, bins: Collection[int]) -> Restored:
        states.append((descriptor, user_line()))
        return Restored({}, {})

    with building(debug):
        function = load(app)
    is_flow = not takes_worker(function)
    if not is_flow and (inputs.rows or inputs.lines or has_lines or outputs.given):
        what = f"{text!r} is an engine program, which reads and writes by itself"
        raise UsageError(f"{what}. Leave --lines, --rows and --output out.")

    def build(flow: Flow) -> None:
        flow.scope.ref.graph.extension(Durability).restore = note
        returned[""] = build_flow(function, flow, has_lines).port

    with building(debug):
        if is_flow:
            build_dry(worker, build, args, inputs, outputs)
        else:
            function(worker)
    if not worker.graphs():
        raise UsageError(f"There is nothing to check: {text!r} builds no dataflow before its first step.")
    modules = [module for name, module in [*sys.modules.items()] if name not in before]
    streams = {**returned, **outputs.streams}
    return Built(app, function, worker.graphs(), is_flow, streams, read_by(inputs), states, modules)


def read_by(inputs: NamedInputs) -> list[str]:
    """Return the inputs that a program reads, as texts.

    >>> read_by(NamedInputs(read_lines=["orders"], sources={"table"}))
    ["input 'orders'", "source 'table'"]
    """
    lines = [f"input {name!r}" if name else "lines" for name in dict.fromkeys(inputs.read_lines)]
    rows = [f"rows {name!r}" for name in inputs.shapes]
    return [*lines, *rows, *(f"source {name!r}" for name in sorted(inputs.sources))]


def draw_app(text: str, args: Sequence[str], language: str, debug: bool = False) -> str:
    """Return the picture of what FILE[:FUNCTION] or MODULE[:FUNCTION] builds.

    FUNCTION is a flow program's (the default is `dataflow`) or, if its one parameter is named `worker`, an engine
    program's (`main` where there is no `dataflow`). Raises UsageError if it builds nothing, and PeerFailed with the
    traceback of what it raises, without megaflow's own frames unless `debug`.
    """
    app = find_function(text)
    worker = build_only_worker(args)
    with building(debug):
        function = load(app)
        if takes_worker(function):
            function(worker)
        else:
            build_dry(worker, function, args)
    if not worker.graphs():
        raise UsageError(f"There is nothing to draw: {text!r} builds no dataflow before its first step.")
    return draw(worker.graphs(), language)


def find_function(text: str) -> AppFile:
    """Return the function that a text names. If it names none: `dataflow` or, in a file without it, `main`."""
    try:
        return find_app(text)
    except UsageError as missing:
        try:
            return find_app(f"{text}:{MAIN}")
        except UsageError:
            raise missing from None


def takes_worker(function: Callable[..., Any]) -> bool:
    """Tell an engine program's function from a flow's."""
    return [*inspect.signature(function).parameters][:1] == ["worker"]
