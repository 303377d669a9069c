"""The end of the dataflow: output records on their way to the launcher, epoch by epoch.

The launcher may be slower than the job. What does not fit its connection is kept here under a
capability, so the epochs concerned stay open, the output lags, and the sources hold back.

So it is as long as the launcher has not come. A worker that joins may have output before the launcher
knows of it; therefore every worker tells by the frontier *behind* what is kept which epochs are closed.
That one takes all workers into account: none passes a time at which another still keeps something.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from megaflow.control.messages import OutputBatch, OutputClosed
from megaflow.errors import BuildError
from megaflow.job.rendering import Render
from megaflow.job.worker.source_operator import epoch_of
from megaflow.timely.dataflow.builder import Input, OperatorBuilder, Output
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.order import Time

RETRY_SECONDS = 0.02  # how soon to look again whether the launcher has taken something


class Outlet(Protocol):
    """The way to the launcher."""

    @property
    def has_room(self) -> bool:
        """Whether the launcher has come, and so waits for this worker's word, and keeps up."""

    def send(self, message: object) -> None:
        """Send a message to the launcher, when it comes. Does not block."""


@dataclass(slots=True)
class OutputCount:
    """How many records have come out."""

    records: int = 0  # written by the operator


def gather(port: Port[Any], way: tuple[Outlet, Render] | None, count: OutputCount) -> Port[Any]:
    """Send a stream to the launcher, rendered; or only count it if there is no way.

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
        if way is None:
            return lambda: _count(records, count)
        return OutputSink(records, output, info, way, count).run

    builder.build(make)
    if way is not None:
        _close(result, way[0])
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
        way: tuple[Outlet, Render],
        count: OutputCount,
    ) -> None:
        self._records = records
        self._output = output
        self._info = info
        self._outlet, self._render = way
        self._count = count
        self._kept: deque[tuple[Capability, list[Any]]] = deque()  # in order of arrival, until there is room
        self._retrying = False  # a timer will run this again

    def run(self) -> None:
        """Send what there is room for, keep the rest."""
        self._retrying = False
        self._send_kept()
        for time, batch in self._records.drain():
            self._count.records += len(batch)
            if self._kept or not self._outlet.has_room:
                self._kept.append((mint(self._output, time), batch))
            else:
                self._send(time, batch)
        if self._kept and not self._retrying:
            self._retrying = True
            self._info.activator.activate_after(RETRY_SECONDS)

    def _send_kept(self) -> None:
        while self._kept and self._outlet.has_room:
            capability, batch = self._kept.popleft()
            self._send(capability.time, batch)
            capability.release()

    def _send(self, time: Time, batch: list[Any]) -> None:
        epoch = epoch_of(time)
        self._outlet.send(OutputBatch(self._info.worker, epoch, self._render(epoch, batch)))


def _close(port: Port[Any], outlet: Outlet) -> None:
    """Tell the launcher which epochs are closed: those that the stream behind the output has passed."""
    builder = OperatorBuilder(port.scope, "Closed")
    sent: Input[Any] = builder.new_input(port, Pipeline())

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        return EpochCloser(sent, outlet, info.worker).run

    builder.build(make)


class EpochCloser:
    """The logic of the operator that tells."""

    def __init__(self, sent: Input[Any], outlet: Outlet, worker: int) -> None:
        self._sent = sent
        self._outlet = outlet
        self._worker = worker
        self._closed = 0  # epoch up to which, exclusive, the launcher knows that nothing more will come
        self._ended = False  # the launcher knows that nothing will come at all

    def run(self) -> None:
        """Tell what is news."""
        open_times = self._sent.frontier.elements
        if not open_times:
            if not self._ended:
                self._ended = True
                self._outlet.send(OutputClosed(self._worker, None))
            return
        epoch = epoch_of(open_times[0])
        if epoch > self._closed:
            self._closed = epoch
            self._outlet.send(OutputClosed(self._worker, epoch))
