"""A flow program's dataflow, built on a lone worker to be looked at, not run.

The program's function is given a flow whose lines never come.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from megaflow.connect.write_operator import Writing
from megaflow.job.worker.flow import Flow
from megaflow.job.worker.kept_state import ENGINE
from megaflow.job.worker.named_inputs import NamedInputs
from megaflow.job.worker.output import NamedOutputs
from megaflow.job.worker.worker_sinks import WorkerSinks
from megaflow.megaphone.control_stream import set_default
from megaflow.megaphone.routing import Numbered
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.timely import worker as engine
from megaflow.timely.communication.channel import Lane
from megaflow.timely.communication.local import LocalFabric
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.operators.movement import broadcast
from megaflow.timely.membership import founding


class Enough(BaseException):
    """The program wants to step: it has built what it builds. Not to be caught by `except Exception`."""


class Draughtsman(engine.Worker[Scope]):
    """A worker that builds and does not run."""

    def step(self) -> NoReturn:
        """End the program."""
        raise Enough

    def step_or_park(self, seconds: float | None = None) -> NoReturn:
        """End the program."""
        raise Enough


def draughtsman(args: Sequence[Any]) -> Draughtsman:
    """Return a lone worker of that kind."""
    return Draughtsman(LocalFabric([0]).allocator(0), founding([0]), Scope, (time.monotonic, time.time), args)


def build_dry(
    worker: Worker,
    function: Callable[[Any], Any],
    args: Sequence[Any],
    rows: Sequence[str] | None = None,
    lines: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> frozenset[str]:
    """Call a flow program's function with a flow whose lines, or rows, never come; return which sources it reads.

    Names are as in NamedInputs and NamedOutputs.
    """
    control: InputHandle[Any] = InputHandle()
    with worker.dataflow(function.__name__) as scope:
        scope.ref.graph.where = ENGINE
        numbered = broadcast(scope.input_from(control).port, Lane.MAIL)
        set_default(numbered)
        scope.ref.graph.extension(Writing).host = WorkerSinks(worker, "", numbered)
        scope.ref.graph.where = None
        numbers: Stream[Numbered] = Stream(numbered)
        inputs = NamedInputs(rows, lines)
        read = partial(scope.source, "Lines", never, stateless=True)
        function(Flow(worker, scope, numbers, args, read, inputs, NamedOutputs(outputs), lambda name, source: read()))
    return frozenset(inputs.sources)


def never(capability: Capability, info: object) -> Callable[[object], None]:
    """A source that has no lines and does not end."""

    def logic(output: object) -> None:
        assert capability.held, "a source that lets go of it ends"

    return logic
