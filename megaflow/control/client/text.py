"""What a job's records look like as text on a screen."""

from collections.abc import Sequence
from typing import Any

from megaflow.control.client.move_request import Plan
from megaflow.control.coordinator.request_progress import workers_text

LEDGER_SHOWN = 10  # newest moves; --json has them all
BINS_SHOWN = 10  # busiest; --json has them all
STEPS_SHOWN = 20


def status_text(record: dict[str, Any]) -> str:
    """Return a status record as a few tables."""
    frontier = "none" if record["frontier"] is None else record["frontier"]
    parts = [f"job {record['job']}: {record['state']}, epoch {record['epoch']}, output complete before {frontier}"]
    rows = [
        [worker["id"], worker["pid"], worker["address"], worker["lines"], worker["records"],
         f"{worker['records_per_s']:.0f}", *(f"{worker['latency_ms'][name]:.1f}" for name in ("p50", "p99", "max")),
         worker["bins"], worker["keys"]]
        for worker in record["workers"]
    ]  # fmt: skip
    head = ["worker", "pid", "address", "lines", "records", "rec/s", "p50 ms", "p99 ms", "max ms", "bins", "keys"]
    parts.append(table_text(head, rows))
    parts += [f"worker {worker['id']}: {STATES[worker['state']]}"
              for worker in record["workers"] if worker["state"] != "running"]  # fmt: skip
    parts += [change_text(change) for change in record["changes"]]
    for operator in record["operators"]:
        parts.append(f"operator {operator['name']}: {operator['bins']} bins")
        if "table" in operator:
            parts += [f"  worker {worker}: {ranges}" for worker, ranges in owners(operator["table"]).items()]
        parts += loads_texts(operator)
    if record.get("plan"):
        parts.append(kept_text(record["plan"]))
    parts += [f"pending: {pending['bins']} bins at epoch {pending['epoch']}" for pending in record["pending"]]
    if ledger := record["ledger"]:
        size = bytes_text(sum(entry["bytes"] for entry in ledger))
        parts.append(f"moved so far: {count(len(ledger), 'bin')}, {size}; the last:")
        names = ["operator", "bin", "epoch", "from", "to", "bytes", "keys"]
        newest = ledger[-LEDGER_SHOWN:]
        shown = [[*(entry[name] for name in names), f"{entry['seconds'] * 1000:.1f}"] for entry in newest]
        parts.append(table_text([*names, "ms"], shown))
    return "\n".join(parts)


def loads_texts(operator: dict[str, Any]) -> list[str]:
    """Return the busiest bins of an operator and its most frequent keys, if the status has them."""
    parts = []
    if rows := operator.get("loads"):
        more = f" of {len(rows)}" if len(rows) > BINS_SHOWN else ""
        parts.append(f"  busiest bins{more}, last seconds:")
        shown = [
            [row["bin"], row["owner"], f"{row['records_per_s']:.0f}", f"{row['busy_ms_per_s']:.1f}", row["keys"],
             bytes_text(row["bytes"])]
            for row in rows[:BINS_SHOWN]
        ]  # fmt: skip
        parts.append(table_text(["bin", "worker", "rec/s", "ms/s", "keys", "about"], shown))
    if rows := operator.get("hot_keys"):
        parts.append("  most frequent keys:")
        shown = [[row["key"], row["bin"], f"{row['records_per_s']:.0f}", f"{row['error_per_s']:.0f}"] for row in rows]
        parts.append(table_text(["key", "bin", "rec/s", "less at most"], shown[:BINS_SHOWN]))
    return parts


def kept_text(kept: dict[str, Any]) -> str:
    """Return a plan that is not over.

    >>> kept_text({"strategy": "fluid", "bins": 64, "left": 3, "runner": "pid 7 on a", "running": False})
    'plan: fluid, 3 of 64 bins left; pid 7 on a ended before it was over: megaflow control resume goes on with it'
    """
    what = f"plan: {kept['strategy']}, {kept['left']} of {count(kept['bins'], 'bin')} left; {kept['runner']} "
    if kept["running"]:
        return f"{what}is carrying it out"
    return f"{what}ended before it was over: megaflow control resume goes on with it"


def plan_text(plan: Plan) -> str:
    """Return a plan, its longest parts cut."""
    if not plan.moves:
        return NOTHING
    size = "" if plan.size is None else f" (about {count(plan.size[0], 'key')}, {bytes_text(plan.size[1])})"
    gap = f", {plan.gap:g} seconds apart" if plan.gap else ""
    parts = [f"would move {count(len(plan.moves), 'bin')}{size} in {count(len(plan.steps), 'step')}{gap}:"]
    sources = {bin: source for bin, source, _ in plan.moves}
    for number, step in enumerate(plan.steps[:STEPS_SHOWN], 1):
        changes: dict[tuple[int, int], list[int]] = {}
        for move in step:
            changes.setdefault((sources[move.bin], move.worker), []).append(move.bin)
        what = "; ".join(f"{ranges_text(bins)} from {a} to {b}" for (a, b), bins in changes.items())
        parts.append(f"  step {number}: {what}")
    if len(plan.steps) > STEPS_SHOWN:
        parts.append(f"  … and {len(plan.steps) - STEPS_SHOWN} more")
    return "\n".join(parts)


