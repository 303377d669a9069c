"""The operator that hands a stream to a sink: when it writes which records, and where each checkpoint cuts.

A checkpoint at t has all records before t and none of t or later. The operator learns t from the command.
 1. It writes a record at s only once control has passed s. Then no command for s or before can come, so the operator
    knows every t at or below s. Records that come earlier wait, under a capability.
 2. From the command on it writes nothing of t or later until it has cut; those records also wait, under a capability.
    It cuts when no record before t can come or waits. That needs only records before t, and nothing holds these back:
    no source, bin or sink waits for a write at t or later. So the wait ends.
 3. On a worker that has joined, it writes nothing until it knows which checkpoint was under way then. It may have
    missed that command, though records before its t may come here from workers that have received it.
 4. A worker that leaves receives no further commands. So what it writes is cut at once, again and again, until the
    worker is gone. The worker stays while the operator holds a capability. The operator takes it from the command that
    closes its source, or from a record that it writes later, and keeps it until its outlet has handed over everything.
 5. If the sink wants epochs in order, the operator writes an epoch when it is over everywhere, by the frontier of its
    input. Waiting records are sorted by time, and keep their order within a time.
Behind the operator, the stream `sent` is empty. Its frontier passes a time once everything before that has been
written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from megaflow.connect.sink import Sink, undefined
from megaflow.connect.sink_host import SinkHost, Writing
from megaflow.errors import BuildError
from megaflow.megaphone.base.routing import Checkpoint, Numbered
from megaflow.timely.dataflow import argument_checks
from megaflow.timely.dataflow.builder import Input, NodeBuilder
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Addressed, Pipeline
from megaflow.timely.order import Time, sort_key

T = TypeVar("T")


def write(port: Port[T], sink: Sink[T], name: str) -> Port[T]:
    """Build the operator that writes a stream to a sink; return the stream. Raises BuildError."""
    argument_checks.instance("write", sink, Sink, "a Sink, such as those of megaflow.connect")
    argument_checks.name(name, "a sink")
    if missing := undefined(sink):
        raise BuildError(
            f"write to {name!r} ({user_line()}): {type(sink).__name__} is a sink without {' and '.join(missing)}; "
            "define it as help('megaflow.connect.sink') describes"
        )
    for method in sink._to_define:
        called = method.partition("(")[0]
        argument_checks.function(f"write to {name!r}", getattr(sink, called), f"the sink's method {called}")
    host = port.scope.graph.extension(Writing).host
    if host is None:
        raise BuildError(
            f"write to {name!r}: only a job of `megaflow run` or megaflow.run writes to sinks; elsewhere, use "
            "capture() or inspect_batch(f)"
        )
    if port.scope.depth:
        raise BuildError(f"write to {name!r}: the stream is in a nested scope; bring it to the root scope with leave()")
    host.has_built(WriteOperator(port if sink.parallel else gathered(port, name), sink, name, host))
    return port


def gathered(port: Port[Any], name: str) -> Port[Any]:
    """Send all records to the worker with the lowest id, batch by batch; to the next one when that leaves."""
    builder = NodeBuilder(port.scope, f"gather {name}")
    source: Input[Any] = builder.new_input(port, Pipeline(), notify=False)
    output, result = builder.new_output()
    membership = builder.graph.context.membership

    def run() -> None:
        for time, batch in source.take_while_room(output):
            output.ship_to(membership().ids[0], time, batch)

    builder.build_releasing(run)
    return result


class WriteOperator:
    """The operator of one sink on one worker; made while the dataflow is built."""

    def __init__(self, port: Port[Any], sink: Sink[Any], name: str, host: SinkHost) -> None:
        self.name = name
        self.is_told = True  # whether this worker knows which checkpoint was under way when it joined: see rule 3
        self._host = host
        self._waiting: deque[tuple[Capability, list[Any]]] = deque()  # in order of arrival
        self._cuts: deque[tuple[int, Checkpoint]] = deque()  # (epoch, command) to be cut, in order
        self._has_begun = False
        self._told = 0  # the checkpoint that was under way when this worker joined; its command may also come here
        self._is_leaving = False
        self._hold: Capability | None = None  # while the outlet of a leaving worker has something
        self._due = 0.0  # seconds: the moment of the last timer; no other is set until then
        builder = NodeBuilder(port.scope, f"write {name}")
        self.outlet = host.place(sink, name, builder.where)
        self._commands: Input[Numbered] = builder.new_input(host.commands, Pipeline())
        self._input: Input[Any] = builder.new_input(port, Pipeline() if sink.parallel else Addressed())
        self._is_ordered = sink.ordered
        self._output, self.sent = builder.new_output()
        self._now = builder.graph.context.now
        builder.build(self._make)

    def _make(self, capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        capabilities[0].release()
        self._info = info
        return self.run

    def activate(self) -> None:
        """Run the operator again. Any thread may call it."""
        self._info.activator.activate()

    def tell(self, epoch: int, checkpoint: Checkpoint | None) -> None:
        """Learn, on a worker that has joined, which checkpoint was under way then, if one was."""
        if checkpoint is not None and not any(checkpoint.number == heard.number for _, heard in self._cuts):
            self._cuts.appendleft((epoch, checkpoint))
            self._told = checkpoint.number
        self.is_told = True
        self.activate()

    def begin(self) -> None:
        """Open the sink, once. Raises its errors."""
        if not self._has_begun:
            self._has_begun = True
            self.outlet.begin(self.activate)

    def run(self) -> None:
        """Write what may be written, and cut."""
        self._read_commands()
        self.begin()
        self._passed, self._open = self._commands.frontier, self._input.frontier
        self._write_waiting()
        for time, batch in self._input.drain():
            if self._may_write(time):
                self._write(time, batch)
            else:
                self._waiting.append((mint(self._output, time), batch))
        while self._cuts and self.is_told and self._is_complete(self._cuts[0][0]):
            self.outlet.cut(*self._cuts.popleft())
            self._write_waiting()
        if self._is_leaving and self.outlet.hand_over() and self._hold is not None:
            self._hold.release()
            self._hold = None
        seconds = self.outlet.turn()
        if seconds is not None and self._due <= (now := self._now()):
            self._due = now + seconds
            self._info.activator.activate_after(seconds)

    def _read_commands(self) -> None:
        for time, batch in self._commands.drain():
            assert isinstance(time, int), "control is in the root scope"
            for numbered in batch:
                match numbered.command:
                    case Checkpoint(at_end=False) as checkpoint:
                        if checkpoint.number != self._told:
                            self._cuts.append((time, checkpoint))
                    case Checkpoint() as checkpoint:
                        self.outlet.cut(time, checkpoint)  # when all is over
                    case command if self._host.is_leave(command):
                        self._is_leaving = True
                        self._hold = mint(self._output, time)

    def _may_write(self, time: Time) -> bool:
        if self._passed.less_equal(time) or not self.is_told or (self._is_ordered and self._open.less_equal(time)):
            return False
        assert isinstance(time, int), "it is in the root scope"
        return not self._cuts or time < self._cuts[0][0]

    def _is_complete(self, epoch: int) -> bool:
        """Tell whether all before an epoch is written."""
        waits = any(isinstance(held.time, int) and held.time < epoch for held, _ in self._waiting)
        return not (waits or self._open.less_than(epoch))

    def _write_waiting(self) -> None:
        if self._is_ordered:
            self._waiting = deque(sorted(self._waiting, key=lambda each: sort_key(each[0].time)))
        for _ in range(len(self._waiting)):
            held, batch = self._waiting.popleft()
            if self._may_write(held.time):
                self._write(held.time, batch)
                held.release()
            else:
                self._waiting.append((held, batch))

    def _write(self, time: Time, batch: list[Any]) -> None:
        assert isinstance(time, int), "it is in the root scope"
        if self._is_leaving and self._hold is None:
            self._hold = mint(self._output, time)
        self.outlet.write(time, batch)
