"""The feeds of an EngineCluster, and the conversion of a `dataflow(flow)` to an engine program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from typing import Any, TypeAlias

from megaflow.connect.source_protocol import Source
from megaflow.errors import BuildError, UsageError
from megaflow.job.formats.record_format import LINES
from megaflow.job.launcher.program.function_pickler import check_function
from megaflow.job.worker.process.flow import Flow, build_flow
from megaflow.job.worker.process.named_inputs import NamedInputs
from megaflow.megaphone.router.control_stream import set_default
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators.movement import broadcast

FlowFunction: TypeAlias = Callable[[Flow], Stream[Any]]
"""`dataflow(flow) -> outputs`, as for `megaflow run`."""


def build_of(function: Any, args: Sequence[Any]) -> Callable[[Worker, Stream[Any], Stream[Any]], Stream[Any]]:
    """Return a `build(worker, records, commands)`: the function itself, or a wrapper of a `dataflow(flow)`.

    The wrapped dataflow reads the records as its lines, and its commands are numbered. Raises UsageError for other
    objects.
    """
    with suppress(TypeError, ValueError):
        signature(function).bind(None, None, None)
        return function  # type: ignore[no-any-return]
    check_function(function)

    def build(worker: Worker, records: Stream[Any], commands: Stream[Any]) -> Stream[Any]:
        numbered = broadcast(commands.port, Lane.MAIL)
        set_default(numbered)
        inputs = NamedInputs()
        scope, reading = Scope(commands.port.scope), FedRecords(records, inputs)
        flow = Flow(worker, scope, Stream(numbered), list(args), lambda flow: reading, inputs)
        return build_flow(function, flow, has_lines=True)

    return build


class FedRecords:
    """Reader of the records of a feed, as lines in the format in which the program reads them."""

    def __init__(self, records: Stream[Any], inputs: NamedInputs) -> None:
        self._records, self._inputs = records, inputs

    @property
    def lines(self) -> Port[Any]:
        """The lines."""
        stream = self._inputs.formats.get("", LINES).stream(lambda line: f"line {line + 1} of a feed", None)
        records = self._records
        return (records if stream is None else records.flat_map(lambda line: stream.feed([line]))).port

    def add_source(self, name: str, source: Source[Any]) -> Port[Any]:
        """Raise BuildError: there are only lines."""
        raise BuildError(f"flow.read(…, {name!r}): An EngineCluster feeds only lines. Use a SimulatedCluster.")


def check_feeds(feeds: Any, commands: Sequence[tuple[int, Any]], workers: Sequence[int]) -> None:
    """Raise UsageError for invalid feeds or commands, such as times out of order."""
    if not isinstance(feeds, Mapping):
        raise UsageError(f"feeds must be a dict, worker -> [(time, record), …], not {feeds!r:.80}.")
    if strangers := set(feeds).difference(workers):
        raise UsageError(f"There are feeds for workers {sorted(strangers)}, but the workers are {list(workers)}.")
    for name, script in [*((f"feeds[{worker}]", feed) for worker, feed in feeds.items()), ("commands", commands)]:
        last = 0
        for time, _ in script:
            if not isinstance(time, int) or time < last:
                raise UsageError(f"{name}: Times must be ints in order, from 0 on, but {time!r} comes after {last}.")
            last = time
