"""Run seeds until one fails; print it. Run by test_planted_faults, with a fault as JSON that is planted before.

The order of a set may decide how large a slice of a checkpoint is, and so what a seed does next: so all runs have one
PYTHONHASHSEED. Where megaflow is, and where temporary files are, decides nothing.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from tests.simulation.planting import Fault, Planter


def searches() -> dict[str, Callable[[int], object]]:
    """What to run with each seed. Imports megaflow, which is to have its fault by then."""
    from tests.simulation import (
        aggregates,
        cuts,
        durable_jobs,
        durable_spark,
        event_moves,
        event_time,
        folders,
        graphs,
        growing_sources,
        introductions,
        jobs,
        late_records,
        lookups,
        loop_cuts,
        loops,
        lost_processes,
        membership,
        object_graphs,
        partitions,
        reproducible,
        scenarios,
        sinks,
        stores,
        timer_order,
        two_inputs,
        two_launchers,
    )

    return {
        "moves": lambda seed: scenarios.run(scenarios.draw(seed)),
        "graphs": graphs.run,
        "changes": membership.run,
        "partitions": partitions.run,
        "hand-overs": lambda seed: membership.run(seed, membership.draw_hand_overs),
        "processes": membership.run_processes,
        "introductions": introductions.run,
        "own moves": introductions.run_own,
        "lookups": lookups.run,
        "jobs": jobs.run,
        "crashes": jobs.run_crash,
        "durable jobs": durable_jobs.run,
        "durable Spark": durable_spark.run,
        "event moves": event_moves.run,
        "event time": event_time.run,
        "late records": late_records.run,
        "reproducible": reproducible.run,
        "timer order": timer_order.run,
        "lost processes": lost_processes.run,
        "objects": object_graphs.run,
        "aggregates": aggregates.run,
        "aggregates in jobs": aggregates.run_job,
        "cuts": cuts.run,
        "event timers": cuts.run_eventful,
        "loop cuts": loop_cuts.run,
        "loops": loops.run,
        "components": loops.run_components,
        "sinks": sinks.run,
        "sources": growing_sources.run,
        "stores": stores.run,
        "folders": folders.run,
        "two launchers": two_launchers.run,
        "two inputs": two_inputs.run,
    }


def main(search: str, seeds: int, *faults: str) -> int:
    """Exit code 0 if all seeds pass, 3 if one fails."""
    for fault in faults:
        Planter(read_fault(json.loads(fault)))
    run = searches()[search]
    for seed in range(seeds):
        try:
            run(seed)
        except Exception as failure:
            print(f"seed {seed}: {type(failure).__name__}: {failure}")
            return 3
    print(f"all {seeds} seeds pass")
    return 0


def read_fault(record: dict[str, Any]) -> Fault:
    return Fault(**{**record, "more": tuple(map(read_fault, record["more"]))})


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
