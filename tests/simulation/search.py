"""Run seeds until one fails; print it. Run by test_planted_faults with a mutated megaflow on the path."""

import sys
from collections.abc import Callable

from tests.simulation import graphs, membership, scenarios

SEARCHES: dict[str, Callable[[int], object]] = {
    "moves": lambda seed: scenarios.run(scenarios.draw(seed)),
    "graphs": graphs.run,
    "changes": membership.run,
    "hand-overs": lambda seed: membership.run(seed, membership.draw_hand_overs),
}


def main(search: str, seeds: int) -> int:
    """Exit code 0 if all seeds pass, 3 if one fails."""
    for seed in range(seeds):
        try:
            SEARCHES[search](seed)
        except Exception as failure:
            print(f"seed {seed}: {type(failure).__name__}: {failure}")
            return 3
    print(f"all {seeds} seeds pass")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
