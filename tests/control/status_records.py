"""Converts `--json` records of statuses to `JobStatus`: tests write records, the code under test takes objects."""

from typing import Any

from megaflow.control.reports import (
    ChangeStatus,
    JobStatus,
    LatencyQuantiles,
    LedgerEntry,
    OperatorLoad,
    OperatorStatus,
    PendingMove,
    PlanStatus,
    UsefulTime,
    WorkerStatus,
)

Record = dict[str, Any]


def status_of(record: Record) -> JobStatus:
    """Return the status that prints as this record. Missing fields of a worker count as zero."""
    return JobStatus(
        job=record["job"],
        state=record["state"],
        epoch=record["epoch"],
        frontier=record["frontier"],
        workers=tuple(worker_of(each) for each in record["workers"]),
        operators=tuple(operator_of(each) for each in record["operators"]),
        pending=tuple(PendingMove(**each) for each in record["pending"]),
        plan=None if record["plan"] is None else plan_of(record["plan"]),
        changes=tuple(ChangeStatus(**each) for each in record["changes"]),
        ledger=tuple(entry_of(each) for each in record["ledger"]),
    )


def worker_of(record: Record) -> WorkerStatus:
    nothing: Record = {"pid": 7, "records": 0, "records_per_s": 0.0, "latency_ms": {}, "bins": 0, "keys": 0}
    fields = {"done": 0, "waiting": 0, "now": 0.0, "busy_s": 0.0, "useful": {}} | nothing | record
    useful = {name: UsefulTime(each["records"], each["s"]) for name, each in fields.pop("useful").items()}
    return WorkerStatus(
        records_per_second=fields.pop("records_per_s"),
        busy_seconds=fields.pop("busy_s"),
        latency_ms=LatencyQuantiles(**fields.pop("latency_ms")),
        useful=useful,
        **fields,
    )


def operator_of(record: Record) -> OperatorStatus:
    load = None
    if "loads" in record:
        rows = record["loads"]
        names = ("bin", "records_per_s", "busy_ms_per_s", "keys", "bytes")
        figures = [tuple(row[name] for row in rows) for name in names]
        keys = tuple(tuple(each.values()) for each in record.get("hot_keys", ()))
        load = OperatorLoad(record["name"], *figures, keys)  # type: ignore[arg-type]
    return OperatorStatus(record["name"], record["bins"], tuple(record["table"]) if "table" in record else None, load)


def plan_of(record: Record) -> PlanStatus:
    fields = {"batch": None, "gap_s": 0.0} | record
    return PlanStatus(gap_seconds=fields.pop("gap_s"), **fields)


def entry_of(record: Record) -> LedgerEntry:
    fields = {"operator": "count", "from": 0, "to": 1, "bytes": 0, "keys": 0, "seconds": 0.0} | record
    return LedgerEntry(source=fields.pop("from"), target=fields.pop("to"), **fields)
