"""The oracle of the attack finds each way in which outputs can be wrong."""

import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.attack.chains import Chain

CHAIN = Chain("machine", 0, 5, ("left", "right"), 50, False, True, 1, 1, 1)
Outputs = list[dict[str, Any]]


def outputs_of(lines: list[tuple[str, int, str]]) -> Outputs:
    """Return the outputs of a job that applies these lines (source, number, key) in this order."""
    states: dict[str, tuple[int, int]] = {}
    outputs = []
    for epoch, (source, number, key) in enumerate(lines):
        count, link = states.get(key, (0, 0))
        states[key] = count + 1, zlib.crc32(f"{link} {source} {number}".encode())
        outputs.append({"time": epoch, "record": [key, source, number, *states[key]]})
    return outputs


def all_lines() -> list[tuple[str, int, str]]:
    """Return the lines of both sources, interleaved as by two workers."""
    rng = random.Random(3)
    sources = [source for source in CHAIN.sources for _ in range(CHAIN.lines)]
    rng.shuffle(sources)
    numbers = {source: iter(range(CHAIN.lines)) for source in CHAIN.sources}
    taken = [(source, next(numbers[source])) for source in sources]
    return [(source, number, CHAIN.key_of(source, number)) for source, number in taken]


def test_what_is_right_passes_whole_and_in_part() -> None:
    lines = all_lines()
    assert CHAIN.check(outputs_of(lines), is_whole=True) == 100
    assert CHAIN.check(outputs_of(lines[:63]), is_whole=False) == 63


def swap_two_of_a_key(lines: list[tuple[str, int, str]]) -> None:
    first = lines[0]
    second = next(line for line in lines[1:] if line[::2] == first[::2])
    place = lines.index(second)
    lines[0], lines[place] = second, first


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda lines: lines.pop(40), "some lines are missing"),
        (lambda lines: lines.append(lines[7]), "some lines came twice"),
        (lambda lines: lines.insert(8, (*lines.pop(8)[:2], "key77")), "have lines of others"),
        (swap_two_of_a_key, "out of order"),
    ],
)
def test_lines_that_are_lost_doubled_or_out_of_order_are_found(
    spoil: Callable[[list[tuple[str, int, str]]], object], complaint: str
) -> None:
    lines = all_lines()
    spoil(lines)
    with pytest.raises(AssertionError, match=complaint):
        CHAIN.check(outputs_of(lines), is_whole=False)


def test_a_missing_end_is_found_if_all_was_to_come() -> None:
    with pytest.raises(AssertionError, match="99 outputs"):
        CHAIN.check(outputs_of(all_lines()[:-1]), is_whole=True)


@pytest.mark.parametrize("spoil", [lambda outputs: outputs.pop(30), lambda outputs: outputs.append(outputs[2])])
def test_outputs_that_are_lost_or_doubled_are_found_though_states_are_right(spoil: Callable[[Outputs], object]) -> None:
    outputs = outputs_of(all_lines())
    spoil(outputs)
    with pytest.raises(AssertionError):
        CHAIN.check(outputs, is_whole=False)


def test_a_state_that_was_lost_on_the_way_is_found() -> None:
    lines = all_lines()
    outputs = outputs_of(lines[:50]) + [{**each, "time": 99} for each in outputs_of(lines[50:])]
    with pytest.raises(AssertionError, match="was due"):
        CHAIN.check(outputs, is_whole=False)
