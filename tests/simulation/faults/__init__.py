"""All planted faults, by the search of `tests.simulation.search` that must find them."""

from tests.simulation.faults import engine, event_time, jobs, state
from tests.simulation.planting import Fault

FAULTS: dict[str, dict[str, Fault]] = {
    "moves": engine.MOVES,
    "graphs": engine.GRAPHS,
    "changes": engine.CHANGES,
    "partitions": engine.PARTITIONS,
    "hand-overs": engine.HAND_OVERS,
    "processes": engine.PROCESSES,
    "introductions": engine.INTRODUCTIONS,
    "loops": engine.LOOPS,
    "objects": engine.OBJECTS,
    "cuts": state.CUTS,
    "lookups": state.LOOKUPS,
    "aggregates": state.AGGREGATES,
    "aggregates in jobs": state.AGGREGATES_IN_JOBS,
    "event timers": event_time.EVENT_TIMERS,
    "timer order": event_time.TIMER_ORDER,
    "event moves": event_time.EVENT_MOVES,
    "late records": event_time.LATE_RECORDS,
    "event time": event_time.EVENT_TIME,
    "reproducible": event_time.REPRODUCIBLE,
    "jobs": jobs.JOBS,
    "crashes": jobs.CRASHES,
    "durable jobs": jobs.CHECKPOINTS | jobs.LAUNCHERS,
    "lost processes": jobs.LOST_PROCESSES,
    "two inputs": jobs.TWO_INPUTS,
    "interleaved": jobs.INTERLEAVED,
    "moved files": jobs.MOVED_FILES,
    "sources": jobs.SOURCES,
    "sinks": jobs.SINKS,
    "durable Spark": jobs.DURABLE_SPARK,
    "stores": jobs.STORES,
    "folders": jobs.FOLDERS,
    "two launchers": jobs.TWO_LAUNCHERS,
}
