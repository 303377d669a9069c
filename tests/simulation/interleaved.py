"""Random jobs with two inputs of very different density: the job reads both at one pace of event time and keeps little.

The lines of each input rise in time, over one file or many, and the files of an input continue each other. A join
matches lines of both inputs with the same key, and keeps its state until both have arrived. Each worker notes the lines
that it reads. Then
1. Each line arrives once, each file is read in order, and a worker has at most one file of each input open.
2. If a lone worker has begun a file of each input and later reads on in the slower one, it has read few lines of the
   faster input ahead of that one. With several workers, another worker may have handed the slower file back meanwhile,
   so this is not checked.
3. With a greatest skew, no worker reads a file that is ahead of the other input by more than that while any worker
   reads the other input. This holds once limits are known.
4. If one worker reads everything, few keys wait in the join at any time, however many lines there are.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from megaflow.control.coordinator.reading.input_fronts import STILL_SECONDS
from megaflow.job.launcher.inputs.launcher_input import find_input
from megaflow.testing.simulated_job import SimulatedJob

INPUTS = "left", "right"
PADDING = "." * 1500  # so that a batch has few lines
BATCH_LINES = 5
LINES_AHEAD = 4 * BATCH_LINES  # those on the way to operators, and the last: rule 3 of `reading_turns`
STEP = 60  # seconds between two keys
KNOWN_SECONDS = 0.5  # until limits are known

Line = tuple[int, str, int, int]  # second, input, file, number there


@dataclass
class Reads:
    """The lines that workers have read, and the keys that wait in the join."""

    keys: int  # number of keys in both inputs
    now: Callable[[], float] = lambda: 0.0  # seconds
    order: list[tuple[float, Line]] = field(default_factory=list)  # everything read, with its time
    workers: list[list[Line]] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    most: int = 0

    def meet(self, key: int, left: list[Line], right: list[Line], state: Any) -> Any:
        """Match the lines of a key."""
        if key >= self.keys:
            return None, [*left, *right]
        state = {*(state or ()), *(line[1] for line in (*left, *right) if line[0] == key * STEP)}
        (self.waiting.add if len(state) == 1 else self.waiting.discard)(key)
        self.most = max(self.most, len(self.waiting))
        return tuple(state) if len(state) == 1 else None, [*left, *right]

    def dataflow(self, flow: Any) -> Any:
        seen: list[Line] = []
        self.workers.append(seen)

        def see(line: Line) -> None:
            seen.append(line)
            self.order.append((self.now(), line))

        left, right = (
            flow.lines(name).map(parse).event_time(lambda line: line[0]).inspect(see).plain()
            for name in INPUTS
        )
        fold = lambda key, time, left, right, state, timers: self.meet(key, left, right, state)  # noqa: E731
        keyed = [each.map(lambda line: (line[0] // STEP, line)) for each in (left, right)]
        return keyed[0].stateful_binary(keyed[1], fold, name="meet")


def parse(text: str) -> Line:
    second, input, file, number, _ = text.split()
    return int(second), input, int(file), int(number)


def write(folder: Path, random: Random, keys: int) -> list[Line]:
    """Write the files of both inputs, one dense and one sparse, one perhaps with more keys. Return their lines."""
    wanted: list[Line] = []
    dense = random.choice([1, 3, 6])
    more = random.choice([0, keys // 2])
    for name, lines_per_key, own in zip(INPUTS, random.sample([1, dense], 2), random.sample([keys, keys + more], 2)):
        (folder / name).mkdir()
        times = [key * STEP + place for key in range(own) for place in range(lines_per_key)]
        files = random.choice([1, 2, own // 2])
        cuts = [0, *sorted(random.sample(range(1, len(times)), files - 1)), len(times)]
        for file, (start, end) in enumerate(pairwise(cuts)):
            lines = [(second, name, file, number) for number, second in enumerate(times[start:end])]
            text = "".join(" ".join(map(str, line)) + f" {PADDING}\n" for line in lines)
            (folder / name / f"{file:03}").write_text(text)
            wanted += lines
    return wanted


def check_worker(seen: list[Line], is_lone: bool) -> None:
    """Check the lines of one worker, in reading order."""
    numbers: dict[tuple[str, int], int] = {}
    last: dict[str, int] = {}  # input -> place in `seen` of its last line
    seconds: dict[str, list[int]] = {name: [] for name in INPUTS}
    ends = {(line[1], line[2]): place for place, line in enumerate(seen)}
    for place, (second, input, file, number) in enumerate(seen):
        before = numbers.get((input, file), number - 1)  # it may start where another worker ended
        assert number == before + 1, f"{seen[place]} comes after {before}"
        numbers[input, file] = number
        if input in last and (file_before := seen[last[input]][2]) != file:
            assert ends[input, file_before] < place, f"two files of {input} are open"
        last[input] = place
        [other] = {*INPUTS} - {input}
        slower = seen[last[other]] if other in last else None
        reads_on = slower is not None and ends[other, slower[2]] > place
        seconds[input].append(second)
        if slower is not None and reads_on and is_lone:
            ahead = len(seconds[input]) - bisect_right(seconds[input], slower[0])
            assert ahead <= LINES_AHEAD, f"{input} is {ahead} lines ahead at {second}, while {other} is at {slower}"


def check_skew(order: list[tuple[float, Line]], skew: int) -> int:
    """Check how far all workers together read one input ahead of the other; return the number of checks."""
    fronts, rose = dict.fromkeys(INPUTS, -1), dict.fromkeys(INPUTS, 0.0)
    last = {line[1]: place for place, (_, line) in enumerate(order)}
    checked, known = 0, 0.0  # the time in seconds at which both had begun
    for place, (now, (second, input, _, _)) in enumerate(order):
        [other] = {*INPUTS} - {input}
        known = known or (now if min(fronts.values()) >= 0 else 0.0)
        is_read = last[other] > place and now - rose[other] < STILL_SECONDS / 2
        if is_read and known and now > known + KNOWN_SECONDS and second > fronts[input]:
            checked += 1
            assert second <= fronts[other] + skew + LINES_AHEAD * STEP, f"{input} is at {second}, {other} at {fronts}"
        if second > fronts[input]:
            fronts[input], rose[input] = second, now
    return checked


def run(seed: int) -> Counter[str]:
    """Run a seed; return counts of what happened. Raise an AssertionError that names it if a rule is broken."""
    random = Random(f"interleaved {seed}")
    keys = random.choice([40, 80])
    reads = Reads(keys)
    try:
        with tempfile.TemporaryDirectory(prefix="megaflow-interleaved-") as name:
            wanted = write(Path(name), random, keys)
            order = random.choice(["", "?ordered-by=name"])
            given = find_input({each: str(Path(name, each)) + order for each in INPUTS}, 1, "strict")
            processes = random.choice([1, 1, 2])
            rate = random.choice([None, len(wanted) / 5])
            job = SimulatedJob(seed, reads.dataflow, processes=processes, job_input=given, rate=rate)
            skew = random.choice([None, 5 * STEP])
            job.spec, reads.now = replace(job.spec, max_skew=skew), job.now
            launch = job.run()
            assert launch.outcome == "ended", f"{launch.outcome}: {launch.error}"
        read = Counter(line for seen in reads.workers for line in seen)
        assert read == Counter(wanted), f"missing are {Counter(wanted) - read}, too many {read - Counter(wanted)}"
        for seen in reads.workers:
            check_worker(seen, processes == 1)
        if processes == 1:
            assert reads.most <= LINES_AHEAD, f"{reads.most} of {keys} keys wait in the join"
        checked = 0 if skew is None else check_skew(reads.order, skew)
        return Counter({f"{processes} processes": 1, "waiting": reads.most, f"skew {processes}": checked})
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
