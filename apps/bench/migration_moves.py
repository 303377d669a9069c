"""Latency of records while half of all bins move from one worker to the other, by strategy.

Two jobs of key-count run on two processes, in an open loop: many keys with a count each, and fewer keys with larger
values. Worker 0 gives its bins, half of all, to worker 1 and gets them back, once for each strategy and repetition.
Before each move the job is calm for a while.

All-at-once comes last in a repetition because its effect on a process's memory lasts. The others take turns at being
first. A worker's dict is rebuilt each time it has received a certain number of keys, which takes 40 to 80 ms at these
sizes, and the strategy whose turn it is must not be blamed for that.

A latency is the time from the moment a line was due until its epoch was closed everywhere. So a line that waits during
a stall counts as late. A move lasts from the command until its last step is done. Lines completed within `--after`
seconds also count, because the move has held them up. The table has medians over all moves, also of maxima; for memory
it has the move in which a process grew most.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from apps.bench.experiment import COLOURS, Experiment, Record, plain_axes, size, verdict
from apps.bench.job import timeline, write_numbers
from apps.bench.migration_job import KeyCount, Load, before, calm_job, medians, rate_for
from apps.bench.migration_load import plain_rate
from apps.bench.processes import Memory
from megaflow.cli.text import table_text
from megaflow.control.client.commands import ask_status, run_plan, total
from megaflow.control.client.move_request import Selection, make_plan, table_of

FLUID, OPTIMIZED, BATCHED, ALL_AT_ONCE = STRATEGIES = ("fluid", "optimized", "batched", "all-at-once")
GRADUAL = STRATEGIES[:-1]
STEADY = "steady"
WARM_UP_SECONDS = 40.0  # of lines for the warm-up
STEP_SECONDS = 0.1  # of lines for the move of one bin: three times what it takes on an idle machine
PLAIN_LINES = 500_000
STALL_MS = 200.0  # if all-at-once stalls longer, the others are compared with it
TIMES_BETTER_MIN = 10
LATENCY_MS_MAX = 50.0  # of fluid and optimized
MICROSECONDS_PER_KEY_MAX = 1.0
SHADES = {FLUID: COLOURS[0], OPTIMIZED: "#4a9d5b", BATCHED: "#b08f26", ALL_AT_ONCE: COLOURS[1]}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurement."""

    keys: int = size(1_000_000, "Keys that have a count.")
    value_keys: int = size(200_000, "Keys that have a larger value.")
    value_bytes: int = size(2_000, "How large, in bytes.")
    bins: int = size(256, "Bins, of which half move.")
    batch: int = size(8, "Bins per step of batched.")
    rate: float = size(50_000.0, "Records per second; 0: a share of what the processes can do, found in a short trial.")
    steady: float = size(2.0, "Seconds before each move.")
    after: float = size(1.0, "Seconds after it that belong to it.")
    repeat: int = size(3, "Repetitions, of two moves for each strategy.")
    ordered: bool = size(False, "Whether worker 0 reads all lines, in order; else both read.")


def measure(sizes: Sizes) -> Record:
    """Run both jobs."""
    parts = {}
    for name, keys, value_bytes in (("counts", sizes.keys, 0), ("values", sizes.value_keys, sizes.value_bytes)):
        with tempfile.TemporaryDirectory(prefix="megaflow-bench-") as folder:
            load = Load(sizes.bins, keys, value_bytes, rate_for(sizes.rate, value_bytes, Path(folder)))
            parts[name] = measure_job(sizes, load, Path(folder, "lines.txt"))
    return {"parts": parts, "exact": all(part["exact"] for part in parts.values())}


