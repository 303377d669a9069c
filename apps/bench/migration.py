"""What moving state costs: the experiments of the Megaphone paper's section 5.3, at the size of one machine.

    python apps/bench/migration.py {moves|bins|all} [--json] [--plots DIR]

Everything drives real jobs in real processes, through the launcher and the coordinator that `megaflow run` and
`megaflow control move-bins` use. The module of each experiment says what exactly it measures. `all`, which is also what
happens without a word, takes some minutes; with `--quick` everything is too small to mean anything. Performance that
misses its goal is said to, wrong counts are an error.
"""

from apps.bench.experiment import commands, main
from apps.bench.migration_bins import BINS
from apps.bench.migration_moves import MOVES

EXPERIMENTS = (MOVES, BINS)

if __name__ == "__main__":
    main(commands("migration", "Measure what moving state costs.", EXPERIMENTS))
