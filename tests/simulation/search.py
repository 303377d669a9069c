"""Run seeds until one fails, and print it. `test_planted_faults` runs this module with faults to plant first, as JSON.

The order of a set may decide the size of a checkpoint's slice, and so all that a seed does next. Therefore all runs
share one PYTHONHASHSEED. The folders of megaflow and of temporary files decide nothing.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from tests.simulation.planting import Fault, Planter


def searches() -> dict[str, Callable[[int], object]]:
    """Return the function to run for each seed. Imports megaflow, so plant faults first."""
    from tests.simulation import (
        aggregates,
        branches,
        cuts,
        durable_jobs,
        durable_spark,
        event_moves,
        event_time,
        folders,
        graphs,
        growing_sources,
        interleaved,
        introductions,
        jobs,
        late_records,
        lookups,
        loop_cuts,
        loops,
        lost_processes,
        membership,
        moved_files,
        object_graphs,
        partitions,
        reproducible,
        restored,
        scenarios,
        several_queries,
        sinks,
        stores,
        timer_order,
        two_inputs,
        two_launchers,
        whole_batches,
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
        "whole batches": whole_batches.run,
        "several queries": several_queries.run,
        "event moves": event_moves.run,
        "event time": event_time.run,
        "branches": branches.run,
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
        "moved files": moved_files.run,
        "sinks": sinks.run,
        "restored": restored.run,
        "sources": growing_sources.run,
        "stores": stores.run,
        "folders": folders.run,
        "two launchers": two_launchers.run,
        "two inputs": two_inputs.run,
        "interleaved": interleaved.run,
    }


def main(search: str, seeds: int, *faults: str) -> int:
    """Return 0 if all seeds pass, 3 if one fails."""
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
