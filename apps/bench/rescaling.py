"""What rescaling costs and what it gains: the experiments that work on rescaling timely left open, on megaflow.

    python apps/bench/rescaling.py {overhead|latency|progress|bootstrap|restart|all} [--json] [--plots DIR]

Everything drives real jobs in real processes, through the launcher and the coordinator that `megaflow run` and
`megaflow control` use; only `progress` steps the engine by hand. The module of each experiment says what exactly it
measures. `all` takes some minutes; with `--quick` everything is too small to mean anything. Performance that misses its
goal is said to, wrong counts are an error.
"""

import sys
from pathlib import Path

import click

from apps.bench.rescaling_bootstrap import BOOTSTRAP
from apps.bench.rescaling_experiment import carry_out, reporting
from apps.bench.rescaling_latency import LATENCY
from apps.bench.rescaling_overhead import OVERHEAD
from apps.bench.rescaling_progress import PROGRESS
from apps.bench.rescaling_restart import COMPARISON

EXPERIMENTS = (OVERHEAD, LATENCY, PROGRESS, BOOTSTRAP, COMPARISON)


def commands() -> click.Group:
    """Return the command line."""
    group = click.Group(help="Measure what rescaling costs and gains.")
    for experiment in EXPERIMENTS:
        group.add_command(experiment.command())

    def run_all(quick: bool, as_json: bool, plots: Path | None) -> None:
        planned = [(each, each.quick if quick else each.sizes()) for each in EXPERIMENTS]
        carry_out(planned, as_json, plots)

    quick = click.Option(["--quick"], is_flag=True, help="Small sizes, which show only that everything works.")
    group.add_command(click.Command("all", callback=run_all, params=[quick, *reporting()], help="All experiments."))
    return group


if __name__ == "__main__":
    sys.exit(commands()())
