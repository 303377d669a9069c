"""The output of `--json`, byte for byte. Scripts may rely on its keys, their order and their values."""

import json
from dataclasses import replace

from megaflow.cli.json_records import plain, to_json
from megaflow.cli.text import explanation_text, status_text
from megaflow.control.coordinator.controller.job_status import operator_statuses
from megaflow.control.messages import StatusAnswer
from megaflow.control.reports import (
    BootstrapReport,
    ChangeStatus,
    Durations,
    Explanation,
    HeldBy,
    JobStatus,
    JoinedProcess,
    JoiningStatus,
    JoinReport,
    LatencyQuantiles,
    LedgerEntry,
    MissingPartition,
    MoveReport,
    OperatorLoad,
    PartitionLag,
    PendingMove,
    PlanStatus,
    RemovalReport,
    SinkStatus,
    UsefulTime,
    WorkerStatus,
)
from megaflow.control.watermark_messages import HoldsBack, IdlePartition, PartitionLateness, WatermarkStatus
from megaflow.timely.order import Product
from tests.words import says

FULL = (
    '{"job": "app", "state": "running", "epoch": 9, "frontier": 8, "workers": [{"id": 0, "state": "running", "pid": '
    '71, "address": "h:1", "lines": 10, "records": 20, "records_per_s": 5.0, "latency_ms": {"p50": 1.0, "p99": 2.0, '
    '"max": 3.0}, "bins": 1, "keys": 9, "done": 8, "waiting": null, "now": 9.5, "busy_s": 1.25, "useful": {"count": '
    '{"records": 20, "s": 0.5}}, "timers": 5}, {"id": 1, "state": "joined", "pid": 72, "address": "h:2", "lines": 11, '
    '"records": 21, "records_per_s": 6.0, "latency_ms": {"p50": 1.5, "p99": 2.5, "max": 3.5}, "bins": 0, "keys": 0, '
    '"done": 0, "waiting": 0, "now": 0.0, "busy_s": 0.0, "useful": {}}], "operators": [{"name": "count", "bins": 2, '
    '"table": [0, 1], "loads": [{"bin": 1, "owner": 1, "records_per_s": 30.5, "busy_ms_per_s": 4.25, "keys": 3, '
    '"bytes": 2048}, {"bin": 0, "owner": 0, "records_per_s": 1.0, "busy_ms_per_s": 0.5, "keys": 2, "bytes": 100}], '
    '"hot_keys": [{"key": "\'the\'", "bin": 1, "records_per_s": 20.0, "error_per_s": 0.5}]}, '
    '{"name": "sum", "bins": 2, "table": [0, 1]}], "pending": [{"epoch": 9, "bins": 3}], '
    '"plan": {"number": 4, "strategy": "batched", "batch": 2, '
    '"gap_s": 0.5, "bins": 7, "left": 1, "runner": "pid 7 on a", "running": false, "removes": null}, '
    '"changes": [{"change": "add-workers", "processes": 2, "done": 1, "steps": 4, "waiting": false}, '
    '{"change": "remove-workers", "worker": '
    '1, "done": 0, "steps": 3, "waiting": true}, {"change": "bootstrap", "server": 0, "worker": 1, "done": 0, '
    '"steps": 1, "waiting": true}], "ledger": [{"operator": "count", "bin": 1, "epoch": 17, "from": 0, "to": 1, '
    '"bytes": 2048, "keys": 10, "seconds": 0.004}], "joining": [{"address": "h:3", "pid": 73, "seconds": 12.5, '
    '"workers": [], "waits": "it loads"}], "silent": [], "busy": []}'
)
EMPTY = (
    '{"job": "app", "state": "ending", "epoch": 9, "frontier": null, "workers": [], "operators": [{"name": "count", '
    '"bins": 2}], "pending": [], "plan": null, "changes": [], "ledger": [], "joining": [], "silent": [], "busy": []}'
)
WITHOUT_TABLES = (
    '{"job": "app", "state": "running", "epoch": 9, "frontier": 8, "workers": [{"id": 0, "state": "running", "pid": '
    '71, "address": "h:1", "lines": 10, "records": 20, "records_per_s": 5.0, "latency_ms": {"p50": 1.0, "p99": 2.0, '
    '"max": 3.0}, "bins": 1, "keys": 9, "done": 8, "waiting": null, "now": 9.5, "busy_s": 1.25, "useful": {"count": '
    '{"records": 20, "s": 0.5}}, "timers": 5}], "operators": [{"name": "count", "bins": 2, "loads": [{"bin": 1, '
    '"owner": null, "records_per_s": 30.5, "busy_ms_per_s": 4.25, "keys": 3, "bytes": 2048}, {"bin": 0, "owner": null, '
    '"records_per_s": 1.0, "busy_ms_per_s": 0.5, "keys": 2, "bytes": 100}], "hot_keys": [{"key": "\'the\'", "bin": 1, '
    '"records_per_s": 20.0, "error_per_s": 0.5}]}], "pending": [], "plan": null, "changes": [], "ledger": [], '
    '"joining": [], "silent": [], "busy": []}'
)
HELD = (
    '{"job": "app", "epoch": 9, "frontier": 4, "settled": false, "held_by": [{"operator": "count", "where": "a.py:3",'
    ' "port": "input 0", "worker": 1, "epoch": 4, "count": 2, "kind": "records"}, {"operator": "loop", "where": '
    '"a.py:9", "port": "output 0", "worker": null, "epoch": [4, 1], "count": 1, "kind": "under way"}], "silent": [2, '
    '3], "joining": [], "busy": []}'
)

