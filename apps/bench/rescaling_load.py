"""Dataflows and inputs of the rescaling benchmarks.

The dataflows count keys, with a state per key: in bins that can move, or pinned to the workers of the job's start.
Worker processes import them, so they are in a module of their own.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from apps.wordcount import count
from megaflow.job.worker.process.flow import Flow
from megaflow.stream import Stream

SEED = 7
KEYS = 10_000  # of numbered lines
LIGHT = ("nothing", "0")  # cost of a record in `numbered`
IDLE_SECONDS = 0.002  # between checks whether a line is due
RESTORED = "="  # begins the rest of a key's entry when its state is restored
FIRST = "-"  # the rest of a key's entry that is not part of the load
KEYS_PER_LINE = 100  # when many keys are fed at once: about 2 KB


def words(flow: Flow) -> Stream[Any]:
    """Count the words of lines, as `apps.wordcount` does. `flow.args`: the number of bins."""
    pairs = flow.lines().flat_map(lambda line: [(word, 1) for word in line.split()])
    return pairs.stateful_state_machine(count, bins=int(flow.args[0]))


def pinned_words(flow: Flow) -> Stream[Any]:
    """Count the words of lines, as `apps.wordcount` does, on a fixed set of workers."""
    words = flow.lines().flat_map(lambda line: [(word, 1) for word in line.split()])
    return words.state_machine(count)


def numbered(flow: Flow) -> Stream[Any]:
    """Count the keys of numbered lines. Outputs are (worker, number, count of its key so far).

    `flow.args`: the number of bins, and the cost of a record: a kind of `SPENDING` and seconds.
    """
    worker, (bins, kind, seconds) = flow.worker.index, flow.args
    spend = SPENDING[kind]

    def fold(key: int, number: int, total: int | None) -> tuple[int, list[tuple[int, int, int]]]:
        if spend is not None:
            spend(float(seconds))
        total = (total or 0) + 1
        return total, [(worker, number, total)]

    return flow.lines().map(_key_and_number).stateful_state_machine(fold, bins=int(bins))


def _key_and_number(line: str) -> tuple[int, int]:
    number = int(line.partition(" ")[0])
    return key_of(number), number


def key_of(number: int, keys: int = KEYS) -> int:
    """Return the key of the line with this number: one of many, in no visible order."""
    return number * 2654435761 % 2**32 % keys


def spend_processor(seconds: float) -> None:
    """Compute for `seconds` of the thread's CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


SPENDING: dict[str, Callable[[float], None] | None] = {"nothing": None, "wait": time.sleep, "cpu": spend_processor}


def stamped(flow: Flow) -> Stream[Any]:
    """Count the keys of lines `KEY STAMP KEY STAMP …`. Outputs are (key, count, stamp); `KEY =5` sets a count.

    `flow.args`: the number of bins.
    """

    def fold(key: str, stamp: str, total: int | None) -> tuple[int, list[tuple[str, int, str]]]:
        if stamp.startswith(RESTORED):
            return int(stamp[1:]), []
        total = (total or 0) + 1
        return total, [(key, total, stamp)]

    return flow.lines().flat_map(_keys_and_stamps).stateful_state_machine(fold, bins=int(flow.args[0]))


def _keys_and_stamps(line: str) -> list[tuple[str, str]]:
    words = line.split(" ")
    return list(zip(words[::2], words[1::2]))


def packed(keys_and_stamps: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield lines of many keys each, so that the launcher takes the least time to restore a state."""
    pairs = iter(keys_and_stamps)
    while some := list(islice(pairs, KEYS_PER_LINE)):
        yield " ".join(f"{key} {stamp}" for key, stamp in some)


class OpenLoop:
    """Lines of random keys. Each contains the moment at which it is due, even if no worker is ready to read it then.

    The launcher draws the lines on its thread; `end` is called on another one. `lines` may be called again for another
    job, and continues where the previous job ended.
    """

    def __init__(self, key_count: int, rate: float) -> None:
        self.drawn: Counter[str] = Counter()  # keys of the load; the launcher's thread writes this and the next two
        self.begun: list[float] = []  # seconds, when the load began or continued in each job
        self._sent = 0  # lines of the load
        self._key_count = key_count
        self._rate = rate
        self._rng = random.Random(SEED)
        self._over = threading.Event()

    def lines(self, before: Iterable[str]) -> Iterator[str]:
        """Yield the first lines at once, then the load until `end`."""
        self._over.clear()
        yield from before
        self.begun.append(time.monotonic())
        while not self._over.is_set():
            now = time.monotonic()
            due = self.begun[0] + self._sent / self._rate
            if due > now:
                time.sleep(min(IDLE_SECONDS, due - now))
                continue
            key = f"key{self._rng.randrange(self._key_count)}"
            self.drawn[key] += 1
            self._sent += 1
            yield f"{key} {due:.6f}"

    def end(self) -> None:
        """End the lines here."""
        self._over.set()
