"""What rescaling costs and what it gains: the experiments that work on rescaling timely left open, on megaflow.

    python apps/bench/rescaling.py EXPERIMENT [--json] [--plots DIR]

EXPERIMENT is overhead, latency, joins, progress, workers, traffic, bootstrap, restart or all.

Most drive real jobs in real processes, through the launcher and the coordinator that `megaflow run` and `megaflow
control` use; `traffic` runs programs of the engine in real processes, `progress` and `workers` step the engine by hand.
The module of each experiment says what exactly it measures. `all` takes some minutes; with `--quick` everything is too
small to mean anything. Performance that misses its goal is said to, wrong counts are an error.
"""

from apps.bench.experiment import commands, main
from apps.bench.rescaling_bootstrap import BOOTSTRAP
from apps.bench.rescaling_joins import JOINING
from apps.bench.rescaling_latency import LATENCY
from apps.bench.rescaling_overhead import OVERHEAD
from apps.bench.rescaling_progress import PROGRESS
from apps.bench.rescaling_restart import COMPARISON
from apps.bench.rescaling_traffic import TRAFFIC
from apps.bench.rescaling_workers import WORKERS

EXPERIMENTS = (OVERHEAD, LATENCY, JOINING, PROGRESS, WORKERS, TRAFFIC, BOOTSTRAP, COMPARISON)

if __name__ == "__main__":
    main(commands("rescaling", "Measure what rescaling costs and gains.", EXPERIMENTS))
