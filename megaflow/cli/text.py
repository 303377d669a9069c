"""What a job's reports and plans look like as text on a screen."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final

from megaflow.control import reports
from megaflow.control.client.move_request import Plan
from megaflow.control.watermark_messages import HoldsBack, IdlePartition, WatermarkStatus
from megaflow.control.wording import (
    busy_text,
    busy_where,
    counted_texts,
    missing_texts,
    printable,
    quantity,
    ranges_text,
    workers_text,
)
from megaflow.timely.order import Product, grouped

LEDGER_SHOWN = 10  # newest moves; --json has them all
PARTITIONS_SHOWN = 20
BINS_SHOWN = 10  # busiest; --json has them all
STEPS_SHOWN = 20
IDLE_SHOWN: Final = 5  # partitions; --json has them all
YEAR: Final = timedelta(days=365)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def gauges_text(status: reports.JobStatus) -> str:
    """Return a status as one line."""
    if status.epoch is None:
        return f"job {status.job}: {status.state}"
    rate = sum(worker.records_per_second for worker in status.workers)
    late = max((worker.latency_ms.p99 for worker in status.workers), default=0.0)
    lines = sum(worker.lines for worker in status.workers)
    workers = quantity(len(status.workers), "worker")
    return f"job {status.job}: {status.state}, {workers}, {lines:,} lines, {rate:,.0f} records/s, p99 {late:.1f} ms"


def status_text(status: reports.JobStatus) -> str:
    """Return a status as a few tables."""
    if status.restart is not None:
        return f"job {status.job}: recovering from the loss of a process ({status.restart})"
    if status.state == "silent":
        return f"job {status.job}: silent: neither its coordinator nor its launcher answers\n{status.launcher}"
    if status.epoch is None:
        return "\n".join([f"job {status.job}: {UNKNOWN}", *silent_texts(status.silent, status.busy)])
    frontier = "none" if status.frontier is None else status.frontier
    parts = [f"job {status.job}: {status.state}, epoch {status.epoch}, output complete before {frontier}"]
    rows = [
        [worker.id, worker.pid, worker.address, worker.lines, worker.records, f"{worker.records_per_second:.0f}",
         *(f"{late:.1f}" for late in (worker.latency_ms.p50, worker.latency_ms.p99, worker.latency_ms.max)),
         worker.bins, worker.keys]
        for worker in status.workers
    ]  # fmt: skip
    if status.checkpoint is not None:
        parts.append(checkpoint_text(status.checkpoint))
    if status.watermark is not None:
        parts.append(watermark_text(status.watermark))
    head = ["worker", "pid", "address", "lines", "folded", "rec/s", "p50 ms", "p99 ms", "max ms", "bins", "keys"]
    parts.append(table_text(head, rows))
    read = Counter(status.taken_before)
    for worker in status.workers:
        read.update(worker.inputs)
    parts += [f"input {name}: {count} read" for name, count in sorted(read.items())]
    parts += partition_texts(status) + lateness_texts(status)
    parts += sink_texts(status)
    parts += counted_texts(status)
    parts += [f"worker {each.id}: {STATES[each.state]}" for each in status.workers if each.state != "running"]
    parts += silent_texts(status.silent, members(status)) + ([status.output] if status.output else [])
    parts += missing_texts(status.missing)
    parts += [change_text(change) for change in status.changes]
    parts += [joining_text(each, status.busy) for each in status.joining]
    for operator in status.operators:
        parts.append(f"operator {operator.name}: {quantity(operator.bins, 'bin')}")
        if operator.table is not None:
            parts += [f"  worker {worker}: {ranges}" for worker, ranges in owners(operator.table).items()]
        parts += load_texts(operator)
    if status.plan is not None:
        parts.append(kept_text(status.plan))
    parts += [f"pending: {quantity(pending.bins, 'bin')} at epoch {pending.epoch}" for pending in status.pending]
    if ledger := status.ledger:
        size = bytes_text(sum(entry.bytes for entry in ledger))
        operators = len({each.operator for each in ledger})
        of_all = f" of {operators} operators" if operators > 1 else ""
        parts.append(f"moved so far: {quantity(len(ledger), 'bin')}{of_all}, {size}; the last:")
        shown = [
            [each.operator, each.bin, each.epoch, each.source, each.target, each.bytes, each.keys,
             f"{each.seconds * 1000:.1f}"]
            for each in ledger[-LEDGER_SHOWN:]
        ]  # fmt: skip
        parts.append(table_text(["operator", "bin", "epoch", "from", "to", "bytes", "keys", "ms"], shown))
    return "\n".join(parts)


def partition_texts(status: reports.JobStatus) -> list[str]:
    """Return what a status says of the partitions of sources, those first that are furthest behind."""
    found = [(-(each.lag or 0), each.input, worker.id, each) for worker in status.workers for each in worker.partitions]
    found.sort(key=lambda row: row[:3])
    rows = [
        [each.input, each.partition, worker, each.position or "the beginning", "" if each.lag is None else each.lag]
        for _, _, worker, each in found[:PARTITIONS_SHOWN]
    ]
    more = [f"and {len(found) - len(rows)} more partitions: see --json"] if len(found) > len(rows) else []
    return [table_text(["source", "partition", "worker", "read to", "behind"], rows), *more] if rows else []


def lateness_texts(status: reports.JobStatus) -> list[str]:
    """Return what a status says of records that came after a later one of their partition, the latest first."""
    found = () if status.watermark is None else status.watermark.lateness
    rows = [
        [each.operator, each.input, "all that are complete" if each.partition is None else each.partition,
         each.records, *map(about_seconds, (each.p50_seconds, each.p99_seconds)), plain_seconds(each.max_seconds)]
        for each in sorted(found, key=lambda each: -each.max_seconds)[:PARTITIONS_SHOWN]
    ]  # fmt: skip
    more = [f"and {len(found) - len(rows)} more partitions: see --json"] if len(found) > len(rows) else []
    head = ["event time", "input", "partition", "out of order", "p50 s", "p99 s", "max s"]
    return [table_text(head, rows), *more] if rows else []


def sink_texts(status: reports.JobStatus) -> list[str]:
    """Return what a status says of what the program writes to by itself."""
    found = sorted((each.sink, worker.id, each) for worker in status.workers for each in worker.sinks)
    rows = [
        [name, worker, "nothing" if each.committed is None else each.committed, each.waiting]
        for name, worker, each in found
    ]
    return [table_text(["sink", "worker", "committed", "rows waiting"], rows)] if rows else []


def checkpoint_text(checkpoint: reports.CheckpointStatus) -> str:
    """Return the last checkpoint, and how the next one gets on.

    >>> print(checkpoint_text(reports.CheckpointStatus(3, 41, 2.0, 2048, 0.05, False, 9.0, "disk full")))
    checkpoint 3: all before epoch 41, 2 s ago, 2.0 KiB in 50 ms; later ones have failed for 9 s: disk full
    """
    parts = ["no checkpoint yet"]
    if checkpoint.number is not None:
        cost = f", {bytes_text(checkpoint.bytes)} in {checkpoint.seconds * 1000:.0f} ms" if checkpoint.seconds else ""
        when = f"{checkpoint.age_seconds:.0f} s ago"
        parts = [f"checkpoint {checkpoint.number}: all before epoch {checkpoint.epoch}, {when}{cost}"]
    if checkpoint.failing_seconds is not None:
        parts.append(f"later ones have failed for {checkpoint.failing_seconds:.0f} s: {checkpoint.reason}")
    return "; ".join(parts)


def load_texts(operator: reports.OperatorStatus) -> list[str]:
    """Return the busiest bins of an operator and its most frequent keys, if the status has them."""
    load, table = operator.load, operator.table
    if load is None:
        return []
    parts = []
    if load.bins:
        more = f" of {len(load.bins)}" if len(load.bins) > BINS_SHOWN else ""
        parts.append(f"  busiest bins{more}, last seconds:")
        rows = zip(load.bins, load.records_per_second, load.busy_ms_per_second, load.keys, load.bytes)
        shown = [
            [bin, None if table is None else table[bin], f"{records:.0f}", f"{busy:.1f}", keys, bytes_text(size)]
            for bin, records, busy, keys, size in list(rows)[:BINS_SHOWN]
        ]
        parts.append(table_text(["bin", "worker", "rec/s", "ms/s", "keys", "about"], shown))
    if load.hot_keys:
        parts.append("  most frequent keys:")
        keys = [[key, bin, f"{records:.0f}", f"{error:.0f}"] for key, bin, records, error in load.hot_keys]
        parts.append(table_text(["key", "bin", "rec/s", "less at most"], keys[:BINS_SHOWN]))
    return parts


def kept_text(plan: reports.PlanStatus) -> str:
    """Return a plan that is not over.

    >>> kept_text(reports.PlanStatus(1, "fluid", None, 0.0, bins=64, left=3, runner="pid 7 on a", running=False))
    'plan: fluid, 3 of 64 bins left; pid 7 on a has ended or hangs: megaflow control resume finishes it'
    """
    then = "" if plan.removes is None else f", then worker {plan.removes} leaves"
    what = f"plan: {plan.strategy}, {plan.left} of {quantity(plan.bins, 'bin')} left{then}; {plan.runner} "
    if plan.running:
        return f"{what}is carrying it out"
    return f"{what}has ended or hangs: megaflow control resume finishes it"


def plan_text(plan: Plan) -> str:
    """Return a plan, its longest parts cut."""
    if not plan.moves:
        return NOTHING
    size = "" if plan.size is None else f" (about {quantity(plan.size[0], 'key')}, {bytes_text(plan.size[1])})"
    gap = f", {plan.gap:g} second{'' if plan.gap == 1 else 's'} apart" if plan.gap else ""
    bins = bins_of_text(len(plan.moves), plan.operators)
    parts = [f"would move {bins}{size} in {quantity(len(plan.steps), 'step')}{gap}:"]
    sources = {bin: source for bin, source, _ in plan.moves}
    for number, step in enumerate(plan.steps[:STEPS_SHOWN], 1):
        changes = grouped(((sources[move.bin], move.worker), move.bin) for move in step)
        what = "; ".join(f"{ranges_text(bins)} from {a} to {b}" for (a, b), bins in changes.items())
        parts.append(f"  step {number}: {what}")
    if len(plan.steps) > STEPS_SHOWN:
        parts.append(f"  … and {len(plan.steps) - STEPS_SHOWN} more")
    return "\n".join(parts)


def moved_text(moved: reports.MoveReport) -> str:
    """Return the account of a plan that was carried out.

    >>> moved_text(reports.MoveReport(steps=1, bins=1, bytes=20480, keys=4, seconds=1.0, epochs=(3,)))
    'moved 1 bin (4 keys, 20.0 KiB) in 1 step that took 1.00 seconds'
    """
    if not moved.steps:
        return NOTHING
    bins = bins_of_text(moved.bins, moved.operators)
    what = f"{bins} ({quantity(moved.keys, 'key')}, {bytes_text(moved.bytes)})"
    return f"moved {what} in {quantity(moved.steps, 'step')} that took {moved.seconds:.2f} seconds"


def bins_of_text(bins: int, operators: int) -> str:
    """Return a number of bins that move in each operator. Keys and bytes are those of all operators together.

    >>> bins_of_text(128, 1), bins_of_text(128, 3)
    ('128 bins', '128 bins of each of 3 operators')
    """
    return quantity(bins, "bin") + (f" of each of {operators} operators" if operators > 1 else "")


def explanation_text(report: reports.Explanation) -> str:
    """Return what holds a job's output back, as a sentence and a table."""
    epoch, frontier = report.epoch, report.frontier
    parts = silent_texts(report.silent, members(report)) + ([report.output] if report.output else [])
    if epoch is None:
        return "\n".join([f"job {report.job}: {UNKNOWN}", *parts])
    parts += missing_texts(report.missing)
    parts += [joining_text(each, report.busy) for each in report.joining]
    parts += [watermark_text(report.watermark)] if report.watermark is not None else []
    if report.settled:
        state = "all output is complete" if frontier is None else f"output is complete before epoch {frontier}"
        head = "no output is held back"
        return "\n".join([f"{head}: {state}, control is at epoch {epoch}", *parts])
    behind = f"output is complete before epoch {frontier}, control is at epoch {epoch}"
    rows = [
        [each.operator, each.port, "between" if each.worker is None else each.worker,
         list(each.epoch) if isinstance(each.epoch, Product) else each.epoch, each.count, each.kind, each.where]
        for each in report.held_by
    ]  # fmt: skip
    if not rows and not parts:
        return f"{behind}; epoch {frontier} has completed since, so nothing holds the output back"
    columns = ["operator", "port", "worker", "epoch", "count", "kind", "declared at"]
    return "\n".join([f"{behind}; epoch {frontier} is held by:", table_text(columns, rows), *parts])


