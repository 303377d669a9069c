"""Actions that the crash test may take: their frequencies, and the commands for them."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BINS = 256
WORKERS_MAX = 5
STRATEGIES = ("fluid", "batched", "optimized", "hottest-first", "all-at-once")

# Action -> weight.
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
    """Frequencies of the actions on a job."""

    sizes: Sequence[tuple[int, int]]  # processes and workers in each, at the start
    restarts: Sequence[int]
    strikes: Mapping[str, int]  # action -> weight
    steering: Mapping[str, int]
    steer_seconds: tuple[float, float]  # from the end of one command to the next one
    strike_seconds: float | None = None  # from one to the next; None: random, mostly short, and some during the start
    look_seconds: float = 0.03  # between two looks at the job
    show_seconds: float = 15.0  # between two lines of progress

    def until_steering(self, rng: random.Random) -> float:
        """Return the seconds until the next command."""
        return rng.uniform(*self.steer_seconds)

    def until_first_strike(self, rng: random.Random) -> float:
        """Return the seconds from a job's start to its first strike; inf: some time after a commit."""
        if self.strike_seconds is not None:
            return self.strike_seconds
        return rng.choice((rng.uniform(0.05, 1.5), *[math.inf] * 3))

    def until_strike(self, rng: random.Random) -> float:
        """Return the seconds from one strike to the next."""
        if self.strike_seconds is not None:
            return self.strike_seconds
        often = rng.uniform(0.02, 0.8)  # during the recovery
        return rng.choice((often, *[rng.uniform(0.8, STRIKE_SECONDS_MAX)] * 2))


CRASHES = Pace(((1, 1), (2, 1), (2, 1), (3, 1), (1, 2)), (3, 3, 3, 0), STRIKES, STEERING, (0.0, 0.8))


def drawn(rng: random.Random, weights: Mapping[str, int]) -> str:
    """Draw one of the keys by weight."""
    return rng.choices(list(weights), list(weights.values()))[0]


def steering_words(rng: random.Random, what: str, workers: Sequence[int]) -> list[str] | None:
    """Return the command line for an action; empty if no command is due, None if the workers must be known first.

    `workers` are the ids of the job's workers; empty if they are not known.
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
