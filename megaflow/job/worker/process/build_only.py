"""The dataflow of a program, built on a lone worker to inspect it without running it.

The dataflow function receives a flow whose lines never come.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from megaflow.connect.source_protocol import Source
from megaflow.job.worker.process.flow import Flow, wire
from megaflow.job.worker.process.named_inputs import NamedInputs
from megaflow.job.worker.process.worker_sinks import WorkerSinks
from megaflow.job.worker.writing.output import NamedOutputs
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.timely import worker as engine
from megaflow.timely.communication.local import LocalFabric
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.membership import founding


class Enough(BaseException):
    """The program wants to step, so its dataflow is built. A BaseException: `except Exception` must not catch it."""


class BuildOnlyWorker(engine.Worker[Scope]):
    """A worker that builds a dataflow but does not run it."""

    def step(self) -> NoReturn:
        """End the program."""
        raise Enough

    def step_or_park(self, seconds: float | None = None) -> NoReturn:
        """End the program."""
        raise Enough


def build_only_worker(args: Sequence[Any]) -> BuildOnlyWorker:
    """Return a lone worker that only builds."""
    return BuildOnlyWorker(LocalFabric([0]).allocator(0), founding([0]), Scope, (time.monotonic, time.time), args)


def build_dry(
    worker: Worker,
    function: Callable[[Any], Any],
    args: Sequence[Any],
    inputs: NamedInputs | None = None,
    outputs: NamedOutputs | None = None,
) -> tuple[frozenset[str], WorkerSinks]:
    """Call a dataflow function with a flow whose lines or rows never come.

    Return the names of the sources that it reads, and the sinks that it writes to.

    `inputs` and `outputs` are those of the job; None: they are not known, so any are possible.
    """
    inputs = NamedInputs(None, None, None) if inputs is None else inputs
    outputs = NamedOutputs() if outputs is None else outputs
    with worker.dataflow(function.__name__) as scope:
        flow, sinks = wire(worker, scope, InputHandle(), args, NeverReading, inputs, outputs)
        function(flow)
    return frozenset(inputs.sources), sinks


class NeverReading:
    """Reader of inputs that have no record and do not end."""

    def __init__(self, flow: Flow) -> None:
        self._scope = flow.scope

    @property
    def lines(self) -> Port[Any]:
        """A stream without records."""
        return self._scope.source("Lines", never, stateless=True).port

    def add_source(self, name: str, source: Source[Any]) -> Port[Any]:
        """Return a stream without records."""
        return self.lines


def never(capability: Capability, info: object) -> Callable[[object], None]:
    """Build a source that has no lines and does not end."""

    def logic(output: object) -> None:
        assert capability.held, "a source that lets go of it ends"

    return logic
