"""The status of a job as one plain record, the same for a screen and for `--json`; the secret is not in it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from megaflow.control.coordinator.reconfigurations import Pending
from megaflow.control.load_records import load_records
from megaflow.control.messages import LedgerEntry, WorkerStatus


def status_record(
    *,
    job: str,
    state: str,
    epoch: int,
    frontier: int | None,
    workers: Iterable[tuple[WorkerStatus, str]],  # (what it says, its state)
    operators: Mapping[str, int],  # name -> bins
    table: Sequence[int] | None,  # bin -> worker; None leaves it out
    pending: Iterable[Pending],
    plan: dict[str, Any] | None,  # that is not over
    changes: Sequence[dict[str, Any]],  # of the membership
    ledger: Iterable[LedgerEntry],
) -> dict[str, Any]:
    """Return the record that `megaflow control status --json` prints; workers sorted by id."""
    tables = {} if table is None else {"table": list(table)}
    workers = sorted(workers, key=lambda each: each[0].worker)
    loads = load_records([status for status, _ in workers], table)
    return {
        "job": job,
        "state": state,
        "epoch": epoch,
        "frontier": frontier,
        "workers": [worker_record(status, state) for status, state in workers],
        "operators": [
            {"name": name, "bins": bins, **tables, **loads.get(name, {})} for name, bins in operators.items()
        ],
        "pending": [{"epoch": each.epoch, "bins": each.bins} for each in pending],
        "plan": plan,
        "changes": list(changes),
        "ledger": [ledger_record(entry) for entry in ledger],
    }


def worker_record(status: WorkerStatus, state: str) -> dict[str, Any]:
    """Return one worker's part; `bins` counts those of one operator, since all share one table."""
    return {
        "id": status.worker,
        "state": state,
        "pid": status.pid,
        "address": status.address,
        "lines": status.lines,
        "records": status.records,
        "records_per_s": status.records_per_second,
        "latency_ms": {"p50": status.latency_ms_p50, "p99": status.latency_ms_p99, "max": status.latency_ms_max},
        "bins": max(status.bins.values(), default=0),
        "keys": sum(status.keys.values()),
        "done": status.done,
        "waiting": status.waiting,
        "now": status.now,
        "busy_s": status.busy_seconds,
        "useful": {name: {"records": records, "s": seconds} for name, (records, seconds) in status.useful.items()},
    }


def ledger_record(entry: LedgerEntry) -> dict[str, Any]:
    """Return one bin's move.

    >>> ledger_record(LedgerEntry("count", 3, 17, 0, 1, 2048, 10, 0.004))["from"]
    0
    """
    return {
        "operator": entry.operator,
        "bin": entry.bin,
        "epoch": entry.epoch,
        "from": entry.source,
        "to": entry.target,
        "bytes": entry.bytes,
        "keys": entry.keys,
        "seconds": entry.seconds,
    }
