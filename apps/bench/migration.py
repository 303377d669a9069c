"""Cost of moving state: the experiments of section 5.3 of the Megaphone paper, at the size of one machine.

    python apps/bench/migration.py {moves|bins|all} [--json] [--plots DIR]

All experiments run real jobs in real processes, through the same launcher and coordinator as `megaflow run` and
`megaflow control move-bins`. The module of each experiment describes what it measures. `all`, which is the default,
takes some minutes. With `--quick` the sizes are too small for meaningful results. A missed performance goal is
reported; a wrong count is an error.
"""

from apps.bench.experiment import commands, main
from apps.bench.migration_bins import BINS
from apps.bench.migration_moves import MOVES

EXPERIMENTS = (MOVES, BINS)

if __name__ == "__main__":
    main(commands("migration", "Measure what moving state costs.", EXPERIMENTS))
