"""Growing and shrinking of a job in the rescaling benchmarks, and the check of its counts meanwhile."""

import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from apps.bench.rescaling_load import key_of
from megaflow.control.client.commands import (
    add_processes,
    ask_status,
    check_removal,
    remove_worker,
    run_plan,
    total,
)
from megaflow.control.client.conversation import Conversation
from megaflow.control.client.move_request import Selection, make_plan, plan_removal
from megaflow.control.reports import MoveReport
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.spec import Form


@dataclass(frozen=True, slots=True)
class Growth:
    """One process added as by `add-workers 1 --balance`. Moments are seconds of the machine's clock."""

    began: float
    joined: float  # from then on it may own bins
    ended: float  # from then on it owns its share
    worker: int
    seconds: dict[str, float]  # phase -> duration; their sum is the whole time
    bytes: int  # of progress
    moved: MoveReport

    def record(self) -> dict[str, Any]:
        """Return the values for `--json`."""
        return asdict(self)


def grow(talk: Conversation) -> Growth:
    """Add a process and give it its share of the bins."""
    began = time.monotonic()
    added = add_processes(talk, 1)
    joined = time.monotonic()
    [join] = added.joins
    moved = total(list(run_plan(talk, make_plan(ask_status(talk), Selection(balance=True)), time.sleep)))
    ended = time.monotonic()
    asking = joined - began - sum(join.seconds.values())  # until the command was heard, and until the answer came
    seconds = {"asking": asking, **join.seconds, "moves": ended - joined}
    return Growth(began, joined, ended, join.workers[0], seconds, join.bytes, moved)


def shrink(talk: Conversation, worker: int) -> None:
    """Make a process leave, as `remove-workers` does."""
    check_removal(talk, worker)
    for _ in run_plan(talk, plan_removal(ask_status(talk), worker), time.sleep):
        pass
    remove_worker(talk, worker)


class Tally(Writer):
    """The outputs of `rescaling_load.numbered`: the counted lines, and the time of each worker's first output."""

    form: Form = "records"

    def __init__(self, lines: int) -> None:
        """`lines` is the greatest number of lines that may be read."""
        self.first: dict[int, float] = {}  # worker -> time of its first output, seconds
        self._times = bytearray(lines)  # number of a line -> how often it was counted
        self._last: dict[int, int] = {}  # key -> count
        self._wrong = 0  # counts other than the previous one plus one

    def write(self, epoch: int, records: list[tuple[int, int, int]]) -> None:
        """Take the records of an epoch, which are in order for each key."""
        last, now = self._last, time.monotonic()
        for worker, number, count in records:
            key = key_of(number)
            if count != last.get(key, 0) + 1:
                self._wrong += 1
            last[key] = count
            self._times[number] += 1
            if worker not in self.first:
                self.first[worker] = now

    def is_exact(self, read: int) -> bool:
        """Whether `lines` different lines were counted, each once, with the counts of a Counter."""
        once = [number for number, times in enumerate(self._times) if times == 1]
        return not self._wrong and len(once) == read and Counter(map(key_of, once)) == self._last