LOAD = OperatorLoad("count", (1, 0), (30.5, 1.0), (4.25, 0.5), (3, 2), (2048, 100), (("'the'", 1, 20.0, 0.5),))
BUSY = WorkerStatus(
    0, "running", 71, "h:1", 10, 20, 5.0, LatencyQuantiles(1.0, 2.0, 3.0), 1, 9, 8, None, 9.5, 1.25,
    {"count": UsefulTime(20, 0.5)}, 5,
)  # fmt: skip
NEW = WorkerStatus(1, "joined", 72, "h:2", 11, 21, 6.0, LatencyQuantiles(1.5, 2.5, 3.5), 0, 0)
ANSWERS = [StatusAnswer(0, BUSY, (LOAD,)), StatusAnswer(0, NEW)]


def test_late_records_are_said_of_an_operator_that_has_some() -> None:
    assert [plain(UsefulTime(20, 0.5, late)) for late in (0, 3)] == [
        {"records": 20, "s": 0.5}, {"records": 20, "s": 0.5, "late": 3}
    ]  # fmt: skip


def test_sums_since_a_worker_began_are_in_a_status_that_has_some() -> None:
    sums = replace(NEW, memory_bytes=4096, blocked_seconds={"queues": 0.5}, outputs={"": 3}, arrived={"count": 2})
    record = plain(replace(sums, pauses=Durations((0, 2), 0.25), sinks=(SinkStatus("box", None, 1, 9),)))
    assert {name: each for name, each in record.items() if name not in plain(NEW)} == {
        "memory_bytes": 4096, "blocked_seconds": {"queues": 0.5}, "outputs": {"": 3}, "arrived": {"count": 2},
        "pauses": {"counts": [0, 2], "seconds": 0.25},
        "sinks": [{"sink": "box", "committed": None, "waiting": 1, "written": 9}],
    }  # fmt: skip


def test_a_status_with_all_that_it_may_have() -> None:
    status = JobStatus(
        "app", "running", 9, 8, (BUSY, NEW), operator_statuses(ANSWERS, {"count": 2, "sum": 2}, (0, 1)),
        (PendingMove(9, 3),), PlanStatus(4, "batched", 2, 0.5, 7, 1, "pid 7 on a", False),
        (
            ChangeStatus("add-workers", processes=2, done=1, steps=4),
            ChangeStatus("remove-workers", worker=1, steps=3, waiting=True),
            ChangeStatus("bootstrap", server=0, worker=1, waiting=True),
        ),
        (LedgerEntry("count", 1, 17, 0, 1, 2048, 10, 0.004),),
            (JoiningStatus("h:3", 73, 12.5, (), "it loads"),),
    )  # fmt: skip
    assert to_json(status) == FULL


def test_a_status_without_tables_loads_or_workers_has_no_keys_for_what_was_not_asked() -> None:
    assert to_json(JobStatus("app", "ending", 9, None, (), operator_statuses([], {"count": 2}, None))) == EMPTY
    status = JobStatus("app", "running", 9, 8, (BUSY,), operator_statuses(ANSWERS[:1], {"count": 2}, None))
    assert to_json(status) == WITHOUT_TABLES
    assert to_json(replace(NEW, inputs={"orders": 3})).endswith('"useful": {}, "inputs": {"orders": 3}}')