def joined_text(join: reports.JoinedProcess) -> str:
    """Return the account of one process that has joined.

    >>> joined_text(reports.JoinedProcess((2,), {"start": 0.5, "routing": 0.25}, 900, 0.0))
    'added worker 2 in 0.75 seconds'
    """
    seconds = sum(join.seconds.values())
    return f"added {workers_text(join.workers)} in {seconds:.2f} seconds{paused_text(join.paused_seconds)}"


def removed_text(removal: reports.RemovalReport) -> str:
    """Return the account of a process that has left.

    >>> removed_text(reports.RemovalReport((2, 3), 0.25))
    'removed workers 2, 3 in 0.25 seconds'
    """
    return f"removed {workers_text(removal.workers)} in {removal.seconds:.2f} seconds"


def bootstrapped_text(report: reports.BootstrapReport) -> str:
    """Return the account of a worker that has its routing table.

    >>> bootstrapped_text(reports.BootstrapReport(2))
    'worker 2 already has its routing table'
    """
    if report.epoch is None:
        return f"worker {report.worker} already has its routing table"
    what = f"worker {report.worker} received the routing table of worker {report.server}"
    return f"{what} in {report.seconds:.3f} seconds{paused_text(report.paused_seconds)}"


def paused_text(seconds: float) -> str:
    """Return how long records waited for a routing table, if they did."""
    return f"; records waited there for {seconds:.3f} seconds" if seconds else ""


