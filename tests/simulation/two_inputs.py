"""Random runs of whole durable jobs with two named inputs, with the attempts and faults of `durable_jobs`.

Each input is a folder of files, in which the lines of a key are numbered. Each attempt resumes from the remains of the
previous one. At the end each line has arrived once, by its own input, and a key's lines of one file have arrived in
order. This must hold through moves, joins, leaves, lost processes, and resumes from any checkpoint.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from megaflow.job.launcher.inputs.launcher_input import find_input
from tests.simulation.attempts import live
from tests.simulation.jobs import BINS, PADDING

INPUTS = "left", "right"
KEYS = "abc"

Value = tuple[str, int, int]  # input, file, number among the lines of the key there


def meet(key: str, time: int, left: list[Value], right: list[Value], last: Any, timers: Any) -> Any:
    """Emit each line. Fail if it came by the other input, or does not follow the previous one."""
    last = dict(last or {})
    for values, name in ((left, "left"), (right, "right")):
        for input, file, number in values:
            assert input == name, f"a line of {input!r} has come by {name!r}"
            assert number == last.get((name, file), 0) + 1, f"{key!r} has {number} after {last} of {name}/{file}"
            last[name, file] = number
    return last, [(key, *value) for value in left + right]


def parse(line: str) -> tuple[str, Value]:
    key, input, file, number, _ = line.split()
    return key, (input, int(file), int(number))


def dataflow(flow: Any) -> Any:
    left, right = (flow.lines(name).map(parse) for name in INPUTS)
    return left.stateful_binary(right, meet, bins=BINS, name="meet")


def write(folder: Path, random: Random) -> Counter[tuple[Any, ...]]:
    """Write the files of both inputs; return the expected output."""
    wanted: Counter[tuple[Any, ...]] = Counter()
    for name in INPUTS:
        (folder / name).mkdir()
        for file in range(random.randint(1, 3)):
            counts: Counter[str] = Counter()
            lines = []
            for _ in range(random.randint(0, 12)):
                counts[key := random.choice(KEYS)] += 1
                lines.append(f"{key} {name} {file} {counts[key]} {PADDING}\n")
                wanted[key, name, file, counts[key]] += 1
            (folder / name / str(file)).write_text("".join(lines))
    return wanted


def run(seed: int) -> Counter[str]:
    """Run a seed; return counts of what happened. Raise an AssertionError that names it if a rule is broken."""
    random = Random(f"two inputs {seed}")
    try:
        with tempfile.TemporaryDirectory(prefix="megaflow-two-inputs-") as name:
            wanted = write(Path(name), random)
            given = find_input({each: str(Path(name, each)) for each in INPUTS}, 1, "replace")
            return live(random, seed, dataflow, given, wanted)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
