"""The ends of the dataflow: output records on their way to the launcher, epoch by epoch.

The outputs are the stream that the dataflow function returns and the streams that it outputs by name. The job must have
been given a place for exactly these names. Each worker checks this after it has built its dataflow.

The launcher may be slower than the job. If its connection is full, the worker keeps output here under a capability. So
the epochs of this output stay open, the output lags, and the sources hold back.

The same happens until the launcher has connected. A joiner may have output before the launcher knows it. So every
worker reports closed epochs by the frontier *behind* the kept output. That frontier takes all workers into account: on
no worker does it pass a time for which any worker still keeps output.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any, TypeAlias

from megaflow.control.launcher_messages import OutputBatch, OutputClosed
from megaflow.errors import BuildError
from megaflow.job.spec import Form
from megaflow.job.worker.control.connection_handlers import LauncherDoor
from megaflow.job.worker.writing.csv_rows import CsvRows
from megaflow.job.worker.writing.json_lines import as_json_lines
from megaflow.quick_dataclass import dataclass
from megaflow.rows.packed_rows import names_text
from megaflow.rows.result_rows import RowPacker
from megaflow.timely.dataflow.builder import Input, NodeBuilder, Output
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.graph import Graph, Node, Port
from megaflow.timely.dataflow.operators.movement import concatenate
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.dataflow.partition_tag import untagged
from megaflow.timely.order import Time, epoch_of
from megaflow.timely.progress.antichain import first_epoch

RETRY_SECONDS = 0.02  # between two checks whether the launcher has room

Render: TypeAlias = Callable[[int, list[Any]], list[Any]]
"""(epoch, records) -> the items to send to the launcher, one per record."""


def as_records(epoch: int, records: list[Any]) -> list[Any]:
    """Return the records as they are, for `megaflow.run`."""
    return untagged(records)


def as_text(epoch: int, batch: list[Any]) -> list[str]:
    """Return strings unchanged, and other records as their repr.

    >>> as_text(7, ["a", ("a", 1)])
    ['a', "('a', 1)"]
    """
    left = iter(batch)  # what is left, for the note on an exception of a user's __repr__
    return [record if type(record) is str else repr(record) for record in left]


RENDERERS: dict[Form, Render] = {"records": as_records, "text": as_text, "jsonl": as_json_lines}


def renderer(form: Form) -> Render | None:
    """Return the function that renders records for the launcher, None if it wants none; `rows`: one item per batch."""
    if form == "nothing":
        return None
    kind, _, schema = form.partition(":")
    if kind == "csv":
        return CsvRows(json.loads(schema or "[]")).render
    if kind != "rows":
        return RENDERERS[form]
    packer = RowPacker(schema)
    return lambda epoch, batch: [packer.pack(batch)]


@dataclass(eq=False)
class NamedOutputs:
    """The named output streams of one worker's dataflow. One writer: the code that builds it."""

    given: Collection[str] | None = None  # names for which the job has a place; None: unknown, any are possible
    streams: dict[str, Port[Any]] = field(default_factory=dict)

    def write(self, name: Any, port: Port[Any]) -> None:
        """Note that the program outputs a stream by name. Raises BuildError."""
        if not isinstance(name, str) or not name.isidentifier():
            raise BuildError(
                f"flow.output({name!r:.80}, …): The name must be an identifier, as in flow.output('late', stream)."
            )
        if name in self.streams:
            raise BuildError(
                f"flow.output({name!r}, …) is called twice. Concatenate the streams and output the result once."
            )
        if self.given is not None and name not in self.given:
            given = f"the outputs {names_text([*self.given])}" if self.given else "no named output"
            raise BuildError(
                f"The dataflow writes the output {name!r}, but the job was given {given}. Say where it goes by "
                f"--output {name}=jsonl:PATH or outputs={{{name!r}: …}}; {name}=none drops it."
            )
        self.streams[name] = port

    def check_written(self) -> None:
        """Raise BuildError if the job was given a place for an output that the program does not write."""
        if unwritten := [name for name in self.given or () if name not in self.streams]:
            only = f"writes only {names_text([*self.streams])}" if self.streams else "does not call flow.output"
            raise BuildError(f"The job was given the outputs {names_text(unwritten)}, but the dataflow {only}.")


