"""Growing from one process to two with many keys of state under load, compared with a restart of the same job.

The load is an open loop. Each line contains the moment at which it was due, so an output shows its latency even across
a restart. *Grow*: `add-workers 1 --balance` on the running job. *Restart*: the lines are held back, and the job drains
and ends. Then it is started with two processes, reads the state back, and continues with the lines that were due
meanwhile.

The restart uses no checkpoints but the fastest way without them. Every output is (key, count); the launcher keeps the
last one of each key in memory when the job has ended, and feeds them in as lines. Reading and writing a disk would add
to its time. Both are timed from the command, on the launcher's clock.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from apps.bench.experiment import COLOURS, Experiment, Record, plain_axes, size
from apps.bench.job import Running
from apps.bench.rescaling_job import grow
from apps.bench.rescaling_load import FIRST, RESTORED, OpenLoop, packed, stamped
from megaflow.cli.text import table_text
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.spec import Form

STEP_SECONDS = 0.1  # of the timelines
GAP_SECONDS = 0.2  # a longer gap is time without output
USUAL_SECONDS = 1.5  # before the command, whose outputs define what is usual
SHOWN_SECONDS = 2.0  # before the command
PATIENCE_SECONDS = 30.0  # until all outputs must be in time again
LATE_TIMES = 2.0  # a record is in time if it is no later than this times the latest usual record
CALM_SECONDS = 0.5  # all outputs must be in time for so long to count as caught up
GROW, RESTART = "grow", "stop and restart"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurement."""

    keys: int = size(500_000, "Keys of state.")
    bins: int = size(256, "Bins, of which half move.")
    rate: float = size(10_000.0, "Records per second.")
    before: float = size(4.0, "Seconds of load before the command.")
    after: float = size(2.0, "Seconds of load once all is in time again.")


@dataclass
class Outputs(Writer):
    """Outputs of the job: the state that they report, and the number and latency of the load's records over time."""

    form: Form = "records"
    last: dict[str, int] = field(default_factory=dict)  # key -> count
    wrong: int = 0  # counts other than the previous one plus one
    seen: list[tuple[float, int, float]] = field(default_factory=list)  # (second, records, greatest latency in seconds)

    def write(self, epoch: int, records: list[tuple[str, int, str]]) -> None:
        """Take the records of an epoch, which are in order for each key."""
        last, now, found, due = self.last, time.monotonic(), 0, float("inf")
        for key, count, stamp in records:
            if count != last.get(key, 0) + 1:
                self.wrong += 1
            last[key] = count
            if stamp != FIRST:
                found += 1
                due = min(due, float(stamp))
        if found:
            self.seen.append((now, found, now - due))


def measure(sizes: Sizes) -> Record:
    """Measure both ways."""
    runs = {GROW: run_grow(sizes), RESTART: run_restart(sizes)}
    exact = all(run["exact"] for run in runs.values())
    return {"keys": sizes.keys, "rate": sizes.rate, "runs": runs, "exact": exact}


def run_grow(sizes: Sizes) -> Record:
    """Add a process while the job runs."""
    load, outputs, args = OpenLoop(sizes.keys, sizes.rate), Outputs(), (str(sizes.bins),)
    with Running(stamped, load.lines(first_lines(sizes.keys)), outputs, args=args) as running:
        talk = running.converse()
        usual = await_load(running, outputs, sizes.before)
        growth = grow(talk)
        await_calm(running, outputs, LATE_TIMES * usual)
        running.rest(sizes.after)
        load.end()
    return account(sizes, load, outputs, (growth.began, growth.ended), usual, growth.seconds)


def run_restart(sizes: Sizes) -> Record:
    """Stop the job, and start it again with two processes and its state."""
    load, outputs, args = OpenLoop(sizes.keys, sizes.rate), Outputs(), (str(sizes.bins),)
    with Running(stamped, load.lines(first_lines(sizes.keys)), outputs, args=args) as running:
        usual = await_load(running, outputs, sizes.before)
        began = time.monotonic()
        load.end()
    drained = time.monotonic()
    before = len(outputs.seen)
    state = list(packed((key, f"{RESTORED}{count}") for key, count in outputs.last.items()))
    read_out = time.monotonic()
    with Running(stamped, load.lines(state), outputs, processes=2, args=args) as running:
        while len(outputs.seen) == before:
            running.rest(STEP_SECONDS / 10)
        ended = outputs.seen[before][0]
        await_calm(running, outputs, LATE_TIMES * usual)
        running.rest(sizes.after)
        load.end()
    fed = load.begun[-1]
    parts = {"drain": drained - began, "read out": read_out - drained, "start and feed in": fed - read_out,
             "first output": ended - fed}  # fmt: skip
    return account(sizes, load, outputs, (began, ended), usual, parts)


def first_lines(keys: int) -> Iterator[str]:
    """Give each key its first count."""
    return packed((f"key{number}", FIRST) for number in range(keys))


def await_load(running: Running, outputs: Outputs, seconds: float) -> float:
    """Wait until the load has been coming out for `seconds`; return its greatest recent latency, in seconds."""
    while not outputs.seen:
        running.rest(STEP_SECONDS)
    running.rest(seconds)
    return latest(outputs, USUAL_SECONDS)


def await_calm(running: Running, outputs: Outputs, late_max: float) -> None:
    """Wait until outputs are in time again, for at most PATIENCE_SECONDS."""
    until = time.monotonic() + PATIENCE_SECONDS
    running.rest(CALM_SECONDS)
    while latest(outputs, CALM_SECONDS) > late_max and time.monotonic() < until:
        running.rest(STEP_SECONDS)


