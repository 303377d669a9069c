"""S5: duration of a round: one record is sent, and all workers wait until a probe reports that it is done.

With one worker this is the cost of the engine's bookkeeping. With two processes the record goes to each in turn, and
both park while they wait. The yardstick for this is the time that two parked Python processes take to send one byte
there and back.
"""

import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from apps.bench.cluster import run_cluster
from apps.bench.report import Found, Goal
from apps.bench.workload import PLAIN, ROOT, Setting, Step, Workload, WrongCounts, one
from apps.wordcount import count
from megaflow.timely import InputHandle, ProbeHandle, Worker

MEAN, MIDDLE, LATE = "mean µs", "p50 µs", "p99 µs"
ONE, TWO = "megaflow, one worker", "megaflow, two processes"
BARE = "two parked processes, one byte there and back"
ROUNDS, ROUNDS_QUICK = 10_000, 1_000
WARM_UP_SHARE = 10  # one warm-up round for so many rounds
MICRO = 1e6


def main(worker: Worker) -> list[float]:
    """Run the rounds; return the seconds that each took on this worker."""
    rounds = int(worker.args[0])
    numbers: InputHandle[int] = InputHandle()
    probe = ProbeHandle()
    seen: list[int] = []
    with worker.dataflow("rounds") as scope:
        scope.input_from(numbers).exchange(lambda number: number).inspect(seen.append).probe_with(probe)
    took = []
    for number in range(rounds):
        began = time.perf_counter()
        if worker.index == 0:
            numbers.send(number)
        numbers.advance_to(number + 1)
        worker.step_while(lambda: probe.less_than(numbers.time))
        took.append(time.perf_counter() - began)
    if seen != list(range(worker.index, rounds, worker.peers)):
        raise WrongCounts(f"worker {worker.index} saw {len(seen)} of {rounds} numbers")
    return took


def figures(took: Sequence[float]) -> dict[str, float]:
    """Return the figures of rounds, given in seconds, without the warm-up."""
    rounds = sorted(took[len(took) // (WARM_UP_SHARE + 1) :])
    late = rounds[min(len(rounds) - 1, len(rounds) * 99 // 100)]
    return {MEAN: MICRO * statistics.mean(rounds), MIDDLE: MICRO * rounds[len(rounds) // 2], LATE: MICRO * late}


def run_rounds(name: str, processes: int, rounds: int) -> Found:
    """Run the program; return the figures of worker 0."""
    return one(name, figures(run_cluster(main, processes, [with_warm_up(rounds)])[0]))


def with_warm_up(rounds: int) -> int:
    """Return the number of rounds, including the warm-up."""
    return rounds + rounds // WARM_UP_SHARE


def run_bare(rounds: int) -> Found:
    """Send a byte to a process that waits for it, and wait for its answer, again and again."""
    mine, other = socket.socketpair()
    command = [sys.executable, "-m", "apps.bench.plain", "echo", str(other.fileno())]
    took = []
    process = subprocess.Popen(command, cwd=ROOT, pass_fds=[other.fileno()], stdout=subprocess.DEVNULL)
    other.close()
    with process, mine, selectors.DefaultSelector() as selector:  # the process ends when `mine` is closed
        selector.register(mine, selectors.EVENT_READ)
        for _ in range(with_warm_up(rounds)):
            began = time.perf_counter()
            mine.send(b"!")
            selector.select()
            if not mine.recv(64):
                raise WrongCounts("the other process has ended too early")
            took.append(time.perf_counter() - began)
    return one(BARE, figures(took))


def run_plain(rounds: int) -> Found:
    """Call a fold for one record, and use its result."""
    fold: Callable[..., tuple[int, list[tuple[int, int]]]] = count
    totals: dict[int, int] = {}
    took = []
    for number in range(with_warm_up(rounds)):
        began = time.perf_counter()
        totals[0], out = fold(0, 1, totals.get(0))
        took.append(time.perf_counter() - began)
        assert out == [(0, number + 1)]
    return one(PLAIN, figures(took))


def steps(rounds: int) -> Sequence[Step]:
    """Return the contenders."""
    return (
        Step(PLAIN, lambda: run_plain(rounds)),
        Step(ONE, lambda: run_rounds(ONE, 1, rounds)),
        Step(BARE, lambda: run_bare(rounds)),
        Step(TWO, lambda: run_rounds(TWO, 2, rounds)),
    )


def open_rounds(setting: Setting) -> Sequence[Step]:
    """Return the contenders. This workload needs no files."""
    return steps(setting.size(ROUNDS, ROUNDS_QUICK))


S5 = Workload(
    "S5",
    "rounds: one record, wait for the probe",
    open_rounds,
    (Goal(ONE, MEAN, 40.0), Goal(TWO, MEAN, 200.0)),
    base=None,
    notes=("the loop's round is one call of a fold, which nobody has to agree on",),
)
