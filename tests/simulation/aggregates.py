"""Random runs of aggregates: each key and time must have the output that one worker without changes gives.

The scenarios are those of `membership` (joins, leaves, hand-overs of the coordinator) and of `cuts` (checkpoints, and
restarts from them). At least one operator is an aggregate; an operator of another kind may stand before or behind it.
In some seeds, a turn of the combining operator is one batch.

Whole jobs run as in `durable_jobs`, with all the same faults: killed processes, power loss, a failing disk. A word's
count rises from output to output, a word has at most one output in an epoch, and the last count is right. In some seeds
the job emits counts only at the end. Then a word has one output for each time that the job read all its lines and some
of them contained the word.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

from megaflow.megaphone.folds import partial_results
from megaflow.megaphone.folds.aggregates import LAST_TIME
from megaflow.testing.simulated_job import SimulatedJob
from tests.simulation import cuts, durable_jobs, membership
from tests.simulation.jobs import BINS

KINDS = ["machine", "unary", "binary", "aggregate"]


def kinds(seed: int) -> tuple[str, str]:
    """Draw two kinds of operators; at least one is an aggregate."""
    random = Random(f"aggregates {seed}")
    other = random.choice(KINDS)
    return random.choice([("aggregate", other), (other, "aggregate")])


def draw(seed: int) -> membership.Drawn:
    """Draw the scenario and the changes of a seed."""
    scenario, changes = (membership.draw_hand_overs if seed % 2 else membership.draw_changes)(seed)
    scenario.kinds = kinds(seed)
    scenario.two_in_a_row = scenario.two_in_a_row or scenario.kinds[0] != "aggregate"
    return scenario, changes


def plan(seed: int) -> cuts.Plan:
    """Draw the plan of a seed, with checkpoints and a restart."""
    planned = cuts.plan(seed)
    first, second = kinds(seed)
    planned.kinds = [first, second] if len(planned.kinds) > 1 or first != "aggregate" else [first]
    return planned


@contextmanager
def small_turns(seed: int) -> Iterator[None]:
    usual, partial_results.TURN_SECONDS = partial_results.TURN_SECONDS, 0.0 if seed % 3 else 1.0  # type: ignore[misc]
    try:
        yield
    finally:
        partial_results.TURN_SECONDS = usual  # type: ignore[misc]


def run(seed: int) -> None:
    """Run a seed with `membership` and with `cuts`, and check each against its oracle."""
    with small_turns(seed):
        membership.run(seed, draw)
        cuts.run(seed, plan)


def counts(emit: Any, flow: Any) -> Any:
    """Count each word."""
    return flow.lines().map(lambda line: line.split(" ")[0]).count_by_value(bins=BINS, name="count", emit=emit)


def poisoned(emit: Any, flow: Any) -> Any:
    """Count each word; fail on a word of the input."""

    def word(line: str) -> str:
        assert not line.startswith("dog"), "poison"
        return line.split(" ")[0]

    return flow.lines().map(word).count_by_value(bins=BINS, name="count", emit=emit)


class CountedAttempts(durable_jobs.Attempts):
    """The attempts of one job that counts words by epoch, or at the end."""

    @property
    def emit(self) -> str:
        """When the job emits counts."""
        return "end" if Random(f"emits {self._seed}").random() < 0.4 else "epoch"

    def job(self, flow: Callable[[Any], Any] = durable_jobs.dataflow, **options: Any) -> SimulatedJob:
        """Make the next job."""
        return super().job(partial(poisoned if flow is durable_jobs.poisoned else counts, self.emit), **options)

    def check_output(self, whole: bool = False) -> None:
        """Check that counts and epochs rise and that the last count of each word is right."""
        lines = [json.loads(line) for line in self.storage.lines.splitlines(keepends=True) if line.endswith("\n")]
        last: dict[str, tuple[int, int]] = {}
        for number, line in enumerate(lines):
            (word, count), time = line["record"], line["time"]
            before = last.get(word, (0, -1))[0]
            assert count > before, f"{word!r} is {count} after {before}"
            if number == self._begun:  # another job's epochs
                last = {word: (count, -1) for word, (count, _) in last.items()}
            assert not whole or time > last.get(word, (0, -1))[1], f"{word!r} is put out twice at {time}"
            assert (time == LAST_TIME) is (self.emit == "end"), f"{word!r} is put out at {time}"
            last[word] = count, time
        assert not whole or Counter({word: count for word, (count, _) in last.items()}) == self._words


def run_job(seed: int) -> Counter[str]:
    """Run the attempts of a seed."""
    return durable_jobs.run(seed, CountedAttempts)