def latest(outputs: Outputs, seconds: float) -> float:
    """Return the greatest latency among the outputs of the last seconds; inf if there are none."""
    since = time.monotonic() - seconds
    return max((late for moment, _, late in outputs.seen if moment >= since), default=float("inf"))


def account(
    sizes: Sizes,
    load: OpenLoop,
    outputs: Outputs,
    command: tuple[float, float],
    usual: float,
    parts: dict[str, float],
) -> Record:
    """Return the results of a run whose command was given and done at these moments."""
    began, ended = command
    expected = load.drawn + Counter(f"key{number}" for number in range(sizes.keys))
    moments = [moment for moment, _, _ in outputs.seen]
    gaps = [later - sooner for sooner, later in pairwise(moments) if later > began]
    points = [point for point in timeline(outputs.seen, began) if point["second"] >= -SHOWN_SECONDS]
    return {
        "seconds": ended - began,
        "gap": max(gaps),
        "silent": sum(gap for gap in gaps if gap > GAP_SECONDS),
        "late_usual": usual,
        "late_most": max(point["late"] for point in points if point["second"] > -STEP_SECONDS),
        "caught_up": caught_up(points, LATE_TIMES * usual),
        "parts": parts,
        "timeline": points,
        "exact": not outputs.wrong and outputs.last == expected,
    }


def timeline(seen: Sequence[tuple[float, int, float]], origin: float) -> list[dict[str, float]]:
    """Return for each step, silent or not: its second since `origin`, records per second, greatest latency in seconds.

    >>> points = timeline([(5.01, 2, 0.5), (5.02, 1, 0.25), (5.25, 1, 0.125)], origin=5.0)
    >>> [(point["per_second"], point["late"]) for point in points]
    [(30.0, 0.5), (0.0, 0.0), (10.0, 0.125)]
    """
    steps = [int((moment - origin) // STEP_SECONDS) for moment, _, _ in seen]
    found = {step: [0, 0.0] for step in range(min(steps), max(steps) + 1)}
    for step, (_, records, late) in zip(steps, seen):
        found[step] = [found[step][0] + records, max(found[step][1], late)]
    return [
        {"second": round(step * STEP_SECONDS, 3), "per_second": records / STEP_SECONDS, "late": late}
        for step, (records, late) in found.items()
    ]


def caught_up(points: Sequence[dict[str, float]], late_max: float) -> float | None:
    """Return the first second, from 0 on, at which a half second begins whose outputs are all in time; None if never.

    A gap of more than GAP_SECONDS without output is not in time.

    >>> points = timeline([(step / 10, 1, 2.0 if 3 <= step < 9 else 0.1) for step in range(20)], origin=0.0)
    >>> caught_up(points, late_max=0.2)
    0.9
    """
    silent_max, calm_steps = round(GAP_SECONDS / STEP_SECONDS), round(CALM_SECONDS / STEP_SECONDS)
    calm = silent = 0  # steps
    for point in points:
        if point["second"] < 0:
            continue
        silent = 0 if point["per_second"] else silent + 1
        calm = calm + 1 if point["late"] <= late_max and silent <= silent_max else 0
        if calm >= calm_steps:
            return round(point["second"] - CALM_SECONDS + STEP_SECONDS, 3)
    return None


COLUMNS = {
    "seconds": "seconds",
    "silent": "without output",
    "gap": "longest gap",
    "late_most": "latest record",
    "caught_up": "caught up after",
}


def text(record: Record) -> str:
    """Return the table."""
    rows = [
        [name, *("not yet" if run[each] is None else f"{run[each]:.2f}" for each in COLUMNS)]
        for name, run in record["runs"].items()
    ]
    parts = [
        f"{name}: " + ", ".join(f"{part} {seconds:.3f}" for part, seconds in run["parts"].items()) + " seconds"
        for name, run in record["runs"].items()
    ]
    return "\n".join((
        f"{record['keys']:,} keys of state, {record['rate']:,.0f} records/s",
        table_text(["one process to two", *COLUMNS.values()], rows),
        *parts,
        f"counts {'equal to those of Counter' if record['exact'] else 'WRONG'}",
        "(without checkpoints: the restart keeps the counts that came out in memory and feeds them in as lines)",
    ))  # fmt: skip


def draw(record: Record, figure: Any) -> None:
    """Draw both timelines: the rates and latencies of outputs."""
    above, below = figure.subplots(2, 1, sharex=True)
    for (name, run), colour in zip(record["runs"].items(), COLOURS):
        seconds = [point["second"] for point in run["timeline"]]
        above.plot(seconds, [point["per_second"] for point in run["timeline"]], color=colour, linewidth=1.2, label=name)
        late = [point["late"] if point["per_second"] else None for point in run["timeline"]]
        below.plot(seconds, late, color=colour, linewidth=1.2)
        for axes in (above, below):
            axes.axvline(run["seconds"], color=colour, linewidth=0.8, linestyle=":")
    for axes in (above, below):
        axes.axvline(0, color="black", linewidth=0.8, linestyle=":")
    below.set_yscale("log")
    above.set_ylim(bottom=0)
    plain_axes(above, f"one process to two, {record['keys']:,} keys of state", "", "records a second")
    plain_axes(below, "", "seconds since the command (dotted: done)", "latest record, seconds late")
    above.legend(frameon=False, fontsize=9)


COMPARISON = Experiment(
    "restart",
    "Growing a job with much state, beside stopping and restarting it.",
    Sizes,
    Sizes(keys=5_000, bins=16, rate=1_000.0, before=2.0, after=0.5),
    measure,
    text,
    draw,
)
