"""Operators that send records at later times: delay, delay_batch, reclock."""

from collections.abc import Callable
from typing import Any, TypeVar

from megaflow.errors import TimeError
from megaflow.timely.dataflow.builder import Input, NodeBuilder
from megaflow.timely.dataflow.capability import Capability, check_time, mint
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.notificator import FrontierNotificator
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.order import Time, in_order, less_equal

T = TypeVar("T")


def delay(port: Port[T], f: Callable[[T, Time], Time]) -> Port[T]:
    """Send each record at the time `f(record, time)`, at or after its own. It leaves at once: times are only labels."""

    def spread(time: Time, batch: list[T]) -> dict[Time, list[T]]:
        parts: dict[Time, list[T]] = {}
        for record in batch:
            later = f(record, time)
            try:
                part = parts.get(later)
            except TypeError:  # `later` is not even hashable
                part = None
            if part is None:
                _check_later("delay", time, later)
                part = parts[later] = []
            part.append(record)
        return parts

    return _delayed(port, "Delay", spread)


def delay_batch(port: Port[T], f: Callable[[Time], Time]) -> Port[T]:
    """Send the records of each time at the time `f(time)`, at or after their own. `f` is called once per batch."""

    def spread(time: Time, batch: list[T]) -> dict[Time, list[T]]:
        later = f(time)
        _check_later("delay_batch", time, later)
        return {later: batch}

    return _delayed(port, "DelayBatch", spread)


def _check_later(verb: str, time: Time, later: Time) -> None:
    check_time(verb, time, later)
    if not less_equal(time, later):
        raise TimeError(f"{verb}: the function returned {later!r} for a record at {time!r}; time only moves forward")


def _delayed(port: Port[T], name: str, spread: Callable[[Time, list[T]], dict[Time, list[T]]]) -> Port[T]:
    """Build an operator that sends each batch as `spread(time, batch)` divides it: later time -> records."""
    builder = NodeBuilder(port.scope, name)
    source: Input[T] = builder.new_input(port, Pipeline(), notify=False)
    output, result = builder.new_output()

    def logic() -> None:
        for time, batch in source.drain():
            for later, part in spread(time, batch).items():
                output.ship(later, part)

    builder.build_releasing(logic)
    builder.node.carries = "records that it has delayed"
    return result


def reclock(port: Port[T], clock: Port[Any]) -> Port[T]:
    """Hold each record until this worker's part of `clock` has a tick at or after the record's time.

    Records are sent at the time of the tick, in the order of their times, once neither input can receive more up to
    that time. Only ticks advance the output's time. Records that no tick follows are never sent.
    """
    builder = NodeBuilder(port.scope, "Reclock")
    source: Input[T] = builder.new_input(port, Pipeline(), {})  # records alone cause no output
    ticks: Input[Any] = builder.new_input(clock, Pipeline())
    output, result = builder.new_output()
    stash: dict[Time, list[list[T]]] = {}  # time -> batches in arrival order
    notificator = FrontierNotificator()

    def send(tick: Capability, count: int) -> None:
        for time in in_order(time for time in stash if less_equal(time, tick.time)):
            for batch in stash.pop(time):
                output.ship(tick.time, batch)

    def logic() -> None:
        for time, batch in source.drain():
            stash.setdefault(time, []).append(batch)
        for time in {time for time, _ in ticks.drain()}:
            notificator.notify_at(mint(output, time))
        notificator.for_each([source.frontier, ticks.frontier], send)
        if ticks.frontier.is_empty() and not notificator.pending():
            stash.clear()

    builder.build_releasing(logic)
    builder.node.carries = "records that wait for a tick"
    return result
