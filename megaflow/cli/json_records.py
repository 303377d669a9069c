"""Records of plain values, as `--json` prints them. Their keys and values are a promise to scripts."""

import json
from dataclasses import fields, is_dataclass
from typing import Any

from megaflow.control import reports
from megaflow.control.client.move_request import Plan
from megaflow.control.watermark_messages import IdlePartition, WatermarkStatus
from megaflow.timely.order import Product

LEFT_OUT: dict[type, dict[str, Any]] = {
    reports.JobStatus: {**dict.fromkeys(("checkpoint", "launcher", "restart", "output", "watermark")), "attempt": 0,
                        "missing": (), "taken_before": {}},
    reports.Explanation: {**dict.fromkeys(("output", "watermark")), "missing": ()},
    reports.WorkerStatus: {
        "timers": None, "inputs": {}, "skipped": {}, "replaced": {}, "read_counts": {}, "partitions": (), "sinks": (),
        "memory_bytes": None, "blocked_seconds": {}, "outputs": {}, "arrived": {}, "pauses": reports.Durations(),
        "latencies": reports.Durations(),
    },
    reports.SinkStatus: {"written": 0},
    reports.CheckpointStatus: {"total_bytes": 0},
    reports.UsefulTime: {"late": 0, "overtaken": 0},
    WatermarkStatus: {"stands_at": None},
    IdlePartition: {"operator": None},
    reports.ChangeStatus: dict.fromkeys(("processes", "server", "worker")),
}  # fmt: skip
"""Class -> field -> value with which it is left out: a job or worker that has, or waits for, nothing of that."""
NAMES = {
    "source": "from",
    "target": "to",
    "records_per_second": "records_per_s",
    "busy_seconds": "busy_s",
    "useful_seconds": "s",
    "gap_seconds": "gap_s",
    "paused_seconds": "paused",
}  # field -> key, where they differ


def to_json(value: object) -> str:
    """Return a report, or a record of `--json`, as one line of JSON."""
    return json.dumps(plain(value))


def plain(value: object) -> Any:
    """Return a report as dicts, lists and numbers; its keys are the fields' names, but for those in `NAMES`."""
    match value:
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple() | Product():
            return [plain(each) for each in value]
        case _ if is_dataclass(value):
            return _by_field(value)
    return value


def _by_field(value: Any) -> dict[str, Any]:
    left_out, found = LEFT_OUT.get(type(value), {}), ((each.name, getattr(value, each.name)) for each in fields(value))
    said = ((name, each) for name, each in found if name not in left_out or each != left_out[name])
    record = {NAMES.get(name, name): plain(each) for name, each in said}
    if isinstance(value, reports.JobStatus):
        record["operators"] = operator_records(value)
    if isinstance(value, WatermarkStatus):
        record["idle"] = list(value.idle)
    return record


def operator_records(status: reports.JobStatus) -> list[dict[str, Any]]:
    """Return a status's operators; what was not asked for has no key."""
    records = []
    for operator in status.operators:
        record: dict[str, Any] = {"name": operator.name, "bins": operator.bins}
        if operator.table is not None:
            record["table"] = list(operator.table)
        if operator.load is not None:
            record |= load_record(operator.load, operator.table)
        records.append(record)
    return records


def load_record(load: reports.OperatorLoad, table: tuple[int, ...] | None) -> dict[str, Any]:
    """Return an operator's `loads` by bin, busiest first, and `hot_keys`."""
    rows = zip(load.bins, load.records_per_second, load.busy_ms_per_second, load.keys, load.bytes)
    return {
        "loads": [
            {"bin": bin, "owner": None if table is None else table[bin],
             "records_per_s": records, "busy_ms_per_s": busy, "keys": keys, "bytes": size}
            for bin, records, busy, keys, size in rows
        ],
        "hot_keys": [
            {"key": key, "bin": bin, "records_per_s": records, "error_per_s": error}
            for key, bin, records, error in load.hot_keys
        ],
    }  # fmt: skip


def plan_record(plan: Plan) -> dict[str, Any]:
    """Return a plan for `--dry-run`."""
    keys, size = plan.size or (None, None)
    return {
        "moves": [{"bin": bin, "from": source, "to": target} for bin, source, target in plan.moves],
        "steps": [[move.bin for move in step] for step in plan.steps],
        "gap_s": plan.gap,
        "keys": keys,
        "bytes": size,
    }