def change_text(change: reports.ChangeStatus) -> str:
    """Return a change of the membership.

    >>> change_text(reports.ChangeStatus("add-workers", processes=2, done=1, steps=4))
    'changing: add-workers (processes 2), 1 of 4 steps done'
    """
    named = {"processes": change.processes, "server": change.server, "worker": change.worker}
    facts = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
    how = "waiting" if change.waiting else f"{change.done} of {change.steps} steps done"
    return f"changing: {change.change} ({facts}), {how}"


def silent_texts(silent: Sequence[int], busy: Sequence[reports.BusyWorker]) -> list[str]:
    """Return why workers did not answer, and who else is busy.

    >>> silent_texts((1,), (reports.BusyWorker((1,), 77, 12.34, "busy", "fold", "app.py:12"),))
    ["worker 1 did not answer: it has been in 'fold' (app.py:12) for 12.3 s"]
    """
    known = {worker: each for each in reversed(busy) for worker in each.workers}
    whys = (
        f"it has been {busy_where(known[each])}" if each in known
        else "it is in a long step of user code, suspended, or cut off" for each in silent
    )  # fmt: skip
    parts = [f"worker {worker} did not answer: {why}" for worker, why in zip(silent, whys)]
    return parts + [busy_text(each) for each in busy if not set(each.workers).intersection(silent)]