def moved_text(done: dict[str, Any]) -> str:
    """Return the account of a plan that was carried out.

    >>> moved_text({"steps": 1, "bins": 1, "bytes": 20480, "keys": 4, "seconds": 1.0, "epochs": [3]})
    'moved 1 bin (4 keys, 20.0 KiB) in 1 step, 1.00 seconds'
    """
    if not done["steps"]:
        return NOTHING
    what = f"{count(done['bins'], 'bin')} ({count(done['keys'], 'key')}, {bytes_text(done['bytes'])})"
    return f"moved {what} in {count(done['steps'], 'step')}, {done['seconds']:.2f} seconds"


def explanation_text(record: dict[str, Any]) -> str:
    """Return what holds a job's output back, as a sentence and a table."""
    epoch, frontier = record["epoch"], record["frontier"]
    parts = [f"worker {worker} did not answer: it is in a long step of user code" for worker in record["silent"]]
    if record["settled"]:
        state = "all output is complete" if frontier is None else f"output is complete before epoch {frontier}"
        return "\n".join([f"nothing holds it back: {state}, control is at epoch {epoch}", *parts])
    behind = f"output is complete before epoch {frontier}, control is at epoch {epoch}"
    rows = [
        [each["operator"], each["port"], "between" if each["worker"] is None else each["worker"],
         each["epoch"], each["count"], each["kind"], each["where"]]
        for each in record["held_by"]
    ]  # fmt: skip
    if not rows and not parts:
        return f"{behind}; epoch {frontier} is over by now, nothing holds it back any more"
    head = ["operator", "port", "worker", "epoch", "count", "kind", "declared at"]
    return "\n".join([f"{behind}; epoch {frontier} is held by:", table_text(head, rows), *parts])


def joined_text(join: dict[str, Any]) -> str:
    """Return the account of one process that has joined.

    >>> joined_text({"workers": [2], "seconds": {"start": 0.5, "routing": 0.25}, "bytes": 900, "paused": 0.0})
    'added worker 2: start 0.500, routing 0.250 seconds; 900 bytes of progress'
    """
    phases = ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in join["seconds"].items())
    paused = f"; records waited there for {join['paused']:.3f} seconds" if join["paused"] else ""
    return f"added {workers_text(join['workers'])}: {phases} seconds; {bytes_text(join['bytes'])} of progress{paused}"


def removed_text(record: dict[str, Any]) -> str:
    """Return the account of a process that has left.

    >>> removed_text({"workers": [2, 3], "seconds": 0.25})
    'removed workers 2, 3 in 0.25 seconds'
    """
    return f"removed {workers_text(record['workers'])} in {record['seconds']:.2f} seconds"


def bootstrapped_text(record: dict[str, Any]) -> str:
    """Return the account of a worker that was given its routing table."""
    paused = f"; records waited there for {record['paused']:.3f} seconds" if record["paused"] else ""
    return f"worker {record['worker']} has the routing table of worker {record['server']}, " \
           f"{record['seconds']:.3f} seconds{paused}"  # fmt: skip


def change_text(change: dict[str, Any]) -> str:
    """Return a change of the membership.

    >>> change_text({"change": "add-workers", "processes": 2, "done": 1, "steps": 4, "waiting": False})
    'changing: add-workers (processes 2), 1 of 4 steps done'
    """
    facts = ", ".join(f"{name} {change[name]}" for name in ("processes", "server", "worker") if name in change)
    how = "waiting" if change["waiting"] else f"{change['done']} of {change['steps']} steps done"
    return f"changing: {change['change']} ({facts}), {how}"


STATES = {
    "joined": "has joined, and knows no routing table yet",
    "leaving": "is leaving",
}
NOTHING = "nothing to move: every bin is where it was wanted"


def owners(table: Sequence[int]) -> dict[int, str]:
    """Return worker -> its bins.

    >>> owners([0, 0, 1, 0])
    {0: '0-1,3', 1: '2'}
    """
    bins: dict[int, list[int]] = {worker: [] for worker in sorted(set(table))}
    for bin, owner in enumerate(table):
        bins[owner].append(bin)
    return {worker: ranges_text(owned) for worker, owned in bins.items()}


def ranges_text(bins: Sequence[int]) -> str:
    """Return increasing numbers as `--bins` takes them.

    >>> ranges_text([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    runs: list[list[int]] = []
    for bin in bins:
        if runs and runs[-1][1] == bin - 1:
            runs[-1][1] = bin
        else:
            runs.append([bin, bin])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def table_text(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return columns aligned to the right.

    >>> print(table_text(["bin", "to"], [[7, 1], [200, 0]]))
    bin  to
      7   1
    200   0
    """
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in cells)


def count(number: int, noun: str) -> str:
    """Return "1 bin" or "2 bins"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def bytes_text(size: int) -> str:
    """Return a size for people.

    >>> bytes_text(900), bytes_text(1536), bytes_text(5 << 30)
    ('900 bytes', '1.5 KiB', '5.0 GiB')
    """
    if size < 1024:
        return f"{size} bytes"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.1f} {' KMGT'[power]}iB"
