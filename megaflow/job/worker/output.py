"""The ends of the dataflow: output records on their way to the launcher, epoch by epoch.

There is the stream that the dataflow function returns, and those that it gives out by name. What it gives out and what
the job was given places for must be the same names; each worker sees to that when it has built its dataflow.

The launcher may be slower than the job. What does not fit its connection is kept here under a
capability, so the epochs concerned stay open, the output lags, and the sources hold back.

The same holds until the launcher has connected. A worker that joins may have output before the launcher
knows of it; therefore every worker tells by the frontier *behind* what is kept which epochs are closed.
That frontier takes all workers into account: at none does it pass a time at which another keeps something.
"""

import json
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any, TypeAlias

from megaflow.control.launcher_messages import OutputBatch, OutputClosed
from megaflow.control.packed_rows import names_text
from megaflow.control.result_rows import RowPacker
from megaflow.control.worker.port_roles import LauncherDoor
from megaflow.errors import BuildError
from megaflow.job.spec import Form
from megaflow.job.worker.csv_rows import CsvRows
from megaflow.job.worker.json_lines import as_json_lines
from megaflow.job.worker.source_operator import epoch_of
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.builder import Input, NodeBuilder, Output
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.graph import Graph, Node, Port
from megaflow.timely.dataflow.operators.movement import concatenate
from megaflow.timely.dataflow.origin import untraced
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.order import Time

RETRY_SECONDS = 0.02  # until it is tried again whether the launcher has room

Render: TypeAlias = Callable[[int, list[Any]], list[Any]]
"""(epoch, records) -> what is sent to the launcher, one item a record."""


def as_records(epoch: int, records: list[Any]) -> list[Any]:
    """Return the records as they are, for `megaflow.run`."""
    return untraced(records)


def as_text(epoch: int, batch: list[Any]) -> list[str]:
    """Return strings as they are, other records by their repr.

    >>> as_text(7, ["a", ("a", 1)])
    ['a', "('a', 1)"]
    """
    left = iter(batch)  # for the note on what a user's __repr__ raises
    return [record if type(record) is str else repr(record) for record in left]


RENDERERS: dict[Form, Render] = {"records": as_records, "text": as_text, "jsonl": as_json_lines}


def renderer(form: Form) -> Render | None:
    """Return what renders the records for the launcher; None: it wants nothing. Packed rows are one item a batch."""
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
    """The streams that one worker's dataflow gives out by name. One writer: whoever builds it."""

    given: Collection[str] | None = None  # the names that the job was given a place for; None: not known, any may be
    streams: dict[str, Port[Any]] = field(default_factory=dict)

    def write(self, name: Any, port: Port[Any]) -> None:
        """Note that the program gives a stream out. Raises BuildError."""
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
    """The operators that send streams to the launcher, each by the name of its output; made while these are built.

    Behind them the stream `sent` is empty; its frontier passes a time once everything before it has been sent: the
    place to probe.
    """

    def __init__(
        self, ports: Mapping[str, Port[Any]], launcher: LauncherDoor, forms: Mapping[str, Form], durable: bool = False
    ) -> None:
        """`durable`: the launcher waits for closed epochs, be there records or not.

        Raises BuildError for a stream inside a loop or scope.
        """
        self._outputs = []
        for name, port in ports.items():
            if port.scope.depth:
                raise BuildError(
                    "The output of a dataflow must be in its root scope. Call leave() on the stream first."
                )
            graph = port.scope.graph
            node = operator_of(graph, port)
            graph.where = f"the output of {node.name!r}, {node.where}"
            self._outputs.append(JobOutput(port, launcher, forms[name], name))
        sent = [output.sent for output in self._outputs]
        self.sent = sent[0] if len(sent) == 1 else concatenate(sent[0].scope, sent)
        if durable or any(form != "nothing" for form in forms.values()):
            EpochCloser(self.sent, launcher)

    @property
    def records(self) -> int:
        """How many have come out."""
        return sum(output.records for output in self._outputs)


def operator_of(graph: Graph, port: Port[Any]) -> Node:
    """Return the operator of the program whose records leave by a port: not the one that takes timestamps off."""
    node = graph.nodes[port.node]
    if node.stage is None or node.stage.kind != "plain":
        return node
    source = next(edge.source for edge in graph.edges if edge.target in node.targets)
    return next(each for each in graph.nodes if source in each.sources)


class JobOutput:
    """The operator that sends a stream to the launcher, rendered; made while the dataflow is built.

    If the launcher wants nothing, records are only counted. Behind it the stream `sent` is empty; its frontier passes
    a time once everything before it has been sent: the place to probe.
    """

    def __init__(self, port: Port[Any], launcher: LauncherDoor, form: Form, name: str) -> None:
        """`name` is the output's; the stream has the times of the root scope."""
        self.records = 0  # that have come out
        self._launcher = launcher
        self._name = name
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
        return self.count if self._render is None else self.run

    def count(self) -> None:
        """Count the records, and drop them."""
        for _, batch in self._input.drain():
            self.records += len(batch)

    def run(self) -> None:
        """Send what there is room for, keep the rest."""
        self._retrying = False
        while self._kept and self._launcher.has_room:
            capability, batch = self._kept.popleft()
            self._send(capability.time, batch)
            capability.release()
        for time, batch in self._input.drain():
            self.records += len(batch)
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
        self._launcher.send(OutputBatch(self._info.worker, epoch, self._render(epoch, batch), self._name))


class EpochCloser:
    """The operator that tells the launcher which epochs are closed: those that the stream behind the output passed."""

    def __init__(self, sent: Port[Any], launcher: LauncherDoor) -> None:
        self._launcher = launcher
        self._closed: float = 0  # epoch up to which, exclusive, the launcher knows that nothing more will come
        builder = NodeBuilder(sent.scope, "Closed")
        self._input: Input[Any] = builder.new_input(sent, Pipeline())
        builder.build(self._make)

    def _make(self, capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        self._worker = info.worker
        return self.run

    def run(self) -> None:
        """Tell the launcher which epochs were closed since the last time."""
        open_times = self._input.frontier.elements
        epoch = epoch_of(open_times[0]) if open_times else None  # None: nothing will come at all
        closed = float("inf") if epoch is None else epoch
        if closed > self._closed:
            self._closed = closed
            self._launcher.send(OutputClosed(self._worker, epoch))
