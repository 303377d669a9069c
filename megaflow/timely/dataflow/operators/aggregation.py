"""Operators that fold. count, accumulate and aggregate fold the records of each time until it is closed.

`state_machine` keeps a state per key without end. Keys are assigned to the founding members and stay there when workers
join. The stateful operators of `megaphone` keep state that can move between workers. Loops name `time`, `record`, or
`key` and `value`, for `error_notes`.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

from megaflow.errors import ProgramError
from megaflow.timely.dataflow import folds
from megaflow.timely.dataflow.builder import BATCH_RECORDS, Input, NodeBuilder, Output
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.dataflow.checks import checked
from megaflow.timely.dataflow.error_notes import raised_by_loop
from megaflow.timely.dataflow.folds import NO_OUTPUTS, A, Fold, K, R, V, check_key, check_outputs
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.notificator import FrontierNotificator
from megaflow.timely.dataflow.pact import Exchange, Pact, Pipeline
from megaflow.timely.order import Time, in_order

T = TypeVar("T")


def count(port: Port[T]) -> Port[int]:
    """Count this worker's records of each time. Sends the count when the time is closed, none for an empty time."""
    add: Callable[[Time, int, list[T]], int] = lambda time, total, batch: total + len(batch)  # noqa: E731
    return _fold_times(port, "Count", Pipeline(), lambda: 0, add, lambda time, total: [total])


def accumulate(port: Port[T], init: A, f: Callable[[A, T], A]) -> Port[A]:
    """Fold this worker's records of each time, in the order of arrival, starting with a copy of `init`.

    Sends the result when the time is closed, and nothing for a time without records.
    """

    def add(time: Time, total: A, batch: list[T]) -> A:
        try:
            for record in batch:
                total = f(total, record)
        except (AttributeError, TypeError) as error:
            if total is None and init is not None:
                how = "but it returned None for the record before; it must return the new value"
            else:
                how = "which gets one record at a time, not a batch"
            error.add_note(f"accumulate calls f(accumulated, record), {how}.")
            raise
        return total

    return _fold_times(port, "Accumulate", Pipeline(), lambda: deepcopy(init), add, lambda time, total: [total])


def aggregate(
    port: Port[tuple[K, V]],
    fold: Callable[[K, V, A | None], A],
    emit: Callable[[K, A], R],
    hash: Callable[[K], int],
) -> Port[R]:
    """Fold the values of each key and time on the key's worker: `fold(key, value, state) -> state`, None at first.

    When the time is closed, sends `emit(key, state)` for each of its keys and forgets the states.
    """

    def add(time: Time, states: dict[K, A], batch: list[tuple[K, V]]) -> dict[K, A]:
        find = states.get
        folds.require_pairs("aggregate", batch)
        try:
            for key, value in batch:
                before = find(key)
                if before is None:
                    check_key(key)
                states[key] = fold(key, value, before)
        except (TypeError, ValueError) as error:
            raise _blamed(error, batch, "aggregate", "the fold is called as fold(key, value, state)") from None
        return states

    def end(time: Time, states: dict[K, A]) -> list[R]:
        out: list[R] = []
        for key, value in states.items():
            out.append(emit(key, value))
        return out

    return _fold_times(port, "Aggregate", _by_key("aggregate", hash), dict, add, end)


def state_machine(port: Port[tuple[K, V]], fold: Fold[K, V, A, R], hash: Callable[[K], int]) -> Port[R]:
    """Keep a state per key, on the key's worker, without end: `fold(key, value, state) -> (state, outputs)`.

    `state` is None for a key without one. Returning None forgets the key. A record is applied once no earlier record
    can arrive. Records of equal times are applied in the order of arrival. Outputs have the time of their record;
    `folds` and `checks` state what they may be.
    """
    builder = NodeBuilder(port.scope, "StateMachine")
    builder.node.carries = "its states"
    source: Input[tuple[K, V]] = builder.new_input(port, _by_key("state_machine", hash))
    output, result = builder.new_output()
    fold = checked("state_machine", fold)
    states: dict[K, A] = {}
    stash: dict[Time, tuple[Capability, list[list[Any]]]] = {}  # batches in arrival order, none empty

    def apply(time: Time, batch: list[tuple[K, V]]) -> list[R]:
        find = states.get
        out: list[R] = []
        folds.require_pairs("state_machine", batch)
        try:
            for key, value in batch:
                before = find(key)
                if before is None:
                    check_key(key)
                state, outputs = fold(key, value, before)
                if state is None:
                    states.pop(key, None)
                else:
                    states[key] = state
                if type(outputs) is not list and outputs is not NO_OUTPUTS:
                    check_outputs("state_machine", outputs)
                out.extend(outputs)
        except (TypeError, ValueError) as error:
            raise _blamed(
                error, batch, "state_machine", "the fold is called as fold(key, value, state) and must return (new "
                                               "state, outputs), with outputs a list or another iterable",
            ) from None  # fmt: skip
        return out

    def logic() -> None:
        frontier = source.frontier
        # Waiting batches go first. Otherwise a key's values of one time would change places.
        for time in in_order(time for time in stash if not frontier.less_than(time)):
            capability, batches = stash.pop(time)
            with capability:
                for batch in batches:
                    _ship(output, time, apply(time, batch))
        for time, batch in source.drain():
            if not frontier.less_than(time):
                _ship(output, time, apply(time, batch))
            elif time in stash:
                stash[time][1].append(batch)
            else:
                stash[time] = (mint(output, time), [batch])

    builder.build_releasing(logic)
    return result


def _fold_times(
    port: Port[T],
    name: str,
    pact: Pact,
    begin: Callable[[], A],
    add: Callable[[Time, A, list[T]], A],  # time, state so far, batch -> new state
    end: Callable[[Time, A], list[R]],  # time, state -> records to send
) -> Port[R]:
    """Build an operator that folds the batches of each time and sends the result when the time is closed."""
    builder = NodeBuilder(port.scope, name)
    source: Input[T] = builder.new_input(port, pact)
    output, result = builder.new_output()
    open_times: dict[Time, A] = {}
    notificator = FrontierNotificator()

    def close(capability: Capability, count: int) -> None:
        time = capability.time
        _ship(output, time, end(time, open_times.pop(time)))

    def logic() -> None:
        for time, batch in source.drain():
            if time not in open_times:
                notificator.notify_at(mint(output, time))
                open_times[time] = begin()
            open_times[time] = add(time, open_times[time], batch)
        notificator.for_each([source.frontier], close)

    builder.build_releasing(logic)
    return result


def _ship(output: Output[R], time: Time, records: list[R]) -> None:
    if len(records) <= BATCH_RECORDS:
        output.ship(time, records)
    else:
        for start in range(0, len(records), BATCH_RECORDS):
            output.ship(time, records[start : start + BATCH_RECORDS])


def _by_key(name: str, hash: Callable[[K], int]) -> Exchange:
    def number(record: tuple[K, Any]) -> int:
        if type(record) is not tuple or len(record) != 2:
            folds.complain_about([record], name, None)
        return hash(record[0])

    return Exchange(number)


def _blamed(error: Exception, batch: list[Any], verb: str, complaint: str) -> Exception:
    """Return `error` if user code raised it. Otherwise return a ProgramError that explains the program's mistake.

    Raises ProgramError if a record is at fault.
    """
    if not raised_by_loop(error):
        return error
    folds.complain_about(batch, verb, error)
    return ProgramError(f"{verb}: {complaint}; instead: {error}")
