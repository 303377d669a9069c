"""Texts whose words jobs count, and checks of the counts."""

import json
import random
from collections import Counter
from pathlib import Path

from tests.results import check_equal, comparing


def words_of(path: Path) -> Counter[str]:
    return Counter(path.read_text().split())


def write_numbered(path: Path, lines: int) -> Path:
    """Write a text. The first word of each line is its number, `line7`; seven others follow."""
    rng = random.Random(11)
    words = [f"word{n}" for n in range(300)]
    with path.open("w") as file:
        for number in range(lines):
            file.write(f"line{number} {' '.join(rng.choices(words, k=7))}\n")
    return path


def check_numbered(out: Path, text: Path, said: list[str]) -> None:
    """Check that the job read a part of a numbered text and counted it exactly.

    The part must begin at the start: the workers together left no line out and read none twice.
    """
    counted = Counter(json.loads(line)["record"][0] for line in out.read_text().splitlines())
    lines = [line.split() for line in text.read_text().splitlines()]
    read = next((index for index, words in enumerate(lines) if words[0] not in counted), len(lines))
    check_equal([words[0] for words in lines[read:] if words[0] in counted], [], f"line {read} was left out")
    expected = Counter(word for words in lines[:read] for word in words)
    check_counts(out, expected)
    with comparing():  # only this shows that the last lines read were lost
        assert said[-1].startswith(f"megaflow: {read} lines, {read * 8} records, "), said


def check_counts(path: Path, expected: Counter[str]) -> None:
    """Check that every count 1..n of every word appears once, in epochs that do not decrease."""
    seen: dict[str, list[tuple[int, int]]] = {}
    times = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        word, count = record["record"]
        times.append(record["time"])
        seen.setdefault(word, []).append((count, record["time"]))
    check_equal(times, sorted(times))
    check_equal({word: len(counts) for word, counts in seen.items()}, expected)
    for word, counts in seen.items():
        check_equal([count for count, _ in counts], list(range(1, len(counts) + 1)), word)