def measure_job(sizes: Sizes, load: Load, path: Path) -> Record:
    """Move bins there and back with each strategy."""
    each = sizes.steady + sizes.after + sizes.bins / 2 * STEP_SECONDS
    write_numbers(path, round(load.rate * (WARM_UP_SECONDS + 2 * sizes.repeat * len(STRATEGIES) * each)))
    moves: list[Record] = []
    with calm_job(load, str(path) if sizes.ordered else f"{path}?unordered") as job, Memory(job.pids) as memory:
        source, target = sorted(job.pids)
        table = table_of(ask_status(job.talk))
        half = [bin for bin, owner in enumerate(table) if owner == source]
        for turn in range(sizes.repeat):
            first = turn % len(GRADUAL)
            for strategy in (*GRADUAL[first:], *GRADUAL[:first], ALL_AT_ONCE):
                for to in (target, source):
                    moves.append(move(job, strategy, half, to, sizes))
        over = time.monotonic()
    for record in moves:
        record["memory"] = {
            worker: (peak, memory.peaks(record["began"], record["after"])[worker])
            for worker, peak in memory.peaks(record["calm"], record["began"]).items()
        }
        record[STEADY] = job.figures(record["calm"], before(record["began"]))
        record["late"] = job.figures(record["began"], before(record["after"]))
    origin = min(begin for begin, _ in job.ended.flows)
    for record in moves:
        record.update({name: record[name] - origin for name in ("calm", "began", "ended", "after")})
    shown = moves[0]["calm"], over - origin
    points = [point for point in timeline(job.ended.latency, origin) if shown[0] <= point["second"] <= shown[1]]
    return {
        "keys": load.keys,
        "value_bytes": load.value_bytes,
        "bins": sizes.bins,
        "rate": load.rate,
        "plain": plain_rate(load.keys, load.value_bytes, min(PLAIN_LINES, round(load.rate * WARM_UP_SECONDS))),
        "moves": moves,
        "timeline": points,
        "exact": job.is_exact(),
    }


def move(job: KeyCount, strategy: str, bins: Sequence[int], to: int, sizes: Sizes) -> Record:
    """Move these bins after a calm while; return its moments and its account."""
    job.await_calm()
    calm = time.monotonic()
    job.running.rest(sizes.steady)
    began = time.monotonic()
    batch = sizes.batch if strategy == BATCHED else None
    selection = Selection(bins=",".join(map(str, bins)), to=to, strategy=strategy, batch=batch)
    plan = make_plan(ask_status(job.talk), selection)
    account = asdict(total(list(run_plan(job.talk, plan, time.sleep))))
    ended = time.monotonic()
    job.running.rest(sizes.after)
    moments = {"calm": calm, "began": began, "ended": ended, "after": time.monotonic()}
    return {"strategy": strategy, "to": to, **moments, "account": account}


def summary(part: Record) -> dict[str, Record]:
    """Return the medians for the calm stretches and for each strategy, and the time per moved key."""
    names = ("p50", "p99", "max", "seconds")
    found = {STEADY: medians([each[STEADY] for each in part["moves"]], names)}
    for strategy in STRATEGIES:
        moves = [each for each in part["moves"] if each["strategy"] == strategy]
        grown = [held for each in moves for held in each["memory"].values()]
        accounts = [{**each["account"], "per_key": microseconds_per_key(each["account"])} for each in moves]
        found[strategy] = {
            **medians([each["late"] for each in moves], names),
            **medians([{"seconds": each["ended"] - each["began"]} for each in moves], ("seconds",)),
            **medians(accounts, ("steps", "per_key", "bytes")),
            "memory": max(grown, key=lambda held: held[1] - held[0]),
        }
    return found


def microseconds_per_key(account: Record) -> float:
    """Return the time per key since the command, including the wait for earlier epochs."""
    return float(1e6 * account["seconds"] / max(1, account["keys"]))


def text(record: Record) -> str:
    """Return a table for each job, and whether the goals are met."""
    return "\n\n".join(part_text(part) for part in record["parts"].values())


