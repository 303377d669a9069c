"""Random values whose objects refer to each other, encoded and decoded. Nothing is simulated here; `search` finds
faults.

A value consists of batches of objects, all or nearly all of one shape. The objects refer to objects of other batches,
to some of them twice, and to earlier objects of their own batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode


@dataclass
class Pair:
    """Object that keeps its fields in a `__dict__`."""

    a: Any
    b: Any


@dataclass(slots=True)
class Slots:
    """Object that keeps its fields in slots."""

    a: Any
    b: Any


class Names(NamedTuple):
    """Object that is a tuple."""

    a: Any
    b: Any


DICTS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: {"a": a, "b": b},
    lambda a, b: {"b": b, "a": a},
    lambda a, b: {"a": b},
]
SHAPES: list[Callable[[Any, Any], Any]] = [
    *DICTS,
    lambda a, b: [a, b],
    lambda a, b: [a],
    lambda a, b: (a, b),
    Pair,
    Slots,
    Names,
]


def run(seed: int) -> None:
    """Draw a value and check that it survives encoding and decoding."""
    value = draw(Random(seed))
    arrived = decode(encode(value, shared=True), shared=True)
    assert described(arrived) == described(value), f"seed {seed}: another value arrives"


def draw(random: Random) -> Any:
    """Return a list of batches, perhaps followed by all their objects."""
    known: list[Any] = [[1], {"a": 1}, Pair(1, 2)]
    batches = []
    for _ in range(random.randint(1, 5)):
        shape = odd = random.choice(SHAPES)
        if random.random() < 0.4:
            odd = random.choice(DICTS if shape in DICTS else SHAPES)
        within, often = random.random() < 0.2, random.random()
        batch: list[Any] = []
        for number in range(random.randint(4, 8)):
            pool = known + batch if within else known
            parts = [random.choice(pool if random.random() < often else [number, [number]]) for _ in "ab"]
            again = batch and random.random() < 0.03
            batch.append(random.choice(batch) if again else (odd if random.random() < 0.2 else shape)(*parts))
        known += batch
        batches.append(batch)
    random.shuffle(batches)
    return [*batches, known] if random.random() < 0.3 else batches


def described(value: Any) -> list[Any]:
    """Describe each reference in a value, in order: its type, its shape, and its object's number or value."""
    numbers: dict[int, int] = {}  # id -> number, in the order of first references
    found: list[Any] = []
    rest = [value]
    while rest:
        each = rest.pop()
        kind, known = type(each).__name__, id(each) in numbers
        if isinstance(each, int | str):
            found.append((kind, each))
            continue
        if type(each) is not tuple:  # tuples are copied
            found.append((kind, numbers.setdefault(id(each), len(numbers))))
        if not known:
            parts = _parts_of(each)
            found.append((kind, len(parts)))
            rest += parts
    return found


def _parts_of(each: Any) -> Any:
    if isinstance(each, list | tuple):
        return each
    return each.items() if isinstance(each, dict) else [each.a, each.b]
