"""Random runs of aggregates: what comes out of each key and time is what one worker has without any change.

The scenarios are those of `membership`, with joins, leaves and coordinators that hand over, and those of `cuts`, with
checkpoints and restarts from them. One operator at least is an aggregate; beside or behind it stands one of another
kind. In some seeds a turn of the operator that combines is one batch.

And whole jobs, as those of `durable_jobs`, with all that happens to them: killed, without power, on a disk that fails.
The numbers of a word rise in what is put out, it has one in an epoch, and the last one is right.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from megaflow.megaphone import partial_results
from megaflow.testing.simulated_job import SimulatedJob
from tests.simulation import cuts, durable_jobs, membership
from tests.simulation.jobs import BINS

KINDS = ["machine", "unary", "binary", "aggregate"]


def kinds(seed: int) -> tuple[str, str]:
    """Two kinds of operators, of which one is an aggregate."""
    random = Random(f"aggregates {seed}")
    other = random.choice(KINDS)
    return random.choice([("aggregate", other), (other, "aggregate")])


def draw(seed: int) -> membership.Drawn:
    """The scenario and the changes of a seed."""
    scenario, changes = (membership.draw_hand_overs if seed % 2 else membership.draw_changes)(seed)
    scenario.kinds = kinds(seed)
    scenario.two_in_a_row = scenario.two_in_a_row or scenario.kinds[0] != "aggregate"
    return scenario, changes


def plan(seed: int) -> cuts.Plan:
    """The plan of a seed, with checkpoints and a restart."""
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
    """Run a seed both ways, each with its oracle."""
    with small_turns(seed):
        membership.run(seed, draw)
        cuts.run(seed, plan)


def counts(flow: Any) -> Any:
    """How often each word has come."""
    return flow.lines().map(lambda line: line.split(" ")[0]).count_by_value(bins=BINS, name="count")


def poisoned(flow: Any) -> Any:
    """The same, with a fault of its own."""

    def word(line: str) -> str:
        assert not line.startswith("dog"), "poison"
        return line.split(" ")[0]

    return flow.lines().map(word).count_by_value(bins=BINS, name="count")


class CountedLives(durable_jobs.Lives):
    """The lives of one job that counts words by epoch."""

    def job(self, flow: Callable[[Any], Any] = counts, **options: Any) -> SimulatedJob:
        """Make the next one."""
        return super().job(poisoned if flow is durable_jobs.poisoned else counts, **options)

    def check_output(self, whole: bool = False) -> None:
        """Numbers rise, epochs too, and the last number of each word is how often it is in the files."""
        lines = [json.loads(line) for line in self.storage.lines.splitlines(keepends=True) if line.endswith("\n")]
        last: dict[str, tuple[int, int]] = {}
        for number, line in enumerate(lines):
            (word, count), time = line["record"], line["time"]
            before = last.get(word, (0, -1))[0]
            assert count > before, f"{word!r} is {count} after {before}"
            if number == self._begun:  # another job's epochs
                last = {word: (count, -1) for word, (count, _) in last.items()}
            assert not whole or time > last.get(word, (0, -1))[1], f"{word!r} is put out twice at {time}"
            last[word] = count, time
        assert not whole or Counter({word: count for word, (count, _) in last.items()}) == self._words


def run_job(seed: int) -> Counter[str]:
    """Run the lives of a seed."""
    return durable_jobs.run(seed, CountedLives)
