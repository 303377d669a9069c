"""S7 and S8: cost of moving state and of a join, measured by the experiments of `migration.py` and `rescaling.py`.

Run those programs for their own tables and more pictures. An experiment repeats its moves by itself, so it runs once.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from apps.bench.experiment import Record
from apps.bench.migration_bins import BINS, COMPARED, KNEE_MAX, MANY, NAMES, RATIO_MAX
from apps.bench.migration_moves import (
    ALL_AT_ONCE,
    FLUID,
    LATENCY_MS_MAX,
    MICROSECONDS_PER_KEY_MAX,
    MOVES,
    OPTIMIZED,
    STALL_MS,
    STEADY,
    STRATEGIES,
    TIMES_BETTER_MIN,
    microseconds_per_key,
)
from apps.bench.report import Found, Goal
from apps.bench.rescaling_bootstrap import BOOTSTRAP, FIRST_RECORD_SECONDS_MAX
from apps.bench.rescaling_latency import LATENCY, TIMES_STEADY_MAX, measure_steady
from apps.bench.workload import Setting, Step, Workload, WrongCounts, one

P50, P99, MAX = "p50 ms", "p99 ms", "max ms"
PER_KEY, TO_PINNED = "µs per key moved", "p99 to that of pinned state"
TO_STEADY, FIRST = "max to the p99 before", "seconds to its first record"
COUNTS, VALUES = "a count each", "larger values"
ORDERED = ", in order"
STEADY_SECONDS = 1.0  # before a move: enough to see the usual values, and short, so that the suite takes minutes
AFTER_SECONDS = 2.0  # after a join
JOIN, JOINER = "during a join", "a process that joins"


def checked(record: Record) -> Record:
    """Return the record of an experiment. Raises WrongCounts."""
    if not record["exact"]:
        raise WrongCounts("the outputs are not those of a Counter")
    return record


# Moving bins


def run_moves(setting: Setting) -> Found:
    """Move half of the bins there and back, with each strategy. Then do it again with one reader, in order."""
    sizes = MOVES.quick if setting.quick else MOVES.sizes(steady=STEADY_SECONDS)
    record = checked(MOVES.measure(sizes))
    setting.picture("moves", partial(MOVES.draw, record))
    in_order = checked(MOVES.measure(replace(sizes, ordered=True, repeat=1)))
    return {**figures_of(record, ""), **figures_of(in_order, ORDERED)}


def figures_of(record: Record, end: str) -> Found:
    """Return the rows of an experiment, with `end` appended to their names."""
    found: Found = {}
    for name, part in zip((COUNTS, VALUES), record["parts"].values()):
        for strategy in (STEADY, *STRATEGIES):
            moves = [each for each in part["moves"] if strategy in (STEADY, each["strategy"])]
            late = [each[STEADY if strategy == STEADY else "late"] for each in moves]
            figures = {label: [each[label.partition(" ")[0]] for each in late] for label in (P50, P99, MAX)}
            if strategy != STEADY:
                figures[PER_KEY] = [microseconds_per_key(each["account"]) for each in moves]
            found[f"{strategy}, {name}{end}"] = figures
    return found


def run_bins(setting: Setting) -> Found:
    """Compare jobs that have few and many bins with state that has none."""
    record = checked(BINS.measure(BINS.quick if setting.quick else BINS.sizes()))
    setting.picture("bins", partial(BINS.draw, record))
    found: Found = {}
    for job in record["jobs"]:
        turns = {name: job[name] for name in NAMES.values()}
        for name, label in zip(NAMES.values(), (bins_row(job["bins"]), f"pinned, beside {job['bins']:,} bins")):
            found[label] = {P99: [turn["p99"] for turn in turns[name]], MAX: [turn["max"] for turn in turns[name]]}
        movable, pinned = (found[label][P99] for label in list(found)[-2:])
        found[bins_row(job["bins"])][TO_PINNED] = [mine / its for mine, its in zip(movable, pinned)]
    return found


def bins_row(bins: int) -> str:
    """Return the name of the row for a number of bins."""
    return f"{bins:,} bins"


def move_goals() -> tuple[Goal, ...]:
    """Return the goals of moves. Gradual moves are compared with all-at-once wherever that stalls."""
    gradual = [(f"{strategy}, {name}", f"{ALL_AT_ONCE}, {name}") for name in (COUNTS, VALUES)
               for strategy in (FLUID, OPTIMIZED)]  # fmt: skip
    return (
        *(Goal(row, MAX, 1 / TIMES_BETTER_MIN, of=(other,), of_above=STALL_MS) for row, other in gradual),
        *(Goal(row, MAX, LATENCY_MS_MAX) for row, _ in gradual),
        Goal(f"{ALL_AT_ONCE}, {COUNTS}", PER_KEY, MICROSECONDS_PER_KEY_MAX),
        Goal(bins_row(COMPARED), TO_PINNED, RATIO_MAX),
        Goal(bins_row(MANY), TO_PINNED, KNEE_MAX, of=(bins_row(COMPARED),)),
    )


def open_moving(setting: Setting) -> Sequence[Step]:
    """Return both experiments."""
    return (Step("moves", partial(run_moves, setting)), Step("bins", partial(run_bins, setting)))


S7 = Workload(
    "S7",
    "migration on two processes, half of the bins",
    open_moving,
    move_goals(),
    base=None,
    repeat_max=1,
    notes=(
        "maxima are medians of six, in order (one process reads for both) of two, the others are ?unordered",
        "sizes and tables: apps/bench/migration.py all",
    ),
)

# Joining


def run_join(setting: Setting) -> Found:
    """Measure the join of a process to two that keep up."""
    sizes = LATENCY.quick if setting.quick else LATENCY.sizes(after=AFTER_SECONDS)
    record = checked(measure_steady(sizes, setting.folder / "lines.txt"))
    before, join, moves, after = record["phases"]
    found: Found = {}
    for name, phase in (("before", before), (JOIN, join), ("during its moves", moves), ("after", after)):
        if phase["lines"]:
            found |= one(name, {label: phase[label.partition(" ")[0]] for label in (P50, P99, MAX)})
    found[JOIN] = {**found.get(JOIN, {}), TO_STEADY: [join["max"] / before["p99"]]}
    return found


def run_first_record(setting: Setting) -> Found:
    """Time a process from the command to its first record."""
    sizes = BOOTSTRAP.quick if setting.quick else BOOTSTRAP.sizes()
    record = checked(BOOTSTRAP.measure(replace(sizes, repeat=1)))
    return one(JOINER, {FIRST: record["joins"][0]["first_record"]})


def open_joining(setting: Setting) -> Sequence[Step]:
    """Return both experiments."""
    return (Step(JOIN, partial(run_join, setting)), Step(JOINER, partial(run_first_record, setting)))


S8 = Workload(
    "S8",
    "a process joins two, at 20,000 records/s",
    open_joining,
    (Goal(JOIN, TO_STEADY, float(TIMES_STEADY_MAX)), Goal(JOINER, FIRST, FIRST_RECORD_SECONDS_MAX)),
    base=None,
    notes=("more: apps/bench/rescaling.py all",),
)
