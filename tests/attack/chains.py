"""Job whose every output depends on the whole history of its key, and the oracle that checks the outputs.

A line is `SOURCE NUMBER KEY`. A key's state is its number of records and a chain of check sums over them. So an output
(key, source, number, count, link) is right only if all earlier records were applied once and in that order, wherever
the key's bin was. The oracle replays the chain in plain Python.
"""

import json
import random
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.results import comparing

SHAPES = ("machine", "twice", "timed")
BINS = 32

APP = f"""
import pathlib, zlib

if pathlib.Path(__file__).with_name("fail").exists():
    raise RuntimeError("not today")

def parse(line):
    source, number, key = line.split()[:3]
    return key, (source, int(number))

def link_of(link, source, number):
    return zlib.crc32(f"{{link}} {{source}} {{number}}".encode())

def ballast(key, size):
    return (key.encode() + b".") * (size // (len(key) + 1))

def dataflow(flow):
    shape, size = flow.args[0], int(flow.args[1])

    def follow(key, value, state):                    # state: how many, their chain, something heavy to carry
        count, link, heavy = state or (0, 0, ballast(key, size))
        assert heavy == ballast(key, size), "a state is not what it was"
        count, link = count + 1, link_of(link, *value)
        return (count, link, heavy), [(key, *value, count, link)]

    def check(key, value, state):                     # what the first fold emits for a key comes in its order
        assert value[2] == (state or 0) + 1, f"{{key}}: {{value}} came after {{state}}"
        return value[2], [(key, *value)]

    def gather(key, time, values, state, timers):     # as follow, but silent until a timer fires
        count, link, waiting, heavy = state or (0, 0, (), ballast(key, size))
        assert heavy == ballast(key, size), "a state is not what it was"
        emitted = []
        for value in values:
            if value is None:
                emitted, waiting = list(waiting), ()
                continue
            count, link = count + 1, link_of(link, *value)
            if not waiting and None not in values:
                timers.at(time + 5, None)
            waiting += ((key, *value, count, link),)
        if emitted and waiting:
            timers.at(time + 5, None)
        return (count, link, waiting, heavy), emitted

    records = flow.lines().map(parse)
    if shape == "timed":
        return records.stateful_unary(gather, bins={BINS})
    first = records.stateful_state_machine(follow, bins={BINS})
    if shape == "machine":
        return first
    return first.map(lambda record: (record[0], record[1:])).stateful_state_machine(check, bins={BINS})
"""


@dataclass(frozen=True)
class Chain:
    """The make-up of a job, drawn from a seed."""

    shape: str
    ballast: int  # bytes of each state
    keys: int
    sources: tuple[str, ...]  # files, or one source for standard input
    lines: int  # of each source
    is_piped: bool  # to standard input
    is_ordered: bool
    processes: int
    workers: int
    rate: int  # lines a second

    @classmethod
    def draw(cls, rng: random.Random, seconds: float) -> "Chain":
        """Draw a job that reads for `seconds` if nothing stops it."""
        is_piped, is_ordered = rng.random() < 0.4, rng.random() < 0.75
        count = 1 if is_piped else rng.randint(1, 4)
        rate = rng.choice([2000] if is_piped else [500, 1000])
        return cls(
            shape=rng.choice(SHAPES), ballast=rng.choice([0, 0, 200, 5_000]), keys=rng.choice([5, 60, 400]),
            sources=tuple(f"source{number}" for number in range(count)), lines=int(rate * seconds / count) + 1,
            is_piped=is_piped, is_ordered=is_piped or is_ordered,
            processes=rng.choice([1, 2, 2, 3]), workers=rng.choice([1, 1, 1, 2]), rate=rate,
        )  # fmt: skip

    def lines_of(self, source: str) -> Iterator[str]:
        """Yield the source's lines. In a pipe they are long, because a leaving reader still reads all that left the
        pipe.
        """
        padding = "." * (1500 if self.is_piped else 50)
        for number in range(self.lines):
            yield f"{source} {number} {self.key_of(source, number)} {padding}\n"

    def key_of(self, source: str, number: int) -> str:
        """Return the key of a line: as good as random, but some keys are frequent."""
        dice = zlib.crc32(f"{source}/{number}".encode())
        return f"key{dice % (self.keys if dice % 3 else 1 + self.keys // 10)}"

    def write(self, folder: Path) -> list[str]:
        """Write app and files; return the arguments of `megaflow run`."""
        app, texts = folder / "chained.py", folder / "texts"
        app.write_text(APP)
        texts.mkdir()
        for source in () if self.is_piped else self.sources:
            with (texts / source).open("w") as file:
                file.writelines(self.lines_of(source))
        lines = "-" if self.is_piped else f"{texts}{'' if self.is_ordered else '?unordered'}"
        return [
            str(app), "--lines", lines, "--rate", str(self.rate), "--processes", str(self.processes),
            "--workers", str(self.workers), "--output", f"jsonl:{folder / 'out.jsonl'}", "--", *self.arguments,
        ]  # fmt: skip

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of the app."""
        return self.shape, str(self.ballast)

    @comparing()
    def check(self, records: Iterable[dict[str, Any]], *, is_whole: bool, is_torn: bool = False) -> int:
        """Fail unless the outputs are those of all lines, or of a part read from the start. Return their number.

        `is_torn`: the job was killed, so the outputs of waiting timers are missing.
        """
        epoch = outputs = 0
        links: dict[str, tuple[int, int]] = {}
        seen: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))  # source -> key -> numbers
        for each in records:
            assert each["time"] >= epoch, f"{each} after epoch {epoch}"
            epoch, (key, source, number, count, link) = each["time"], each["record"]
            before, chained = links.get(key, (0, 0))
            links[key] = before + 1, zlib.crc32(f"{chained} {source} {number}".encode())
            assert (count, link) == links[key], f"{each}, where {links[key]} was due"
            seen[source][key].append(number)
            outputs += 1
        is_late = is_torn and self.shape == "timed"
        for source, keys in seen.items():
            self._check_source(source, keys, has_gaps=not is_whole and (is_late or not self.is_ordered))
        assert not is_whole or outputs == self.lines * len(self.sources), f"{outputs} outputs"
        return outputs

    def _check_source(self, source: str, keys: dict[str, list[int]], has_gaps: bool) -> None:
        """Check that each line of a source appears once, under its key. Check order and gaps if they were promised."""
        numbers = sorted(number for each in keys.values() for number in each)
        assert len(set(numbers)) == len(numbers), f"{source}: some lines came twice"
        if not has_gaps:
            assert numbers == list(range(len(numbers))), f"{source}: some lines are missing before others"
        strangers = [(key, number) for key in keys for number in keys[key] if self.key_of(source, number) != key]
        assert strangers == [], f"{source}: keys have lines of others: {strangers}"
        for key, came in keys.items():
            if self.is_ordered:
                first = [number for number in range(came[-1] + 1) if self.key_of(source, number) == key]
                assert came == first, f"{source}: {key} came out of order: {came}"


def records_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of an output file. An incomplete last line does not count."""
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)
