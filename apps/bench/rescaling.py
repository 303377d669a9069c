"""Cost and benefit of rescaling: the experiments that earlier work on rescaling timely left open, on megaflow.

    python apps/bench/rescaling.py EXPERIMENT [--json] [--plots DIR]

EXPERIMENT is overhead, latency, joins, progress, workers, traffic, bootstrap, restart or all.

Most experiments run real jobs in real processes, through the same launcher and coordinator as `megaflow run` and
`megaflow control`. `traffic` runs engine programs in real processes; `progress` and `workers` step the engine by hand.
The module of each experiment describes what it measures. `all` takes some minutes. With `--quick` the sizes are too
small for meaningful results. A missed performance goal is reported; a wrong count is an error.
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
