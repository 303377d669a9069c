"""Records of plain values, as `--json` prints them. Their keys and values are a promise to scripts."""

import json
from dataclasses import fields, is_dataclass
from typing import Any

from megaflow.control.client.move_request import Plan
from megaflow.control.reports import ChangeStatus, Explanation, JobStatus, OperatorLoad, UsefulTime, WorkerStatus
from megaflow.control.watermark_messages import WatermarkStatus
from megaflow.timely.order import Product

IF_SAID = {"checkpoint", "restart", "output", "watermark"}
"""Of a status or explanation: left out of a job that has, or waits for, nothing of that."""
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
        case JobStatus():
            found = {**_by_field(value), "operators": operator_records(value)}
            return {key: each for key, each in found.items() if key not in IF_SAID or each is not None}
        case Explanation():
            return {key: each for key, each in _by_field(value).items() if key not in IF_SAID or each is not None}
        case WorkerStatus():
            lists: tuple[tuple[str, Any], ...] = ("partitions", ()), ("sinks", ())
            counts: tuple[tuple[str, Any], ...] = ("skipped", {}), ("replaced", {})
            unsaid: tuple[tuple[str, Any], ...] = ("timers", None), ("inputs", {}), *counts, *lists
            empty = {key for key, each in unsaid if getattr(value, key) == each}
            return {key: each for key, each in _by_field(value).items() if key not in empty}
        case UsefulTime():
            return {key: each for key, each in _by_field(value).items() if key not in ("late", "overtaken") or each}
        case WatermarkStatus():
            return {**_by_field(value), "idle": list(value.idle)}
        case ChangeStatus():
            return {key: each for key, each in _by_field(value).items() if each is not None}
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple() | Product():
            return [plain(each) for each in value]
        case _ if is_dataclass(value):
            return _by_field(value)
    return value


def _by_field(value: Any) -> dict[str, Any]:
    return {NAMES.get(field.name, field.name): plain(getattr(value, field.name)) for field in fields(value)}


def operator_records(status: JobStatus) -> list[dict[str, Any]]:
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


def load_record(load: OperatorLoad, table: tuple[int, ...] | None) -> dict[str, Any]:
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