def members(report: reports.JobStatus | reports.Explanation) -> list[reports.BusyWorker]:
    """Return the busy workers. A joining process counts once it has worker ids, which this adds to its entry."""
    joining = {each.pid: each.workers for each in report.joining}
    known = [replace(each, workers=joining.get(each.pid, each.workers)) for each in report.busy]
    return [each for each in known if each.workers or each.pid not in joining]


def joining_text(joining: reports.JoiningStatus, busy: Sequence[reports.BusyWorker] = ()) -> str:
    """Return a process on its way in.

    >>> joining = reports.JoiningStatus("127.0.0.1:5", 4711, 12.3, (), "it is loading its program")
    >>> joining_text(joining)
    'process 127.0.0.1:5 (pid 4711), requested 12 s ago, has not joined: it is loading its program'
    >>> joining_text(joining, [reports.BusyWorker((), 4711, 11.2, "busy", "load", "app.py:3")])
    "process 127.0.0.1:5 (pid 4711), requested 12 s ago, has not joined: it has been in 'load' (app.py:3) for 11.2 s"
    """
    who = f"process {joining.address}" if joining.address else "a process"
    who = who if joining.pid is None else f"{who} (pid {joining.pid})"
    how = f"joins as {workers_text(joining.workers)}" if joining.workers else "has not joined"
    reasons = [joining.waits]
    known = next((each for each in busy if each.pid == joining.pid), None)
    if known is not None and not joining.workers:
        reasons = [*(reasons if known.workers else ()), f"it has been {busy_where(known)}"]
    return f"{who}, requested {joining.seconds:.0f} s ago, {how}: {'; '.join(reasons)}"


