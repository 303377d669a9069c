"""Cost of encoding and decoding a key with its state, by the shape of the state, compared with pickle.

    python apps/bench/encoding.py [--keys N] [--repeat N]

Pairs are encoded in one list, as when states move, so an object that is referred to twice stays one object. The codec
and pickle take turns on the same values. The table has medians of the thread's CPU time. Decoded values are compared
with the originals.
"""

import pickle
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import click

from megaflow.cli.text import table_text
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

KEYS, REPEAT = 1_000, 15
HEADERS: Final = ("state", "encode", "decode", "bytes", "pickle: encode", "decode", "bytes", "encode ×", "decode ×")


@dataclass
class Totals:
    """A state as programs typically have it."""

    count: int
    total: float
    last: str


@dataclass(slots=True)
class SlotTotals:
    """The same with slots."""

    count: int
    total: float
    last: str


def fields(rng: random.Random) -> tuple[int, float, str]:
    """Draw three fields."""
    return rng.randrange(10**6), rng.random(), f"w{rng.randrange(10**4)}"


STATES: Final[dict[str, Callable[[random.Random], Any]]] = {
    "int": lambda rng: rng.randrange(10**6),
    "dict of 3": lambda rng: dict(zip(("count", "total", "last"), fields(rng))),
    "dataclass of 3": lambda rng: Totals(*fields(rng)),
    "dataclass of 3, slots": lambda rng: SlotTotals(*fields(rng)),
    "list of 20 ints": lambda rng: [rng.randrange(10**6) for _ in range(20)],
    "list of up to 5 pairs": lambda rng: [(rng.randrange(10**6), "a") for _ in range(rng.randrange(6))],
    "dict with a list of dicts": lambda rng: {"items": [{"sku": "a", "n": n} for n in range(rng.randrange(4))]},
    "dicts of two shapes": lambda rng: {"count": 1, "total": 0.5} if rng.random() < 0.5 else {"count": 1},
}  # name -> function that draws one


def measure(name: str, keys: int, repeat: int) -> list[Any]:
    """Return a row: nanoseconds and bytes per key, and their ratios to pickle's."""
    rng = random.Random(name)
    pairs = [(f"key{number}", STATES[name](rng)) for number in range(keys)]
    encoders: list[Callable[[], bytes]] = [partial(encode, pairs, shared=True), partial(pickle.dumps, pairs, 5)]
    packed = [encode_() for encode_ in encoders]
    decoders: list[Callable[[], Any]] = [partial(decode, packed[0], shared=True), partial(pickle.loads, packed[1])]
    for decoder in decoders:
        if decoder() != pairs:
            raise SystemExit(f"{name}: another value arrives")
    calls = [*encoders, *decoders]
    took: list[list[int]] = [[] for _ in calls]
    for _ in range(repeat):
        for call, times in zip(calls, took):
            began = time.thread_time_ns()
            call()
            times.append(time.thread_time_ns() - began)
    ours, theirs, ours_back, theirs_back = (statistics.median(times) / keys for times in took)
    sizes = [round(len(each) / keys) for each in packed]
    ratios = [f"{ours / theirs:.1f}", f"{ours_back / theirs_back:.1f}"]
    return [name, round(ours), round(ours_back), sizes[0], round(theirs), round(theirs_back), sizes[1], *ratios]


@click.command(help=__doc__)
@click.option("--keys", default=KEYS, show_default=True)
@click.option("--repeat", default=REPEAT, show_default=True)
def main(keys: int, repeat: int) -> None:
    """Print the table."""
    rows = [measure(name, keys, repeat) for name in STATES]
    click.echo("nanoseconds and bytes a key\n" + table_text(HEADERS, rows))


if __name__ == "__main__":
    sys.exit(main())