def part_text(part: Record) -> str:
    """Return the table of one job."""
    found = summary(part)
    values = f" with {part['value_bytes']:,} bytes each" if part["value_bytes"] else ""
    head = ["", "steps", "seconds", "p50 ms", "p99 ms", "max ms", "µs per key", "RSS before, peak MiB"]
    rows = []
    for name, figures in found.items():
        row = [name, str(figures.get("steps", "-")), f"{figures['seconds']:.2f}"]
        row += [f"{figures[late]:.1f}" for late in ("p50", "p99", "max")]
        if name == STEADY:
            row += ["-", "-"]
        else:
            held, peak = figures["memory"]
            row += [f"{figures['per_key']:.2f}", f"{held:.0f}, {peak:.0f}"]
        rows.append(row)
    moved = found[ALL_AT_ONCE]["bytes"] / 1e6
    return "\n".join((
        f"{part['keys']:,} keys{values} in {part['bins']} bins on two processes, {part['rate']:,.0f} records/s; "
        f"{moved:.1f} MB move; the plain Python loop does {part['plain']:,.0f} records/s",
        table_text(head, rows),
        *goals(found, part["value_bytes"]),
        f"counts {'equal to Counters' if part['exact'] else 'WRONG'}",
    ))  # fmt: skip


def goals(found: dict[str, Record], value_bytes: int) -> list[str]:
    """Return a line for each goal: the measured value and the verdict."""
    stall, lines = found[ALL_AT_ONCE]["max"], []
    for strategy in (FLUID, OPTIMIZED):
        late = found[strategy]["max"]
        if stall > STALL_MS:
            good = verdict(late * TIMES_BETTER_MIN <= stall)
            lines.append(f"{strategy}: its maximum is 1/{stall / late:.1f} of all-at-once's, at most 1/10: {good}")
        else:
            lines.append(f"{strategy}: all-at-once stalls less than {STALL_MS:.0f} ms, so there is nothing to compare")
        lines.append(f"{strategy}: at most {late:.1f} ms late, {LATENCY_MS_MAX:.0f} allowed: "
                     f"{verdict(late <= LATENCY_MS_MAX)}")  # fmt: skip
    if not value_bytes:
        took = found[ALL_AT_ONCE]["per_key"]
        lines.append(f"all-at-once: {took:.2f} µs per key, {MICROSECONDS_PER_KEY_MAX:g} allowed: "
                     f"{verdict(took <= MICROSECONDS_PER_KEY_MAX)}")  # fmt: skip
    return lines


def draw(record: Record, figure: Any) -> None:
    """Draw p50 and maximum over time for both jobs, with the moves."""
    for axes, part in zip(figure.subplots(2, 1), record["parts"].values()):
        values = f" with {part['value_bytes']:,} bytes each" if part["value_bytes"] else ""
        draw_timeline(axes, part, f"{part['keys']:,} keys{values}, {part['rate']:,.0f} records/s")
    axes.set_xlabel("seconds")
    handles = axes.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", frameon=False, fontsize=8, ncols=len(handles[0]))


def draw_timeline(axes: Any, part: Record, title: str) -> None:
    """Draw one job."""
    seconds = [point["second"] for point in part["timeline"]]
    for name, label, colour in (("max", "maximum", "#444444"), ("p50", "p50", "#999999")):
        late = [point[name] for point in part["timeline"]]
        axes.plot(seconds, late, ".-", color=colour, linewidth=1.0, markersize=2.0, label=label)
    labels: dict[str, str] = {strategy: strategy for strategy in STRATEGIES}  # each label is given once
    for each in part["moves"]:
        shade, label = SHADES[each["strategy"]], labels.pop(each["strategy"], "")
        axes.axvspan(each["began"], each["ended"], color=shade, alpha=0.45, linewidth=0, label=label)
    axes.set_yscale("log")
    axes.margins(x=0.01)
    plain_axes(axes, title, "", "latency, ms")


MOVES = Experiment(
    "moves",
    "How late records are while bins move, by strategy.",
    Sizes,
    Sizes(keys=4_000, value_keys=400, bins=8, batch=2, rate=4_000.0, steady=0.1, after=0.1, repeat=1),
    measure,
    text,
    draw,
)
