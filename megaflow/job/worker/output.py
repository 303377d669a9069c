"""The end of the dataflow: output records on their way to the launcher, epoch by epoch.

The launcher may be slower than the job. What does not fit its connection is kept here under a
capability, so the epochs concerned stay open, the output lags, and the sources hold back.

So it is as long as the launcher has not come. A worker that joins may have output before the launcher
knows of it; therefore every worker tells by the frontier *behind* what is kept which epochs are closed.
That one takes all workers into account: none passes a time at which another still keeps something.
"""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from megaflow.control.messages import OutputBatch, OutputClosed
from megaflow.control.worker.port_roles import LauncherDoor
from megaflow.errors import BuildError
from megaflow.job.spec import Form
from megaflow.job.worker.source_operator import epoch_of
from megaflow.timely.dataflow.builder import Input, OperatorBuilder, Output
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.order import Time

RETRY_SECONDS = 0.02  # until it is tried again whether the launcher has room


Render: TypeAlias = Callable[[int, list[Any]], list[Any]]
"""(epoch, records) -> what is sent to the launcher, one item a record."""


def as_records(epoch: int, records: list[Any]) -> list[Any]:
    """The records as they are, for `megaflow.run`."""
    return records


def as_text(epoch: int, records: list[Any]) -> list[str]:
    """Strings as they are, other records by their repr.

    >>> as_text(7, ["a", ("a", 1)])
    ['a', "('a', 1)"]
    """
    return [record if type(record) is str else repr(record) for record in records]


def as_json_lines(epoch: int, records: list[Any]) -> list[str]:
    """One JSON object a record, with its epoch as the time.

    >>> as_json_lines(17, [("word", 3)])
    ['{"time": 17, "record": ["word", 3]}']
    """
    return [f'{{"time": {epoch}, "record": {to_json(record)}}}' for record in records]


def to_json(record: Any) -> str:
    """Return the record as JSON; what JSON has no form for appears as its repr.

    >>> to_json(("é", 3, {1})), to_json({(1, 2): 3})
    ('["é", 3, "{1}"]', '"{(1, 2): 3}"')
    """
    try:
        return json.dumps(record, ensure_ascii=False, default=repr)
    except (TypeError, ValueError):  # keys of a dict that are no strings; a value that contains itself
        return json.dumps(repr(record), ensure_ascii=False)


RENDERERS: dict[Form, Render] = {"records": as_records, "text": as_text, "jsonl": as_json_lines}


@dataclass(slots=True)
class OutputCount:
    """How many records have come out."""

    records: int = 0  # written by the operator


def send_output(port: Port[Any], launcher: LauncherDoor, form: Form, count: OutputCount) -> Port[Any]:
    """Send a stream to the launcher, rendered; or only count it if the launcher wants nothing.

    Returns an empty stream whose frontier passes a time once everything before it has been sent:
    the place to probe. Raises BuildError for a stream inside a loop or scope.
    """
    if port.scope.depth:
        raise BuildError("the output of a dataflow must have the times of its root scope: leave() the scope first")
    builder = OperatorBuilder(port.scope, "Output")
    records: Input[Any] = builder.new_input(port, Pipeline(), notify=False)
    output, result = builder.new_output()

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        capabilities[0].release()
        if form == "nothing":
            return lambda: _count(records, count)
        return OutputSink(records, output, info, launcher, RENDERERS[form], count).run

    builder.build(make)
    if form != "nothing":
        _close(result, launcher)
    return result


def _count(records: Input[Any], count: OutputCount) -> None:
    for _, batch in records.drain():
        count.records += len(batch)


class OutputSink:
    """The logic of the operator that sends."""

    def __init__(
        self,
        records: Input[Any],
        output: Output[Any],
        info: OperatorInfo,
        launcher: LauncherDoor,
        render: Render,
        count: OutputCount,
    ) -> None:
        self._records = records
        self._output = output
        self._info = info
        self._launcher = launcher
        self._render = render
        self._count = count
        self._kept: deque[tuple[Capability, list[Any]]] = deque()  # in order of arrival, until there is room
        self._retrying = False  # a timer will run this again

    def run(self) -> None:
        """Send what there is room for, keep the rest."""
        self._retrying = False
        self._send_kept()
        for time, batch in self._records.drain():
            self._count.records += len(batch)
            if self._kept or not self._launcher.has_room:
                self._kept.append((mint(self._output, time), batch))
            else:
                self._send(time, batch)
        if self._kept and not self._retrying:
            self._retrying = True
            self._info.activator.activate_after(RETRY_SECONDS)

    def _send_kept(self) -> None:
        while self._kept and self._launcher.has_room:
            capability, batch = self._kept.popleft()
            self._send(capability.time, batch)
            capability.release()

    def _send(self, time: Time, batch: list[Any]) -> None:
        epoch = epoch_of(time)
        self._launcher.send(OutputBatch(self._info.worker, epoch, self._render(epoch, batch)))


def _close(port: Port[Any], launcher: LauncherDoor) -> None:
    """Tell the launcher which epochs are closed: those that the stream behind the output has passed."""
    builder = OperatorBuilder(port.scope, "Closed")
    sent: Input[Any] = builder.new_input(port, Pipeline())

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        return EpochCloser(sent, launcher, info.worker).run

    builder.build(make)


class EpochCloser:
    """The logic of the operator that tells."""

    def __init__(self, sent: Input[Any], launcher: LauncherDoor, worker: int) -> None:
        self._sent = sent
        self._launcher = launcher
        self._worker = worker
        self._closed = 0  # epoch up to which, exclusive, the launcher knows that nothing more will come
        self._ended = False  # the launcher knows that nothing will come at all

    def run(self) -> None:
        """Tell what is news."""
        open_times = self._sent.frontier.elements
        if not open_times:
            if not self._ended:
                self._ended = True
                self._launcher.send(OutputClosed(self._worker, None))
            return
        epoch = epoch_of(open_times[0])
        if epoch > self._closed:
            self._closed = epoch
            self._launcher.send(OutputClosed(self._worker, epoch))
