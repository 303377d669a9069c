"""What may happen to the job of the crash test, how often, and in which words."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BINS = 256
WORKERS_MAX = 5
STRATEGIES = ("fluid", "batched", "optimized", "hottest-first", "all-at-once")

# What is done -> weight.
STRIKES = {
    "worker": 6,
    "added": 6,
    "by hand": 4,
    "launcher": 2,
    "all": 1,
    "stop": 1,
    "Ctrl-C": 1,
    "pause": 3,
    "command": 2,
}
STEERING = {"status": 1, "balance": 3, "move": 5, "add": 5, "remove": 4, "join": 3, "checkpoint": 1, "backup": 3}
STRIKE_SECONDS_MAX = 7.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What may happen to a job, and how often."""

    sizes: Sequence[tuple[int, int]]  # processes and workers in each, to begin with
    restarts: Sequence[int]
    strikes: Mapping[str, int]  # what -> weight
    steering: Mapping[str, int]
    steer_seconds: tuple[float, float]  # from the end of one command to the next one
    strike_seconds: float | None = None  # from one to the next; None: often, by dice, some while the job begins
    look_seconds: float = 0.03  # from one look at the job to the next
    show_seconds: float = 15.0  # from one line of progress to the next

    def until_steering(self, rng: random.Random) -> float:
        """Return in how many seconds the next command comes."""
        return rng.uniform(*self.steer_seconds)

    def until_first_strike(self, rng: random.Random) -> float:
        """Return in how many seconds from a job's start its first strike comes; inf: some time after a commit."""
        if self.strike_seconds is not None:
            return self.strike_seconds
        return rng.choice((rng.uniform(0.05, 1.5), *[math.inf] * 3))

    def until_strike(self, rng: random.Random) -> float:
        """Return in how many seconds from one the next one comes."""
        if self.strike_seconds is not None:
            return self.strike_seconds
        often = rng.uniform(0.02, 0.8)  # while it recovers
        return rng.choice((often, *[rng.uniform(0.8, STRIKE_SECONDS_MAX)] * 2))


CRASHES = Pace(((1, 1), (2, 1), (2, 1), (3, 1), (1, 2)), (3, 3, 3, 0), STRIKES, STEERING, (0.0, 0.8))


def drawn(rng: random.Random, weights: Mapping[str, int]) -> str:
    """Return one of these."""
    return rng.choices(list(weights), list(weights.values()))[0]


def steering_words(rng: random.Random, what: str, workers: Sequence[int]) -> list[str] | None:
    """Return the words of a command for this; nothing if it is no command, None if it needs to know the workers.

    `workers` are those of the job; none if they are not known.
    """
    strategy = ["--strategy", rng.choice(STRATEGIES)][: rng.choice((0, 2, 2))]
    if strategy and strategy[1] == "batched":
        strategy += ["--batch", "16"]
    if what == "balance":
        return ["move-bins", "--balance", *strategy]
    if what == "status":
        return ["status", "--json"]
    if what in ("checkpoint", "backup"):
        return [what]
    if not workers and what in ("move", "add", "remove"):
        return None
    if what == "move":
        first = rng.randrange(BINS)
        last = min(BINS - 1, first + rng.choice((0, 8, 64, 255)))
        return ["move-bins", "--bins", f"{first}-{last}", "--to", str(rng.choice(workers)), *strategy]
    if what == "add" and len(workers) < WORKERS_MAX:
        return ["add-workers", str(rng.choice((1, 1, 2))), *rng.choice(([], ["--balance"]))]
    if what == "remove" and len(workers) > 1:
        return ["remove-workers", "--id", str(rng.choice(workers))]
    return []
