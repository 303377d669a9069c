"""S13: a CPU-heavy parse over eight files, and an added process: how soon does it do its share of the reading?

One process reads the files. Then `add-workers 1 --balance` adds another. The benchmark compares the lines per second
before the command with those from AFTER_SECONDS after it, while bins still move. Two processors can at best double the
rate; one processor cannot raise it. The job is stopped when the measurement is complete, long before the first process
has read its last file. Otherwise the other process would still be reading alone, because one process reads each file.
The fold checks that each partition's lines come in order.
"""

import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from apps.bench.job import Running
from apps.bench.report import Found, Goal
from apps.bench.workload import Setting, Step, Workload, WrongCounts, one
from megaflow.control.client.commands import add_processes, ask_status, run_plan
from megaflow.control.client.conversation import Conversation
from megaflow.control.client.move_request import Selection, make_plan
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.spec import Form

FILES = 8
TURNS = 2_000  # iterations of the loop that simulates a parse: about 0.1 ms
LINES, LINES_QUICK = 250_000, 80_000  # of each file: several times as many as are read
AFTER_SECONDS = 3.0
OVER_SECONDS, OVER_SECONDS_QUICK = 4.0, 1.0  # over which a rate is measured
SHARE_MIN = 0.8
ALONE, JOINED, IDEAL = "one process", "a process added", "of the ideal"
RATE, NEW = "lines/s", "lines/s of the new one"


def parse(line: str) -> tuple[str, int]:
    """Spend the time of a parse, and return the file and the number of a line."""
    name, number = line.split()
    value = 0
    for turn in range(TURNS):
        value = (value * 31 + turn) & 0xFFFF
    return name, int(number)


def order(name: str, number: int, last: int | None) -> tuple[int, list[int]]:
    """Check the order of a file's lines."""
    assert number == (0 if last is None else last + 1), f"line {number} of {name} comes after line {last}"
    return number, [number]


def dataflow(flow: Any) -> Any:
    """Parse the lines and number those of each file."""
    return flow.lines().map(parse).stateful_state_machine(order)


class Count(Writer):
    """A writer that counts the outputs."""

    form: Form = "records"

    def __init__(self) -> None:
        self.records = 0

    def write(self, epoch: int, records: list[Any]) -> None:
        """Count them."""
        self.records += len(records)


def rates(talk: Conversation, running: Running, seconds: float, moves: Iterator[Any]) -> dict[int, float]:
    """Return the lines per second of each worker, over at least `seconds` and until the move under way is done."""
    before, began = {each.id: each.lines for each in ask_status(talk).workers}, time.monotonic()
    go_on(running, began + seconds, moves)
    after, passed = ask_status(talk).workers, time.monotonic() - began
    return {each.id: (each.lines - before.get(each.id, 0)) / passed for each in after}


def go_on(running: Running, until: float, moves: Iterator[Any]) -> None:
    """Make one move after another until a moment, or rest if there are none."""
    while (left := until - time.monotonic()) > 0:
        if next(moves, None) is None:
            running.rest(left)


def run_join(setting: Setting, folder: Path) -> Found:
    """Measure one process, add one, and measure both."""
    seconds, outputs = OVER_SECONDS_QUICK if setting.quick else OVER_SECONDS, Count()
    with Running(dataflow, str(folder), outputs) as running:
        talk = running.converse()
        running.rest(1.0)
        alone = sum(rates(talk, running, seconds, iter(())).values())
        after = time.monotonic() + AFTER_SECONDS
        [join] = add_processes(talk, 1).joins
        moves = run_plan(talk, make_plan(ask_status(talk), Selection(balance=True)), time.sleep)
        go_on(running, after, moves)
        both = rates(talk, running, seconds, moves)
        running.stop()
        read = running.account().lines
    if outputs.records != read:
        raise WrongCounts(f"{outputs.records:,} records came out of {read:,} lines")
    ideal = alone * min(2, os.cpu_count() or 1)
    found = one(ALONE, {RATE: alone})
    together, new = sum(both.values()), both[join.workers[0]]
    return found | one(JOINED, {RATE: together, NEW: new, IDEAL: together / ideal})


def open_reading(setting: Setting) -> Sequence[Step]:
    """Write the files."""
    folder = setting.folder / "lines"
    folder.mkdir()
    for file in range(FILES):
        with (folder / f"part{file}").open("w", encoding="ascii") as text:
            text.writelines(f"part{file} {line}\n" for line in range(setting.size(LINES, LINES_QUICK)))
    return (Step(JOINED, partial(run_join, setting, folder)),)


S13 = Workload(
    "S13",
    "a CPU-heavy parse over eight files, a process added",
    open_reading,
    (Goal(JOINED, IDEAL, SHARE_MIN, at_least=True),),
    base=ALONE,
    notes=(f"measured from {AFTER_SECONDS:g} s after the command on, over {OVER_SECONDS:g} s, while bins move",),
)
