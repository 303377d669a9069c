"""Dataflow of the migration benchmarks: key-count, in which each record emits its key's new count; and its check.

A line is a number that stands for a key. All keys have state before the first line is counted: each worker sends its
share of them at the first epoch, inside the dataflow, so the warm-up needs no lines.

The launcher shares the machine with the workers, so it must have no work per record. Therefore each batch of outputs
is packed into one bytes object, and checked only after the job.
"""

import time
from array import array
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

from apps.bench.rescaling_load import key_of
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.spec import Form
from megaflow.job.worker.process.flow import Flow
from megaflow.stream import Stream
from megaflow.timely.dataflow.pact import Pipeline

MOVABLE, PINNED = 0, 1  # sides: state in bins that can move; state of a state_machine, which cannot
WARM_UP = -1  # number of a record that gives a key its state and is not counted
NUMBER = "Q"  # array type code of numbers and counts

Fold = Callable[[int, int, Any], tuple[Any, list[tuple[int, int]]]]


def key_count(flow: Flow) -> Stream[Any]:
    """Count the keys of lines that are numbers. Outputs are packed batches of (number, count of its key so far).

    `flow.args`: the number of bins, the number of keys, the bytes of state that a key has besides its count, and the
    seconds of a turn. Movable and pinned state take turns, and each has its own counts. With 0 seconds there is no
    pinned state.
    """
    bins, keys, value_bytes, turn_seconds = (*map(int, flow.args[:3]), float(flow.args[3]))
    worker, fold = flow.worker, fold_of(value_bytes)

    def pair(line: str) -> tuple[int, int]:
        number = int(line)
        return key_of(number, keys), number

    def warm_up() -> Stream[tuple[int, int]]:
        return flow.scope.to_stream((key, WARM_UP) for key in range(worker.index, keys, worker.peers))

    pairs = flow.lines().map(pair)
    if not turn_seconds:
        counted = pairs.concat(warm_up()).stateful_state_machine(fold, bins=bins)
        return counted.unary(Pipeline(), "Pack", packing(MOVABLE))
    movable, pinned = pairs.branch(lambda epoch, record: side_at(time.monotonic(), turn_seconds) == PINNED)
    counted = movable.concat(warm_up()).stateful_state_machine(fold, bins=bins)
    beside = pinned.concat(warm_up()).state_machine(fold)
    packed = counted.unary(Pipeline(), "Pack", packing(MOVABLE))
    return packed.concat(beside.unary(Pipeline(), "Pack", packing(PINNED)))


def side_at(moment: float, turn_seconds: float) -> int:
    """Return the side whose turn it is at a moment of the machine's clock, which all processes share.

    >>> side_at(11.0, turn_seconds=2.0) == PINNED, side_at(12.5, turn_seconds=2.0) == MOVABLE
    (True, True)
    """
    return int(moment // turn_seconds) % 2


def fold_of(value_bytes: int) -> Fold:
    """Return the counting fold. Its state is a count, or a count with a value of `value_bytes`."""

    def count(key: int, number: int, total: int | None) -> tuple[int, list[tuple[int, int]]]:
        if number == WARM_UP:
            return total or 0, []
        total = (total or 0) + 1
        return total, [(number, total)]

    def count_beside(
        key: int, number: int, state: tuple[int, bytes] | None
    ) -> tuple[tuple[int, bytes], list[tuple[int, int]]]:
        total, value = state or (0, b"." * value_bytes)
        if number == WARM_UP:
            return (total, value), []
        return (total + 1, value), [(number, total + 1)]

    return count_beside if value_bytes else count


def packing(side: int) -> Callable[[Any, Any], Callable[[Any, Any], None]]:
    """Return a function that builds an operator, which packs each batch into one record (side, packed)."""

    def build(initial: Any, info: object) -> Callable[[Any, Any], None]:
        initial.release()

        def logic(input: Any, output: Any) -> None:
            for capability, batch in input:
                with output.session(capability) as session:
                    session.give((side, array(NUMBER, chain.from_iterable(batch)).tobytes()))

        return logic

    return build


class Packed(Writer):
    """The outputs of `key_count`, kept as they come: 16 bytes for each record."""

    form: Form = "records"

    def __init__(self, keys: int) -> None:
        self.began = False  # an output has come, so all keys have their state
        self._keys = keys
        self._batches: list[tuple[int, bytes]] = []  # in order for each side and key

    def write(self, epoch: int, records: list[tuple[int, bytes]]) -> None:
        """Keep the outputs of an epoch."""
        self._batches += records
        self.began = True

    def is_exact(self, lines: int) -> bool:
        """Whether `lines` different lines were counted, each once, with the counts of a Counter in order."""
        totals: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
        numbers = (max(array(NUMBER, batch)[::2]) for _, batch in self._batches)
        seen = bytearray(1 + max(numbers, default=-1))  # number -> whether it was counted
        for side, batch in self._batches:
            flat, total = array(NUMBER, batch), totals[side]
            for number, count in zip(flat[::2], flat[1::2]):
                key = key_of(number, self._keys)
                total[key] += 1
                if seen[number] or count != total[key]:
                    return False
                seen[number] = 1
        return sum(seen) == lines


def plain_rate(keys: int, value_bytes: int, lines: int) -> float:
    """Return the records per second of a plain Python loop with the same fold."""
    fold = fold_of(value_bytes)
    states: dict[int, Any] = {key: fold(key, WARM_UP, None)[0] for key in range(keys)}
    text = [f"{number}\n" for number in range(lines)]
    outputs = 0
    began = time.perf_counter()
    for line in text:
        number = int(line)
        key = key_of(number, keys)
        states[key], out = fold(key, number, states.get(key))
        outputs += len(out)
    return lines / (time.perf_counter() - began)
