"""Random values whose objects refer to one another, as bytes and back: nothing is simulated, but faults are found.

A value is batches of objects of one shape, or nearly. They refer to objects of other batches, to some of them twice,
and to earlier ones of their own.
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
    """An object that keeps its fields in a `__dict__`."""

    a: Any
    b: Any


@dataclass(slots=True)
class Slots:
    """One that keeps them in slots."""

    a: Any
    b: Any


class Names(NamedTuple):
    """One that is a tuple."""

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
    """Draw a value and see that it arrives as it was."""
    value = draw(Random(seed))
    arrived = decode(encode(value, shared=True), shared=True)
    assert described(arrived) == described(value), f"seed {seed}: another value arrives"


def draw(random: Random) -> Any:
    """Return a list of batches, and of all objects in them, perhaps."""
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
    """For each reference in a value, in order: type, shape, and which object it is, or what it equals."""
    numbers: dict[int, int] = {}  # id -> in the order of first references
    found: list[Any] = []
    rest = [value]
    while rest:
        each = rest.pop()
        kind, known = type(each).__name__, id(each) in numbers
        if isinstance(each, int | str):
            found.append((kind, each))
            continue
        if type(each) is not tuple:  # which is copied
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
