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
from megaflow.run.flow import Flow
from megaflow.run.rendering import Form
from megaflow.stream import Stream
from megaflow.timely.dataflow.pact import Pipeline

PINNED = "pinned"  # instead of a number of bins: a state_machine, whose state stays where it is
WARM_UP = -1  # the number of a record that gives a key its state and is not counted
NUMBER = "Q"  # how numbers and counts are packed

Fold = Callable[[int, int, Any], tuple[Any, list[tuple[int, int]]]]


def key_count(flow: Flow) -> Stream[Any]:
    """Count the keys of lines that are numbers. Outputs are batches of (number, count of its key so far), packed.

    `flow.args`: how many bins, or PINNED; how many keys; how many bytes of state a key has besides its count.
    """
    bins, keys, value_bytes = flow.args[0], int(flow.args[1]), int(flow.args[2])
    worker, fold = flow.worker, fold_of(value_bytes)

    def pair(line: str) -> tuple[int, int]:
        number = int(line)
        return key_of(number, keys), number

    own = ((key, WARM_UP) for key in range(worker.index, keys, worker.peers))
    pairs = flow.lines().map(pair).concat(flow.scope.to_stream(own))
    counted = pairs.state_machine(fold) if bins == PINNED else pairs.stateful_state_machine(fold, bins=int(bins))
    return counted.unary(Pipeline(), "Pack", pack)


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


def pack(initial: Any, info: object) -> Callable[[Any, Any], None]:
    """Build an operator that makes one record of each batch."""
    initial.release()

    def logic(input: Any, output: Any) -> None:
        for capability, batch in input:
            with output.session(capability) as session:
                session.give(array(NUMBER, chain.from_iterable(batch)).tobytes())

    return logic


class Packed:
    """The outputs of `key_count`, kept as they come: 16 bytes for each record."""

    form: Form = "records"

    def __init__(self, keys: int) -> None:
        self.began = False  # something has come, so all keys have their state
        self._keys = keys
        self._batches: list[bytes] = []  # those of a key are in order

    def write(self, epoch: int, records: list[bytes]) -> None:
        """Take in what came out in an epoch."""
        self._batches += records
        self.began = True

    def is_exact(self, lines: int) -> bool:
        """Whether so many different lines were counted, each once, as a Counter counts them, one after the other."""
        totals: Counter[int] = Counter()
        seen: set[int] = set()
        for batch in self._batches:
            flat = array(NUMBER, batch)
            for number, count in zip(flat[::2], flat[1::2]):
                key = key_of(number, self._keys)
                totals[key] += 1
                if count != totals[key]:
                    return False
                seen.add(number)
        return len(seen) == lines == totals.total()

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing is open."""


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