def test_an_explanation_shows_nested_times_as_lists() -> None:
    held = (
        HeldBy("count", "a.py:3", "input 0", 1, 4, 2, "records"),
        HeldBy("loop", "a.py:9", "output 0", None, Product(4, 1), 1, "under way"),
    )
    assert to_json(Explanation("app", 9, 4, False, held, (2, 3))) == HELD


def test_accounts_of_commands() -> None:
    join = JoinedProcess((2,), {"start": 0.5, "routing": 0.25}, 900, 0.0)
    assert to_json(JoinReport((join,), ("no",))) == (
        '{"joins": [{"workers": [2], "seconds": {"start": 0.5, "routing": 0.25}, "bytes": 900, "paused": 0.0}], '
        '"failed": ["no"]}'
    )
    assert to_json(RemovalReport((2, 3), 0.5)) == '{"workers": [2, 3], "seconds": 0.5}'
    assert to_json(BootstrapReport(2, 0, 9, 0.25, 0.125)) == (
        '{"worker": 2, "server": 0, "epoch": 9, "seconds": 0.25, "paused": 0.125}'
    )
    assert to_json(MoveReport(1, 2, 3, 4, 0.5, (9,))) == (
        '{"steps": 1, "bins": 2, "bytes": 3, "keys": 4, "seconds": 0.5, "epochs": [9], "operators": 1}'
    )


def test_what_the_output_waits_for_is_in_a_status_that_knows_of_it() -> None:
    waits = "results wait for Spark since epoch 7"
    status = JobStatus("app", "running", 9, 7, (), (), output=waits)
    assert json.loads(to_json(status))["output"] == waits and waits in status_text(status).splitlines()
    assert "output" not in json.loads(to_json(replace(status, output=None)))


def test_unopened_partitions_are_in_status_and_explanation() -> None:
    missing = (MissingPartition("logs", "'a.log' is locked", 1, (0, 1), None),)
    status, report = JobStatus("app", "running", 9, 7, (), ()), Explanation("app", 9, 8, True)
    for value, text in ((status, status_text), (report, explanation_text)):
        assert "missing" not in json.loads(to_json(value))
        some = replace(value, missing=missing)
        assert json.loads(to_json(some))["missing"] == [
            {"input": "logs", "why": "'a.log' is locked", "worker": 1, "tried": [0, 1], "unread": None}
        ]
        [line] = [each for each in text(some).splitlines() if each not in text(value)]  # type: ignore[operator]
        assert says(line, "'a.log' is locked (workers 0, 1)", "it is not read", "worker 1 tries again")


def test_lines_of_workers_that_left_are_in_the_status() -> None:
    status = JobStatus("app", "running", 9, 7, (replace(NEW, inputs={"orders": 3}),), ())
    assert "taken_before" not in json.loads(to_json(status)) and "input orders: 3 read" in status_text(status)
    status = replace(status, taken_before={"orders": 4, "clicks": 5})
    assert json.loads(to_json(status))["taken_before"] == {"orders": 4, "clicks": 5}
    assert {"input orders: 7 read", "input clicks: 5 read"} <= {*status_text(status).splitlines()}


def test_names_of_files_do_not_break_the_lines_of_a_status() -> None:
    name = "/logs/a\n\x1b[31m\udcff.log"
    lag = PartitionLag("lines", name, f"byte 7 of {name}", None)
    held, idle = HoldsBack("clicks", "", name, None, 2), IdlePartition("", name, 7.0, 40.0)
    lateness = PartitionLateness("clicks", "", name, 2, 1.0, 1.0, 1.0)
    watermark = WatermarkStatus(None, False, 1.0, None, held, (idle,), lateness=(lateness,))
    status = JobStatus("app", "running", 9, 7, (replace(NEW, partitions=(lag,)),), (), watermark=watermark)
    text = status_text(status)
    assert all(line.isprintable() for line in text.split("\n")) and text.count(r"/logs/a\n\x1b[31m\udcff.log") == 5
    [worker] = json.loads(to_json(status))["workers"]
    assert worker["partitions"][0]["partition"] == name, "records have the name as it is"


