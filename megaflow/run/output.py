"""The end of the dataflow: output records on their way to the launcher, epoch by epoch.

The launcher may be slower than the job. What does not fit its connection is kept here under a
capability, so the epochs concerned stay open, the output lags, and the sources hold back.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from megaflow.control.messages import OutputBatch, OutputClosed
from megaflow.errors import BuildError
from megaflow.run.lines import epoch_of
from megaflow.run.rendering import Render
from megaflow.timely.dataflow.builder import Input, OperatorBuilder, OperatorInfo, Output
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.order import Time

RETRY_SECONDS = 0.02  # how soon to look again whether the launcher has taken something


class Outlet(Protocol):
    """The way to the launcher."""

    @property
    def has_room(self) -> bool:
        """Whether the launcher is there and keeps up."""

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
    records: Input[Any] = builder.new_input(port, Pipeline())
    output, result = builder.new_output()

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        capabilities[0].release()
        if way is None:
            return lambda: _count(records, count)
        return OutputSink(records, output, info, way, count).run

    builder.build(make)
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
        self._closed = 0  # epoch up to which, exclusive, the launcher knows that nothing more will come
        self._retrying = False  # a timer will run this again
        self._ended = False  # the launcher knows that nothing will come at all

    def run(self) -> None:
        """Send what there is room for, keep the rest, tell which epochs are closed."""
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
        self._tell_closed()

    def _send_kept(self) -> None:
        while self._kept and self._outlet.has_room:
            capability, batch = self._kept.popleft()
            self._send(capability.time, batch)
            capability.release()

    def _send(self, time: Time, batch: list[Any]) -> None:
        epoch = epoch_of(time)
        self._outlet.send(OutputBatch(self._info.worker, epoch, self._render(epoch, batch)))

    def _tell_closed(self) -> None:
        open_times: list[Time] = [*self._records.frontier.elements, *(capability.time for capability, _ in self._kept)]
        if not open_times:
            if not self._ended:
                self._ended = True
                self._outlet.send(OutputClosed(self._info.worker, None))
            return
        epoch = min(map(epoch_of, open_times))
        if epoch > self._closed:
            self._closed = epoch
            self._outlet.send(OutputClosed(self._info.worker, epoch))