UNKNOWN = "busy: the coordinator does not answer, so nothing else is known"
STATES = {"joined": "has joined, but has no routing table yet", "leaving": "is leaving"}
NOTHING = "nothing to move: every bin is already where it should be"


def owners(table: Sequence[int]) -> dict[int, str]:
    """Return worker -> its bins.

    >>> owners([0, 0, 1, 0])
    {0: '0-1,3', 1: '2'}
    """
    bins = grouped(sorted((owner, bin) for bin, owner in enumerate(table)))
    return {worker: ranges_text(owned) for worker, owned in bins.items()}


def table_text(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return columns aligned to the right. Characters that are not printable, as in names of files, are escaped.

    >>> print(table_text(["bin", "to"], [[7, 1], [200, 0]]))
    bin  to
      7   1
    200   0
    """
    cells = [list(head), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in cells)


def bytes_text(size: int) -> str:
    """Return a size for people.

    >>> bytes_text(900), bytes_text(1536), bytes_text(5 << 30)
    ('900 bytes', '1.5 KiB', '5.0 GiB')
    """
    if size < 1024:
        return f"{size} bytes"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.1f} {' KMGT'[power]}iB"


def watermark_text(status: WatermarkStatus) -> str:
    """Return the watermark and the partition that holds it back.

    >>> held = HoldsBack("clicks", "", "b.json", None, 1)
    >>> print(watermark_text(WatermarkStatus(None, age_seconds=3.2, held_by=held)))
    no watermark for 3 s: clicks waits for b.json, which has no record yet (worker 1 reads it)
    >>> idle = (IdlePartition("", "a", 12.3, 0.0),)
    >>> print(watermark_text(WatermarkStatus(2_000_000, age_seconds=3.2, idle_partitions=idle, all_idle_seconds=12.3)))
    watermark: 2 s, for 3 s: all partitions have been idle for 12 s, so it is that of the furthest one
      idle for 12.3 s: a, the furthest one
    >>> status = WatermarkStatus(2_000_000, age_seconds=3.2, all_idle_seconds=12.3, stands_at="errors")
    >>> print(watermark_text(status).partition(" s, ")[2].partition(", ")[2])
    and errors has come least far and lacks advance_when_idle=True, so it is where that is
    """
    if status.is_infinite:
        return "watermark: infinite, because all lines have been read"
    if status.micros is None:
        head = f"no watermark for {status.age_seconds:.0f} s"
    else:
        behind = "" if status.lag_seconds is None else f", {seconds_text(status.lag_seconds)} behind the newest record"
        head = f"watermark: {time_text(status.micros)}, for {status.age_seconds:.0f} s{behind}"
    held = "" if status.held_by is None else f": {held_text(status.held_by)}"
    if status.all_idle_seconds is not None and not status.held_by:
        so = "so it is that of the furthest one" if status.micros is not None else "and none has a record yet"
        if status.stands_at is not None:
            so = f"and {status.stands_at} has come least far and lacks advance_when_idle=True, so it is where that is"
        held = f": all partitions have been idle for {status.all_idle_seconds:.0f} s, {so}"
    return "\n".join([f"{head}{held}", *idle_texts(status.idle_partitions), *limit_texts(status.read_limits)])


def held_text(held: HoldsBack) -> str:
    """Return which partition an operator waits for, and why.

    >>> print(held_text(HoldsBack("clicks", "a", "logs/b.json", 1_500_000, 2, lag_seconds=40.0)))
    clicks waits for logs/b.json of 'a', which is at 1.5 s, 40 s behind the furthest one (worker 2 reads it)
    >>> text = held_text(HoldsBack("clicks", "", "b.json", None, None, 0, True))
    >>> print(text.removeprefix("clicks waits for b.json, "))
    which has no record yet, and by the order of names none before 0 s (no worker reads it)
    """
    whose = f" of {held.input!r}" if held.input else ""
    if held.maximum is not None:
        lag = f", {seconds_text(held.lag_seconds)} behind the furthest one" if held.lag_seconds else ""
        why = f"which is at {time_text(held.maximum)}{lag}"
    elif held.bound is not None:
        by = "by the order of names" if held.in_order else "by its source's promise"
        why = f"which has no record yet, and {by} none before {time_text(held.bound)}"
    else:
        why = "which has no record yet"
    who = "no worker reads it" if held.worker is None else f"worker {held.worker} reads it"
    return f"{held.operator} waits for {printable(held.partition)}{whose}, {why} ({who})"


def idle_texts(idle: Sequence[IdlePartition]) -> list[str]:
    """Return the idle partitions: first those without a record, then those furthest behind.

    >>> print(*idle_texts([IdlePartition("", "a", 12.34, 40.0), IdlePartition("clicks", "b", 7.0)]), sep="\\n")
      idle for 7.0 s: b of 'clicks', which has no record yet
      idle for 12.3 s: a, 40 s behind the newest record
    >>> print(*idle_texts([IdlePartition("", "a", 12.34, 40.0, "errors")]))
      idle at errors alone for 12.3 s: a, 40 s behind the newest record
    """
    behind = sorted(idle, key=lambda each: inf if each.lag_seconds is None else each.lag_seconds, reverse=True)
    more = [f"  idle: {len(idle) - IDLE_SHOWN} more, see --json"] if len(idle) > IDLE_SHOWN else []
    return [*map(_idle_text, behind[:IDLE_SHOWN]), *more]


def _idle_text(idle: IdlePartition) -> str:
    whose = f" of {idle.input!r}" if idle.input else ""
    if idle.lag_seconds is None:
        where = f"which has no record{'' if idle.operator is None else ' there'} yet"
    else:
        where = f"{seconds_text(idle.lag_seconds)} behind the newest record" if idle.lag_seconds else "the furthest one"
    at = "" if idle.operator is None else f" at {idle.operator} alone"
    return f"  idle{at} for {idle.idle_seconds:.1f} s: {printable(idle.partition)}{whose}, {where}"


def limit_texts(limits: Mapping[str, int]) -> list[str]:
    """Return how far the files of each input may be read now, with `--max-skew`.

    >>> print(*limit_texts({"orders": 75_000_000}))
      files of 'orders' are read up to 75 s, by --max-skew
    """
    return [
        f"  files of {input!r} are read up to {time_text(micros)}, by --max-skew" for input, micros in limits.items()
    ]


def time_text(micros: int) -> str:
    """Return a time of an event: as seconds if it is within a year of 1970, as such programs count from elsewhere.

    >>> time_text(2_500_000), time_text(1_700_000_000_250_000)
    ('2.5 s', '2023-11-14T22:13:20.250000Z')
    """
    since = timedelta(microseconds=micros)
    if abs(since) < YEAR:
        return f"{micros / 1_000_000:.10g} s"
    return f"{(_EPOCH + since).replace(tzinfo=None).isoformat()}Z"


def plain_seconds(seconds: float) -> str:
    """Return a number of seconds to the microsecond.

    >>> plain_seconds(0.25), plain_seconds(7e-6), plain_seconds(1_000_000.0)
    ('0.25', '0.000007', '1000000')
    """
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def about_seconds(seconds: float) -> str:
    """Return a number of seconds in three digits.

    >>> about_seconds(11.010047), about_seconds(1_234_567.5)
    ('11', '1230000')
    """
    return plain_seconds(float(f"{seconds:.3g}"))


def seconds_text(seconds: float) -> str:
    """Return a duration.

    >>> seconds_text(0.25), seconds_text(4000)
    ('0.2 s', '4000 s')
    """
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