class JobOutputs:
    """The operators that send streams to the launcher, one for each output; made while the dataflow is built.

    The stream `sent` behind them is empty. Its frontier passes a time once everything before it has been sent, so it is
    the place to probe.
    """

    def __init__(
        self, ports: Mapping[str, Port[Any]], launcher: LauncherDoor, forms: Mapping[str, Form], durable: bool = False
    ) -> None:
        """`durable`: the launcher waits for closed epochs, even without records, and receives the counts of records.

        Raises BuildError for a stream inside a loop or scope.
        """
        self._outputs = []
        counts = Counter[int]() if durable else None
        for name, port in ports.items():
            if port.scope.depth:
                raise BuildError(
                    "The output of a dataflow must be in its root scope. Call leave() on the stream first."
                )
            graph = port.scope.graph
            node = operator_of(graph, port)
            graph.where = f"the output of {node.name!r}, {node.where}"
            self._outputs.append(JobOutput(port, launcher, forms[name], name, counts))
        sent = [output.sent for output in self._outputs]
        self.sent = sent[0] if len(sent) == 1 else concatenate(sent[0].scope, sent)
        if durable or any(form != "nothing" for form in forms.values()):
            EpochCloser(self.sent, launcher, counts)

    @property
    def records(self) -> int:
        """The number of output records so far."""
        return sum(self.by_name().values())

    def by_name(self) -> dict[str, int]:
        """Return the number of records of each output so far."""
        return {output.name: output.records for output in self._outputs}


def operator_of(graph: Graph, port: Port[Any]) -> Node:
    """Return the program's operator that outputs a port's records; skips the operator that removes timestamps."""
    node = graph.nodes[port.node]
    if node.stage is None or node.stage.kind != "plain":
        return node
    source = next(edge.source for edge in graph.edges if edge.target in node.targets)
    return next(each for each in graph.nodes if source in each.sources)


class JobOutput:
    """The operator that renders a stream and sends it to the launcher; made while the dataflow is built.

    If the launcher wants nothing, it only counts records. The stream `sent` behind it is empty. Its frontier passes a
    time once everything before it has been sent, so it is the place to probe.
    """

    def __init__(
        self, port: Port[Any], launcher: LauncherDoor, form: Form, name: str, counts: "Counter[int] | None" = None
    ) -> None:
        """`name`: the output's. The stream must have the times of the root scope. `counts` gets the records by epoch.
        """
        self.records = 0  # the number of output records so far
        self._counts = counts
        self._launcher = launcher
        self.name = name
        self._render = renderer(form)
        self._kept: deque[tuple[Capability, list[Any]]] = deque()  # in order of arrival, until there is room
        self._retrying = False  # a timer will run this again
        builder = NodeBuilder(port.scope, "Output")
        self._input: Input[Any] = builder.new_input(port, Pipeline(), notify=False)
        self._output: Output[Any]
        self._output, self.sent = builder.new_output()
        builder.build(self._make)

    def _make(self, capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        capabilities[0].release()
        self._info = info
        return self.run

    def run(self) -> None:
        """Send the records for which there is room, and keep the rest. Only count them if the launcher wants nothing.
        """
        self._retrying = False
        while self._kept and self._launcher.has_room:
            capability, batch = self._kept.popleft()
            self._send(capability.time, batch)
            capability.release()
        for time, batch in self._input.drain():
            self.records += len(batch)
            if self._counts is not None:
                self._counts[epoch_of(time)] += len(batch)
            if self._render is None:
                continue
            if self._kept or not self._launcher.has_room:
                self._kept.append((mint(self._output, time), batch))
            else:
                self._send(time, batch)
        if self._kept and not self._retrying:
            self._retrying = True
            self._info.activator.activate_after(RETRY_SECONDS)

    def _send(self, time: Time, batch: list[Any]) -> None:
        assert self._render is not None
        epoch = epoch_of(time)
        self._launcher.send(OutputBatch(self._info.worker, epoch, self._render(epoch, batch), self.name))


class EpochCloser:
    """The operator that reports closed epochs to the launcher: those that the frontier behind the output has passed."""

    def __init__(self, sent: Port[Any], launcher: LauncherDoor, counts: "Counter[int] | None" = None) -> None:
        """`counts` has the number of records by epoch, if the launcher wants it."""
        self._launcher = launcher
        self._counts = Counter[int]() if counts is None else counts
        self._closed: float = 0  # epochs before this one are known to the launcher as closed
        builder = NodeBuilder(sent.scope, "Closed")
        self._input: Input[Any] = builder.new_input(sent, Pipeline())
        builder.build(self._make)

    def _make(self, capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        self._worker = info.worker
        return self.run

    def run(self) -> None:
        """Report to the launcher the epochs that were closed since the last call."""
        epoch = first_epoch(self._input.frontier)  # None: no output will come any longer
        closed = float("inf") if epoch is None else epoch
        if closed > self._closed:
            self._closed = closed
            counts = tuple((each, self._counts.pop(each)) for each in sorted(self._counts) if each < closed)
            self._launcher.send(OutputClosed(self._worker, epoch, counts))
