"""What the migration benchmarks run: key-count, with every record emitting its key's new count; and what is exact.

A line is a number, which stands for a key. All keys have state before the first of them is counted: each worker sends
its share of them at the first epoch, inside the dataflow, so that warming up takes no lines.

The launcher has the machine in common with the workers, so it is to have nothing to do per record: what comes out is
packed, a batch into one bytes object, and looked at when the job is over.
"""

import time
from array import array
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

from apps.bench.rescaling_load import key_of
from megaflow.job.launcher.epoch_merge import Writer
from megaflow.job.spec import Form
from megaflow.job.worker.flow import Flow
from megaflow.stream import Stream
from megaflow.timely.dataflow.pact import Pipeline

MOVABLE, PINNED = 0, 1  # sides: whose bins can move, and a state_machine, whose state stays where it is
WARM_UP = -1  # the number of a record that gives a key its state and is not counted
NUMBER = "Q"  # how numbers and counts are packed

Fold = Callable[[int, int, Any], tuple[Any, list[tuple[int, int]]]]


def key_count(flow: Flow) -> Stream[Any]:
    """Count the keys of lines that are numbers. Outputs are batches of (number, count of its key so far), packed.

    `flow.args`: how many bins; how many keys; how many bytes of state a key has besides its count; and for how many
    seconds keys are counted with state that can move before it is the turn of pinned state, which has counts of its
    own, for as long. 0: there is no pinned state.
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
    """Return whose turn it is at a moment of the machine's clock, which all processes have in common.

    >>> side_at(11.0, turn_seconds=2.0) == PINNED, side_at(12.5, turn_seconds=2.0) == MOVABLE
    (True, True)
    """
    return int(moment // turn_seconds) % 2


def fold_of(value_bytes: int) -> Fold:
    """Return the fold that counts, with a state that is a count, or a count and so many bytes."""

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
    """Return what builds an operator that makes one record of each batch: (side, packed)."""

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
        self.began = False  # something has come, so all keys have their state
        self._keys = keys
        self._batches: list[tuple[int, bytes]] = []  # those of a side and a key are in order

    def write(self, epoch: int, records: list[tuple[int, bytes]]) -> None:
        """Take in what came out in an epoch."""
        self._batches += records
        self.began = True

    def is_exact(self, lines: int) -> bool:
        """Whether so many different lines were counted, each once, as a Counter counts them, one after the other."""
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
    """Return the records per second of the loop that a Python programmer would write, with the same fold."""
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