def test_how_far_partitions_of_sources_are_behind_is_in_a_status_that_knows_of_some() -> None:
    lags = (PartitionLag("pages", "'b'", "7", None), PartitionLag("pages", "'a'", "", 12))
    status = JobStatus("app", "running", 9, 7, (replace(NEW, partitions=lags), BUSY), ())
    new, busy = json.loads(to_json(status))["workers"]
    assert "partitions" not in busy and new["partitions"] == [
        {"input": "pages", "partition": "'b'", "position": "7", "lag": None},
        {"input": "pages", "partition": "'a'", "position": "", "lag": 12},
    ]
    lines = [line.split() for line in status_text(status).splitlines()]
    start = lines.index(["source", "partition", "worker", "read", "to", "behind"])
    assert lines[start + 1 : start + 3] == [["pages", "'a'", "1", "the", "beginning", "12"], ["pages", "'b'", "1", "7"]]
    many = replace(NEW, partitions=tuple(PartitionLag("pages", str(number), "7", number) for number in range(23)))
    assert status_text(replace(status, workers=(many,))).count(" pages ") == 20
    assert "and 3 more partitions: see --json" in status_text(replace(status, workers=(many,)))


def test_event_time_is_in_a_status_and_an_explanation_of_a_job_that_takes_timestamps_only() -> None:
    held = HoldsBack("clicks", "", "logs/b.json", None, 1, 1_767_225_600_000_000, True)
    idle = (IdlePartition("", "logs/a.json", 12.3, 40.0),)
    limits = {"orders": 1_767_225_600_000_000}
    watermark = WatermarkStatus(1_767_225_590_000_000, False, 2.0, 31.5, held, idle, read_limits=limits)
    status = JobStatus("app", "running", 9, 8, (BUSY,), (), watermark=watermark)
    text = (
        "watermark: 2025-12-31T23:59:50Z, for 2 s, 32 s behind the newest record: clicks waits for logs/b.json, "
        "which has no record yet, and by the order of names none before 2026-01-01T00:00:00Z "
        "(worker 1 reads it)\n"
        "  idle for 12.3 s: logs/a.json, 40 s behind the newest record\n"
        "  files of 'orders' are read up to 2026-01-01T00:00:00Z, by --max-skew\n"
    )
    assert text in status_text(status)
    found = json.loads(to_json(status))["watermark"]
    record = {"input": "", "partition": "logs/a.json", "idle_seconds": 12.3, "lag_seconds": 40.0}
    assert found["idle_partitions"] == [record] and found["read_limits"] == limits
    assert (found["micros"], found["held_by"]["partition"], found["idle"]) == (
        watermark.micros, "logs/b.json", ["logs/a.json"],
    )  # fmt: skip
    report = Explanation("app", 9, 8, True, watermark=watermark)
    assert text in explanation_text(report) + "\n" and json.loads(to_json(report))["watermark"] == found
    waits = "results wait for Spark since epoch 7"
    assert waits in explanation_text(Explanation("app", 9, 8, True, output=waits)).splitlines()
    late = (
        PartitionLateness("clicks", "", None, 1, 2.0, 2.0, 2.0),
        PartitionLateness("clicks", "logs", "a.json", 12, 0.25, 1_000_000.0, 1_234_567.5),
    )
    shown = replace(status, watermark=replace(watermark, lateness=late))
    lines = [line.split() for line in status_text(shown).splitlines()]
    head = ["event", "time", "input", "partition", "out", "of", "order", "p50", "s", "p99", "s", "max", "s"]
    start = lines.index(head)
    assert lines[start + 1] == ["clicks", "logs", "a.json", "12", "0.25", "1000000", "1234567.5"]
    assert lines[start + 2] == ["clicks", "all", "that", "are", "complete", "1", "2", "2", "2"]
    assert json.loads(to_json(shown))["watermark"]["lateness"][1] == {
        "operator": "clicks", "input": "logs", "partition": "a.json", "records": 12,
        "p50_seconds": 0.25, "p99_seconds": 1_000_000.0, "max_seconds": 1_234_567.5,
    }  # fmt: skip
    for each in (replace(status, watermark=None), replace(report, watermark=None)):
        assert "watermark" not in json.loads(to_json(each))
    assert "infinite" in status_text(replace(status, watermark=replace(watermark, is_infinite=True)))
